"""The form for a schedule: the form for an export, with a timetable, and days relative to each run."""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import date, datetime
from typing import Any
from zoneinfo import ZoneInfo

from django import forms

from config.platform.durations import duration
from config.platform.http.problems import BadInput, InputError, Problem
from config.platform.ui.base import problem_text, validated
from exports.api.schedule_serializers import MAX_DAYS, NewScheduleSerializer
from exports.api.schedules import read_export
from exports.core.planning import Dialect
from exports.models import Job, Schedule
from exports.models.schedule import Misfire
from exports.pages.form import SEPARATORS, ExportForm, document_filters
from exports.pages.form_errors import field_and_text
from exports.pages.form_initial import columns_text, initial_dialect, initial_like
from exports.schedules import editing
from exports.schedules.requests import FILTERS
from exports.schedules.timetable import timezones, window_bounds

MAX_UPCOMING = 5  # number of next runs that pages show
MISFIRES = [
    (Misfire.SKIP.value, "Skip the run"),
    (Misfire.CATCH_UP.value, "Catch up: start missed runs later, one after another"),
]


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedRun:
    """A planned run: its time in UTC and in the schedule's time zone, and the first and last date to export."""

    at: datetime
    local: datetime
    first: date
    last: date


class ScheduleForm(ExportForm):
    """The form for a schedule. `NewScheduleSerializer` validates the values."""

    name = forms.CharField(label="Name", required=False, max_length=100)
    cron = forms.CharField(
        label="Times",
        required=False,
        max_length=100,
        initial="0 6 * * *",
        widget=forms.TextInput(attrs={"spellcheck": "false", "autocapitalize": "none", "placeholder": "0 6 * * *"}),
        help_text="A cron expression: minute, hour, day of month, month, day of week. 0 6 * * * is each day at 06:00, "
        "30 7 * * 1-5 is Monday to Friday at 07:30.",
    )
    zone = forms.ChoiceField(label="Time zone", initial="UTC")
    first = forms.IntegerField(
        label="First day", required=False, initial=-1, min_value=-MAX_DAYS, max_value=MAX_DAYS,
        help_text="Relative to the day of the run: -1 is the day before, 0 is the same day.",
    )  # fmt: skip
    last = forms.IntegerField(
        label="Last day (inclusive)", required=False, initial=-1, min_value=-MAX_DAYS, max_value=MAX_DAYS
    )
    since = forms.BooleanField(
        label="Also the days since the last successful export",
        required=False,
        help_text="After failed and missed runs, the next one exports their days too.",
    )
    misfire = forms.ChoiceField(
        label="If a run cannot start on time",
        choices=MISFIRES,
        initial=Misfire.SKIP.value,
        help_text="For example, because the service was down, or because the earlier run has not ended.",
    )
    mode = items = file = date_from = date_to = batch = None  # type: ignore[assignment]

    def __init__(self, *args: Any, schedule: Schedule | None = None, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.fields["zone"].choices = [(name, name) for name in sorted(timezones())]  # type: ignore[attr-defined]
        self.schedule = schedule
        lifetime = schedule.request.get("deliveryTtlSeconds") if schedule else None
        choices = dict(self.fields["keep_for"].choices)  # type: ignore[attr-defined]
        if lifetime and lifetime not in choices:  # set through the API
            choices[lifetime] = duration(lifetime)
            self.fields["keep_for"].choices = choices.items()  # type: ignore[attr-defined]

    def full_clean(self) -> None:
        """Validate the fields, but not the export request. `editing` validates it, and `refuse` shows the problems."""
        forms.Form.full_clean(self)
        if self.is_bound and not self.errors:
            self.body = self.schedule_body(self.cleaned_data)

    def selection(self, data: dict[str, Any]) -> dict[str, Any]:
        if self.is_of_documents():
            return document_filters(data)
        stored = self.schedule.request.get("keys") if self.schedule else None
        if data["keys"].splitlines() == stored:
            return {"keys": stored}  # a key may contain a separator
        return {"keys": [key for key in SEPARATORS.split(data["keys"]) if key]}

    def schedule_body(self, data: dict[str, Any]) -> dict[str, Any]:
        """Return the equivalent body of `POST /exports/schedules`.

        Request fields that the form doesn't have keep their values, unless another dataset was selected.
        """
        request = self.as_body(data)
        stored = self.schedule.request if self.schedule else {}
        is_same = stored.get("dataset") == request["dataset"]
        kept = {name: value for name, value in stored.items() if is_same and name not in WITH_INPUT}
        return {
            "name": data["name"],
            "cron": " ".join(data["cron"].split()),
            "timezone": data["zone"],
            "request": {**kept, **request},
            "window": {"unit": "day", "from": data["first"], "to": data["last"]},
            "sinceLastSuccess": data["since"],
            "misfire": data["misfire"],
        }

    def values(self) -> dict[str, Any]:
        """Return the values of the columns that the form sets. Raises BadInput."""
        return validated(NewScheduleSerializer, self.body)  # type: ignore[no-any-return]

    def refuse(self, problem: Problem) -> None:
        """Add the errors of a problem to the form's fields."""
        if not isinstance(problem, BadInput):
            self.add_error(None, problem_text(problem))
            return
        for error in problem.errors:
            name, text = located(error)
            self.add_error(name if name in self.fields else None, text)

    def upcoming(self, now: datetime) -> list[PlannedRun]:
        """Return the next runs. Raises BadInput."""
        schedule = Schedule(user_id=self.user_id, **self.values())
        timetable = editing.validate(schedule, read_export, now)
        return planned_runs(schedule, timetable.upcoming(now, MAX_UPCOMING))


# Request fields that the form sets. The body leaves them out if they do not apply or have their default values.
WITH_INPUT = frozenset({"columns", "compression", "csv", "deliveryTtlSeconds", *FILTERS})
FIELDS = {
    "/name": "name",
    "/cron": "cron",
    "/timezone": "zone",
    "/window/from": "first",
    "/window/to": "last",
    "/misfire": "misfire",
}


def located(error: InputError) -> tuple[str | None, str]:
    """Return the field and the text of an error. Errors in the export request are mapped as in the export's form."""
    if error.pointer in FIELDS:
        return FIELDS[error.pointer], error.detail
    pointer = error.pointer.removeprefix("/request")
    if pointer.removeprefix("/").partition("/")[0] in FILTERS:
        pointer = f"/filters{pointer}"
    return field_and_text(InputError(pointer=pointer, code=error.code, detail=error.detail))


def planned_runs(schedule: Schedule, times: Iterable[datetime]) -> list[PlannedRun]:
    """Return planned runs at these times, with the dates to export."""
    zone = ZoneInfo(schedule.timezone)
    found = []
    for at in times:
        local = at.astimezone(zone)
        first, last = window_bounds(local.date(), schedule.window_from, schedule.window_to)
        found.append(PlannedRun(at=at, local=local, first=first, last=last))
    return found


# ---- Initial values -------------------------------------------------------------------------------------------------


def initial_of(schedule: Schedule) -> dict[str, Any]:
    request = schedule.request
    csv = request.get("csv") or {}
    written = Dialect(
        bom=csv.get("bom", False),
        delimiter=csv.get("delimiter", ","),
        formula_policy=csv.get("formulaPolicy", "none"),
    )
    return {
        "name": schedule.name,
        "cron": schedule.cron,
        "zone": schedule.timezone,
        "first": schedule.window_from,
        "last": schedule.window_to,
        "since": schedule.since_last_success,
        "misfire": schedule.misfire,
        "dataset": request["dataset"],
        "keys": "\n".join(request.get("keys", ())),
        "rule": request.get("ruleId", ""),
        "status": request.get("status", ""),
        "format": request.get("format", "csv"),
        **initial_dialect(written),
        "compression": request.get("compression", "none"),
        "columns": columns_text(request.get("columns") or ()),
        "delivery": request.get("delivery", "auto"),
        "reuse": request.get("reuse", "if-present") == "if-present",
        "allow_degraded": request.get("allowDegraded", True),
        "keep_for": request.get("deliveryTtlSeconds", ""),
    }


def initial_repeating(job: Job) -> dict[str, Any]:
    """Return initial values that repeat a job's request, with as many days before each run as the job had dates."""
    like = initial_like(job)
    keys = list(dict.fromkeys(job.chunks.in_request_order().values_list("key", flat=True)))
    number = job.chunks.values("effective_date").distinct().count()
    return {
        **{name: value for name, value in like.items() if name not in ("mode", "items", "date_from", "date_to")},
        "name": job.name[:100] or f"{job.dataset.name}: {', '.join(keys[:3])}{' …' if len(keys) > 3 else ''}"[:100],  # noqa: PLR2004
        "keys": "\n".join(keys),
        "first": -min(number, MAX_DAYS),
        "last": -1,
    }
