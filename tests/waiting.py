"""Waiting for other threads and processes."""

import time
from collections.abc import Callable


def wait_until(
    condition: Callable[[], object],
    *,
    limit: float = 60,
    every: float = 0.02,
    always: Callable[[], object] = lambda: True,
) -> None:
    """Wait until a condition is true. Fail the test after `limit` seconds, or if the condition `always` is false."""
    deadline = time.monotonic() + limit
    while not condition():
        assert always(), "the condition `always` is false"
        assert time.monotonic() < deadline, f"the condition is still false after {limit} s"
        time.sleep(every)


def expect_within(seconds: float, act: Callable[[], object], *, tries: int = 4) -> None:
    """Check that the fastest of several tries takes less than `seconds`. The machine may stall during a try."""
    times: list[float] = []
    while min(times, default=seconds) >= seconds and len(times) < tries:
        began = time.monotonic()
        act()
        times.append(time.monotonic() - began)
    assert min(times) < seconds, times


def avoid_end_of_hour(seconds: float = 15) -> None:
    """Wait for the next hour if the current one ends within `seconds`, for tests of hourly figures."""
    left = 3600 - time.time() % 3600
    if left < seconds:
        time.sleep(left)


def avoid_midnight(seconds: float = 15) -> None:
    """Wait for the next day in UTC if the current one ends within `seconds`, for tests of daily quotas."""
    left = 86_400 - time.time() % 86_400
    if left < seconds:
        time.sleep(left)


def let_pass(seconds: float) -> None:
    """Sleep, to check afterward that nothing has happened in the meantime."""
    time.sleep(seconds)
