"""`GET /exports/{jobId}/events`: what happens to a job, as server-sent events.

The view itself is like all others, and has answered when the stream begins. What it returns is read by the server's
event loop: an open stream needs no thread. It must not keep the connection to the database either: the pool is small.
"""

from typing import NamedTuple
from uuid import UUID

from django.db import connection
from django.db.models import Min
from django.http import HttpResponse, StreamingHttpResponse
from django.http.response import HttpResponseBase
from drf_spectacular.utils import extend_schema
from rest_framework.request import Request
from rest_framework.views import APIView

from config.platform.http import sse
from config.platform.http.auth import user_of
from config.platform.http.negotiation import IgnoreAccept
from config.platform.http.openapi.responses import problems
from exports.api import event_hub, openapi
from exports.api.views import NoSuchExport, owned
from exports.jobs import representation
from exports.models import Event, Job

FIRST = 2  # the highest number that the first event of a job may have


class Events(APIView):
    """`GET /exports/{jobId}/events`: an answer that goes on until the job has ended."""

    http_method_names = ("get",)  # Django would make a HEAD of it
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
        start = begin(owned(request, job_id), request)
        connection.close()
        if start is None:
            return HttpResponse(status=204, headers={"Cache-Control": "no-store"})
        opening = sse.RETRY + start.opening
        if start.after is None:
            return HttpResponse(opening, content_type=sse.MEDIA_TYPE, headers=sse.HEADERS)
        user_id = user_of(request).pk
        sse.check_room(user_id)
        stream = event_hub.stream(job_id, user_id=user_id, opening=opening, after=start.after)
        return StreamingHttpResponse(stream, content_type=sse.MEDIA_TYPE, headers=sse.HEADERS)


class Start(NamedTuple):
    opening: bytes
    after: int | None  # where to listen from; None when the opening has told the end


def begin(job: Job, request: Request) -> Start | None:
    """Return how the stream begins, or None when its client has heard everything already."""
    heard = heard_by(job, request.headers.get("Last-Event-ID", ""))
    if heard is not None:
        return None if job.has_ended and heard == job.event_seq else Start(b"", after=heard)
    snapshot = representation.job(job, request)
    if not job.has_ended:
        return Start(sse.frame("snapshot", snapshot, number=job.event_seq), after=job.event_seq)
    # The end comes from the job's own row: its events may be forgotten already.
    end = representation.status(job, job.status, job.finished_at)
    return Start(
        sse.frame("snapshot", snapshot, number=job.event_seq - 1) + sse.frame("status", end, number=job.event_seq),
        after=None,
    )


def heard_by(job: Job, last_event_id: str) -> int | None:
    """Return the number that a client has heard up to, or None when it cannot go on from there.

    It cannot when the number is none of this job's, or when an event that came after it was forgotten.
    """
    heard = sse.number_in(last_event_id)
    if heard is None:
        return None
    if heard >= job.event_seq:
        return heard if heard == job.event_seq else None
    oldest = Event.objects.filter(job=job).aggregate(seq=Min("seq"))["seq"]
    has_all = oldest is not None and (oldest <= FIRST or oldest <= heard + 1)
    return heard if has_all else None
