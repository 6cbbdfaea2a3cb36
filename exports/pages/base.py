"""Base classes and shared functions of the export pages. The API's rate limits and visibility rules apply."""

from typing import Any
from urllib.parse import urlsplit
from uuid import UUID

from django.http import HttpRequest, HttpResponse
from django.template.response import TemplateResponse

from config.platform import storage
from config.platform.db.snapshots import one_snapshot
from config.platform.http.quotas import left, seconds_left
from config.platform.ui.base import Page, api_request
from exports.api import rates, views
from exports.jobs import quotas
from exports.models import Job


class ExportsPage(Page):
    throttle = rates.ExportThrottle


class JobPage(ExportsPage):
    """A page about one job, read from one database snapshot. Another user's job is a 404 error, except for staff."""

    def get(self, request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponse:
        with one_snapshot():
            response = super().get(request, *args, **kwargs)
            return response.render() if isinstance(response, TemplateResponse) else response

    def job(self) -> Job:
        job_id: UUID = self.kwargs["job_id"]
        return views.visible(api_request(self.request), job_id)


def span(job: Job) -> str:
    """Return a readable label of a job from `JobQuerySet.with_span`: `JFK 2013-02-01 … LGA 2013-02-28`."""
    first, last = f"{job.first_key} {job.first_day}", f"{job.last_key} {job.last_day}"
    if job.first_key == job.last_key:
        last = str(job.last_day)
    return first if job.total == 1 else f"{first} … {last}"


def quota_left(user_id: int) -> dict[str, Any]:
    """Return the template context of a user's daily quota."""
    quota = quotas.state(user_id)
    return {
        "jobs": left(quota.daily_jobs, quota.jobs),
        "daily_jobs": quota.daily_jobs,
        "chunks": left(quota.daily_chunks, quota.chunks),
        "daily_chunks": quota.daily_chunks,
        "seconds": seconds_left(),
    }


def with_downloads(response: HttpResponse) -> HttpResponse:
    """Allow forms to redirect to the object storage: browsers apply `form-action` to redirects too."""
    url = urlsplit(storage.presign_download("-", seconds=1, content_type="-", file_name="-"))
    response._csp_update = {"form-action": [f"{url.scheme}://{url.netloc}"]}  # type: ignore[attr-defined]
    return response
