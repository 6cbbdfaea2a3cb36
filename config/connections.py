"""uvicorn's connections, with the bounds that it lacks: of what comes before a request's body, in bytes and in seconds.

`uvicorn --http config.connections:Connection`. Without it one client that never ends a header has the process keep, and
copy again and again, all that it sends; and one that sends a byte now and then is waited for without end.
`config.platform.http.body_limits` bounds request bodies. The proxy limits how slowly a body may arrive: documents take
time.
"""

import asyncio
import logging
from asyncio import TimerHandle

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

log = logging.getLogger("uvicorn.error")

MOST_BYTES = 64 * 1024  # of the request line and headers; also between two parts of a body, where trailers may come
MOST_SECONDS = 10.0  # from the connection, or a request's first byte, to the end of its headers
REFUSAL = b"HTTP/1.1 431 Request Header Fields Too Large\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"


class Connection(HttpToolsProtocol):
    unfinished = 0  # bytes since anything was complete
    timer: TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.hurry()

    def connection_lost(self, exc: Exception | None) -> None:
        self.relax()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        self.unfinished += len(data)
        super().data_received(data)
        if self.unfinished > MOST_BYTES and not self.transport.is_closing():
            log.warning("Headers too large.")
            if self.cycle is None or self.cycle.response_complete:
                self.transport.write(REFUSAL)
            self.transport.close()

    # ---- What the parser calls ----
    def on_message_begin(self) -> None:
        super().on_message_begin()
        self.hurry()

    def on_headers_complete(self) -> None:
        self.relax()
        self.unfinished = 0
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        self.unfinished = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        self.unfinished = 0
        super().on_message_complete()

    def on_response_complete(self) -> None:
        if not self.pipeline:
            self.hurry()  # uvicorn waits 5 s for the next request, and forgets that at an empty line
        super().on_response_complete()

    # ---- The clock ----
    def hurry(self) -> None:
        self.relax()
        self.timer = self.loop.call_later(MOST_SECONDS, self.give_up)

    def relax(self) -> None:
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None

    def give_up(self) -> None:
        self.transport.abort()
