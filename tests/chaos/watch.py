"""Watching from outside while a test runs: calls in the source, and the memory of workers."""

import time
from collections.abc import Callable, Iterable
from pathlib import Path
from threading import Event, Thread

import psycopg

from tests.chaos.source import LIVE_CALLS


class Watch:
    """Samples in a thread of its own until `stop`. `most_calls`: alive at the same moment; `most_memory`: of one
    process, in MB."""

    def __init__(self, url: str, pids: Callable[[], Iterable[int]]) -> None:
        self.url, self.pids = url, pids
        self.most_calls, self.most_memory, self.samples = 0, 0, 0
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
                self.most_memory = max([self.most_memory, *map(memory, self.pids())])

    def stop(self) -> None:
        self.over.set()
        self.thread.join(10)


def memory(pid: int) -> int:
    """Return the most memory that a process had at a time so far, in MB; 0 when it has ended."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) // 1024 for line in lines if line.startswith("VmHWM")), 0)
