"""Completion of jobs whose chunks are all done: exactly one delivered object and one receipt.

A completion has a lease, like a chunk, and can be repeated. An attempt that crashes leaves an unreferenced object in a
folder with its token, which the sweep deletes.
"""

import time
from collections.abc import Callable
from functools import partial
from uuid import UUID

import structlog
from celery.exceptions import SoftTimeLimitExceeded
from django.conf import settings
from django.db import OperationalError, transaction
from django.db.models import Q
from django.db.models.functions import Now
from structlog.contextvars import bound_contextvars

from config.platform import storage
from config.platform.db import sql
from config.platform.heartbeat import LeaseLost
from config.platform.observability import tracing
from config.platform.observability.metrics import CAUGHT
from config.platform.webhooks.wakeups import wake_senders
from exports.core import events, metrics, wakeups
from exports.core.errors import FileGone
from exports.core.states import JobStatus
from exports.delivery import bundles, packs, receipts
from exports.models import Job
from exports.worker import transitions
from exports.worker.adoption import adopt
from exports.worker.heartbeat import heartbeat
from exports.worker.stops import stop_without_servers

log = structlog.get_logger(__name__)

# Time that a worker spends on one message.
DRAIN_SECONDS = 5


def drain(job_id: UUID) -> None:
    """Complete a job, and then other jobs that are ready, until DRAIN_SECONDS have passed.

    So a job whose message was lost need not wait until a full queue of messages is processed.
    """
    deadline = time.monotonic() + DRAIN_SECONDS
    with stop_without_servers():
        storage.require_writable()
        complete(job_id)
        for other in unclaimed_jobs():
            if time.monotonic() > deadline:
                wakeups.completion(other)
                return
            storage.require_writable()
            complete(other)


def complete(job_id: UUID) -> None:
    """Bundle a job's files and issue its receipt, unless the job isn't ready or another worker has claimed it."""
    token = claim(job_id)
    if token is None:
        return
    job = Job.objects.select_related("dataset").get(pk=job_id)
    with (
        tracing.span("completion", parent=job.traceparent, job_id=str(job_id)),
        bound_contextvars(job_id=str(job_id), request_id=job.request_id),
    ):
        attempt(job, token)


def attempt(job: Job, token: int) -> None:
    """Bundle the files, issue the receipt, and record the outcome, under the token of a claim."""
    try:
        with heartbeat(partial(renew, job.job_id, token)) as beat:
            bundle = make_or_repair(job, token, beat.check)
        if bundle:
            issue(job, token, bundle)
    except LeaseLost:
        # Another worker has taken over, or the job was cancelled: no receipt references this attempt's object.
        log.warning("completion_lost")
        bundles.discard(bundles.folder_of_attempt(job, token))
    except OperationalError:
        raise
    except Exception as error:
        record_failure(job, token, error)
        if isinstance(error, SoftTimeLimitExceeded):
            raise
    except BaseException:
        # Shutdown: another worker can start now, and no attempt is counted.
        sql.scalar(RELEASE, job=job.job_id, token=token)
        wakeups.completion(job.job_id)
        raise


def record_failure(job: Job, token: int, error: Exception) -> None:
    """Record a failed attempt with the reason."""
    match error:
        case storage.StorageError():
            if error.is_outage:
                storage.suspect()
            fail(job, token, str(error), is_refused=error.is_outage)
        case bundles.FilesDiffer():
            fail(job, token, error.detail, may_retry=False)
        case SoftTimeLimitExceeded():
            fail(job, token, 'over the worker\'s time limit. The delivery "manifest" is faster')
        case _:
            log.error("unexpected_error", exc_info=error)
            CAUGHT.labels("completion").inc()
            fail(job, token, "unexpected error")


def make_or_repair(job: Job, token: int, checkpoint: Callable[[], None]) -> bundles.Bundle | None:
    """Return the bundle. If a file is missing, queue its chunk, so that it is exported again, and return None."""
    packs.unset_lost_packs(job.pk, token)
    attempt = bundles.Attempt(job=job, token=token, checkpoint=checkpoint, adopt=partial(adopt, token))
    for _ in range(bundles.ADOPTIONS):
        try:
            return bundles.make(attempt)
        except FileGone:
            if export_missing_again(job, token):
                return None
    fail(job, token, "files were replaced during the completion")
    return None


def unclaimed_jobs() -> list[UUID]:
    """Return up to 100 jobs, oldest first, whose chunks are all done and whose completion has not been claimed."""
    free = Q(completion_lease_until=None) | Q(completion_lease_until__lt=Now())
    ready = Job.objects.ready_to_complete().filter(free)
    return list(ready.order_by("created_at").values_list("pk", flat=True)[:100])


# ---- Lease ----------------------------------------------------------------------------------------------------------

# The claim counts the attempt, so that a job whose bundle kills its worker each time also ends: see FAIL_EXHAUSTED.
CLAIM = """
UPDATE exports_jobs
SET completion_token = nextval('exports_fence_seq'), completion_attempts = completion_attempts + 1,
    completion_lease_until = clock_timestamp() + %(lease)s * interval '1 second'
WHERE job_id = %(job)s AND status IN ('running', 'retrying') AND done = total AND completion_attempts < %(attempts)s
  AND (completion_lease_until IS NULL OR completion_lease_until < clock_timestamp())
RETURNING completion_token
"""

RENEW = """
UPDATE exports_jobs SET completion_lease_until = clock_timestamp() + %(lease)s * interval '1 second'
WHERE job_id = %(job)s AND completion_token = %(token)s AND status IN ('running', 'retrying')
RETURNING job_id
"""

RELEASE = """
UPDATE exports_jobs
SET completion_token = NULL, completion_lease_until = NULL, completion_attempts = completion_attempts - 1
WHERE job_id = %(job)s AND completion_token = %(token)s AND status IN ('running', 'retrying')
RETURNING job_id
"""

SUCCEED = (
    """
WITH moved AS (
    UPDATE exports_jobs
    SET status = 'success', finished_at = clock_timestamp(), completion_token = NULL, completion_lease_until = NULL,
        error_code = '', error_detail = '', event_seq = event_seq + 1
    WHERE job_id = %(job)s AND completion_token = %(token)s AND status IN ('running', 'retrying')
    RETURNING job_id, event_seq, status
)
"""
    + events.INSERT_STATUS_EVENTS
    + "SELECT job_id FROM moved"
)

# If the storage refuses the delivery, the attempt is not counted, unless the storage has refused it for too long. The
# delays grow as for chunks, up to `longest`, because each attempt may read and copy all files.
# Unless this was the last attempt, the end of the lease is the time of the next one: the reaper then wakes a worker.
FAIL = (
    """
WITH ours AS MATERIALIZED (
    SELECT job_id, completion_attempts - waits::int AS attempts,
           NOT waits AND completion_attempts >= %(attempts)s AS ends,
           CASE WHEN waits THEN greatest(%(delay)s, least(refused_for / 4, %(longest)s)) ELSE %(delay)s END AS delay
    FROM exports_jobs CROSS JOIN LATERAL (
        SELECT coalesce(extract(epoch FROM clock_timestamp() - refused_at), 0)::float AS refused_for
    ) age CROSS JOIN LATERAL (
        SELECT %(refused)s AND refused_for < %(patience)s AS waits
    ) refusal
    WHERE job_id = %(job)s AND completion_token = %(token)s AND status IN ('running', 'retrying')
    FOR UPDATE OF exports_jobs
), failed AS (
    UPDATE exports_jobs j
    SET status = CASE WHEN ours.ends THEN 'failed' ELSE status END,
        finished_at = CASE WHEN ours.ends THEN clock_timestamp() END,
        completion_attempts = ours.attempts,
        refused_at = CASE WHEN %(refused)s THEN coalesce(refused_at, clock_timestamp()) END,
        error_code = 'EXPORT_BUNDLE_FAILED', error_detail = %(detail)s, completion_token = NULL,
        completion_lease_until = clock_timestamp() + ours.delay * interval '1 second', event_seq = event_seq + 1
    FROM ours WHERE j.job_id = ours.job_id
    RETURNING j.job_id, j.event_seq, j.status, ours.delay
), moved AS (
    SELECT * FROM failed WHERE status = 'failed'
)
"""
    + events.INSERT_STATUS_EVENTS
    + "SELECT status, delay FROM failed"
)

FAIL_EXHAUSTED = (
    """
WITH moved AS (
    UPDATE exports_jobs
    SET status = 'failed', finished_at = clock_timestamp(), completion_token = NULL, event_seq = event_seq + 1,
        error_code = 'EXPORT_BUNDLE_FAILED', error_detail = 'workers crashed or failed at each attempt'
    WHERE status IN ('running', 'retrying') AND done = total AND completion_attempts >= %(attempts)s
      AND (completion_lease_until IS NULL OR completion_lease_until < clock_timestamp())
    RETURNING job_id, event_seq, status
)
"""
    + events.INSERT_STATUS_EVENTS
    + "SELECT job_id FROM moved"
)


def claim(job_id: UUID) -> int | None:
    """Claim the completion of a job. Return None if it isn't due, has ended, or belongs to another worker."""
    env = settings.SLUICE
    token: int | None = sql.scalar(CLAIM, job=job_id, lease=env.export_lease_seconds, attempts=env.export_max_attempts)
    return token


def renew(job_id: UUID, token: int) -> None:
    if not sql.scalar(RENEW, job=job_id, token=token, lease=settings.SLUICE.export_lease_seconds):
        raise LeaseLost


def issue(job: Job, token: int, bundle: bundles.Bundle) -> None:
    """Record the job's success and issue the receipt, in one transaction under the token. Raises LeaseLost."""
    with transaction.atomic():
        if not sql.scalar(SUCCEED, job=job.job_id, token=token):
            raise LeaseLost
        job.refresh_from_db()
        receipts.issue(job, bundle.stored, content_type=bundle.content_type, file_name=bundle.file_name)
    log.info("job_succeeded", chunks=job.total, rows=job.rows, bytes=job.bytes)
    metrics.count_job_status(JobStatus.SUCCESS)
    metrics.JOB_LATENCY.observe(job.milliseconds)
    wake_senders()


def fail(job: Job, token: int, detail: str, *, may_retry: bool = True, is_refused: bool = False) -> None:
    """Record a failed attempt. Schedule the next one, unless no attempts are left or a retry cannot help.

    `is_refused` means that the storage refused the delivery. For EXPORT_STORAGE_PATIENCE_SECONDS, such attempts do not
    count.
    """
    row = sql.one(
        FAIL,
        job=job.job_id,
        token=token,
        detail=transitions.truncated(detail),
        attempts=settings.SLUICE.export_max_attempts if may_retry else 0,
        refused=is_refused,
        patience=settings.SLUICE.export_storage_patience_seconds,
        delay=transitions.retry_delay(job.completion_attempts),
        longest=settings.SLUICE.export_backoff_max_seconds,
    )
    if row is None:
        log.warning("completion_lost")
    elif row["status"] == JobStatus.FAILED:
        log.error("job_failed", code="EXPORT_BUNDLE_FAILED", detail=detail)
        metrics.count_job_status(JobStatus.FAILED)
        wake_senders()
    else:
        log.warning("completion_retrying", detail=detail, delay=round(row["delay"], 1))
        wakeups.completion(job.job_id, delay=row["delay"])


def fail_exhausted() -> None:
    """Fail jobs whose completion has no attempts left and no recorded outcome, because it killed its workers."""
    for row in sql.rows(FAIL_EXHAUSTED, attempts=settings.SLUICE.export_max_attempts):
        log.error("job_failed", job_id=str(row["job_id"]), code="EXPORT_BUNDLE_FAILED")
        metrics.count_job_status(JobStatus.FAILED)


# ---- Replaced and missing files -------------------------------------------------------------------------------------

# The object is missing, unreferenced, or belongs to another dataset or schema version, so the chunk is exported again.
# In the last case, the chunk gets a new path with its dataset and schema version: jobs of two versions would otherwise
# replace each other's files forever. This is the only transition from done to pending, and it happens only while the
# job is active. A reused chunk was refunded when it ended, and must not be refunded again.
REDO = (
    """
WITH ours AS MATERIALIZED (
    SELECT job_id, dataset_id, schema_version, is_young,
           '/dataset-' || dataset_id || '-schema-' || schema_version AS folder
    FROM exports_jobs CROSS JOIN LATERAL (
        SELECT coalesce(started_at > clock_timestamp() - %(patience)s * interval '1 second', false) AS is_young
    ) age
    WHERE job_id = %(job)s AND completion_token = %(token)s AND status IN ('running', 'retrying')
      AND (is_young OR completion_attempts < %(attempts)s)
    FOR UPDATE OF exports_jobs
), back AS (
    UPDATE exports_chunk c
    SET status = 'pending', attempts = 0, reusable = false, source = '', finished_at = NULL, started_at = NULL,
        refused_at = NULL, error_code = '', error_detail = '', source_message = '', pack = NULL, pack_offset = NULL,
        rows = NULL, bytes = NULL, header_bytes = 0, sha256 = '', etag = '', data_as_of = NULL,
        charged = c.charged AND was.source <> 'reused',
        path = CASE WHEN EXISTS (
                   SELECT 1 FROM exports_file f WHERE f.path = c.path
                   AND (f.dataset_id, f.schema_version) <> (ours.dataset_id, ours.schema_version)
               ) THEN replace(c.path, name.last_part, ours.folder || name.last_part) ELSE c.path END
    FROM ours, exports_chunk was CROSS JOIN LATERAL (
        SELECT to_char(was.effective_date, '/YYYY/MM/DD/') || was.key || '_' AS last_part
    ) name
    WHERE c.id = ANY(%(chunks)s) AND was.id = c.id AND c.job_id = ours.job_id AND c.status = 'done'
    RETURNING c.id, c.job_id, c.status, c.seq, was.rows, was.bytes, was.source
), numbered AS (
    SELECT job_id, id, status, row_number() OVER (ORDER BY seq) AS nth FROM back
), lost AS (
    SELECT count(*) AS chunks, coalesce(sum(rows), 0) AS rows, coalesce(sum(bytes), 0) AS bytes,
           count(*) FILTER (WHERE source = 'reused') AS reused, count(*) FILTER (WHERE source = 'snapshot') AS degraded
    FROM back
), settled AS (
    UPDATE exports_jobs j
    SET done = j.done - lost.chunks, rows = j.rows - lost.rows, bytes = j.bytes - lost.bytes,
        reused = j.reused - lost.reused, degraded = j.degraded - lost.degraded,
        completion_token = NULL, completion_lease_until = NULL, event_seq = j.event_seq + lost.chunks + 2,
        completion_attempts = j.completion_attempts - ours.is_young::int
    FROM lost, ours WHERE j.job_id = ours.job_id
    RETURNING j.job_id, j.event_seq, j.status, j.status AS was, lost.chunks
)
"""
    + events.INSERT_CHUNK_EVENTS
    + "SELECT chunks FROM settled"
)


def export_missing_again(job: Job, token: int) -> int:
    """Queue the chunks whose files are missing, so that they are exported again. Return the number of chunks.

    For EXPORT_STORAGE_PATIENCE_SECONDS after the job's start, no attempt is counted, because another schema version of
    the dataset may be exported to the same paths. After that, the job fails if no attempts are left.
    """
    chunks = bundles.chunks_without_file(job)
    if not chunks:
        return 0
    patience = settings.SLUICE.export_storage_patience_seconds
    redone: int | None = sql.scalar(
        REDO,
        job=job.job_id,
        token=token,
        chunks=chunks,
        patience=patience,
        attempts=settings.SLUICE.export_max_attempts,
    )
    if redone is None:
        fail(job, token, "files were deleted or replaced during the completion")
        return len(chunks)
    log.warning("files_gone", redone=redone)
    wakeups.chunks(waiting=redone)
    return redone
