"""The slot of a worker, which it keeps from one batch to the next together with its connection to the source."""

from collections.abc import Collection, Mapping
from types import TracebackType
from typing import Self

from exports.source.database import SourceSession
from exports.worker import leases, transitions
from exports.worker.leases import Claim


class WorkerSlot:
    """The slot under which a worker calls the source, as a context manager.

    A worker that freed its slot after each batch would often lose it to another worker, and both would be connected
    until the first one found out. `token`: that of a slot which the worker already has.
    """

    def __init__(self, session: SourceSession, *, token: int | None = None) -> None:
        self.session = session
        self._token = token
        self._dataset = ""  # of the last claims

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.free()

    def claim(self, *, sizes: Mapping[str, int], paused: Collection[str]) -> list[Claim]:
        """Claim the next chunks under this slot, or under another one. Arguments as in `leases.claim_batch`."""
        if self.session.may_still_run:
            self._token = None  # the reaper ends the call and frees the slot when its lease expires
        claims = leases.claim_batch(backend=self.session.backend, sizes=sizes, paused=paused, held=self._token)
        if claims:
            last, self._token = self._token, claims[0].token
            if last is not None and claims[0].dataset != self._dataset:
                transitions.free_slots([last])  # of the other dataset, if its concurrency is limited
            self._dataset = claims[0].dataset
        return claims

    def free(self) -> None:
        """Close the connection, and then free the slot, unless the source may still run its call."""
        self.session.close()
        if self._token is not None and not self.session.may_still_run:
            transitions.free_slots([self._token])
        self._token = None
