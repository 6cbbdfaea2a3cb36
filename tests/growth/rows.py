"""Rows of installations of different sizes, created with SQL.

The rows that pages show, workers claim, and batches delete are the same in each size: recent, failed, and waiting
exports. Only the number of other rows grows. A statement that reads more in a larger installation therefore reads rows
that it does not need. The rare rows are the oldest, and one user owns half of all rows.
"""

from dataclasses import dataclass

from django.conf import settings
from django.contrib.admin.models import LogEntry
from django.contrib.auth.models import User
from django.contrib.contenttypes.models import ContentType
from django.db import connection, transaction

from exports.models import Dataset, Job, Slot, Webhook
from rules.models import Rule
from tests.integration.etl_factories import make_rule
from tests.integration.million import run, without_foreign_keys

SMALL = 3  # chunks of a small export
LARGE_EXPORTS = 40  # number of large exports
DETAIL = 10_000  # chunks of one export, whose pages are measured
RECENT = 2_000  # exports and documents of the last day


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """The number of exports and of documents. Chunks and events are each about five times as many."""

    jobs: int

    @property
    def large(self) -> int:
        """Return the number of chunks of a large export."""
        return self.jobs // 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Rows:
    alice: User
    staff: User
    rule: Rule
    hook: Webhook
    quiet: Webhook

    def job(self, name: str) -> Job:
        return Job.objects.select_related("dataset").get(request_id=name)


def make(size: Size, *, alice: User, staff: User) -> Rows:
    """Create the rows, then vacuum and analyze the tables as autovacuum does."""
    Slot.objects.provide(count=settings.SLUICE.export_db_slots)
    datasets = [
        Dataset.objects.create(name=name, function=f"data.{name}", base_path=name)
        for name in ("common", "rare", "unused")
    ]
    User.objects.bulk_create(User(username=f"user-{n}", password="!") for n in range(size.jobs // 100))
    others = list(User.objects.filter(username__startswith="user-").values_list("pk", flat=True))
    rules = [make_rule(alice, name="common"), make_rule(alice, name="rare")]
    hook, quiet = (Webhook.objects.create(user=alice, url="https://a.example/", events=[], secret="s") for _ in "ab")
    values = {
        "jobs": size.jobs, "small": SMALL, "large": size.large, "large_ones": LARGE_EXPORTS, "detail": DETAIL,
        "recent": RECENT, "alice": alice.pk, "staff": staff.pk, "others": others,
        "common": datasets[0].pk, "rare": datasets[1].pk, "rule": rules[0].pk, "rare_rule": rules[1].pk,
        "hook": hook.pk, "job_type": ContentType.objects.get_for_model(Job).pk,
    }  # fmt: skip
    with transaction.atomic(), without_foreign_keys(*STATEMENTS):
        for table, statement in STATEMENTS.items():
            run(statement, values)
            run(f"ANALYZE {table}")
    with connection.cursor() as cursor:
        for table in STATEMENTS:
            cursor.execute(f"VACUUM (ANALYZE) {table}")
    return Rows(alice=alice, staff=staff, rule=rules[1], hook=hook, quiet=quiet)


def counts() -> dict[str, int]:
    return {table: count(table) for table in STATEMENTS}


def count(table: str) -> int:
    with connection.cursor() as cursor:
        cursor.execute(f'SELECT count(*) FROM "{table}"')
        return int(cursor.fetchone()[0])


LOG = LogEntry._meta.db_table
OTHERS = ("auth_user", "exports_dataset", "exports_slot", "exports_webhook", "etl_rule", "etl_rule_version")

# Row 1 is the newest. Rows are inserted as in production, oldest first. 100 rows are older than any retention period.
AGE = """
CASE WHEN n <= %(recent)s THEN n * interval '42 seconds'
     WHEN n > %(jobs)s - 100 THEN interval '40 days' + n * interval '1 second'
     ELSE interval '25 hours' + (n - %(recent)s) * interval '0.5 seconds' END
"""

OWNER = """
CASE n %% 2 WHEN 1 THEN %(alice)s ELSE (%(others)s::int[])[1 + n %% cardinality(%(others)s::int[])] END
"""

STATEMENTS: dict[str, str] = {}

# 45 exports are active: 5 pending and 40 running. Of the exports of the last day, one in 20 failed. Of the oldest
# exports, 100 failed, 50 were cancelled, and 20 are of the rare dataset.
STATEMENTS["exports_jobs"] = f"""
INSERT INTO exports_jobs (job_id, user_id, dataset_id, schema_version, format, compression, delivery, dialect, reuse,
    allow_degraded, request_id, ttl, idempotency_key, status, total, duplicates, done, failed, cancelled, retrying,
    reused, degraded, rows, bytes, error_code, error_detail, created_at, started_at, finished_at,
    completion_attempts, event_seq)
SELECT md5('job ' || n)::uuid, {OWNER},
    CASE WHEN back BETWEEN 300 AND 319 THEN %(rare)s ELSE %(common)s END, 1,
    CASE WHEN back BETWEEN 300 AND 319 THEN 'json' ELSE 'csv' END, 'none', 'zip', '{{}}', 'if-present', true,
    'job-' || n, 600, 'key-' || n, status, total, 0,
    CASE status WHEN 'success' THEN total WHEN 'failed' THEN total - 1 WHEN 'cancelled' THEN 1 ELSE 0 END,
    CASE status WHEN 'failed' THEN 1 ELSE 0 END, CASE status WHEN 'cancelled' THEN total - 1 ELSE 0 END, 0, 0, 0,
    3 * total, 60 * total, CASE status WHEN 'failed' THEN 'EXPORT_SOURCE_ERROR' ELSE '' END, '',
    ended - interval '40 seconds', CASE WHEN status <> 'pending' THEN ended - interval '30 seconds' END,
    CASE WHEN status IN ('success', 'failed', 'cancelled') THEN ended END, 0, 2 + 2 * total
FROM (
    SELECT n, %(jobs)s - n AS back, now() - ({AGE}) AS ended,
        CASE WHEN n <= 5 THEN 'pending' WHEN n <= 45 THEN 'running'
             WHEN n <= %(recent)s AND n %% 20 = 1 THEN 'failed'
             WHEN n > %(jobs)s - 200 AND n %% 2 = 0 THEN 'failed'
             WHEN n > %(jobs)s - 250 AND n <= %(jobs)s - 200 THEN 'cancelled'
             ELSE 'success' END AS status,
        CASE WHEN n = 47 THEN %(detail)s
             WHEN n %% 48 = 0 AND n / 48 <= %(large_ones)s THEN %(large)s
             ELSE %(small)s END AS total
    FROM generate_series(1, %(jobs)s) n ORDER BY n DESC
) j
"""

# 8 chunks of running exports have a lease.
STATEMENTS["exports_chunk"] = """
INSERT INTO exports_chunk (job_id, dataset_id, seq, key, effective_date, path, status, rank, reusable, attempts, token,
    lease_until, source, rows, bytes, header_bytes, sha256, etag, data_as_of, error_code, error_detail, started_at,
    finished_at)
SELECT job_id, dataset_id, seq, CASE WHEN is_rare THEN 'RARE' ELSE 'K' || seq %% 500 END, date '2024-01-01' + seq,
    'common/' || request_id || '/' || seq || '.csv', state, seq, false, CASE state WHEN 'pending' THEN 0 ELSE 1 END,
    CASE state WHEN 'running' THEN 1000000 + row_number() OVER () END,
    CASE state WHEN 'running' THEN now() + interval '1 hour' END,
    CASE WHEN state <> 'done' THEN '' WHEN is_rare THEN 'snapshot' ELSE 'live' END,
    CASE state WHEN 'done' THEN 3 END, CASE state WHEN 'done' THEN 60 END, 6,
    CASE state WHEN 'done' THEN repeat('5a', 32) ELSE '' END, CASE state WHEN 'done' THEN repeat('e', 34) ELSE '' END,
    CASE state WHEN 'done' THEN finished_at END, CASE state WHEN 'failed' THEN error_code ELSE '' END, '', started_at,
    CASE WHEN state NOT IN ('pending', 'running') THEN finished_at END
FROM (
    SELECT j.*, seq, dataset_id = %(rare)s AS is_rare,
        CASE WHEN j.status = 'pending' THEN 'pending'
             WHEN j.status = 'running' AND seq = 0 AND j.job_id::text < '3' THEN 'running'
             WHEN j.status = 'running' THEN 'pending'
             WHEN seq < done THEN 'done' WHEN seq < done + failed THEN 'failed' ELSE 'cancelled' END AS state
    FROM (SELECT * FROM exports_jobs ORDER BY created_at) j CROSS JOIN LATERAL generate_series(0, j.total - 1) seq
) c
"""
STATEMENTS["exports_file"] = """
INSERT INTO exports_file (path, dataset_id, schema_version, key, effective_date, etag, sha256, rows, bytes,
    header_bytes, data_as_of)
SELECT path, dataset_id, 1, key, effective_date, repeat('e', 34), repeat('5a', 32), 3, 60, 6, data_as_of
FROM exports_chunk WHERE status = 'done'
"""

# Two events of each chunk, for exports of the last day, and for 59 exports whose events the next sweep deletes.
STATEMENTS["exports_event"] = """
INSERT INTO exports_event (job_id, seq, kind, status, chunk_id, at, told_at)
WITH kept AS MATERIALIZED (
    SELECT * FROM exports_jobs WHERE created_at > now() - interval '25 hours 70 seconds' OR finished_at IS NULL
)
SELECT k.job_id, 2 + 2 * c.seq + step, 'chunk', CASE step WHEN 0 THEN 'running' ELSE c.status END, c.id,
    coalesce(c.finished_at, c.started_at), NULL::timestamptz
FROM kept k JOIN exports_chunk c ON c.job_id = k.job_id CROSS JOIN generate_series(0, 1) step
WHERE c.status NOT IN ('pending', 'running')
UNION ALL
SELECT job_id, 1, 'status', 'running', NULL, started_at, NULL FROM kept WHERE status <> 'pending'
UNION ALL
SELECT job_id, event_seq, 'status', status, NULL, finished_at, finished_at FROM kept WHERE finished_at IS NOT NULL
"""
STATEMENTS["exports_receipt"] = """
INSERT INTO exports_receipt (job_id, object_key, etag, checksum, size_bytes, rows, files, degraded, content_type,
    file_name, issued_at, expires_at, deleted_at)
SELECT job_id, '_receipts/' || job_id || '/1/' || request_id || '.zip', repeat('e', 34), repeat('5a', 32), bytes, rows,
    total, dataset_id = %(rare)s, 'application/zip', request_id || '.zip', finished_at,
    finished_at + interval '10 minutes',
    CASE WHEN finished_at < now() - interval '40 minutes' THEN finished_at + interval '11 minutes' END
FROM exports_jobs WHERE status = 'success' ORDER BY finished_at
"""
STATEMENTS["exports_link"] = """
INSERT INTO exports_link (link_id, receipt_id, created_at, expires_at, used_at)
SELECT gen_random_uuid(), job_id, issued_at, expires_at, issued_at FROM exports_receipt ORDER BY issued_at
"""
STATEMENTS["exports_download"] = """
INSERT INTO exports_download (job_id, link_id, outcome, address, user_agent, at)
SELECT l.receipt_id, l.link_id, CASE WHEN r.degraded THEN 'link_mismatch' ELSE 'redeemed' END, '192.0.2.1', 'curl',
    l.created_at
FROM exports_link l JOIN exports_receipt r ON r.job_id = l.receipt_id ORDER BY l.created_at
"""

# 50 deliveries are due, 50 wait for their next attempt, and the oldest 50 failed.
STATEMENTS["exports_delivery"] = """
INSERT INTO exports_delivery (id, webhook_id, job_id, seq, type, body, status, attempts, available_at, created_at,
    finished_at)
SELECT gen_random_uuid(), %(hook)s, job_id, event_seq,
    CASE status WHEN 'success' THEN 'export.succeeded' ELSE 'export.' || status END, repeat('x', 300),
    CASE WHEN place <= 100 THEN 'pending' WHEN back <= 50 THEN 'failed' ELSE 'delivered' END, 1,
    CASE WHEN place <= 50 THEN finished_at ELSE now() + interval '1 hour' END, finished_at,
    CASE WHEN place > 100 THEN finished_at END
FROM (SELECT *, row_number() OVER (ORDER BY finished_at DESC) AS place, row_number() OVER (ORDER BY finished_at) AS back
      FROM exports_jobs WHERE finished_at IS NOT NULL) j
ORDER BY finished_at
"""
STATEMENTS["exports_attempt"] = """
INSERT INTO exports_attempt (delivery_id, at, status_code, error, duration_ms)
SELECT id, created_at, 200, '', 40 FROM exports_delivery ORDER BY created_at
"""
STATEMENTS["exports_usage"] = """
INSERT INTO exports_usage (user_id, day, jobs, chunks)
SELECT id, current_date - n, 2, 20 FROM auth_user CROSS JOIN generate_series(0, 30) n
"""
STATEMENTS["etl_usage"] = """
INSERT INTO etl_usage (user_id, day, documents, bytes)
SELECT id, current_date - n, 2, 2000 FROM auth_user CROSS JOIN generate_series(0, 30) n
"""

# 50 documents are unfinished. Of the oldest documents, 100 failed, 50 were cancelled, and 20 have the rare rule.
STATEMENTS["etl_task"] = f"""
INSERT INTO etl_task (user_id, rule_id, rule_version, filename, kind, size, document_key, status, phase, progress,
    result, error, metadata, fence, run, ocr_run, journal_run, rank, request_id, idempotency_key, fingerprint,
    created_at, updated_at)
SELECT {OWNER},
    CASE WHEN back BETWEEN 300 AND 319 THEN %(rare_rule)s ELSE %(rule)s END, 1, 'file-' || n || '.pdf',
    CASE WHEN back BETWEEN 300 AND 319 THEN 'txt' ELSE 'pdf' END, 1000, 'etl/documents/' || md5('document ' || n),
    status, CASE status WHEN 'completed' THEN 'postprocess' ELSE 'ocr' END, 100,
    CASE status WHEN 'completed' THEN '{{}}'::jsonb END,
    CASE status WHEN 'failed' THEN
        jsonb_build_object('code', 'file_corrupt', 'stage', 'ocr', 'retryable', false, 'detail', 'x') END,
    '{{}}', 1, 1, 1, 1, %(jobs)s - n, '', '', '', at - interval '1 minute', at
FROM (
    SELECT n, %(jobs)s - n AS back, now() - ({AGE}) AS at,
        CASE WHEN n <= 50 THEN 'pending' WHEN n <= %(recent)s AND n %% 20 = 1 THEN 'failed'
             WHEN n > %(jobs)s - 200 AND n %% 2 = 1 THEN 'failed'
             WHEN n > %(jobs)s - 250 AND n <= %(jobs)s - 200 THEN 'cancelled' ELSE 'completed' END AS status
    FROM generate_series(1, %(jobs)s) n ORDER BY n DESC
) t
"""
STATEMENTS["etl_model_usage"] = """
INSERT INTO etl_model_usage (user_id, rule_id, task_id, run, calls, prompt_tokens, completion_tokens, created_at)
SELECT user_id, rule_id, task_id, 1, 1, 1000, 100,
    updated_at - CASE WHEN updated_at < now() - interval '25 hours' THEN interval '400 days' ELSE interval '0' END
FROM etl_task WHERE status = 'completed' ORDER BY task_id
"""

# All entries have the same user. In both sizes, there are more entries than a filter without an index searches.
STATEMENTS[LOG] = f"""
INSERT INTO {LOG} (action_time, user_id, content_type_id, object_id, object_repr, action_flag, change_message)
SELECT now() - n * interval '1 minute', %(staff)s, %(job_type)s, md5('job ' || n)::uuid::text, 'export', 2, 'Cancelled.'
FROM generate_series(1, %(jobs)s * 3 / 5) n ORDER BY n DESC
"""

TABLES = (*STATEMENTS, *OTHERS)
