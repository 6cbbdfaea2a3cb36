"""Counters and histograms of exports. `docs/metrics.md` describes each.

Each change is counted right after its commit. If the process crashes in between, the change isn't counted: use these
numbers for monitoring only, and the rows for exact results. `exports.core.gauges` reads depths and ages from the rows.

Every possible label value is declared, so that its series exists from the start.
"""

from prometheus_client import Counter, Histogram

from config.platform.observability.counters import counter
from exports.core.errors import EXPLANATIONS
from exports.core.states import DownloadOutcome, JobStatus, Source

SECOND, MINUTE, HOUR = 1000, 60_000, 3_600_000  # in milliseconds
JOB_BUCKETS = (
    *(100, 250, 500, SECOND, 2.5 * SECOND, 5 * SECOND, 10 * SECOND, 30 * SECOND),
    *(MINUTE, 2 * MINUTE, 5 * MINUTE, 10 * MINUTE, 30 * MINUTE, HOUR, 3 * HOUR, 12 * HOUR),
)
# No chunk runs longer than Celery's hard time limit of 11 minutes.
CHUNK_BUCKETS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600)


# ---- Names fixed by the API -----------------------------------------------------------------------------------------

JOB_LATENCY = Histogram(
    "export_job_latency_ms", "Milliseconds from a job's submission to its success.", buckets=JOB_BUCKETS
)
TTL_VIOLATIONS = Counter(
    "export_receipt_ttl_violation_total",
    "Delivered objects that the hourly sweep found after their receipt had expired.",
)
JOB_STATUS = counter("export_job_status_total", "Changes of jobs into a status.", status=JobStatus.values)
DOWNLOADS_403 = Counter("export_signed_download_403_total", "Requests with a link that were rejected.")

# ---- Others ---------------------------------------------------------------------------------------------------------

CHUNKS = counter(
    "export_chunks_total",
    "Outcomes of attempts: done by source, failed for good, or to be retried.",
    outcome=[*Source.values, "failed", "retried"],
)
CHUNK_FAILURES = counter("export_chunk_failures_total", "Failed chunks by error code.", code=EXPLANATIONS)
CHUNK_RETRIES = counter("export_chunk_retries_total", "Attempts that failed and are retried.", code=EXPLANATIONS)
CHUNK_DURATION = Histogram(
    "export_chunk_duration_seconds",
    "Duration of live exports of chunks, without waiting in a batch.",
    buckets=CHUNK_BUCKETS,
)
ROWS = counter("export_rows_total", "Rows in the files of finished chunks.", source=Source.values)
BYTES = counter("export_bytes_total", "Bytes in the files of finished chunks.", source=Source.values)
LEASES_LOST = Counter("export_leases_lost_total", "Workers that lost their lease, and wrote nothing.")
LEASES_EXPIRED = Counter("export_leases_expired_total", "Chunks taken back from workers whose lease expired.")
DOWNLOADS = counter("export_downloads_total", "Requests with a link.", outcome=DownloadOutcome.values)
QUOTA_REFUSED = Counter("export_quota_refused_total", "Submissions rejected because the daily quota is used up.")
SCHEDULE_RUNS = counter(
    "export_schedule_runs_total",
    "Runs of schedules by outcome.",
    outcome=["started", "skipped", "refused", "invalid"],
)
RATE_LIMITED = Counter("export_rate_limited_total", "Requests rejected by the rate limit.")
STREAMS_OPENED = Counter("export_streams_opened_total", "Event streams that were opened.")
STREAMS_CLOSED = counter(
    "export_streams_closed_total",
    "Event streams that were closed: the job ended, the client disconnected, the stream reached its maximum age, or "
    "access was revoked.",
    reason=["ended", "left", "renewed", "revoked"],
)


def count_job_status(status: str) -> None:
    """Count a job that entered this status. `pending` is counted when the job is submitted."""
    JOB_STATUS.labels(status).inc()


def count_done(source: str, rows: int, bytes: int, seconds: float | None = None, count: int = 1) -> None:  # noqa: A002
    """Count finished chunks, their rows, and their bytes. `seconds` is the duration of a single live chunk."""
    CHUNKS.labels(source).inc(count)
    ROWS.labels(source).inc(rows)
    BYTES.labels(source).inc(bytes)
    if seconds is not None and source == Source.LIVE:
        CHUNK_DURATION.observe(seconds)


def count_retry(code: str) -> None:
    CHUNKS.labels("retried").inc()
    CHUNK_RETRIES.labels(code).inc()


def count_failure(code: str) -> None:
    """Count a chunk that failed for good. Alerts use this metric."""
    CHUNKS.labels("failed").inc()
    CHUNK_FAILURES.labels(code).inc()


def count_download(outcome: str) -> None:
    """Count a request with a link by its outcome: redeemed, or the reason for the rejection."""
    DOWNLOADS.labels(outcome).inc()
    if outcome != DownloadOutcome.REDEEMED:
        DOWNLOADS_403.inc()
