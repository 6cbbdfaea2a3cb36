"""A webhook receiver: a real HTTP server in a thread that sends scripted replies and records the requests."""

import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import orjson

from config.env import Environment
from tests.conftest import change_settings

Reply = Callable[[BaseHTTPRequestHandler], None]


@dataclass(frozen=True)
class Received:
    headers: dict[str, str]
    body: bytes

    @property
    def id(self) -> str:
        return self.headers["webhook-id"]

    @property
    def json(self) -> Any:
        return orjson.loads(self.body)


@dataclass
class Receiver:
    """A receiver that sends `replies` in order, and then always `then`."""

    url: str
    then: Reply
    replies: list[Reply] = field(default_factory=list)
    received: list[Received] = field(default_factory=list)

    @property
    def ids(self) -> list[str]:
        return [each.id for each in self.received]


def answer(status: int, body: bytes = b"", **headers: str) -> Reply:
    def reply(to: BaseHTTPRequestHandler) -> None:
        to.send_response(status)
        for name, value in {"Content-Length": str(len(body)), **headers}.items():
            to.send_header(name.replace("_", "-"), value)
        to.end_headers()
        to.wfile.write(body)

    return reply


OK = answer(204)


# A private key and a self-signed certificate, only for tests, valid for `hook.example` until 2126.
PEM = Path(__file__).with_name("hook.example.pem")


@contextmanager
def receiver(then: Reply = OK, *, tls: bool = False) -> Iterator[Receiver]:
    lock = threading.Lock()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            with lock:
                hook.received.append(Received({name.lower(): value for name, value in self.headers.items()}, body))
                reply = hook.replies.pop(0) if hook.replies else hook.then
            try:
                reply(self)
            except OSError:
                self.close_connection = True  # the client disconnected

        def log_message(self, *_args: Any) -> None:
            """Log nothing."""

    class Server(ThreadingHTTPServer):
        def handle_error(self, *_args: Any) -> None:
            """Log nothing: clients that do not trust the certificate disconnect."""

    with Server(("127.0.0.1", 0), Handler) as server:
        if tls:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(PEM)
            server.socket = context.wrap_socket(server.socket, server_side=True)
        server.daemon_threads = True
        place = "https://hook.example" if tls else "http://127.0.0.1"
        hook = Receiver(f"{place}:{server.server_port}/hook", then)
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
        thread.start()
        try:
            yield hook
        finally:
            server.shutdown()
            thread.join()


def allow(settings: Any, *networks: str) -> None:
    """Allow webhooks to these networks, as the operator does."""
    fields = Environment.model_validate({**settings.SLUICE.model_dump(), "export_webhook_allow_cidrs": networks})
    change_settings(settings, export_webhook_allow_cidrs=fields.export_webhook_allow_cidrs)


def trickle(may_end: threading.Event, *, head: bytes = b"", ended: threading.Event | None = None) -> Reply:
    """Return a reply that sends `head`, and then a byte every 20 ms until `may_end` is set. Set `ended` then."""

    def reply(to: BaseHTTPRequestHandler) -> None:
        line: socket.socket = to.connection
        try:
            line.sendall(head)
            while not may_end.wait(0.02):
                line.sendall(b"x")
        finally:
            if ended:
                ended.set()

    return reply
