"""Figures and charts of exports on the start page of the admin.

Each statement reads at most `MAX_ROWS` active or recent rows by an index. Most chunks have ended and are not read.
"""

from datetime import datetime, timedelta
from typing import Any

from django.conf import settings
from django.urls import reverse

from config.platform import wakeups
from config.platform.admin import overview, workers
from config.platform.admin.display import list_url, number, page_of, size
from config.platform.admin.overview import (
    MAX_ROWS,
    Chart,
    Figure,
    FirstStep,
    OverviewContent,
    OverviewPart,
    Series,
    at_most,
    last_hours,
    truncation_note,
)
from config.platform.db import clock, sql
from config.platform.durations import duration
from config.platform.plurals import counted
from config.platform.ui.templatetags.pages import age
from config.platform.webhooks.sender import DISABLE_ATTEMPTS, DISABLE_SECONDS
from exports.admin.errors import title_of
from exports.core.states import JobStatus
from exports.models import Dataset
from exports.source import database

COLORS: dict[str, str] = {
    JobStatus.PENDING: "#94a3b8",
    JobStatus.RUNNING: "#3b82f6",
    JobStatus.RETRYING: "#f59e0b",
    JobStatus.SUCCESS: "#16a34a",
    JobStatus.FAILED: "#dc2626",
    JobStatus.CANCELLED: "#a855f7",
}
MAX_PENDING_SECONDS = 300  # an older pending chunk is shown as a warning
BEAT_DOWN = "Celery beat or the maintenance worker is down, so lost work is not recovered"


# ---- Jobs -----------------------------------------------------------------------------------------------------------
JOBS_BY_HOUR = """
WITH recent AS MATERIALIZED (
    SELECT created_at, status FROM exports_jobs WHERE created_at >= %(since)s ORDER BY created_at DESC LIMIT %(limit)s
)
SELECT date_trunc('hour', created_at) AS hour, status, count(*) AS jobs FROM recent GROUP BY 1, 2
"""
EXPORTED_BY_HOUR = """
WITH recent AS MATERIALIZED (
    SELECT finished_at, status, rows, bytes FROM exports_jobs
    WHERE finished_at >= %(since)s ORDER BY finished_at DESC LIMIT %(limit)s
)
SELECT date_trunc('hour', finished_at) AS hour, sum(rows)::bigint AS rows, sum(bytes)::bigint AS bytes, count(*) AS jobs
FROM recent WHERE status = 'success' GROUP BY 1
"""


def draw_jobs() -> OverviewContent:
    hours = last_hours()
    created = sql.rows(JOBS_BY_HOUR, since=hours[0], limit=MAX_ROWS)
    counts = {(row["hour"], row["status"]): row["jobs"] for row in created}
    exported = sql.rows(EXPORTED_BY_HOUR, since=hours[0], limit=MAX_ROWS)
    return OverviewContent(
        charts=[
            overview.by_status_and_hour(
                "Exports by status and hour of creation", "job", hours, counts, colors=COLORS, rows="exports"
            ),
            amounts_by_hour(hours, exported, "rows", "Rows exported", "#3b82f6"),
            amounts_by_hour(hours, exported, "bytes", "Bytes exported", "#0d9488"),
        ]
    )


def amounts_by_hour(hours: list[datetime], found: list[sql.Row], name: str, title: str, color: str) -> Chart:
    amounts = {row["hour"]: row[name] for row in found}
    values = [amounts.get(hour, 0) for hour in hours]
    divisor, unit = scale_of(max(values)) if name == "bytes" else (1, name)
    return Chart(
        title=f"{title}, by hour of completion",
        labels=overview.labels_of(hours),
        series=[
            Series(
                label=name,
                color=color,
                values=[value / divisor for value in values],
                texts=[size(value) if name == "bytes" else number(value) for value in values],
                urls=overview.urls_by_hour("job", hours, "finished_at", status__exact=JobStatus.SUCCESS),
            )
        ],
        unit=unit,
        note=truncation_note(sum(row["jobs"] for row in found), "exports"),
    )


def scale_of(maximum: int) -> tuple[int, str]:
    """Return the divisor and unit for an axis of bytes, with the units of `size`."""
    for power, unit in ((4, "TB"), (3, "GB"), (2, "MB"), (1, "kB")):
        if maximum >= 1000**power:
            return 1000**power, unit
    return 1, "bytes"


# ---- The queue ------------------------------------------------------------------------------------------------------
# Pending chunks are counted by their jobs' counters, and running ones by their index. The age of a chunk is the age of
# its job. `claimable_since`: the earliest time at which the next chunk of a dataset could have been claimed. It is
# not before the newest event of its job, because a long job would look stuck between two chunks otherwise.
QUEUE = """
WITH running AS MATERIALIZED (
    SELECT job_id, count(*) AS chunks, count(*) FILTER (WHERE lease_until < clock_timestamp()) AS overdue
    FROM (SELECT job_id, lease_until FROM exports_chunk WHERE status = 'running' LIMIT %(limit)s) c GROUP BY job_id
), active AS MATERIALIZED (
    SELECT j.job_id, j.created_at, j.retrying,
           j.total - j.done - j.failed - j.cancelled - j.retrying - coalesce(r.chunks, 0) AS waiting
    FROM (SELECT * FROM exports_jobs WHERE status IN ('pending', 'retrying', 'running') LIMIT %(limit)s) j
    LEFT JOIN running r USING (job_id)
), next AS MATERIALIZED (
    SELECT c.job_id, c.since FROM exports_dataset d CROSS JOIN LATERAL (
        (SELECT job_id, NULL::timestamptz AS since FROM exports_chunk
         WHERE dataset_id = d.id AND status = 'pending' AND NOT reusable ORDER BY rank, id LIMIT 1)
        UNION ALL
        (SELECT job_id, available_at FROM exports_chunk
         WHERE dataset_id = d.id AND status = 'retrying' AND available_at <= statement_timestamp()
         ORDER BY available_at LIMIT 1)
    ) c
    WHERE d.max_concurrency IS NULL OR EXISTS (
        SELECT 1 FROM exports_slot s WHERE s.dataset_id = d.id AND s.number <= d.max_concurrency AND s.token IS NULL)
    UNION ALL
    (SELECT job_id, NULL FROM exports_chunk WHERE status = 'pending' AND reusable ORDER BY rank, id LIMIT 1)
)
SELECT (SELECT coalesce(sum(waiting), 0)::bigint FROM active) AS waiting,
       (SELECT coalesce(sum(retrying), 0)::bigint FROM active) AS retrying,
       (SELECT coalesce(sum(chunks), 0)::bigint FROM running) AS running,
       (SELECT coalesce(sum(overdue), 0)::bigint FROM running) AS overdue,
       (SELECT count(*) FROM active) AS jobs,
       (SELECT min(created_at) FROM active WHERE waiting > 0) AS oldest,
       (SELECT job_id FROM active WHERE waiting > 0 ORDER BY created_at LIMIT 1) AS oldest_job,
       (SELECT min(greatest(
            coalesce(n.since, (SELECT created_at FROM exports_jobs j WHERE j.job_id = n.job_id)),
            (SELECT at FROM exports_event e WHERE e.job_id = n.job_id ORDER BY e.seq DESC LIMIT 1)))
        FROM next n) AS claimable_since,
       (SELECT count(*) FROM exports_slot WHERE dataset_id IS NULL AND number <= %(slots)s AND token IS NULL) AS free,
       (SELECT ran_at FROM exports_tick WHERE name = 'reap') AS reaped
"""
# Chunks have no index by time, so they are found by their jobs, which have failed recently or are active.
FAILURES = """
WITH failing AS MATERIALIZED (
    (SELECT job_id FROM exports_jobs WHERE finished_at >= %(since)s AND failed > 0 ORDER BY finished_at DESC LIMIT 1000)
    UNION
    (SELECT job_id FROM exports_jobs WHERE status IN ('pending', 'retrying', 'running') AND failed > 0 LIMIT 1000)
), recent AS MATERIALIZED (
    SELECT c.error_code FROM failing f CROSS JOIN LATERAL (
        SELECT error_code, finished_at FROM exports_chunk WHERE job_id = f.job_id AND status = 'failed' LIMIT %(limit)s
    ) c WHERE c.finished_at >= %(since)s LIMIT %(limit)s
)
SELECT error_code AS code, count(*) AS chunks FROM recent GROUP BY 1 ORDER BY 2 DESC
"""


def draw_queue() -> OverviewContent:
    return OverviewContent(
        figures=queue_of(sql.one(QUEUE, limit=MAX_ROWS + 1, slots=settings.SLUICE.export_db_slots) or {}),
        charts=[failures_since(last_hours()[0])],
    )


def queue_of(row: dict[str, Any]) -> list[Figure]:
    return [
        periodic_work(row["reaped"]),
        Figure(
            title="Pending chunks",
            value=number(row["waiting"]),
            note=f"in {counted(row['jobs'], 'active export')}",
            url=list_url("chunk", {"status__exact": "pending"}),
        ),
        oldest_pending(row),
        Figure(
            title="Running chunks",
            value=at_most(row["running"]),
            note=leases_of(row["overdue"], row["reaped"]),
            url=list_url("chunk", {"status__exact": "running"}),
            tone="danger" if row["overdue"] else "",
        ),
        Figure(
            title="Retrying chunks",
            value=number(row["retrying"]),
            note="waiting for the next attempt",
            url=list_url("chunk", {"status__exact": "retrying"}),
            tone="warning" if row["retrying"] else "",
        ),
    ]


def periodic_work(reaped: datetime | None) -> Figure:
    every = f"expected every {duration(settings.SLUICE.export_reaper_seconds)}"
    return Figure(
        title="Periodic tasks",
        value=age(reaped) if reaped else "never",
        note=f"{every}: {BEAT_DOWN}" if is_beat_down(reaped) else f"last reap; {every}",
        tone="danger" if is_beat_down(reaped) else "",
    )


def is_beat_down(reaped: datetime | None) -> bool:
    """Return whether periodic tasks are overdue by more than a busy queue explains."""
    max_age = 4 * settings.SLUICE.export_reaper_seconds
    return reaped is None or abs((clock.now() - reaped).total_seconds()) > max_age


def leases_of(overdue: int, reaped: datetime | None) -> str:
    if not overdue:
        return "all leases are valid"
    cause = ", not recovered: see periodic tasks" if is_beat_down(reaped) else ": their workers are lost"
    return f"{overdue:,} with an expired lease{cause}"


def oldest_pending(row: dict[str, Any]) -> Figure:
    now = clock.now()
    waited = now - row["oldest"] if row["oldest"] else None
    unclaimed = now - row["claimable_since"] if row["claimable_since"] else timedelta(0)
    is_busy = row["running"] > row["overdue"]  # a worker that renews leases is alive, and will claim more chunks
    if row["free"] and not is_busy and unclaimed.total_seconds() > 2 * settings.SLUICE.export_reaper_seconds:
        tone = "danger"
        note = (
            f"pending for {duration(unclaimed)} although slots are free: no worker claims chunks. "
            "Check the workers of the queue exports."
        )
    elif waited and waited.total_seconds() > MAX_PENDING_SECONDS:
        tone, note = "warning", "check the workers and the free slots"
    else:
        tone, note = "", "since its export was created" if waited else ""
    return Figure(
        title="Oldest pending chunk",
        value=duration(waited) if waited else duration(unclaimed) if tone else "none",
        note=note,
        url=list_url("chunk", {"job": row["oldest_job"], "status__exact": "pending"}) if waited else "",
        tone=tone,
    )


def failures_since(since: datetime) -> Chart:
    counts = {row["code"]: row["chunks"] for row in sql.rows(FAILURES, since=since, limit=MAX_ROWS)}
    query = {"status__exact": "failed", "finished_at__gte": since.isoformat()}
    return overview.by_error("chunks", "chunk", counts, names=title_of, **query)


# ---- Slots, deliveries ----------------------------------------------------------------------------------------------
SLOTS = """
SELECT count(*) FILTER (WHERE token IS NOT NULL) AS held, count(*) AS slots,
       count(*) FILTER (WHERE lease_until < clock_timestamp()) AS expired,
       (SELECT ran_at FROM exports_tick WHERE name = 'reap') AS reaped
FROM exports_slot WHERE dataset_id IS NULL AND number <= %(slots)s
"""
DELIVERIES = """
SELECT (SELECT count(*) FROM (SELECT 1 FROM exports_delivery WHERE status = 'pending' LIMIT %(limit)s) d) AS waiting,
       (SELECT count(*) FROM exports_webhook WHERE failures > 0 OR failing_since IS NOT NULL) AS failing,
       (SELECT count(*) FROM exports_webhook WHERE NOT enabled) AS disabled
"""


def draw_slots() -> OverviewContent:
    row = sql.one(SLOTS, slots=settings.SLUICE.export_db_slots) or {}
    expired = row["expired"]
    slots = Figure(
        title="Source calls",
        value=f"{row['held']} of {row['slots']}",
        note=expired_slots(expired, row["reaped"]) if expired else "running now, of those allowed at the same time",
        url=list_url("slot", {"dataset__isnull": True, "state": "held"}),
        tone="danger" if expired else "",
    )
    return OverviewContent(figures=[slots, queued(wakeups.queue_lengths())])


def queued(lengths: dict[str, int] | None) -> Figure:
    """Return the number of messages that no worker has received yet, by queue."""
    if lengths is None:
        return Figure(title="Messages to workers", value="unknown", note="the broker does not respond", tone="danger")
    waiting = {name: length for name, length in lengths.items() if length}
    by_queue = ", ".join(f"{name} {length:,}" for name, length in waiting.items())
    return Figure(
        title="Messages to workers",
        value=number(sum(waiting.values())),
        note=f"in the queues: {by_queue}. Idle workers take them at once" if waiting else "all queues are empty",
    )


def expired_slots(expired: int, reaped: datetime | None) -> str:
    if is_beat_down(reaped):
        return f"{expired} with an expired lease, not released: see periodic tasks"
    return f"{expired} of lost workers: released after their calls are terminated"


# Returns at most one row per slot. The chunks of a batch run in the order of their IDs, so the first one is running.
CALLS = """
SELECT s.backend, s.job_id, d.name AS dataset, c.key, c.effective_date, clock_timestamp() - c.started_at AS since
FROM exports_slot s
CROSS JOIN LATERAL (
    SELECT * FROM exports_chunk WHERE status = 'running' AND token = s.token ORDER BY id LIMIT 1
) c
JOIN exports_dataset d ON d.id = c.dataset_id
WHERE s.dataset_id IS NULL AND s.token IS NOT NULL ORDER BY c.started_at
"""


def calls() -> list[workers.Call]:
    """Return the running calls into the source database, oldest first."""
    return [
        workers.Call(
            process=database.process_of(row["backend"]),
            work=page_of("job", row["job_id"], f"{row['dataset']}, {row['key']} {row['effective_date']}"),
            duration=duration(row["since"]),
        )
        for row in sql.rows(CALLS)
    ]


def draw_deliveries() -> OverviewContent:
    row = sql.one(DELIVERIES, limit=MAX_ROWS + 1) or {}
    until = f" (disabled after {DISABLE_ATTEMPTS} failures in a row over {duration(DISABLE_SECONDS)})"
    deliveries = Figure(
        title="Pending webhook deliveries",
        value=at_most(row["waiting"]),
        note=f"{counted(row['failing'], 'webhook')} failing{until if row['failing'] else ''}, "
        f"{row['disabled']:,} disabled",
        url=list_url("delivery", {"status__exact": "pending"}),
        tone="warning" if row["failing"] else "",
    )
    return OverviewContent(figures=[deliveries])


workers.activities.append(workers.Activity("exports.view_chunk", calls))
overview.contribute(
    OverviewPart(permission="exports.view_job", draw=draw_jobs),
    OverviewPart(permission="exports.view_chunk", draw=draw_queue),
    OverviewPart(permission="exports.view_slot", draw=draw_slots),
    OverviewPart(permission="exports.view_delivery", draw=draw_deliveries),
    first=[
        FirstStep(
            title="No datasets yet",
            words="Add a dataset to start exporting: a function of the source database that takes a key and a date, "
            "and a folder for the files. From a shell, use manage.py register_dataset.",
            url=lambda: reverse("admin:exports_dataset_add"),
            label="Add dataset",
            permission="exports.add_dataset",
            is_due=lambda: not Dataset.objects.of_functions().exists(),
        )
    ],
)
