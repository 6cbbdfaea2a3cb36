"""Waiting for an end: by the event stream, and by asking again and again while there is none."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from sluice.api import Api
from sluice.errors import Exit, TimedOut, Trouble
from sluice.events import Event, Lost, listen

POLL_SECONDS = 2.0
AWAY_SECONDS = 300.0  # that the server may be away, with nobody there to say so
# After as many streams in a row that told nothing, ask; and look after a while whether there is one again.
TRIES, WITHOUT_SECONDS = 2, 60.0
NEAR_SECONDS = 30.0  # before the deadline a stream could be silent for too long

State = dict[str, Any]


class Watch:
    """Follows one export or document to its end.

    Streams tell what is new; what is true is read, at the beginning, after each break and at the end.
    """

    def __init__(self, api: Api, path: str, *, ended: frozenset[str], changed: Callable[[State], None]) -> None:
        self.api, self.path, self.ended, self.changed = api, path, ended, changed
        self.heard: Callable[[Event], None] = lambda _event: None
        self.state: State = {}
        self.last = ""
        self.in_vain, self.again_at = 0, 0.0

    def run(self) -> State:
        """Return it as it is at its end. Raises TimedOut at the API's deadline, and whatever reading it raises."""
        self.look()
        while self.state["status"] not in self.ended:
            if self.may_listen():
                self.listen()
            else:
                self.api.pause(POLL_SECONDS)
            self.look()
        return self.state

    def look(self) -> None:
        self.state = self.api.get(self.path, away=AWAY_SECONDS)
        self.changed(self.state)

    def may_listen(self) -> bool:
        if self.api.left() < NEAR_SECONDS:
            return False
        return self.in_vain < TRIES or time.monotonic() >= self.again_at

    def listen(self) -> None:
        """Listen until the stream tells of the end, ends itself, or breaks."""
        told = False
        try:
            for event in listen(self.api, self.path, after=self.last):
                if event:
                    told = True
                    self.take(event)
                    if event.kind == "status" and event.data["status"] in self.ended:
                        return
                if self.api.left() < NEAR_SECONDS:
                    return
            wait = 0.0
        except Lost as lost:
            wait = lost.wait
        self.in_vain = 0 if told else TRIES if wait else self.in_vain + 1
        self.again_at = time.monotonic() + max(wait, WITHOUT_SECONDS)
        self.api.pause(1)

    def take(self, event: Event) -> None:
        """Lay the news over what is known. A chunk or a progress of a document is part of it, and not the whole."""
        self.last = event.number or self.last
        self.heard(event)
        if event.kind == "snapshot":
            self.state = event.data
        elif event.kind == "progress" and "status" not in event.data:
            self.state = {**self.state, "progress": event.data}
        elif event.kind in {"progress", "status"}:
            self.state = {**self.state, **event.data}
        self.changed(self.state)


@contextmanager
def come_back(api: Api, command: str, *, timeout: float | None) -> Iterator[None]:
    """Say how to come back when somebody has waited long enough: by --timeout, by Ctrl-C, or for the server."""
    api.deadline = None if timeout is None else time.monotonic() + timeout
    try:
        yield
    except TimedOut:
        raise Trouble(f"Not ended after {timeout:g} s. It goes on: {command}", code=Exit.TIMED_OUT) from None
    except KeyboardInterrupt:
        raise Trouble(f"Interrupted. It goes on: {command}", code=Exit.INTERRUPTED) from None
    except Trouble as trouble:
        if trouble.code == Exit.UNREACHABLE:
            trouble.says = [*trouble.says, f"It goes on by itself: {command}"]
        raise
    finally:
        api.deadline = None
