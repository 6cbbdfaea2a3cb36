"""Export requests of schedules: the stored request, with the dates of a run."""

from collections.abc import Callable
from dataclasses import replace
from datetime import date, timedelta
from typing import Any

from django.conf import settings
from rest_framework.exceptions import ValidationError

from config.platform.http.pointers import join
from config.platform.http.problems import BadInput, InputError, input_errors
from exports.core.states import JobStatus
from exports.jobs import quotas
from exports.jobs.submission import ExportRequest
from exports.models import Job, Schedule
from exports.schedules.timetable import window_bounds

# Validates the body of `POST /exports` for the user with this ID, and returns the request. Raises ValidationError. The
# serializer of the API is passed in, so that schedules accept exactly the same requests as the API.
Reader = Callable[[Any, int], ExportRequest]
# Fields of a schedule's request that become filters of the export, in addition to the dates of the run.
FILTERS = ("keys", "ruleId", "status")


def export_body(request: dict[str, Any], *, first: date, last: date) -> dict[str, Any]:
    """Return the body of `POST /exports` for these days."""
    rest = {name: value for name, value in request.items() if name not in FILTERS}
    filters = {name: request[name] for name in FILTERS if name in request}
    return {**rest, "filters": {**filters, "dateFrom": first.isoformat(), "dateTo": last.isoformat()}}


def read_request(schedule: Schedule, day: date, read: Reader) -> ExportRequest:
    """Return the request of a run on a local date, with the schedule's name.

    Raises BadInput, whose pointers refer to the body of the schedule.
    """
    first, last = window(schedule, day)
    unknown = [
        InputError(pointer=join("/request", name), code="unknown_field", detail="Unknown field. Use keys and window.")
        for name in ("filters", "items")
        if name in schedule.request
    ]
    known = {name: value for name, value in schedule.request.items() if name not in ("filters", "items")}
    try:
        request = read(export_body(known, first=first, last=last), schedule.user_id)
    except ValidationError as error:
        found = [as_schedule_error(each) for each in input_errors(error.detail)]
        raise BadInput(*unknown, *found) from None
    if unknown:
        raise BadInput(*unknown)
    return replace(request, name=request.name or schedule.name)


def window(schedule: Schedule, day: date) -> tuple[date, date]:
    """Return the first and last date to export in a run on a local date.

    With `since_last_success`, the missed days may need more chunks than an export or the daily quota allows. The run
    then exports the oldest days, and the next runs continue.
    """
    after = exported_until(schedule) if schedule.since_last_success else None
    first, last = window_bounds(day, schedule.window_from, schedule.window_to, after=after)
    keys = schedule.request.get("keys")
    if after and isinstance(keys, list) and keys:
        chunks = min(settings.SLUICE.export_max_chunks_per_job, quotas.state(schedule.user_id).daily_chunks)
        max_days = max(schedule.window_to - schedule.window_from + 1, chunks // len(keys))
        last = min(last, first + timedelta(days=max_days - 1))
    return first, last


def exported_until(schedule: Schedule) -> date | None:
    """Return the last day of the schedule's latest successful export, or None without one."""
    jobs = Job.objects.filter(schedule_id=schedule.pk, status=JobStatus.SUCCESS)
    newest = jobs.order_by("-created_at", "-job_id").values_list("filters__dateTo", flat=True).first()
    return date.fromisoformat(newest) if newest else None


def as_schedule_error(error: InputError) -> InputError:
    """Change the pointer of an error in the body of `POST /exports` to the corresponding field of a schedule.

    A schedule has `/request/keys` in place of `/filters/keys`, for example.
    """
    pointer = error.pointer
    if pointer == "/filters":
        pointer = "/keys"
    elif pointer.split("/")[1:3] in [["filters", name] for name in FILTERS]:
        pointer = pointer.removeprefix("/filters")
    return InputError(pointer=f"/request{pointer}", code=error.code, detail=error.detail)
