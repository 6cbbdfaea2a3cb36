"""Claims of chunks under a lease and a fencing token.

A worker owns a chunk while the chunk's row has the worker's token. Every statement here and in
`exports.worker.transitions` that writes for a worker has the condition `token = …`. If it changes no row, the worker no
longer owns the chunk. Leases use the database's clock, `clock_timestamp()`: the clocks of hosts differ, and `now()` is
fixed within a transaction. Conditions that use an index have `statement_timestamp()`, because an index cannot be
searched for a volatile value.

All statements lock rows in this order: chunks by their IDs, slots, then the job's row. A claim locks a slot before a
chunk, but with SKIP LOCKED, so it waits for neither. Each function writes with one statement, which is atomic without a
transaction and needs one round trip.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, fields
from datetime import datetime
from uuid import UUID

import orjson
from django.conf import settings

from config.platform.db import sql
from config.platform.heartbeat import LeaseLost
from exports.core import events
from exports.core.planning import Dialect, Pair, Shape


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownFile:
    """The reuse cache's entry for the object at a chunk's path."""

    etag: str
    sha256: str
    rows: int
    bytes: int
    header_bytes: int
    data_as_of: datetime


FILE_FIELDS = tuple(field.name for field in fields(KnownFile))


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """A worker's right to process a chunk, with all data that it needs."""

    chunk_id: int
    token: int
    attempts: int
    job_id: UUID
    request_id: str
    traceparent: str
    dataset: str
    kind: str  # of the dataset
    schema_version: int
    function: tuple[str, str]
    statement_timeout: int
    max_concurrency: int | None  # of the dataset
    allow_writes: bool
    pair: Pair
    path: str
    shape: Shape
    claimed_at: datetime
    known_file: KnownFile | None
    may_adopt: bool  # the job allows reuse
    may_reuse: bool  # the job allows reuse, and the known file has the right dataset and version and is not too old
    may_degrade: bool  # the job accepts an older file if the source fails
    refused_for: float  # seconds since the storage first refused the chunk's file, or 0 if it has not refused it
    started_job: bool  # this claim changed the job's status to running
    has_new_slot: bool  # the claim took a slot that the worker did not hold


# One statement claims a slot and a chunk, or neither.
# - A worker that holds a slot keeps it, under the new token. If the worker also holds a slot of another dataset, that
#   slot keeps the old token. So does the worker's slot if the claim skipped it: another claim whose snapshot shows it
#   as free may have just locked it.
# - All CTEs are MATERIALIZED. If one were inlined, the planner could run a SKIP LOCKED subquery more than once, and
#   lock or update more rows than its LIMIT allows.
# - The next chunk of each dataset is found separately, by an index. So chunks of a dataset without free slots are not
#   scanned, and a claim costs the same with 10 as with 1,000,000 waiting chunks.
# - Due retries and new chunks alternate. Otherwise, thousands of retries would delay all other jobs after an outage of
#   the source, because retries keep their old, smaller ranks.
# - A claim changes the job's row only if it is the job's first claim or the claim of a retrying chunk. Otherwise, every
#   claim would wait for the lock of the job's row.
PICK = """
WITH alternation AS MATERIALIZED (
    SELECT nextval('exports_turn_seq') %% 2 = 0 AS retries_first
), slot AS MATERIALIZED (
    SELECT id, token FROM exports_slot
    WHERE dataset_id IS NULL AND number <= %(slots)s AND (token IS NULL OR token = %(held)s::bigint)
    ORDER BY token, number LIMIT 1 FOR UPDATE SKIP LOCKED
), pick AS MATERIALIZED (
    SELECT slot.id AS slot_id, own.id AS own_slot_id, next.id AS chunk_id, next.job_id, next.attempts,
           next.was_retrying, d.name AS dataset, d.max_concurrency,
           slot.token IS NULL OR own.id IS NOT NULL AND own.token IS NULL AS has_new_slot
    FROM slot
    CROSS JOIN exports_dataset d
    LEFT JOIN LATERAL (
        SELECT s.id, s.token FROM exports_slot s
        WHERE s.dataset_id = d.id AND s.number <= d.max_concurrency
          AND (s.token IS NULL OR s.token = %(held)s::bigint)
        ORDER BY s.token, s.number LIMIT 1 FOR UPDATE SKIP LOCKED
    ) own ON true
    CROSS JOIN LATERAL (
        SELECT * FROM (
            SELECT id, job_id, rank, attempts, true AS was_retrying FROM exports_chunk c
            WHERE c.dataset_id = d.id AND c.status = 'retrying' AND c.available_at <= statement_timestamp()
            ORDER BY c.available_at LIMIT 1 FOR UPDATE SKIP LOCKED
        ) waiting
        UNION ALL
        SELECT * FROM (
            SELECT id, job_id, rank, attempts, false FROM exports_chunk c
            WHERE c.dataset_id = d.id AND c.status = 'pending' AND NOT c.reusable
            ORDER BY c.rank, c.id LIMIT 1 FOR UPDATE SKIP LOCKED
        ) ready
    ) next
    WHERE (d.max_concurrency IS NULL OR own.id IS NOT NULL) AND d.name <> ALL(%(paused)s::text[])
    ORDER BY next.was_retrying = (SELECT retries_first FROM alternation) DESC, next.rank, next.id
    LIMIT 1
)
"""

# More chunks of the same job, if the dataset's chunks take only milliseconds. They share a slot, because they run one
# after another. A batch takes at most its share of the waiting chunks, so that other workers also have work. A chunk
# whose last attempt was lost runs alone, because it may have killed its worker.
# IS NOT TRUE and ORDER BY seq make the planner use the index `exports_chunk_of_status`. Until statistics include a new
# job, it expects few waiting chunks, and would otherwise read all of them by the index `exports_chunk_ready`.
MORE = """
, wanted AS MATERIALIZED (
    SELECT job_id, chunk_id, coalesce((%(sizes)s::jsonb ->> dataset)::int, 1) AS size,
           least(max_concurrency, %(slots)s) AS workers
    FROM pick WHERE NOT was_retrying AND attempts = 0
), share AS MATERIALIZED (
    SELECT least(wanted.size, ceil(waiting.chunks::numeric / wanted.workers)) - 1 AS more
    FROM wanted CROSS JOIN LATERAL (
        SELECT count(*) AS chunks FROM (
            SELECT FROM exports_chunk c
            WHERE c.job_id = wanted.job_id AND c.status = 'pending' AND c.reusable IS NOT TRUE
            ORDER BY c.seq LIMIT least(wanted.size * wanted.workers, %(max_counted)s)
        ) counted
    ) waiting
), more AS MATERIALIZED (
    SELECT id FROM (
        SELECT id FROM exports_chunk c
        WHERE c.job_id = (SELECT job_id FROM wanted) AND c.status = 'pending' AND c.reusable IS NOT TRUE
          AND c.attempts = 0 AND c.id <> (SELECT chunk_id FROM wanted)
        ORDER BY c.seq LIMIT (SELECT greatest(more, 0) FROM share) FOR UPDATE SKIP LOCKED
    ) next LIMIT %(max_chunks)s
)
"""


def take(chunks: str) -> str:
    """Return the CTEs that write one new token to the slot and the chunks.

    `chunks` is the condition that selects chunks `c`. It can use `fence`.
    """
    return f"""
, fence AS MATERIALIZED (
    SELECT nextval('exports_fence_seq') AS token, pick.* FROM pick
), take_slot AS (
    UPDATE exports_slot s
    SET token = fence.token, lease_until = clock_timestamp() + %(lease)s * interval '1 second',
        backend = %(backend)s, chunk_id = fence.chunk_id, job_id = fence.job_id
    FROM fence WHERE s.id IN (fence.slot_id, fence.own_slot_id)
), take_chunk AS (
    UPDATE exports_chunk c
    SET status = 'running', token = fence.token, attempts = c.attempts + 1, available_at = NULL, backend = %(backend)s,
        lease_until = clock_timestamp() + %(lease)s * interval '1 second', started_at = clock_timestamp()
    FROM fence WHERE {chunks}
    RETURNING c.id, c.token, c.attempts, c.job_id, c.dataset_id, c.key, c.effective_date, c.path, c.started_at,
              c.refused_at, fence.was_retrying, fence.has_new_slot
), start_job AS (
    UPDATE exports_jobs j
    SET started_at = coalesce(j.started_at, clock_timestamp()), event_seq = j.event_seq + 1,
        retrying = j.retrying - t.was_retrying::int,
        status = CASE WHEN j.retrying > t.was_retrying::int THEN 'retrying' ELSE 'running' END
    FROM take_chunk t
    WHERE j.job_id = t.job_id AND (j.status = 'pending' OR t.was_retrying)
    RETURNING j.job_id, j.event_seq, j.status
)
"""


CLAIM = PICK + take("c.id = fence.chunk_id")
CLAIM_BATCH = PICK + MORE + take("c.id = ANY(ARRAY(SELECT id FROM more) || fence.chunk_id)")

# Insert an event if the claim changed the job's status to running, and return the data of the claimed chunks.
DESCRIBE = (
    """
, moved AS (
    SELECT job_id, event_seq, status FROM start_job WHERE status = 'running'
)
"""
    + events.INSERT_STATUS_EVENTS
    + """
SELECT t.id, t.token, t.attempts, t.job_id, t.key, t.effective_date, t.path, t.started_at,
       d.name AS dataset, d.kind, d.max_concurrency, coalesce(nullif(j.function, ''), d.function) AS function,
       coalesce(j.statement_timeout, d.statement_timeout) AS statement_timeout, j.allow_writes,
       j.request_id, j.traceparent, j.schema_version, j.format, j.compression, j.dialect, j.columns,
       j.reuse = 'if-present' AS may_adopt,
       j.reuse = 'if-present' AND f.dataset_id = t.dataset_id AND f.schema_version = j.schema_version
           AND (d.reuse_max_age IS NULL OR f.data_as_of > clock_timestamp() - d.reuse_max_age * interval '1 second')
           AS may_reuse,
       j.allow_degraded AS may_degrade,
       EXISTS (SELECT 1 FROM moved) AS started_job, t.has_new_slot,
       coalesce(extract(epoch FROM t.started_at - t.refused_at)::float, 0) AS refused_for,
       f.etag, f.sha256, f.rows, f.bytes, f.header_bytes, f.data_as_of
FROM take_chunk t
JOIN exports_jobs j ON j.job_id = t.job_id
JOIN exports_dataset d ON d.id = t.dataset_id
LEFT JOIN exports_file f ON f.path = t.path
"""
)
PREPARED_CLAIM = sql.PreparedStatement(CLAIM + DESCRIBE)
PREPARED_CLAIM_BATCH = sql.PreparedStatement(CLAIM_BATCH + DESCRIBE)


MAX_BATCH = 32  # chunks in a batch
MAX_COUNTED = 1024  # waiting chunks that a claim counts to calculate the size of its batch


def claim_batch(
    *, backend: str, sizes: Mapping[str, int], paused: Collection[str] = (), held: int | None = None
) -> list[Claim]:
    """Claim the next chunk and a slot, and possibly more chunks of the same job under the same token.

    Return an empty list if no chunk is ready or no slot is free.

    - `backend`: the application_name of the source connection that will run the calls
    - `sizes`: the batch size by dataset, at most MAX_BATCH. It is 1 for datasets that are not listed.
    - `paused`: datasets whose chunks are not claimed
    - `held`: the token of a slot that the worker holds. The worker keeps the slot if nothing is claimed.
    """
    more = {"sizes": orjson.dumps(sizes).decode(), "max_chunks": MAX_BATCH, "max_counted": MAX_COUNTED} if sizes else {}
    rows = sql.rows(
        PREPARED_CLAIM_BATCH if sizes else PREPARED_CLAIM,
        slots=settings.SLUICE.export_db_slots,
        lease=settings.SLUICE.export_lease_seconds,
        backend=backend,
        paused=list(paused),
        held=held,
        **more,
    )
    return sorted((as_claim(row) for row in rows), key=lambda claim: claim.chunk_id)


COUNT_FREE = "SELECT count(*) FROM exports_slot WHERE dataset_id IS NULL AND number <= %(slots)s AND token IS NULL"


def count_free_slots() -> int:
    """Return the number of free slots, without regard to the limits of single datasets."""
    return int(sql.scalar(COUNT_FREE, slots=settings.SLUICE.export_db_slots))


# Checking for a reusable file needs no slot. All chunks of a batch belong to one job, so only one job's row is locked
# when they are finished.
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
    RETURNING c.id, c.token, c.attempts, c.job_id, c.dataset_id, c.key, c.effective_date, c.path, c.started_at,
              c.refused_at, false AS has_new_slot
), start_job AS (
    UPDATE exports_jobs j SET started_at = clock_timestamp(), status = 'running', event_seq = j.event_seq + 1
    WHERE j.job_id = (SELECT job_id FROM head) AND j.status = 'pending'
    RETURNING j.job_id, j.event_seq, j.status
)
"""


# Workers look for reusable files several times a second. Mostly there are none, and planning the claim takes some
# milliseconds.
FIND_REUSABLE = sql.PreparedStatement("""
SELECT id FROM exports_chunk WHERE status = 'pending' AND reusable ORDER BY rank, id LIMIT 1
""")


def claim_reusable(*, batch: int) -> list[Claim]:
    """Claim up to `batch` chunks of one job that may have a reusable file. Takes no slot and counts no attempt."""
    if sql.one(FIND_REUSABLE) is None:
        return []
    rows = sql.rows(CLAIM_REUSABLE + DESCRIBE, batch=batch, lease=settings.SLUICE.export_lease_seconds)
    return [as_claim(row) for row in rows]


# Columns with the same name as a field of Claim.
CLAIM_COLUMNS = (
    *("token", "attempts", "job_id", "request_id", "traceparent", "dataset", "schema_version", "statement_timeout"),
    *("kind", "max_concurrency", "allow_writes"),
    *("path", "may_adopt", "may_degrade", "refused_for", "started_job", "has_new_slot"),
)


def as_claim(row: sql.Row) -> Claim:
    schema, _, name = row["function"].partition(".")
    return Claim(
        **{column: row[column] for column in CLAIM_COLUMNS},
        chunk_id=row["id"],
        function=(schema, name),
        pair=Pair(row["key"], row["effective_date"]),
        shape=Shape(
            format=row["format"],
            compression=row["compression"],
            dialect=Dialect(**orjson.loads(row["dialect"])),
            columns=tuple(row["columns"] or ()),
        ),
        claimed_at=row["started_at"],
        known_file=KnownFile(**{field: row[field] for field in FILE_FIELDS}) if row["etag"] else None,
        may_reuse=bool(row["may_reuse"]),
    )


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
    """Extend the lease to its full duration. Raises LeaseLost if the chunk was cancelled or has another holder."""
    if not sql.one(RENEW, chunk=claim.chunk_id, token=claim.token, lease=settings.SLUICE.export_lease_seconds):
        raise LeaseLost
