"""`GET /metrics` of a worker's pod: what its processes have counted, from the files that they share with this one.

    python counted.py /var/lib/metrics 8000

Not Sluice's own web process: that would have each pod answer the whole API, hold all secrets, ask the database for the
same gauges again, and take several times the memory.
"""
# ruff: noqa: INP001 - it is mounted into a pod as it is, and imported by nothing

import sys
from collections.abc import Iterable
from pathlib import Path

from prometheus_client import CollectorRegistry, Metric, start_http_server
from prometheus_client.multiprocess import MultiProcessCollector
from prometheus_client.registry import Collector


class Counted(Collector):
    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def collect(self) -> Iterable[Metric]:
        # A file that was made this moment, or whose maker died then, is empty and cannot be read.
        return MultiProcessCollector.merge([str(path) for path in self.folder.glob("*.db") if path.stat().st_size])


if __name__ == "__main__":
    _, folder, port = sys.argv
    registry = CollectorRegistry()
    registry.register(Counted(Path(folder)))
    _, thread = start_http_server(int(port), registry=registry)
    thread.join()
