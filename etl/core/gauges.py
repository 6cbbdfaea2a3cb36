"""Gauges of open tasks and their age, from one statement that uses the index of open tasks."""

from collections.abc import Iterator

from django.conf import settings
from prometheus_client import Metric

from config.platform.observability.gauges import Row, gauge

# At most ETL_QUEUE_SIZE rows. A row is written when its task is accepted or retried.
GAUGES = """
SELECT count(*) AS open, extract(epoch FROM clock_timestamp() - min(updated_at)) AS oldest
FROM etl_task WHERE status = 'pending'
"""


def collect(row: Row) -> Iterator[Metric]:
    yield gauge("etl_tasks_open", "Tasks that have not ended, waiting or running.", row["open"])
    yield gauge("etl_queue_size", "Maximum number of open tasks: ETL_QUEUE_SIZE.", settings.SLUICE.etl_queue_size)
    yield gauge(
        "etl_oldest_open_age_seconds", "Seconds since the oldest open task was accepted or retried.", row["oldest"] or 0
    )
