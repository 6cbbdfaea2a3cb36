"""Automatic restarts of processes. Developers kill workers to test recovery, and the stack must survive that."""

import signal
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

from config.dev.stack.process import Process, StackError

# A process that exits this many times within this period cannot run. On a busy machine, each start takes seconds.
MAX_EXITS, WITHIN_SECONDS = 5, 60.0
# Added to the delay for each further exit.
BACKOFF_SECONDS = 0.5


@dataclass
class Restarter:
    """Supervisor of one process.

    `exits`: monotonic times at which the process exited by itself. `due`: the monotonic time of the next start.
    """

    process: Process
    report: Callable[[str], None]
    exits: list[float] = field(default_factory=list)
    due: float | None = None

    def check(self) -> None:
        """Restart the process if it has ended. Raises StackError, with the end of its log, if it cannot run.

        Returns before the process is ready. A process that is stopped (SIGSTOP) has not ended.
        """
        if self.process.alive:
            return
        if self.due is None:
            self.due = time.monotonic() + self.record_exit()
            self.report(f"{self.process.exit_reason()}. Restarting it.")
        if time.monotonic() >= self.due:
            without_interruption(self.restart)
            self.due = None

    def record_exit(self) -> float:
        """Record the exit. Return the seconds to wait before the next start. Raises StackError if it cannot run."""
        if self.process.exit_status == -signal.SIGKILL:
            return 0  # killed from outside: restart without limit
        now = time.monotonic()
        self.exits = [*(exit_at for exit_at in self.exits if now - exit_at < WITHIN_SECONDS), now]
        if len(self.exits) >= MAX_EXITS:
            raise StackError(
                f"{self.process.name} exited {MAX_EXITS} times within {WITHIN_SECONDS:g} s. The last time:\n"
                f"{self.process.failure_report()}"
            )
        return BACKOFF_SECONDS * (len(self.exits) - 1)

    def restart(self) -> None:
        self.process.kill()  # ends the child processes that it left behind
        self.process.start()


def without_interruption(action: Callable[[], None]) -> None:
    """Run an action in another thread: exceptions of signal handlers are raised in the main thread only.

    An exception between the fork and the recording of the new pid would leave an untracked process.
    """
    with ThreadPoolExecutor(1) as thread:
        thread.submit(action).result()
