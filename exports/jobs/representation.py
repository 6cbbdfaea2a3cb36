"""How rows look to clients, and how they are read for that: one representation for answers, lists, events and pages."""

from collections.abc import Collection
from datetime import datetime, timedelta
from typing import Any, TypeVar
from uuid import UUID

from django.conf import settings
from django.db.models import Model, Prefetch
from django.utils import timezone
from rest_framework.request import Request

from config.platform.db import sql
from exports.core.errors import explain
from exports.core.states import JobStatus
from exports.delivery import links
from exports.jobs.quotas import Quota
from exports.jobs.submission import Preview
from exports.models import Chunk, Dataset, Job, Link, Receipt
from exports.models.job import JobQuerySet

# ---- Lists ----------------------------------------------------------------------------------------------------------


def with_all(jobs: JobQuerySet) -> JobQuerySet:
    """Fetch what `job` below needs, in two queries for any number of jobs; chunks are not touched."""
    newest_first = Link.objects.order_by("-created_at")
    return (
        jobs.with_running()
        .with_queue_position()
        .select_related("dataset", "receipt")
        .prefetch_related(Prefetch("receipt__links", queryset=newest_first, to_attr="newest_first"))
    )


# ---- One job, which clients ask for again and again -----------------------------------------------------------------

AnyModel = TypeVar("AnyModel", bound=Model)


def columns(model: type[Model], table: str, *, but: Collection[str] = ()) -> str:
    """Return the columns of a model as `made` expects them in a row."""
    fields = [field for field in model._meta.concrete_fields if field.name not in but]
    return ", ".join(f'{table}.{field.column} AS "{table}.{field.attname}"' for field in fields)


def made(model: type[AnyModel], table: str, row: sql.Row) -> AnyModel:
    """Return an object of its columns in a row. What the row does not have is read when somebody asks for it."""
    fields = [field.attname for field in model._meta.concrete_fields if f"{table}.{field.attname}" in row]
    return model.from_db(None, fields, [row[f"{table}.{name}"] for name in fields])


# Django takes longer to put such a statement together than the database takes to answer it. `running` and
# `queue_position` are those of lists; a test holds them to be the same. JSON is left out: it would come as text.
FIND = sql.Hot(f"""
SELECT {columns(Job, "job", but=("filters", "dialect"))}, {columns(Receipt, "receipt")}, {columns(Link, "link")},
       dataset.id AS "dataset.id", dataset.name AS "dataset.name",
       CASE WHEN job.status IN ('running', 'retrying') THEN
           (SELECT count(*) FROM exports_slot slot WHERE slot.dataset_id IS NULL AND slot.job_id = job.job_id)
       ELSE 0 END AS running,
       CASE WHEN job.status = 'pending' THEN
           (SELECT count(*) FROM exports_jobs earlier
            WHERE earlier.status = 'pending' AND earlier.created_at < job.created_at)
       ELSE 0 END AS queue_position
FROM exports_jobs job
JOIN exports_dataset dataset ON dataset.id = job.dataset_id
LEFT JOIN exports_receipt receipt ON receipt.job_id = job.job_id
LEFT JOIN LATERAL (
    SELECT * FROM exports_link made WHERE made.receipt_id = receipt.job_id ORDER BY made.created_at DESC LIMIT 1
) link ON true
WHERE job.job_id = %(job)s AND (job.user_id = %(user)s::bigint OR %(of_anybody)s::boolean)
""")


def find(job_id: UUID, *, user_id: int, of_anybody: bool = False) -> Job | None:
    """Return the job with what `job` below needs, or None if there is none, or none of this user's.

    One statement, which looks at no chunk.
    """
    row = sql.one(FIND, job=job_id, user=user_id, of_anybody=of_anybody)
    if row is None:
        return None
    found = made(Job, "job", row)
    found.dataset = made(Dataset, "dataset", row)
    found.running, found.queue_position = row["running"], row["queue_position"]
    if row["receipt.job_id"]:
        found.receipt = made(Receipt, "receipt", row)
        found.receipt.newest_first = [made(Link, "link", row)] if row["link.link_id"] else []
    return found


# ---- As JSON --------------------------------------------------------------------------------------------------------


def accepted(job: Job) -> dict[str, Any]:
    """The answer to a submission."""
    path = f"/exports/{job.job_id}"
    return {
        "jobId": str(job.job_id),
        "status": JobStatus.PENDING,
        "receiptUrl": path,
        "totalChunks": job.total,
        "duplicates": job.duplicates,
        "eventsUrl": f"{path}/events",
        "chunksUrl": f"{path}/chunks",
    }


def preview(preview: Preview) -> dict[str, int]:
    return {
        "totalChunks": preview.total_chunks,
        "duplicates": preview.duplicates,
        "reusable": preview.reusable,
        "quotaCost": preview.total_chunks - preview.reusable,
    }


def limits(quota: Quota) -> dict[str, Any]:
    """A user's limits as `GET /exports/limits` shows them."""
    env = settings.SLUICE
    return {
        "jobsPerDay": day(quota.daily_jobs, quota.jobs, quota.resets_at),
        "chunksPerDay": day(quota.daily_chunks, quota.chunks, quota.resets_at),
        "maxChunksPerJob": env.export_max_chunks_per_job,
        "rate": env.export_rate,
    }


def day(limit: int, used: int, resets_at: datetime) -> dict[str, Any]:
    return {"limit": limit, "used": used, "remaining": max(limit - used, 0), "resetsAt": resets_at}


def job(job: Job, request: Request | None, *, now: datetime | None = None) -> dict[str, Any]:
    """A job as `GET /exports/{jobId}` shows it. Wants a job from `find` or `with_all`.

    Without a request `signedUrl` is left out: nobody is there whom a link could be shown to.
    """
    now = now or timezone.now()
    return {
        "jobId": str(job.job_id),
        "dataset": job.dataset.name,
        "status": job.status,
        "format": job.format,
        "compression": job.compression,
        "delivery": job.delivery,
        "createdAt": job.created_at,
        "startedAt": job.started_at,
        "finishedAt": job.finished_at,
        "purgeAt": purge_at(job),
        "queuePosition": job.queue_position,
        "progress": progress(job, now),
        "error": error(job.error_code, job.error_detail) if job.status == JobStatus.FAILED else None,
        "receipt": receipt(job, request, now) if job.status == JobStatus.SUCCESS else None,
    }


def purge_at(job: Job) -> datetime:
    """When the job may be deleted: some days after its end. Before that, the earliest that it can come to."""
    return (job.finished_at or job.created_at) + timedelta(days=settings.SLUICE.export_job_retention_days)


def progress(job: Job, now: datetime) -> dict[str, Any]:
    ended = job.done + job.failed + job.cancelled
    running = min(job.running, job.total - ended - job.retrying)
    return {
        "total": job.total,
        "pending": job.total - ended - job.retrying - running,
        "running": running,
        "retrying": job.retrying,
        "done": job.done,
        "failed": job.failed,
        "cancelled": job.cancelled,
        "reused": job.reused,
        "degraded": job.degraded,
        "rows": job.rows,
        "bytes": job.bytes,
        "percent": round(100 * ended / job.total, 1),
        "etaSeconds": eta_seconds(job, ended, now),
    }


def eta_seconds(job: Job, ended: int, now: datetime) -> int | None:
    """The time so far, stretched to what is left. None before the first chunk has ended, and at the end."""
    if job.has_ended or not ended or job.started_at is None:
        return None
    return round((now - job.started_at).total_seconds() / ended * (job.total - ended))


def error(code: str, detail: str) -> dict[str, Any] | None:
    return explain(code, detail) if code else None


def receipt(job: Job, request: Request | None, now: datetime) -> dict[str, Any]:
    """The receipt. Its link is shown to the owner alone: staff see the job, and could use the link up."""
    receipt = job.receipt
    link = next(iter(receipt.newest_first), None)
    state = receipt_state(receipt, link, now)
    shown = link if state == "active" and request and request.user.pk == job.user_id else None
    signed = {"signedUrl": request.build_absolute_uri(links.path_of(shown)) if shown else None} if request else {}
    return {
        **signed,
        "expiresAt": receipt.expires_at,
        "checksum": f"sha256:{receipt.checksum}",
        "sizeBytes": receipt.size_bytes,
        "rows": receipt.rows,
        "files": receipt.files,
        "degraded": receipt.degraded,
        "contentType": receipt.content_type,
        "fileName": receipt.file_name,
        "state": state,
    }


def receipt_state(receipt: Receipt, newest: Link | None, now: datetime) -> str:
    """A link that staff revoked is told as a used one: the owner can make another as long as the receipt lives."""
    if receipt.expires_at <= now:
        return "expired"
    return "active" if newest and newest.state_at(now) == "open" else "redeemed"


def status(job: Job, status: str, at: datetime | None) -> dict[str, Any]:
    """The data of the event `status`. The error is the job's: an end that a retry has undone since has none by now."""
    has_failed = status == job.status == JobStatus.FAILED
    return {"status": status, "error": error(job.error_code, job.error_detail) if has_failed else None, "at": at}


def chunk(chunk: Chunk) -> dict[str, Any]:
    return {
        "key": chunk.key,
        "effectiveDate": chunk.effective_date,
        "status": chunk.status,
        "attempts": chunk.attempts,
        "source": chunk.source or None,
        "rows": chunk.rows,
        "bytes": chunk.bytes,
        "checksum": f"sha256:{chunk.sha256}" if chunk.sha256 else None,
        "dataAsOf": chunk.data_as_of,
        "path": chunk.path,
        "error": error(chunk.error_code, chunk.error_detail),
    }


def dataset(dataset: Dataset) -> dict[str, Any]:
    return {
        "name": dataset.name,
        "schemaVersion": dataset.schema_version,
        "formats": dataset.formats,
        "keyPattern": dataset.key_pattern,
    }
