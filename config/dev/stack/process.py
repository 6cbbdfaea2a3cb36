"""One process of the stack, in its own session, with a log file and a graceful stop."""

import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from config.dev.stack import process_tree
from config.dev.stack.orphan_watchdog import PROJECT, watchdog

WIDTH = 1000  # maximum width of a log line in messages: a traceback in JSON is one long line


class StackError(Exception):
    """A part of the stack failed to start, or exited. The message is for the user and may have several lines."""


@dataclass(kw_only=True, eq=False)
class Process:
    """A process that can be restarted: `start` after `stop` or `kill` appends to the same log.

    `environment` is the complete environment. `title` identifies descendants that create new sessions: their command
    lines start with it.
    """

    name: str
    command: Sequence[str]
    log: Path
    environment: Mapping[str, str]
    folder: Path = PROJECT
    stop_signal: signal.Signals = signal.SIGTERM
    grace_seconds: float = 10
    title: str = ""
    child: subprocess.Popen[bytes] | None = field(default=None, init=False)

    @property
    def pid(self) -> int:
        return self.started().pid

    @property
    def alive(self) -> bool:
        return self.child is not None and self.child.poll() is None

    @property
    def exit_status(self) -> int | None:
        return self.child.poll() if self.child is not None else None

    def started(self) -> subprocess.Popen[bytes]:
        if self.child is None:
            raise StackError(f"{self.name} was not started.")
        return self.child

    def start(self) -> None:
        """Start the process without waiting for it to be ready."""
        if self.alive:
            raise StackError(f"{self.name} is already running.")
        self.log.parent.mkdir(parents=True, exist_ok=True)
        with self.log.open("wb" if self.child is None else "ab") as log:
            self.child = subprocess.Popen(
                self.command, cwd=self.folder, env=self.environment, start_new_session=True,
                stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT,
            )  # fmt: skip
        watchdog().send("watch", f"{self.pid} {self.stop_signal.value}")

    def send_stop_signal(self) -> None:
        if self.alive:
            process_tree.send(self.pid, self.stop_signal)

    def stop(self) -> None:
        """Send the stop signal, wait for the grace period, then kill the remaining processes."""
        if self.child is None:
            return
        pids = self.members()
        self.send_stop_signal()
        deadline = time.monotonic() + self.grace_seconds
        while self.alive and time.monotonic() < deadline:
            time.sleep(process_tree.POLL_SECONDS)
        self.kill_all(pids)

    def kill(self) -> None:
        """Kill the process and its descendants with SIGKILL, and wait until they have ended."""
        if self.child is not None:
            self.kill_all(self.members())

    def members(self) -> list[int]:
        """Return the process and its descendants; if it has ended, the remaining descendants."""
        return process_tree.members(self.pid) if self.alive else process_tree.orphans(self.pid, title=self.title)

    def kill_all(self, pids: list[int]) -> None:
        if self.alive:
            pids = process_tree.members(self.pid)
        for pid in pids:
            process_tree.send(pid, signal.SIGKILL)
        self.started().wait()
        new = process_tree.orphans(self.pid)  # forked since `pids` was read
        for pid in new:
            process_tree.send(pid, signal.SIGKILL)
        process_tree.wait_gone([*pids, *new], limit=5)
        watchdog().send("ended", self.pid)

    def check(self) -> None:
        """Raise StackError, with the end of the log, if the process has ended."""
        if not self.alive:
            raise StackError(self.failure_report())

    def wait_until(self, condition: Callable[[], bool], *, limit: float = 90) -> None:
        """Wait for the condition. Raises StackError, with the end of the log, if the process exits or on a timeout."""
        deadline = time.monotonic() + limit
        while not condition():
            self.check()
            if time.monotonic() > deadline:
                raise StackError(f"{self.name} was not ready after {limit:g} s.\n{self.tail()}")
            time.sleep(process_tree.POLL_SECONDS)

    def run_to_completion(self, *, limit: float = 120) -> None:
        """Run the process to its end. Raises StackError, with the end of the log, unless it succeeds."""
        self.start()
        try:
            self.wait(limit)
        finally:
            self.stop()
        if self.exit_status != 0:
            raise StackError(self.failure_report())

    def wait(self, limit: float) -> None:
        try:
            self.started().wait(limit)
        except subprocess.TimeoutExpired:
            raise StackError(f"{self.name} did not finish within {limit:g} s.\n{self.tail()}") from None

    def failure_report(self) -> str:
        """Return the reason for the exit, and the end of the log."""
        return f"{self.exit_reason()}. The end of {self.log}:\n{self.tail()}"

    def exit_reason(self) -> str:
        """Return the reason for the exit, such as `exports was killed by SIGKILL`."""
        status = self.exit_status or 0
        ending = f"was killed by {signal.Signals(-status).name}" if status < 0 else f"exited with status {status}"
        return f"{self.name} {ending}"

    def tail(self, lines: int = 20) -> str:
        text = self.log.read_text(errors="replace") if self.log.is_file() else ""
        return "\n".join(f"  {line[:WIDTH]}" for line in text.splitlines()[-lines:]) or "  (empty)"
