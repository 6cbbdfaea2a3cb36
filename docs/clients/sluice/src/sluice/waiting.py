"""Waiting for the end of an export or document by its event stream or, without a stream, by polling."""

import time
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing
from typing import Any

from sluice.api import Api
from sluice.events import Event, StreamLost, listen

POLL_SECONDS = 2.0
AWAY_SECONDS = 300.0  # how long the server may be unreachable
# After this many streams in a row without an event, poll for STREAM_PAUSE_SECONDS before the next stream.
MAX_EMPTY_STREAMS, STREAM_PAUSE_SECONDS = 2, 60.0
NEAR_SECONDS = 30.0  # poll this close to the deadline, because a stream may be silent for longer

State = dict[str, Any]


class Watch:
    """Follows one export or document to its end.

    The stream delivers changes. The full state is read at the start, after each disconnect, and at the end.
    """

    def __init__(
        self,
        api: Api,
        path: str,
        *,
        ended: frozenset[str],
        changed: Callable[[State], None],
        on_event: Callable[[Event], None],
    ) -> None:
        self.api, self.path, self.ended, self.changed, self.on_event = api, path, ended, changed, on_event
        self.state: State = {}
        self.last = ""
        self.failed_streams, self.stream_after = 0, 0.0

    async def run(self) -> State:
        """Return the final state. Raises TimedOut at the API's deadline, and the errors of `Api.get`."""
        await self.refresh()
        while self.state["status"] not in self.ended:
            if self.may_stream():
                await self.listen()
            else:
                await self.api.pause(POLL_SECONDS)
            await self.refresh()
        return self.state

    async def refresh(self) -> None:
        self.state = await self.api.get(self.path, away=AWAY_SECONDS)
        self.changed(self.state)

    def may_stream(self) -> bool:
        if self.api.left() < NEAR_SECONDS:
            return False
        return self.failed_streams < MAX_EMPTY_STREAMS or time.monotonic() >= self.stream_after

    async def listen(self) -> None:
        """Read the stream until the final status, the end of the stream, or a disconnect."""
        received = False
        try:
            async with aclosing(listen(self.api, self.path, after=self.last)) as events:
                async for event in events:
                    if event:
                        received = True
                        self.apply(event)
                        if event.kind == "status" and event.data["status"] in self.ended:
                            return
                    if self.api.left() < NEAR_SECONDS:
                        return
            wait = 0.0
        except StreamLost as lost:
            wait = lost.wait
        self.failed_streams = 0 if received else MAX_EMPTY_STREAMS if wait else self.failed_streams + 1
        self.stream_after = time.monotonic() + max(wait, STREAM_PAUSE_SECONDS)
        await self.api.pause(1)

    def apply(self, event: Event) -> None:
        """Merge an event into the state. A `progress` event of an export replaces only the field `progress`."""
        self.last = event.number or self.last
        self.on_event(event)
        if event.kind == "snapshot":
            self.state = event.data
        elif event.kind == "progress" and "status" not in event.data:
            self.state = {**self.state, "progress": event.data}
        elif event.kind in {"progress", "status"}:
            self.state = {**self.state, **event.data}
        self.changed(self.state)


async def follow(api: Api, path: str, *, ended: frozenset[str], after: str = "") -> AsyncIterator[Event]:
    """Yield the events of an export or document until it has ended. Reconnects after disconnects."""
    while True:
        try:
            async with aclosing(listen(api, path, after=after)) as events:
                async for event in events:
                    if event:
                        after = event.number
                        yield event
            pause = 1.0
        except StreamLost as lost:
            pause = max(lost.wait, 1.0)
        if (await api.get(path, away=AWAY_SECONDS))["status"] in ended:
            return
        await api.pause(pause)
