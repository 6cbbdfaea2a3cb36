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
    """Wait until a condition holds, as long as another holds. Fail the test after `limit` seconds."""
    deadline = time.monotonic() + limit
    while not condition():
        assert always(), "this should have held all the time"
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(every)


def expect_within(seconds: float, act: Callable[[], object], *, tries: int = 4) -> None:
    """Check that the best of several tries is fast enough, because the machine may stall for seconds."""
    times: list[float] = []
    while min(times, default=seconds) >= seconds and len(times) < tries:
        began = time.monotonic()
        act()
        times.append(time.monotonic() - began)
    assert min(times) < seconds, times


def let_pass(seconds: float) -> None:
    """Let time pass in which nothing must happen."""
    time.sleep(seconds)
