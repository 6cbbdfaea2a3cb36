"""Figures and charts of documents on the admin's start page, from one query of open tasks and one of recent tasks."""

from datetime import datetime
from typing import Any

from django.conf import settings

from config.platform.admin import overview
from config.platform.admin.display import list_url, milliseconds
from config.platform.admin.overview import (
    MAX_ROWS,
    Chart,
    Figure,
    OverviewContent,
    OverviewPart,
    Series,
    at_most,
    last_hours,
)
from config.platform.db import clock, sql
from config.platform.durations import duration
from etl.core.states import Status

COLORS: dict[str, str] = {
    Status.PENDING: "#94a3b8",
    Status.COMPLETED: "#16a34a",
    Status.FAILED: "#dc2626",
    Status.CANCELLED: "#a855f7",
}
LONG_SECONDS = 600  # an open task older than this is a warning

OPEN = """
SELECT count(*) AS open, min(updated_at) AS oldest
FROM (SELECT updated_at FROM etl_task WHERE status = 'pending' LIMIT %(limit)s) t
"""
# `ocr`: duration of OCR, if the provider reports it. `whole`: from submission to completion, of tasks with one run: the
# number in the condition is that of `Task.first_run`.
RECENT = """
WITH recent AS MATERIALIZED (
    SELECT date_trunc('hour', created_at) AS hour, status, error ->> 'code' AS code, updated_at,
           CASE WHEN jsonb_typeof(metadata #> '{ocr,duration_ms}') = 'number'
                THEN (metadata #>> '{ocr,duration_ms}')::float END AS ocr,
           CASE WHEN status = 'completed' AND run = 1 + ('x' || left(uuid, 7))::bit(28)::int
                THEN extract(epoch FROM updated_at - created_at)::float * 1000 END AS whole
    FROM etl_task WHERE created_at >= %(since)s ORDER BY created_at DESC, task_id DESC LIMIT %(limit)s
)
SELECT (SELECT json_agg(s) FROM (
            SELECT hour, status, count(*) AS tasks FROM recent GROUP BY 1, 2) s) AS statuses,
       (SELECT json_agg(c) FROM (
            SELECT code, count(*) AS tasks FROM recent WHERE code IS NOT NULL GROUP BY 1 ORDER BY 2 DESC) c) AS codes,
       (SELECT json_agg(t) FROM (
            SELECT hour, percentile_cont(ARRAY[0.5, 0.95]) WITHIN GROUP (ORDER BY ocr) AS ocr,
                   percentile_cont(ARRAY[0.5, 0.95]) WITHIN GROUP (ORDER BY whole) AS whole
            FROM recent GROUP BY 1) t) AS times,
       (SELECT max(updated_at) FROM recent WHERE status <> 'pending') AS ended
"""


def draw() -> OverviewContent:
    hours = last_hours()
    row = sql.one(RECENT, since=hours[0], limit=MAX_ROWS) or {}
    ended = row.pop("ended")
    found = {name: value or [] for name, value in row.items()}
    counts = {(datetime.fromisoformat(row["hour"]), row["status"]): row["tasks"] for row in found["statuses"]}
    failures = {str(row["code"]): row["tasks"] for row in found["codes"]}
    charts = [
        overview.by_status_and_hour(
            "Documents by status and hour of submission",
            "etl_task",
            hours,
            counts,
            colors=COLORS,
            names={Status.PENDING: "open"},
            rows="documents",
        ),
        times_of(hours, found["times"]),
        overview.by_error(
            "documents",
            "etl_task",
            failures,
            names=lambda code: code.replace("_", " "),
            created_at__gte=hours[0].isoformat(),
        ),
    ]
    return OverviewContent(figures=[queue_of(sql.one(OPEN, limit=MAX_ROWS + 1) or {}, ended)], charts=charts)


def queue_of(row: dict[str, Any], ended: datetime | None) -> Figure:
    """Return the figure of open tasks. `ended`: time of the last end of a task, to detect that no workers run."""
    now = clock.now()
    waited = now - row["oldest"] if row["oldest"] else None
    is_long = waited is not None and waited.total_seconds() > LONG_SECONDS
    size = settings.SLUICE.etl_queue_size
    notes = [f"limit {size:,}"]
    if waited:
        notes.append(f"oldest for {duration(waited)}")
    if is_long and (ended is None or (now - ended).total_seconds() > LONG_SECONDS):
        since = f"for {duration(now - ended)}" if ended else "in the last 24 hours"
        queues = " and ".join(settings.ETL_QUEUES.values())
        notes.append(f"none finished {since}: check the workers of the queues {queues}")
    return Figure(
        title="Open tasks",
        value=at_most(row["open"]),
        note=", ".join(notes),
        url=list_url("etl_task", {"status__exact": Status.PENDING}),
        tone="danger" if row["open"] >= size else "warning" if is_long else "",
    )


TIMES = (
    ("OCR, median", "ocr", 0, "#3b82f6"),
    ("OCR, 95th percentile", "ocr", 1, "#93c5fd"),
    ("total, median", "whole", 0, "#0d9488"),
    ("total, 95th percentile", "whole", 1, "#5eead4"),
)


def times_of(hours: list[datetime], found: list[dict[str, Any]]) -> Chart:
    known = {datetime.fromisoformat(row["hour"]): row for row in found}

    def value(hour: datetime, name: str, place: int) -> float | None:
        times = (known.get(hour) or {}).get(name)
        return times[place] / 1000 if times and times[place] is not None else None

    return Chart(
        title="Processing times by hour of submission",
        kind="line",
        unit="seconds",
        labels=overview.labels_of(hours),
        series=[
            series_of(label, color, hours, [value(hour, name, place) for hour in hours])
            for label, name, place, color in TIMES
        ],
        note="Total: from submission to completion, including waiting time, for documents that were not retried.",
    )


def series_of(label: str, color: str, hours: list[datetime], values: list[float | None]) -> Series:
    return Series(
        label=label,
        color=color,
        values=values,
        texts=["-" if value is None else milliseconds(value * 1000) for value in values],
        urls=overview.urls_by_hour("etl_task", hours, "created_at"),
    )


overview.contribute(OverviewPart(permission="etl.view_task", draw=draw))
