"""Admin of schedules. Staff can see, pause, and resume all schedules, and run them for their owners."""

from collections.abc import Iterable, Sequence
from typing import Any

from django.contrib import admin
from django.db.models import QuerySet
from django.http import HttpRequest
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString

from config.platform.admin.confirmed_actions import (
    Confirmation,
    RowResult,
    StaffAction,
    StaffActionAdmin,
    each,
    naming_owners_quota,
)
from config.platform.admin.display import badge, date_or_age, exact_time, list_of, page_of, short, shown
from config.platform.db import clock
from config.platform.http.idempotency import Idempotency, fingerprint
from config.platform.http.problems import BadInput, Problem
from config.platform.ui.templatetags.pages import ago
from exports.api.schedules import read_export
from exports.jobs import submission
from exports.models import Schedule
from exports.schedules import editing, representation, runs
from exports.schedules.requests import FILTERS

NEWEST = 50  # number of runs on a schedule's page


def pause(schedule: Schedule) -> str:
    editing.pause(schedule, read_export, now=clock.now())
    return "No more runs are started."


def resume(schedule: Schedule) -> str:
    try:
        changed = editing.resume(schedule, read_export, now=clock.now())
    except BadInput as refusal:
        raise Problem(f"The request is not valid. {runs.in_words(refusal)}") from None
    return f"Next run: {changed.next_run_at:%Y-%m-%d %H:%M} UTC."


def run_now(schedules: Sequence[Schedule], by: Confirmation) -> Iterable[RowResult]:
    """Run schedules for their owners, whose quotas are charged. The nonce of the form prevents duplicates."""

    def run(schedule: Schedule) -> str:
        idempotency = Idempotency(key=f"staff-{by.nonce}-{schedule.pk}", fingerprint=fingerprint(str(schedule.pk)))
        caller = submission.Caller(user_id=schedule.user_id, binding=runs.binding_of(schedule), idempotency=idempotency)
        with naming_owners_quota():
            job, _ = editing.run_now(schedule, read_export, caller, now=clock.now())
        return f"New export {job.pk}."

    return each(run)(schedules, by)


ACTIONS = (
    StaffAction(
        name="run",
        label="Run now",
        past="Run",
        icon="play_arrow",
        permission="exports.change_schedule",
        explanation="Creates an export for today's date, for the owner and charged to their quota. The next planned "
        "time does not change.",
        refusal=lambda schedule: runs.RunActive.detail if runs.is_active(schedule) else "",
        do=run_now,
    ),
    StaffAction(
        name="pause",
        label="Pause",
        past="Paused",
        icon="pause",
        permission="exports.change_schedule",
        explanation="No more runs are started until the schedule is resumed. Active exports continue.",
        refusal=lambda schedule: "" if schedule.enabled else "Already disabled.",
        do=each(pause),
        revision=lambda schedule: str(schedule.enabled),
        is_danger=True,
    ),
    StaffAction(
        name="resume",
        label="Resume",
        past="Resumed",
        icon="play_circle",
        permission="exports.change_schedule",
        explanation="Runs start again with the next planned time. Missed times are not caught up.",
        refusal=lambda schedule: "Already enabled." if schedule.enabled else "",
        do=each(resume),
        revision=lambda schedule: str(schedule.enabled),
    ),
)


@admin.register(Schedule)
class ScheduleAdmin(StaffActionAdmin):
    row_actions = ACTIONS
    list_display = ("name", "state", "user", "dataset", "cron", "timezone", date_or_age("next_run_at"), "exports")
    list_filter = ("enabled", "misfire")
    search_fields = ("id", "user__username")
    search_help_text = "Schedule ID or its first 8 digits, or exact username"
    ordering = ("-created_at", "-id")
    fieldsets = (
        (None, {"fields": (("name", "state"), "disabled_reason", ("user", "dataset"), "exports")}),
        (
            "Timetable",
            {"fields": (("cron", "timezone"), ("window_from", "window_to"), "since_last_success", "misfire")},
        ),
        ("Times", {"fields": ((exact_time("next_run_at"), exact_time("check_at")), exact_time("created_at"))}),
        ("Runs", {"fields": ("history",)}),
        ("Request", {"classes": ("collapse",), "fields": (shown("id", str, "schedule ID"), "keys")}),
    )

    def name_of(self, row: Schedule) -> str:
        return f"{row.name} of {row.user}"

    def get_queryset(self, request: HttpRequest) -> QuerySet[Any]:
        return super().get_queryset(request).select_related("user")  # type: ignore[no-any-return]

    @admin.display(description="status")
    def state(self, schedule: Schedule) -> str:
        return badge("enabled" if schedule.enabled else "disabled")

    @admin.display(description="dataset")
    def dataset(self, schedule: Schedule) -> str:
        return str(schedule.request["dataset"])

    @admin.display(description="keys")
    def keys(self, schedule: Schedule) -> str:
        keys = schedule.request.get("keys", ())
        filters = [f"{name}: {schedule.request[name]}" for name in FILTERS[1:] if name in schedule.request]
        return f"{len(keys):,}: {', '.join(keys[:20])}" if keys else ", ".join(filters) or "All documents"

    @admin.display(description="exports")
    def exports(self, schedule: Schedule) -> SafeString:
        return list_of("job", "Exports", {"schedule": schedule.pk})

    @admin.display(description="history")
    def history(self, schedule: Schedule) -> SafeString:
        """Return the newest runs, newest first."""
        found = list(schedule.runs.order_by("-id")[:NEWEST])
        status_of = representation.statuses(found)
        lines = (
            (
                ago(run.at),
                f"{run.planned_at:%Y-%m-%d %H:%M} UTC" if run.planned_at else "Manual run",
                badge(status_of[run.pk]),
                page_of("job", run.job_id, short(run.job_id)) if run.job_id else run.detail,
            )
            for run in found
        )
        rows = format_html_join("", "<tr><td>{}</td><td>{}</td><td>{}</td><td>{}</td></tr>", lines)
        head = SafeString("<tr><th>Started</th><th>Planned for</th><th>Result</th><th>Export</th></tr>")
        return format_html('<table class="log">{}{}</table>', head, rows) if rows else SafeString("No runs yet.")
