"""A real HTTP proxy in front of the object storage that injects faults into selected requests."""

import http.client
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import TypeVar
from urllib.parse import urlsplit

P = TypeVar("P", bound="Proxy")
ERROR = b"<?xml version='1.0'?><Error><Code>InternalError</Code><Message>Trouble.</Message></Error>"


@dataclass
class InjectedFault:
    """A fault for the next `times` requests of this method with this text in their path or query."""

    method: str
    text: str
    action: Callable[["Handler", bytes], None]
    times: int

    def matches(self, method: str, path: str) -> bool:
        return self.times > 0 and method == self.method and self.text in path


@dataclass
class Proxy:
    upstream: str
    faults: list[InjectedFault] = field(default_factory=list)
    url: str = ""

    def inject(self, method: str, text: str, action: Callable[["Handler", bytes], None], *, times: int = 1) -> None:
        self.faults.append(InjectedFault(method, text, action, times))

    def next_fault(self, method: str, path: str) -> InjectedFault | None:
        """Return the fault for a request, and count it."""
        for fault in self.faults:
            if fault.matches(method, path):
                fault.times -= 1
                return fault
        return None


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    proxy: Proxy

    def handle_any(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        fault = self.proxy.next_fault(self.command, self.path)
        if fault:
            fault.action(self, body)
        else:
            self.answer(*self.forward(body))

    do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = handle_any  # noqa: N815 - http.server's names

    def forward(self, body: bytes) -> tuple[int, list[tuple[str, str]], bytes]:
        address = urlsplit(self.proxy.upstream)
        upstream = http.client.HTTPConnection(address.hostname or "", address.port, timeout=30)
        try:
            headers = {name: value for name, value in self.headers.items() if name != "Expect"}
            upstream.request(self.command, self.path, body, headers)
            reply = upstream.getresponse()
            return reply.status, reply.getheaders(), reply.read()
        finally:
            upstream.close()

    def answer(self, status: int, headers: list[tuple[str, str]], body: bytes) -> None:
        self.send_response_only(status)
        for name, value in headers:
            if name not in {"Transfer-Encoding", "Connection"}:
                self.send_header(name, value)
        if not any(name == "Content-Length" for name, _ in headers):
            self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


def answer_500(handler: Handler, _body: bytes) -> None:
    handler.answer(500, [], ERROR)


def answer_200_with_error(handler: Handler, _body: bytes) -> None:
    handler.answer(200, [], ERROR)


def lose_request(handler: Handler, _body: bytes) -> None:
    """Close the connection without a reply, and do not forward the request."""
    handler.close_connection = True


def lose_reply(handler: Handler, body: bytes) -> None:
    """Forward the request, and close the connection without a reply."""
    handler.forward(body)
    handler.close_connection = True


def truncate_reply(handler: Handler, body: bytes) -> None:
    """Send the headers of the reply and half of its body, then close the connection."""
    status, headers, content = handler.forward(body)
    headers = [(name, value) for name, value in headers if name != "Content-Length"]
    handler.answer(status, [*headers, ("Content-Length", str(len(content)))], content[: len(content) // 2])
    handler.close_connection = True


def first(action: Callable[[], object]) -> Callable[[Handler, bytes], None]:
    """Return an action for a fault: it calls a function, and then forwards the request."""

    def act(handler: Handler, body: bytes) -> None:
        action()
        handler.answer(*handler.forward(body))

    return act


class Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, *_: object) -> None:
        """Ignore disconnected clients, which are expected here."""


@contextmanager
def running(upstream: str) -> Iterator[Proxy]:
    with serving(Proxy(upstream), Handler) as proxy:
        yield proxy


@contextmanager
def serving(proxy: P, handler: type[Handler]) -> Iterator[P]:
    """Run a proxy with this kind of handler."""
    with Server(("127.0.0.1", 0), type("BoundHandler", (handler,), {"proxy": proxy})) as server:
        proxy.url = f"http://127.0.0.1:{server.server_address[1]}"
        thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
        thread.start()
        try:
            yield proxy
        finally:
            server.shutdown()
            thread.join()
