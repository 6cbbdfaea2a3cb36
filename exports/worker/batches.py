"""Batches of small chunks of one job.

A worker claims them together, runs them one after another, and records them together. The source calls run one at a
time, under the worker's slot. While one chunk calls the source, the file of the previous chunk is uploaded. After
BATCH_SECONDS, the batch is split: ended chunks are recorded, chunks that have not started return to the queue, and
running chunks continue. So the other chunks do not wait for a slow one.
"""

import threading
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from contextvars import copy_context
from dataclasses import replace
from types import TracebackType
from typing import NamedTuple, Self

import structlog
from django.db import Error, connection

from config.platform.heartbeat import Heartbeat
from config.platform.observability import logs
from exports.core import wakeups
from exports.core.errors import SourceConnectionsExhausted
from exports.delivery import packs
from exports.source.database import SourceSession
from exports.worker import leases, transitions
from exports.worker.leases import Claim
from exports.worker.transitions import ChunkResult

log = structlog.get_logger(__name__)

TARGET_SECONDS = 0.125  # the expected duration of a batch
BATCH_SECONDS = 0.25


class Ended(NamedTuple):
    claim: Claim
    result: ChunkResult
    seconds: float


# ---- Sizes ----------------------------------------------------------------------------------------------------------


class ChunkDurations:
    """Recent durations of chunks in this process, by dataset, and the resulting batch sizes."""

    def __init__(self) -> None:
        self._seconds: dict[str, float] = {}

    def add(self, dataset: str, seconds: float) -> None:
        """Record the duration of a chunk. The newest has as much weight as all earlier ones together."""
        self._seconds[dataset] = (self._seconds.get(dataset, seconds) + seconds) / 2

    def sizes(self) -> dict[str, int]:
        """Return the batch size by dataset, for datasets with a size of more than one chunk."""
        sizes = {name: min(leases.MAX_BATCH, int(TARGET_SECONDS / seconds)) for name, seconds in self._seconds.items()}
        return {name: size for name, size in sizes.items() if size > 1}


# ---- Batches --------------------------------------------------------------------------------------------------------


class Batch:
    """The claims of a batch, as a context manager. Iterate over it, and call `end` or `discard` for each chunk.

    `record` records successful chunks.
    """

    def __init__(self, claims: list[Claim], session: SourceSession, record: Callable[[list[Ended]], None]) -> None:
        self._session = session
        self._backend = session.backend
        self._record = record
        self._lock = threading.Lock()  # guards the five attributes below
        self._waiting = deque(claims)
        self._running: set[int] = set()  # IDs of chunks
        self._ended: list[Ended] = []
        self._heartbeats: set[Heartbeat] = set()
        self._is_split = len(claims) == 1
        self._timer = None if self._is_split else threading.Timer(BATCH_SECONDS, self._split)
        self._uploads: ThreadPoolExecutor | None = None

    def __enter__(self) -> Self:
        if self._timer:
            self._timer.start()
        return self

    def __iter__(self) -> Iterator[Claim]:
        """Yield the chunks. Stop early if the source may still run the call of the last chunk.

        Also stop if the last call lost its connection. Until the next claim, the slot has the name of the old
        connection, so the reaper could not end calls on a new one.
        """
        while not self._session.may_still_run and self._session.backend == self._backend:
            with self._lock:
                if not self._waiting:
                    return
                claim = self._waiting.popleft()
                self._running.add(claim.chunk_id)
            yield claim

    @contextmanager
    def renewing(self, heartbeat: Heartbeat) -> Iterator[None]:
        """Run a chunk's heartbeat after BATCH_SECONDS. Until then, the lease need not be renewed."""
        with self._lock:
            self._heartbeats.add(heartbeat)
            if self._is_split:
                heartbeat.start()
        try:
            yield
        finally:
            with self._lock:
                self._heartbeats.remove(heartbeat)
            heartbeat.stop()

    def upload(self, work: Callable[[], None]) -> Future[None] | None:
        """Run the upload of a chunk in another thread if another chunk can call the source in the meantime.

        Otherwise, return None, and the caller must run it.
        """
        if not self._waiting:
            return None
        self._uploads = self._uploads or ThreadPoolExecutor(1, "upload")
        return self._uploads.submit(copy_context().run, closing_connection(work))

    def end(self, claim: Claim, result: ChunkResult, seconds: float) -> None:
        """Add the result of a chunk. Results are recorded with the last chunk, or immediately after a split."""
        with self._lock:
            kept = sum(len(each.result.content or b"") for each in self._ended)
            if kept + len(result.content or b"") > packs.BATCH_BYTES:
                result = replace(result, content=None)
            self._ended.append(Ended(claim, result, seconds))
            self._running.discard(claim.chunk_id)
            if self._waiting or (self._running and not self._is_split):
                return
        self._record_ended()

    def discard(self, claim: Claim) -> None:
        """Remove a chunk that did not succeed."""
        with self._lock:
            self._running.discard(claim.chunk_id)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._uploads:
            self._uploads.shutdown()
        if self._timer:
            self._timer.cancel()
            self._timer.join()
        self._record_ended()
        if self._waiting:
            transitions.release(list(self._waiting))
            # If the source accepts no more connections, each refused worker would wake several workers, which would be
            # refused too.
            if kind is None or not issubclass(kind, SourceConnectionsExhausted):
                wakeups.chunks(waiting=len(self._waiting))

    def _record_ended(self) -> None:
        """Record the ended chunks, or keep them if that fails."""
        with self._lock:
            ended, self._ended = self._ended, []
        try:
            if ended:
                self._record(ended)
        except BaseException:
            with self._lock:
                self._ended[:0] = ended
            raise

    def _split(self) -> None:
        """Put waiting chunks back into the queue, and record the ended ones. Runs in a separate thread."""
        with self._lock:
            rest, self._waiting = list(self._waiting), deque()
            self._is_split = True
            for heartbeat in self._heartbeats:
                heartbeat.start()
        try:
            if rest:
                transitions.release(rest)
                # A worker that has a slot claims its next chunk without a message.
                wakeups.chunks(waiting=min(len(rest), leases.count_free_slots()))
            self._record_ended()
        except Error as error:
            log.warning("database_unavailable", error=logs.describe(error))  # the leases of `rest` expire later
        finally:
            connection.close()  # this thread's connection


def closing_connection(work: Callable[[], None]) -> Callable[[], None]:
    """Return a function that does the work and then closes the thread's database connection."""

    def work_and_close() -> None:
        try:
            work()
        finally:
            connection.close()

    return work_and_close
