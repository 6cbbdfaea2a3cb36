"""What waits, and for how long, of all exports: one statement over indexes that hold live work only."""

from collections.abc import Iterator

from prometheus_client import Metric

from config.platform.db.sql import Row
from config.platform.observability.gauges import labelled, plain
from exports.core.states import JOB_ACTIVE

# Chunks that wait are counted by their jobs' counters, and running ones by their index, which holds as many as workers
# can work on. Chunks that have ended, nearly all, are not looked at. The oldest is as old as its job.
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
            AND told_at IS NULL) AS untold,
       (SELECT count(*) FROM exports_receipt WHERE deleted_at IS NULL
            AND expires_at < clock_timestamp() - interval '1 minute') AS outlived,
       (SELECT json_object_agg(name, extract(epoch FROM clock_timestamp() - ran_at)) FROM exports_tick) AS ticks
"""


def tell(row: Row) -> Iterator[Metric]:
    waiting = {state: row[state] for state in ("pending", "retrying", "running")}
    yield labelled(
        "export_queue_depth",
        "Chunks that have not ended, by state; reusable ones are among the pending.",
        "state",
        {**waiting, "reusable": row["reusable"]},
    )
    yield plain(
        "export_oldest_pending_age_seconds", "Since the oldest job with pending chunks came.", row["oldest"] or 0
    )
    yield labelled(
        "export_slots",
        "Permissions for one call each into the source database.",
        "state",
        {"held": row["held"], "free": row["free"]},
    )
    yield plain("export_leases_overdue", "Running chunks whose worker was not heard of in time.", row["overdue"])
    jobs = row["jobs"] or {}
    yield labelled(
        "export_jobs_active",
        "Jobs that have not ended.",
        "status",
        {status: jobs.get(status, 0) for status in sorted(JOB_ACTIVE)},
    )
    yield plain("export_jobs_completing", "Jobs whose chunks are all done, without a receipt yet.", row["completing"])
    yield plain("export_receipts_outlived", "Objects still there a minute after their receipt ended.", row["outlived"])
    yield plain("export_deliveries_pending", "Deliveries to webhooks that wait for an attempt.", row["deliveries"])
    yield plain("export_untold_events", "Ends of jobs for which no deliveries were made yet.", row["untold"])
    yield labelled("export_tick_age_seconds", "Since periodic work last ran.", "tick", row["ticks"] or {})
