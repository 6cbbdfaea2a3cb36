"""Traces of requests, messages, chunks, stages, and S3 calls. Off unless TRACING is set.

`span(…)` records a step, and `annotate(…)` adds attributes to it. While tracing is off, both do nothing, and
OpenTelemetry is not loaded: only `config.platform.observability.tracing.recorder` imports it.

A wake-up message does not determine which job a worker takes next, so chunks do not belong to the message's trace. The
row of a job or task has the `traceparent` of its request. A span with this parent is a child of the request in every
process, and has a link to the message's span. docs/adr/0021 explains this.

Like log lines, spans contain no private data. Values are numbers, IDs, and fixed words.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Literal, ParamSpec, TypeVar

from django.conf import settings

from config.platform.observability import logs

if TYPE_CHECKING:
    from django.http import HttpRequest, HttpResponse
    from mypy_boto3_s3 import S3Client

    from config.platform.observability.tracing.recorder import Recorder

P = ParamSpec("P")
T = TypeVar("T")
Fact = str | int | float | bool
Role = Literal["web", "worker"]

recorder: Recorder | None = None


def start(role: Role) -> None:
    """Start tracing if TRACING is set. Call it before the process forks; each child sends its spans separately."""
    global recorder  # noqa: PLW0603
    if settings.SLUICE.tracing and recorder is None:
        from config.platform.observability.tracing.recorder import Recorder

        recorder = Recorder(role)
        logs.current_trace = recorder.current_trace


def flush() -> None:
    """Send the remaining spans, in at most two seconds. Later spans are lost."""
    if recorder:
        recorder.flush()


def span(name: str, *, parent: str | None = None, **facts: Fact) -> AbstractContextManager[object]:
    """Record a step of the current trace, or of the trace of `parent`, a traceparent.

    Without a trace, no span is recorded. Work that beat starts is only logged.
    """
    return recorder.step(name, parent, facts) if recorder else nullcontext()


def annotate(*, failed: str = "", **facts: Fact) -> None:
    """Add attributes to the current step. `failed` is a code or class, and marks the step as failed."""
    if recorder:
        recorder.annotate(failed, facts)


def traceparent() -> str:
    """Return the W3C traceparent of the current step, or "" without a trace."""
    return recorder.traceparent() if recorder else ""


def in_context(call: Callable[P, T]) -> Callable[P, T]:
    """Return the call bound to the current step, for use in other threads."""
    return recorder.in_context(call) if recorder else call


def request(
    request: HttpRequest, *, request_id: str, is_trusted: bool
) -> AbstractContextManager[Callable[[HttpResponse], None]]:
    """Record a request, and yield a function to call with the response.

    The traces of trusted callers are continued. Other traces are only linked.
    """
    if recorder:
        return recorder.request(request, request_id=request_id, is_trusted=is_trusted)
    return nullcontext(lambda _response: None)


def trace_calls(client: S3Client) -> None:
    """Record each call of this client as a step."""
    if recorder:
        recorder.trace_calls(client)


def call(operation: str) -> AbstractContextManager[Callable[[int], None]]:
    """Record a storage request that is not made by boto3, and yield a function to call with the status."""
    return recorder.call(operation) if recorder else nullcontext(lambda _status: None)
