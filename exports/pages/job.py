"""The page of one export: progress, actions, receipt, chunks, and timeline.

Its parts refresh independently: progress with every event, the chunk table every few seconds, and the buttons and the
receipt only when they change, so that a button does not disappear during a click. The browser sends `shown`, which
identifies its current buttons and receipt, and they are left out of the response if they have not changed.
"""

import re
import shlex
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any
from urllib.parse import parse_qs
from uuid import uuid4

from django.db.models import Count, F, Min, QuerySet, Sum
from django.http import HttpRequest, HttpResponse

from config.platform.db import clock
from config.platform.http import audit, staff
from config.platform.http.audit import CHANGES
from config.platform.http.paging import require_choice
from config.platform.ui.base import Listing, api_request, segments
from exports.api import views
from exports.core.errors import explain, with_meaning
from exports.core.states import ChunkStatus, JobStatus
from exports.delivery import access, links
from exports.jobs import representation
from exports.models import Chunk, Job, Link, Schedule
from exports.pages import timeline, workers
from exports.pages.base import JobPage, quota_left, span, with_downloads

QUOTES = re.compile("['\u2018-\u201b]")  # characters that PowerShell treats as a single quote
MAX_GROUPS = 10  # of failed chunks in the summary
BAR = ("done", "failed", "cancelled", "retrying", "running")  # statuses in the progress bar; the rest is pending


class ExportPage(JobPage):
    """The complete page of an export."""

    audited = CHANGES
    template_name = "exports/job.html"

    def get_context_data(self, **context: Any) -> dict[str, Any]:
        job = self.job()
        return super().get_context_data(
            **job_context(job, self.request),
            **chunks_context(job, self.request),
            span=(label := span(Job.objects.with_span().get(pk=job.pk))),
            title=job.name or f"{job.dataset.name}: {label}",
            **context,
        )

    def render_to_response(self, context: dict[str, Any], **kwargs: Any) -> HttpResponse:
        return with_downloads(super().render_to_response(context, **kwargs))


class ExportStatusFragment(JobPage):
    """The progress and the tabs of the chunk table, and after a change also the buttons, receipt, and timeline."""

    audited = CHANGES
    template_name = "exports/_now.html"

    def get_context_data(self, **context: Any) -> dict[str, Any]:
        job = self.job()
        facts = job_context(job, self.request)
        return super().get_context_data(
            **facts,
            changed=facts["shown"] != self.request.GET.get("shown"),
            is_refresh=True,
            tabs=tabs(job),  # with the same counts as the progress, although the table refreshes more slowly
            status=status_in(self.request.headers.get("HX-Current-URL", "")),
            **context,
        )


class ChunkTableFragment(JobPage):
    """The chunk table. Its page and filter are in the URL."""

    audited = CHANGES
    template_name = "exports/_chunks.html"

    def get_context_data(self, **context: Any) -> dict[str, Any]:
        job = self.job()
        return super().get_context_data(job=job, **chunks_context(job, self.request), **context)


class ReceiptFragment(JobPage):
    """The receipt, if it has changed because its link was used or it expired. Otherwise, the response is 204."""

    audited = CHANGES
    template_name = "exports/_receipt.html"

    def get(self, request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponse:
        response = super().get(request, *args, **kwargs)
        shown = response.context_data["shown"]  # type: ignore[attr-defined]
        return HttpResponse(status=204) if shown == request.GET.get("shown") else response

    def get_context_data(self, **context: Any) -> dict[str, Any]:
        return super().get_context_data(**job_context(self.job(), self.request), **context)


# ---- Context of the parts -------------------------------------------------------------------------------------------


def job_context(job: Job, request: HttpRequest) -> dict[str, Any]:
    """Return the template context of a job, without its chunks."""
    now = clock.now()
    is_owner = request.user.pk == job.user_id
    receipt = receipt_of(job, request) if job.status == JobStatus.SUCCESS else None
    is_failed = job.status == JobStatus.FAILED
    progress: Mapping[str, Any] = representation.progress(job, now)
    return {
        "job": job,
        "may_change": staff.may_change(request.user, job),
        "is_owner": is_owner,
        "has_schedule": is_owner and partial(has_schedule, job),  # a function, like `timeline`
        "progress": progress,
        "parts": segments(((status, progress[status]) for status in BAR), progress["total"]),
        "error": explain(job.error_code, job.error_detail) if is_failed and job.error_code else None,
        "receipt": receipt,
        "quota": quota_left(job.user_id) if is_failed else None,
        "purge_at": representation.purge_at(job),
        "took": job.finished_at - job.created_at if job.finished_at else now - job.created_at,
        "shown": " ".join(
            map(str, (job.status, job.failed, *((receipt["state"], receipt["link_id"]) if receipt else ())))
        ),
        "once": uuid4(),
        "timeline": partial(timeline.entries_of, job),  # a function, so that only templates that show it query it
        "workers": partial(workers.chart_of, job),  # likewise
    }


def receipt_of(job: Job, request: HttpRequest) -> dict[str, Any]:
    """Return the template context of the receipt. Only the owner gets the link's URL."""
    receipt, now = job.receipt, clock.now()
    newest_first = list(receipt.links.order_by("-created_at"))  # the oldest was created with the receipt
    link = newest_first[0] if newest_first else None
    state = link.state_at(now) if link else "revoked"
    if receipt.expires_at <= now:
        state = "expired"
    elif state == "expired":
        state = "link_expired"
    own_link = link if request.user.pk == job.user_id and state == "open" else None
    return {
        "row": receipt,
        "state": state,
        "link": link,
        "link_id": link.pk if link else "",
        "is_new_link": state == "open" and len(newest_first) > 1,
        "seconds": max(0, int((receipt.expires_at - now).total_seconds())),
        "checksum_line": for_shell(f"{receipt.checksum}  {receipt.file_name}"),
        "shell_name": for_shell(receipt.file_name),
        "powershell_name": for_powershell(receipt.file_name),
        "url": request.build_absolute_uri(links.path_of(own_link)) if own_link else "",
        **(binding(own_link, request) if own_link else {}),
    }


def for_shell(text: str) -> str:
    """Quote a text for POSIX shells. Always adds quotes, so that all commands look the same."""
    return shlex.quote(f" {text}").replace(" ", "", 1)


def for_powershell(text: str) -> str:
    """Quote a text for PowerShell, where curly quotes also end a string."""
    doubled = QUOTES.sub(r"\g<0>\g<0>", text)
    return f"'{doubled}'"


def binding(link: Link, request: HttpRequest) -> dict[str, Any]:
    """Return the network and client that a link is bound to, and whether this browser can use the link."""
    client = views.client_of(api_request(request))
    here = links.bound_to(client)
    is_here = link.network in ("", here["network"]) and link.agent in ("", here["agent"])
    agent = client.user_agent if link.agent and link.agent == here["agent"] else ""
    return {
        "network": link.network,
        "agent": link.agent,
        "is_here": is_here,
        "agent_option": shlex.quote(agent) if agent else "",
    }


def chunks_context(job: Job, request: HttpRequest) -> dict[str, Any]:
    """Return the template context of the chunk table: a page of chunks, and the failures by kind."""
    status = request.GET.get("status", "")
    if status:
        require_choice("status", status, among=ChunkStatus.values)
    rows = Chunk.objects.filter(job=job)
    listing = Listing(request, rows.filter(status=status) if status else rows, ordering=("seq",))
    return {
        "listing": listing,
        "status": status,
        "rows": [
            {
                "chunk": each,
                "error": explain(each.error_code, each.error_detail) if each.error_code else None,
                "reason": with_meaning(each.error_detail),
            }
            for each in listing.rows
        ],
        "failures": failures(rows, access.message_check(job, request.user.pk)) if job.failed else [],
        "retries": rows.filter(attempts__gt=1).aggregate(sum=Sum(F("attempts") - 1))["sum"] or 0,
        "tabs": tabs(job),
        "can_fetch": can_fetch(job, request),
        "query": request.GET.urlencode(),
    }


def has_schedule(job: Job) -> bool:
    """Return whether the schedule of a job still exists."""
    if job.schedule_id is None:
        return False
    return Schedule.objects.filter(pk=job.schedule_id, user=job.user_id).exists()


def can_fetch(job: Job, request: HttpRequest) -> bool:
    is_ready = job.status == JobStatus.SUCCESS and request.user.pk == job.user_id
    return is_ready and job.receipt.expires_at > clock.now()


def tabs(job: Job) -> list[tuple[str, str, int]]:
    """Return the tabs of the chunk table: status, label, and count. Statuses without chunks are left out."""
    progress: Mapping[str, Any] = representation.progress(job, clock.now())
    named = [(status, status.capitalize(), progress[status]) for status in ChunkStatus.values if progress[status]]
    return [("", "All", job.total), *named]


def status_in(url: str) -> str:
    """Return the status filter in the URL of the page."""
    query = url.partition("#")[0].partition("?")[2]
    return "".join(parse_qs(query).get("status", [])[-1:])


def failures(rows: QuerySet[Chunk], may_show: Callable[[str], bool]) -> list[dict[str, Any]]:
    """Return the failed chunks by cause, most frequent first: title, advice, count, and an example.

    `may_show` returns whether the user may see the source's message for a key.
    """
    groups = (
        rows.filter(status=ChunkStatus.FAILED)
        .values("error_code", "error_detail")
        .annotate(count=Count("pk"), first=Min("seq"))
        .order_by("-count", "error_code")[:MAX_GROUPS]
    )
    found = list(groups)
    examples = {each.seq: each for each in rows.filter(seq__in=[group["first"] for group in found])}
    shown = [
        {
            **explain(group["error_code"], group["error_detail"]),
            "count": group["count"],
            "example": (example := examples.get(group["first"])),
            "message": example.source_message if example and may_show(example.key) else "",
        }
        for group in found
    ]
    if any(each["message"] for each in shown):
        audit.mark_opened()
    return shown
