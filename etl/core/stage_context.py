"""Context of a stage run for its provider or post-processor: deadline, lease, progress, and response cache.

A stage run has a time limit (`ETL_TASK_TIMEOUT`), can lose its lease, and can be killed at any line and run again.
Long-running code calls `check()` between its steps and never waits longer than `remaining()`.
"""

import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any, Protocol

from etl.core.errors import Fenced, OutOfTime

POLL_SECONDS = 0.5
USAGE_INCOMPLETE = "usage_incomplete"  # the code of a warning


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskWarning:
    """A warning about an otherwise good result. `page`: from 1; `reason`: an exception's class."""

    code: str
    detail: str
    page: int | None = None
    reason: str | None = None

    def as_dict(self) -> dict[str, Any]:
        return {name: value for name, value in asdict(self).items() if value is not None}


@dataclass(slots=True, kw_only=True)
class Usage:
    """Tokens and calls, as the language model's server counted them."""

    prompt_tokens: int = 0
    completion_tokens: int = 0
    calls: int = 0

    def add(self, other: "Usage") -> None:
        self.prompt_tokens += other.prompt_tokens
        self.completion_tokens += other.completion_tokens
        self.calls += other.calls

    def as_dict(self) -> dict[str, int]:
        return asdict(self)


USAGE_FIELDS = tuple(each.name for each in fields(Usage))


class ResponseCache(Protocol):
    """Cache of paid model responses, so that a stage that runs again does not pay for them twice.

    Entries are JSON objects. Entries of an earlier run are returned with `"is_earlier": true`. With `run=True`, an
    entry belongs to this run of the stage and all its attempts. This includes invalid responses, so that the next
    attempt gets the same ones. Other entries belong to the whole task: accepted responses, which a manual retry of a
    failed task can reuse.
    """

    def get(self, key: str) -> dict[str, Any] | None: ...

    def put(self, key: str, entry: dict[str, Any], *, run: bool) -> bool:
        """Store an entry unless the key exists. Return whether it was stored."""
        ...


class PageImages(Protocol):
    """The images of a document's pages, for models that read images. `count`: number of pages."""

    @property
    def count(self) -> int: ...

    def read(self, first: int, last: int, *, context: "StageContext") -> dict[int, bytes]:
        """Return the images of pages as JPEGs by page number. Pages that cannot be drawn are left out."""
        ...


class Budget(Protocol):
    """A budget of language model tokens. Usage must be counted before the block of `call` ends."""

    def call(self, tokens: int, *, context: "StageContext") -> AbstractContextManager[None]:
        """Return a context manager for one call that costs at most `tokens`. Raises TokenBudgetExceeded."""
        ...


class NoBudget:
    def call(self, tokens: int, *, context: "StageContext") -> AbstractContextManager[None]:
        return nullcontext()


class NoResponseCache:
    """A cache that stores nothing, for runs that are never resumed, such as rule tests."""

    def get(self, key: str) -> dict[str, Any] | None:
        return None

    def put(self, key: str, entry: dict[str, Any], *, run: bool) -> bool:
        return False


class EitherEvent(threading.Event):
    """An event that is set as soon as one of two other events is set."""

    def __init__(self, one: threading.Event, other: threading.Event) -> None:
        super().__init__()
        self.events = (one, other)

    def is_set(self) -> bool:
        return any(each.is_set() for each in self.events)

    def wait(self, timeout: float | None = None) -> bool:
        until = time.monotonic() + (timeout if timeout is not None else threading.TIMEOUT_MAX)
        while not self.is_set() and (left := until - time.monotonic()) > 0:
            self.events[0].wait(min(left, POLL_SECONDS))
        return self.is_set()


def ignore(*_args: Any) -> None:
    pass


@dataclass(slots=True, kw_only=True)
class StageContext:
    """One run of a stage, as its provider or post-processor sees it.

    `seconds`: the time limit. `provider_task_id`: the provider's ID of a job that an earlier run started, or "".
    `secret`: unpredictable bytes that stay the same when this run resumes. `advanced`: set once this run has stored
    work that the next attempt will not repeat.
    """

    seconds: float
    provider_task_id: str = ""
    secret: bytes = b""
    response_cache: ResponseCache = field(default_factory=NoResponseCache)
    budget: Budget = field(default_factory=NoBudget)
    page_images: PageImages | None = None  # None if the document has no pages, or they are not available
    on_progress: Callable[[int, int], None] = ignore
    on_provider_task: Callable[[str], None] = ignore
    on_usage: Callable[[Usage], None] = ignore
    lease_lost: threading.Event = field(default_factory=threading.Event)
    advanced: threading.Event = field(default_factory=threading.Event)
    warnings: list[TaskWarning] = field(default_factory=list)
    usage: Usage = field(default_factory=Usage)
    paid: Usage = field(default_factory=Usage)  # `usage` without responses that an earlier attempt paid for
    # Set as soon as they are known, so that a failure reports them too.
    strategy: str | None = None
    model: str | None = None
    started_at: float = field(default_factory=time.monotonic)
    lock: threading.Lock = field(default_factory=threading.Lock)  # several model calls can run at the same time

    def remaining(self) -> float:
        """Return the seconds until the time limit. Raises the errors of `check`."""
        self.check()
        return self.started_at + self.seconds - time.monotonic()

    def check(self) -> None:
        """Raise Fenced if the lease is lost, or OutOfTime after the time limit. Cheap."""
        if self.lease_lost.is_set():
            raise Fenced
        if time.monotonic() >= self.started_at + self.seconds:
            raise OutOfTime

    def pause(self, seconds: float) -> None:
        """Wait. Raises the errors of `check`, immediately when the lease is lost."""
        self.lease_lost.wait(min(seconds, self.remaining()))
        self.check()

    def progress(self, done: int, total: int) -> None:
        """Report that `done` of `total` pages or calls are done. Raises the errors of `check`. Cheap."""
        self.check()
        self.on_progress(done, total)

    def record_provider_task(self, provider_task_id: str) -> None:
        """Store the ID of a job that the provider started, so that the next run can resume it."""
        self.on_provider_task(provider_task_id)

    def count_usage(self, usage: Usage, *, cached: bool = False) -> None:
        """Count the cost of a model call. `cached`: an earlier attempt of this run paid for the response."""
        with self.lock:
            self.usage.add(usage)
            if not cached:
                self.paid.add(usage)
        if not cached:
            self.on_usage(usage)

    def part(self, stopped: threading.Event) -> "StageContext":
        """Return the context of a part of this run for a separate thread.

        It collects its own warnings, and setting `stopped` ends it too.
        """
        return replace(self, warnings=[], lease_lost=EitherEvent(self.lease_lost, stopped), on_progress=ignore)

    def warn(self, code: str, detail: str, *, page: int | None = None, reason: str | None = None) -> None:
        warning = TaskWarning(code=code, detail=detail, page=page, reason=reason)
        with self.lock:
            if warning not in self.warnings:
                self.warnings.append(warning)
