"""A relay in front of Redis that forwards commands, and drops some replies."""

import socket
import socketserver
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Thread
from urllib.parse import urlsplit

BLOCK = 65_536


class Relay(socketserver.ThreadingTCPServer):
    """A relay that drops the next `times` replies to commands with `text`. `swallowed`: the number so far."""

    daemon_threads = True
    allow_reuse_address = True
    text = b""
    times = 0
    swallowed = 0

    def __init__(self, upstream: str) -> None:
        address = urlsplit(upstream)
        self.upstream = (address.hostname or "", address.port or 6379)
        super().__init__(("127.0.0.1", 0), Wire)
        credentials, at, _ = address.netloc.rpartition("@")
        self.url = address._replace(netloc=f"{credentials}{at}127.0.0.1:{self.server_address[1]}").geturl()

    def swallow(self, text: str, *, times: int = 1) -> None:
        self.text, self.times = text.encode(), times

    def is_to_swallow(self, command: bytes) -> bool:
        fits = self.times > 0 and self.text in command
        self.times -= fits
        self.swallowed += fits
        return fits


class Wire(socketserver.BaseRequestHandler):
    server: Relay

    def handle(self) -> None:
        self.is_mute = False
        with socket.create_connection(self.server.upstream) as upstream:
            Thread(target=self.answer, args=(upstream,), daemon=True).start()
            while block := self.request.recv(BLOCK):
                self.is_mute = self.is_mute or self.server.is_to_swallow(block)
                upstream.sendall(block)

    def answer(self, upstream: socket.socket) -> None:
        try:
            while block := upstream.recv(BLOCK):
                if not self.is_mute:
                    self.request.sendall(block)
        except OSError:
            pass  # one of the two has disconnected


@contextmanager
def relaying(upstream: str) -> Iterator[Relay]:
    with Relay(upstream) as relay:
        thread = Thread(target=relay.serve_forever, args=(0.05,), daemon=True)
        thread.start()
        try:
            yield relay
        finally:
            relay.shutdown()
            thread.join()
