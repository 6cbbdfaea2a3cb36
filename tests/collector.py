"""A trace collector: a real HTTP server in a thread, which receives spans by OTLP and stores them."""

import gzip
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest


@dataclass(frozen=True, kw_only=True)
class Span:
    """A span. IDs are hexadecimal; "" means none. `links`: pairs of trace ID and span ID."""

    service: str
    name: str
    kind: int
    trace: str
    id: str
    parent: str
    links: list[tuple[str, str]]
    attributes: dict[str, Any]
    failed: bool


@dataclass
class Collector:
    url: str
    spans: list[Span] = field(default_factory=list)
    bodies: list[bytes] = field(default_factory=list)

    def named(self, name: str, **attributes: Any) -> list[Span]:
        return [
            span
            for span in list(self.spans)
            if span.name == name and all(span.attributes.get(f"sluice.{k}") == v for k, v in attributes.items())
        ]


def value_of(value: Any) -> Any:
    return getattr(value, value.WhichOneof("value"))


def read(body: bytes) -> Iterator[Span]:
    request = ExportTraceServiceRequest()
    request.ParseFromString(body)
    for resource in request.resource_spans:
        resource_attributes = {each.key: value_of(each.value) for each in resource.resource.attributes}
        for scope in resource.scope_spans:
            for span in scope.spans:
                assert not span.events
                assert not span.trace_state
                yield Span(
                    service=resource_attributes["service.name"],
                    name=span.name,
                    kind=span.kind,
                    trace=span.trace_id.hex(),
                    id=span.span_id.hex(),
                    parent=span.parent_span_id.hex(),
                    links=[(link.trace_id.hex(), link.span_id.hex()) for link in span.links],
                    attributes={each.key: value_of(each.value) for each in span.attributes},
                    failed=span.status.code == span.status.STATUS_CODE_ERROR,
                )


@contextmanager
def collector() -> Iterator[Collector]:
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            if self.headers.get("Content-Encoding") == "gzip":
                body = gzip.decompress(body)
            assert self.path == "/v1/traces"
            assert self.headers["Content-Type"] == "application/x-protobuf"
            running.bodies.append(body)
            running.spans.extend(read(body))
            self.send_response(200)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    running = Collector(f"http://127.0.0.1:{server.server_port}")
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield running
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
