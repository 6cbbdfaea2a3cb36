"""Watching from outside while a test runs: calls in the source, and the memory of workers."""

import time
from collections.abc import Callable, Iterable
from pathlib import Path
from threading import Event, Thread

import psycopg

from tests.chaos.source import LIVE_CALLS


class Watch:
    """Samples in a thread of its own until `stop`. `most_calls`: alive at the same moment; `most_memory`: of one
    process, in MB, and `whose` tells of that process what /proc says."""

    def __init__(self, url: str, pids: Callable[[], Iterable[int]]) -> None:
        self.url, self.pids = url, pids
        self.most_calls, self.most_memory, self.samples = 0, 0, 0
        self.whose = ""
        self.over = Event()
        self.thread = Thread(target=self.look, daemon=True)
        self.thread.start()

    def look(self) -> None:
        while not self.over.is_set():
            try:
                with psycopg.connect(self.url, autocommit=True) as connection:
                    self.sample(connection)
            except psycopg.OperationalError:
                time.sleep(0.05)  # the server is being restarted, as the test wants it

    def sample(self, connection: psycopg.Connection) -> None:
        while not self.over.wait(0.02):
            row = connection.execute(LIVE_CALLS).fetchone()
            assert row
            self.most_calls = max(self.most_calls, row[0])
            self.samples += 1
            if self.samples % 10 == 0:
                for pid in self.pids():
                    self.weigh(pid)

    def weigh(self, pid: int) -> None:
        if (taken := memory(pid)) > self.most_memory:
            self.most_memory, self.whose = taken, described(pid)

    def stop(self) -> None:
        self.over.set()
        self.thread.join(10)


NAMED = ("VmRSS", "RssAnon", "RssFile", "RssShmem", "Threads")


def described(pid: int) -> str:
    """Return the command of a process and what its memory is made of, as far as it is still there."""
    try:
        command = Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " ")
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return f"process {pid}, which has ended"
    return " ".join([command, *("=".join(line.split()[:2]) for line in lines if line.startswith(NAMED))])


def memory(pid: int) -> int:
    """Return the most memory that a process had at a time so far, in MB; 0 when it has ended."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) // 1024 for line in lines if line.startswith("VmHWM")), 0)
