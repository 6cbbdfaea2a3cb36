"""A call's bounds in time.

A server that sends one byte a minute keeps the timeout of a single read from ever coming, and a worker that has lost
its task must not go on paying for it: so a thread watches, and cuts the connection.
"""

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

from etl.core.stage_context import StageContext

WATCH_SECONDS = 0.25  # how often it looks whether the lease is lost


class Line:
    """The connection of a call, as far as another thread must be able to end it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._sockets: list[socket.socket] = []
        self.is_cut = False

    def trace(self, event: str, info: dict[str, Any]) -> None:
        """Hear of a connection, before TLS. A duplicate is kept: TLS takes the original over."""
        if not event.endswith("connect_tcp.complete"):
            return
        with self._lock:
            if self.is_cut:
                raise TimeoutError
            self._sockets.append(info["return_value"].get_extra_info("socket").dup())

    def cut(self) -> None:
        """Whoever reads or writes on the connection finds it closed; nobody connects any more."""
        with self._lock:
            self.is_cut = True
            for each in self._sockets:
                with suppress(OSError):
                    each.shutdown(socket.SHUT_RDWR)

    def release(self) -> None:
        with self._lock:
            for each in self._sockets:
                each.close()
            self._sockets = []


@contextmanager
def watched(line: Line, *, context: StageContext, seconds: float) -> Iterator[None]:
    """Cut the line when the time is over, or the lease is lost."""
    end = time.monotonic() + seconds
    is_over = threading.Event()

    def watch() -> None:
        while not is_over.wait(max(0, min(WATCH_SECONDS, end - time.monotonic()))):
            if context.lease_lost.is_set() or time.monotonic() >= end:
                line.cut()
                return

    thread = threading.Thread(target=watch, name="llm-watch", daemon=True)
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join()
        line.release()
