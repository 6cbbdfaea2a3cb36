"""`GET /metrics` of a worker's pod: what its processes have counted, from the files that they share with this one.

Not Sluice's own web process: that would have each pod answer the whole API, hold all secrets, ask the database for the
same gauges again, and take several times the memory.
"""
# ruff: noqa: INP001 - it is mounted into a pod as it is, and imported by nothing

from collections.abc import Iterable
from pathlib import Path

from prometheus_client import CollectorRegistry, Metric, start_http_server
from prometheus_client.multiprocess import MultiProcessCollector
from prometheus_client.registry import Collector

FOLDER = Path("/var/lib/metrics")


class Counted(Collector):
    def collect(self) -> Iterable[Metric]:
        # A file that was made this moment, or whose maker died then, is empty and cannot be read.
        return MultiProcessCollector.merge([str(path) for path in FOLDER.glob("*.db") if path.stat().st_size])


if __name__ == "__main__":
    registry = CollectorRegistry()
    registry.register(Counted())
    _, thread = start_http_server(8000, registry=registry)
    thread.join()
