"""The slot of a worker, which it keeps from one batch to the next together with its connection to the source."""

from collections.abc import Collection, Mapping
from types import TracebackType
from typing import Self

from exports.core import wakeups
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
        self._limited: tuple[str, int | None] = ("", None)  # the dataset of the last claims, and its limit
        self._left: int | None = None  # token of a slot of another dataset

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.free()
        if kind is not None and not issubclass(kind, Exception):
            wakeups.chunks(waiting=1)  # a shutdown: a worker that was woken before found no free slot

    def claim(self, *, sizes: Mapping[str, int], paused: Collection[str]) -> list[Claim]:
        """Claim the next chunks under this slot, or under another one. Arguments as in `leases.claim_batch`.

        Then `leave` frees what the chunks do not need.
        """
        if self.session.may_still_run:
            self._token = None  # the reaper ends the call and frees the slot when its lease expires
        claims = leases.claim_batch(backend=self.session.backend, sizes=sizes, paused=paused, held=self._token)
        if claims:
            last, self._token = self._token, claims[0].token
            limited = (claims[0].dataset, claims[0].max_concurrency)
            if limited != self._limited:
                self._left = last
            self._limited = limited
        return claims

    def leave(self) -> None:
        """Free the slot of the dataset before, if its concurrency is limited, or was."""
        if self._left is not None:
            transitions.free_slots([self._left])
            self._left = None

    def free(self) -> bool:
        """Close the connection, and then free the slot, unless the source may still run its call.

        Return whether there was one: workers that were woken meanwhile may have found no free slot.
        """
        self.session.close()
        self.leave()
        if self._token is None:
            return False
        if not self.session.may_still_run:
            transitions.free_slots([self._token])
        self._token = None
        return True
