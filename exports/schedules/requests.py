"""Requests of exports that schedules make: the stored request with the dates of a run."""

from collections.abc import Callable
from dataclasses import replace
from datetime import date
from typing import Any

from rest_framework.exceptions import ValidationError

from config.platform.http.pointers import join
from config.platform.http.problems import BadInput, InputError, input_errors
from exports.jobs.submission import ExportRequest
from exports.models import Schedule
from exports.schedules.timetable import days

# Returns the validated request of a body of `POST /exports` for the user with this id. Raises ValidationError. The
# serializer of the API is passed in, so that schedules accept exactly what the API does.
Reader = Callable[[Any, int], ExportRequest]
# Fields of a schedule's request that are filters of the export. The window replaces the dates.
FILTERS = ("keys", "ruleId", "status")


def export_body(request: dict[str, Any], *, day: date, window: tuple[int, int]) -> dict[str, Any]:
    """Return the body of `POST /exports` for a run on a day."""
    first, last = days(day, *window)
    rest = {name: value for name, value in request.items() if name not in FILTERS}
    filters = {name: request[name] for name in FILTERS if name in request}
    return {**rest, "filters": {**filters, "dateFrom": first.isoformat(), "dateTo": last.isoformat()}}


def read_request(schedule: Schedule, day: date, read: Reader) -> ExportRequest:
    """Return the request of a run on a local date, with the schedule's name. Raises BadInput with pointers into the
    schedule.
    """
    window = (schedule.window_from, schedule.window_to)
    unknown = [
        InputError(pointer=join("/request", name), code="unknown_field", detail="Unknown field. Use keys and window.")
        for name in ("filters", "items")
        if name in schedule.request
    ]
    known = {name: value for name, value in schedule.request.items() if name not in ("filters", "items")}
    try:
        request = read(export_body(known, day=day, window=window), schedule.user_id)
    except ValidationError as error:
        found = [moved(each) for each in input_errors(error.detail)]
        raise BadInput(*unknown, *found) from None
    if unknown:
        raise BadInput(*unknown)
    return replace(request, name=request.name or schedule.name)


def moved(error: InputError) -> InputError:
    """Return an error of `POST /exports` at its place in a schedule, where single fields replace `filters`."""
    pointer = error.pointer
    if pointer == "/filters":
        pointer = "/keys"
    elif pointer.split("/")[1:3] in [["filters", name] for name in FILTERS]:
        pointer = pointer.removeprefix("/filters")
    return InputError(pointer=f"/request{pointer}", code=error.code, detail=error.detail)
