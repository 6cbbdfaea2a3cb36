"""Exposition of all metrics as text, for this process or all processes that share PROMETHEUS_MULTIPROC_DIR.

Counters and histograms are defined with `counters`, and the queries of gauges are registered with `gauges`.
"""

import os
from collections.abc import Iterable

import prometheus_client
from prometheus_client import CollectorRegistry, Metric
from prometheus_client.multiprocess import MultiProcessCollector
from prometheus_client.registry import Collector

from config.platform.observability import counters, gauges

# Read at each scrape.
at_scrape = CollectorRegistry()
at_scrape.register(gauges.Gauges())


class SharedFiles(Collector):
    """The merged counts of all processes."""

    def collect(self) -> Iterable[Metric]:
        merged: Iterable[Metric] = MultiProcessCollector.merge(counters.files())  # type: ignore[no-untyped-call]
        return merged


def exposition() -> bytes:
    """Return all metrics in Prometheus' text format."""
    return counted() + prometheus_client.generate_latest(at_scrape)


def counted() -> bytes:
    if counters.VARIABLE not in os.environ:
        return prometheus_client.generate_latest()
    registry = CollectorRegistry()
    registry.register(SharedFiles())
    return prometheus_client.generate_latest(registry)
