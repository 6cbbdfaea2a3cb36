"""Waiting for the end of an export or document: by its event stream, or by polling while there is no stream."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from sluice.api import Api
from sluice.errors import CliError, Exit, TimedOut
from sluice.events import Event, StreamLost, listen

POLL_SECONDS = 2.0
AWAY_SECONDS = 300.0  # how long the server may be unreachable
# After so many streams in a row without an event, poll, and try the stream again after WITHOUT_SECONDS.
TRIES, WITHOUT_SECONDS = 2, 60.0
NEAR_SECONDS = 30.0  # this close to the deadline, poll: a stream may be silent for longer

State = dict[str, Any]


class Watch:
    """Follows one export or document to its end.

    The stream delivers changes; the full state is read at the start, after each disconnect and at the end.
    """

    def __init__(self, api: Api, path: str, *, ended: frozenset[str], changed: Callable[[State], None]) -> None:
        self.api, self.path, self.ended, self.changed = api, path, ended, changed
        self.on_event: Callable[[Event], None] = lambda _event: None
        self.state: State = {}
        self.last = ""
        self.failed_streams, self.stream_after = 0, 0.0

    def run(self) -> State:
        """Return the final state. Raises TimedOut at the API's deadline, and the errors of `Api.get`."""
        self.look()
        while self.state["status"] not in self.ended:
            if self.may_stream():
                self.listen()
            else:
                self.api.pause(POLL_SECONDS)
            self.look()
        return self.state

    def look(self) -> None:
        self.state = self.api.get(self.path, away=AWAY_SECONDS)
        self.changed(self.state)

    def may_stream(self) -> bool:
        if self.api.left() < NEAR_SECONDS:
            return False
        return self.failed_streams < TRIES or time.monotonic() >= self.stream_after

    def listen(self) -> None:
        """Read the stream until the final status, the end of the stream, or a disconnect."""
        received = False
        try:
            for event in listen(self.api, self.path, after=self.last):
                if event:
                    received = True
                    self.take(event)
                    if event.kind == "status" and event.data["status"] in self.ended:
                        return
                if self.api.left() < NEAR_SECONDS:
                    return
            wait = 0.0
        except StreamLost as lost:
            wait = lost.wait
        self.failed_streams = 0 if received else TRIES if wait else self.failed_streams + 1
        self.stream_after = time.monotonic() + max(wait, WITHOUT_SECONDS)
        self.api.pause(1)

    def take(self, event: Event) -> None:
        """Merge an event into the state. A `progress` event of an export updates only a part of it."""
        self.last = event.number or self.last
        self.on_event(event)
        if event.kind == "snapshot":
            self.state = event.data
        elif event.kind == "progress" and "status" not in event.data:
            self.state = {**self.state, "progress": event.data}
        elif event.kind in {"progress", "status"}:
            self.state = {**self.state, **event.data}
        self.changed(self.state)


@contextmanager
def resumable(api: Api, command: str, *, timeout: float | None) -> Iterator[None]:
    """When waiting ends early, by --timeout, Ctrl-C or a lost server, tell the user how to resume."""
    api.deadline = None if timeout is None else time.monotonic() + timeout
    try:
        yield
    except TimedOut:
        raise CliError(
            f"Not finished after {timeout:g} s. Resume waiting with: {command}", code=Exit.TIMED_OUT
        ) from None
    except KeyboardInterrupt:
        raise CliError(f"Interrupted. Resume waiting with: {command}", code=Exit.INTERRUPTED) from None
    except CliError as error:
        if error.code == Exit.UNREACHABLE:
            error.messages = [*error.messages, f"The server continues the work. Resume waiting with: {command}"]
        raise
    finally:
        api.deadline = None
