"""Bodies of responses, events, and webhooks, and the queries for their data.

Single resources, lists, event streams, webhooks, and pages share this representation. `schemas` declares its types.
"""

from collections.abc import Collection, Sequence
from datetime import datetime, timedelta
from typing import TypeVar, cast
from uuid import UUID

from django.conf import settings
from django.db.models import Model, Prefetch
from rest_framework.request import Request

from config.platform.db import clock, sql
from config.platform.http import audit
from config.platform.http.quotas import left
from exports.core.errors import explain
from exports.core.states import JobStatus
from exports.delivery import access, links
from exports.jobs import schemas
from exports.jobs.columns import columns_of
from exports.jobs.quotas import Quota
from exports.models import Chunk, Dataset, Job, Link, Receipt
from exports.models.job import JobQuerySet

# ---- Lists ----------------------------------------------------------------------------------------------------------


def with_details(jobs: JobQuerySet) -> JobQuerySet:
    """Load the data for `job` with two queries for any number of jobs. They read no chunks except running ones."""
    newest_first = Link.objects.order_by("-created_at")
    return (
        jobs.with_running()
        .with_queue_position()
        .select_related("dataset", "receipt")
        .prefetch_related(Prefetch("receipt__links", queryset=newest_first, to_attr="newest_first"))
    )


# ---- One job, which clients poll ------------------------------------------------------------------------------------

AnyModel = TypeVar("AnyModel", bound=Model)


def columns(model: type[Model], table: str, *, omit: Collection[str] = ()) -> str:
    """Return the columns of a model, named as `instance` expects them."""
    fields = [field for field in model._meta.concrete_fields if field.name not in omit]
    return ", ".join(f'{table}.{field.column} AS "{table}.{field.attname}"' for field in fields)


def instance(model: type[AnyModel], table: str, row: sql.Row) -> AnyModel:
    """Return a model instance from its columns in a row. Missing columns are deferred."""
    fields = [field.attname for field in model._meta.concrete_fields if f"{table}.{field.attname}" in row]
    return model.from_db(None, fields, [row[f"{table}.{name}"] for name in fields])


# Raw SQL because clients poll it: Django takes longer to compile the query than Postgres takes to execute it. A test
# checks that `running` and `queue_position` are the same as in lists. JSON columns are omitted: they would be strings.
FIND = sql.PreparedStatement(f"""
SELECT {columns(Job, "job", omit=("filters", "dialect"))}, {columns(Receipt, "receipt")}, {columns(Link, "link")},
       dataset.id AS "dataset.id", dataset.name AS "dataset.name",
       CASE WHEN job.status IN ('running', 'retrying') THEN
           (SELECT count(*) FROM exports_chunk c WHERE c.job_id = job.job_id AND c.status = 'running')
       ELSE 0 END AS running,
       CASE WHEN job.status = 'pending' THEN
           (SELECT count(*) FROM exports_jobs earlier
            WHERE earlier.status = 'pending' AND (earlier.rank, earlier.created_at) < (job.rank, job.created_at))
       ELSE 0 END AS queue_position
FROM exports_jobs job
JOIN exports_dataset dataset ON dataset.id = job.dataset_id
LEFT JOIN exports_receipt receipt ON receipt.job_id = job.job_id
LEFT JOIN LATERAL (
    SELECT * FROM exports_link made WHERE made.receipt_id = receipt.job_id ORDER BY made.created_at DESC LIMIT 1
) link ON true
WHERE job.job_id = %(job)s AND (job.user_id = %(user)s::bigint OR %(any_owner)s::boolean)
""")


def find(job_id: UUID, *, user_id: int, any_owner: bool = False) -> Job | None:
    """Return a job with the data for `job`, or None if it does not exist or belongs to another user.

    This takes one statement, which reads no chunks except running ones, by their index.
    """
    row = sql.one(FIND, job=job_id, user=user_id, any_owner=any_owner)
    if row is None:
        return None
    found = instance(Job, "job", row)
    found.dataset = instance(Dataset, "dataset", row)
    found.running, found.queue_position = row["running"], row["queue_position"]
    if row["receipt.job_id"]:
        found.receipt = instance(Receipt, "receipt", row)
        found.receipt.newest_first = [instance(Link, "link", row)] if row["link.link_id"] else []
    return found


# ---- As JSON --------------------------------------------------------------------------------------------------------


def accepted(job: Job) -> schemas.Accepted:
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


def limits(quota: Quota) -> schemas.Limits:
    env = settings.SLUICE
    return {
        "jobsPerDay": day(quota.daily_jobs, quota.jobs, quota.resets_at),
        "chunksPerDay": day(quota.daily_chunks, quota.chunks, quota.resets_at),
        "maxChunksPerJob": env.export_max_chunks_per_job,
        "rate": env.export_rate,
    }


def day(limit: int, used: int, resets_at: datetime) -> schemas.DayLimit:
    return {"limit": limit, "used": used, "remaining": left(limit, used), "resetsAt": resets_at}


def job(job: Job, request: Request) -> schemas.Job:
    """Return the body of a job from `find` or `with_details`."""
    now = clock.now()
    succeeded = job.status == JobStatus.SUCCESS
    return {**summary(job, now), "receipt": receipt(job, request, now) if succeeded else None}


def webhook_job(job: Job, at: datetime) -> schemas.WebhookJob:
    """Return the body of a job for webhooks: its state when it ended, without the link, which is not for receivers.

    Since then, the link may have been used, and the receipt may have been revoked.
    """
    succeeded = job.status == JobStatus.SUCCESS
    return {**summary(job, at), "receipt": receipt_as_issued(job, at) if succeeded else None}


def receipt_as_issued(job: Job, at: datetime) -> schemas.WebhookReceipt:
    first = job.receipt.links.order_by("created_at").first()
    until = job.receipt.issued_at + timedelta(seconds=job.ttl)
    return {
        **webhook_receipt(job, at),
        "expiresAt": first.expires_at if first else until,
        "deliveryExpiresAt": until,
        "state": "active",
    }


def summary(job: Job, now: datetime) -> schemas.JobSummary:
    return {
        "jobId": str(job.job_id),
        "name": job.name or None,
        "dataset": job.dataset.name,
        "status": job.status,
        "format": job.format,
        "compression": job.compression,
        "delivery": job.delivery,
        "columns": job.columns,
        "scheduleId": str(job.schedule_id) if job.schedule_id else None,
        "plannedAt": job.planned_at,
        "createdAt": job.created_at,
        "startedAt": job.started_at,
        "finishedAt": job.finished_at,
        "purgeAt": purge_at(job),
        "queuePosition": job.queue_position,
        "progress": progress(job, now),
        "error": error(job.error_code, job.error_detail) if job.status == JobStatus.FAILED else None,
    }


def purge_at(job: Job) -> datetime:
    """Return the earliest time of the job's deletion, or a lower bound of it while the job is active.

    A job is kept at least as long as its delivery.
    """
    earliest = (job.finished_at or job.created_at) + timedelta(days=settings.SLUICE.export_job_retention_days)
    return max(earliest, job.receipt.expires_at) if job.status == JobStatus.SUCCESS else earliest


def progress(job: Job, now: datetime) -> schemas.Progress:
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
        "percent": 1000 * ended // job.total / 10,  # rounded down: at 100, no chunk is left
        "etaSeconds": eta_seconds(job, ended, now),
    }


def eta_seconds(job: Job, ended: int, now: datetime) -> int | None:
    """Extrapolate from the pace since the start or the last retry.

    Return None until a chunk has ended since then, and for an ended job.
    """
    began, done = job.resumed_at or job.started_at, ended - job.resumed_ended
    if job.has_ended or done <= 0 or began is None:
        return None
    return round((now - began).total_seconds() / done * (job.total - ended))


def error(code: str, detail: str) -> schemas.Failure | None:
    return cast("schemas.Failure", explain(code, detail)) if code else None


def receipt(job: Job, request: Request, now: datetime) -> schemas.Receipt:
    """Return the receipt. Only the owner gets the one-time link, because staff could redeem it."""
    body = webhook_receipt(job, now)
    is_shown = body["state"] == "active" and request.user.pk == job.user_id
    url = request.build_absolute_uri(links.path_of(job.receipt.newest_first[0])) if is_shown else None
    return {"signedUrl": url, **body}


def webhook_receipt(job: Job, now: datetime) -> schemas.WebhookReceipt:
    receipt = job.receipt
    newest = newest_link(receipt)
    return {
        "expiresAt": min(newest.expires_at, receipt.expires_at) if newest else receipt.expires_at,
        "deliveryExpiresAt": receipt.expires_at,
        "checksum": f"sha256:{receipt.checksum}",
        "sizeBytes": receipt.size_bytes,
        "rows": receipt.rows,
        "files": receipt.files,
        "degraded": receipt.degraded,
        "contentType": receipt.content_type,
        "fileName": receipt.file_name,
        "state": receipt_state(receipt, now),
    }


LINK_STATES = {"open": "active", "expired": "link_expired"}


def receipt_state(receipt: Receipt, now: datetime) -> str:
    """Return the state of a receipt. A revoked link counts as used: the owner can replace either until the expiry."""
    if receipt.expires_at <= now:
        return "expired"
    newest = newest_link(receipt)
    return LINK_STATES.get(newest.state_at(now), "redeemed") if newest else "redeemed"


def newest_link(receipt: Receipt) -> Link | None:
    return next(iter(receipt.newest_first), None)


def status(job: Job, status: str, at: datetime | None, cause: schemas.Failure | None = None) -> schemas.StatusEvent:
    """Return the data of the event `status`.

    `cause`: the error of a failure after which the job was retried. The job no longer has it.
    """
    if cause is None and status == job.status == JobStatus.FAILED:
        cause = error(job.error_code, job.error_detail)
    return {"status": status, "error": cause, "at": at}


def chunks(job: Job, page: Sequence[Chunk], user_id: int) -> list[schemas.Chunk]:
    """Return the bodies of chunks of a job, with the source's messages if the user may see them."""
    shown = access.message_check(job, user_id) if any(each.source_message for each in page) else None
    bodies = [chunk(each, has_message=bool(shown and shown(each.key))) for each in page]
    if any(each["sourceMessage"] for each in bodies):
        audit.mark_opened()
    return bodies


def chunk(chunk: Chunk, *, has_message: bool = False) -> schemas.Chunk:
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
        "sourceMessage": (chunk.source_message or None) if has_message else None,
    }


def dataset(dataset: Dataset) -> schemas.Dataset:
    """Return the body of a dataset from `Dataset.objects.granted_to`."""
    return {
        "name": dataset.name,
        "kind": dataset.kind,
        "schemaVersion": dataset.schema_version,
        "formats": dataset.formats,
        "keyPattern": dataset.key_pattern,
        "grantedKeyPatterns": dataset.granted_patterns,
        "showErrors": dataset.show_errors,
    }


def dataset_detail(each: Dataset) -> schemas.DatasetDetail:
    """Return the body of a dataset with its columns. Raises ColumnsUnknown."""
    return {**dataset(each), "columns": columns_of(each)}
