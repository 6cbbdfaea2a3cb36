"""JSON representation of schedules, and its queries."""

from collections.abc import Iterable, Sequence

from django.db.models import OuterRef, Subquery

from exports.models import Job, Schedule, ScheduleRun
from exports.schedules import schemas


def with_last_runs(schedules: Iterable[Schedule]) -> list[Schedule]:
    """Set `last_run` of each schedule, with one query for all of them."""
    found = list(schedules)
    of_schedule = ScheduleRun.objects.filter(schedule=OuterRef("pk")).order_by("-id").values("id")[:1]
    newest = Schedule.objects.filter(pk__in=[each.pk for each in found]).values(newest=Subquery(of_schedule))
    runs = {run.schedule_id: run for run in ScheduleRun.objects.filter(pk__in=newest)}
    for schedule in found:
        schedule.last_run = runs.get(schedule.pk)
    return found


def statuses(runs: Sequence[ScheduleRun]) -> dict[int, str]:
    """Return the status of each run by its ID: the status of its job, or the outcome if it has no job."""
    ids = [run.job_id for run in runs if run.job_id]
    jobs = dict(Job.objects.filter(pk__in=ids).values_list("pk", "status"))
    return {run.pk: jobs.get(run.job_id, schemas.PURGED) if run.job_id else run.outcome for run in runs}


def all_of(schedules: Iterable[Schedule]) -> list[schemas.Schedule]:
    """Represent schedules, with three queries for all of them."""
    found = with_last_runs(schedules)
    status_of = statuses([each.last_run for each in found if each.last_run])
    return [one(each, status_of) for each in found]


def one(schedule: Schedule, status_of: dict[int, str]) -> schemas.Schedule:
    return {
        "id": str(schedule.pk),
        "name": schedule.name,
        "cron": schedule.cron,
        "timezone": schedule.timezone,
        "request": schedule.request,
        "window": {"unit": "day", "from": schedule.window_from, "to": schedule.window_to},
        "sinceLastSuccess": schedule.since_last_success,
        "misfire": schedule.misfire,
        "enabled": schedule.enabled,
        "disabledReason": schedule.disabled_reason or None,
        "nextRunAt": schedule.next_run_at,
        "lastRun": last_run(schedule.last_run, status_of[schedule.last_run.pk]) if schedule.last_run else None,
        "createdAt": schedule.created_at,
    }


def last_run(run: ScheduleRun, status: str) -> schemas.LastRun:
    return {
        "jobId": str(run.job_id) if run.job_id else None,
        "status": status,
        "startedAt": run.at,
        "plannedAt": run.planned_at,
        "detail": run.detail or None,
    }
