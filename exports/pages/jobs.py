"""The list of a user's exports, and bulk actions."""

from dataclasses import replace
from typing import Any

from django.contrib import messages
from django.http import HttpRequest, HttpResponse, HttpResponseBase
from django.shortcuts import redirect

from config.platform.db import clock
from config.platform.http.audit import CHANGES
from config.platform.http.paging import MAX_LIMIT, require_choice
from config.platform.http.problems import BadInput, InputError, Problem
from config.platform.plurals import counted
from config.platform.ui.base import Listing, first_page, problem_text, run_each, uuid_of
from exports.api.search import ExportFilter
from exports.core.states import JOB_ACTIVE, JobStatus
from exports.jobs import actions, quotas, representation
from exports.models import Dataset, Job, Schedule
from exports.pages.base import ExportsPage, quota_left, span, with_downloads

ACTIVE = "active"
TABS = {"": "All", ACTIVE: "Active", "success": "Success", "failed": "Failed", "cancelled": "Cancelled"}
SEARCHED = ("q", "dataset", "from", "to")
STATUSES = {ACTIVE: tuple(JOB_ACTIVE), **{status: (status,) for status in JobStatus.values}}


class ExportListPage(ExportsPage):
    """The list, newest first. It polls every few seconds while an export on the page is active."""

    audited = CHANGES
    template_name = "exports/jobs.html"
    fragment_name = "exports/_jobs.html"
    title = "Exports"

    def get_context_data(self, **context: Any) -> dict[str, Any]:
        status = require_choice("status", self.request.GET.get("status", ""), among=("", *STATUSES))
        filters = self.filters()
        jobs = filters.apply(representation.with_details(Job.objects.filter(user=self.user).with_span()))
        if status:
            jobs = jobs.filter(status__in=STATUSES[status])
        listing = Listing(self.request, jobs, ordering=("-created_at", "-job_id"))
        ids = {each for each in (filters.schedule, *(job.schedule_id for job in listing.rows)) if each}
        schedules = Schedule.objects.filter(user=self.user, pk__in=ids)
        return super().get_context_data(
            listing=listing,
            rows=[row(job) for job in listing.rows],
            has_active=any(not job.has_ended for job in listing.rows),
            tabs=[(label, first_page(self.request, status=name), name == status) for name, label in TABS.items()],
            status=status,
            filters=filters,
            schedules=set(schedules.values_list("pk", flat=True)),
            is_filtered=bool(status) or filters != ExportFilter(),
            datasets=list(Dataset.objects.granted_to(self.user.pk).in_order()),
            query=self.request.GET.urlencode(),
            quota=quota_left(self.user.pk),
            **context,
        )

    def render_to_response(self, context: dict[str, Any], **kwargs: Any) -> HttpResponse:
        return with_downloads(super().render_to_response(context, **kwargs))

    def filters(self) -> ExportFilter:
        """Return the filters in the query. Unused fields of the form arrive empty, and are ignored."""
        query = {name: self.request.GET.get(name, "").strip() for name in SEARCHED}
        found = ExportFilter.read({name: value for name, value in query.items() if value})
        return replace(found, schedule=uuid_of(self.request.GET.get("schedule", "")))


def row(job: Job) -> dict[str, Any]:
    """Return the template context of a job in the list, with its progress and the state of its receipt."""
    now = clock.now()
    facts: dict[str, Any] = {"job": job, "span": span(job), "progress": representation.progress(job, now)}
    if job.status == JobStatus.SUCCESS:
        facts["receipt"] = representation.webhook_receipt(job, now)
    return facts


# ---- Bulk actions ---------------------------------------------------------------------------------------------------


class BulkExportPage(ExportsPage):
    """Cancellation or retry of selected exports: the first POST shows a confirmation, the second runs the action."""

    http_method_names = ["post"]
    template_name = "exports/several.html"

    def post(self, request: HttpRequest) -> HttpResponseBase:
        try:
            self.count()
            action, jobs = self.selected()
        except Problem as problem:
            messages.error(request, problem_text(problem))
            return redirect("exports")
        if "sure" in request.POST:
            self.run(action, jobs)
            return redirect("exports")
        return self.confirm(action, jobs)

    def selected(self) -> tuple[str, list[Job]]:
        """Return the action and the selected jobs of this user. Raises BadInput."""
        action, ids = self.request.POST.get("do", ""), self.request.POST.getlist("job")
        if action not in ACTIONS or not ids or len(ids) > MAX_LIMIT:
            raise BadInput(
                InputError(pointer="", code="invalid", detail="Select one or more exports, then choose an action.")
            )
        jobs = Job.objects.filter(user=self.user, pk__in=list(filter(None, map(uuid_of, ids))))
        return action, list(jobs.with_running().select_related("dataset").order_by("-created_at"))

    def confirm(self, action: str, jobs: list[Job]) -> HttpResponse:
        eligible = [job for job in jobs if applies(action, job)]
        return self.render_to_response(
            {
                "action": action,
                "eligible": eligible,
                "others": [job for job in jobs if job not in eligible],
                "chunks": sum(job.failed if action == "retry" else unfinished(job) for job in eligible),
                "quota": quota_left(self.user.pk),
                "title": "Confirm",
            }
        )

    def run(self, action: str, jobs: list[Job]) -> None:
        """Run the action on each job. If one is refused, the others continue, unless the quota was exceeded."""
        done, refusals = run_each(jobs, ACTIONS[action], stop=quotas.QuotaExceeded)
        if refusals:
            messages.warning(self.request, refusals)
        if done:
            result = "cancelled" if action == "cancel" else "queued for retry"
            messages.success(self.request, f"{counted(done, 'export')} {result}.")


ACTIONS = {"cancel": actions.cancel, "retry": actions.retry}


def applies(action: str, job: Job) -> bool:
    return job.status == JobStatus.FAILED if action == "retry" else not job.has_ended


def unfinished(job: Job) -> int:
    return job.total - job.done - job.failed - job.cancelled
