"""Slot of a worker. The worker keeps it, and its connection to the source, from one batch to the next."""

from collections.abc import Collection, Mapping
from types import TracebackType
from typing import Self

from exports.core import wakeups
from exports.source.database import SourceSession
from exports.worker import leases, transitions
from exports.worker.leases import Claim


class WorkerSlot:
    """The slot under which a worker calls the source, as a context manager.

    If workers freed their slots after each batch, another worker would often claim the slot and connect to the source
    before the first worker had closed its connection. `token` is the token of a slot that the worker already holds.
    """

    def __init__(self, session: SourceSession, *, token: int | None = None) -> None:
        self.session = session
        self._token = token
        self._limited: tuple[str, int | None] = ("", None)  # the dataset of the last claims, and its concurrency limit
        self._previous: int | None = None  # the token of a slot that the last claims do not need

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.free()
        if kind is not None and not issubclass(kind, Exception):
            wakeups.chunks(waiting=1)  # shutdown: workers that were woken earlier may have found no free slot

    def claim(self, *, sizes: Mapping[str, int], paused: Collection[str]) -> list[Claim]:
        """Claim the next chunks, under this slot if possible. For the arguments, see `leases.claim_batch`.

        Call `free_previous` afterwards, to free a slot that these chunks do not need.
        """
        if self.session.may_still_run:
            self._token = None  # the reaper ends the call and frees the slot when its lease expires
        claims = leases.claim_batch(backend=self.session.backend, sizes=sizes, paused=paused, held=self._token)
        if claims:
            last, self._token = self._token, claims[0].token
            limited = (claims[0].dataset, claims[0].max_concurrency)
            if limited != self._limited or claims[0].has_new_slot:
                self._previous = last
            self._limited = limited
        return claims

    def free_previous(self) -> None:
        """Free the slot that the worker held before the last claims, if they do not need it."""
        if self._previous is not None:
            transitions.free_slots([self._previous])
            self._previous = None

    def free(self) -> bool:
        """Close the connection, and then free the slot, unless the source may still run its call.

        Return whether the worker held a slot. In that case, workers that were woken in the meantime may have found no
        free slot.
        """
        self.session.close()
        self.free_previous()
        if self._token is None:
            return False
        if not self.session.may_still_run:
            transitions.free_slots([self._token])
        self._token = None
        return True
