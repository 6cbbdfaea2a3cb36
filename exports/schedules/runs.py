"""Scheduler of recurring exports. Each planned time is handled exactly once, even with several processes.

A schedule stays locked while a planned time is handled. The outcome, the job, and the next planned time are saved in
one transaction, so a process that crashes leaves either all of them or none. Celery beat's message only starts
`run_due`.
"""

import time
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

import structlog
from django.conf import settings
from django.db import transaction

from config.platform.http.problems import BadInput, Problem
from config.platform.observability.metrics import CAUGHT
from exports.core import metrics
from exports.delivery.links import ClientBinding
from exports.jobs import submission
from exports.jobs.quotas import QuotaExceeded
from exports.models import Job, Schedule, ScheduleRun
from exports.models.schedule import LATE, MAX_REASON, Misfire
from exports.schedules.requests import Reader, read_request
from exports.schedules.timetable import InvalidTimetable, Timetable

log = structlog.get_logger(__name__)

EVERY_SECONDS = 15  # between two messages of Celery beat
DRAIN_SECONDS = 60.0
RECHECK = timedelta(seconds=30)  # delay of a planned run that waits for an earlier run to end
Outcome = ScheduleRun.Outcome


class RunActive(Problem):
    status = 409
    code = "run_active"
    detail = "An earlier run of this schedule has not ended. Wait for it, or cancel its export."


class ScheduleInvalid(Problem):
    status = 409
    code = "schedule_invalid"
    detail = "The request of this schedule is no longer valid. Change the schedule."


# ---- Planned times --------------------------------------------------------------------------------------------------


def run_due(read: Reader, *, now: datetime) -> int:
    """Run the schedules that are due, each in a separate transaction. Return the number of these schedules.

    Stops after DRAIN_SECONDS, and the next message continues. Several processes share the work. A schedule whose
    transaction fails stays due, and does not block the others.
    """
    until, failed, handled = time.monotonic() + DRAIN_SECONDS, list[UUID](), 0
    while time.monotonic() < until and run_next(read, now=now, failed=failed):
        handled += 1
    return handled


def run_next(read: Reader, *, now: datetime, failed: list[UUID]) -> bool:
    """Run the most overdue schedule that no other process has locked. Return False if none is due."""
    with transaction.atomic():
        due = Schedule.objects.due(now).exclude(pk__in=failed).select_related("user")
        schedule = due.select_for_update(of=("self",), skip_locked=True).first()
        if schedule is None:
            return False
        try:
            with transaction.atomic():
                handle_due(schedule, read, now)
        except Exception:
            CAUGHT.labels("schedule").inc()
            log.exception("schedule_failed", schedule_id=str(schedule.pk))
            failed.append(schedule.pk)
    return True


def handle_due(schedule: Schedule, read: Reader, now: datetime) -> None:
    """Start, skip, or postpone the planned run of a locked schedule, and plan the next one."""
    first = schedule.next_run_at
    assert first is not None  # noqa: S101 - enforced by a constraint for enabled schedules
    try:
        timetable = Timetable.read(schedule.cron, schedule.timezone)
    except InvalidTimetable as refusal:
        return disable_invalid(schedule, first, refusal.detail)
    if not schedule.user.is_active:
        return disable_invalid(schedule, first, "The account of the owner is deactivated.")
    planned, is_late = select_planned(schedule, timetable, first, now)
    if planned > first:
        record(schedule, first, Outcome.SKIPPED, "Missed, with all planned times until the next entry.")
    if not is_late and schedule.misfire == Misfire.CATCH_UP and is_active(schedule):
        schedule.next_run_at, schedule.check_at = planned, now + RECHECK
        return schedule.save()
    start_or_skip(schedule, timetable, planned, read, is_late=is_late)
    return plan_next(schedule, timetable.next(planned))


def start_or_skip(schedule: Schedule, timetable: Timetable, planned: datetime, read: Reader, *, is_late: bool) -> None:
    """Start or skip a planned run. An invalid request disables the schedule."""
    if is_late:
        record(schedule, planned, Outcome.SKIPPED, "Missed: the scheduler did not run at that time.")
    elif is_active(schedule):
        record(schedule, planned, Outcome.SKIPPED, "The earlier run had not ended.")
    else:
        start(schedule, timetable, planned, read)


def plan_next(schedule: Schedule, following: datetime | None) -> None:
    """Set the next planned time, unless the schedule was disabled, and save the schedule."""
    if schedule.enabled and following:
        schedule.plan(following)
    elif schedule.enabled:
        schedule.disable("The timetable has no more dates.")
    schedule.save()


def select_planned(schedule: Schedule, timetable: Timetable, first: datetime, now: datetime) -> tuple[datetime, bool]:
    """Return the planned time to start or skip, and whether it is too late to start. Earlier ones are skipped.

    Schedules that catch up continue with the oldest of the last EXPORT_SCHEDULE_CATCH_UP planned times, others with the
    latest one.
    """
    catches_up = schedule.misfire == Misfire.CATCH_UP
    limit = settings.SLUICE.export_schedule_catch_up if catches_up else 1
    # No planned time is found if the rules of the time zone have changed since `first` was planned.
    planned = (timetable.newest(limit, since=first, until=now) or [first])[0]
    return planned, not catches_up and now - planned > LATE


def start(schedule: Schedule, timetable: Timetable, planned: datetime, read: Reader) -> None:
    """Create the job of a planned run. If it exceeds the quota, it is not retried."""
    if schedule.runs.filter(planned_at=planned).exists():  # planned again after the clock was set back
        return
    caller = submission.Caller(
        user_id=schedule.user_id, binding=binding_of(schedule), schedule_id=schedule.pk, planned_at=planned
    )
    try:
        day = timetable.planned_date(planned)
        job, _ = submission.submit(lambda: read_request(schedule, day, read), caller)
    except QuotaExceeded as refusal:
        record(schedule, planned, Outcome.REFUSED, refusal.detail)
    except BadInput as refusal:
        disable_invalid(schedule, planned, in_words(refusal))
    else:
        record(schedule, planned, Outcome.STARTED, job=job)


def binding_of(schedule: Schedule) -> ClientBinding:
    """Return the binding of the first link of each export, to the client that created the schedule."""
    return ClientBinding(network=schedule.network, agent=schedule.agent)


def is_active(schedule: Schedule) -> bool:
    return Job.objects.active().filter(schedule_id=schedule.pk).exists()


def disable_invalid(schedule: Schedule, planned: datetime, reason: str) -> None:
    """Record that a planned run is invalid, and disable its schedule."""
    record(schedule, planned, Outcome.INVALID, reason)
    schedule.disable(reason)
    schedule.save()


def record(
    schedule: Schedule, planned: datetime | None, outcome: Outcome, detail: str = "", *, job: Job | None = None
) -> None:
    values: dict[str, Any] = {"outcome": outcome, "detail": detail[:MAX_REASON], "job_id": job.pk if job else None}
    if planned is None:
        schedule.runs.create(**values)
    else:
        schedule.runs.get_or_create(planned_at=planned, defaults=values)
    metrics.SCHEDULE_RUNS.labels(outcome.value).inc()
    log.info("schedule_run", schedule_id=str(schedule.pk), outcome=outcome.value, job_id=str(job.pk) if job else None)


def in_words(refusal: BadInput) -> str:
    return " ".join(f"{error.pointer}: {error.detail}" for error in refusal.errors[:3])


# ---- Manual runs ----------------------------------------------------------------------------------------------------


def run_now(schedule: Schedule, read: Reader, caller: submission.Caller, *, now: datetime) -> tuple[Job, bool]:
    """Create a job for today, in the schedule's time zone, even if the schedule is paused.

    The next planned time does not change. The quota of the caller's user is charged. Return the job, and whether an
    earlier request with the same idempotency key created it. Raises RunActive, ScheduleInvalid, and the problems of
    `submission.submit`.
    """
    try:
        day = Timetable.read(schedule.cron, schedule.timezone).local_date(now)
    except InvalidTimetable as refusal:
        raise ScheduleInvalid(refusal.detail) from None

    def checked_request() -> submission.ExportRequest:
        if is_active(schedule):
            raise RunActive
        return read_request(schedule, day, read)

    try:
        with transaction.atomic():
            job, replayed = submission.submit(checked_request, replace(caller, schedule_id=schedule.pk))
            if not replayed:
                record(schedule, None, Outcome.STARTED, job=job)
    except BadInput as refusal:
        raise ScheduleInvalid(f"{ScheduleInvalid.detail} {in_words(refusal)}") from None
    return job, replayed
