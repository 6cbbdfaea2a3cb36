"""Recovery from lost workers: chunks and slots whose leases have expired, and source calls that may still run.

As in `exports.worker.transitions`, each change of a chunk is a single SQL statement.
"""

from typing import NamedTuple
from uuid import UUID

import structlog
from django.conf import settings

from config.platform.db import sql
from exports.core import metrics
from exports.core.errors import ExportError, WorkerLost
from exports.core.states import ChunkStatus, JobStatus
from exports.source import database
from exports.worker import transitions

log = structlog.get_logger(__name__)

BATCH = 500


# ---- Chunks ---------------------------------------------------------------------------------------------------------


def take_back(selection: str) -> str:
    """Return the CTEs that end the leases of the running chunks that `selection` locks.

    Attempts are counted by the claim, so a chunk that kills its worker each time fails here in the end.
    """
    return f"""
WITH lost AS MATERIALIZED (
    {selection}
), ended AS (
    UPDATE exports_chunk c
    SET status = CASE WHEN c.attempts >= %(attempts)s THEN 'failed' ELSE 'pending' END,
        token = NULL, lease_until = NULL, started_at = NULL,
        reusable = false,  -- a reuse check that took too long is not repeated: the chunk is exported
        error_code = CASE WHEN c.attempts >= %(attempts)s THEN 'EXPORT_WORKER_LOST' ELSE '' END, error_detail = '',
        source_message = '',
        finished_at = CASE WHEN c.attempts >= %(attempts)s THEN clock_timestamp() END
    FROM lost WHERE c.id = lost.id
    RETURNING c.*
)
"""


RECLAIM = take_back("""
    SELECT id, token FROM exports_chunk WHERE status = 'running' AND lease_until < statement_timestamp()
    ORDER BY lease_until LIMIT %(batch)s FOR UPDATE SKIP LOCKED
""")
# For staff, before the lease expires. Only the lease with the token that staff saw ends: a new holder keeps the chunk.
WITHDRAW = take_back("""
    SELECT id, token FROM exports_chunk WHERE status = 'running' AND id = %(chunk)s AND token = %(token)s FOR UPDATE
""")
# Slots still have their tokens. Chunks whose file was being checked for reuse have no slot.
LOST = """
SELECT e.id, e.job_id, j.request_id, e.status, e.attempts, s.status AS job_status, s.was AS job_was,
       coalesce((SELECT max(backend) FROM exports_slot WHERE token = l.token), '') AS backend
FROM ended e JOIN lost l ON l.id = e.id JOIN settled s USING (job_id) JOIN exports_jobs j USING (job_id)
"""


class LostChunk(NamedTuple):
    id: int
    job_id: UUID
    request_id: str
    status: str
    attempts: int
    backend: str  # name of the connection to the source, with the worker's host and process; "" without a connection
    job_status: str
    job_was: str


def reclaim_batch(*, batch: int) -> list[LostChunk]:
    """Take back up to `batch` chunks whose lease expired. Their slots stay held until `free_slots`."""
    rows = sql.rows(RECLAIM + transitions.SETTLE + LOST, batch=batch, attempts=settings.SLUICE.export_max_attempts)
    return [LostChunk(**row) for row in rows]


def withdraw(chunk_id: int, *, token: int) -> LostChunk | None:
    """End the lease with this token before it expires. Return None if the token is not current.

    The previous holder is fenced off. Its slot stays held until the slot's lease, which is no longer renewed, has
    expired and the call has ended, so there are never more calls than slots.
    """
    row = sql.one(
        WITHDRAW + transitions.SETTLE + LOST,
        chunk=chunk_id,
        token=token,
        attempts=settings.SLUICE.export_max_attempts,
    )
    return LostChunk(**row) if row else None


def reclaim_chunks() -> None:
    """Return chunks with expired leases to the queue, or fail them if they have no attempts left."""
    while lost := reclaim_batch(batch=BATCH):
        metrics.LEASES_EXPIRED.inc(len(lost))
        record_loss("lease_expired", lost)


def record_loss(event: str, lost: list[LostChunk]) -> None:
    """Log and count chunks that were taken back, and the jobs whose status changed with them."""
    for chunk in lost:
        ids = {"request_id": chunk.request_id, "job_id": str(chunk.job_id), "chunk_id": chunk.id}
        log.warning(event, **ids, attempt=chunk.attempts, **({"backend": chunk.backend} if chunk.backend else {}))
        if chunk.status == ChunkStatus.FAILED:
            log.error("chunk_failed", **ids, code=WorkerLost.code)
            metrics.count_failure(WorkerLost.code)
    for job_id, status in {(chunk.job_id, chunk.job_status) for chunk in lost if chunk.job_status != chunk.job_was}:
        metrics.count_job_status(status)
        if status == JobStatus.FAILED:
            log.error("job_failed", job_id=str(job_id), code=WorkerLost.code)


# ---- Slots ----------------------------------------------------------------------------------------------------------


class ExpiredSlot(NamedTuple):
    token: int
    backend: str


EXPIRED_SLOTS = """
SELECT DISTINCT s.token, s.backend FROM exports_slot s
WHERE s.lease_until < clock_timestamp()
  AND NOT EXISTS (SELECT 1 FROM exports_chunk c WHERE c.token = s.token AND c.status = 'running')
"""


def expired_slots() -> list[ExpiredSlot]:
    """Return the slots whose lease has expired and whose chunk no longer runs."""
    return [ExpiredSlot(**row) for row in sql.rows(EXPIRED_SLOTS)]


def free_slots() -> None:
    """Free the slots of lost workers, after ending the queries that may still run under them.

    The query of a suspended worker continues, and another call can start only after that query has ended. While the
    source is unreachable, or does not end the query, the slots stay held.
    """
    expired = expired_slots()
    if not expired:
        return
    try:
        end_calls_and_free(expired)
    except ExportError as error:
        log.warning("slots_not_freed", slots=len(expired), code=error.code, detail=error.detail)


def end_calls_and_free(expired: list[ExpiredSlot]) -> int:
    """End the calls of expired slots, and free the slots whose call has ended.

    Return the number of calls that still run. Raises ExportError, in which case no slot is freed.
    """
    still_running = database.end_calls([slot.backend for slot in expired])
    transitions.free_slots([slot.token for slot in expired if slot.backend not in still_running])
    log.warning("slots_freed", slots=len(expired) - len(still_running), still_calling=len(still_running))
    return len(still_running)
