"""Keeps the lease of a stage alive while the work goes on, and tells the work when it is lost."""

import threading
import time
from types import TracebackType
from typing import Self

from django.conf import settings

from etl import runstate
from etl.runstate import RunState, Verdict


class LeaseLostEvent(threading.Event):
    """Set when the lease is lost. It is too, by itself, once the lease is over: a process that was stopped for longer
    must not go on before its heartbeat has had a chance to look."""

    def __init__(self, seconds: float, *, since: float) -> None:
        super().__init__()
        self._seconds = seconds
        self._renewed_at = since

    def renewed(self, at: float) -> None:
        self._renewed_at = at

    def is_set(self) -> bool:
        if not super().is_set() and time.monotonic() - self._renewed_at >= self._seconds:
            self.set()
        return super().is_set()


class StageHeartbeat:
    """Renews a lease every third of its length, in a thread of its own, as a context manager.

    `since`: of `time.monotonic()`, before the lease was asked for. `lost` is for `Work`. While Redis is away the work
    goes on until the lease is over by our own clock: from then on another worker may have it.
    """

    def __init__(self, state: RunState, *, since: float) -> None:
        self._state = state
        self._lease = settings.SLUICE.etl_lease_seconds
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="heartbeat", daemon=True)
        self.lost = LeaseLostEvent(self._lease, since=since)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._over.wait(self._lease / 3) and not self.lost.is_set():
            self._beat()

    def _beat(self) -> None:
        started_at = time.monotonic()
        try:
            verdict = runstate.renew(self._state)
        except runstate.Unavailable:
            return
        if verdict is Verdict.MOVED:
            self.lost.renewed(started_at)
        else:
            self.lost.set()
