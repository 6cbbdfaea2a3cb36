"""`GET /exports/{jobId}/events`: the events of a job as server-sent events.

The view returns when the stream starts, and the server's event loop writes the response. So an open stream does not
occupy a thread. It must not occupy a database connection either, because the pool is small.
"""

from typing import NamedTuple
from uuid import UUID

from django.db import connection
from django.db.models import Min
from django.http import HttpResponse
from django.http.response import HttpResponseBase
from drf_spectacular.utils import extend_schema
from rest_framework.request import Request
from rest_framework.views import APIView

from config.platform.http import sse
from config.platform.http.audit import CHANGES
from config.platform.http.auth import credential_of
from config.platform.http.negotiation import IgnoreAccept
from config.platform.http.openapi.responses import problems
from config.platform.http.paging import whole_number
from config.platform.http.scopes import EXPORTS
from exports.api import openapi
from exports.api.event_hub import JobEventHub, JobListener
from exports.api.views import NoSuchExport, visible
from exports.jobs import representation
from exports.models import Event, Job

MAX_FIRST_NUMBER = 2  # the largest possible number of a job's first event


class ExportEventsView(APIView):
    """`GET /exports/{jobId}/events`: streams the events until the job ends."""

    audited = CHANGES
    scopes = EXPORTS
    http_method_names = ("get",)  # Django would accept HEAD too
    content_negotiation_class = IgnoreAccept

    @extend_schema(
        operation_id="watchExport",
        **openapi.WATCH,
        responses={
            (200, sse.MEDIA_TYPE): openapi.EVENTS,
            204: openapi.NO_MORE_EVENTS,
            **problems(NoSuchExport, sse.TooManyStreamsOfUser, sse.TooManyStreams),
        },
    )
    def get(self, request: Request, job_id: UUID) -> HttpResponseBase:
        job = visible(request, job_id)
        start, credential = begin(job, request), credential_of(request, owner_id=job.user_id, model=Job)
        connection.close()
        if start is None:
            return HttpResponse(status=204, headers={"Cache-Control": "no-store"})
        listener = None if start.after is None else JobListener(job_id, credential, start.after)
        return sse.respond(start.opening, JobEventHub, listener)


class JobStreamStart(NamedTuple):
    opening: bytes
    after: int | None  # the number of the last event that was sent; None if `opening` contains the end of the job


def begin(job: Job, request: Request) -> JobStreamStart | None:
    """Return the start of the stream, or None if the client has received all events."""
    position = resume_position(job, request.headers.get("Last-Event-ID", ""))
    if position is not None:
        return None if job.has_ended and position == job.event_seq else JobStreamStart(b"", after=position)
    snapshot = representation.job(job, request)
    if not job.has_ended:
        return JobStreamStart(sse.frame("snapshot", snapshot, number=job.event_seq), after=job.event_seq)
    # The last event is built from the row of the job, because the rows of its events may have been deleted.
    end = representation.status(job, job.status, job.finished_at)
    return JobStreamStart(
        sse.frame("snapshot", snapshot, number=job.event_seq - 1) + sse.frame("status", end, number=job.event_seq),
        after=None,
    )


def resume_position(job: Job, last_event_id: str) -> int | None:
    """Return the number of the client's last event, or None if the stream cannot resume after it.

    It cannot if the number is too large for this job, or if later events were deleted.
    """
    position = whole_number(last_event_id)
    if position is None:
        return None
    if position >= job.event_seq:
        return position if position == job.event_seq else None
    oldest = Event.objects.filter(job=job).aggregate(seq=Min("seq"))["seq"]
    has_all = oldest is not None and (oldest <= MAX_FIRST_NUMBER or oldest <= position + 1)
    return position if has_all else None
