"""Actions on the page of an export. Each calls the same function as the API."""

from uuid import UUID

from django.contrib.auth.mixins import LoginRequiredMixin
from django.http import HttpRequest, HttpResponseBase, HttpResponseRedirect
from django.urls import reverse
from django.views.generic import View

from config.platform.http.audit import OPENS_DATA
from config.platform.http.idempotency import Idempotency
from config.platform.http.problems import NotFound
from config.platform.http.serializers import as_day
from config.platform.plurals import counted
from config.platform.ui.base import Action, RateLimitedView, api_request, uuid_of
from exports.api import downloads, rates, views
from exports.delivery import chunk_files, links, receipts
from exports.jobs import actions
from exports.models import Job, Link


class JobAction(Action):
    """An action on a job. A job that the user may not see is a 404 error."""

    throttle = rates.ExportThrottle

    def job(self, job_id: UUID) -> Job:
        job = views.changeable(api_request(self.request), job_id)
        self.record_change(job)
        return job

    def next_url(self, *, job_id: UUID) -> str:
        return reverse("export", args=[job_id])


class CancelExport(JobAction):
    def act(self, *, job_id: UUID) -> str:
        chunks = actions.cancel(self.job(job_id))
        unfinished = counted(chunks, "unfinished chunk")
        return f"Export cancelled with {unfinished}. Finished files stay available for reuse."


class RetryExport(JobAction):
    def act(self, *, job_id: UUID) -> str:
        chunks = actions.retry(self.job(job_id))
        if not chunks:
            return "Retrying the delivery."
        return f"{counted(chunks, 'failed chunk')} queued for retry."


class ReplayExport(JobAction):
    """Replay the request as a new job. Repeated clicks create one job."""

    new_job: Job | None = None

    def act(self, *, job_id: UUID) -> str:
        job = self.job(job_id)
        once = Idempotency.of_form(uuid_of(self.request.POST.get("once", "")), {"replay": str(job_id)})
        self.new_job, _ = actions.replay(job, views.caller_of(api_request(self.request), once))
        return "Export created from the same request."

    def next_url(self, *, job_id: UUID) -> str:
        return super().next_url(job_id=self.new_job.pk if self.new_job else job_id)


class CreateLink(JobAction):
    """Creation of a one-time link for a script. The page shows the link until it is used."""

    def act(self, *, job_id: UUID) -> str:
        fresh_link(self.request, job_id)
        return "One-time link created. The previous link is revoked."

    def next_url(self, *, job_id: UUID) -> str:
        return f"{super().next_url(job_id=job_id)}#receipt"


class DownloadDelivery(JobAction):
    """A download with a new link for each click, so that a prefetch or a second click cannot use the link up."""

    link: Link | None = None

    def act(self, *, job_id: UUID) -> str:
        self.link = fresh_link(self.request, job_id)
        return ""

    def next_url(self, *, job_id: UUID) -> str:
        return links.path_of(self.link) if self.link else super().next_url(job_id=job_id)


def fresh_link(request: HttpRequest, job_id: UUID) -> Link:
    """Create a link that is bound to this browser.

    Raises NoSuchExport for other users, and the errors of `receipts.fresh_link`.
    """
    drf_request = api_request(request)
    return receipts.fresh_link(views.visible(drf_request, job_id, by_staff=False), views.client_of(drf_request))


class DownloadFile(LoginRequiredMixin, RateLimitedView, View):
    """The download of one file of a job, for its owner. It can be repeated until the delivery expires."""

    audited = OPENS_DATA
    http_method_names = ["get"]
    throttle = rates.ExportThrottle

    def get(self, request: HttpRequest, *, job_id: UUID, key: str, day: str) -> HttpResponseBase:
        self.count()
        effective_date = as_day(day)
        if effective_date is None:
            raise NotFound
        job = views.visible(api_request(request), job_id, by_staff=False)
        url = chunk_files.presign(job, key=key, effective_date=effective_date)
        return HttpResponseRedirect(url, headers=downloads.NO_TRACE)
