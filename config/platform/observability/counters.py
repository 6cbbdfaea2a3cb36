"""Which files a process counts in, where web and workers share a PROMETHEUS_MULTIPROC_DIR.

prometheus_client names them by process id. These repeat: in containers every process is one of the first few, and two
that write one file lose counts. Where they do not repeat, every restart leaves files behind, which every scrape reads.
Here a process takes the smallest number whose lock is free. The kernel drops the lock when the process is gone, however
it ended and in whatever container; the next one goes on in the files of the dead, from the sums there.

That suits counters and histograms. What goes up and down is no process' to say: see
`config.platform.http.metrics.register`.
"""

import fcntl
import os
from collections.abc import Iterable
from itertools import count, product
from pathlib import Path

from prometheus_client import Counter, values

VARIABLE = "PROMETHEUS_MULTIPROC_DIR"


class Number:
    """The number of this process: called for each count, so that a fork notices that it is another process now."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.pid = self.number = -1

    def __call__(self) -> int:
        if self.pid != os.getpid():
            self.number = self.take()
            self.pid = os.getpid()
        return self.number

    def take(self) -> int:
        """Lock the first number that is free. The descriptor stays open, and with it the lock.

        A fork inherits its parent's: the parent's number is free again when both are gone.
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
    """Count in shared files, if the variable names a folder. Called by the settings: the first metric comes later."""
    if folder := os.environ.get(VARIABLE):
        Path(folder).mkdir(parents=True, exist_ok=True)
        values.ValueClass = values.MultiProcessValue(Number(Path(folder)))  # type: ignore[no-untyped-call]


def files() -> list[str]:
    """Return the shared files. One that was made this moment, or whose maker died then, is empty and cannot be read."""
    return [str(path) for path in Path(os.environ[VARIABLE]).glob("*.db") if path.stat().st_size]


def counter(name: str, documentation: str, **labels: Iterable[str]) -> Counter:
    """Return a counter whose labels' values are known, so that each series exists from the start, with 0.

    Without that, the first failure of all would be no rise for Prometheus' `increase()`.
    """
    made = Counter(name, documentation, list(labels))
    for series in product(*labels.values()):
        made.labels(*series)
    return made
