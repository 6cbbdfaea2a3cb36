"""Counters in files that web processes and workers share through PROMETHEUS_MULTIPROC_DIR.

prometheus_client names these files by process ID. In containers, process IDs repeat, and two processes that write to
one file lose counts. Without containers, each restart leaves files behind, and each scrape reads all of them. Here, a
process uses the smallest number whose lock is free. The kernel releases the lock when the process exits, and the next
process with this number adds to the same files.

This suits counters and histograms. Gauges are read at each scrape: see `gauges`.
"""

import fcntl
import os
from collections.abc import Iterable
from itertools import count, product
from pathlib import Path

from prometheus_client import Counter, values

VARIABLE = "PROMETHEUS_MULTIPROC_DIR"


class ProcessNumber:
    """The number of this process. prometheus_client calls it for each count, so a fork gets another number."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.pid = self.number = -1

    def __call__(self) -> int:
        if self.pid != os.getpid():
            self.number = self.lock_free_number()
            self.pid = os.getpid()
        return self.number

    def lock_free_number(self) -> int:
        """Lock the smallest free number. The lock lasts as long as the open descriptor.

        A fork inherits the descriptor: the parent's number becomes free when both processes have exited.
        """
        for number in count():
            descriptor = os.open(self.folder / f"{number}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                os.close(descriptor)
            else:
                return number
        raise AssertionError  # count() never ends


def configure() -> None:
    """Count in shared files if the variable is set. The settings call this before the first metric is created."""
    if folder := os.environ.get(VARIABLE):
        Path(folder).mkdir(parents=True, exist_ok=True)
        values.ValueClass = values.MultiProcessValue(ProcessNumber(Path(folder)))  # type: ignore[no-untyped-call]


def files() -> list[str]:
    """Return the shared files. Empty ones are skipped: a process is creating them, or crashed while doing so."""
    return [str(path) for path in Path(os.environ[VARIABLE]).glob("*.db") if path.stat().st_size]


def counter(name: str, documentation: str, **labels: Iterable[str]) -> Counter:
    """Return a counter with a series for each combination of label values, starting at 0.

    Without the initial 0, Prometheus' `increase()` would miss the first event of each series.
    """
    metric = Counter(name, documentation, list(labels))
    for series in product(*labels.values()):
        metric.labels(*series)
    return metric
