"""Gauges of all exports, such as the queue depth. One statement computes them from the indexes of unfinished work."""

from collections.abc import Iterator

from prometheus_client import Metric

from config.platform.db.sql import Row
from config.platform.observability.gauges import gauge, labeled_gauge
from exports.core.states import JOB_ACTIVE

# Pending chunks are counted by their jobs' counters, and running chunks by their index, which is as small as the number
# of workers. Ended chunks, which are nearly all, are not read. The age of a chunk is the age of its job.
GAUGES = """
WITH running AS MATERIALIZED (
    SELECT job_id, count(*) AS chunks, count(*) FILTER (WHERE lease_until < clock_timestamp()) AS overdue
    FROM exports_chunk WHERE status = 'running' GROUP BY job_id
), active AS MATERIALIZED (
    SELECT j.status, j.created_at, j.retrying, j.done = j.total AS is_done,
           j.total - j.done - j.failed - j.cancelled - j.retrying - coalesce(r.chunks, 0) AS pending
    FROM exports_jobs j LEFT JOIN running r USING (job_id)
    WHERE j.status IN ('pending', 'retrying', 'running')
)
SELECT (SELECT coalesce(sum(pending), 0) FROM active) AS pending,
       (SELECT count(*) FROM exports_chunk WHERE status = 'pending' AND reusable) AS reusable,
       (SELECT coalesce(sum(retrying), 0) FROM active) AS retrying,
       (SELECT coalesce(sum(chunks), 0) FROM running) AS running,
       (SELECT coalesce(sum(overdue), 0) FROM running) AS overdue,
       (SELECT extract(epoch FROM clock_timestamp() - min(created_at)) FROM active WHERE pending > 0) AS oldest,
       (SELECT json_object_agg(status, jobs) FROM (SELECT status, count(*) AS jobs FROM active GROUP BY 1) j) AS jobs,
       (SELECT count(*) FROM active WHERE is_done) AS completing,
       (SELECT count(*) FROM exports_slot WHERE dataset_id IS NULL AND token IS NOT NULL) AS held,
       (SELECT count(*) FROM exports_slot WHERE dataset_id IS NULL AND token IS NULL AND number <= %(slots)s) AS free,
       (SELECT count(*) FROM exports_delivery WHERE status = 'pending') AS deliveries,
       (SELECT count(*) FROM exports_event WHERE kind = 'status' AND status IN ('cancelled', 'failed', 'success')
            AND told_at IS NULL) AS undelivered,
       (SELECT count(*) FROM exports_receipt WHERE deleted_at IS NULL
            AND expires_at < clock_timestamp() - interval '1 minute') AS outlived,
       (SELECT count(*) FROM exports_schedule WHERE check_at <= clock_timestamp()) AS due,
       (SELECT count(*) FROM exports_schedule
        WHERE check_at <= clock_timestamp() - interval '10 minutes') AS late,
       (SELECT count(*) FROM exports_watermark WHERE bucket_number IS NOT NULL) AS older,
       (SELECT json_object_agg(name, extract(epoch FROM clock_timestamp() - ran_at)) FROM exports_tick) AS ticks
"""


def collect(row: Row) -> Iterator[Metric]:
    yield gauge(
        "sluice_database_older_than_bucket",
        "1 if the database was restored to an earlier point than the bucket, or lost commits, and not reconciled.",
        row["older"],
    )
    chunks = {state: row[state] for state in ("pending", "retrying", "running")}
    yield labeled_gauge(
        "export_queue_depth",
        "Chunks that have not ended, by state. `reusable` is part of `pending`.",
        "state",
        {**chunks, "reusable": row["reusable"]},
    )
    yield gauge("export_oldest_pending_age_seconds", "Age of the oldest job with pending chunks.", row["oldest"] or 0)
    yield labeled_gauge(
        "export_slots",
        "Slots for calls into the source database, by state.",
        "state",
        {"held": row["held"], "free": row["free"]},
    )
    yield gauge("export_leases_overdue", "Running chunks whose lease has expired.", row["overdue"])
    jobs = row["jobs"] or {}
    yield labeled_gauge(
        "export_jobs_active",
        "Jobs that have not ended.",
        "status",
        {status: jobs.get(status, 0) for status in sorted(JOB_ACTIVE)},
    )
    yield gauge(
        "export_jobs_completing", "Jobs whose chunks are all done, and that have no receipt yet.", row["completing"]
    )
    yield gauge(
        "export_receipts_outlived",
        "Delivered objects that still exist a minute after their receipt expired.",
        row["outlived"],
    )
    yield gauge(
        "export_schedules_due", "Schedules whose planned time has come, and that are not decided yet.", row["due"]
    )
    yield gauge("export_schedules_late", "Schedules that have been due for more than ten minutes.", row["late"])
    yield gauge("export_deliveries_pending", "Webhook deliveries that wait for an attempt.", row["deliveries"])
    yield gauge(
        "export_untold_events", "Ends of jobs whose webhook deliveries are not created yet.", row["undelivered"]
    )
    yield labeled_gauge("export_tick_age_seconds", "Time since a periodic task last ran.", "tick", row["ticks"] or {})
