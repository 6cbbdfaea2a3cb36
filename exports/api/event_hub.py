"""Telling of jobs as things happen: the hub behind `GET /exports/{jobId}/events`.

What happens is in rows (`exports.models.event`). While anybody listens, Postgres is asked twice a second what is new,
for all jobs at once: however many listen, it is one query when nothing happened, and three when something did. The rest
is `config.platform.http.sse`.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import NamedTuple
from uuid import UUID

from django.db import connection
from django.utils import timezone

from config.platform.db import sql
from config.platform.http import sse
from config.platform.http.sse import frame
from exports.core import metrics
from exports.core.states import JOB_ENDED
from exports.jobs import representation
from exports.models import Chunk, Event, Job

PAGE = 500  # events read at once, for all jobs together: 200 kB, of which a client that does not read may keep two
LOOK = 100  # events looked at for each of many jobs, of which the page takes as many as there is room for


# ---- What is new ----------------------------------------------------------------------------------------------------


class Happened(NamedTuple):
    """A row of NEWS."""

    job_id: UUID
    seq: int
    kind: str
    status: str
    chunk_id: int | None
    at: datetime
    following: int | None  # the number of the job's next event, which need not be in the page


@dataclass(frozen=True, slots=True)
class News:
    """What happened to one job: frames by their numbers, which grow, and whether the last one is the end."""

    frames: list[tuple[int, bytes]]
    newest: int  # event, also where a frame of it could not be made
    is_the_end: bool
    joined: dict[int, bytes] = field(default_factory=dict)

    def since(self, number: int) -> bytes:
        """Return what came after a number. Nearly all listeners are at the same one, and share the same bytes."""
        if number not in self.joined:
            self.joined[number] = b"".join(told for seq, told in self.frames if seq > number)
        return self.joined[number]


# The primary key gives each job's events in order, so a job costs one descent of the index when it has nothing new.
# The page takes the first event of each job, then the second of each: a job with a backlog fills what the others leave
# free, and holds none of them up. `following` looks beyond the page, which may cut off any number of jobs.
NEWS = """
SELECT e.job_id, e.seq, e.kind, e.status, e.chunk_id, e.at, e.following
FROM unnest(%(jobs)s::uuid[], %(after)s::bigint[]) AS watched(job_id, after)
CROSS JOIN LATERAL (
    SELECT ahead.*, row_number() OVER in_order AS nth, lead(ahead.seq) OVER in_order AS following
    FROM (
        SELECT * FROM exports_event e
        WHERE e.job_id = watched.job_id AND e.seq > watched.after ORDER BY e.seq LIMIT %(look)s + 1
    ) ahead
    WINDOW in_order AS (ORDER BY ahead.seq)
) e
WHERE e.nth <= %(look)s
ORDER BY e.nth, e.job_id LIMIT %(page)s
"""


def read(after: Mapping[UUID, int], *, page: int = PAGE) -> tuple[dict[UUID, News], bool]:
    """Return what happened to these jobs after these numbers, and whether there is more than a page of it.

    Each job is told of at least one event, if it has any, so with more jobs than that a page is as long as they are
    many. Chunks and jobs are read after their events: what a frame says is never older than the event it is about.
    """
    page = max(page, len(after))
    look = max(page // max(len(after), 1), LOOK)
    of_job: dict[UUID, list[Happened]] = defaultdict(list)
    for row in sql.rows(NEWS, jobs=list(after), after=list(after.values()), page=page, look=look):
        of_job[row["job_id"]].append(Happened(**row))
    if not of_job:
        return {}, False
    chunk_ids = {event.chunk_id for events in of_job.values() for event in events if event.chunk_id}
    chunks = Chunk.objects.in_bulk(chunk_ids)
    jobs = Job.objects.with_running().in_bulk(of_job)
    now = timezone.now()
    news = {}
    for job_id, events in of_job.items():
        if job := jobs.get(job_id):  # deleted meanwhile otherwise
            frames = list(frames_of(job, events, chunks, now=now))
            news[job_id] = News(
                frames,
                newest=frames[-1][0] if frames else events[-1].seq,
                is_the_end=events[-1].following is None and job.has_ended and is_end(events[-1]),
            )
    return news, any(events[-1].following is not None for events in of_job.values())


def is_end(event: Happened) -> bool:
    return event.kind == Event.Kind.STATUS and event.status in JOB_ENDED


def frames_of(
    job: Job, events: list[Happened], chunks: Mapping[int, Chunk], *, now: datetime
) -> Iterator[tuple[int, bytes]]:
    """Yield the frames of a job's events, and one `progress` after the last of its chunks.

    The number behind a statement's last chunk is free for `progress`. Where the page ends amid a statement's chunks,
    the next of them has that number: then `progress` comes with the rest.
    """
    changed = [event for event in events if event.kind == Event.Kind.CHUNK]
    after = changed[-1].seq if changed and changed[-1].following != changed[-1].seq + 1 else None
    for event in events:
        if event.kind == Event.Kind.STATUS:
            yield event.seq, frame("status", representation.status(job, event.status, event.at), number=event.seq)
        elif chunk := chunks.get(event.chunk_id or 0):
            yield event.seq, frame("chunk", representation.chunk(chunk), number=event.seq)
        if event.seq == after:
            yield after + 1, frame("progress", representation.progress(job, now), number=after + 1)


# ---- Listeners ------------------------------------------------------------------------------------------------------


class Listener(sse.Listener[UUID]):
    """One open stream of a job."""

    __slots__ = ()

    def bytes_of(self, news: News) -> bytes:
        return news.since(self.after)


class Hub(sse.Hub[UUID]):
    """The listeners of this process, by job."""

    def read(self, after: Mapping[UUID, int]) -> tuple[dict[UUID, News], bool]:
        return read_and_disconnect(after)

    def opened(self) -> None:
        metrics.stream_opened()

    def closed(self, why: str) -> None:
        metrics.stream_closed(why)


def read_and_disconnect(after: Mapping[UUID, int]) -> tuple[dict[UUID, News], bool]:
    """Read in a thread. Its connection is its own, and goes back to the pool here: no end of a request does that."""
    try:
        return read(after)
    finally:
        connection.close()


def stream(job_id: UUID, *, user_id: int, opening: bytes, after: int) -> sse.Stream:
    """Return the body of an answer that tells of the job until it has ended."""
    return sse.Stream(Hub, Listener(job_id, user_id, after), opening=opening)
