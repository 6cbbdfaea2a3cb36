"""Heartbeat: renews a lease while work continues, and stops the work when the lease is lost."""

import math
import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import Self


class LeaseLost(Exception):
    """The lease was lost, or its work was cancelled. Nothing may be written."""


class LeaseLostEvent(threading.Event):
    """Event that is set when the lease is lost, or was not renewed for its whole length.

    Another worker may hold the lease by then. A process that was suspended for longer must not continue before
    its heartbeat has run.
    """

    def __init__(self, lease: float, *, since: float) -> None:
        super().__init__()
        self._lease = lease
        self._renewed_at = since

    @property
    def age(self) -> float:
        """Seconds since the last renewal."""
        return time.monotonic() - self._renewed_at

    def renewed(self, at: float) -> None:
        self._renewed_at = at

    def is_set(self) -> bool:
        if not super().is_set() and self.age >= self._lease:
            self.set()
        return super().is_set()


class Heartbeat:
    """Thread that renews a lease after each third of its length, or every `every` seconds if that is shorter.

    Use it as a context manager, or call `start` and `stop`. Work that finishes before the first renewal needs no
    thread.

    `renew` raises LeaseLost, or one of `unavailable` if the server with the lease does not respond. In the second
    case, the work continues until the lease expires. `since` is `time.monotonic()` from before the lease was requested.
    `on_loss` is called once, in the thread, to stop the work.
    """

    def __init__(
        self,
        renew: Callable[[], object],
        *,
        lease: float,
        unavailable: tuple[type[Exception], ...],
        since: float | None = None,
        every: float = math.inf,
        on_loss: Callable[[], None] = lambda: None,
    ) -> None:
        self._renew = renew
        self._lease = lease
        self._every = min(lease / 3, every)
        self._unavailable = unavailable
        self._on_loss = on_loss
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="heartbeat", daemon=True)
        self.lost = LeaseLostEvent(lease, since=time.monotonic() if since is None else since)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """End the thread, if it was started."""
        self._ended.set()
        if self._thread.ident is not None:
            self._thread.join()

    def check(self) -> None:
        """Renew the lease, unless it was renewed within the last second. Raises LeaseLost.

        Call it before each write, from any thread. It stops a process that was suspended and has lost its lease.
        """
        if self.lost.age > min(1, self._lease / 3):
            self._beat()
        if self.lost.is_set():
            raise LeaseLost

    def _run(self) -> None:
        pause = max(0.0, self._every - self.lost.age)
        while not self._ended.wait(pause):
            self._beat()
            if self.lost.is_set():
                self._on_loss()
                return
            pause = self._every

    def _beat(self) -> None:
        started_at = time.monotonic()
        try:
            self._renew()
        except LeaseLost:
            self.lost.set()
        except self._unavailable:
            pass  # `lost` is set once the lease has expired
        else:
            self.lost.renewed(started_at)
