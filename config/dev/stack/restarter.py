"""Keeps a process running: people kill workers to see what happens, and the stack must outlive that."""

import signal
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

from config.dev.stack.process import Process, StackError

# One that ends by itself that often within that time cannot run. On a busy machine it takes seconds to get there.
ENDS, WITHIN_SECONDS = 5, 60.0
# More before each further start.
PAUSE_SECONDS = 0.5


@dataclass
class Keeper:
    """`ends` are the moments, by the monotonic clock, at which the process ended by itself; `due` is the next start."""

    process: Process
    tell: Callable[[str], None]
    ends: list[float] = field(default_factory=list)
    due: float | None = None

    def look(self) -> None:
        """Start the process again if it has ended. Raises StackError, with the end of its log, when it cannot run.

        It returns before the process is ready. A process that was stopped (SIGSTOP) has not ended.
        """
        if self.process.alive:
            return
        if self.due is None:
            self.due = time.monotonic() + self.pause()
            self.tell(f"{self.process.ending()}; it is started again.")
        if time.monotonic() >= self.due:
            uninterrupted(self.restart)
            self.due = None

    def pause(self) -> float:
        """Note that it ended; return the seconds to wait before it is started."""
        if self.process.exit_status == -signal.SIGKILL:
            return 0  # somebody's doing, as often as they like
        now = time.monotonic()
        self.ends = [*(end for end in self.ends if now - end < WITHIN_SECONDS), now]
        if len(self.ends) >= ENDS:
            raise StackError(
                f"{self.process.name} ended {ENDS} times within {WITHIN_SECONDS:g} s; the last time:\n"
                f"{self.process.obituary()}"
            )
        return PAUSE_SECONDS * (len(self.ends) - 1)

    def restart(self) -> None:
        self.process.kill()  # it is dead; this is for what it has left behind
        self.process.start()


def uninterrupted(action: Callable[[], None]) -> None:
    """Complete it even if a signal's handler raises meanwhile, which it does in the main thread only.

    Raised between the fork and the note of the new pid, it would leave a process that nobody knows of.
    """
    with ThreadPoolExecutor(1) as thread:
        thread.submit(action).result()
