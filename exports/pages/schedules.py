"""Pages of a user's schedules: the list, the form with a preview, and each schedule with its history."""

from typing import Any
from uuid import UUID, uuid4
from zoneinfo import ZoneInfo

from django.contrib import messages
from django.http import HttpRequest, HttpResponseBase
from django.urls import reverse

from config.platform.db import clock
from config.platform.http.audit import CHANGES, NOTHING
from config.platform.http.idempotency import Idempotency, KeyReused
from config.platform.http.problems import Problem
from config.platform.ui.base import Action, Listing, api_request, redirect_page, uuid_of
from exports.api import rates, views
from exports.api.schedules import read_export
from exports.models import Job, Schedule, ScheduleRun
from exports.pages.base import ExportsPage, quota_left
from exports.pages.form_initial import fresh_initial
from exports.pages.new import PreviewThrottle, problems
from exports.pages.schedule_form import MAX_UPCOMING, ScheduleForm, initial_of, initial_repeating, planned_runs
from exports.schedules import editing, representation
from exports.schedules.timetable import InvalidTimetable, Timetable


class ScheduleListPage(ExportsPage):
    audited = CHANGES
    template_name = "schedules/list.html"
    title = "Schedules"

    def get_context_data(self, **context: Any) -> dict[str, Any]:
        found = Schedule.objects.filter(user=self.user).order_by("-created_at", "-pk")[: editing.MAX_PER_USER]
        schedules = representation.with_last_runs(found)
        status_of = representation.statuses([each.last_run for each in schedules if each.last_run])
        return super().get_context_data(
            rows=[
                {
                    "schedule": each,
                    "next": local(each),
                    "run": each.last_run,
                    "status": status_of[each.last_run.pk] if each.last_run else "",
                }
                for each in schedules
            ],
            limit=editing.MAX_PER_USER,
            is_full=len(schedules) >= editing.MAX_PER_USER,
            **context,
        )


def local(schedule: Schedule) -> Any:
    """Return the next planned time in the schedule's time zone."""
    return schedule.next_run_at.astimezone(ZoneInfo(schedule.timezone)) if schedule.next_run_at else None


class ScheduleFormPage(ExportsPage):
    """The page with the form for a new schedule. It also works without JavaScript."""

    audited = CHANGES
    template_name = "schedules/form.html"
    fragment_name = "schedules/_form.html"
    title = "New schedule"

    def get_context_data(self, **context: Any) -> dict[str, Any]:
        form = context.pop("form", None) or self.form(initial=self.initial())
        return super().get_context_data(
            form=form, schedule=self.schedule(), quota=quota_left(self.user.pk), action=self.request.path,
            datasets=form.datasets, recent_keys=form.recent_keys(), **context,
        )  # fmt: skip

    def form(self, *args: Any, **options: Any) -> ScheduleForm:
        return ScheduleForm(*args, user_id=self.user.pk, schedule=self.schedule(), **options)

    def schedule(self) -> Schedule | None:
        return None

    def initial(self) -> dict[str, Any]:
        """Return the initial values: with `?from=`, those of that job, and otherwise the defaults."""
        earlier = uuid_of(self.request.GET.get("from", ""))
        if earlier is None:
            return fresh_initial()
        return initial_repeating(views.visible(api_request(self.request), earlier))

    def post(self, request: HttpRequest, **kwargs: Any) -> HttpResponseBase:
        self.count(PreviewThrottle if "check" in request.POST else None)
        form = self.form(request.POST)
        shown: dict[str, Any] = {}
        try:
            if form.is_valid():
                if "check" not in request.POST:
                    return redirect_page(request, reverse("schedule", args=[self.save(form).pk]))
                shown["runs"] = form.upcoming(clock.now())
        except KeyReused:
            form.add_error(None, "You already created a different schedule with this form. Submit again.")
            form.renew_key()
        except Problem as problem:
            form.refuse(problem)
        return self.render_to_response(self.get_context_data(form=form, **shown, **kwargs))

    def save(self, form: ScheduleForm) -> Schedule:
        once = Idempotency.of_form(form.cleaned_data["once"], form.body)
        caller = views.caller_of(api_request(self.request), once)
        schedule, _ = editing.create(form.values, read_export, caller, now=clock.now())
        messages.success(self.request, "Schedule created.")
        return schedule


class ChangeSchedulePage(ScheduleFormPage):
    """The page with the form for an existing schedule."""

    title = "Edit schedule"

    def schedule(self) -> Schedule:
        return editing.owned(self.kwargs["schedule_id"], user_id=self.user.pk)

    def initial(self) -> dict[str, Any]:
        return initial_of(self.schedule())

    def save(self, form: ScheduleForm) -> Schedule:
        changes = {name: value for name, value in form.values().items() if name != "enabled"}
        schedule = editing.change(self.schedule(), changes, read_export, now=clock.now())
        messages.success(self.request, "Schedule saved.")
        return schedule


class SchedulePreviewFragment(ExportsPage):
    """A preview of the next runs, for htmx. It changes nothing."""

    audited = NOTHING
    http_method_names = ["post"]
    template_name = "schedules/_preview.html"

    def post(self, request: HttpRequest) -> HttpResponseBase:
        self.count(PreviewThrottle)
        found = uuid_of(request.GET.get("schedule", ""))
        schedule = editing.owned(found, user_id=self.user.pk) if found else None
        form, runs = ScheduleForm(request.POST, user_id=self.user.pk, schedule=schedule), None
        try:
            runs = form.upcoming(clock.now()) if form.is_valid() else None
        except Problem as problem:
            form.refuse(problem)
        is_complete = form.is_of_documents() or bool(request.POST.get("dataset") and request.POST.get("keys"))
        return self.render_to_response(
            {
                "runs": runs,
                "problems": problems(form) if is_complete else [],
                "recent_keys": form.recent_keys(),
                "quota": quota_left(self.user.pk),
            }
        )


class SchedulePage(ExportsPage):
    """A schedule: its next runs, its request, and its history."""

    audited = CHANGES
    template_name = "schedules/schedule.html"

    def get_context_data(self, **context: Any) -> dict[str, Any]:
        schedule = editing.owned(self.kwargs["schedule_id"], user_id=self.user.pk)
        listing = Listing(self.request, ScheduleRun.objects.filter(schedule=schedule), ordering=("-id",))
        status_of = representation.statuses(listing.rows)
        return super().get_context_data(
            schedule=schedule,
            listing=listing,
            rows=[{"run": run, "status": status_of[run.pk]} for run in listing.rows],
            upcoming=upcoming(schedule),
            is_active=Job.objects.active().filter(schedule_id=schedule.pk).exists(),
            keys=schedule.request.get("keys", ()),
            once=uuid4(),
            title=schedule.name,
            **context,
        )


def upcoming(schedule: Schedule) -> list[Any]:
    """Return the next planned runs of a schedule. A disabled schedule has none."""
    if not schedule.next_run_at:
        return []
    try:
        timetable = Timetable.read(schedule.cron, schedule.timezone)
    except InvalidTimetable:
        return []
    following = timetable.upcoming(schedule.next_run_at, MAX_UPCOMING - 1)
    return planned_runs(schedule, [schedule.next_run_at, *following])


# ---- Actions --------------------------------------------------------------------------------------------------------


class ScheduleAction(Action):
    """An action on a schedule. Another user's schedule is a 404 error, even for staff."""

    throttle = rates.ExportThrottle

    def schedule(self, schedule_id: UUID) -> Schedule:
        return editing.owned(schedule_id, user_id=self.user.pk)

    def next_url(self, *, schedule_id: UUID) -> str:
        return reverse("schedule", args=[schedule_id])


class PauseSchedule(ScheduleAction):
    def act(self, *, schedule_id: UUID) -> str:
        editing.pause(self.schedule(schedule_id), read_export, now=clock.now())
        return "Schedule paused. An active export continues."


class ResumeSchedule(ScheduleAction):
    def act(self, *, schedule_id: UUID) -> str:
        editing.resume(self.schedule(schedule_id), read_export, now=clock.now())
        return "Schedule resumed with the next planned time."


class RunSchedule(ScheduleAction):
    """An immediate run. Repeated clicks create one export."""

    new_job: Job | None = None

    def act(self, *, schedule_id: UUID) -> str:
        once = Idempotency.of_form(uuid_of(self.request.POST.get("once", "")), {"schedule": str(schedule_id)})
        caller = views.caller_of(api_request(self.request), once)
        self.new_job, _ = editing.run_now(self.schedule(schedule_id), read_export, caller, now=clock.now())
        return "Export created for today."

    def next_url(self, *, schedule_id: UUID) -> str:
        return reverse("export", args=[self.new_job.pk]) if self.new_job else super().next_url(schedule_id=schedule_id)


class DeleteSchedule(ScheduleAction):
    def act(self, *, schedule_id: UUID) -> str:
        editing.delete(self.schedule(schedule_id))
        return "Schedule deleted. Its exports were kept."

    def next_url(self, *, schedule_id: UUID) -> str:
        return "schedules"
