"""Circuit breaker, so that requests do not wait for a server that is known to be unavailable."""

import threading
import time

import structlog

log = structlog.get_logger(__name__)

PAUSE_SECONDS = 5.0


class CircuitBreaker:
    """Circuit breaker of a server. Call `allows_request` before each request, and record its result.

    While the circuit is open, one request per PAUSE_SECONDS tries the server. `opened` and `closed` are log events,
    each logged once per outage.
    """

    opened: str
    closed: str

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.is_open = False
        self.next_attempt_at = 0.0  # monotonic time

    def allows_request(self) -> bool:
        with self.lock:
            if not self.is_open:
                return True
            if time.monotonic() < self.next_attempt_at:
                return False
            self.next_attempt_at = time.monotonic() + PAUSE_SECONDS  # this request tries the server, others skip it
            return True

    def record_failure(self, reason: str) -> None:
        with self.lock:
            has_changed, self.is_open = not self.is_open, True
            self.next_attempt_at = time.monotonic() + PAUSE_SECONDS
        if has_changed:
            log.warning(self.opened, reason=reason)

    def record_success(self) -> None:
        with self.lock:
            has_changed, self.is_open = self.is_open, False
        if has_changed:
            log.warning(self.closed)
