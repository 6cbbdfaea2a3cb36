"""Deletion of old rows: jobs, quota usage and events."""

from collections.abc import Callable
from datetime import timedelta

import structlog
from django.conf import settings
from django.db import OperationalError, transaction
from django.db.models import Exists, OuterRef, Q
from django.db.models.functions import Now
from psycopg.errors import DeadlockDetected

from config.platform.db import usage
from config.platform.observability import logs
from exports.core.states import JOB_ENDED, ChunkStatus, JobStatus
from exports.models import Chunk, Event, Job, Schedule, ScheduleRun, Usage

log = structlog.get_logger(__name__)

EVENTS_KEPT = timedelta(days=1)  # after the end of their job
SCHEDULE_RUNS_KEPT = timedelta(days=90)
JOBS_AT_ONCE = 50
MAX_DEADLOCKS = 10
JOBS_OF_EVENTS_AT_ONCE = 20


def in_batches(delete_some: Callable[[], int]) -> int:
    """Delete batches until none is left, and return the number of rows. A batch that meets a deadlock is repeated."""
    deleted = deadlocks = 0
    while True:
        try:
            some = delete_some()
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

    Files stay: they belong to the reuse cache, not to the job.
    """
    log.info("purged", jobs=in_batches(purge_some))


def purge_some() -> int:
    """Delete a batch of jobs. Locking their rows keeps a job that is being retried at this moment.

    A job stays until the webhook deliveries of its end are created. So does the newest success of a schedule that
    exports the days since then.
    """
    before = Now() - timedelta(days=settings.SLUICE.export_job_retention_days)
    settled = ~Exists(Event.objects.without_deliveries().filter(job=OuterRef("pk")))
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
        # Failed chunks before their jobs, and by their ids, as a retry locks them. No other statement changes the rest.
        failed = Chunk.objects.filter(job__in=found, status=ChunkStatus.FAILED).order_by("pk")
        list(failed.select_for_update().values_list("pk"))
        locked = old.filter(pk__in=found).order_by("pk").select_for_update(of=("self",), skip_locked=True)
        batch = list(locked.values_list("pk", flat=True))
        Job.objects.filter(pk__in=batch).delete()
    return len(batch)


def delete_old_usage() -> None:
    """Delete the usage of days that can get no more refunds."""
    Usage.objects.delete_old(kept=max(timedelta(days=settings.SLUICE.export_job_retention_days), usage.RETENTION))


def delete_old_schedule_runs() -> None:
    """Delete old runs of schedules, but not the newest of each."""
    newer = ScheduleRun.objects.filter(schedule=OuterRef("schedule"), pk__gt=OuterRef("pk"))
    ScheduleRun.objects.filter(Exists(newer), at__lt=Now() - SCHEDULE_RUNS_KEPT).delete()


def delete_old_events() -> int:
    """Delete the events of jobs that ended a day ago. A client that reconnects to such a stream gets a snapshot.

    All events of a job are deleted, or none, so that a kept sequence has no gaps. None are deleted while the webhook
    deliveries of the job's end are still to be created.
    """
    deleted = in_batches(delete_some_events)
    if deleted:
        log.info("events_deleted", events=deleted)
    return deleted


def delete_some_events() -> int:
    """Delete the events of a batch of jobs. Locking the jobs keeps the events of one that is being retried.

    Finds them by their events, the oldest first: nearly all jobs that ended have none any more.
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
        .exclude(Exists(Event.objects.without_deliveries().filter(job=OuterRef("pk"))))
        .order_by("events__at")
    )
    with transaction.atomic():
        locked = ended.select_for_update(of=("self",), skip_locked=True)
        batch = list(locked.values_list("pk", flat=True)[:JOBS_OF_EVENTS_AT_ONCE])
        deleted, _ = Event.objects.filter(job_id__in=batch).delete()
    return deleted
