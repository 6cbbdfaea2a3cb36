"""Telling of jobs as things happen: the hub behind `GET /exports/{jobId}/events`.

What happens is in rows (`exports.models.event`). While anybody listens, one task of each web process asks Postgres
twice a second what is new, for all jobs at once, and hands it to the listeners as bytes. Without listeners it asks
nothing. However many listen, it is one query when nothing happened, and three when something did.

A listener is at a number: what it has heard of, and nothing later. Everything else follows from the rows. One that
reads slowly is not read for until it has sent what waits, and one that comes back with the last number that it saw is
just one that is further back: neither loses anything, hears anything twice, or has the others wait.
"""

import asyncio
import resource
import signal
import threading
import time
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Iterator, Mapping
from contextvars import Context
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, NamedTuple
from uuid import UUID
from weakref import WeakKeyDictionary

import orjson
import structlog
from asgiref.sync import SyncToAsync
from django.db import connection
from django.utils import timezone

from config import logs
from config.api.problems import DATABASE_ERRORS, Problem
from exports import metrics, representation, sql
from exports.models import Chunk, Event, Job
from exports.states import JOB_ENDED, JobStatus

log = structlog.get_logger(__name__)

POLL_SECONDS = 0.5
HEARTBEAT_SECONDS = 10.0  # the contract says 15 at most; proxies often close what is silent for 30 or 60
STREAM_SECONDS = 30 * 60.0  # then clients come again, and show that their token still holds
PAGE = 500  # events read at once, for all jobs together: 200 kB, of which a client that does not read may keep two
LOOK = 100  # events looked at for each of many jobs, of which the page takes as many as there is room for
# Of one process. A stream is an open file, and the rest of the API needs some too; it is 40 KiB of memory as well.
MOST = min(2000, resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 2)
MOST_OF_A_USER = 50  # of those: one token must not hold all

HEARTBEAT = b":\n\n"


class TooManyStreams(Problem):
    """This process has as many event streams open as it may. Try again later, or poll the export."""

    status = 503
    code = "too_many_streams"
    retry_after = 30


class TooManyStreamsOfUser(Problem):
    """You have as many event streams open as a user may. Close one, or poll the export."""

    status = 429
    code = "too_many_streams"
    retry_after = 30


def frame(event: str, data: Mapping[str, Any], *, number: int) -> bytes:
    """Return one event as the stream's bytes. JSON has no raw line ends, so the data is one line."""
    return b"id: %d\nevent: %s\ndata: %s\n\n" % (
        number,
        event.encode(),
        orjson.dumps(data, option=orjson.OPT_UTC_Z),
    )


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
            yield event.seq, frame("status", status(job, event.status, event.at), number=event.seq)
        elif chunk := chunks.get(event.chunk_id or 0):
            yield event.seq, frame("chunk", representation.chunk(chunk), number=event.seq)
        if event.seq == after:
            yield after + 1, frame("progress", representation.progress(job, now), number=after + 1)


def status(job: Job, now: str, at: datetime | None) -> dict[str, Any]:
    """The data of `status`. The error is the job's: an end that a retry has undone since has none any more."""
    has_failed = now == job.status == JobStatus.FAILED
    error = representation.error(job.error_code, job.error_detail) if has_failed else None
    return {"status": now, "error": error, "at": at}


# ---- Listeners ------------------------------------------------------------------------------------------------------


@dataclass(eq=False, slots=True)
class Listener:
    """One open stream: what it has heard of, and what still waits to be sent. None among that is the end."""

    job_id: UUID
    user_id: int
    after: int
    waiting: asyncio.Queue[bytes | None] = field(default_factory=asyncio.Queue)
    over: str = ""  # why it ended

    @property
    def is_ready(self) -> bool:
        return self.waiting.empty()

    def hear(self, news: News) -> None:
        if told := news.since(self.after):
            self.waiting.put_nowait(told)
        self.after = max(self.after, news.newest)

    def end(self, why: str) -> None:
        if not self.over:
            self.over = why
            self.waiting.put_nowait(None)


class Hub:
    """The listeners of this process, by job, and the one task that reads for them while there are any."""

    def __init__(self) -> None:
        self.listeners: dict[UUID, set[Listener]] = {}
        self.task: asyncio.Task[None] | None = None
        self.is_blind = False
        self.count = 0
        self.of_user: Counter[int] = Counter()

    def add(self, listener: Listener) -> None:
        self.listeners.setdefault(listener.job_id, set()).add(listener)
        self.count += 1
        self.of_user[listener.user_id] += 1
        metrics.stream_opened()
        if self.task is None:
            end_with_the_process()
            # A context of its own: the first listener's has the request's ids for logs, and its thread.
            self.task = asyncio.get_running_loop().create_task(self.run(), context=Context())

    def remove(self, listener: Listener) -> None:
        of_job = self.listeners.get(listener.job_id, set())
        if listener in of_job:
            of_job.remove(listener)
            self.count -= 1
            self.of_user -= Counter({listener.user_id: 1})  # drops who has none
            metrics.stream_closed(listener.over or "left")
            if not of_job:
                del self.listeners[listener.job_id]

    def end(self, listener: Listener, why: str) -> None:
        """Send what waits, and nothing more."""
        listener.end(why)
        self.remove(listener)

    def end_all(self) -> None:
        for listener in [each for of_job in self.listeners.values() for each in of_job]:
            self.end(listener, "renewed")

    async def run(self) -> None:
        while self.listeners:
            try:
                more = await self.tell()
                self.is_blind = False
            except Exception as error:  # noqa: BLE001 - whatever it is, streams must not hang for ever with heartbeats only
                self.complain(error)
                more = False
            await asyncio.sleep(0 if more else POLL_SECONDS)
        self.task = None

    async def tell(self) -> bool:
        """Read once, and hand out. Returns whether there is more to read at once."""
        asked = {
            job_id: min(ready)
            for job_id, of_job in self.listeners.items()
            if (ready := [listener.after for listener in of_job if listener.is_ready])
        }
        if not asked:
            return False
        news, more = await asyncio.to_thread(read_and_disconnect, asked)
        for job_id, told in news.items():
            for listener in list(self.listeners.get(job_id, ())):
                # One that came in the meantime, from further back, is for the next round.
                if listener.is_ready and listener.after >= asked[job_id]:
                    self.hand_out(told, listener)
        return more

    def hand_out(self, news: News, listener: Listener) -> None:
        listener.hear(news)
        if news.is_the_end:
            self.end(listener, "ended")

    def complain(self, error: Exception) -> None:
        """Once, not twice a second. Streams stay open and get heartbeats; what they missed comes afterwards."""
        if self.is_blind:
            return
        self.is_blind = True
        if isinstance(error, DATABASE_ERRORS):
            log.warning("streams_wait_for_database", error=logs.describe(error))
        else:
            log.error("streams_broken", exc_info=error)


def read_and_disconnect(after: Mapping[UUID, int]) -> tuple[dict[UUID, News], bool]:
    """Read in a thread. Its connection is its own, and goes back to the pool here: no end of a request does that."""
    try:
        return read(after)
    finally:
        connection.close()


def check_room(user_id: int) -> None:
    """Raise TooManyStreams or TooManyStreamsOfUser when there are. Called from any thread; more may be on their way."""
    if sum(its_hub.count for its_hub in list(hubs.values())) >= MOST:
        raise TooManyStreams
    if sum(its_hub.of_user[user_id] for its_hub in list(hubs.values())) >= MOST_OF_A_USER:
        raise TooManyStreamsOfUser


hubs: WeakKeyDictionary[asyncio.AbstractEventLoop, Hub] = WeakKeyDictionary()


def hub() -> Hub:
    """Return the hub of the running event loop. A process that serves has one of both; tests have more."""
    return hubs.setdefault(asyncio.get_running_loop(), Hub())


def end_with_the_process() -> None:
    """Have SIGTERM end the streams.

    uvicorn tells nobody that it is to stop. It waits for open streams until its timeout, and then cancels them, each
    with a traceback in the log.
    """
    before = signal.getsignal(signal.SIGTERM)
    if threading.current_thread() is not threading.main_thread() or not callable(before) or before in handlers:
        return

    def handle(number: int, where: Any) -> None:
        for loop, its_hub in list(hubs.items()):
            loop.call_soon_threadsafe(its_hub.end_all)
        before(number, where)

    handlers.append(handle)
    signal.signal(signal.SIGTERM, handle)


handlers: list[Any] = []


def release_thread() -> None:
    """End the thread of this request, idle until its answer is complete: here, for half an hour.

    asgiref makes one for each request that runs anything synchronous, middleware for example. A thousand streams would
    keep a thousand, far beyond what a container may have. What still runs in one, at the end, gets another.
    """
    context = SyncToAsync.thread_sensitive_context.get(None)
    executor = SyncToAsync.context_to_thread_executor.pop(context, None) if context else None
    if executor:
        executor.shutdown(wait=False)


class Stream:
    """The body of the answer: the opening, then what happens, with comments in between while nothing does."""

    def __init__(self, job_id: UUID, *, user_id: int, opening: bytes, after: int) -> None:
        self.opening = opening
        self.listener = Listener(job_id, user_id, after)
        self.ends_at = time.monotonic() + STREAM_SECONDS
        self.loop: asyncio.AbstractEventLoop | None = None

    async def __aiter__(self) -> AsyncIterator[bytes]:
        yield self.opening
        release_thread()
        self.loop, its_hub = asyncio.get_running_loop(), hub()
        if its_hub.of_user[self.listener.user_id] >= MOST_OF_A_USER:
            return  # many came at once, before any of them was counted; who comes again is refused
        its_hub.add(self.listener)
        try:
            while (told := await self.next_of(self.listener)) is not None:
                yield told
                if time.monotonic() >= self.ends_at:
                    its_hub.end(self.listener, "renewed")
        finally:
            its_hub.remove(self.listener)

    async def next_of(self, listener: Listener) -> bytes | None:
        try:
            async with asyncio.timeout(HEARTBEAT_SECONDS):
                return await listener.waiting.get()
        except TimeoutError:
            return HEARTBEAT

    def close(self) -> None:
        """Unsubscribe, from Django's thread that closes responses.

        The client may leave while a part is being sent. Then nobody is inside the generator, and its `finally` runs
        only when the garbage collector comes by.
        """
        if self.loop is not None and not self.loop.is_closed():
            self.loop.call_soon_threadsafe(hubs[self.loop].remove, self.listener)
