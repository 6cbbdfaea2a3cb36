"""Changes to schedules by their owners: create, change, pause, resume, delete, and run now."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime
from typing import Any
from uuid import UUID

import structlog
from django.db import transaction

from config.platform.db.locks import lock_user
from config.platform.http import audit
from config.platform.http.problems import BadInput, InputError, NotFound, Problem, require_first
from exports.jobs import submission
from exports.models import Job, Schedule
from exports.schedules import runs
from exports.schedules.requests import Reader, read_request
from exports.schedules.timetable import InvalidTimetable, Timetable

log = structlog.get_logger(__name__)

MAX_PER_USER = 100
PAUSED_REASON = "Paused by a user."
# The columns that determine when runs start and what they request.
VALIDATED = {"cron", "timezone", "request", "window_from", "window_to", "since_last_success"}


class TooManySchedules(Problem):
    status = 409
    code = "too_many_schedules"
    detail = f"You have reached the limit of {MAX_PER_USER} schedules. Delete one first."


class NoSuchSchedule(NotFound):
    detail = "Schedule not found."


def owned(schedule_id: UUID, *, user_id: int) -> Schedule:
    """Return the user's schedule. Raises NoSuchSchedule for other users, including staff, who use the admin."""
    return require_first(Schedule.objects.filter(pk=schedule_id, user_id=user_id), NoSuchSchedule)


@contextmanager
def locked_for_change(schedule: Schedule) -> Iterator[Schedule]:
    """Lock the schedule's row in a transaction, and record the change in the audit log. Raises NoSuchSchedule.

    The lock is needed because the scheduler changes the same columns.
    """
    with transaction.atomic():
        yield require_first(Schedule.objects.select_for_update().filter(pk=schedule.pk), NoSuchSchedule)
        audit.record_change(schedule_id=schedule.pk)


def create(
    values: Callable[[], dict[str, Any]], read: Reader, caller: submission.Caller, *, now: datetime
) -> tuple[Schedule, bool]:
    """Create a schedule. Return it, and whether an earlier request with the same idempotency key created it.

    `values` reads the columns from the request. It is not called for a repeated request, which may be invalid by now.
    Raises BadInput, TooManySchedules, KeyReused, and InFlight.
    """
    idempotency, rows = caller.idempotency, Schedule.objects.all()
    if idempotency and (schedule := idempotency.find(rows, user_id=caller.user_id)):
        return schedule, True
    schedule = Schedule(
        user_id=caller.user_id, **values(), **caller.binding, **(idempotency.columns if idempotency else {})
    )
    timetable = validate(schedule, read, now)
    if schedule.enabled:
        plan(schedule, timetable, now)
    else:
        schedule.disable(PAUSED_REASON)
    with transaction.atomic():
        if idempotency and (earlier := idempotency.claim(rows, user_id=caller.user_id)):
            return earlier, True
        lock_user(caller.user_id)
        if rows.filter(user_id=caller.user_id).count() >= MAX_PER_USER:
            raise TooManySchedules
        schedule.save(force_insert=True)
        audit.record_change(schedule_id=schedule.pk)
    schedule.refresh_from_db()
    log.info("schedule_created", schedule_id=str(schedule.pk))
    return schedule, False


def change(schedule: Schedule, changes: dict[str, Any], read: Reader, *, now: datetime) -> Schedule:
    """Change the columns in `changes`. Of concurrent changes of a column, the last one wins.

    After a change of the timetable, and when the schedule is resumed, the next run is the first planned time after now.
    The request is validated when the schedule is resumed, and after a change of the timetable, request, or window.
    Raises BadInput and NoSuchSchedule.
    """
    with locked_for_change(schedule) as current:
        was_enabled, old_timetable = current.enabled, (current.cron, current.timezone)
        for name, value in changes.items():
            setattr(current, name, value)
        is_resumed = current.enabled and not was_enabled
        if is_resumed or changes.keys() & VALIDATED:
            timetable = validate(current, read, now)
            if current.enabled and (is_resumed or old_timetable != (current.cron, current.timezone)):
                plan(current, timetable, now)
        if was_enabled and not current.enabled:
            current.disable(PAUSED_REASON)
        current.save()
    log.info("schedule_changed", schedule_id=str(current.pk))
    return current


def pause(schedule: Schedule, read: Reader, *, now: datetime) -> Schedule:
    return change(schedule, {"enabled": False}, read, now=now)


def resume(schedule: Schedule, read: Reader, *, now: datetime) -> Schedule:
    return change(schedule, {"enabled": True}, read, now=now)


def delete(schedule: Schedule) -> None:
    """Delete a schedule and its history. Its exports are kept, with the ID of the schedule."""
    with locked_for_change(schedule) as current:
        current.delete()
    log.info("schedule_deleted", schedule_id=str(schedule.pk))


def run_now(schedule: Schedule, read: Reader, caller: submission.Caller, *, now: datetime) -> tuple[Job, bool]:
    """Start a run now, as `runs.run_now` does, under the schedule's lock. Also raises NoSuchSchedule."""
    with locked_for_change(schedule) as current:
        return runs.run_now(current, read, caller, now=now)


def validate(schedule: Schedule, read: Reader, now: datetime) -> Timetable:
    """Validate the timetable, and the request of the next run. Raises BadInput with all errors."""
    errors: list[InputError] = []
    timetable = None
    try:
        timetable = Timetable.read(schedule.cron, schedule.timezone)
    except InvalidTimetable as refusal:
        errors.append(InputError(pointer=refusal.pointer, code="invalid", detail=refusal.detail))
    day = timetable.local_date(timetable.next(now) or now) if timetable else now.date()
    if schedule.window_to < schedule.window_from:
        errors.append(InputError(pointer="/window/to", code="invalid", detail="Must not be less than from."))
    else:
        try:
            read_request(schedule, day, read)
        except BadInput as refusal:
            errors.extend(refusal.errors)
    if errors or timetable is None:
        raise BadInput(*errors)
    return timetable


def plan(schedule: Schedule, timetable: Timetable, now: datetime) -> None:
    following = timetable.next(now)
    assert following is not None  # noqa: S101 - checked by `Timetable.read`
    schedule.plan(following)
