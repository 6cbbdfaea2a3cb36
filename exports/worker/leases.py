"""Claims of chunks under a lease and a fencing token.

A worker owns a chunk while the chunk's row has the worker's token. Every statement here and in
`exports.worker.transitions` that writes for a worker has the condition `token = …`; when it changes no row, another
worker owns the chunk. Leases use the database's clock, `clock_timestamp()`: the clocks of hosts differ, and `now()` is
fixed within a transaction. Conditions that use an index have `statement_timestamp()`, because an index cannot be
searched for a volatile value.

Lock order, everywhere: chunks by their ids, slots, then the job's row. A claim locks a slot before a chunk, but with
SKIP LOCKED, so it waits for neither. Each function is one statement: atomic without a transaction, and one round trip.
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
    """The reuse cache's record of the object at a chunk's path."""

    etag: str
    sha256: str
    rows: int
    bytes: int
    header_bytes: int
    data_as_of: datetime


FILE_FIELDS = tuple(field.name for field in fields(KnownFile))


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """The right to work on one chunk, with all data that the work needs."""

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
    delivery: str
    pair: Pair
    path: str
    shape: Shape
    claimed_at: datetime
    known_file: KnownFile | None
    may_adopt: bool  # the job requests reuse
    may_reuse: bool  # and the known file has the right dataset and version and is not too old
    may_degrade: bool  # the job accepts the known file, of the right dataset and version, when the source fails
    refused_for: float  # seconds since the storage first refused the chunk's file; 0 if it did not
    started_job: bool  # this claim moved the job from pending or retrying to running


# One statement takes a slot and a chunk, or neither.
# - A worker that holds a slot takes it again, under the new token. A slot that it holds for another dataset keeps the
#   old token.
# - Every CTE is MATERIALIZED: if it were inlined, the planner might run a SKIP LOCKED sub-select more than once, and
#   lock or update more rows than its LIMIT.
# - The next chunk is searched for in each dataset separately, by index. So the waiting chunks of a dataset whose own
#   slots are taken are never scanned, and a claim costs the same with 10 and with 1,000,000 waiting chunks.
# - Due retries and new chunks alternate: retries keep their old, smaller ranks, and after an outage of the source
#   thousands of them would delay every other job.
# - The job's counters are changed only by its first claim and when a retrying chunk runs again. Otherwise, every claim
#   would wait for the lock of the job's row.
PICK = """
WITH alternation AS MATERIALIZED (
    SELECT nextval('exports_turn_seq') %% 2 = 0 AS retries_first
), slot AS MATERIALIZED (
    SELECT id FROM exports_slot
    WHERE dataset_id IS NULL AND number <= %(slots)s AND (token IS NULL OR token = %(held)s::bigint)
    ORDER BY token, number LIMIT 1 FOR UPDATE SKIP LOCKED
), pick AS MATERIALIZED (
    SELECT slot.id AS slot_id, own.id AS own_slot_id, next.id AS chunk_id, next.job_id, next.attempts,
           next.was_retrying, d.name AS dataset, d.max_concurrency
    FROM slot
    CROSS JOIN exports_dataset d
    LEFT JOIN LATERAL (
        SELECT s.id FROM exports_slot s
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

# More chunks of the same job, if the dataset's chunks take milliseconds. They run one after the other, so they share a
# slot. A batch takes at most its share of the waiting chunks, so that other workers have work too. A chunk whose
# attempt was lost may have killed its worker, and runs alone.
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
            WHERE c.job_id = wanted.job_id AND c.status = 'pending' AND NOT c.reusable
            LIMIT least(wanted.size * wanted.workers, %(max_counted)s)
        ) counted
    ) waiting
), more AS MATERIALIZED (
    SELECT id FROM (
        SELECT id FROM exports_chunk c
        WHERE c.job_id = (SELECT job_id FROM wanted) AND c.status = 'pending' AND NOT c.reusable AND c.attempts = 0
          AND c.id <> (SELECT chunk_id FROM wanted)
        ORDER BY c.seq LIMIT (SELECT greatest(more, 0) FROM share) FOR UPDATE SKIP LOCKED
    ) next LIMIT %(max_chunks)s
)
"""


def take(chunks: str) -> str:
    """Return the CTEs that give the slot and some chunks the same token. `chunks`: a condition on `c` and `fence`."""
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
              c.refused_at, fence.was_retrying
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


CLAIM = PICK + take("c.id = fence.chunk_id")
CLAIM_BATCH = PICK + MORE + take("c.id = ANY(ARRAY(SELECT id FROM more) || fence.chunk_id)")

# Insert an event if the claim moved the job to running, and return the data of the claimed chunks.
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
       j.request_id, j.traceparent, j.schema_version, j.format, j.compression, j.dialect, j.columns, j.delivery,
       j.reuse = 'if-present' AS may_adopt,
       j.reuse = 'if-present' AND f.dataset_id = t.dataset_id AND f.schema_version = j.schema_version
           AND (d.reuse_max_age IS NULL OR f.data_as_of > clock_timestamp() - d.reuse_max_age * interval '1 second')
           AS may_reuse,
       j.allow_degraded AND f.dataset_id = t.dataset_id AND f.schema_version = j.schema_version AS may_degrade,
       EXISTS (SELECT 1 FROM moved) AS started_job,
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


MAX_BATCH = 32  # chunks of a batch
MAX_COUNTED = 1024  # waiting chunks that a claim counts to find its share


def claim_batch(
    *, backend: str, sizes: Mapping[str, int], paused: Collection[str] = (), held: int | None = None
) -> list[Claim]:
    """Claim the next chunk and a slot, and more chunks of the same job under the same token.

    Return no claims if no chunk is ready or no slot is free. `backend` is the application_name of the source connection
    that will run the calls. `sizes`: the number of chunks to claim at once by dataset, at most MAX_BATCH; 1 for other
    datasets. `paused`: datasets without claims. `held`: the token of a slot that the worker has, which it keeps if
    nothing is claimed.
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


SLOTS_LEFT = "SELECT count(*) FROM exports_slot WHERE dataset_id IS NULL AND number <= %(slots)s AND token IS NULL"


def slots_left() -> int:
    """Return the number of free slots. Datasets may have lower limits."""
    return int(sql.scalar(SLOTS_LEFT, slots=settings.SLUICE.export_db_slots))


# Chunks that may be reused need no slot. A batch has chunks of one job, so that finishing it locks one job's row.
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
              c.refused_at
), start_job AS (
    UPDATE exports_jobs j SET started_at = clock_timestamp(), status = 'running', event_seq = j.event_seq + 1
    WHERE j.job_id = (SELECT job_id FROM head) AND j.status = 'pending'
    RETURNING j.job_id, j.event_seq, j.status
)
"""


def claim_reusable(*, batch: int) -> list[Claim]:
    """Claim up to `batch` chunks of one job that may have a reusable file. This takes no slot and counts no attempt."""
    rows = sql.rows(CLAIM_REUSABLE + DESCRIBE, batch=batch, lease=settings.SLUICE.export_lease_seconds)
    return [as_claim(row) for row in rows]


# Columns that are fields of a Claim by the same name.
CLAIM_COLUMNS = (
    *("token", "attempts", "job_id", "request_id", "traceparent", "dataset", "schema_version", "statement_timeout"),
    *("kind", "max_concurrency", "allow_writes", "delivery"),
    *("path", "may_adopt", "refused_for", "started_job"),
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
        may_degrade=bool(row["may_degrade"]),
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
    """Extend the lease to its full length. Raises LeaseLost if the chunk was taken over or cancelled."""
    if not sql.one(RENEW, chunk=claim.chunk_id, token=claim.token, lease=settings.SLUICE.export_lease_seconds):
        raise LeaseLost
