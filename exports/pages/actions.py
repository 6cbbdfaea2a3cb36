"""The buttons of a job's page. Each calls what the API's request of that name calls."""

from uuid import UUID

from django.contrib.auth.mixins import LoginRequiredMixin
from django.http import HttpRequest, HttpResponseBase, HttpResponseRedirect
from django.urls import reverse
from django.views.generic import View

from config.platform.http.idempotency import Idempotency, fingerprint
from config.platform.http.problems import NotFound
from config.platform.ui.base import Action, Counted, api_request
from exports.api import downloads, rates, views
from exports.api.serializers import as_day
from exports.delivery import chunk_files, links, receipts
from exports.jobs import actions
from exports.models import Job, Link
from exports.pages.base import uuid_of
from exports.pages.form import once_of


class JobAction(Action):
    """A button of a job. A stranger's job is 404."""

    throttle = rates.PerUser

    def job(self, job_id: UUID) -> Job:
        self.touched = job = views.owned(api_request(self.request), job_id)
        return job

    def then(self, *, job_id: UUID) -> str:
        return reverse("export", args=[job_id])

    def act(self, *, job_id: UUID) -> str:
        raise NotImplementedError


class Cancel(JobAction):
    def act(self, *, job_id: UUID) -> str:
        chunks = actions.cancel(self.job(job_id))
        undone = "1 chunk was" if chunks == 1 else f"{chunks:,} chunks were"
        return f"Cancelled; {undone} not done. Files that are done stay, to be reused."


class Retry(JobAction):
    def act(self, *, job_id: UUID) -> str:
        chunks = actions.retry(self.job(job_id))
        if not chunks:
            return "The delivery is put together once more."
        return f"{chunks:,} failed chunk{'' if chunks == 1 else 's'} started again, with all attempts."


class Replay(JobAction):
    """The same once more, as a new job: one, however often the button was pressed."""

    made: Job | None = None

    def act(self, *, job_id: UUID) -> str:
        job = self.job(job_id)
        key = once_of(uuid_of(self.request.POST.get("once", "")))
        once = Idempotency(key=key, fingerprint=fingerprint({"replay": str(job_id)}))
        self.made, _ = actions.replay(job, views.caller_of(api_request(self.request), once))
        return "The same export, as a new one. What is there already is reused."

    def then(self, *, job_id: UUID) -> str:
        return super().then(job_id=self.made.pk if self.made else job_id)


class FreshLink(JobAction):
    """A link for a program. The page it leads to shows it until it is used."""

    def act(self, *, job_id: UUID) -> str:
        fresh_link(self.request, job_id)
        return "Here is a new one-time link. The one before works no more."

    def then(self, *, job_id: UUID) -> str:
        return f"{super().then(job_id=job_id)}#receipt"


class Download(JobAction):
    """A fresh link, used at once: neither a second click nor whatever fetches URLs ahead can use it up."""

    link: Link | None = None

    def act(self, *, job_id: UUID) -> str:
        self.link = fresh_link(self.request, job_id)
        return ""

    def then(self, *, job_id: UUID) -> str:
        return links.path_of(self.link) if self.link else super().then(job_id=job_id)


def fresh_link(request: HttpRequest, job_id: UUID) -> Link:
    """Return a new link for this very browser. Raises NotFound but for the owner, NotReady, ReceiptExpired."""
    asked = api_request(request)
    return receipts.fresh_link(views.owned(asked, job_id, by_staff=False), views.client_of(asked))


class File(LoginRequiredMixin, Counted, View):
    """One file of a job, for its owner, as often as they like while the receipt lives."""

    http_method_names = ["get"]
    throttle = rates.PerUser

    def get(self, request: HttpRequest, *, job_id: UUID, key: str, day: str) -> HttpResponseBase:
        self.count()
        effective_date = as_day(day)
        if effective_date is None:
            raise NotFound
        job = views.owned(api_request(request), job_id, by_staff=False)
        url = chunk_files.presign(job, key=key, effective_date=effective_date)
        return HttpResponseRedirect(url, headers=downloads.NO_TRACE)
