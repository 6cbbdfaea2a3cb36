"""Gauges of queue lengths and ages, read from the database at each scrape, with one statement per app.

The web process uses a separate connection with short timeouts. If the database is unavailable or slow, `/metrics` still
returns the counters, and `sluice_database_up 0`.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import psycopg
import structlog
from django.conf import settings
from django.db import connection
from prometheus_client import Metric
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector
from psycopg.conninfo import make_conninfo
from psycopg.rows import dict_row

from config.platform.observability import logs

log = structlog.get_logger(__name__)

CONNECT_SECONDS = 2  # the minimum of libpq
STATEMENT_SECONDS = 1  # for all statements together

Row = dict[str, Any]


class GaugeQuery(NamedTuple):
    """An app's gauges: a statement that returns one row, its parameters, and the row's metrics."""

    statement: str
    parameters: Callable[[], Mapping[str, object]]
    metrics: Callable[[Row], Iterator[Metric]]


queries: list[GaugeQuery] = []


def register(query: GaugeQuery) -> None:
    queries.append(query)


class Gauges(Collector):
    """The gauges of all apps."""

    def collect(self) -> Iterable[Metric]:
        up = GaugeMetricFamily("sluice_database_up", "Whether the database returned the values of the other gauges.")
        try:
            metrics = [metric for query, row in zip(queries, fetch(), strict=True) for metric in query.metrics(row)]
        except psycopg.Error as error:
            log.warning("gauges_unavailable", error=logs.describe(error))
            up.add_metric([], 0)
            return [up]
        up.add_metric([], 1)
        return [up, *metrics]


def fetch() -> list[Row]:
    """Return the row of each query. Raises psycopg.Error if the database does not respond within three seconds."""
    url = make_conninfo(settings.SLUICE.database_url.get_secret_value(), dbname=connection.settings_dict["NAME"])
    with psycopg.connect(
        url,
        connect_timeout=CONNECT_SECONDS,
        tcp_user_timeout=CONNECT_SECONDS * 1000,
        row_factory=dict_row,
    ) as scrape_connection:
        scrape_connection.execute(f"SET LOCAL statement_timeout = {STATEMENT_SECONDS * 1000 // max(1, len(queries))}")
        return [scrape_connection.execute(query.statement, query.parameters()).fetchall()[0] for query in queries]


def gauge(name: str, documentation: str, value: float) -> Metric:
    return GaugeMetricFamily(name, documentation, value=float(value))


def labeled_gauge(name: str, documentation: str, label: str, values: Mapping[str, float]) -> Metric:
    family = GaugeMetricFamily(name, documentation, labels=[label])
    for value, number in values.items():
        family.add_metric([value], float(number))
    return family
