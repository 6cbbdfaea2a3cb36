"""Server-sent events: the base of the event streams of all apps.

While there are listeners, one task per web process and kind of stream reads new events for all subjects (jobs,
documents) and passes them to the listeners as bytes. Without listeners, it reads nothing. Apps define the query in a
subclass of `EventHub`.

Each listener has a position: the number of the last event that it received. A slow listener is skipped until its queue
is empty. A client that reconnects with Last-Event-ID starts at an earlier position. So a slow or reconnected listener
misses no event, receives none twice, and does not delay others.
"""

import asyncio
import resource
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextvars import Context
from dataclasses import dataclass, field
from typing import Any, ClassVar, Generic, Protocol, TypeVar
from weakref import WeakKeyDictionary

import orjson
import prometheus_client
import structlog
from asgiref.sync import SyncToAsync
from django.db import connection
from django.http import HttpResponse, StreamingHttpResponse
from django.http.response import HttpResponseBase
from drf_spectacular.utils import OpenApiParameter

from config.platform import exact_json
from config.platform.http import graceful_shutdown
from config.platform.http.auth import Credential, valid_credentials
from config.platform.http.problems import DATABASE_ERRORS, Problem
from config.platform.observability import logs
from config.platform.observability.metrics import CAUGHT

log = structlog.get_logger(__name__)

MEDIA_TYPE = "text/event-stream"
HEADERS = {"Cache-Control": "no-cache, no-transform", "X-Accel-Buffering": "no"}
RETRY = b"retry: 3000\n\n"  # milliseconds until a client reconnects
HEARTBEAT = b":\n\n"
HEARTBEAT_SECONDS = 10.0  # as documented; proxies often close connections after 30 or 60 seconds without data
POLL_SECONDS = 0.5
ACCESS_SECONDS = 5.0  # between two checks of the clients' tokens and sessions
# By the label of `CAUGHT`.
LOG_ACTIONS = {"event_stream": "streams_broken", "stream_access": "stream_access_not_checked"}
STREAM_SECONDS = 30 * 60.0  # then clients reconnect
# Per process, for all kinds of streams. A stream uses 40 KiB of memory, and a file descriptor, which other requests
# need too.
MAX_STREAMS = min(2000, resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 2)
ADVICE = "Try again later, or poll."
MAX_STREAMS_PER_USER = 50  # per process, so that a user cannot use all streams

Subject = TypeVar("Subject")
Argument = TypeVar("Argument")
Result = TypeVar("Result")


class TooManyStreams(Problem):
    status = 503
    code = "too_many_streams"
    retry_after = 30
    detail = f"This server process has reached its limit of open event streams. {ADVICE}"


class TooManyStreamsOfUser(Problem):
    status = 429
    code = "too_many_streams"
    retry_after = 30
    detail = f"You have {MAX_STREAMS_PER_USER} open event streams, which is the limit. Close one, or poll."


LAST_EVENT_ID = OpenApiParameter(
    "Last-Event-ID",
    str,
    "header",
    description="ID of the last event that the client received; the stream resumes after it. Without it, or if the "
    "service cannot resume there, the stream starts with `snapshot`.",
)


def frame(event: str, data: Mapping[str, Any], *, number: int) -> bytes:
    """Encode one event. The data is a single line, because JSON contains no raw line breaks."""
    return b"id: %d\nevent: %s\ndata: %s\n\n" % (
        number,
        event.encode(),
        orjson.dumps(data, default=exact_json.serialize_number, option=orjson.OPT_UTC_Z),
    )


# ---- Listeners ------------------------------------------------------------------------------------------------------


class Update(Protocol):
    """The new events of one subject."""

    @property
    def newest(self) -> int: ...

    @property
    def is_final(self) -> bool: ...


@dataclass(eq=False, slots=True)
class Listener(Generic[Subject]):
    """One open stream: its position, and the queue of bytes to send. None in the queue closes the stream."""

    subject: Subject
    credential: Credential
    after: int
    waiting: asyncio.Queue[bytes | None] = field(default_factory=asyncio.Queue)
    end_reason: str = ""

    @property
    def user_id(self) -> int:
        return self.credential.user_id

    @property
    def is_ready(self) -> bool:
        return self.waiting.empty()

    def send(self, update: Any) -> None:
        if content := self.encode(update):
            self.waiting.put_nowait(content)
        self.after = max(self.after, update.newest)

    def encode(self, update: Any) -> bytes:
        """Return the events after this listener's position, as bytes."""
        raise NotImplementedError

    def end(self, reason: str) -> None:
        if not self.end_reason:
            self.end_reason = reason
            self.waiting.put_nowait(None)


class EventHub(Generic[Subject]):
    """The listeners of this process, by subject, and the task that reads events for them.

    `opened` and `closed` count streams. The label of `closed` is `ended`, `left`, `renewed`, or `revoked`.
    """

    poll_seconds: ClassVar[float] = POLL_SECONDS
    opened: ClassVar[prometheus_client.Counter]
    closed: ClassVar[prometheus_client.Counter]

    def __init__(self) -> None:
        self.listeners: dict[Subject, set[Listener[Subject]]] = {}
        self.task: asyncio.Task[None] | None = None
        self.failing: set[str] = set()  # labels of `CAUGHT` whose last attempt failed
        self.count = 0
        self.of_user: Counter[int] = Counter()

    def read(self, after: Mapping[Subject, int]) -> tuple[Mapping[Subject, Update], bool]:
        """Return the events after these positions, and whether more can be read immediately. Runs in a thread."""
        raise NotImplementedError

    def add(self, listener: Listener[Subject]) -> None:
        self.listeners.setdefault(listener.subject, set()).add(listener)
        self.count += 1
        self.of_user[listener.user_id] += 1
        self.opened.inc()
        if self.task is None:
            graceful_shutdown.register(end_all)
            graceful_shutdown.watch()
            # A new context: the current one has the first listener's request IDs for logs, and its thread.
            self.task = asyncio.get_running_loop().create_task(self.run(), context=Context())

    def remove(self, listener: Listener[Subject]) -> None:
        together = self.listeners.get(listener.subject, set())
        if listener in together:
            together.remove(listener)
            self.count -= 1
            self.of_user -= Counter({listener.user_id: 1})  # drops users without streams
            self.closed.labels(listener.end_reason or "left").inc()
            if not together:
                del self.listeners[listener.subject]

    def end(self, listener: Listener[Subject], reason: str) -> None:
        """Close a stream after the bytes in its queue."""
        listener.end(reason)
        self.remove(listener)

    def end_all(self) -> None:
        for listener in [each for together in self.listeners.values() for each in together]:
            self.end(listener, "renewed")

    async def run(self) -> None:
        # In a separate task, so that an unresponsive identity provider does not delay events.
        access = asyncio.create_task(self.check_access())
        try:
            await self.read_while_listened()
        finally:
            access.cancel()
        self.task = None

    async def read_while_listened(self) -> None:
        while self.listeners:
            try:
                more = await self.read_and_send()
                self.failing.discard("event_stream")
            except Exception as error:  # noqa: BLE001 - after any error, streams must not hang with heartbeats only
                self.note_error("event_stream", error)
                more = False
            await asyncio.sleep(0 if more else self.poll_seconds)

    async def check_access(self) -> None:
        while True:
            await asyncio.sleep(ACCESS_SECONDS)  # first, because the requests have just been authenticated
            try:
                await self.end_revoked()
                self.failing.discard("stream_access")
            except Exception as error:  # noqa: BLE001 - after any error, access must be checked again
                self.note_error("stream_access", error)

    async def read_and_send(self) -> bool:
        """Read once and deliver the events. Return whether more can be read immediately."""
        positions = {
            subject: min(ready)
            for subject, together in self.listeners.items()
            if (ready := [listener.after for listener in together if listener.is_ready])
        }
        if not positions:
            return False
        updates, more = await in_thread(self.read, positions)
        for subject, update in updates.items():
            for listener in list(self.listeners.get(subject, ())):
                # A listener that was added during the read, at an earlier position, is served by the next read.
                if listener.is_ready and listener.after >= positions[subject]:
                    self.deliver(update, listener)
        return more

    async def end_revoked(self) -> None:
        """Close the streams whose token or session was deleted, or whose user was deactivated."""
        listeners = [each for together in self.listeners.values() for each in together]
        valid = await in_thread(valid_credentials, {each.credential for each in listeners})
        for listener in listeners:
            if listener.credential not in valid:
                self.end(listener, "revoked")

    def deliver(self, update: Update, listener: Listener[Subject]) -> None:
        listener.send(update)
        if update.is_final:
            self.end(listener, "ended")

    def note_error(self, place: str, error: Exception) -> None:
        """Count an error, and log only the first of a series. Streams stay open, and receive missed events later."""
        CAUGHT.labels(place).inc()
        if place in self.failing:
            return
        self.failing.add(place)
        if isinstance(error, DATABASE_ERRORS):
            log.warning("streams_wait_for_database", error=logs.describe(error))
        else:
            log.error(LOG_ACTIONS[place], exc_info=error)


async def in_thread(call: Callable[[Argument], Result], argument: Argument) -> Result:
    """Call in a thread, and return its database connection to the pool afterwards, as Django does after a request."""

    def call_and_disconnect() -> Result:
        try:
            return call(argument)
        finally:
            connection.close()

    return await asyncio.to_thread(call_and_disconnect)


AnyHub = TypeVar("AnyHub", bound=EventHub[Any])
hubs: WeakKeyDictionary[asyncio.AbstractEventLoop, dict[type[EventHub[Any]], EventHub[Any]]] = WeakKeyDictionary()


def hub(kind: type[AnyHub]) -> AnyHub:
    """Return the hub of this kind in the running event loop. A web process has one loop; tests have several."""
    of_loop: dict[Any, Any] = hubs.setdefault(asyncio.get_running_loop(), {})
    found: AnyHub = of_loop.setdefault(kind, kind())
    return found


def all_hubs() -> Iterator[EventHub[Any]]:
    """Yield the hubs of all kinds and loops. Thread-safe."""
    for of_loop in list(hubs.values()):
        yield from list(of_loop.values())


def check_limits(user_id: int) -> None:
    """Raise TooManyStreams or TooManyStreamsOfUser at the limit. Thread-safe; concurrent requests may exceed it."""
    if sum(each.count for each in all_hubs()) >= MAX_STREAMS:
        raise TooManyStreams(
            f"This server process has {MAX_STREAMS:,} open event streams, which is its limit. {ADVICE}"
        )
    if streams_of(user_id) >= MAX_STREAMS_PER_USER:
        raise TooManyStreamsOfUser


def streams_of(user_id: int) -> int:
    return sum(each.of_user[user_id] for each in all_hubs())


def end_all() -> None:
    """Close all streams at shutdown, each after a complete event, so that the responses end normally."""
    for loop, of_loop in list(hubs.items()):
        for each in of_loop.values():
            loop.call_soon_threadsafe(each.end_all)


# ---- Streams --------------------------------------------------------------------------------------------------------


def release_thread() -> None:
    """Stop the thread of this request, which would be idle until the stream is closed, for up to half an hour.

    asgiref creates a thread for each request that runs synchronous code, such as middleware. A thousand streams would
    occupy a thousand threads, far above a container's limit. Later synchronous code of the request gets a new thread.
    """
    context = SyncToAsync.thread_sensitive_context.get(None)
    executor = SyncToAsync.context_to_thread_executor.pop(context, None) if context else None
    if executor:
        executor.shutdown(wait=False)


def respond(opening: bytes, kind: type[EventHub[Any]], listener: Listener[Any] | None) -> HttpResponseBase:
    """Return a stream of the opening and the listener's events. Without a listener, return only the opening.

    Raises TooManyStreams and TooManyStreamsOfUser.
    """
    if listener is None:
        return HttpResponse(RETRY + opening, content_type=MEDIA_TYPE, headers=HEADERS)
    check_limits(listener.user_id)
    stream = EventStream(kind, listener, opening=RETRY + opening)
    return StreamingHttpResponse(stream, content_type=MEDIA_TYPE, headers=HEADERS)


class EventStream:
    """The response body: the opening, then events, with comments as heartbeats."""

    def __init__(self, kind: type[EventHub[Any]], listener: Listener[Any], *, opening: bytes) -> None:
        self.kind = kind
        self.listener = listener
        self.opening = opening
        self.ends_at = time.monotonic() + STREAM_SECONDS
        self.loop: asyncio.AbstractEventLoop | None = None

    async def __aiter__(self) -> AsyncIterator[bytes]:
        yield self.opening
        release_thread()
        self.loop, events = asyncio.get_running_loop(), hub(self.kind)
        if streams_of(self.listener.user_id) >= MAX_STREAMS_PER_USER:
            return  # many streams were opened at the same time, before they were counted; reconnects are rejected
        events.add(self.listener)
        try:
            while (part := await self.next_part()) is not None:
                yield part
                if time.monotonic() >= self.ends_at:
                    events.end(self.listener, "renewed")
        finally:
            events.remove(self.listener)

    async def next_part(self) -> bytes | None:
        try:
            async with asyncio.timeout(HEARTBEAT_SECONDS):
                return await self.listener.waiting.get()
        except TimeoutError:
            return HEARTBEAT

    def close(self) -> None:
        """Unsubscribe. Called in Django's thread that closes responses.

        If the client disconnects while a part is being sent, the generator is suspended, and its `finally` would run
        only at garbage collection.
        """
        if self.loop is not None and not self.loop.is_closed():
            self.loop.call_soon_threadsafe(hubs[self.loop][self.kind].remove, self.listener)
