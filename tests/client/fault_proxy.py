"""A real HTTP proxy between the command line and a server.

It records requests, forwards streams without buffering, and injects faults on request.
"""

import http.client
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from tests.integration.faulty_s3 import Handler, Proxy, serving


class RecordedRequest(NamedTuple):
    method: str
    path: str
    headers: dict[str, str]  # names in lower case


@dataclass
class FaultProxy(Proxy):
    seen: list[RecordedRequest] = field(default_factory=list)
    started_responses: list[str] = field(default_factory=list)

    def reset(self) -> None:
        self.faults.clear()
        self.seen.clear()
        self.started_responses.clear()

    def requests_to(self, method: str, text: str) -> list[RecordedRequest]:
        """Return the requests with this method and with this text in their path or query."""
        return [each for each in self.seen if each.method == method and text in each.path]

    def streams(self) -> int:
        """Return the number of event streams for which the server has sent data."""
        return sum("/events" in path for path in self.started_responses)


class ProxyHandler(Handler):
    proxy: FaultProxy

    def handle_any(self) -> None:
        headers = {name.lower(): value for name, value in self.headers.items()}
        self.proxy.seen.append(RecordedRequest(self.command, self.path, headers))
        fault = self.proxy.next_fault(self.command, self.path)
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        if fault:
            fault.action(self, body)
        else:
            self.pass_on(body)

    do_GET = do_HEAD = do_PUT = do_POST = do_PATCH = do_DELETE = handle_any  # noqa: N815 - http.server's names

    def pass_on(self, body: bytes, *, change: Callable[[Iterator[bytes]], Iterator[bytes]] = iter) -> None:
        """Forward the request, and stream the response."""
        address = urlsplit(self.proxy.upstream)
        upstream = http.client.HTTPConnection(address.hostname or "", address.port, timeout=60)
        try:
            upstream.request(self.command, self.path, body, dict(self.headers.items()))
            reply = upstream.getresponse()
            self.head(reply.status, reply.getheaders())
            for number, block in enumerate(change(iter(lambda: reply.read1(65_536), b""))):
                self.wfile.write(block)
                if number == 0:
                    self.proxy.started_responses.append(self.path)
        finally:
            upstream.close()

    def head(self, status: int, headers: list[tuple[str, str]]) -> None:
        """Start a response that ends when the connection is closed."""
        self.send_response_only(status)
        for name, value in headers:
            if name.lower() not in {"transfer-encoding", "connection"}:
                self.send_header(name, value)
        self.send_header("Connection", "close")
        self.end_headers()


Action = Callable[[Handler, bytes], None]


def problem(status: int, code: str, *, retry_after: int | None = None) -> Action:
    """Return an action that responds with a problem."""
    headers = [("Content-Type", "application/problem+json")]
    headers += [] if retry_after is None else [("Retry-After", str(retry_after))]
    body = f'{{"status": {status}, "code": "{code}", "detail": "Made up by a test."}}'.encode()
    return lambda handler, _body: handler.answer(status, headers, body)


def cut_after(count: int) -> Action:
    """Return an action that forwards the first bytes of the response's body, and closes the connection."""

    def some(blocks: Iterator[bytes]) -> Iterator[bytes]:
        left = count
        for block in blocks:
            yield block[:left]
            left -= len(block)
            if left <= 0:
                return

    return with_changed_body(some)


def cut_before(text: bytes) -> Action:
    """Return an action that forwards the response up to a text in it, and closes the connection."""

    def up_to(blocks: Iterator[bytes]) -> Iterator[bytes]:
        for block in blocks:
            before, found, _ = block.partition(text)
            yield before
            if found:
                return

    return with_changed_body(up_to)


def flip_bit(handler: Handler, body: bytes) -> None:
    """Forward the request, and flip one bit of the response's body."""

    def flip_first(blocks: Iterator[bytes]) -> Iterator[bytes]:
        for number, block in enumerate(blocks):
            yield block if number else bytes([block[0] ^ 1]) + block[1:]

    with_changed_body(flip_first)(handler, body)


def with_changed_body(change: Callable[[Iterator[bytes]], Iterator[bytes]]) -> Action:
    def act(handler: Any, body: bytes) -> None:
        handler.pass_on(body, change=change)

    return act


@contextmanager
def running(upstream: str) -> Iterator[FaultProxy]:
    with serving(FaultProxy(upstream), ProxyHandler) as proxy:
        yield proxy
