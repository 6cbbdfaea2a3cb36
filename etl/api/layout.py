"""API views of a document's pages: their blocks with bounding boxes, and their images."""

import time

from django.db import connection
from django.http import HttpResponse, HttpResponseRedirect
from django.http.response import HttpResponseBase
from drf_spectacular.utils import OpenApiResponse
from rest_framework.request import Request

from config.platform import storage
from config.platform.http import graceful_shutdown
from config.platform.http.audit import OPENS_DATA
from config.platform.http.auth import user_of
from config.platform.http.negotiation import IgnoreAccept
from config.platform.http.openapi.responses import problems
from config.platform.http.problems import BadInput, NotFound, Problem, StorageUnavailable
from etl.api import lookup, openapi
from etl.api.markdown import NotReady, conditional_response
from etl.api.serializers import read_number
from etl.api.views import TaskAPIView, visible
from etl.core.formats import DocumentFormat
from etl.ingest import acceptance
from etl.pipeline import actions, artifacts, page_images, schemas
from etl.runstate import RunState

DEFAULT_WIDTH, MIN_WIDTH, MAX_WIDTH = 1240, 200, 2000
URL_SECONDS = 60
WAIT_SECONDS, POLL_SECONDS = 8.0, 0.2
EMPTY = b'{"pages":[]}'


class ImageNotReady(Problem):
    status = 409
    code = "image_not_ready"
    retry_after = 2
    detail = "The image of this page is being created. Try again in a few seconds."


class ImageUnavailable(Problem):
    status = 409
    code = "image_unavailable"
    detail = "No image can be created of this page."


class NoSuchPage(NotFound):
    detail = "The document does not have this page, or its format has no page images."


class LayoutView(TaskAPIView):
    """`GET /tasks/{id}/layout`."""

    audited = OPENS_DATA
    content_negotiation_class = IgnoreAccept

    @openapi.operation(
        operation_id="getLayout",
        **openapi.LAYOUT,
        responses={
            200: schemas.Layout,
            304: OpenApiResponse(description="`If-None-Match` matches: the content has not changed."),
            **problems(actions.NoSuchTask, NotReady, actions.OcrResultMissing, StorageUnavailable),
        },
    )
    def get(self, request: Request, task_id: int) -> HttpResponseBase:
        state = visible(request, task_id)
        if not state.markdown_key:
            raise NotReady
        lookup.record_access(state, user=user_of(request), message="Over the API: opened the layout.")
        with acceptance.translate_storage_errors():
            stored = artifacts.find_ocr(state)
        if stored is None:
            raise actions.OcrResultMissing
        key = stored.facts.get("layout_key")
        if key is None:
            return HttpResponse(EMPTY, content_type=artifacts.JSON, headers={"ETag": '"empty"'})
        return conditional_response(key, request, content_type=artifacts.JSON)


class PageImageView(TaskAPIView):
    """`GET /tasks/{id}/pages/{n}/image`."""

    audited = OPENS_DATA
    content_negotiation_class = IgnoreAccept

    @openapi.operation(
        operation_id="getPageImage",
        **openapi.PAGE_IMAGE,
        responses={
            302: OpenApiResponse(description="Redirect to the image"),
            **problems(
                BadInput, actions.NoSuchTask, NoSuchPage, NotReady, ImageNotReady, ImageUnavailable, StorageUnavailable
            ),
        },
    )
    def get(self, request: Request, task_id: int, page: int) -> HttpResponseBase:
        width = read_number(
            request, "width", minimum=MIN_WIDTH, maximum=MAX_WIDTH, default=DEFAULT_WIDTH, unit="pixels"
        )
        state = visible(request, task_id)
        check_page(state, page)
        lookup.record_access(state, user=user_of(request), message="Over the API: opened images of pages.")
        return redirect_to_image(request, state, page, page_images.stored_width(width))


def check_page(state: RunState, page: int) -> None:
    """Raise NotReady if OCR has not ended, and NoSuchPage if the document does not have this page."""
    if DocumentFormat(state.kind) not in page_images.FORMATS:
        raise NoSuchPage
    pages = state.metadata["ocr"].get("pages")
    if not state.markdown_key or pages is None:
        raise NotReady
    if not 1 <= page <= pages:
        raise NoSuchPage


def redirect_to_image(request: Request, state: RunState, page: int, width: int) -> HttpResponseBase:
    """Return a redirect to the stored image, after waiting up to WAIT_SECONDS for a worker to create it.

    Raises ImageNotReady, ImageUnavailable, and StorageUnavailable.
    """
    with acceptance.translate_storage_errors():
        found = page_images.find(state, page, width) or wait_for_image(state, page, width, user_id=user_of(request).pk)
    if found is None:
        raise ImageNotReady
    if not found.size:
        raise ImageUnavailable
    url = storage.presign_download(
        page_images.key_of(state, page, width),
        seconds=URL_SECONDS,
        content_type=page_images.MEDIA_TYPE,
        file_name=f"page-{page}.webp",
    )
    return HttpResponseRedirect(url, headers={"Cache-Control": "private, max-age=30"})


def wait_for_image(state: RunState, page: int, width: int, *, user_id: int) -> storage.Head | None:
    """Request an image from a worker, and return it if it is stored within WAIT_SECONDS. Raises StorageError."""
    page_images.request(state, page, width, user_id=user_id)
    if not lookup.waiting_requests.enter(user_id):
        return None
    try:
        connection.close()
        until = time.monotonic() + WAIT_SECONDS
        while time.monotonic() < until and not graceful_shutdown.has_begun.wait(POLL_SECONDS):
            if found := page_images.find(state, page, width):
                return found
            page_images.request(state, page, width, user_id=user_id)
    finally:
        lookup.waiting_requests.leave(user_id)
    return None
