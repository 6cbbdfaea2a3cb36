"""Measurement of the costs of alternatives: seconds, CPU seconds by group of processes, and work of both databases."""

import time
from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import psycopg
from django.conf import settings
from psycopg.conninfo import conninfo_to_dict

from config.dev.stack import processes
from config.dev.stack.process import Process
from tests.bench import site
from tests.waiting import wait_until

WEB, CLIENTS, POSTGRES = "web", "clients, or bare loop", "Postgres"
NO_PROCESSES: Mapping[str, list[int]] = {}


class DatabaseWork(NamedTuple):
    """The work of a database, cumulative or between two points in time.

    `seconds`: from pg_stat_statements. They include planning for COPY, but not for SELECT. `active`: from
    pg_stat_database, the time in which sessions executed statements.
    """

    statements: float = 0
    seconds: float = 0
    active: float = 0

    def since(self, before: "DatabaseWork") -> "DatabaseWork":
        return DatabaseWork(*(now - then for now, then in zip(self, before, strict=True)))


@dataclass
class Lap:
    """One run of an alternative: seconds, CPU seconds by group of processes, and work of both databases."""

    groups: Mapping[str, list[int]]
    seconds: float = 0
    cpu: dict[str, float] = field(default_factory=dict)
    source: DatabaseWork = field(default_factory=DatabaseWork)
    own: DatabaseWork = field(default_factory=DatabaseWork)

    @contextmanager
    def timed(self, instead: Mapping[str, list[int]] = NO_PROCESSES) -> Iterator[None]:
        """Measure the block. `instead`: process groups that replace those of the meter in this run."""
        groups = {**self.groups, **instead}
        before = cpu_seconds(groups)
        started = time.perf_counter()
        yield
        self.seconds = time.perf_counter() - started
        self.cpu = {name: now - before[name] for name, now in cpu_seconds(groups).items()}


class Meter:
    def __init__(self, connection: psycopg.Connection, groups: Mapping[str, list[int]]) -> None:
        self.connection = connection  # to Sluice's database, so that queries are not counted as work of the source
        self.groups = groups
        self.laps: dict[str, list[Lap]] = defaultdict(list)

    @contextmanager
    def lap(self, name: str) -> Iterator[Lap]:
        lap = Lap(self.groups)
        source, own = self.used(settings.SLUICE.source_url), self.used(own_url())
        yield lap
        wait_until(self.source_is_unused)  # sessions report their times reliably only when they end
        lap.source = self.used(settings.SLUICE.source_url).since(source)
        lap.own = self.used(own_url()).since(own)
        self.laps[name].append(lap)

    def used(self, url: str) -> DatabaseWork:
        return DatabaseWork(*self.ask(USED, conninfo_to_dict(url)["dbname"]))

    def source_is_unused(self) -> bool:
        return self.ask(COUNT_SESSIONS, conninfo_to_dict(settings.SLUICE.source_url)["dbname"]) == (0,)

    def require_all_statements(self) -> None:
        """Assert that pg_stat_statements evicted no entries, because their times would be lost."""
        assert self.ask("SELECT dealloc FROM pg_stat_statements_info") == (0,)

    def ask(self, query: str, *values: Any) -> tuple[Any, ...]:
        row = self.connection.execute(query, values).fetchone()
        assert row
        return row


USED = """
SELECT coalesce(sum(s.calls), 0)::float8, coalesce(sum(s.total_exec_time), 0) / 1000, max(d.active_time) / 1000
FROM pg_stat_database d LEFT JOIN pg_stat_statements(false) s ON s.dbid = d.datid
WHERE d.datname = %s
"""
COUNT_SESSIONS = "SELECT count(*) FROM pg_stat_activity WHERE datname = %s"


def own_url() -> str:
    url: str = settings.SLUICE.database_url.get_secret_value()
    return url


def cpu_seconds(groups: Mapping[str, list[int]]) -> dict[str, float]:
    spent = {name: site.cpu_seconds(pids) for name, pids in groups.items()}
    # Of this process alone: `site.cpu_seconds` would add all measured processes, which are its descendants.
    spent[CLIENTS] += time.process_time()
    return spent


def groups(workers: Mapping[str, Process], web: processes.Web) -> dict[str, list[int]]:
    return {
        "exports worker": [workers["exports"].pid],
        "other workers, beat": [process.pid for name, process in workers.items() if name != "exports"],
        WEB: [web.pid],
        CLIENTS: [],
        **{name: [pid] for name, pid in site.server_pids().items()},
    }
