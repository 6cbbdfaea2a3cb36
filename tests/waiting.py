"""Waiting for what other threads and processes do."""

import time
from collections.abc import Callable


def wait_until(
    condition: Callable[[], object],
    *,
    limit: float = 60,
    every: float = 0.02,
    always: Callable[[], object] = lambda: True,
) -> None:
    """Wait for a condition, while another holds; fail the test when it does not come true in `limit` seconds."""
    deadline = time.monotonic() + limit
    while not condition():
        assert always(), "this should have held all the time"
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(every)


def expect_within(seconds: float, act: Callable[[], object], *, tries: int = 4) -> None:
    """At its best, of some tries, it takes less than that: the machine may stand still for seconds at any of them."""
    times: list[float] = []
    while min(times, default=seconds) >= seconds and len(times) < tries:
        began = time.monotonic()
        act()
        times.append(time.monotonic() - began)
    assert min(times) < seconds, times


def let_pass(seconds: float) -> None:
    """Time passes, and nothing must happen meanwhile."""
    time.sleep(seconds)
