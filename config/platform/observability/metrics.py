"""Metrics of the platform."""

from prometheus_client import Counter

from config.platform.observability.counters import counter

# Incremented where a broad `except Exception` lets other work continue.
CAUGHT = counter(
    "sluice_caught_errors_total",
    "Exceptions of any class that were caught and logged so that other work could continue.",
    place=[
        *("chunk", "cleanup", "completion", "doctor", "error_report", "event_stream", "readiness"),
        *("message", "page", "recovery", "schedule", "stage", "stream_access", "webhook"),
    ],
)
DISK_FULL_TOTAL = Counter("sluice_disk_full_total", "Requests and exports that failed because TMPDIR is full.")
AUDIT_ENTRIES_LOST = Counter(
    "sluice_audit_entries_lost_total", "Changes that could not be entered in the audit log, and are in the log instead."
)
