"""Circuit breaker: keeps requests from waiting for a server that is known to be unavailable."""

import threading
import time

import structlog

log = structlog.get_logger(__name__)

PAUSE_SECONDS = 5.0


class Breaker:
    """Ask only if `may_ask`, and then note how it went. While the server is away, one in a pause finds out.

    `away` and `back` are what the log says, once for each outage.
    """

    away: str
    back: str

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.is_away = False
        self.ask_again_at = 0.0  # on time.monotonic's clock

    def may_ask(self) -> bool:
        with self.lock:
            if not self.is_away:
                return True
            if time.monotonic() < self.ask_again_at:
                return False
            self.ask_again_at = (
                time.monotonic() + PAUSE_SECONDS
            )  # this request tries the server; others do not wait for it
            return True

    def note_silence(self, reason: str) -> None:
        with self.lock:
            is_news, self.is_away = not self.is_away, True
            self.ask_again_at = time.monotonic() + PAUSE_SECONDS
        if is_news:
            log.warning(self.away, reason=reason)

    def note_answer(self) -> None:
        with self.lock:
            is_news, self.is_away = self.is_away, False
        if is_news:
            log.warning(self.back)
