"""Deletion of old rows: jobs, events, quota usage, and schedule runs."""

from collections.abc import Callable
from datetime import timedelta

import structlog
from django.conf import settings
from django.db import OperationalError, transaction
from django.db.models import CharField, Exists, OuterRef, Q, Value
from django.db.models.functions import Cast, Concat, Now
from psycopg.errors import DeadlockDetected

from config.platform.db import usage
from config.platform.observability import logs
from exports.core.states import JOB_ENDED, ChunkStatus, JobStatus
from exports.models import Chunk, Delivery, Event, Job, Schedule, ScheduleRun, Usage

log = structlog.get_logger(__name__)

EVENTS_KEPT = timedelta(days=1)  # after the end of their job
SCHEDULE_RUNS_KEPT = timedelta(days=90)
JOBS_AT_ONCE = 50
MAX_DEADLOCKS = 10
JOBS_OF_EVENTS_AT_ONCE = 20


def in_batches(delete_batch: Callable[[], int]) -> int:
    """Delete batches until no rows are left, and return the number of rows. After a deadlock, a batch is repeated."""
    deleted = deadlocks = 0
    while True:
        try:
            some = delete_batch()
        except OperationalError as error:
            deadlocks += 1
            if not isinstance(error.__cause__, DeadlockDetected) or deadlocks > MAX_DEADLOCKS:
                raise
            log.warning("deadlock", error=logs.describe(error))
            continue
        if not some:
            return deleted
        deleted += some


def purge_jobs() -> None:
    """Delete jobs that ended EXPORT_JOB_RETENTION_DAYS ago, with their dependent rows.

    Files are kept: they belong to the reuse cache, not to the job.
    """
    log.info("purged", jobs=in_batches(purge_batch))


def purge_batch() -> int:
    """Delete a batch of jobs. The lock on their rows excludes jobs that are being retried at the same time.

    A job is kept until its delivered object has been deleted and the webhook deliveries of its final event have been
    created. The latest successful job of a schedule is kept if the schedule exports the days since its last success.
    """
    before = Now() - timedelta(days=settings.SLUICE.export_job_retention_days)
    settled = ~Exists(Event.objects.awaiting_fan_out().filter(job=OuterRef("pk")))
    newer = Job.objects.filter(
        schedule_id=OuterRef("schedule_id"), status=JobStatus.SUCCESS, created_at__gt=OuterRef("created_at")
    )
    schedule = Schedule.objects.filter(pk=OuterRef("schedule_id"), since_last_success=True)
    old = (
        Job.objects.ended()
        .filter(settled, ~Q(Exists(schedule), ~Exists(newer), status=JobStatus.SUCCESS), finished_at__lt=before)
        .exclude(receipt__deleted_at=None, receipt__isnull=False)
    )
    with transaction.atomic():
        found = list(old.values_list("pk", flat=True)[:JOBS_AT_ONCE])
        # A retry also locks failed chunks before their jobs, in the order of their IDs. No other chunks can change.
        failed = Chunk.objects.filter(job__in=found, status=ChunkStatus.FAILED).order_by("pk")
        list(failed.select_for_update().values_list("pk"))
        locked = old.filter(pk__in=found).order_by("pk").select_for_update(of=("self",), skip_locked=True)
        batch = list(locked.values_list("pk", flat=True))
        # Webhook deliveries outlive their job. Its ID in their subject keeps the waiting ones in order.
        subject = Concat(Value("export:"), Cast("job_id", CharField()))
        Delivery.objects.filter(job__in=batch).update(subject=subject, job=None)
        Job.objects.filter(pk__in=batch).delete()
    return len(batch)


def delete_old_usage() -> None:
    """Delete the quota usage of days for which no more refunds are possible."""
    Usage.objects.delete_old(kept=max(timedelta(days=settings.SLUICE.export_job_retention_days), usage.RETENTION))


def delete_old_schedule_runs() -> None:
    """Delete old runs of schedules, except the newest run of each schedule."""
    newer = ScheduleRun.objects.filter(schedule=OuterRef("schedule"), pk__gt=OuterRef("pk"))
    ScheduleRun.objects.filter(Exists(newer), at__lt=Now() - SCHEDULE_RUNS_KEPT).delete()


def delete_old_events() -> int:
    """Delete the events of jobs that ended at least a day ago.

    A client that reconnects to such a job's event stream receives a `snapshot` event. The events of a job are deleted
    together, so that no gaps appear in their numbers. They are kept until the webhook deliveries of the job's final
    event have been created.
    """
    deleted = in_batches(delete_batch_of_events)
    if deleted:
        log.info("events_deleted", events=deleted)
    return deleted


def delete_batch_of_events() -> int:
    """Delete the events of a batch of jobs. The lock on the jobs excludes those that are being retried.

    The query starts from events, the oldest first, because nearly all ended jobs no longer have events.
    """
    ended = (
        Job.objects.ended()
        .filter(
            events__kind=Event.Kind.STATUS,
            events__status__in=sorted(JOB_ENDED),
            events__at__lt=Now() - EVENTS_KEPT,
            events__told_at__isnull=False,
            finished_at__lt=Now() - EVENTS_KEPT,
        )
        .exclude(Exists(Event.objects.awaiting_fan_out().filter(job=OuterRef("pk"))))
        .order_by("events__at")
    )
    with transaction.atomic():
        locked = ended.select_for_update(of=("self",), skip_locked=True)
        batch = list(locked.values_list("pk", flat=True)[:JOBS_OF_EVENTS_AT_ONCE])
        deleted, _ = Event.objects.filter(job_id__in=batch).delete()
    return deleted
