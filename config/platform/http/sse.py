"""Server-sent events: what the streams of all apps are made of.

While anybody listens, one task of each web process reads what is new, for all subjects (jobs, documents) of a kind at
once, and hands it to the listeners as bytes. Without listeners it reads nothing. Apps say by a subclass of `Hub` what
is read.

A listener is at a number: what it has heard of, and nothing later. Everything else follows from what is read. One that
reads slowly is not read for until it has sent what waits, and one that comes back with the last number that it saw is
just one that is further back: neither loses anything, hears anything twice, or has the others wait.
"""

import asyncio
import resource
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator, Mapping
from contextvars import Context
from dataclasses import dataclass, field
from typing import Any, ClassVar, Generic, Protocol, TypeVar
from weakref import WeakKeyDictionary

import orjson
import structlog
from asgiref.sync import SyncToAsync
from drf_spectacular.utils import OpenApiParameter

from config.platform.http import graceful_shutdown
from config.platform.http.problems import DATABASE_ERRORS, Problem
from config.platform.observability import logs

log = structlog.get_logger(__name__)

MEDIA_TYPE = "text/event-stream"
HEADERS = {"Cache-Control": "no-cache, no-transform", "X-Accel-Buffering": "no"}
RETRY = b"retry: 3000\n\n"  # milliseconds, for clients that lost the connection
HEARTBEAT = b":\n\n"
HEARTBEAT_SECONDS = 10.0  # the contract says 15 at most; proxies often close what is silent for 30 or 60
POLL_SECONDS = 0.5
STREAM_SECONDS = 30 * 60.0  # then clients come again, and show that their token still holds
# Of one process, for all kinds together. A stream is an open file, and the rest of the API needs some too; it is 40 KiB
# of memory as well.
MOST = min(2000, resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 2)
MOST_OF_A_USER = 50  # of those: one token must not hold all

Subject = TypeVar("Subject")


class TooManyStreams(Problem):
    status = 503
    code = "too_many_streams"
    retry_after = 30
    detail = "This server process has reached its limit of open event streams. Try again later, or poll."


class TooManyStreamsOfUser(Problem):
    status = 429
    code = "too_many_streams"
    retry_after = 30
    detail = "You have reached your limit of open event streams. Close one, or poll."


LAST_EVENT_ID = OpenApiParameter(
    "Last-Event-ID",
    str,
    "header",
    description="Id of the last event that the client received; the stream resumes after it. Without it, or if the "
    "service cannot resume there, the stream starts with `snapshot`.",
)


def frame(event: str, data: Mapping[str, Any], *, number: int) -> bytes:
    """Return one event as the stream's bytes. JSON has no raw line ends, so the data is one line."""
    return b"id: %d\nevent: %s\ndata: %s\n\n" % (
        number,
        event.encode(),
        orjson.dumps(data, option=orjson.OPT_UTC_Z),
    )


def number_in(last_event_id: str) -> int | None:
    """Return the number that a `Last-Event-ID` is, or None when it is none that we could have sent."""
    is_number = last_event_id.isascii() and last_event_id.isdecimal() and len(last_event_id) < len(str(2**63))
    return int(last_event_id) if is_number else None


# ---- Listeners ------------------------------------------------------------------------------------------------------


class News(Protocol):
    """What happened to one subject after some number."""

    @property
    def newest(self) -> int: ...

    @property
    def is_the_end(self) -> bool: ...


@dataclass(eq=False, slots=True)
class Listener(Generic[Subject]):
    """One open stream: what it has heard of, and what still waits to be sent. None among that is the end."""

    subject: Subject
    user_id: int
    after: int
    waiting: asyncio.Queue[bytes | None] = field(default_factory=asyncio.Queue)
    over: str = ""  # why it ended

    @property
    def is_ready(self) -> bool:
        return self.waiting.empty()

    def hear(self, news: Any) -> None:
        if told := self.bytes_of(news):
            self.waiting.put_nowait(told)
        self.after = max(self.after, news.newest)

    def bytes_of(self, news: Any) -> bytes:
        """Return what of the news this one has not heard yet."""
        raise NotImplementedError

    def end(self, why: str) -> None:
        if not self.over:
            self.over = why
            self.waiting.put_nowait(None)


class Hub(Generic[Subject]):
    """The listeners of this process, by subject, and the one task that reads for them while there are any."""

    poll_seconds: ClassVar[float] = POLL_SECONDS

    def __init__(self) -> None:
        self.listeners: dict[Subject, set[Listener[Subject]]] = {}
        self.task: asyncio.Task[None] | None = None
        self.is_blind = False
        self.count = 0
        self.of_user: Counter[int] = Counter()

    def read(self, after: Mapping[Subject, int]) -> tuple[Mapping[Subject, News], bool]:
        """Return what happened to these after these numbers, and whether there is more to read at once.

        Called in a thread; it must not keep the connection to the database.
        """
        raise NotImplementedError

    def opened(self) -> None:
        """Count a stream that begins to listen."""

    def closed(self, why: str) -> None:
        """Count one that ended: `ended`, `left` or `renewed`."""

    def add(self, listener: Listener[Subject]) -> None:
        self.listeners.setdefault(listener.subject, set()).add(listener)
        self.count += 1
        self.of_user[listener.user_id] += 1
        self.opened()
        if self.task is None:
            graceful_shutdown.call(end_all)
            graceful_shutdown.watch()
            # A context of its own: the first listener's has the request's ids for logs, and its thread.
            self.task = asyncio.get_running_loop().create_task(self.run(), context=Context())

    def remove(self, listener: Listener[Subject]) -> None:
        together = self.listeners.get(listener.subject, set())
        if listener in together:
            together.remove(listener)
            self.count -= 1
            self.of_user -= Counter({listener.user_id: 1})  # drops who has none
            self.closed(listener.over or "left")
            if not together:
                del self.listeners[listener.subject]

    def end(self, listener: Listener[Subject], why: str) -> None:
        """Send what waits, and nothing more."""
        listener.end(why)
        self.remove(listener)

    def end_all(self) -> None:
        for listener in [each for together in self.listeners.values() for each in together]:
            self.end(listener, "renewed")

    async def run(self) -> None:
        while self.listeners:
            try:
                more = await self.tell()
                self.is_blind = False
            except Exception as error:  # noqa: BLE001 - whatever it is, streams must not hang for ever with heartbeats only
                self.complain(error)
                more = False
            await asyncio.sleep(0 if more else self.poll_seconds)
        self.task = None

    async def tell(self) -> bool:
        """Read once, and hand out. Returns whether there is more to read at once."""
        asked = {
            subject: min(ready)
            for subject, together in self.listeners.items()
            if (ready := [listener.after for listener in together if listener.is_ready])
        }
        if not asked:
            return False
        news, more = await asyncio.to_thread(self.read, asked)
        for subject, told in news.items():
            for listener in list(self.listeners.get(subject, ())):
                # One that came in the meantime, from further back, is for the next round.
                if listener.is_ready and listener.after >= asked[subject]:
                    self.hand_out(told, listener)
        return more

    def hand_out(self, news: News, listener: Listener[Subject]) -> None:
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


AnyHub = TypeVar("AnyHub", bound=Hub[Any])
hubs: WeakKeyDictionary[asyncio.AbstractEventLoop, dict[type[Hub[Any]], Hub[Any]]] = WeakKeyDictionary()


def hub(kind: type[AnyHub]) -> AnyHub:
    """Return the hub of this kind in the running event loop. A process that serves has one loop; tests have more."""
    of_loop: dict[Any, Any] = hubs.setdefault(asyncio.get_running_loop(), {})
    its_hub: AnyHub = of_loop.setdefault(kind, kind())
    return its_hub


def all_hubs() -> Iterator[Hub[Any]]:
    """Yield the hubs of all kinds and loops. From any thread."""
    for of_loop in list(hubs.values()):
        yield from list(of_loop.values())


def check_room(user_id: int) -> None:
    """Raise TooManyStreams or TooManyStreamsOfUser when there are. Called from any thread; more may be on their way."""
    if sum(its_hub.count for its_hub in all_hubs()) >= MOST:
        raise TooManyStreams
    if streams_of(user_id) >= MOST_OF_A_USER:
        raise TooManyStreamsOfUser


def streams_of(user_id: int) -> int:
    return sum(its_hub.of_user[user_id] for its_hub in all_hubs())


def end_all() -> None:
    """End all streams, once the process is told to stop: whole events, and an end that clients take for one."""
    for loop, of_loop in list(hubs.items()):
        for its_hub in of_loop.values():
            loop.call_soon_threadsafe(its_hub.end_all)


# ---- Streams --------------------------------------------------------------------------------------------------------


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

    def __init__(self, kind: type[Hub[Any]], listener: Listener[Any], *, opening: bytes) -> None:
        self.kind = kind
        self.listener = listener
        self.opening = opening
        self.ends_at = time.monotonic() + STREAM_SECONDS
        self.loop: asyncio.AbstractEventLoop | None = None

    async def __aiter__(self) -> AsyncIterator[bytes]:
        yield self.opening
        release_thread()
        self.loop, its_hub = asyncio.get_running_loop(), hub(self.kind)
        if streams_of(self.listener.user_id) >= MOST_OF_A_USER:
            return  # many came at once, before any of them was counted; who comes again is refused
        its_hub.add(self.listener)
        try:
            while (told := await self.next_part()) is not None:
                yield told
                if time.monotonic() >= self.ends_at:
                    its_hub.end(self.listener, "renewed")
        finally:
            its_hub.remove(self.listener)

    async def next_part(self) -> bytes | None:
        try:
            async with asyncio.timeout(HEARTBEAT_SECONDS):
                return await self.listener.waiting.get()
        except TimeoutError:
            return HEARTBEAT

    def close(self) -> None:
        """Unsubscribe, from Django's thread that closes responses.

        The client may leave while a part is being sent. Then nobody is inside the generator, and its `finally` runs
        only when the garbage collector comes by.
        """
        if self.loop is not None and not self.loop.is_closed():
            self.loop.call_soon_threadsafe(hubs[self.loop][self.kind].remove, self.listener)
