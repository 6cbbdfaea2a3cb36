"""How many tasks wait or run, and for how long: one statement over the index of open tasks."""

from collections.abc import Iterator

from django.conf import settings
from prometheus_client import Metric

from config.platform.observability.gauges import Row, plain

# Of these there are ETL_QUEUE_SIZE at most. A row is written when its task is accepted, and when it is retried.
GAUGES = """
SELECT count(*) AS open, extract(epoch FROM clock_timestamp() - min(updated_at)) AS oldest
FROM etl_task WHERE status = 'pending'
"""


def tell(row: Row) -> Iterator[Metric]:
    yield plain("etl_tasks_open", "Tasks that have not ended, waiting or running.", row["open"])
    yield plain("etl_queue_size", "How many tasks may be open: ETL_QUEUE_SIZE.", settings.SLUICE.etl_queue_size)
    yield plain(
        "etl_oldest_open_age_seconds", "Since the oldest open task was accepted, or retried.", row["oldest"] or 0
    )
