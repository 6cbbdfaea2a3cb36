"""Claims and outcomes of chunks: the SQL that makes the rest safe.

A worker owns a chunk while the chunk's row carries the worker's fencing token. Every statement below that writes
an outcome says `token = …`; when it changes no row, somebody else owns the chunk and nothing was written. Leases
use the database's clock, `clock_timestamp()`, never a worker's: hosts disagree about the time, and `now()` stands
still inside a transaction. Where an index finds what is due it is `statement_timestamp()`: no index can be searched
for a value that changes on the way.

Lock order, everywhere: chunks, slots, then the job's row. A claim takes a slot before a chunk, and waits for neither:
SKIP LOCKED. But it may keep the lock of a row that was free in its snapshot only, while it waits for the job. Each
function here is one statement, so it is atomic without a transaction around it, and costs one round trip.
"""

import random
from dataclasses import dataclass, fields
from datetime import datetime
from uuid import UUID

import orjson
from django.conf import settings

from exports import events, quotas, sql
from exports.errors import ExportError, LeaseLost
from exports.planning import Dialect, Pair, Shape
from exports.states import Source


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownFile:
    """What the reuse cache says about the object at a chunk's path."""

    etag: str
    sha256: str
    rows: int
    bytes: int
    header_bytes: int
    data_as_of: datetime


FILE_FIELDS = tuple(field.name for field in fields(KnownFile))


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """The right to work on one chunk, and all that the work needs to know."""

    chunk_id: int
    token: int
    attempts: int
    job_id: UUID
    request_id: str
    traceparent: str
    dataset: str
    schema_version: int
    function: tuple[str, str]
    statement_timeout: int
    pair: Pair
    path: str
    shape: Shape
    claimed_at: datetime
    known_file: KnownFile | None
    may_adopt: bool  # the job asked for reuse
    may_reuse: bool  # and the known file is of the right version and not too old
    may_degrade: bool  # the job takes the known file, of the right version, when the source fails
    began: bool  # with this claim the job, which had not begun or was retrying, became running


@dataclass(frozen=True, slots=True, kw_only=True)
class Result(KnownFile):
    """The file that a chunk ends with, and where its bytes came from. A snapshot says what stopped the source."""

    source: Source
    error_code: str = ""
    error_detail: str = ""


RESULT_FIELDS = tuple(field.name for field in fields(Result))


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """The job right after an outcome was written."""

    job_id: UUID
    status: str
    was: str  # the status before
    total: int
    done: int
    failed: int
    chunks: int  # that this outcome ended, or left waiting; with the sums of their files
    new_rows: int
    new_bytes: int

    @property
    def all_done(self) -> bool:
        """Whether this outcome made the job ready to complete. Exactly one outcome sees it: the job row is locked."""
        return self.done == self.total


# ---- Claim ----------------------------------------------------------------------------------------------------------

# One statement takes a slot and a chunk, or neither.
# - Every CTE is MATERIALIZED: inlined, the planner may run a SKIP LOCKED sub-select more than once and lock or
#   update more rows than its LIMIT says.
# - The chunk is looked for in each dataset apart, by index, so that thousands of waiting chunks of a dataset whose
#   own slots are taken are never walked over; a claim costs the same with 10 and with 1,000,000 chunks waiting.
# - A retry whose time has come and a chunk that is `ready` are taken in turns: retries keep their old, smaller ranks,
#   and thousands of them, after the source was away, would hold up every other job.
# - The counters of the job are touched only at its first claim and when a retrying chunk runs again, or every claim
#   would queue for the job's row.
CLAIM = """
WITH turn AS MATERIALIZED (
    SELECT nextval('exports_turn_seq') %% 2 = 0 AS retries
), slot AS MATERIALIZED (
    SELECT id FROM exports_slot
    WHERE dataset_id IS NULL AND number <= %(slots)s AND token IS NULL
    ORDER BY number LIMIT 1 FOR UPDATE SKIP LOCKED
), pick AS MATERIALIZED (
    SELECT slot.id AS slot_id, own.id AS own_slot_id, next.id AS chunk_id, next.was_retrying
    FROM slot
    CROSS JOIN exports_dataset d
    LEFT JOIN LATERAL (
        SELECT s.id FROM exports_slot s
        WHERE s.dataset_id = d.id AND s.number <= d.max_concurrency AND s.token IS NULL
        ORDER BY s.number LIMIT 1 FOR UPDATE SKIP LOCKED
    ) own ON true
    CROSS JOIN LATERAL (
        SELECT * FROM (
            SELECT id, rank, true AS was_retrying FROM exports_chunk c
            WHERE c.dataset_id = d.id AND c.status = 'retrying' AND c.available_at <= statement_timestamp()
            ORDER BY c.available_at LIMIT 1 FOR UPDATE SKIP LOCKED
        ) waiting
        UNION ALL
        SELECT * FROM (
            SELECT id, rank, false FROM exports_chunk c
            WHERE c.dataset_id = d.id AND c.status = 'pending' AND NOT c.reusable
            ORDER BY c.rank, c.id LIMIT 1 FOR UPDATE SKIP LOCKED
        ) ready
    ) next
    WHERE d.max_concurrency IS NULL OR own.id IS NOT NULL
    ORDER BY next.was_retrying = (SELECT retries FROM turn) DESC, next.rank, next.id
    LIMIT 1
), fence AS MATERIALIZED (
    SELECT nextval('exports_fence_seq') AS token, pick.* FROM pick
), take_slot AS (
    UPDATE exports_slot s
    SET token = fence.token, lease_until = clock_timestamp() + %(lease)s * interval '1 second',
        backend = %(backend)s, chunk_id = fence.chunk_id,
        job_id = (SELECT job_id FROM exports_chunk WHERE id = fence.chunk_id)
    FROM fence WHERE s.id IN (fence.slot_id, fence.own_slot_id)
), take_chunk AS (
    UPDATE exports_chunk c
    SET status = 'running', token = fence.token, attempts = c.attempts + 1, available_at = NULL,
        lease_until = clock_timestamp() + %(lease)s * interval '1 second', started_at = clock_timestamp()
    FROM fence WHERE c.id = fence.chunk_id
    RETURNING c.id, c.token, c.attempts, c.job_id, c.dataset_id, c.key, c.effective_date, c.path, c.started_at,
              fence.was_retrying
), start_job AS (
    UPDATE exports_jobs j
    SET started_at = coalesce(j.started_at, clock_timestamp()), event_seq = j.event_seq + 1,
        retrying = j.retrying - CASE WHEN t.was_retrying THEN 1 ELSE 0 END,
        status = CASE WHEN j.retrying - CASE WHEN t.was_retrying THEN 1 ELSE 0 END > 0
                      THEN 'retrying' ELSE 'running' END
    FROM take_chunk t
    WHERE j.job_id = t.job_id AND (j.status = 'pending' OR t.was_retrying)
    RETURNING j.job_id, j.event_seq, j.status
)
"""

# Whoever moves a job to running with a claim tells so: before, it was pending or retrying.
# Then what a claimed chunk needs to know, joined in the same round trip.
DESCRIBE = (
    """
, moved AS (
    SELECT job_id, event_seq, status FROM start_job WHERE status = 'running'
)
"""
    + events.MOVED
    + """
SELECT t.id, t.token, t.attempts, t.job_id, t.key, t.effective_date, t.path, t.started_at,
       d.name AS dataset, d.function, d.statement_timeout,
       j.request_id, j.traceparent, j.schema_version, j.format, j.compression, j.dialect,
       j.reuse = 'if-present' AS may_adopt,
       j.reuse = 'if-present' AND f.schema_version = j.schema_version
           AND (d.reuse_max_age IS NULL OR f.data_as_of > clock_timestamp() - d.reuse_max_age * interval '1 second')
           AS may_reuse,
       j.allow_degraded AND f.schema_version = j.schema_version AS may_degrade,
       EXISTS (SELECT 1 FROM moved) AS began,
       f.etag, f.sha256, f.rows, f.bytes, f.header_bytes, f.data_as_of
FROM take_chunk t
JOIN exports_jobs j ON j.job_id = t.job_id
JOIN exports_dataset d ON d.id = t.dataset_id
LEFT JOIN exports_file f ON f.path = t.path
"""
)
HOT_CLAIM = sql.Hot(CLAIM + DESCRIBE)


def claim(*, backend: str) -> Claim | None:
    """Take the next chunk and a slot for its call, or return None: nothing is ready, or every slot is taken.

    `backend` is the application_name of the source connection that the call will run on.
    """
    row = sql.one(
        HOT_CLAIM,
        slots=settings.SLUICE.export_db_slots,
        lease=settings.SLUICE.export_lease_seconds,
        backend=backend,
    )
    return as_claim(row) if row else None


# Chunks that may need no call need no slot either. A batch is of one job, so that finishing it locks one job row.
CLAIM_REUSABLE = """
WITH head AS MATERIALIZED (
    SELECT job_id FROM exports_chunk WHERE status = 'pending' AND reusable
    ORDER BY rank, id LIMIT 1 FOR UPDATE SKIP LOCKED
), pick AS MATERIALIZED (
    SELECT id FROM exports_chunk
    WHERE job_id = (SELECT job_id FROM head) AND status = 'pending' AND reusable
    ORDER BY seq LIMIT %(batch)s FOR UPDATE SKIP LOCKED
), take_chunk AS (
    UPDATE exports_chunk c
    SET status = 'running', token = nextval('exports_fence_seq'), started_at = clock_timestamp(),
        lease_until = clock_timestamp() + %(lease)s * interval '1 second'
    FROM pick WHERE c.id = pick.id
    RETURNING c.id, c.token, c.attempts, c.job_id, c.dataset_id, c.key, c.effective_date, c.path, c.started_at
), start_job AS (
    UPDATE exports_jobs j SET started_at = clock_timestamp(), status = 'running', event_seq = j.event_seq + 1
    WHERE j.job_id = (SELECT job_id FROM head) AND j.status = 'pending'
    RETURNING j.job_id, j.event_seq, j.status
)
"""


def claim_reusable(*, batch: int) -> list[Claim]:
    """Take up to `batch` chunks of one job for which a file may be there already. No slot, no attempt."""
    rows = sql.rows(CLAIM_REUSABLE + DESCRIBE, batch=batch, lease=settings.SLUICE.export_lease_seconds)
    return [as_claim(row) for row in rows]


def as_claim(row: sql.Row) -> Claim:
    schema, _, name = row["function"].partition(".")
    return Claim(
        chunk_id=row["id"],
        token=row["token"],
        attempts=row["attempts"],
        job_id=row["job_id"],
        request_id=row["request_id"],
        traceparent=row["traceparent"],
        dataset=row["dataset"],
        schema_version=row["schema_version"],
        function=(schema, name),
        statement_timeout=row["statement_timeout"],
        pair=Pair(row["key"], row["effective_date"]),
        path=row["path"],
        shape=Shape(
            format=row["format"], compression=row["compression"], dialect=Dialect(**orjson.loads(row["dialect"]))
        ),
        claimed_at=row["started_at"],
        known_file=KnownFile(**{field: row[field] for field in FILE_FIELDS}) if row["etag"] else None,
        may_adopt=row["may_adopt"],
        may_reuse=bool(row["may_reuse"]),
        may_degrade=bool(row["may_degrade"]),
        began=row["began"],
    )


# ---- While it is worked on ------------------------------------------------------------------------------------------

RENEW = """
WITH ours AS (
    UPDATE exports_chunk SET lease_until = clock_timestamp() + %(lease)s * interval '1 second'
    WHERE id = %(chunk)s AND token = %(token)s AND status = 'running' RETURNING id
), slots AS (
    UPDATE exports_slot SET lease_until = clock_timestamp() + %(lease)s * interval '1 second'
    WHERE token = %(token)s AND EXISTS (SELECT 1 FROM ours)
)
SELECT id FROM ours
"""


def renew(claim: Claim) -> None:
    """Move the lease on by its full length.

    Raises LeaseLost when the chunk is no longer ours: taken over, or cancelled.
    """
    if not sql.one(RENEW, chunk=claim.chunk_id, token=claim.token, lease=settings.SLUICE.export_lease_seconds):
        raise LeaseLost


# ---- Outcomes -------------------------------------------------------------------------------------------------------

# Every outcome ends with this: free the slot, count in the job, settle the job's own state, refund, tell.
# - The slot is freed by its token alone, also when the chunk was taken from us: we are alive and our call has ended.
#   After the chunks and before the job: "(SELECT count(*) …) >= 0" says so to the planner, and nothing else.
# - `done = j.done + …` re-reads the row under its lock. "Is there a chunk left?" asked without that lock leaves a
#   job running for ever when two transactions finish its last two chunks at once. `old` takes that lock first, after
#   the chunks', because what the status was is known only then.
# - A chunk that goes back into the queue is no news: that it was claimed was none either.
SETTLE = (
    """
, free AS (
    UPDATE exports_slot SET token = NULL, lease_until = NULL, job_id = NULL, chunk_id = NULL, backend = ''
    WHERE token = ANY(%(freed)s::bigint[]) AND (SELECT count(*) FROM ended) >= 0
    RETURNING id
), numbered AS (
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
           count(*) FILTER (WHERE charged AND (status = 'failed' OR (status = 'done' AND source = 'reused'))) AS refund,
           coalesce(sum(rows) FILTER (WHERE status = 'done'), 0) AS rows,
           coalesce(sum(bytes) FILTER (WHERE status = 'done'), 0) AS bytes,
           max(error_code) FILTER (WHERE status = 'failed') AS error_code,
           max(error_detail) FILTER (WHERE status = 'failed') AS error_detail
    FROM ended GROUP BY job_id
), old AS MATERIALIZED (
    SELECT job_id, status FROM exports_jobs
    WHERE job_id IN (SELECT job_id FROM delta) AND (SELECT count(*) FROM free) >= 0
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
    FROM delta d JOIN old ON old.job_id = d.job_id
    WHERE j.job_id = d.job_id
    RETURNING j.job_id, j.user_id, j.charged_on, j.event_seq, j.status, j.total, j.done, j.failed,
              old.status AS was, d.chunks, d.refund, d.rows::bigint AS new_rows, d.bytes::bigint AS new_bytes
)
"""
    + quotas.REFUND
    + events.TOLD
)
PROGRESS = "SELECT job_id, status, was, total, done, failed, chunks, new_rows, new_bytes FROM settled"

# Chunks end one by one, or as a batch of those that needed no call. One is found by its id: a plan made for a list
# when the table was small would walk over all of it later.
FINISH_ONE = """
WITH ended AS (
    UPDATE exports_chunk c
    SET status = 'done', token = NULL, lease_until = NULL, finished_at = clock_timestamp(),
        source = %(source)s, etag = %(etag)s, sha256 = %(sha256)s, rows = %(rows)s, bytes = %(bytes)s,
        header_bytes = %(header_bytes)s, data_as_of = %(data_as_of)s, error_code = %(error_code)s,
        error_detail = %(error_detail)s
    WHERE c.id = %(chunk)s::bigint AND c.token = %(token)s::bigint AND c.status = 'running'
    RETURNING c.*
)
"""
FINISH_MANY = """
WITH ended AS (
    UPDATE exports_chunk c
    SET status = 'done', token = NULL, lease_until = NULL, finished_at = clock_timestamp(),
        source = r.source, etag = r.etag, sha256 = r.sha256, rows = r.rows, bytes = r.bytes,
        header_bytes = r.header_bytes, data_as_of = r.data_as_of,
        error_code = r.error_code, error_detail = r.error_detail
    FROM unnest(%(chunks)s::bigint[], %(tokens)s::bigint[], %(sources)s::text[], %(etags)s::text[],
                %(sha256s)s::text[], %(rows)s::bigint[], %(bytes)s::bigint[], %(header_bytes)s::int[],
                %(data_as_of)s::timestamptz[], %(error_codes)s::text[], %(error_details)s::text[])
         AS r(id, token, source, etag, sha256, rows, bytes, header_bytes, data_as_of, error_code, error_detail)
    WHERE c.id = r.id AND c.token = r.token AND c.status = 'running'
    RETURNING c.*
)
"""
VOUCH = """
, vouch AS (
    INSERT INTO exports_file (path, dataset_id, schema_version, key, effective_date, etag, sha256, rows, bytes,
                              header_bytes, data_as_of)
    SELECT e.path, e.dataset_id, j.schema_version, e.key, e.effective_date, e.etag, e.sha256, e.rows, e.bytes,
           e.header_bytes, e.data_as_of
    FROM ended e JOIN exports_jobs j ON j.job_id = e.job_id
    WHERE e.source = 'live'
    ON CONFLICT (path) DO UPDATE
    SET dataset_id = EXCLUDED.dataset_id, schema_version = EXCLUDED.schema_version, etag = EXCLUDED.etag,
        sha256 = EXCLUDED.sha256, rows = EXCLUDED.rows, bytes = EXCLUDED.bytes,
        header_bytes = EXCLUDED.header_bytes, data_as_of = EXCLUDED.data_as_of
)
"""
HOT_FINISH = sql.Hot(FINISH_ONE + VOUCH + SETTLE + PROGRESS)


def finish(results: list[tuple[Claim, Result]], *, keep_slots: bool = False) -> Progress | None:
    """End chunks of one job as done: rows, files, slots and the job's counters in one statement.

    Claims that were lost meanwhile are left out. Returns None when all of them were. Slots are kept where a call may
    run on: once their lease is over the reaper ends it, and frees them.
    """
    claims = [claim for claim, _ in results]
    files = [result for _, result in results]
    freed = [] if keep_slots else [c.token for c in claims]
    if len(results) == 1:
        file = {name: getattr(files[0], name) for name in RESULT_FIELDS}
        file["source"] = str(files[0].source)
        row = sql.one(HOT_FINISH, chunk=claims[0].chunk_id, token=claims[0].token, freed=freed, **file)
        return Progress(**row) if row else None
    row = sql.one(
        FINISH_MANY + VOUCH + SETTLE + PROGRESS,
        chunks=[c.chunk_id for c in claims],
        tokens=[c.token for c in claims],
        freed=freed,
        sources=[str(f.source) for f in files],
        etags=[f.etag for f in files],
        sha256s=[f.sha256 for f in files],
        rows=[f.rows for f in files],
        bytes=[f.bytes for f in files],
        header_bytes=[f.header_bytes for f in files],
        data_as_of=[f.data_as_of for f in files],
        error_codes=[f.error_code for f in files],
        error_details=[f.error_detail for f in files],
    )
    return Progress(**row) if row else None


FAIL = """
WITH ended AS (
    UPDATE exports_chunk
    SET status = %(status)s, token = NULL, lease_until = NULL, error_code = %(code)s, error_detail = %(detail)s,
        available_at = CASE WHEN %(status)s = 'retrying'
                            THEN clock_timestamp() + %(delay)s * interval '1 second' END,
        finished_at = CASE WHEN %(status)s = 'failed' THEN clock_timestamp() END
    WHERE id = %(chunk)s AND token = %(token)s AND status = 'running'
    RETURNING *
)
"""


def fail(claim: Claim, error: ExportError, *, delay: float | None, keep_slot: bool = False) -> Progress | None:
    """Write down that an attempt failed: RETRYING with `delay` seconds to the next one, or FAILED for good.

    Returns None when the claim was lost. The slot is kept where the call may run on, as in `finish`.
    """
    row = sql.one(
        FAIL + SETTLE + PROGRESS,
        chunk=claim.chunk_id,
        token=claim.token,
        freed=[] if keep_slot else [claim.token],
        status="failed" if delay is None else "retrying",
        code=error.code,
        detail=shortened(error.detail),
        delay=delay or 0,
    )
    return Progress(**row) if row else None


def delay_after(claim: Claim, error: ExportError) -> float | None:
    """Return the seconds before the next attempt, or None when there is none: it cannot help, or they are used up."""
    again = error.retryable and claim.attempts < settings.SLUICE.export_max_attempts
    return backoff(claim.attempts) if again else None


def shortened(detail: str) -> str:
    """Return as much as `error_detail` of a chunk or a job holds."""
    return detail[:200]


def backoff(attempts: int) -> float:
    """Return the seconds before the next attempt: exponential, with full jitter in its upper half."""
    env = settings.SLUICE
    ceiling: float = min(env.export_backoff_max_seconds, env.export_backoff_base_seconds * 2 ** (attempts - 1))
    return ceiling * random.uniform(0.5, 1)  # noqa: S311 - spreading load, not secrecy


RELEASE = """
WITH ended AS (
    UPDATE exports_chunk
    SET status = 'pending', token = NULL, lease_until = NULL, started_at = NULL,
        attempts = greatest(attempts - %(attempt)s, 0), reusable = false
    WHERE id = ANY(%(chunks)s) AND token = ANY(%(tokens)s) AND status = 'running'
    RETURNING *
)
"""


def release(claims: list[Claim], *, attempt: int = 1, keep_slot: bool = False) -> None:
    """Give chunks back, to be claimed again at once, and take back the `attempt` that the claim counted.

    The slot is kept where the call may run on, as in `finish`.
    """
    sql.rows(
        RELEASE + SETTLE + PROGRESS,
        chunks=[c.chunk_id for c in claims],
        tokens=[c.token for c in claims],
        freed=[] if keep_slot else [c.token for c in claims],
        attempt=attempt,
    )
