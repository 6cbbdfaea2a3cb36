"""Limit of the total time of a call."""

import math
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

T = TypeVar("T")


class Deadline:
    """The time limit of a call, checked before each wait on the network.

    Timeouts of single reads are not enough: a peer that sends one byte per second never exceeds them. `remaining` is
    an additional limit of the caller. It returns the remaining seconds, and may raise an exception to abort the call,
    such as when a lease is lost.
    """

    def __init__(self, seconds: float = math.inf, *, remaining: Callable[[], float] = lambda: math.inf) -> None:
        self._remaining = remaining
        self.restart(seconds)

    def restart(self, seconds: float) -> None:
        self._end = time.monotonic() + seconds

    def limit(self, timeout: float | None, late: type[Exception]) -> float:
        """Return the time limit of one wait in seconds. Raises `late` after the deadline, and errors of `remaining`."""
        left = min(self._end - time.monotonic(), self._remaining())
        if left <= 0:
            raise late
        return left if timeout is None else min(left, timeout)


def run_within(seconds: float, call: Callable[[], T]) -> T:
    """Return the result of the call, or raise TimeoutError.

    After a timeout, its thread is abandoned, because a DNS lookup cannot be interrupted.
    """
    result: Future[T] = Future()

    def run() -> None:
        try:
            result.set_result(call())
        except BaseException as error:  # noqa: BLE001 - raised again by the caller
            result.set_exception(error)

    threading.Thread(target=run, name="dns-lookup", daemon=True).start()
    return result.result(seconds)
