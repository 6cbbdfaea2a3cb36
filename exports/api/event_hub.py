"""Event hub of export jobs, behind `GET /exports/{jobId}/events`.

Events are rows (`exports.models.event`). While there are listeners, the hub polls Postgres twice a second for new
events of all watched jobs. This takes one query, and two more if there are new events, for any number of listeners.
`config.platform.http.sse` has the code that all event hubs share.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import NamedTuple
from uuid import UUID

from config.platform.db import clock, sql
from config.platform.http import sse
from config.platform.http.sse import frame
from exports.core import metrics
from exports.core.states import JOB_ENDED
from exports.jobs import representation
from exports.models import Chunk, Event, Job

PAGE = 500  # events per read, for all jobs together: 200 kB. A slow client can keep two pages in memory
LOOKAHEAD = 100  # minimum number of events per job that a read considers


# ---- New events ----------------------------------------------------------------------------------------------------


class EventRow(NamedTuple):
    """A result row of NEW_EVENTS."""

    job_id: UUID
    seq: int
    kind: str
    status: str
    chunk_id: int | None
    at: datetime
    error_code: str
    error_detail: str
    following: int | None  # the number of the job's next event, even outside the page


@dataclass(frozen=True, slots=True)
class JobUpdate:
    """The new events of a job: frames with ascending numbers, and whether the last event is final."""

    frames: list[tuple[int, bytes]]
    newest: int  # the number of the last event, which may have no frame
    is_final: bool
    joined: dict[int, bytes] = field(default_factory=dict)

    def since(self, number: int) -> bytes:
        """Return the frames after a number. They are joined once for all listeners at the same position."""
        if number not in self.joined:
            self.joined[number] = b"".join(content for seq, content in self.frames if seq > number)
        return self.joined[number]


# The primary key has the events of each job in order, so a job without new events costs one descent of the index. The
# page contains the first event of each job, then the second event of each job, and so on: a job with a backlog only
# gets the space that other jobs leave. `following` also takes events outside the page into account.
NEW_EVENTS = """
SELECT e.job_id, e.seq, e.kind, e.status, e.chunk_id, e.at, e.error_code, e.error_detail, e.following
FROM unnest(%(jobs)s::uuid[], %(after)s::bigint[]) AS watched(job_id, after)
CROSS JOIN LATERAL (
    SELECT ahead.*, row_number() OVER in_order AS nth, lead(ahead.seq) OVER in_order AS following
    FROM (
        SELECT * FROM exports_event e
        WHERE e.job_id = watched.job_id AND e.seq > watched.after ORDER BY e.seq LIMIT %(lookahead)s + 1
    ) ahead
    WINDOW in_order AS (ORDER BY ahead.seq)
) e
WHERE e.nth <= %(lookahead)s
ORDER BY e.nth, e.job_id LIMIT %(page)s
"""


def read(after: Mapping[UUID, int], *, page: int = PAGE) -> tuple[dict[UUID, JobUpdate], bool]:
    """Return the new events of these jobs after these numbers, and whether there are more events than fit the page.

    The page has at least one event of each job with new events, so it grows with the number of jobs. Chunks and jobs
    are read after the events, so the content of a frame is never older than its event.
    """
    page = max(page, len(after))
    lookahead = max(page // max(len(after), 1), LOOKAHEAD)
    of_job: dict[UUID, list[EventRow]] = defaultdict(list)
    for row in sql.rows(NEW_EVENTS, jobs=list(after), after=list(after.values()), page=page, lookahead=lookahead):
        of_job[row["job_id"]].append(EventRow(**row))
    if not of_job:
        return {}, False
    chunk_ids = {event.chunk_id for events in of_job.values() for event in events if event.chunk_id}
    chunks = Chunk.objects.in_bulk(chunk_ids)
    jobs = Job.objects.with_running().in_bulk(of_job)
    now = clock.now()
    updates = {}
    for job_id, events in of_job.items():
        if job := jobs.get(job_id):  # None if it was deleted in the meantime
            frames = list(frames_of(job, events, chunks, now=now))
            updates[job_id] = JobUpdate(
                frames,
                newest=frames[-1][0] if frames else events[-1].seq,
                is_final=events[-1].following is None and job.has_ended and is_end(events[-1]),
            )
    return updates, any(events[-1].following is not None for events in of_job.values())


def is_end(event: EventRow) -> bool:
    return event.kind == Event.Kind.STATUS and event.status in JOB_ENDED


def frames_of(
    job: Job, events: list[EventRow], chunks: Mapping[int, Chunk], *, now: datetime
) -> Iterator[tuple[int, bytes]]:
    """Yield the frames of a job's events, and a `progress` frame after the last chunk.

    The number after the last chunk of each statement is reserved for `progress`. If the page ends between the chunks of
    a statement, the next chunk has that number, and `progress` follows on a later page.
    """
    changed = [event for event in events if event.kind == Event.Kind.CHUNK]
    after = changed[-1].seq if changed and changed[-1].following != changed[-1].seq + 1 else None
    for event in events:
        if event.kind == Event.Kind.STATUS:
            cause = representation.error(event.error_code, event.error_detail)
            data = representation.status(job, event.status, event.at, cause)
            yield event.seq, frame("status", data, number=event.seq)
        elif chunk := chunks.get(event.chunk_id or 0):
            yield event.seq, frame("chunk", representation.chunk(chunk), number=event.seq)
        if event.seq == after:
            yield after + 1, frame("progress", representation.progress(job, now), number=after + 1)


# ---- Listeners ------------------------------------------------------------------------------------------------------


class JobListener(sse.Listener[UUID]):
    """An open stream of a job's events."""

    __slots__ = ()

    def encode(self, update: JobUpdate) -> bytes:
        return update.since(self.after)


class JobEventHub(sse.EventHub[UUID]):
    """The listeners of this process, by job."""

    opened, closed = metrics.STREAMS_OPENED, metrics.STREAMS_CLOSED

    def read(self, after: Mapping[UUID, int]) -> tuple[dict[UUID, JobUpdate], bool]:
        return read(after)
