"""uvicorn's HTTP connections, with limits on the size and the duration of request headers.

Used by `uvicorn --http config.connections:Connection`. uvicorn's own `httptools` protocol has no such limits. If a
client sent a header without an end, the process would buffer everything, and copy the buffer with each read. A client
that sends a byte at a time (slowloris) would hold its connection forever. `config.platform.http.body_limits` limits the
size of request bodies. They have no time limit here, because uploads of documents take time; the proxy aborts stalled
ones.
"""

import asyncio
import logging
from asyncio import TimerHandle

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

log = logging.getLogger("uvicorn.error")

MAX_HEADER_BYTES = 64 * 1024  # request line and headers; also chunk extensions and trailers of a chunked body
# From the connection, the end of the previous response, or a request's first byte, whichever is latest, to the end of
# the request's headers.
HEADER_TIMEOUT_SECONDS = 10.0
RESPONSE_431 = b"HTTP/1.1 431 Request Header Fields Too Large\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"


class Connection(HttpToolsProtocol):
    unparsed_bytes = 0  # received since the last complete part of a request
    timer: TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.start_header_timeout()

    def connection_lost(self, exc: Exception | None) -> None:
        self.cancel_header_timeout()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        self.unparsed_bytes += len(data)
        super().data_received(data)
        if self.unparsed_bytes > MAX_HEADER_BYTES and not self.transport.is_closing():
            log.warning("Request headers too large.")
            if self.cycle is None or self.cycle.response_complete:
                self.transport.write(RESPONSE_431)
            self.transport.close()

    # ---- Callbacks of the parser ----
    def on_message_begin(self) -> None:
        super().on_message_begin()
        self.start_header_timeout()

    def on_headers_complete(self) -> None:
        self.cancel_header_timeout()
        self.unparsed_bytes = 0
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        self.unparsed_bytes = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        self.unparsed_bytes = 0
        super().on_message_complete()

    def on_response_complete(self) -> None:
        if not self.pipeline:
            self.start_header_timeout()  # any byte, even an empty line, cancels uvicorn's keep-alive timeout
        super().on_response_complete()

    # ---- Header timeout ----
    def start_header_timeout(self) -> None:
        self.cancel_header_timeout()
        self.timer = self.loop.call_later(HEADER_TIMEOUT_SECONDS, self.abort)

    def cancel_header_timeout(self) -> None:
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None

    def abort(self) -> None:
        self.transport.abort()
