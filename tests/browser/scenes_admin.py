"""Scenes of the admin: empty, and with the rows of a busy day that has some failures."""

from collections.abc import Callable
from datetime import timedelta
from typing import Any

from django.contrib.admin.models import CHANGE, LogEntry
from django.contrib.admin.utils import quote
from django.contrib.auth.models import Group, User
from django.contrib.contenttypes.models import ContentType
from django.db import connection
from django.db.models import Model
from django.urls import reverse
from django.utils import timezone
from knox.models import AuthToken

from etl.models import Task
from exports.models import (
    Allowance,
    Attempt,
    Chunk,
    Dataset,
    Delivery,
    Download,
    File,
    Grant,
    Job,
    Link,
    Receipt,
    Slot,
    Tick,
    Usage,
    Webhook,
)  # fmt: skip
from rules.library import editing
from rules.models import Rule
from tests.browser.scenes import Scene
from tests.integration.factories import claim_one, make_job

JOBS = """
INSERT INTO exports_jobs (job_id, user_id, dataset_id, schema_version, format, compression, delivery, dialect, reuse,
    allow_degraded, ttl, status, total, duplicates, done, failed, cancelled, retrying, reused, degraded, rows, bytes,
    error_code, error_detail, created_at, started_at, finished_at, completion_attempts)
SELECT md5('a job' || n)::uuid, %(user)s, %(dataset)s, 1, 'csv', 'none', 'zip', '{}', 'if-present', true, 600,
    CASE WHEN n %% 9 = 0 THEN 'failed' WHEN n %% 23 = 0 THEN 'cancelled' ELSE 'success' END, 40, 0,
    CASE WHEN n %% 9 = 0 THEN 37 WHEN n %% 23 = 0 THEN 10 ELSE 40 END, CASE WHEN n %% 9 = 0 THEN 3 ELSE 0 END,
    CASE WHEN n %% 9 > 0 AND n %% 23 = 0 THEN 30 ELSE 0 END, 0, 5, 0, 1000 + n * 977 %% 90000,
    60000 + n * 99991 %% 9000000,
    CASE WHEN n %% 9 = 0 THEN 'EXPORT_SOURCE_TIMEOUT' ELSE '' END,
    CASE WHEN n %% 9 = 0 THEN 'SQLSTATE 57014' ELSE '' END,
    now() - n * interval '7 min', now() - n * interval '7 min' + interval '2 s',
    now() - n * interval '7 min' + interval '90 s', 0
FROM generate_series(1, 1000) n
"""
CHUNKS = """
INSERT INTO exports_chunk (job_id, dataset_id, seq, key, effective_date, path, status, rank, reusable,
    attempts, source,
    rows, bytes, header_bytes, sha256, etag, error_code, error_detail, started_at, finished_at)
SELECT j.job_id, j.dataset_id, n, 'K' || n, '2024-02-29', 'flights/2024/02/29/K' || n || '_20240229.csv',
    CASE WHEN n < 4 AND j.status = 'failed' THEN 'failed' ELSE 'done' END, n, false, 1 + (n = 2)::int,
    CASE WHEN n < 4 AND j.status = 'failed' THEN '' WHEN n %% 8 = 0 THEN 'reused' ELSE 'live' END, 3000, 61234,
    6, 'x', 'x',
    CASE WHEN n < 4 AND j.status = 'failed' THEN CASE WHEN n = 1 THEN 'EXPORT_UPLOAD_FAILED' ELSE j.error_code END
         ELSE '' END, '', j.started_at, j.finished_at
FROM exports_jobs j CROSS JOIN generate_series(1, 40) n WHERE j.created_at > now() - interval '24 h' AND j.total = 40
"""
RECEIPTS = """
INSERT INTO exports_receipt (job_id, object_key, etag, checksum, size_bytes, rows, files, degraded,
    content_type, file_name,
    issued_at, expires_at)
SELECT job_id, '_receipts/x', 'e', repeat('c', 64), bytes, rows, 40, job_id::text < '2', 'application/zip',
    'flights_' || left(job_id::text, 8) || '.zip', finished_at, finished_at + interval '1 h'
FROM exports_jobs WHERE status = 'success';
INSERT INTO exports_link (link_id, receipt_id, created_at, expires_at, used_at, network)
SELECT md5(job_id::text)::uuid, job_id, issued_at, expires_at,
    CASE WHEN job_id::text < 'a' THEN issued_at + interval '1 min' END, '192.0.2.0/24' FROM exports_receipt;
INSERT INTO exports_download (job_id, link_id, outcome, address, user_agent, at)
SELECT receipt_id, link_id, CASE WHEN link_id::text < '3' THEN 'link_used' ELSE 'redeemed' END, '192.0.2.7',
    'curl/8.5', used_at
FROM exports_link WHERE used_at IS NOT NULL;
"""
FILES = """
INSERT INTO exports_file (path, dataset_id, schema_version, key, effective_date, etag, sha256, rows, bytes,
    header_bytes,
    data_as_of)
SELECT 'flights/2024/02/29/K' || n || '_20240229.csv', %(dataset)s, 1, 'K' || n, '2024-02-29', 'x', repeat('d',
    64), 3000,
    61234, 6, now() - n * interval '1 min' FROM generate_series(1, 400) n
"""
DELIVERIES = """
INSERT INTO exports_delivery (id, webhook_id, job_id, seq, type, body, status, attempts, created_at, finished_at)
SELECT md5('d' || row_number() OVER ())::uuid, %(webhook)s, job_id, 1, 'export.succeeded',
    '{"type": "export.succeeded"}',
    CASE WHEN job_id::text < '2' THEN 'failed' ELSE 'delivered' END, 2, finished_at, finished_at + interval '5 s'
FROM exports_jobs WHERE status = 'success'
"""
TASKS = """
INSERT INTO etl_task (user_id, rule_id, rule_version, filename, kind, size, document_key, status, phase,
    progress, result,
    error, metadata, fence, run, ocr_run, journal_run, request_id, idempotency_key, fingerprint, created_at,
    updated_at)
SELECT %(user)s, %(rule)s, 1, 'invoice-' || n || '.pdf', 'pdf', 120000 + n * 771, 'etl/documents/x',
    CASE WHEN n %% 11 = 0 THEN 'failed' ELSE 'completed' END, CASE WHEN n %% 11 = 0 THEN 'ocr' ELSE 'postprocess' END,
    CASE WHEN n %% 11 = 0 THEN 20 ELSE 100 END, CASE WHEN n %% 11 > 0 THEN '{"metadata": {}}'::jsonb END,
    CASE WHEN n %% 11 = 0 THEN '{"code": "file_encrypted", "stage": "ocr", "retryable": false,
        "detail": "The file is encrypted. Remove its password and submit it again."}'::jsonb END,
    ('{"provider": "local", "attempts": {"ocr": 1, "postprocess": 1}, "ocr": {"pages": 3, "version": "1.4",
    "duration_ms": '
        || 800 + n * 37 %% 9000 || '}, "postprocess": {"strategy": "direct-json", "model": "small",
        "usage": {"calls": 1,
        "prompt_tokens": 900, "completion_tokens": 120}}, "warnings": [{"code": "low_confidence",
        "detail": "x"}]}')::jsonb,
    1, 1, 1, 1, '', '', '', now() - n * interval '4 min', now() - n * interval '4 min' + (n %% 40 + 2) *
    interval '1 s'
FROM generate_series(1, 1000) n
"""


def busy(user: User) -> None:
    """Create a day of work: a thousand jobs and documents, and some that are queued, running, or failing."""
    Slot.objects.provide(count=8)
    dataset = Dataset.objects.create(name="flights", function="demo.flights_for", base_path="flights")
    Dataset.objects.create(name="weather", function="demo.weather_for", base_path="weather", max_concurrency=2)
    rule = Rule(owner=user, name="Totals", system_prompt="You read invoices.", json_schema={"type": "object"})
    rule.save()
    editing.save_version(rule)
    hook = Webhook.objects.create(
        user=user, url="https://shop.example/hooks", events=["export.succeeded"], secret="x", failures=2
    )
    for statement in (JOBS, CHUNKS, RECEIPTS, FILES, DELIVERIES, TASKS):
        values: dict[str, Any] = {"user": user.pk, "dataset": dataset.pk, "webhook": hook.pk, "rule": rule.pk}
        with connection.cursor() as cursor:
            cursor.execute(statement, values)
    Chunk.objects.filter(status="failed").update(source_message="no statistics for this day\nRun collect() first.")
    for name, pattern in (("analysts", ""), ("berlin-team", "^BERLIN$")):
        Grant.objects.create(
            dataset=Dataset.objects.get(name="weather"), group=Group.objects.create(name=name), key_pattern=pattern
        )
    create_running_job(dataset, user)
    create_account_rows(user, hook)


def create_running_job(dataset: Dataset, user: User) -> None:
    job = make_job(dataset, user, 30, key="JFK")
    Job.objects.filter(pk=job.pk).update(created_at=timezone.now() - timedelta(minutes=8))
    claims = [claim_one(backend=f"sluice-export-{n}") for n in range(5)]
    lost = claims[0]
    assert lost
    Chunk.objects.filter(pk=lost.chunk_id).update(lease_until=timezone.now() - timedelta(minutes=2))
    Slot.objects.filter(token=lost.token).update(lease_until=timezone.now() - timedelta(minutes=2))


def create_account_rows(user: User, hook: Webhook) -> None:
    """Create the limits, usage, and token of a user, failed attempts of a delivery, and log entries."""
    User.objects.filter(pk=user.pk).update(last_login=timezone.now() - timedelta(hours=3), email="alice@shop.example")
    Allowance.objects.create(user=user, daily_jobs=50)
    Usage.objects.update_or_create(
        user=user, day=timezone.now().date() - timedelta(days=1), defaults={"jobs": 12, "chunks": 9000}
    )
    AuthToken.objects.create(user)
    Tick.objects.create(name="reap", ran_at=timezone.now() - timedelta(seconds=9))
    delivery = Delivery.objects.filter(webhook=hook, status="failed").latest("created_at")
    for n in range(3):
        Attempt.objects.create(
            delivery=delivery, status_code=503 if n else None, error="" if n else "timed out", duration_ms=90
        )
    message = "Retried: 3 failed chunks queued."
    for job in Job.objects.filter(status="failed")[:3]:
        LogEntry.objects.create(
            user=user, content_type=ContentType.objects.get_for_model(Job), object_id=str(job.pk),
            object_repr=str(job),
            action_flag=CHANGE, change_message=message,
        )  # fmt: skip


def list_of(model: type[Model], query: str = "") -> Callable[[User], str]:
    return lambda _user: reverse(f"admin:{model._meta.app_label}_{model._meta.model_name}_changelist") + query


def page_of(model: type[Model], verb: str = "change", **filters: Any) -> Callable[[User], str]:
    def path(_user: User) -> str:
        row = model._default_manager.filter(**filters).order_by("-pk").first()
        assert row is not None, (model, filters)
        return reverse(f"admin:{model._meta.app_label}_{model._meta.model_name}_{verb}", args=[quote(row.pk)])

    return path


def scene(name: str, path: Callable[[User], str], prepare: Callable[[User], None] = busy) -> Scene:
    return Scene(name=f"admin-{name}", path=path, prepare=prepare, staff=True)


def nothing(_user: User) -> None:
    """Create nothing, as in a new installation."""


LISTS: tuple[type[Model], ...] = (
    Job, Chunk, File, Receipt, Link, Download, Webhook, Delivery, Dataset, Usage, Allowance, Slot, Tick, Task,
    Rule, User,
    AuthToken, LogEntry,
)  # fmt: skip
SCENES = [
    Scene(name="admin-sign-in", path=lambda _: "/admin/login/", anonymous=True),
    scene("empty", lambda _: "/admin/", nothing),
    scene("busy", lambda _: "/admin/"),
    scene("jobs-empty", list_of(Job), nothing),
    *(scene(f"{model._meta.model_name}-list", list_of(model)) for model in LISTS),
    scene("chunks-failed", list_of(Chunk, "?status__exact=failed")),
    scene("audit-log", lambda _: "/admin/platform/auditentry/"),
    scene("audit-export", lambda _: "/admin/platform/auditentry/export/"),
    scene("job-running", page_of(Job, status="running")),
    scene("job-failed", page_of(Job, status="failed")),
    scene("job-retry", page_of(Job, "retry", status="failed")),
    scene("job-cancel", page_of(Job, "cancel", status="failed")),
    scene("job-history", page_of(Job, "history", status="failed")),
    scene("chunk-failed", page_of(Chunk, status="failed")),
    scene("chunk-running", page_of(Chunk, status="running")),
    scene("file", page_of(File)),
    scene("receipt", page_of(Receipt)),
    scene("link", page_of(Link)),
    scene("webhook", page_of(Webhook)),
    scene("delivery-failed", page_of(Delivery, attempts=2, log__isnull=False)),
    scene("dataset", page_of(Dataset, name="flights")),
    scene("dataset-granted", page_of(Dataset, name="weather")),
    scene("dataset-new", lambda _: "/admin/exports/dataset/add/"),
    scene("slot", page_of(Slot, token__isnull=False)),
    scene("task-failed", page_of(Task, status="failed")),
    scene("task-completed", page_of(Task, status="completed")),
    scene("rule", page_of(Rule)),
    scene("user", page_of(User)),
    scene("audit-entry", page_of(LogEntry)),
]
