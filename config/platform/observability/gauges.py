"""What waits, and for how long: read from the rows when Prometheus asks, by one statement of each app's.

The web process that answers asks over a connection of its own, with short limits: when the database is away, or busy,
`/metrics` still tells what was counted, and `sluice_database_up 0`.
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

CONNECT_SECONDS = 2  # the shortest that libpq knows
STATEMENT_SECONDS = 1  # of all together

Row = dict[str, Any]


class Part(NamedTuple):
    """An app's gauges: a statement that gives one row, its parameters, and what the row tells."""

    statement: str
    values: Callable[[], Mapping[str, object]]
    tell: Callable[[Row], Iterator[Metric]]


parts: list[Part] = []


def contribute(part: Part) -> None:
    parts.append(part)


class Gauges(Collector):
    """The state of everything, as seen by the database."""

    def collect(self) -> Iterable[Metric]:
        up = GaugeMetricFamily("sluice_database_up", "Whether the database told what the other gauges say.")
        try:
            told = [metric for part, row in zip(parts, ask(), strict=True) for metric in part.tell(row)]
        except psycopg.Error as error:
            log.warning("gauges_unavailable", error=logs.describe(error))
            up.add_metric([], 0)
            return [up]
        up.add_metric([], 1)
        return [up, *told]


def ask() -> list[Row]:
    """Return a row for each part. Raises psycopg.Error when there is no answer within three seconds."""
    url = make_conninfo(settings.SLUICE.database_url.get_secret_value(), dbname=connection.settings_dict["NAME"])
    with psycopg.connect(
        url,
        connect_timeout=CONNECT_SECONDS,
        tcp_user_timeout=CONNECT_SECONDS * 1000,
        row_factory=dict_row,
    ) as own:
        own.execute(f"SET LOCAL statement_timeout = {STATEMENT_SECONDS * 1000 // max(1, len(parts))}")
        return [own.execute(part.statement, part.values()).fetchall()[0] for part in parts]


def plain(name: str, documentation: str, value: float) -> Metric:
    return GaugeMetricFamily(name, documentation, value=float(value))


def labelled(name: str, documentation: str, label: str, values: Mapping[str, float]) -> Metric:
    family = GaugeMetricFamily(name, documentation, labels=[label])
    for value, number in values.items():
        family.add_metric([value], float(number))
    return family
