"""What ways of doing the same cost: seconds, CPU seconds by group of processes, and the work of both databases."""

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
NOBODY: Mapping[str, list[int]] = {}


class Used(NamedTuple):
    """What a database has done so far, or meanwhile. `seconds` are those of pg_stat_statements: for a SELECT without
    its planning, for a COPY with it. `active` are those of pg_stat_database: all that its sessions did not idle."""

    statements: float = 0
    seconds: float = 0
    active: float = 0

    def since(self, before: "Used") -> "Used":
        return Used(*(now - then for now, then in zip(self, before, strict=True)))


@dataclass
class Lap:
    """One run of one way: its seconds, CPU seconds by group of processes, and what both databases did for it."""

    groups: Mapping[str, list[int]]
    seconds: float = 0
    cpu: dict[str, float] = field(default_factory=dict)
    source: Used = field(default_factory=Used)
    own: Used = field(default_factory=Used)

    @contextmanager
    def timed(self, instead: Mapping[str, list[int]] = NOBODY) -> Iterator[None]:
        """Measure what happens in here. `instead` has processes that are there for this run only."""
        groups = {**self.groups, **instead}
        before = cpu_seconds(groups)
        started = time.perf_counter()
        yield
        self.seconds = time.perf_counter() - started
        self.cpu = {name: now - before[name] for name, now in cpu_seconds(groups).items()}


class Meter:
    def __init__(self, asking: psycopg.Connection, groups: Mapping[str, list[int]]) -> None:
        self.asking = asking  # our own database: what is asked of it here is none of the source's work
        self.groups = groups
        self.laps: dict[str, list[Lap]] = defaultdict(list)

    @contextmanager
    def lap(self, name: str) -> Iterator[Lap]:
        lap = Lap(self.groups)
        source, own = self.used(settings.SLUICE.source_url), self.used(own_url())
        yield lap
        wait_until(self.source_is_left)  # a session tells of its time for certain when it ends
        lap.source = self.used(settings.SLUICE.source_url).since(source)
        lap.own = self.used(own_url()).since(own)
        self.laps[name].append(lap)

    def used(self, url: str) -> Used:
        return Used(*self.ask(USED, conninfo_to_dict(url)["dbname"]))

    def source_is_left(self) -> bool:
        return self.ask(PRESENT, conninfo_to_dict(settings.SLUICE.source_url)["dbname"]) == (0,)

    def insist_on_all_statements(self) -> None:
        """Postgres forgets statements when it has seen thousands, and their times with them."""
        assert self.ask("SELECT dealloc FROM pg_stat_statements_info") == (0,)

    def ask(self, query: str, *values: Any) -> tuple[Any, ...]:
        row = self.asking.execute(query, values).fetchone()
        assert row
        return row


USED = """
SELECT coalesce(sum(s.calls), 0)::float8, coalesce(sum(s.total_exec_time), 0) / 1000, max(d.active_time) / 1000
FROM pg_stat_database d LEFT JOIN pg_stat_statements(false) s ON s.dbid = d.datid
WHERE d.datname = %s
"""
PRESENT = "SELECT count(*) FROM pg_stat_activity WHERE datname = %s"


def own_url() -> str:
    url: str = settings.SLUICE.database_url.get_secret_value()
    return url


def cpu_seconds(groups: Mapping[str, list[int]]) -> dict[str, float]:
    spent = {name: site.cpu_seconds(pids) for name, pids in groups.items()}
    spent[CLIENTS] += time.process_time()  # this process: it has all the others as descendants
    return spent


def groups(workers: Mapping[str, Process], web: processes.Web) -> dict[str, list[int]]:
    return {
        "exports worker": [workers["exports"].pid],
        "other workers, beat": [process.pid for name, process in workers.items() if name != "exports"],
        WEB: [web.pid],
        CLIENTS: [],
        **{name: [pid] for name, pid in site.servers().items()},
    }
