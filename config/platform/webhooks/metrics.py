"""Metrics of webhooks. Each is incremented right after the commit of the change that it counts."""

from config.platform.observability.counters import counter

ATTEMPTS = counter(
    "export_webhooks_total", "Attempts to deliver to webhooks.", result=["delivered", "retrying", "failed"]
)
