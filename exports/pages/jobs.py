"""My exports: the list, and what may be done to several at once."""

from collections.abc import Iterable
from typing import Any

from django.contrib import messages
from django.http import HttpRequest, HttpResponse, HttpResponseBase
from django.shortcuts import redirect
from django.utils import timezone

from config.platform.http.paging import MAX_LIMIT, refusal
from config.platform.http.problems import BadInput, InputError, Problem
from config.platform.ui.base import Listing, told
from exports.core.states import JOB_ACTIVE, JobStatus
from exports.jobs import actions, quotas, representation
from exports.models import Dataset, Job
from exports.models.job import JobQuerySet
from exports.pages.base import ExportsPage, quota_left, span, uuid_of, with_downloads

ACTIVE = "active"
TABS = {"": "All", ACTIVE: "Under way", "success": "Ready", "failed": "Failed", "cancelled": "Cancelled"}
STATUSES = {ACTIVE: tuple(JOB_ACTIVE), **{status: (status,) for status in JobStatus.values}}


class Jobs(ExportsPage):
    """My exports, newest first. While one of those shown is under way, the list is fetched again every few seconds."""

    template_name = "exports/jobs.html"
    fragment_name = "exports/_jobs.html"
    title = "Exports"

    def get_context_data(self, **context: Any) -> dict[str, Any]:
        status, dataset = self.request.GET.get("status", ""), self.request.GET.get("dataset", "")
        datasets = list(Dataset.objects.order_by("name"))
        listing = Listing(self.request, self.jobs(status, dataset, datasets), ordering=("-created_at", "-job_id"))
        return super().get_context_data(
            listing=listing,
            rows=[row(job) for job in listing.rows or []],
            moves=any(not job.has_ended for job in listing.rows or []),
            tabs=TABS,
            status=status,
            dataset=dataset,
            datasets=datasets,
            query=self.request.GET.urlencode(),
            quota=quota_left(self.user.pk),
            **context,
        )

    def render_to_response(self, context: dict[str, Any], **kwargs: Any) -> HttpResponse:
        return with_downloads(super().render_to_response(context, **kwargs))

    def jobs(self, status: str, dataset: str, datasets: Iterable[Dataset]) -> JobQuerySet:
        jobs = representation.with_all(Job.objects.filter(user=self.user).with_span())
        if status:
            jobs = jobs.filter(status__in=of(status))
        if dataset:
            jobs = jobs.filter(dataset__in=[each for each in datasets if each.name == dataset])
        return jobs


def of(status: str) -> tuple[str, ...]:
    if status not in STATUSES:
        raise refusal("status", f"Must be one of: {', '.join(sorted(STATUSES))}.", code="invalid_choice")
    return STATUSES[status]


def row(job: Job) -> dict[str, Any]:
    """Return a job as lists show it: itself, its progress, and the state of its receipt."""
    now = timezone.now()
    facts: dict[str, Any] = {"job": job, "span": span(job), "progress": representation.progress(job, now)}
    if job.status == JobStatus.SUCCESS:
        facts["receipt"] = representation.webhook_receipt(job, now)
    return facts


# ---- Several at once ------------------------------------------------------------------------------------------------


class Several(ExportsPage):
    """Cancel or retry what was ticked: the first POST tells what would be done, the second does it."""

    http_method_names = ["post"]
    template_name = "exports/several.html"

    def post(self, request: HttpRequest) -> HttpResponseBase:
        try:
            self.count()
            verb, jobs = self.asked_for()
        except Problem as problem:
            messages.error(request, told(problem))
            return redirect("exports")
        if "sure" in request.POST:
            self.do(verb, jobs)
            return redirect("exports")
        return self.ask(verb, jobs)

    def asked_for(self) -> tuple[str, list[Job]]:
        """Return the verb and the jobs of this user among those that were ticked. Raises BadInput."""
        verb, ids = self.request.POST.get("verb", ""), self.request.POST.getlist("job")
        if verb not in VERBS or not ids or len(ids) > MAX_LIMIT:
            raise BadInput(
                InputError(pointer="", code="invalid", detail="Tick the exports first, then say what to do.")
            )
        jobs = Job.objects.filter(user=self.user, pk__in=list(filter(None, map(uuid_of, ids))))
        return verb, list(jobs.with_running().select_related("dataset").order_by("-created_at"))

    def ask(self, verb: str, jobs: list[Job]) -> HttpResponse:
        fitting = [job for job in jobs if fits(verb, job)]
        return self.render_to_response(
            {
                "verb": verb,
                "fitting": fitting,
                "others": [job for job in jobs if job not in fitting],
                "chunks": sum(job.failed if verb == "retry" else unfinished(job) for job in fitting),
                "quota": quota_left(self.user.pk),
                "title": "Several exports",
            },
        )

    def do(self, verb: str, jobs: list[Job]) -> None:
        """Do it to each; one that may not be is told and holds up no other."""
        act, done = VERBS[verb], 0
        for job in jobs:
            try:
                act(job)
            except quotas.QuotaExceeded as problem:
                messages.error(self.request, told(problem))
                break
            except Problem as problem:
                messages.warning(self.request, f"{job.dataset.name} {str(job.pk)[:8]}: {told(problem)}")
            else:
                done += 1
        if done:
            what = "cancelled" if verb == "cancel" else "started again"
            messages.success(self.request, f"{done} export{'s' if done > 1 else ''} {what}.")


VERBS = {"cancel": actions.cancel, "retry": actions.retry}


def fits(verb: str, job: Job) -> bool:
    return job.status == JobStatus.FAILED if verb == "retry" else not job.has_ended


def unfinished(job: Job) -> int:
    return job.total - job.done - job.failed - job.cancelled
