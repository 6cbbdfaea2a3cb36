"""Graceful shutdown of a web process: at SIGTERM, event streams and other long requests finish early.

uvicorn does not notify the application of a shutdown. It waits for open responses until its timeout, and then cancels
them, and logs a traceback for each.
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
    """Install a SIGTERM handler that also calls the previous one.

    Do nothing if it is already installed, or outside the main thread.
    """
    previous = signal.getsignal(signal.SIGTERM)
    if threading.current_thread() is not threading.main_thread() or not callable(previous) or previous in handlers:
        return

    def handle(number: int, frame: Any) -> None:
        has_begun.set()
        for end in callbacks:
            end()
        previous(number, frame)

    handlers.append(handle)
    signal.signal(signal.SIGTERM, handle)
