"""A million chunks, as after a busy week, for tests of the number of rows that statements read.

90 exports have 10,000 chunks each, and 10,000 exports have 10. Nearly all chunks are done; some have failed or were
cancelled, 30,000 are waiting, and 8 are running. The database server generates the rows, in the states that the product
would write, in half a minute. Tests need `transactional_db`, which deletes them afterward.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, NamedTuple

from django.conf import settings
from django.contrib.auth.models import User
from django.db import connection, transaction
from django.db.models.functions import Now

from exports.models import Chunk, Dataset, Job, Slot
from exports.worker import leases
from exports.worker.leases import Claim
from tests.integration.factories import claim_one

LARGE = 10_000
SMALL = 10
USERS = 100
DATASETS = {"flights": None, "trades": 7, "prices": None}  # the maximum number of concurrent calls of each


class Export(NamedTuple):
    """An export of LARGE chunks: the number in each state, and the hours since its end. All others are pending."""

    name: str
    status: str
    done: int
    failed: int = 0
    cancelled: int = 0
    retrying: int = 0
    hours: int | None = None


EXPORTS = (
    Export("waits", "pending", done=0),
    Export("looks", "running", done=4_000),  # every second remaining chunk may be reused
    Export("runs", "running", done=4_000),
    Export("retries", "retrying", done=2_000, retrying=40),  # half of them are due
    Export("whole", "running", done=LARGE),  # without a receipt yet
    *(Export(f"failed-{n}", "failed", done=9_950, failed=50, hours=3 + 40 * n) for n in range(3)),
    *(Export(f"cancelled-{n}", "cancelled", done=6_000, cancelled=4_000, hours=30 + 40 * n) for n in range(3)),
    *(Export(f"old-{n}", "success", done=LARGE, hours=8 * 24 + n) for n in range(2)),  # to be purged
    *(Export(f"large-{n}", "success", done=LARGE, hours=1 + 2 * n) for n in range(77)),
)
# Each minute, one of the small exports ended: `small-7` ended 7 minutes ago.
SMALL_ONES = 10_000
NOT_SENT = [f"small-{n}" for n in range(1, 6)]  # webhooks have not received their ends yet
UNSWEPT = [f"small-{n}" for n in range(1_441, 1_501)]  # their events are older than a day, and not deleted yet


@dataclass(frozen=True, slots=True, kw_only=True)
class Million:
    """The current claims. `held`: with a slot; the first two are of lost workers. `looked_at`: of reusable chunks."""

    held: list[Claim]
    looked_at: list[Claim]

    def job(self, name: str) -> Job:
        return Job.objects.select_related("dataset").get(request_id=name)


def make(owner: User) -> Million:
    """Create the rows. The owner has the large exports, and a hundredth of the small ones."""
    Slot.objects.provide(count=settings.SLUICE.export_db_slots)
    datasets = [
        Dataset.objects.create(name=name, function=f"data.{name}", base_path=name, max_concurrency=most)
        for name, most in DATASETS.items()
    ]
    others = User.objects.bulk_create(User(username=f"user-{n}", password="!") for n in range(1, USERS))
    values: dict[str, Any] = {
        "users": [owner.pk, *(user.pk for user in others)],
        "datasets": [dataset.pk for dataset in datasets],
        "large": LARGE,
        "small": SMALL,
        "small_ones": SMALL_ONES,
        "not_sent": NOT_SENT,
        "unswept": UNSWEPT,
        **{f"each_{field}": [getattr(export, field) for export in EXPORTS] for field in Export._fields},
    }
    run(JOBS, values)
    run("ANALYZE exports_jobs")
    with transaction.atomic(), without_foreign_keys("exports_chunk", "exports_file", "exports_event"):
        for statement, table in ((CHUNKS, "exports_chunk"), (FILES, "exports_file"), (EVENTS, "exports_event")):
            run(statement, values)
            run(f"ANALYZE {table}")  # without this, the next statement would scan it for every row
    for statement in (RECEIPTS, LINKS, USAGE, WEBHOOKS, DELIVERIES, ATTEMPTS):
        run(statement, values)
    million = Million(held=some_claims(6), looked_at=leases.claim_reusable(batch=2))
    lose(million.held[:2])
    run(f"VACUUM (ANALYZE) {', '.join(TABLES)}")
    return million


def run(statement: str, values: dict[str, Any] | None = None) -> None:
    with connection.cursor() as cursor:
        cursor.execute(statement, values)


@contextmanager
def without_foreign_keys(*tables: str) -> Iterator[None]:
    """Drop the foreign keys of these tables, and add them again, in the open transaction.

    Checking two million of them row by row would take longer than everything else.
    """
    with connection.cursor() as cursor:
        cursor.execute(FOREIGN_KEYS, [list(tables)])
        keys = cursor.fetchall()
    for table, name, _ in keys:
        run(f'ALTER TABLE "{table}" DROP CONSTRAINT "{name}"')
    yield
    for table, name, definition in keys:
        run(f'ALTER TABLE "{table}" ADD CONSTRAINT "{name}" {definition}')


def some_claims(count: int) -> list[Claim]:
    """Claim chunks, each with a slot: retried and new ones alternately."""
    claims = [claim_one(backend=f"worker-{n}") for n in range(count)]
    return [claim for claim in claims if claim]


def lose(claims: list[Claim]) -> None:
    over = Now() - timedelta(minutes=1)
    Chunk.objects.filter(pk__in=[claim.chunk_id for claim in claims]).update(lease_until=over)
    Slot.objects.filter(token__in=[claim.token for claim in claims]).update(lease_until=over)


TABLES = (
    "auth_user", "exports_attempt", "exports_chunk", "exports_dataset", "exports_delivery", "exports_event",
    "exports_file", "exports_jobs", "exports_link", "exports_receipt", "exports_slot", "exports_usage",
    "exports_webhook",
)  # fmt: skip

FOREIGN_KEYS = """
SELECT conrelid::regclass::text, conname, pg_get_constraintdef(oid) FROM pg_constraint
WHERE contype = 'f' AND conrelid::regclass::text = ANY(%s)
"""

# ---- Jobs -----------------------------------------------------------------------------------------------------------

# Rows are in the order of their ends, with active exports last, so that old rows come first, as in production. Event
# numbers go up to `2 + 3 * total`, as if each chunk ended in a separate statement.
JOBS = """
INSERT INTO exports_jobs (job_id, user_id, dataset_id, schema_version, format, compression, delivery, dialect, reuse,
    allow_degraded, request_id, ttl, idempotency_key, fingerprint, charged_on, status, total, duplicates, done, failed,
    cancelled, retrying, reused, degraded, rows, bytes, error_code, error_detail, created_at, started_at, finished_at,
    completion_attempts, event_seq)
WITH wanted AS (
    SELECT number, name, %(large)s AS total, status, done, failed, cancelled, retrying,
        now() - hours * interval '1 hour' AS ended, interval '1 hour' AS took, 1 AS owner
    FROM unnest(%(each_name)s::text[], %(each_status)s::text[], %(each_done)s::int[], %(each_failed)s::int[],
                %(each_cancelled)s::int[], %(each_retrying)s::int[], %(each_hours)s::int[])
        WITH ORDINALITY AS e(name, status, done, failed, cancelled, retrying, hours, number)
    UNION ALL
    SELECT n, 'small-' || n, %(small)s, CASE n %% 101 WHEN 0 THEN 'failed' ELSE 'success' END,
        %(small)s - CASE n %% 101 WHEN 0 THEN 1 ELSE 0 END, CASE n %% 101 WHEN 0 THEN 1 ELSE 0 END, 0, 0,
        now() - n * interval '1 minute', interval '10 seconds', 1 + n %% cardinality(%(users)s::int[])
    FROM generate_series(1, %(small_ones)s) n
)
SELECT md5(name)::uuid, (%(users)s::int[])[owner], (%(datasets)s::bigint[])[(1 + number %% 3)::int], 1, 'csv', 'none',
    'zip', '{}', 'if-present', true, name, 600, CASE total WHEN %(large)s THEN '' ELSE 'key-' || name END,
    repeat('f', 64), coalesce(ended, now())::date, status, total, 0, done, failed, cancelled, retrying, 0, 0,
    3 * done, 60 * done,
    CASE status WHEN 'failed' THEN 'EXPORT_SOURCE_ERROR' ELSE '' END, '', coalesce(ended, now()) - took,
    CASE WHEN status <> 'pending' THEN coalesce(ended, now()) - 0.9 * took END, ended, 0, 2 + 3 * total
FROM wanted ORDER BY ended NULLS LAST
"""

# ---- Large tables ---------------------------------------------------------------------------------------------------

# The state of each chunk follows from its job's counters and its position.
CHUNKS = """
INSERT INTO exports_chunk (job_id, dataset_id, seq, key, effective_date, path, status, rank, reusable, attempts,
    available_at, source, rows, bytes, header_bytes, sha256, etag, data_as_of, error_code, error_detail, started_at,
    finished_at)
SELECT job_id, dataset_id, seq, key, day,
    base_path || to_char(day, '/YYYY/MM/DD/') || key || to_char(day, '_YYYYMMDD') || '.csv', state, seq - done,
    request_id = 'looks' AND state = 'pending' AND seq %% 2 = 0, CASE state WHEN 'pending' THEN 0 ELSE 1 END,
    CASE state WHEN 'retrying' THEN now() + (seq %% 2 * 2 - 1) * interval '10 minutes' END,
    CASE state WHEN 'done' THEN 'live' ELSE '' END, CASE state WHEN 'done' THEN 3 END,
    CASE state WHEN 'done' THEN 60 END, CASE state WHEN 'done' THEN 6 ELSE 0 END,
    CASE state WHEN 'done' THEN repeat('5a', 32) ELSE '' END, CASE state WHEN 'done' THEN repeat('e', 34) ELSE '' END,
    CASE state WHEN 'done' THEN ended END,
    CASE WHEN state IN ('failed', 'retrying') THEN 'EXPORT_SOURCE_ERROR' ELSE '' END, '',
    CASE WHEN state NOT IN ('pending', 'cancelled') THEN ended END,
    CASE WHEN state NOT IN ('pending', 'retrying') THEN ended END
FROM (
    SELECT j.*, seq, coalesce(finished_at, now()) AS ended,
        request_id || '-' || seq %% 100 AS key, date '2024-01-01' + seq / 100 AS day,
        CASE WHEN seq < done THEN 'done'
             WHEN seq < done + failed THEN 'failed'
             WHEN seq < done + failed + cancelled THEN 'cancelled'
             WHEN seq < done + failed + cancelled + retrying THEN 'retrying'
             ELSE 'pending' END AS state
    FROM (
        SELECT j.*, d.base_path FROM exports_jobs j JOIN exports_dataset d ON d.id = j.dataset_id
        ORDER BY j.finished_at NULLS LAST
    ) j
    CROSS JOIN LATERAL generate_series(0, j.total - 1) seq
) c
"""

# Only half of the finished chunks have a row: later exports of the same keys and dates replaced the others.
FILES = """
INSERT INTO exports_file (path, dataset_id, schema_version, key, effective_date, etag, sha256, rows, bytes,
    header_bytes, data_as_of)
SELECT path, dataset_id, 1, key, effective_date, repeat('e', 34), repeat('5a', 32), 3, 60, 6,
    coalesce(data_as_of, now())
FROM exports_chunk WHERE reusable OR (status = 'done' AND seq %% 2 = 0)
"""

# Events of active exports, of exports that ended within a day, and of a few that the next sweep deletes.
EVENTS = """
INSERT INTO exports_event (job_id, seq, kind, status, chunk_id, at, told_at)
WITH recent AS MATERIALIZED (
    SELECT job_id, request_id, status, started_at, finished_at, event_seq FROM exports_jobs
    WHERE finished_at IS NULL OR finished_at > now() - interval '1 day' OR request_id = ANY(%(unswept)s)
)
SELECT c.job_id, 2 + 3 * c.seq, 'chunk', c.status, c.id, coalesce(c.finished_at, c.started_at), NULL::timestamptz
FROM recent r JOIN exports_chunk c ON c.job_id = r.job_id WHERE c.status <> 'pending'
UNION ALL
SELECT job_id, 1, 'status', 'running', NULL, started_at, NULL FROM recent WHERE status <> 'pending'
UNION ALL
SELECT job_id, event_seq, 'status', status, NULL, finished_at,
    CASE WHEN NOT request_id = ANY(%(not_sent)s) THEN finished_at END
FROM recent WHERE finished_at IS NOT NULL
"""

# ---- Outcomes -------------------------------------------------------------------------------------------------------

# Objects of the last half hour still exist, though most of their receipts have expired.
RECEIPTS = """
INSERT INTO exports_receipt (job_id, object_key, etag, checksum, size_bytes, rows, files, degraded, content_type,
    file_name, issued_at, expires_at, deleted_at)
SELECT job_id, '_receipts/' || job_id || '/1/' || request_id || '.zip', repeat('e', 34), repeat('5a', 32), bytes, rows,
    total, false, 'application/zip', request_id || '.zip', finished_at, finished_at + ttl * interval '1 second',
    CASE WHEN finished_at < now() - interval '30 minutes' THEN finished_at + (ttl + 60) * interval '1 second' END
FROM exports_jobs WHERE status = 'success' ORDER BY finished_at
"""
LINKS = """
INSERT INTO exports_link (link_id, receipt_id, created_at, expires_at, used_at)
SELECT gen_random_uuid(), job_id, issued_at, expires_at, issued_at FROM exports_receipt
"""
USAGE = """
INSERT INTO exports_usage (user_id, day, jobs, chunks)
SELECT id, current_date - n, 2, 20 FROM auth_user CROSS JOIN generate_series(0, 30) n
"""

# Five webhooks per user. Every second user has one whose endpoint has failed for days.
WEBHOOKS = """
INSERT INTO exports_webhook (id, user_id, url, events, secret, old_secret, enabled, disabled_reason, failures,
    created_at, updated_at)
SELECT md5('webhook-' || u.id || '-' || n)::uuid, u.id, 'https://receiver.example/' || n,
    '{export.succeeded,export.failed,export.cancelled}', 'whsec_' || repeat('s', 44), '', true, '',
    CASE WHEN n = 5 AND number %% 2 = 0 THEN 7 ELSE 0 END, now() - interval '60 days', now()
FROM unnest(%(users)s::int[]) WITH ORDINALITY AS u(id, number) CROSS JOIN generate_series(1, 5) n
"""

# Deliveries to failing endpoints wait for their next attempt. Those of recent ends are due.
DELIVERIES = """
INSERT INTO exports_delivery (id, webhook_id, job_id, seq, type, body, status, attempts, available_at, created_at,
    finished_at)
SELECT gen_random_uuid(), webhook_id, job_id, event_seq,
    CASE status WHEN 'success' THEN 'export.succeeded' ELSE 'export.' || status END, repeat('x', 600),
    CASE state WHEN 'delivered' THEN 'delivered' ELSE 'pending' END,
    CASE state WHEN 'due' THEN 0 WHEN 'delivered' THEN 1 ELSE 3 END,
    CASE state WHEN 'later' THEN now() + random() * interval '1 day' ELSE ended END, ended,
    CASE state WHEN 'delivered' THEN ended END
FROM (
    SELECT w.id AS webhook_id, j.job_id, j.event_seq, j.status, j.finished_at AS ended,
        CASE WHEN w.failures > 0 AND j.finished_at > now() - interval '3 days' THEN 'later'
             WHEN j.finished_at > now() - interval '30 minutes' THEN 'due'
             ELSE 'delivered' END AS state
    FROM exports_jobs j JOIN exports_webhook w ON w.user_id = j.user_id
    WHERE j.finished_at IS NOT NULL AND NOT j.request_id = ANY(%(not_sent)s)
    ORDER BY j.finished_at
) d
"""
ATTEMPTS = """
INSERT INTO exports_attempt (delivery_id, at, status_code, error, duration_ms)
SELECT id, created_at, 200, '', 40 FROM exports_delivery WHERE attempts > 0
"""
