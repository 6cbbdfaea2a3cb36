"""Workers on the admin's start page: live workers, their queues, and their current work.

This section is loaded after the page, because it waits for heartbeats. Without JavaScript, it is a separate page.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

from django.contrib import admin
from django.http import HttpRequest, HttpResponse
from django.template.response import TemplateResponse
from django.utils.safestring import SafeString

from config.platform import workers


class Call(NamedTuple):
    """A running call of a worker: its process as `host-pid`, a link to its work, and its duration so far."""

    process: str
    work: SafeString
    duration: str


class Activity(NamedTuple):
    """A provider of running calls, shown to users with the permission."""

    permission: str
    calls: Callable[[], Sequence[Call]]


activities: list[Activity] = []


def show(request: HttpRequest) -> HttpResponse:
    """Render `/admin/workers`."""
    alive = workers.snapshot.read()
    missing = [queue for queue, names in workers.by_queue(alive or ()).items() if not names]
    visible = [each.calls() for each in activities if request.user.has_perm(each.permission)]
    context = {
        **admin.site.each_context(request),
        "title": "Workers",
        "is_known": alive is not None,
        "workers": alive,
        "missing": [workers.describe_unserved_queue(queue) for queue in missing] if alive is not None else (),
        "calls": [call for calls in visible for call in calls],
    }
    return TemplateResponse(request, "admin/workers.html", context)
