"""Calls for the pieces of a document, a few at a time.

Each call runs in a thread, with a part of the stage's context. After a failure no call is started, but those that run
are awaited: they are paid, and the next attempt uses their responses. If the worker or the lease is lost, the calls are
stopped and abandoned; each checks its context before every wait on the network.
"""

import contextvars
import queue
import threading
from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

from etl.core.stage_context import POLL_SECONDS, StageContext

T = TypeVar("T")


def run(
    calls: Sequence[Callable[[StageContext], T]],
    *,
    concurrency: int,
    context: StageContext,
    on_done: Callable[[int], None],
) -> list[T]:
    """Return the results in order. Raises the error of the first call that failed, and those of `context.check()`.

    The first call runs alone: the others use the server's features that it finds, and the server's cache. `on_done`
    gets the number of calls that are done.
    """
    running = Running(calls, concurrency=concurrency, context=context)
    try:
        while running.start():
            running.wait()
            if not running.errors:
                on_done(running.done)
    except BaseException:
        running.stopped.set()
        raise
    return running.finish()


class Running(Generic[T]):
    """The calls for one document while they run."""

    def __init__(
        self, calls: Sequence[Callable[[StageContext], T]], *, concurrency: int, context: StageContext
    ) -> None:
        self.calls, self.concurrency, self.context = calls, concurrency, context
        self.stopped = threading.Event()
        self.parts = [context.part(self.stopped) for _ in calls]
        self.started = self.done = 0
        self.results: dict[int, T] = {}
        self.errors: dict[int, BaseException] = {}
        self.ended: queue.SimpleQueue[int] = queue.SimpleQueue()

    def start(self) -> bool:
        """Start as many calls as may run. Return whether any runs."""
        limit = self.concurrency if self.done else 1
        while self.started < len(self.calls) and self.started - self.done < limit and not self.errors:
            thread = threading.Thread(
                target=contextvars.copy_context().run,
                args=(self.call, self.started),
                name=f"piece-{self.started + 1}",
                daemon=True,
            )
            thread.start()
            self.started += 1
        return self.done < self.started

    def call(self, index: int) -> None:
        try:
            self.results[index] = self.calls[index](self.parts[index])
        except BaseException as error:  # noqa: BLE001 - `finish` raises it
            self.errors[index] = error
        self.ended.put(index)

    def wait(self) -> None:
        """Wait until a call has ended. Raises like `context.check()`."""
        while True:
            try:
                self.ended.get(timeout=POLL_SECONDS)
            except queue.Empty:
                self.context.check()
            else:
                self.done += 1
                return

    def finish(self) -> list[T]:
        """Return the results, and pass on the warnings, both in the order of the calls."""
        for part in self.parts:
            for warning in part.warnings:
                self.context.warn(warning.code, warning.detail, page=warning.page)
        if self.errors:
            raise self.errors[min(self.errors)]
        return [self.results[index] for index in range(len(self.calls))]
