"""Actions on jobs: retry the failed chunks, cancel a job, and replay its request."""

from collections.abc import Collection

import structlog
from django.conf import settings
from django.db import transaction

from config.platform.db import sql
from config.platform.http import audit
from config.platform.http.problems import Problem
from config.platform.webhooks.wakeups import wake_senders
from exports.core import events, metrics, planning, wakeups
from exports.core.states import ChunkStatus, JobStatus
from exports.delivery import access
from exports.jobs import quotas, submission, turns, webhook_events
from exports.models import Dataset, Job

log = structlog.get_logger(__name__)


class NotFailed(Problem):
    status = 409
    code = "not_failed"
    detail = "This export has not failed. Only failed exports can be retried."


class AlreadyEnded(Problem):
    status = 409
    code = "already_ended"
    detail = "This export has already ended. Only exports that have not ended can be cancelled."


class NotReplayable(Problem):
    status = 409
    code = "not_replayable"
    detail = (
        "The limits, the dataset's formats or key pattern, or your access to it have changed since this export was "
        "created. The same request is no longer valid; create a new export."
    )


# ---- Retry ----------------------------------------------------------------------------------------------------------

# Chunks are locked before the job and in the order of their IDs, as in all statements. The condition on the job makes
# the second of two retries a no-op, even if it waited until the chunks of the first retry had failed again, which its
# snapshot does not show. With `only`, some of the failed chunks are retried; when these have ended, the job fails again
# because of the others. The retried chunks rank behind the waiting chunks of their owner, like those of a new job: with
# their old ranks, they would be first. The job's error is copied to its newest event, the failure, before it is
# cleared.
RETRY = (
    """
WITH mine AS MATERIALIZED (
    SELECT id FROM exports_chunk
    WHERE job_id = %(job)s AND status = 'failed' AND (%(only)s::bigint[] IS NULL OR id = ANY(%(only)s::bigint[]))
      AND EXISTS (SELECT 1 FROM exports_jobs WHERE job_id = %(job)s AND status = 'failed')
    ORDER BY id FOR UPDATE
), ranked AS (
    SELECT c.id, %(rank)s::bigint - 1 + row_number() OVER (ORDER BY c.seq) AS rank
    FROM exports_chunk c JOIN mine USING (id)
), again AS (
    UPDATE exports_chunk c
    SET status = 'pending', rank = ranked.rank, attempts = 0, reusable = false, started_at = NULL, finished_at = NULL,
        refused_at = NULL, error_code = '', error_detail = '', source_message = '', charged = true,
        charged_on = (statement_timestamp() AT TIME ZONE 'UTC')::date
    FROM ranked WHERE c.id = ranked.id AND c.status = 'failed'
    RETURNING c.id, c.job_id, c.status, c.seq, c.charged_on
), numbered AS (
    SELECT job_id, id, status, row_number() OVER (ORDER BY seq) AS nth FROM again
), failure AS (
    UPDATE exports_event e SET error_code = j.error_code, error_detail = j.error_detail
    FROM exports_jobs j
    WHERE j.job_id = %(job)s AND e.job_id = j.job_id AND e.seq = j.event_seq AND j.status = 'failed'
), settled AS (
    UPDATE exports_jobs j
    SET status = 'running', failed = j.failed - delta.chunks, finished_at = NULL,
        error_code = CASE WHEN j.failed > delta.chunks THEN j.error_code ELSE '' END,
        error_detail = CASE WHEN j.failed > delta.chunks THEN j.error_detail ELSE '' END,
        completion_attempts = 0, completion_token = NULL, completion_lease_until = NULL, refused_at = NULL,
        resumed_at = clock_timestamp(), resumed_ended = j.done + j.failed + j.cancelled - delta.chunks,
        charged_on = coalesce(delta.charged_on, j.charged_on), event_seq = j.event_seq + delta.chunks + 2
    FROM (SELECT count(*) AS chunks, max(charged_on) AS charged_on FROM again) delta
    WHERE j.job_id = %(job)s AND j.status = 'failed'
      AND delta.chunks = coalesce(cardinality(%(only)s::bigint[]), j.failed)
    RETURNING j.job_id, j.event_seq, j.status, 'failed' AS was, delta.chunks, j.charged_on
)
"""
    + events.INSERT_CHUNK_EVENTS
    + "SELECT chunks, charged_on FROM settled"
)


def retry(job: Job, *, only: Collection[int] | None = None) -> int:
    """Queue the failed chunks of a failed job again, with a full set of attempts. Return their number.

    They are charged again. A job that failed while its files were bundled has no failed chunks: only bundling is
    retried then, free of charge. `only`: the IDs of the chunks to retry, all of which must have failed. Raises
    AccessRemoved, NotFailed, and QuotaExceeded, and changes nothing in these cases.
    """
    access.require(job)
    with transaction.atomic():
        lock_failed(job, only)
        webhook_events.fan_out_job(job.pk)
        rank = turns.next_rank(user_id=job.user_id, dataset_id=job.dataset_id)
        retried = sql.one(RETRY, job=job.job_id, only=None if only is None else list(only), rank=rank)
        if retried is None:
            raise NotFailed
        chunks: int = retried["chunks"]
        if chunks:
            quotas.debit(user_id=job.user_id, jobs=0, chunks=chunks, day=retried["charged_on"])
        audit.record_change(job_id=job.pk)
    metrics.count_job_status(JobStatus.RUNNING)
    log.info("job_retried", job_id=str(job.job_id), chunks=chunks)
    if chunks:
        wakeups.chunks(waiting=chunks)
    else:
        wakeups.completion(job.job_id)
    return chunks


def lock_failed(job: Job, only: Collection[int] | None) -> None:
    """Lock the failed chunks of a job, then the job, so that its row does not change before RETRY."""
    failed = job.chunks.filter(status=ChunkStatus.FAILED)
    if only is not None:
        failed = failed.filter(pk__in=only)
    list(failed.order_by("pk").select_for_update().values_list("pk"))
    Job.objects.select_for_update(no_key=True).filter(pk=job.pk).values_list("pk").first()


# ---- Cancel ---------------------------------------------------------------------------------------------------------

# Chunks are locked before the job, and in the order in which a finishing batch locks them. Running chunks lose their
# token, which fences off their worker: at its next part or heartbeat, it stops its call and its upload, and frees its
# slot. `old` locks the job after the chunks. If chunks returned to the queue while this statement waited for the job's
# lock, its snapshot does not contain them: the counts do not add up, nothing is changed, and `cancel` tries again.
# The chunks of a large job are cancelled in parts. The last part ends the job.
CANCEL = (
    """
WITH mine AS MATERIALIZED (
    SELECT id FROM exports_chunk
    WHERE job_id = %(job)s AND seq >= %(first)s AND seq < %(end)s AND status IN ('pending', 'running', 'retrying')
    ORDER BY id FOR UPDATE
), ended AS (
    UPDATE exports_chunk c
    SET status = 'cancelled', token = NULL, lease_until = NULL, available_at = NULL, finished_at = clock_timestamp()
    FROM mine WHERE c.id = mine.id AND c.status IN ('pending', 'running', 'retrying')
    RETURNING c.id, c.job_id, c.status, c.seq, c.source, c.charged, c.charged_on
), numbered AS (
    SELECT job_id, id, status, row_number() OVER (ORDER BY seq) AS nth FROM ended
), delta AS MATERIALIZED (
    SELECT count(*) AS chunks FROM ended
), old AS MATERIALIZED (
    SELECT job_id, status FROM exports_jobs
    WHERE job_id = %(job)s AND status IN ('pending', 'running', 'retrying') AND (SELECT chunks FROM delta) >= 0
    FOR UPDATE
), settled AS (
    UPDATE exports_jobs j
    SET status = CASE WHEN %(is_last)s THEN 'cancelled' ELSE j.status END, cancelled = j.cancelled + delta.chunks,
        retrying = 0, finished_at = CASE WHEN %(is_last)s THEN clock_timestamp() END,
        error_code = '', error_detail = '', completion_token = NULL, completion_lease_until = NULL,
        event_seq = j.event_seq + delta.chunks + 2
    FROM old, delta
    WHERE j.job_id = old.job_id AND j.status IN ('pending', 'running', 'retrying')
      AND (NOT %(is_last)s OR j.done + j.failed + j.cancelled + delta.chunks = j.total)
    RETURNING j.job_id, j.user_id, j.charged_on, j.event_seq, j.status, old.status AS was, delta.chunks
)
"""
    + quotas.REFUND
    + events.INSERT_CHUNK_EVENTS
    + "SELECT chunks FROM settled"
)


# Locks the chunks of all parts before the first part locks the job, so that no status changes between the parts.
LOCK_ACTIVE = """
SELECT count(*) FROM (
    SELECT FROM exports_chunk
    WHERE job_id = %(job)s AND seq >= %(first)s AND seq < %(end)s AND status IN ('pending', 'running', 'retrying')
    ORDER BY id FOR UPDATE
) locked
"""


def cancel(job: Job) -> int:
    """Cancel an active job. Return the number of cancelled chunks. Raises AlreadyEnded.

    Finished files are kept for reuse.
    """
    while (chunks := try_to_cancel(job)) is None:
        if not Job.objects.active().filter(pk=job.pk).exists():
            raise AlreadyEnded
    metrics.count_job_status(JobStatus.CANCELLED)
    log.info("job_cancelled", job_id=str(job.job_id), chunks=chunks)
    wake_senders()
    return chunks


def try_to_cancel(job: Job) -> int | None:
    """Cancel the job. Return the number of cancelled chunks, or None if a concurrent change prevented it."""
    parts = submission.parts(job.total)
    chunks = 0
    with transaction.atomic():
        if len(parts) > 1:
            for part in parts:
                sql.scalar(LOCK_ACTIVE, job=job.job_id, first=part.start, end=part.stop)
        for part in parts:
            of_part = {"first": part.start, "end": part.stop, "is_last": part is parts[-1]}
            cancelled: int | None = sql.scalar(CANCEL, job=job.job_id, **of_part)
            if cancelled is None:
                transaction.set_rollback(True)
                return None
            chunks += cancelled
        audit.record_change(job_id=job.pk)
    return chunks


# ---- Replay ---------------------------------------------------------------------------------------------------------


def replay(job: Job, caller: submission.Caller) -> tuple[Job, bool]:
    """Submit the request of a job again by `submission.submit`. Also raises NotReplayable."""
    return submission.submit(lambda: request_of(job, caller.user_id), caller)


def request_of(job: Job, user_id: int) -> submission.ExportRequest:
    """Return the request that created a job, as a request of this user for the current version of the dataset."""
    # Read all fields with one query. The dataset of a job from `representation.find` would load each missing field with
    # a separate query, and a concurrent registration could combine a function with the wrong schema version.
    dataset = Dataset.objects.granted_to(user_id).filter(pk=job.dataset_id).first()
    if dataset is None:
        raise NotReplayable
    if dataset.built_in:
        pairs = [submission.built_in_pair(dataset.built_in, job.filters or {})]
    else:
        pairs = [planning.Pair(*row) for row in job.chunks.in_request_order().values_list("key", "effective_date")]
    fits = dataset.key_check()
    if (
        job.format not in dataset.formats
        or len(pairs) > settings.SLUICE.export_max_chunks_per_job
        or not all(fits(pair.key) for pair in pairs)
        or not has_columns(dataset, job.columns or [])
    ):
        raise NotReplayable
    return submission.ExportRequest(
        dataset=dataset,
        pairs=pairs,
        duplicates=job.duplicates,
        shape=job.shape,
        delivery=job.delivery,
        reuse=job.reuse,
        allow_degraded=job.allow_degraded,
        delivery_ttl=min(job.ttl, settings.SLUICE.export_delivery_ttl_max_seconds),
        filters=job.filters,
        name=job.name,
    )


def has_columns(dataset: Dataset, names: list[str]) -> bool:
    """Return whether the dataset has these columns. True if its columns are unknown; the call may fail then."""
    return dataset.columns is None or {column["name"] for column in dataset.columns} >= set(names)
