"""What the reaper asks and does: chunks and slots of workers that were lost, and what waits for a hint.

Like `exports.worker.transitions`, whose counterpart it is: each function is one statement.
"""

from typing import NamedTuple
from uuid import UUID

from django.conf import settings

from config.platform.db import sql
from exports.worker import transitions


def taking_back(which: str) -> str:
    """Return the statement that takes leases from their holders: of the running chunks that `which` selects and locks.

    Attempts were counted at the claim, so a chunk that kills its worker every time ends here.
    """
    return f"""
WITH lost AS MATERIALIZED (
    {which}
), ended AS (
    UPDATE exports_chunk c
    SET status = CASE WHEN c.attempts >= %(attempts)s THEN 'failed' ELSE 'pending' END,
        token = NULL, lease_until = NULL, started_at = NULL,
        reusable = false,  -- a look that did not end in time is not tried again: the call decides
        error_code = CASE WHEN c.attempts >= %(attempts)s THEN 'EXPORT_WORKER_LOST' ELSE '' END, error_detail = '',
        finished_at = CASE WHEN c.attempts >= %(attempts)s THEN clock_timestamp() END
    FROM lost WHERE c.id = lost.id
    RETURNING c.*
)
"""


RECLAIM = taking_back("""
    SELECT id, token FROM exports_chunk WHERE status = 'running' AND lease_until < statement_timestamp()
    ORDER BY lease_until LIMIT %(batch)s FOR UPDATE SKIP LOCKED
""")
# By a person, before the lease is over. Under the token that they saw: whoever has the chunk by now keeps it.
WITHDRAW = taking_back("""
    SELECT id, token FROM exports_chunk WHERE status = 'running' AND id = %(chunk)s AND token = %(token)s FOR UPDATE
""")
# The slots are still held under the tokens. Chunks that were looked at for reuse have none.
LOST = """
SELECT e.id, e.job_id, j.request_id, e.status, e.attempts, s.status AS job_status, s.was AS job_was,
       coalesce((SELECT max(backend) FROM exports_slot WHERE token = l.token), '') AS backend
FROM ended e JOIN lost l ON l.id = e.id JOIN settled s USING (job_id) JOIN exports_jobs j USING (job_id)
"""


class Lost(NamedTuple):
    id: int
    job_id: UUID
    request_id: str
    status: str
    attempts: int
    backend: str  # of the connection to the source, which names host and process; "" where there was none
    job_status: str
    job_was: str


def reclaim(*, batch: int) -> list[Lost]:
    """Take up to `batch` chunks back whose lease ran out. Their slots stay taken until `free`."""
    rows = sql.rows(
        RECLAIM + transitions.SETTLE + LOST, batch=batch, freed=[], attempts=settings.SLUICE.export_max_attempts
    )
    return [Lost(**row) for row in rows]


def withdraw(chunk_id: int, *, token: int) -> Lost | None:
    """Take a chunk from the holder of this token, whose lease may have time left. None: nobody holds it by this token.

    Who was the holder can write nothing any more. The slot stays taken until its lease, which nobody renews from now
    on, is over and the call was ended: so there are never more calls than slots.
    """
    row = sql.one(
        WITHDRAW + transitions.SETTLE + LOST,
        chunk=chunk_id,
        token=token,
        freed=[],
        attempts=settings.SLUICE.export_max_attempts,
    )
    return Lost(**row) if row else None


EXPIRED_SLOTS = """
SELECT DISTINCT s.token, s.backend FROM exports_slot s
WHERE s.lease_until < clock_timestamp()
  AND NOT EXISTS (SELECT 1 FROM exports_chunk c WHERE c.token = s.token AND c.status = 'running')
"""


def expired_slots() -> list[tuple[int, str]]:
    """Return token and backend of the slots whose holder was lost: its lease is over and its chunk taken back."""
    return [(row["token"], row["backend"]) for row in sql.rows(EXPIRED_SLOTS)]


FREE = """
UPDATE exports_slot SET token = NULL, lease_until = NULL, job_id = NULL, chunk_id = NULL, backend = ''
WHERE token = ANY(%(tokens)s) RETURNING id
"""


def free(tokens: list[int]) -> None:
    """Free slots by their tokens, once no call runs under them any more."""
    sql.rows(FREE, tokens=tokens)


class Waiting(NamedTuple):
    ready: int  # counted up to the number of slots; more does not matter
    reusable: int  # counted up to 1,000
    free_slots: int


WAITING = """
SELECT (SELECT count(*) FROM (
            SELECT 1 FROM exports_dataset d CROSS JOIN LATERAL (
                (SELECT 1 FROM exports_chunk c WHERE c.dataset_id = d.id AND c.status = 'pending' AND NOT c.reusable
                 LIMIT %(slots)s)
                UNION ALL
                (SELECT 1 FROM exports_chunk c WHERE c.dataset_id = d.id AND c.status = 'retrying'
                     AND c.available_at <= statement_timestamp() LIMIT %(slots)s)
            ) chunk LIMIT %(slots)s) ready) AS ready,
       (SELECT count(*) FROM (
            SELECT 1 FROM exports_chunk WHERE status = 'pending' AND reusable LIMIT 1000) reusable) AS reusable,
       (SELECT count(*) FROM exports_slot WHERE dataset_id IS NULL AND number <= %(slots)s AND token IS NULL)
           AS free_slots
"""


def waiting() -> Waiting:
    """Return what could run now, counted no further than it matters."""
    row = sql.one(WAITING, slots=settings.SLUICE.export_db_slots)
    return Waiting(**row) if row else Waiting(0, 0, 0)
