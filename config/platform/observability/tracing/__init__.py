"""Traces: what a request led to, through messages and workers to each chunk, stage and S3 call. Off unless TRACING.

`span(…)` is around a step, `tell(…)` says what came of it. While tracing is off both do nothing, and OpenTelemetry is
not loaded: only `config.platform.observability.tracing.recorder` imports it.

A worker that wakes works for whatever job is next, so a message's trace is not its chunks' trace. Jobs and tasks carry
their request's `traceparent` in their row; a span that is given one is that request's child, whoever does the work, and
has a link to the message's run. docs/adr/0021 tells why.

Never in a span: what no log line may hold. Values are numbers, ids and words of ours.
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
Role = Literal["web", "worker", "beat"]

recorder: Recorder | None = None


def begin(role: Role) -> None:
    """Trace from now on, if TRACING says so. Before a process forks: its children send what they trace themselves."""
    global recorder  # noqa: PLW0603
    if settings.SLUICE.tracing and recorder is None:
        from config.platform.observability.tracing.recorder import Recorder

        recorder = Recorder(role)
        logs.current_trace = recorder.current_trace


def end() -> None:
    """Send what is left, in two seconds at most. What comes later is lost."""
    if recorder:
        recorder.end()


def span(name: str, *, parent: str | None = None, **facts: Fact) -> AbstractContextManager[object]:
    """Be around a step of the current trace, or of the trace that `parent`, a traceparent, belongs to.

    Without a trace that it belongs to, there is no span: of what beat begins, there are only log lines.
    """
    return recorder.step(name, parent, facts) if recorder else nullcontext()


def tell(*, failed: str = "", **facts: Fact) -> None:
    """Say what came of the current step; `failed` is a code or a class."""
    if recorder:
        recorder.tell(failed, facts)


def parent() -> str:
    """Return what makes others children of the current step: a W3C traceparent, or "" where nothing is traced."""
    return recorder.parent() if recorder else ""


def carried(call: Callable[P, T]) -> Callable[P, T]:
    """Return a call that other threads make as a part of the current step."""
    return recorder.carried(call) if recorder else call


def request(
    request: HttpRequest, *, request_id: str, is_trusted: bool
) -> AbstractContextManager[Callable[[HttpResponse], None]]:
    """Be around a request; what comes of it is called with the response. Only who is trusted goes on with a trace of
    its own; others' traces are linked."""
    if recorder:
        return recorder.request(request, request_id=request_id, is_trusted=is_trusted)
    return nullcontext(lambda _response: None)


def watch(client: S3Client) -> None:
    """Have each call of this client be a step."""
    if recorder:
        recorder.watch(client)
