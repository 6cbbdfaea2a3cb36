"""Graceful shutdown of a web process: event streams and other long waits end at SIGTERM.

uvicorn does not notify the application of a shutdown. It waits for open responses until its timeout, and then cancels
them, each with a traceback in the log.
"""

import signal
import threading
from collections.abc import Callable
from typing import Any

has_begun = threading.Event()
callbacks: list[Callable[[], None]] = []
handlers: list[Any] = []


def register(end: Callable[[], None]) -> None:
    """Register a callback for shutdown. It may interrupt the main thread at any point."""
    if end not in callbacks:
        callbacks.append(end)


def watch() -> None:
    """Handle SIGTERM before the current handler. Do nothing if already done, or outside the main thread."""
    before = signal.getsignal(signal.SIGTERM)
    if threading.current_thread() is not threading.main_thread() or not callable(before) or before in handlers:
        return

    def handle(number: int, frame: Any) -> None:
        has_begun.set()
        for end in callbacks:
            end()
        before(number, frame)

    handlers.append(handle)
    signal.signal(signal.SIGTERM, handle)
