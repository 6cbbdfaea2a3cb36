"""Metrics of requests about rules and documents, which share a rate limit: see `docs/metrics.md`."""

from prometheus_client import Counter

RATE_LIMITED = Counter("etl_rate_limited_total", "Requests refused because they came too fast.")


def rate_limited() -> None:
    RATE_LIMITED.inc()
