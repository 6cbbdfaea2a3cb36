"""The workers on the admin's start page: those that are alive, their queues, and their current work.

The part is loaded after the page, because it waits for heartbeats. Without JavaScript, it is a page of its own.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

from django.contrib import admin
from django.http import HttpRequest, HttpResponse
from django.template.response import TemplateResponse
from django.utils.safestring import SafeString

from config.platform import workers


class Call(NamedTuple):
    """A call that a process of a worker makes: the process as `host-pid`, its work with a link, and since when."""

    process: str
    work: SafeString
    since: str


class Activity(NamedTuple):
    """A source of rows of running calls. `permission`: to see them."""

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
        "missing": [workers.unserved(queue) for queue in missing] if alive is not None else (),
        "calls": [call for calls in visible for call in calls],
    }
    return TemplateResponse(request, "admin/workers.html", context)
