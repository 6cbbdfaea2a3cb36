"""Keeps a lease alive while work goes on, and stops the work when the lease is lost."""

import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import Self

from django.conf import settings
from django.db import Error, connection

from exports.core.errors import LeaseLost


class Heartbeat:
    """Renews a lease every third of its length, in a thread of its own, as a context manager.

    When the lease is lost, or could not be renewed for its whole length (so that another worker may have it by
    now), `on_loss` is called once, in that thread, to stop whatever is under way; `check` raises from then on.
    """

    def __init__(self, renew: Callable[[], None], *, on_loss: Callable[[], None]) -> None:
        self._renew = renew
        self._on_loss = on_loss
        self._lease = settings.SLUICE.export_lease_seconds
        self._renewed_at = time.monotonic()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="heartbeat", daemon=True)
        self.lost = False

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over.set()
        self._thread.join()

    def check(self) -> None:
        """Renew unless that was done within the last second. Called before each part and before the commit, from
        any thread: it is what keeps a worker that stood still from writing on. Raises LeaseLost."""
        if not self.lost and time.monotonic() - self._renewed_at > 1:
            self._beat()
        if self.lost:
            raise LeaseLost

    def _run(self) -> None:
        while not self.lost and not self._over.wait(self._lease / 3):
            self._beat()
            if self.lost:
                self._on_loss()

    def _beat(self) -> None:
        started_at = time.monotonic()
        try:
            self._renew()
            self._renewed_at = started_at
        except LeaseLost:
            self.lost = True
        except Error:
            self.lost = time.monotonic() - self._renewed_at > self._lease
        finally:
            if threading.current_thread() is not threading.main_thread():
                connection.close()  # each thread has its own; back to the pool, or the pool runs dry
