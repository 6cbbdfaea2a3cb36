"""The OpenTelemetry SDK and its OTLP/HTTP exporter behind `config.platform.observability.tracing`.

OpenTelemetry's instrumentations of Celery, Django, and botocore are not used: they put exception messages, URLs, and
headers into spans. Here, each attribute is set by name.
"""

from __future__ import annotations

import atexit
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from threading import Lock, local
from typing import TYPE_CHECKING, Any

import structlog
from celery import signals
from opentelemetry import context, trace
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import SERVICE_NAME, Resource
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.trace import Link, Span, SpanKind, StatusCode, TraceState
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

if TYPE_CHECKING:
    from django.http import HttpRequest, HttpResponse
    from mypy_boto3_s3 import S3Client

    from config.platform.observability.tracing import Fact, P, T

log = structlog.get_logger(__name__)

FLUSH_MILLISECONDS = 2000  # to send the last spans when a process exits
LOG_SECONDS = 60  # between two log lines about an unavailable collector
SERVER_ERROR = 500
HEADER = "traceparent"
RUN = context.create_key("run")  # set while a worker runs a Celery task
W3C = TraceContextTextMapPropagator()


class QuietExporter(SpanExporter):
    """Exporter of spans to a collector, with a log line for lost spans once a minute.

    The SDK would log each attempt, with the collector's address and response.
    """

    def __init__(self) -> None:
        self.inner = OTLPSpanExporter()
        self.lost = 0
        self.logged_at = -float(LOG_SECONDS)

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        result = self.inner.export(spans)
        if result is not SpanExportResult.SUCCESS:
            self.lost += len(spans)
            if time.monotonic() - self.logged_at >= LOG_SECONDS:
                log.warning("traces_not_sent", spans=self.lost)
                self.logged_at, self.lost = time.monotonic(), 0
        return result

    def shutdown(self) -> None:
        self.inner.shutdown()  # type: ignore[no-untyped-call]


class Recorder:
    """The spans of a process and its forks. Each process sends its spans in a separate thread."""

    def __init__(self, role: str) -> None:
        self.role = role
        self.pid = -1
        self.starting = Lock()
        self.batches: BatchSpanProcessor | None = None
        self.own_tracer: trace.Tracer | None = None
        self.publishing = local()  # per thread: the span of a message that could not be sent is dropped
        self.running: dict[str, ExitStack] = {}
        signals.before_task_publish.connect(self.begin_publish)
        signals.after_task_publish.connect(self.end_publish)
        signals.task_prerun.connect(self.begin_run)
        signals.task_postrun.connect(self.end_run)
        atexit.register(self.flush)

    # ---- The process ------------------------------------------------------------------------------------------------
    @property
    def tracer(self) -> trace.Tracer:
        """The tracer of this process. It is created with the first span, because a fork does not inherit threads."""
        if self.own_tracer is None or self.pid != os.getpid():
            with self.starting:
                if self.own_tracer is None or self.pid != os.getpid():
                    self.batches = BatchSpanProcessor(QuietExporter())
                    provider = TracerProvider(resource=self.resource(), shutdown_on_exit=False)
                    provider.add_span_processor(self.batches)
                    self.own_tracer, self.pid = provider.get_tracer("sluice"), os.getpid()
        return self.own_tracer

    def resource(self) -> Resource:
        is_named = os.environ.get("OTEL_SERVICE_NAME") or SERVICE_NAME in os.environ.get("OTEL_RESOURCE_ATTRIBUTES", "")
        return Resource.create({} if is_named else {SERVICE_NAME: f"sluice-{self.role}"})

    def flush(self) -> None:
        if self.batches and self.pid == os.getpid():
            # The public method has no timeout parameter, and waits for 30 s.
            self.batches._batch_processor.shutdown(FLUSH_MILLISECONDS)

    # ---- Steps ------------------------------------------------------------------------------------------------------
    @contextmanager
    def step(self, name: str, parent: str | None, facts: Mapping[str, Fact]) -> Iterator[None]:
        current = trace.get_current_span().get_span_context()
        if parent is None:
            if not current.is_valid:
                yield
                return
            parent_context, links = context.get_current(), []
        else:
            remote = parse_traceparent(parent)
            if remote is None:
                with without_trace():
                    yield
                return
            parent_context = trace.set_span_in_context(remote, context.Context())
            links = [Link(current)] if current.is_valid else []
        with self.span(name, parent_context=parent_context, facts=facts, links=links):
            yield

    @contextmanager
    def span(
        self,
        name: str,
        *,
        parent_context: context.Context,
        facts: Mapping[str, Fact],
        links: Sequence[Link] = (),
        kind: SpanKind = SpanKind.INTERNAL,
    ) -> Iterator[Span]:
        with self.tracer.start_as_current_span(
            name, parent_context, kind, with_prefix(facts), links, record_exception=False, set_status_on_exception=False
        ) as span:
            try:
                yield span
            except BaseException as error:
                fail(span, type(error).__qualname__)  # not its message, which may quote data
                raise

    def annotate(self, failed: str, facts: Mapping[str, Fact]) -> None:
        span = trace.get_current_span()
        span.set_attributes(with_prefix(facts))
        if failed:
            fail(span, failed)

    def traceparent(self) -> str:
        span_context = trace.get_current_span().get_span_context()
        if not span_context.is_valid:
            return ""
        return f"00-{span_context.trace_id:032x}-{span_context.span_id:016x}-{span_context.trace_flags:02x}"

    def current_trace(self) -> str:
        span_context = trace.get_current_span().get_span_context()
        return f"{span_context.trace_id:032x}" if span_context.is_valid else ""

    def in_context(self, call: Callable[P, T]) -> Callable[P, T]:
        current = context.get_current()

        def run(*args: P.args, **kwargs: P.kwargs) -> T:
            token = context.attach(current)
            try:
                return call(*args, **kwargs)
            finally:
                context.detach(token)

        return run

    # ---- Requests ---------------------------------------------------------------------------------------------------
    @contextmanager
    def request(
        self, request: HttpRequest, *, request_id: str, is_trusted: bool
    ) -> Iterator[Callable[[HttpResponse], None]]:
        """Record a request as a span with its method and route, such as `POST /exports`. Paths are private."""
        caller = parse_traceparent(request.META.get("HTTP_TRACEPARENT", ""))
        parent_context = (
            trace.set_span_in_context(caller, context.Context()) if caller and is_trusted else context.Context()
        )
        links = [Link(without_state(caller))] if caller and not is_trusted else []
        with self.span(
            method_of(request),
            parent_context=parent_context,
            facts={"request_id": request_id},
            links=links,
            kind=SpanKind.SERVER,
        ) as span:

            def finish(response: HttpResponse) -> None:
                route = f"/{request.resolver_match.route}" if request.resolver_match else ""
                span.update_name(f"{method_of(request)} {route}".strip())
                span.set_attributes(
                    {
                        "http.request.method": method_of(request),
                        "http.route": route,
                        "http.response.status_code": response.status_code,
                    }
                )
                if response.status_code >= SERVER_ERROR:
                    fail(span, str(response.status_code))

            yield finish

    # ---- Messages ---------------------------------------------------------------------------------------------------
    def begin_publish(self, sender: str, headers: dict[str, Any], body: Any, **_later: object) -> None:
        """Add the trace to the message, except to a wake-up message from a worker.

        The next job may belong to another user, and the trace would never end.
        """
        headers.pop(HEADER, None)  # that of the current message, if the sender copied its headers
        kwargs = body[1]
        if not trace.get_current_span().get_span_context().is_valid or (context.get_value(RUN) and not kwargs):
            return
        span = self.tracer.start_span(f"publish {sender}", kind=SpanKind.PRODUCER)
        self.publishing.span, self.publishing.id = span, headers["id"]
        W3C.inject(headers, trace.set_span_in_context(span))
        headers.pop("tracestate", None)

    def end_publish(self, headers: dict[str, Any], **_later: object) -> None:
        if getattr(self.publishing, "id", None) == headers["id"]:
            self.publishing.span.end()

    def begin_run(self, task_id: str, task: Any, **_later: object) -> None:
        run = self.running[task_id] = ExitStack()
        run.callback(context.detach, context.attach(context.set_value(RUN, True, context.Context())))
        if sent_by := parse_traceparent(str(task.request.get(HEADER) or "")):
            parent_context = trace.set_span_in_context(sent_by, context.Context())
            run.enter_context(
                self.span(f"run {task.name}", parent_context=parent_context, facts={}, kind=SpanKind.CONSUMER)
            )

    def end_run(self, task_id: str, state: str | None = None, **_later: object) -> None:
        if run := self.running.pop(task_id, None):
            if state == "FAILURE":
                self.annotate("FAILURE", {})
            run.close()

    # ---- S3 ---------------------------------------------------------------------------------------------------------
    def trace_calls(self, client: S3Client) -> None:
        """Record calls with the operation and the status. Keys are omitted, because they are object paths."""
        events = client.meta.events
        events.register("before-call.s3", self.begin_call)
        events.register("after-call.s3", self.end_call)
        events.register("after-call-error.s3", self.fail_call)

    def begin_call(self, model: Any, context: dict[str, Any], **_later: object) -> None:
        if trace.get_current_span().get_span_context().is_valid:
            context[HEADER] = self.start_call(model.name)

    def start_call(self, operation: str) -> Span:
        facts = {"rpc.system": "aws-api", "rpc.service": "S3", "rpc.method": operation}
        return self.tracer.start_span(f"S3 {operation}", kind=SpanKind.CLIENT, attributes=facts)

    def end_call(self, http_response: Any, parsed: Any, context: dict[str, Any], **_later: object) -> None:
        if span := context.pop(HEADER, None):
            span.set_attribute("http.response.status_code", http_response.status_code)
            if http_response.status_code >= SERVER_ERROR:
                fail(span, str(parsed.get("Error", {}).get("Code", http_response.status_code))[:64])
            span.end()

    def fail_call(self, exception: BaseException, context: dict[str, Any], **_later: object) -> None:
        if span := context.pop(HEADER, None):
            fail(span, type(exception).__qualname__)
            span.end()

    @contextmanager
    def call(self, operation: str) -> Iterator[Callable[[int], None]]:
        if not trace.get_current_span().get_span_context().is_valid:
            yield lambda _status: None
            return
        span = self.start_call(operation)
        try:
            yield lambda status: span.set_attribute("http.response.status_code", status)
        except BaseException as error:
            fail(span, type(error).__qualname__)
            raise
        finally:
            span.end()


@contextmanager
def without_trace() -> Iterator[None]:
    """Detach work with an invalid traceparent from the current trace."""
    token = context.attach(context.Context())
    try:
        yield
    finally:
        context.detach(token)


def with_prefix(facts: Mapping[str, Fact]) -> dict[str, Fact]:
    return {f"sluice.{name}": value for name, value in facts.items()}


def fail(span: Span, reason: str) -> None:
    span.set_status(StatusCode.ERROR)
    span.set_attribute("error.type", reason)


def parse_traceparent(text: str) -> Span | None:
    """Return the span of a traceparent, or None if it is invalid. The tracestate, which is free text, is ignored."""
    span = trace.get_current_span(W3C.extract({HEADER: text}, context.Context()))
    return span if span.get_span_context().is_valid else None


def without_state(span: Span) -> trace.SpanContext:
    span_context = span.get_span_context()
    return trace.SpanContext(
        span_context.trace_id,
        span_context.span_id,
        is_remote=True,
        trace_flags=span_context.trace_flags,
        trace_state=TraceState(),
    )


def method_of(request: HttpRequest) -> str:
    """Return the method, or `_OTHER` for an unknown one, because clients choose it."""
    known = {"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"}
    return request.method if request.method in known else "_OTHER"
