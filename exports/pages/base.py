"""What the pages of exports share: who asks is counted as in the API, and sees the jobs that the API would show."""

from typing import Any
from urllib.parse import urlsplit
from uuid import UUID

from django.http import HttpResponse

from config.platform import storage
from config.platform.ui.base import Page, api_request
from exports.api import rates, views
from exports.jobs import quotas
from exports.models import Job


class ExportsPage(Page):
    throttle = rates.PerUser


class JobPage(ExportsPage):
    """A page about one job. A stranger's is 404; staff may look at any."""

    def job(self) -> Job:
        job_id: UUID = self.kwargs["job_id"]
        return views.owned(api_request(self.request), job_id)


def span(job: Job) -> str:
    """Return what tells a job `with_span` from others to a person: `JFK 2013-02-01 … LGA 2013-02-28`."""
    first, last = f"{job.first_key} {job.first_day}", f"{job.last_key} {job.last_day}"
    if job.first_key == job.last_key:
        last = str(job.last_day)
    return first if job.total == 1 else f"{first} … {last}"


def quota_left(user_id: int) -> dict[str, Any]:
    """Return the day's quota of a user, in the words of templates."""
    quota = quotas.state(user_id)
    return {
        "jobs": max(quota.daily_jobs - quota.jobs, 0),
        "daily_jobs": quota.daily_jobs,
        "chunks": max(quota.daily_chunks - quota.chunks, 0),
        "daily_chunks": quota.daily_chunks,
        "seconds": quota.seconds_left,
    }


def uuid_of(text: str) -> UUID | None:
    """Return the UUID that a browser sent, or None where that is none."""
    try:
        return UUID(text)
    except ValueError:
        return None


def with_downloads(response: HttpResponse) -> HttpResponse:
    """Let the forms of a page lead to where downloads come from: browsers hold a page's `form-action` against whatever
    the answer to a form redirects to, too."""
    url = urlsplit(storage.presign_download("-", seconds=1, content_type="-", file_name="-"))
    response._csp_update = {"form-action": [f"{url.scheme}://{url.netloc}"]}  # type: ignore[attr-defined]
    return response
