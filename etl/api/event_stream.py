"""`GET /tasks/{id}/events`: the changes of a task as server-sent events.

Run-states have no history, so a listener receives the current state whenever it differs from the last one that was
sent. Event numbers are the revisions of run-states. The end of a task has the highest number of its generation.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from django.db import connection
from django.http import HttpResponse
from django.http.response import HttpResponseBase
from rest_framework.request import Request

from config.platform.http import sse, staff
from config.platform.http.audit import CHANGES
from config.platform.http.auth import credential_of, user_of
from config.platform.http.negotiation import IgnoreAccept
from config.platform.http.openapi.responses import problems
from config.platform.http.paging import whole_number
from etl.api import lookup, openapi
from etl.api.views import TaskAPIView, visible
from etl.core import metrics
from etl.models import Task
from etl.pipeline import representation
from etl.pipeline.actions import NoSuchTask
from etl.runstate import RunState


class TaskEventsView(TaskAPIView):
    """`GET /tasks/{id}/events`: a response that stays open until the task has ended."""

    audited = CHANGES
    http_method_names = ("get",)  # without this, Django would add HEAD
    content_negotiation_class = IgnoreAccept

    @openapi.operation(
        operation_id="watchTask",
        **openapi.WATCH,
        responses={
            (200, sse.MEDIA_TYPE): openapi.EVENTS,
            204: openapi.NO_MORE_EVENTS,
            **problems(NoSuchTask, sse.TooManyStreamsOfUser, sse.TooManyStreams),
        },
    )
    def get(self, request: Request, task_id: int) -> HttpResponseBase:
        state = lookup.open_result(visible(request, task_id), user=user_of(request))
        start = begin(state, request.headers.get("Last-Event-ID", ""))
        credential = credential_of(request, owner_id=state.user_id, model=Task)
        connection.close()
        if start is None:
            return HttpResponse(status=204, headers={"Cache-Control": "no-store"})
        listener = None
        if start.listens_from is not None:
            may_open = staff.may_open(user_of(request), state.user_id)
            kind = TaskListener if may_open else RedactedTaskListener
            listener = kind(task_id, credential, start.listens_from.newest)
            listener.status = start.listens_from.state.status
        return sse.respond(start.opening, TaskEventHub, listener)


# ---- Events ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class TaskUpdate:
    """The current state of a task, and its encoded events, which all listeners share."""

    state: RunState

    @property
    def newest(self) -> int:
        return self.state.number

    @property
    def is_final(self) -> bool:
        return self.state.has_ended

    @cached_property
    def snapshot(self) -> bytes:
        """The snapshot. If the task has ended, the event `status` follows, with the next number."""
        number = self.newest - 1 if self.is_final else self.newest
        task = representation.task(self.state, previous_result=lookup.previous_result(self.state))
        return sse.frame("snapshot", task, number=number)

    @cached_property
    def status(self) -> bytes:
        return sse.frame("status", representation.status(self.state), number=self.newest)

    @cached_property
    def progress(self) -> bytes:
        return sse.frame("progress", representation.progress(self.state), number=self.newest)


class TaskStreamStart(NamedTuple):
    opening: bytes
    listens_from: TaskUpdate | None  # None if the opening contains the last event


def begin(state: RunState, last_event_id: str) -> TaskStreamStart | None:
    """Return the start of the stream, or None if the client has received all events.

    A client that reconnects after missed events receives the status first, because the server does not know which
    status the client has.
    """
    update, position = TaskUpdate(state), whole_number(last_event_id)
    if position is None or position > update.newest:
        opening = update.snapshot + (update.status if update.is_final else b"")
    elif position < update.newest:
        opening = update.status
    elif update.is_final:
        return None
    else:
        opening = b""
    return TaskStreamStart(opening, listens_from=None if update.is_final else update)


# ---- Listeners ------------------------------------------------------------------------------------------------------


class TaskListener(sse.Listener[int]):
    """One open stream of a task. `status`: the last status that was sent."""

    __slots__ = ("status",)
    status: str

    def encode(self, update: TaskUpdate) -> bytes:
        if update.newest <= self.after:
            return b""
        known, self.status = self.status, update.state.status
        return update.progress if known == self.status else update.status


class RedactedTaskListener(TaskListener):
    """A stream for staff who may not open the data of the document."""

    __slots__ = ()

    def encode(self, update: TaskUpdate) -> bytes:
        return super().encode(TaskUpdate(lookup.without_data(update.state)))


class TaskEventHub(sse.EventHub[int]):
    """The open streams of this process, by task."""

    opened, closed = metrics.STREAMS_OPENED, metrics.STREAMS_CLOSED

    def read(self, after: Mapping[int, int]) -> tuple[dict[int, TaskUpdate], bool]:
        """Read the states with one round trip to Redis, and one query for tasks without a run-state."""
        try:
            states = lookup.states_of(after)
        finally:
            connection.close()
        updates = {task_id: TaskUpdate(state) for task_id, state in states.items()}
        return {task_id: each for task_id, each in updates.items() if each.newest > after[task_id]}, False
