"""A proxy in front of Postgres that behaves like an older version: it reports that version, and refuses connections
with a setting that the version does not know."""

import re
import socket
import socketserver
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from threading import Thread
from urllib.parse import urlsplit

BLOCK = 65_536
MAJOR = 13
UNKNOWN = b"client_connection_check_interval"  # since Postgres 14
VERSION = re.compile(rb"server_version\0\d\d")
FIELDS = (b"SFATAL", b"VFATAL", b"C42704", b'Munrecognized configuration parameter "' + UNKNOWN + b'"', b"", b"")


def refusal() -> bytes:
    """Return the ErrorResponse of Postgres 13."""
    fields = b"\0".join(FIELDS)
    return b"E" + (len(fields) + 4).to_bytes(4) + fields


class OldPostgres(socketserver.ThreadingTCPServer):
    daemon_threads = True

    def __init__(self, upstream: str) -> None:
        address = urlsplit(upstream)
        self.upstream = (address.hostname or "", address.port or 5432)
        super().__init__(("127.0.0.1", 0), Handler)
        credentials, at, _ = address.netloc.rpartition("@")
        netloc = f"{credentials}{at}127.0.0.1:{self.server_address[1]}"
        self.url = address._replace(netloc=netloc, query="sslmode=disable&gssencmode=disable").geturl()


class Handler(socketserver.BaseRequestHandler):
    server: OldPostgres

    def handle(self) -> None:
        startup = self.request.recv(BLOCK)
        if UNKNOWN in startup:
            self.request.sendall(refusal())
            return
        with socket.create_connection(self.server.upstream) as upstream:
            Thread(target=self.forward_replies, args=(upstream,), daemon=True).start()
            upstream.sendall(startup)
            while block := self.request.recv(BLOCK):
                upstream.sendall(block)

    def forward_replies(self, upstream: socket.socket) -> None:
        with suppress(OSError):  # the client or the server has disconnected
            while block := upstream.recv(BLOCK):
                self.request.sendall(VERSION.sub(b"server_version\0%d" % MAJOR, block))


@contextmanager
def running(upstream: str) -> Iterator[OldPostgres]:
    with OldPostgres(upstream) as server:
        thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()
