"""Transitions of claimed chunks: finish, fail, and release. The same statement updates the job's counters.

Each function runs one statement with the fencing token of a claim (see `exports.worker.leases`). The statement does not
change a chunk whose lease was lost.
"""

from collections.abc import Collection
from dataclasses import dataclass, fields
from typing import Any
from uuid import UUID

from django.conf import settings

from config.platform import backoff
from config.platform.db import sql
from exports.core import events
from exports.core.errors import ExportError, StorageRefused
from exports.core.states import Source
from exports.jobs import quotas
from exports.worker.leases import Claim, KnownFile


@dataclass(frozen=True, slots=True, kw_only=True)
class ChunkResult(KnownFile):
    """The file of a finished chunk, and its origin. A snapshot also has the source's error."""

    source: Source
    error_code: str = ""
    error_detail: str = ""
    source_message: str = ""
    pack: int | None = None
    pack_offset: int | None = None
    upload_number: int = 0  # of a new file: see `adoption.Committed`
    content: bytes | None = None  # the bytes of a small file, for the pack of its batch


RESULT_FIELDS = tuple(field.name for field in fields(ChunkResult) if field.name != "content")


@dataclass(frozen=True, slots=True, kw_only=True)
class JobProgress:
    """The state of a job after a transition of its chunks."""

    job_id: UUID
    status: str
    was: str  # the previous status
    total: int
    done: int
    failed: int
    chunks: int  # number of chunks that this transition ended or queued for a retry
    new_rows: int  # sum of the rows in their files
    new_bytes: int  # sum of the sizes of their files
    chunk_ids: Collection[int] = ()  # the chunks that `finish` finished: the leases of the others were lost

    @property
    def all_done(self) -> bool:
        """Whether all chunks are done. True for exactly one transition, because the job's row is locked."""
        return self.done == self.total


# The second part of all transitions: update the job's counters and status, refund quota, and insert events.
# - `done = j.done + …` reads the job's row again under its lock. Without the lock, a job whose last two chunks are
#   finished at the same time could stay running forever. `old` locks the row after the chunks, because the previous
#   status is certain only then.
# - No event is inserted for a chunk that returns to the queue, because none was inserted for its claim.
SETTLE = (
    """
, numbered AS (
    SELECT job_id, id, status, row_number() OVER (PARTITION BY job_id ORDER BY seq) AS nth
    FROM ended WHERE status <> 'pending'
), delta AS (
    SELECT job_id,
           count(*) FILTER (WHERE status <> 'pending') AS chunks,
           count(*) FILTER (WHERE status = 'done') AS done,
           count(*) FILTER (WHERE status = 'failed') AS failed,
           count(*) FILTER (WHERE status = 'retrying') AS retrying,
           count(*) FILTER (WHERE status = 'done' AND source = 'reused') AS reused,
           count(*) FILTER (WHERE status = 'done' AND source = 'snapshot') AS degraded,
           coalesce(sum(rows) FILTER (WHERE status = 'done'), 0) AS rows,
           coalesce(sum(bytes) FILTER (WHERE status = 'done'), 0) AS bytes,
           max(error_code) FILTER (WHERE status = 'failed') AS error_code,
           max(error_detail) FILTER (WHERE status = 'failed') AS error_detail
    FROM ended GROUP BY job_id
), old AS MATERIALIZED (
    SELECT job_id, status FROM exports_jobs
    WHERE job_id IN (SELECT job_id FROM delta)
    ORDER BY job_id FOR UPDATE
), settled AS (
    UPDATE exports_jobs j
    SET done = j.done + d.done, failed = j.failed + d.failed, retrying = j.retrying + d.retrying,
        reused = j.reused + d.reused, degraded = j.degraded + d.degraded,
        rows = j.rows + d.rows, bytes = j.bytes + d.bytes, event_seq = j.event_seq + d.chunks + 2,
        error_code = coalesce(d.error_code, j.error_code), error_detail = coalesce(d.error_detail, j.error_detail),
        status = CASE
            WHEN j.done + d.done + j.failed + d.failed + j.cancelled = j.total AND j.failed + d.failed > 0
                THEN 'failed'
            WHEN j.retrying + d.retrying > 0 THEN 'retrying'
            ELSE 'running' END,
        finished_at = CASE
            WHEN j.done + d.done + j.failed + d.failed + j.cancelled = j.total AND j.failed + d.failed > 0
                THEN clock_timestamp() END
    FROM delta d JOIN old USING (job_id)
    WHERE j.job_id = d.job_id
    RETURNING j.job_id, j.user_id, j.charged_on, j.event_seq, j.status, j.total, j.done, j.failed,
              old.status AS was, d.chunks, d.rows::bigint AS new_rows, d.bytes::bigint AS new_bytes
)
"""
    + quotas.REFUND
    + events.INSERT_CHUNK_EVENTS
)
PROGRESS = "SELECT job_id, status, was, total, done, failed, chunks, new_rows, new_bytes FROM settled"
PROGRESS_OF_MANY = PROGRESS.replace(" FROM", ", ARRAY(SELECT id FROM ended) AS chunk_ids FROM")

# One chunk, or a batch of chunks. The statement for one chunk selects it by ID: with a list, a plan that was prepared
# while the table was small would later scan the whole table.
FINISH_ONE = """
WITH ended AS (
    UPDATE exports_chunk
    SET status = 'done', token = NULL, lease_until = NULL, finished_at = clock_timestamp(),
        source = %(source)s, etag = %(etag)s, sha256 = %(sha256)s, rows = %(rows)s, bytes = %(bytes)s,
        header_bytes = %(header_bytes)s, data_as_of = %(data_as_of)s, error_code = %(error_code)s,
        error_detail = %(error_detail)s, source_message = %(source_message)s, pack = NULL
    WHERE id = %(chunk)s::bigint AND token = %(token)s::bigint AND status = 'running'
    RETURNING *, %(upload_number)s::bigint AS upload_number
)
"""
FINISH_MANY = """
WITH locked AS MATERIALIZED (
    SELECT id FROM exports_chunk WHERE id = ANY(%(chunk)s::bigint[]) ORDER BY id FOR UPDATE
), ended AS (
    UPDATE exports_chunk c
    SET status = 'done', token = NULL, lease_until = NULL, finished_at = clock_timestamp(),
        source = r.source, etag = r.etag, sha256 = r.sha256, rows = r.rows, bytes = r.bytes,
        header_bytes = r.header_bytes, data_as_of = r.data_as_of,
        error_code = r.error_code, error_detail = r.error_detail, source_message = r.source_message,
        pack = r.pack, pack_offset = r.pack_offset
    FROM unnest(%(chunk)s::bigint[], %(token)s::bigint[], %(source)s::text[], %(etag)s::text[],
                %(sha256)s::text[], %(rows)s::bigint[], %(bytes)s::bigint[], %(header_bytes)s::int[],
                %(data_as_of)s::timestamptz[], %(error_code)s::text[], %(error_detail)s::text[],
                %(source_message)s::text[], %(pack)s::bigint[], %(pack_offset)s::int[], %(upload_number)s::bigint[])
         AS r(id, token, source, etag, sha256, rows, bytes, header_bytes, data_as_of, error_code, error_detail,
              source_message, pack, pack_offset, upload_number)
    WHERE c.id = r.id AND c.token = r.token AND c.status = 'running' AND (SELECT count(*) FROM locked) >= 0
    RETURNING c.*, r.upload_number
)
"""
# Only paths of built-in datasets begin with an underscore. Later jobs do not reuse their files.
# Batches of several jobs may have the same paths, so rows of files are locked in one order. A worker may record its
# file after another worker has replaced the object and recorded the new one: the row keeps the larger number.
RECORD_FILE = """
, file AS (
    INSERT INTO exports_file (path, dataset_id, schema_version, key, effective_date, etag, sha256, rows, bytes,
                              header_bytes, data_as_of, upload_number)
    SELECT e.path, e.dataset_id, j.schema_version, e.key, e.effective_date, e.etag, e.sha256, e.rows, e.bytes,
           e.header_bytes, e.data_as_of, e.upload_number
    FROM ended e JOIN exports_jobs j USING (job_id)
    WHERE e.source = 'live' AND e.path !~ '^_'
    ORDER BY e.path
    ON CONFLICT (path) DO UPDATE
    SET dataset_id = EXCLUDED.dataset_id, schema_version = EXCLUDED.schema_version, etag = EXCLUDED.etag,
        sha256 = EXCLUDED.sha256, rows = EXCLUDED.rows, bytes = EXCLUDED.bytes,
        header_bytes = EXCLUDED.header_bytes, data_as_of = EXCLUDED.data_as_of, upload_number = EXCLUDED.upload_number
    WHERE exports_file.upload_number < EXCLUDED.upload_number
)
"""
PREPARED_FINISH = sql.PreparedStatement(FINISH_ONE + RECORD_FILE + SETTLE + PROGRESS)
PREPARED_FINISH_MANY = sql.PreparedStatement(FINISH_MANY + RECORD_FILE + SETTLE + PROGRESS_OF_MANY)


def finish(results: list[tuple[Claim, ChunkResult]]) -> JobProgress | None:
    """Finish chunks of one job, and record their files and the job's counters, in one statement.

    Chunks whose lease was lost are skipped. Return None if all leases were lost.
    """
    values: dict[str, list[Any]] = {name: [getattr(file, name) for _, file in results] for name in RESULT_FIELDS}
    values |= {
        "chunk": [claim.chunk_id for claim, _ in results],
        "token": [claim.token for claim, _ in results],
        "source": [str(file.source) for _, file in results],
    }
    if len(results) == 1:
        row = sql.one(PREPARED_FINISH, **{name: value for name, (value,) in values.items()})
    else:
        row = sql.one(PREPARED_FINISH_MANY, **values)
    return JobProgress(**{"chunk_ids": values["chunk"], **row}) if row else None


FAIL = """
WITH ended AS (
    UPDATE exports_chunk
    SET status = %(status)s, token = NULL, lease_until = NULL, error_code = %(code)s, error_detail = %(detail)s,
        source_message = %(message)s, attempts = greatest(attempts - %(uncounted)s, 0),
        refused_at = CASE WHEN %(refused)s THEN coalesce(refused_at, clock_timestamp()) END,
        available_at = CASE WHEN %(status)s = 'retrying'
                            THEN clock_timestamp() + %(delay)s * interval '1 second' END,
        finished_at = CASE WHEN %(status)s = 'failed' THEN clock_timestamp() END
    WHERE id = %(chunk)s AND token = %(token)s AND status = 'running'
    RETURNING *
)
"""


def fail(claim: Claim, error: ExportError, *, delay: float | None) -> JobProgress | None:
    """Record a failed attempt. The chunk is retried after `delay` seconds, or fails if `delay` is None.

    Return None if the lease was lost.
    """
    row = sql.one(
        FAIL + SETTLE + PROGRESS,
        chunk=claim.chunk_id,
        token=claim.token,
        status="failed" if delay is None else "retrying",
        code=error.code,
        detail=truncated(error.detail),
        message=error.message,
        uncounted=int(waits_for_storage(claim, error)),
        refused=isinstance(error, StorageRefused),
        delay=delay or 0,
    )
    return JobProgress(**row) if row else None


FREE_SLOTS = """
UPDATE exports_slot SET token = NULL, lease_until = NULL, job_id = NULL, chunk_id = NULL, backend = ''
WHERE token = ANY(%(tokens)s) RETURNING id
"""


def free_slots(tokens: list[int]) -> None:
    """Free slots by their tokens. Use this only if no source call runs under these slots."""
    sql.rows(FREE_SLOTS, tokens=tokens)


def delay_after(claim: Claim, error: ExportError) -> float | None:
    """Return the seconds until the next attempt, or None if a retry cannot help or no attempts are left."""
    env = settings.SLUICE
    if waits_for_storage(claim, error):
        return max(env.export_backoff_base_seconds, min(claim.refused_for / 4, env.export_backoff_max_seconds))
    has_retry = error.retryable and claim.attempts < env.export_max_attempts
    return retry_delay(claim.attempts, factor=error.backoff_factor) if has_retry else None


def waits_for_storage(claim: Claim, error: ExportError) -> bool:
    """Return whether the attempt does not count, because the storage currently accepts no writes."""
    return isinstance(error, StorageRefused) and claim.refused_for < settings.SLUICE.export_storage_patience_seconds


def truncated(detail: str) -> str:
    """Truncate a text to the length of the column `error_detail`."""
    return detail[:200]


def retry_delay(attempts: int, *, factor: int = 1) -> float:
    env = settings.SLUICE
    base = env.export_backoff_base_seconds * factor
    return backoff.exponential(attempts, base=base, maximum=max(base, env.export_backoff_max_seconds))


RELEASE = """
WITH locked AS MATERIALIZED (
    SELECT id FROM exports_chunk WHERE id = ANY(%(chunks)s) ORDER BY id FOR UPDATE
), ended AS (
    UPDATE exports_chunk c
    SET status = 'pending', token = NULL, lease_until = NULL, started_at = NULL,
        attempts = greatest(attempts - %(attempt)s, 0), reusable = false
    FROM locked WHERE c.id = locked.id AND c.token = ANY(%(tokens)s) AND c.status = 'running'
    RETURNING c.*
)
"""


def release(claims: list[Claim], *, attempt: int = 1) -> None:
    """Return chunks to the queue. `attempt` is the number of attempts to subtract: 1 if the claim counted one, or 0."""
    sql.rows(
        RELEASE + SETTLE + PROGRESS,
        chunks=[c.chunk_id for c in claims],
        tokens=[c.token for c in claims],
        attempt=attempt,
    )
