"""One process of the stack: started in a session of its own, its output in a file, ended with a grace period."""

import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from config.dev.stack import process_tree
from config.dev.stack.orphan_watchdog import PROJECT, lifeline

WIDTH = 1000  # of a line of a log on the terminal: a traceback in JSON is one long line


class StackError(Exception):
    """A part of the stack did not start, or ended by itself. The message is for a person and may have several lines."""


@dataclass(kw_only=True, eq=False)
class Process:
    """`environment` is the whole environment. `start` after `stop` or `kill` starts it again, with the same log.

    `title` is how the command lines of its descendants begin, where these make sessions of their own.
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
            raise StackError(f"{self.name} was never started.")
        return self.child

    def start(self) -> None:
        """Start it and return at once."""
        if self.alive:
            raise StackError(f"{self.name} runs already.")
        self.log.parent.mkdir(parents=True, exist_ok=True)
        with self.log.open("wb" if self.child is None else "ab") as log:
            self.child = subprocess.Popen(
                self.command, cwd=self.folder, env=self.environment, start_new_session=True,
                stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT,
            )  # fmt: skip
        lifeline().tell("watch", f"{self.pid} {self.stop_signal.value}")

    def ask_to_stop(self) -> None:
        if self.alive:
            process_tree.send(self.pid, self.stop_signal)

    def stop(self) -> None:
        """Ask it to stop, wait for the grace period, then kill what is left of it and its descendants."""
        if self.child is None:
            return
        pids = self.members()
        self.ask_to_stop()
        deadline = time.monotonic() + self.grace_seconds
        while self.alive and time.monotonic() < deadline:
            time.sleep(process_tree.POLL_SECONDS)
        self.bury(pids)

    def kill(self) -> None:
        """Kill it and its descendants as `kill -9` would, and wait for the end."""
        if self.child is not None:
            self.bury(self.members())

    def members(self) -> list[int]:
        """Return it and its descendants; once it has ended, those of them that it left behind."""
        return process_tree.members(self.pid) if self.alive else process_tree.orphans(self.pid, title=self.title)

    def bury(self, pids: list[int]) -> None:
        if self.alive:
            pids = process_tree.members(self.pid)
        for pid in pids:
            process_tree.send(pid, signal.SIGKILL)
        self.started().wait()
        just_made = process_tree.orphans(self.pid)  # since they were counted
        for pid in just_made:
            process_tree.send(pid, signal.SIGKILL)
        process_tree.wait_gone([*pids, *just_made], limit=5)
        lifeline().tell("ended", self.pid)

    def check(self) -> None:
        """Raise StackError, with the end of its log, if it has ended."""
        if not self.alive:
            raise StackError(self.obituary())

    def wait_until(self, condition: Callable[[], bool], *, limit: float = 90) -> None:
        """Wait for the condition. Raises StackError, with the end of the log, when process or time end first."""
        deadline = time.monotonic() + limit
        while not condition():
            self.check()
            if time.monotonic() > deadline:
                raise StackError(f"{self.name} was not ready after {limit:g} s.\n{self.tail()}")
            time.sleep(process_tree.POLL_SECONDS)

    def finish(self, *, limit: float = 120) -> None:
        """Start it and wait for its end. Raises StackError, with the end of the log, unless that was a success."""
        self.start()
        try:
            self.wait(limit)
        finally:
            self.stop()
        if self.exit_status != 0:
            raise StackError(self.obituary())

    def wait(self, limit: float) -> None:
        try:
            self.started().wait(limit)
        except subprocess.TimeoutExpired:
            raise StackError(f"{self.name} had not ended after {limit:g} s.\n{self.tail()}") from None

    def obituary(self) -> str:
        """Return what a person wants to know about a process that ended: how, and its last words."""
        return f"{self.ending()}. The end of {self.log}:\n{self.tail()}"

    def ending(self) -> str:
        """Return how it ended, `exports was ended by SIGKILL`."""
        status = self.exit_status or 0
        how = f"was ended by {signal.Signals(-status).name}" if status < 0 else f"ended with exit status {status}"
        return f"{self.name} {how}"

    def tail(self, lines: int = 20) -> str:
        text = self.log.read_text(errors="replace") if self.log.is_file() else ""
        return "\n".join(f"  {line[:WIDTH]}" for line in text.splitlines()[-lines:]) or "  (nothing)"
