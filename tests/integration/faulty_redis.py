"""A proxy in front of Redis that forwards commands, and can drop the replies on a connection."""

import socket
import socketserver
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Thread
from urllib.parse import urlsplit

BLOCK = 65_536


class Relay(socketserver.ThreadingTCPServer):
    """A proxy that can drop all replies on a connection after the next block of commands with a text.

    `dropped`: the number of such blocks so far.
    """

    daemon_threads = True
    allow_reuse_address = True
    text = b""
    dropped = 0

    def __init__(self, upstream: str) -> None:
        address = urlsplit(upstream)
        self.upstream = (address.hostname or "", address.port or 6379)
        super().__init__(("127.0.0.1", 0), RelayHandler)
        credentials, at, _ = address.netloc.rpartition("@")
        self.url = address._replace(netloc=f"{credentials}{at}127.0.0.1:{self.server_address[1]}").geturl()

    def drop_replies(self, text: str) -> None:
        self.text = text.encode()

    def take_drop(self, command: bytes) -> bool:
        if not self.text or self.text not in command:
            return False
        self.text = b""
        self.dropped += 1
        return True


class RelayHandler(socketserver.BaseRequestHandler):
    server: Relay

    def handle(self) -> None:
        self.drops_replies = False
        with socket.create_connection(self.server.upstream) as upstream:
            Thread(target=self.forward_replies, args=(upstream,), daemon=True).start()
            while block := self.request.recv(BLOCK):
                self.drops_replies = self.drops_replies or self.server.take_drop(block)
                upstream.sendall(block)

    def forward_replies(self, upstream: socket.socket) -> None:
        try:
            while block := upstream.recv(BLOCK):
                if not self.drops_replies:
                    self.request.sendall(block)
        except OSError:
            pass  # the client or the server has disconnected


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
