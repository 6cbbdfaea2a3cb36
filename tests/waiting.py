"""Waiting for what other threads and processes do."""

import time
from collections.abc import Callable


def wait_until(
    condition: Callable[[], object],
    *,
    limit: float = 30,
    every: float = 0.02,
    always: Callable[[], object] = lambda: True,
) -> None:
    """Wait for a condition, while another holds; fail the test when it does not come true in `limit` seconds."""
    deadline = time.monotonic() + limit
    while not condition():
        assert always(), "this should have held all the time"
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(every)
