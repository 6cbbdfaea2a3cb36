"""The OpenTelemetry SDK and its OTLP/HTTP exporter behind `config.platform.observability.tracing`.

Its instrumentations of Celery, Django and botocore stay out: they put messages of exceptions, URLs and headers into
spans. Everything here is set by name.
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

END_MILLISECONDS = 2000  # for the last spans of a process that ends
TELL_SECONDS = 60  # between two lines about a collector that takes nothing
SERVER_ERROR = 500
HEADER = "traceparent"
RUN = context.create_key("run")  # of what a worker does between the steps of jobs
W3C = TraceContextTextMapPropagator()


class Quiet(SpanExporter):
    """Sends spans to a collector; and says once a minute how many it did not take, where the SDK would say so for each
    attempt, with the collector's address and the words of its answer."""

    def __init__(self) -> None:
        self.inner = OTLPSpanExporter()
        self.lost = 0
        self.told_at = -float(TELL_SECONDS)

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        result = self.inner.export(spans)
        if result is not SpanExportResult.SUCCESS:
            self.lost += len(spans)
            if time.monotonic() - self.told_at >= TELL_SECONDS:
                log.warning("traces_not_sent", spans=self.lost)
                self.told_at, self.lost = time.monotonic(), 0
        return result

    def shutdown(self) -> None:
        self.inner.shutdown()  # type: ignore[no-untyped-call]


class Recorder:
    """The spans of a process, and of those forked from it: each has a thread of its own that sends them."""

    def __init__(self, role: str) -> None:
        self.role = role
        self.pid = -1
        self.starting = Lock()
        self.batches: BatchSpanProcessor | None = None
        self.made: trace.Tracer | None = None
        self.publishing = local()  # one in each thread; of one that could not be sent nothing is heard any more
        self.running: dict[str, ExitStack] = {}
        signals.before_task_publish.connect(self.begin_publish)
        signals.after_task_publish.connect(self.end_publish)
        signals.task_prerun.connect(self.begin_run)
        signals.task_postrun.connect(self.end_run)
        atexit.register(self.end)

    # ---- The process ------------------------------------------------------------------------------------------------
    @property
    def tracer(self) -> trace.Tracer:
        """This process' own, made with its first span: a fork has no threads of its parent's."""
        if self.made is None or self.pid != os.getpid():
            with self.starting:
                if self.made is None or self.pid != os.getpid():
                    self.batches = BatchSpanProcessor(Quiet())
                    provider = TracerProvider(resource=self.resource(), shutdown_on_exit=False)
                    provider.add_span_processor(self.batches)
                    self.made, self.pid = provider.get_tracer("sluice"), os.getpid()
        return self.made

    def resource(self) -> Resource:
        is_named = os.environ.get("OTEL_SERVICE_NAME") or SERVICE_NAME in os.environ.get("OTEL_RESOURCE_ATTRIBUTES", "")
        return Resource.create({} if is_named else {SERVICE_NAME: f"sluice-{self.role}"})

    def end(self) -> None:
        if self.batches and self.pid == os.getpid():
            # The public method has no limit of its own, and waits for 30 s.
            self.batches._batch_processor.shutdown(END_MILLISECONDS)

    # ---- Steps ------------------------------------------------------------------------------------------------------
    @contextmanager
    def step(self, name: str, parent: str | None, facts: Mapping[str, Fact]) -> Iterator[None]:
        current = trace.get_current_span().get_span_context()
        if parent is None:
            if not current.is_valid:
                yield
                return
            where, links = context.get_current(), []
        else:
            its = self.remote(parent)
            if its is None:
                with nowhere():
                    yield
                return
            where = trace.set_span_in_context(its, context.Context())
            links = [Link(current)] if current.is_valid else []
        with self.around(name, where=where, facts=facts, links=links):
            yield

    @contextmanager
    def around(
        self,
        name: str,
        *,
        where: context.Context,
        facts: Mapping[str, Fact],
        links: Sequence[Link] = (),
        kind: SpanKind = SpanKind.INTERNAL,
    ) -> Iterator[Span]:
        with self.tracer.start_as_current_span(
            name, where, kind, named(facts), links, record_exception=False, set_status_on_exception=False
        ) as span:
            try:
                yield span
            except BaseException as error:
                fail(span, type(error).__qualname__)  # not its message, which may quote data
                raise

    def tell(self, failed: str, facts: Mapping[str, Fact]) -> None:
        span = trace.get_current_span()
        span.set_attributes(named(facts))
        if failed:
            fail(span, failed)

    def remote(self, parent: str) -> Span | None:
        """Return the span that a traceparent stands for; None if it stands for none. Its tracestate is not asked for:
        that is anybody's text."""
        span = trace.get_current_span(W3C.extract({HEADER: parent}, context.Context()))
        return span if span.get_span_context().is_valid else None

    def parent(self) -> str:
        its = trace.get_current_span().get_span_context()
        return f"00-{its.trace_id:032x}-{its.span_id:016x}-{its.trace_flags:02x}" if its.is_valid else ""

    def current_trace(self) -> str:
        its = trace.get_current_span().get_span_context()
        return f"{its.trace_id:032x}" if its.is_valid else ""

    def carried(self, call: Callable[P, T]) -> Callable[P, T]:
        where = context.get_current()

        def carry(*args: P.args, **kwargs: P.kwargs) -> T:
            token = context.attach(where)
            try:
                return call(*args, **kwargs)
            finally:
                context.detach(token)

        return carry

    # ---- Requests ---------------------------------------------------------------------------------------------------
    @contextmanager
    def request(
        self, request: HttpRequest, *, request_id: str, is_trusted: bool
    ) -> Iterator[Callable[[HttpResponse], None]]:
        """A span named by method and route, `POST /exports`: paths hold keys and dates, query strings hold links."""
        caller = self.remote(request.META.get("HTTP_TRACEPARENT", ""))
        where = trace.set_span_in_context(caller, context.Context()) if caller and is_trusted else context.Context()
        links = [Link(bare(caller))] if caller and not is_trusted else []
        with self.around(
            method_of(request), where=where, facts={"request_id": request_id}, links=links, kind=SpanKind.SERVER
        ) as span:

            def answered(response: HttpResponse) -> None:
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

            yield answered

    # ---- Messages ---------------------------------------------------------------------------------------------------
    def begin_publish(self, sender: str, headers: dict[str, Any], body: Any, **_later: object) -> None:
        """Have the message carry the trace on. Not a mere hint of one worker to the next: whatever job is next may be
        anybody's, and the trace would never end."""
        headers.pop(HEADER, None)  # of the message that is worked on now, if the sender took its headers along
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
        if sent_by := self.remote(str(task.request.get(HEADER) or "")):
            where = trace.set_span_in_context(sent_by, context.Context())
            run.enter_context(self.around(f"run {task.name}", where=where, facts={}, kind=SpanKind.CONSUMER))

    def end_run(self, task_id: str, state: str | None = None, **_later: object) -> None:
        if run := self.running.pop(task_id, None):
            if state == "FAILURE":
                self.tell("FAILURE", {})
            run.close()

    # ---- S3 ---------------------------------------------------------------------------------------------------------
    def watch(self, client: S3Client) -> None:
        """Spans of calls have the operation's name and the answer's status. Keys are paths of objects."""
        events = client.meta.events
        events.register("before-call.s3", self.begin_call)
        events.register("after-call.s3", self.end_call)
        events.register("after-call-error.s3", self.break_call)

    def begin_call(self, model: Any, context: dict[str, Any], **_later: object) -> None:
        if trace.get_current_span().get_span_context().is_valid:
            facts = {"rpc.system": "aws-api", "rpc.service": "S3", "rpc.method": model.name}
            context[HEADER] = self.tracer.start_span(f"S3 {model.name}", kind=SpanKind.CLIENT, attributes=facts)

    def end_call(self, http_response: Any, parsed: Any, context: dict[str, Any], **_later: object) -> None:
        if span := context.pop(HEADER, None):
            span.set_attribute("http.response.status_code", http_response.status_code)
            if http_response.status_code >= SERVER_ERROR:
                fail(span, str(parsed.get("Error", {}).get("Code", http_response.status_code))[:64])
            span.end()

    def break_call(self, exception: BaseException, context: dict[str, Any], **_later: object) -> None:
        if span := context.pop(HEADER, None):
            fail(span, type(exception).__qualname__)
            span.end()


@contextmanager
def nowhere() -> Iterator[None]:
    """Work of a trace that nobody knows is no part of the one that happens to be here."""
    token = context.attach(context.Context())
    try:
        yield
    finally:
        context.detach(token)


def named(facts: Mapping[str, Fact]) -> dict[str, Fact]:
    return {f"sluice.{name}": value for name, value in facts.items()}


def fail(span: Span, why: str) -> None:
    span.set_status(StatusCode.ERROR)
    span.set_attribute("error.type", why)


def bare(span: Span) -> trace.SpanContext:
    its = span.get_span_context()
    return trace.SpanContext(
        its.trace_id, its.span_id, is_remote=True, trace_flags=its.trace_flags, trace_state=TraceState()
    )


def method_of(request: HttpRequest) -> str:
    """Return the method, if it is one: it is whatever a client sends."""
    known = {"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"}
    return request.method if request.method in known else "_OTHER"
