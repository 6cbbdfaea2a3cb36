"""`GET /tasks/{id}/events`: what happens to a task, as server-sent events.

What happens passes in run-states, which keep no history: a listener is told what is true now, whenever that is not what
it knows. Numbers are those of the run-states' revisions; the end has the last number of its fence.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from django.db import connection
from django.http import HttpResponse, StreamingHttpResponse
from django.http.response import HttpResponseBase
from drf_spectacular.utils import extend_schema
from rest_framework.request import Request

from config.platform.http import sse
from config.platform.http.auth import user_of
from config.platform.http.negotiation import IgnoreAccept
from config.platform.http.openapi.responses import problems
from etl.api import lookup, openapi, representation
from etl.api.views import NoSuchTask, View, seen
from etl.core import metrics
from etl.runstate import RunState


class Events(View):
    """`GET /tasks/{id}/events`: an answer that goes on until the task has ended."""

    http_method_names = ("get",)  # Django would make a HEAD of it
    content_negotiation_class = IgnoreAccept

    @extend_schema(
        operation_id="watchTask",
        tags=openapi.TAGS,
        **openapi.WATCH,
        responses={
            (200, sse.MEDIA_TYPE): openapi.EVENTS,
            204: openapi.NO_MORE_EVENTS,
            **problems(NoSuchTask, sse.TooManyStreamsOfUser, sse.TooManyStreams),
        },
    )
    def get(self, request: Request, task_id: int) -> HttpResponseBase:
        start = begin(seen(request, task_id), request.headers.get("Last-Event-ID", ""))
        connection.close()
        if start is None:
            return HttpResponse(status=204, headers={"Cache-Control": "no-store"})
        opening = sse.RETRY + start.opening
        if start.listens_from is None:
            return HttpResponse(opening, content_type=sse.MEDIA_TYPE, headers=sse.HEADERS)
        user_id = user_of(request).pk
        sse.check_room(user_id)
        listener = TaskListener(task_id, user_id, start.listens_from.number)
        listener.status = start.listens_from.state.status
        stream = sse.Stream(TaskEventHub, listener, opening=opening)
        return StreamingHttpResponse(stream, content_type=sse.MEDIA_TYPE, headers=sse.HEADERS)


# ---- What there is to tell ------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class TaskUpdate:
    """A task as it is now, and its events: all listeners that know the same of it share the same bytes."""

    state: RunState

    @property
    def number(self) -> int:
        return self.state.number

    @property
    def newest(self) -> int:
        return self.number

    @property
    def is_the_end(self) -> bool:
        return self.state.has_ended

    @cached_property
    def snapshot(self) -> bytes:
        """The end has the number after it, so that `status` can follow."""
        number = self.number - 1 if self.is_the_end else self.number
        return sse.frame("snapshot", representation.task(self.state), number=number)

    @cached_property
    def status(self) -> bytes:
        return sse.frame("status", representation.status(self.state), number=self.number)

    @cached_property
    def progress(self) -> bytes:
        return sse.frame("progress", representation.progress(self.state), number=self.number)


class StreamStart(NamedTuple):
    opening: bytes
    listens_from: TaskUpdate | None  # None when the opening has told the end


def begin(state: RunState, last_event_id: str) -> StreamStart | None:
    """Return how the stream begins, or None when its client has heard everything already.

    A client that comes back is told the status at once, as nobody knows what it was when it left.
    """
    news, heard = TaskUpdate(state), sse.number_in(last_event_id)
    if heard is None or heard > news.number:
        opening = news.snapshot + (news.status if news.is_the_end else b"")
    elif heard < news.number:
        opening = news.status
    elif news.is_the_end:
        return None
    else:
        opening = b""
    return StreamStart(opening, listens_from=None if news.is_the_end else news)


# ---- Telling it -----------------------------------------------------------------------------------------------------


class TaskListener(sse.Listener[int]):
    """One open stream of a task, and the status that its client knows."""

    __slots__ = ("status",)
    status: str

    def bytes_of(self, news: TaskUpdate) -> bytes:
        if news.number <= self.after:
            return b""
        known, self.status = self.status, news.state.status
        return news.progress if known == self.status else news.status


class TaskEventHub(sse.Hub[int]):
    """The listeners of this process, by task."""

    def read(self, after: Mapping[int, int]) -> tuple[dict[int, TaskUpdate], bool]:
        """One round trip to Redis, and one query only for tasks that it does not have."""
        try:
            states = lookup.known(after)
        finally:
            connection.close()
        news = {task_id: TaskUpdate(state) for task_id, state in states.items()}
        return {task_id: each for task_id, each in news.items() if each.number > after[task_id]}, False

    def opened(self) -> None:
        metrics.stream_opened()

    def closed(self, why: str) -> None:
        metrics.stream_closed(why)
