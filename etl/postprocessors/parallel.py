"""Parallel calls for the pieces of a document, with a concurrency limit.

Each call runs in a thread, with its own part of the stage's context. After a failure, no further call is started.
Calls in progress are awaited, because they cost money and the next attempt can use their responses. If the worker shuts
down or loses its lease, the calls are cancelled and not awaited. Each call checks its context before it waits
for the network.
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
    """Run the calls, and return their results in order. Raises the error of the first failed call, in the order of the
    calls, and the errors of `context.check()`.

    The first call runs alone, so that the others benefit from the server features that it detects and from the
    server's prompt cache. `on_done` receives the number of finished calls.
    """
    running = ParallelCalls(calls, concurrency=concurrency, context=context)
    try:
        while running.start():
            running.wait()
            if not running.errors:
                on_done(running.done)
    except BaseException:
        running.stopped.set()
        raise
    return running.finish()


class ParallelCalls(Generic[T]):
    """The state of the calls for one document."""

    def __init__(
        self, calls: Sequence[Callable[[StageContext], T]], *, concurrency: int, context: StageContext
    ) -> None:
        self.calls, self.concurrency, self.context = calls, concurrency, context
        self.stopped = threading.Event()
        self.parts = [context.part(self.stopped) for _ in calls]
        self.started = self.done = 0
        self.results: dict[int, T] = {}
        self.errors: dict[int, BaseException] = {}
        self.finished: queue.SimpleQueue[int] = queue.SimpleQueue()

    def start(self) -> bool:
        """Start calls up to the limit. Return whether any call is running."""
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
        except BaseException as error:  # noqa: BLE001 - `finish` raises it again
            self.errors[index] = error
        self.finished.put(index)

    def wait(self) -> None:
        """Wait until a call finishes. Raises the errors of `context.check()`."""
        while True:
            try:
                self.finished.get(timeout=POLL_SECONDS)
            except queue.Empty:
                self.context.check()
            else:
                self.done += 1
                return

    def finish(self) -> list[T]:
        """Add the warnings to the stage's context. Return the results, or raise the first error, in the order of the
        calls."""
        for part in self.parts:
            for warning in part.warnings:
                self.context.warn(warning.code, warning.detail, page=warning.page)
        if self.errors:
            raise self.errors[min(self.errors)]
        return [self.results[index] for index in range(len(self.calls))]
