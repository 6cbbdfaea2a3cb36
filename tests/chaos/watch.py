"""Monitoring during a test: concurrent calls of the source, and the memory of workers."""

import time
from collections.abc import Callable, Iterable
from pathlib import Path
from threading import Event, Thread

import psycopg

from tests.chaos.source import LIVE_CALLS


class Monitor:
    """A thread that takes samples until `stop`.

    `most_calls`: the maximum of concurrent calls. `most_memory`: the maximum memory of a process in MB, with pyarrow
    loaded to write a Parquet file (True) or without (False). `whose`: details of that process from /proc.
    """

    def __init__(self, url: str, pids: Callable[[], Iterable[int]]) -> None:
        self.url, self.pids = url, pids
        self.most_calls, self.samples = 0, 0
        self.most_memory = {True: 0, False: 0}
        self.whose = {True: "", False: ""}
        self.stopped = Event()
        self.thread = Thread(target=self.run, daemon=True)
        self.thread.start()

    def run(self) -> None:
        while not self.stopped.is_set():
            try:
                with psycopg.connect(self.url, autocommit=True) as connection:
                    self.sample(connection)
            except psycopg.OperationalError:
                time.sleep(0.05)  # the server is being restarted by the test

    def sample(self, connection: psycopg.Connection) -> None:
        while not self.stopped.wait(0.02):
            row = connection.execute(LIVE_CALLS).fetchone()
            assert row
            self.most_calls = max(self.most_calls, row[0])
            self.samples += 1
            if self.samples % 10 == 0:
                for pid in self.pids():
                    self.measure_memory(pid)

    def measure_memory(self, pid: int) -> None:
        peak = memory(pid)
        has_pyarrow = loaded(pid, "libarrow")
        if peak > self.most_memory[has_pyarrow]:
            self.most_memory[has_pyarrow], self.whose[has_pyarrow] = peak, describe_process(pid)

    def stop(self) -> None:
        self.stopped.set()
        self.thread.join(10)


STATUS_LINES = ("VmRSS", "RssAnon", "RssFile", "RssShmem", "Threads")


def describe_process(pid: int) -> str:
    """Return the command of a process and its memory details, if it is still running."""
    try:
        command = Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " ")
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return f"process {pid}, which has exited"
    return " ".join([command, *("=".join(line.split()[:2]) for line in lines if line.startswith(STATUS_LINES))])


def loaded(pid: int, library: str) -> bool:
    """Return whether a process has loaded a shared library. Return False if it has exited."""
    try:
        return library in Path(f"/proc/{pid}/maps").read_text()
    except OSError:
        return False


def memory(pid: int) -> int:
    """Return the peak memory of a process in MB, or 0 if it has exited."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) // 1024 for line in lines if line.startswith("VmHWM")), 0)
