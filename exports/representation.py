"""How jobs and chunks look to clients: one representation for every answer and list."""

from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from django.conf import settings
from django.db.models import Prefetch, QuerySet, Window, prefetch_related_objects
from django.db.models.functions import RowNumber
from django.utils import timezone
from rest_framework.request import Request

from exports import links
from exports.errors import explain
from exports.models import Attempt, Chunk, Delivery, Job, Link, Receipt, Slot, Webhook
from exports.models.job import JobQuerySet
from exports.quotas import Quota
from exports.states import JobStatus
from exports.submission import Preview

NEWEST = 20  # attempts in the log of a delivery


def with_all(jobs: JobQuerySet) -> JobQuerySet:
    """Fetch what `job` below needs, in two queries for any number of jobs; chunks are not touched."""
    newest_first = Link.objects.order_by("-created_at")
    return (
        jobs.with_running()
        .with_queue_position()
        .select_related("dataset", "receipt")
        .prefetch_related(Prefetch("receipt__links", queryset=newest_first))
    )


def find(jobs: JobQuerySet, job_id: UUID) -> Job | None:
    """Return one of these jobs with what `job` below needs, or None.

    What a state does not show is not asked for. One statement with all of it, as for lists, takes longer to build than
    the database takes for two.
    """
    found = jobs.defer("filters").select_related("dataset", "receipt").filter(pk=job_id).first()
    if found is None:
        return None
    found.running = found.queue_position = 0
    if found.status == JobStatus.PENDING:
        found.queue_position = Job.objects.waiting_before(found).count()
    elif found.status == JobStatus.SUCCESS:
        prefetch_related_objects([found.receipt], Prefetch("links", queryset=Link.objects.order_by("-created_at")))
    elif not found.has_ended:
        found.running = Slot.objects.filter(dataset=None, job_id=found.pk).count()
    return found


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
    link = next(iter(receipt.links.all()), None)
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


def webhook(webhook: Webhook) -> dict[str, Any]:
    """A webhook without its secret, which only the answers that make one show."""
    return {
        "id": str(webhook.pk),
        "url": webhook.url,
        "events": webhook.events,
        "enabled": webhook.enabled,
        "disabledReason": webhook.disabled_reason or None,
        "createdAt": webhook.created_at,
    }


def with_log(deliveries: QuerySet[Delivery]) -> QuerySet[Delivery]:
    """Fetch what `delivery` below needs, in two queries for any number of them and of their attempts: whoever asks for
    the same delivery again and again makes a log without end."""
    age = Window(RowNumber(), partition_by="delivery_id", order_by=("-at", "-id"))
    newest = Attempt.objects.alias(age=age).filter(age__lte=NEWEST).order_by("at", "id")
    return deliveries.select_related("webhook").prefetch_related(Prefetch("log", queryset=newest)).defer("body")


def delivery(delivery: Delivery) -> dict[str, Any]:
    """A delivery with the log of its newest attempts, the first one first. Wants it read `with_log`, or just made."""
    waits = delivery.status == Delivery.Status.PENDING and delivery.token is None
    goes_on = waits and (delivery.webhook.enabled or delivery.seq is None)
    return {
        "id": str(delivery.pk),
        "type": delivery.type,
        "jobId": str(delivery.job_id) if delivery.job_id else None,
        "status": delivery.status,
        "attempts": delivery.attempts,
        "createdAt": delivery.created_at,
        "nextAttemptAt": delivery.available_at if goes_on else None,
        "finishedAt": delivery.finished_at,
        "log": [attempt(each) for each in delivery.log.all()],
    }


def attempt(attempt: Attempt) -> dict[str, Any]:
    return {
        "at": attempt.at,
        "statusCode": attempt.status_code,
        "error": attempt.error or None,
        "durationMs": attempt.duration_ms,
    }
