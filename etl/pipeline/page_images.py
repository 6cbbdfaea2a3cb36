"""Images of the pages of documents, which workers render on the first request.

The key `etl/images/17/ocr-9405313/3-1240.webp` is page 3, 1,240 pixels wide, for people. `3-1500000.jpg` is the same
page with at most that many pixels, for models. An empty object means that the page cannot be rendered. Images can be
rendered again at any time, so the sweep deletes them after a while. A request also renders neighboring pages.
"""

import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field

import structlog
from django.conf import settings

from config.platform import storage
from etl import runstate
from etl.core.errors import EngineMissing, EtlError, OutOfTime, WorkerMisconfigured
from etl.core.formats import PRINTED, DocumentFormat
from etl.core.stage_context import StageContext, ignore
from etl.models import Task
from etl.pipeline import artifacts, dispatch, engines
from etl.pipeline.artifacts import ArtifactOwner
from etl.pipeline.stages import ocr
from etl.providers.base import Document
from etl.runstate import RunState

log = structlog.get_logger(__name__)

MEDIA_TYPE = "image/webp"
WIDTHS = (320, 1240, 2000)  # pixels: thumbnails, a column of a screen, and details
FORMATS = PRINTED
PAGES_AT_ONCE = 8
DRAW_SECONDS = 60
# Minimum time between two messages of one user, so that viewing pages takes at most half of a worker's time.
USER_SECONDS = 2.0


def stored_width(wanted: int) -> int:
    """Return the stored width for a requested one: the same or the next greater."""
    return next(width for width in WIDTHS if width >= wanted)


def key_of(owner: ArtifactOwner, page: int, width: int) -> str:
    return f"{artifacts.image_folder(owner)}{page}-{width}.webp"


def find(owner: ArtifactOwner, page: int, width: int) -> storage.Head | None:
    """Return the stored image of a page, or None. It is empty if the page cannot be rendered. Raises StorageError."""
    return storage.head(key_of(owner, page, width))


def request(state: RunState, page: int, width: int, *, user_id: int) -> None:
    """Request an image from a worker, unless the user has just requested another one. The message may be lost."""
    try:
        runstate.once(
            f"images-{user_id}",
            every=2 * USER_SECONDS,  # `once` blocks for half of it
            run=lambda: dispatch.draw(task_id=state.task_id, page=page, width=width),
        )
    except runstate.Unavailable as reason:
        log.warning("image_not_requested", etl_task_id=state.task_id, reason=str(reason))


# ---- In a worker ----------------------------------------------------------------------------------------------------
def draw(task_id: int, *, page: int, width: int) -> None:
    """Render and store the page's group of pages, unless the page is stored. It is safe to run this twice."""
    task = Task.objects.without_results().filter(pk=task_id).first()
    if task is None:
        return
    try:
        if find(task, page, width) is None:
            draw_group(task, page, width)
    except storage.StorageError as error:
        log.warning("image_not_stored", etl_task_id=task_id, error=str(error))


@contextmanager
def fetched(owner: ArtifactOwner, context: StageContext) -> Iterator[Document]:
    """Download the document like `ocr.local_copy`. Raises StorageError if it is slow: the document is not the cause."""
    with ExitStack() as stack:
        try:
            document = stack.enter_context(ocr.local_copy(owner, context))
        except OutOfTime:
            raise storage.RequestFailed("the document was not read in time", retryable=True) from None
        yield document


def draw_group(task: Task, page: int, width: int) -> None:
    first = page - (page - 1) % PAGES_AT_ONCE
    last = first + PAGES_AT_ONCE - 1
    context = StageContext(seconds=DRAW_SECONDS)
    try:
        with fetched(task, context) as document:
            for number, image in engines.local().draw_pages(
                document, first=first, last=last, width=width, context=context
            ):
                store(task, number, width, image or b"")
    except (EtlError, OutOfTime) as error:
        log.warning("pages_not_drawn", etl_task_id=task.pk, page=page, error=type(error).__name__)
        if not isinstance(error, WorkerMisconfigured):  # the document is not the cause
            store(task, page, width, b"")


def store(task: Task, page: int, width: int, image: bytes) -> None:
    artifacts.put_once(key_of(task, page, width), image, content_type=MEDIA_TYPE, check=ignore)


# ---- For models -----------------------------------------------------------------------------------------------------
JPEG = "image/jpeg"
POLL_SECONDS = 0.5
REPEAT_SECONDS = 30.0  # until the message is sent again: it may be lost, or wait behind others


@dataclass(slots=True, kw_only=True)
class StoredPageImages:
    """The implementation of `etl.core.stage_context.PageImages` for a task. It is safe to use from several threads."""

    owner: ArtifactOwner
    count: int
    can_render: bool = True  # False in web processes: only workers open documents
    lock: threading.Lock = field(default_factory=threading.Lock)

    def read(self, first: int, last: int, *, context: StageContext) -> dict[int, bytes]:
        """Return the images by page number. Missing ones are rendered here or, without an engine, by a worker.

        Raises EtlError, StorageError, and the errors of `context.check()`.
        """
        pixels = settings.SLUICE.etl_vision_max_pixels
        pages = range(first, min(last, self.count) + 1)
        with self.lock:
            missing = [page for page in pages if storage.head(model_key(self.owner, page, pixels)) is None]
            if missing:
                self.draw(missing, pixels, context=context)
        images = {page: b"".join(storage.read(model_key(self.owner, page, pixels))) for page in pages}
        return {page: image for page, image in images.items() if image}

    def draw(self, missing: list[int], pixels: int, *, context: StageContext) -> None:
        last = max(missing[-1], missing[0] + PAGES_AT_ONCE - 1)
        if self.can_render:
            with suppress(EngineMissing):
                draw_models_group(self.owner, missing[0], last, pixels, context)
                return
        self.await_worker(missing, pixels, context=context)

    def await_worker(self, missing: list[int], pixels: int, *, context: StageContext) -> None:
        """Wait until a worker has stored the images."""
        request_at, requested = 0.0, range(0)
        for page in missing:
            while storage.head(model_key(self.owner, page, pixels)) is None:
                if page not in requested or time.monotonic() >= request_at:
                    dispatch.draw(task_id=self.owner.task_id, page=page, width=WIDTHS[0], pixels=pixels)
                    request_at = time.monotonic() + REPEAT_SECONDS
                    requested = range(page, page + PAGES_AT_ONCE)
                context.pause(POLL_SECONDS)


def for_models(owner: ArtifactOwner, *, count: int | None, can_render: bool = True) -> StoredPageImages | None:
    """Return the images of a document for a model, or None if its pages are not known or cannot be rendered."""
    has_pages = bool(count) and DocumentFormat(owner.kind) in PRINTED
    return StoredPageImages(owner=owner, count=count or 0, can_render=can_render) if has_pages else None


def model_key(owner: ArtifactOwner, page: int, pixels: int) -> str:
    return f"{artifacts.image_folder(owner)}{page}-{pixels}.jpg"


def draw_for_models(task_id: int, *, page: int, pixels: int) -> None:
    """Render and store a page and the next pages for models, unless it is stored. It is safe to run this twice."""
    task = Task.objects.without_results().filter(pk=task_id).first()
    if task is None:
        return
    key = model_key(task, page, pixels)
    try:
        if storage.head(key) is not None:
            return
        try:
            draw_models_group(task, page, page + PAGES_AT_ONCE - 1, pixels, StageContext(seconds=DRAW_SECONDS))
        except (EtlError, OutOfTime) as error:
            log.warning("pages_not_drawn", etl_task_id=task_id, page=page, error=type(error).__name__)
            if not isinstance(error, WorkerMisconfigured):  # the document is not the cause
                artifacts.put_once(key, b"", content_type=JPEG, check=ignore)
    except storage.StorageError as error:
        log.warning("image_not_stored", etl_task_id=task_id, error=str(error))


def draw_models_group(owner: ArtifactOwner, first: int, last: int, pixels: int, context: StageContext) -> None:
    """Render and store pages for models. Raises EtlError, StorageError, and the errors of `context.check()`."""
    with fetched(owner, context) as document:
        for number, image in engines.local().draw_pages(
            document, first=first, last=last, pixels=pixels, jpeg=True, context=context
        ):
            key = model_key(owner, number, pixels)
            artifacts.put_once(key, image or b"", content_type=JPEG, check=context.check)
