"""Web server for `GET /metrics` of a worker's pod: the counters of its processes, read from a shared folder.

    python counted.py /var/lib/metrics 8000

Sluice's web process in each pod is no alternative: it would serve the whole API, need all secrets, query the gauges
again, and take several times the memory.
"""
# ruff: noqa: INP001 - mounted into a pod, and never imported

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
        # Skip empty files, which cannot be read: their process is creating them, or was killed meanwhile.
        return MultiProcessCollector.merge([str(path) for path in self.folder.glob("*.db") if path.stat().st_size])


if __name__ == "__main__":
    _, folder, port = sys.argv
    registry = CollectorRegistry()
    registry.register(Counted(Path(folder)))
    _, thread = start_http_server(int(port), registry=registry)
    thread.join()
