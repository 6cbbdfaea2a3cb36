"""What exports count, under the names of the contract and a few more: `docs/metrics.md` says what each is for.

Each function is called right after the commit of what it counts. A process that dies in between loses that one count:
these numbers are for watching, the rows are the truth. What can be read from rows, how much waits and for how long, is
not counted here: see `exports.core.gauges`.

Every label value that can come is named beforehand.
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


# ---- Of the contract ------------------------------------------------------------------------------------------------

JOB_LATENCY = Histogram(
    "export_job_latency_ms", "Milliseconds from a job's submission to its success.", buckets=JOB_BUCKETS
)
TTL_VIOLATIONS = Counter(
    "export_receipt_ttl_violation_total", "Delivered objects that outlived their receipt until the hourly sweep."
)
JOB_STATUS = counter("export_job_status_total", "Moves of jobs into a status.", status=JobStatus.values)
DOWNLOADS_403 = Counter("export_signed_download_403_total", "Requests with a link that were refused.")

# ---- Of our own -----------------------------------------------------------------------------------------------------

CHUNKS = counter(
    "export_chunks_total",
    "Outcomes of work on chunks: done by source, failed for good, or to be tried again.",
    outcome=[*Source.values, "failed", "retried"],
)
CHUNK_FAILURES = counter("export_chunk_failures_total", "Chunks that failed for good.", code=EXPLANATIONS)
CHUNK_RETRIES = counter("export_chunk_retries_total", "Attempts that failed and are made again.", code=EXPLANATIONS)
CHUNK_DURATION = Histogram(
    "export_chunk_duration_seconds", "From the claim of a chunk to the end of its live export.", buckets=CHUNK_BUCKETS
)
ROWS = counter("export_rows_total", "Rows in the files of chunks that are done.", source=Source.values)
BYTES = counter("export_bytes_total", "Bytes of the files of chunks that are done.", source=Source.values)
LEASES_LOST = Counter("export_leases_lost_total", "Workers that found their lease gone, and wrote nothing.")
LEASES_EXPIRED = Counter("export_leases_expired_total", "Chunks taken back from workers that were not heard of.")
DOWNLOADS = counter("export_downloads_total", "Requests with a link.", outcome=DownloadOutcome.values)
QUOTA_REFUSED = Counter("export_quota_refused_total", "Submissions refused because a day's quota is used up.")
RATE_LIMITED = Counter("export_rate_limited_total", "Requests refused because they came too fast.")
STREAMS_OPENED = Counter("export_streams_opened_total", "Event streams that began to listen.")
STREAMS_CLOSED = counter(
    "export_streams_closed_total",
    "Event streams that listen no more: the job ended, the client left, or it was time to come again.",
    reason=["ended", "left", "renewed"],
)


def job_moved(status: str) -> None:
    """A job is in this status now, and was in another before. `pending` is counted at its submission."""
    JOB_STATUS.labels(str(status)).inc()


def job_succeeded(latency_ms: float) -> None:
    """Milliseconds from `created_at` to `finished_at`. The move to `success` is told apart, by `job_moved`."""
    JOB_LATENCY.observe(latency_ms)


def chunk_done(source: str, rows: int, bytes: int, seconds: float | None = None, count: int = 1) -> None:  # noqa: A002
    """Chunks are done, with the sums of their rows and bytes. One took `seconds`, which counts if it was live."""
    CHUNKS.labels(str(source)).inc(count)
    ROWS.labels(str(source)).inc(rows)
    BYTES.labels(str(source)).inc(bytes)
    if seconds is not None and source == Source.LIVE:
        CHUNK_DURATION.observe(seconds)


def chunk_retrying(code: str) -> None:
    CHUNKS.labels("retried").inc()
    CHUNK_RETRIES.labels(code).inc()


def chunk_failed(code: str) -> None:
    """A chunk failed for good: what to alert on."""
    CHUNKS.labels("failed").inc()
    CHUNK_FAILURES.labels(code).inc()


def lease_lost() -> None:
    LEASES_LOST.inc()


def leases_expired(count: int) -> None:
    LEASES_EXPIRED.inc(count)


def ttl_violated(count: int) -> None:
    TTL_VIOLATIONS.inc(count)


def download(outcome: str) -> None:
    """A link was redeemed, or refused for this reason; `download_refused` counts the latter under its own name too."""
    DOWNLOADS.labels(str(outcome)).inc()


def download_refused() -> None:
    DOWNLOADS_403.inc()


def quota_refused() -> None:
    QUOTA_REFUSED.inc()


def rate_limited() -> None:
    RATE_LIMITED.inc()


def stream_opened() -> None:
    """Open ones are those opened without those closed."""
    STREAMS_OPENED.inc()


def stream_closed(reason: str) -> None:
    STREAMS_CLOSED.labels(reason).inc()
