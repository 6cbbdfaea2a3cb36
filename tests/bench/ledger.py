"""What a chunk costs each server: what docs/scaling.md reckons with beyond one machine. All of it is told; no bar.

- A job of 2,000 chunks by real workers, 10 rows each, all read anew into objects that were not there: CPU by what it is
  for, WAL, statements, bytes of rows and their indexes, commands of Valkey. Beside it what is spent while nothing is to
  be done. Once more through a proxy, which counts the requests to the object storage.
- Without workers: a claim and an end alone, with many slots and with many datasets; how fast old rows are deleted.

It is submitted by this process. The tables are empty before, so that their sizes are those of these rows, with the
versions that claims and ends have left.
"""

import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from datetime import date, timedelta
from itertools import count
from statistics import median
from typing import Any

import psycopg
import redis
from django.conf import settings
from django.contrib.auth.models import User
from django.db import connection
from django.test import override_settings
from django.utils import timezone
from psycopg.conninfo import conninfo_to_dict

from config.dev.stack import process_tree
from config.dev.stack.process import Process
from config.platform.db import sql
from exports.core import planning, wakeups
from exports.core.states import JOB_ENDED, JobStatus
from exports.maintenance import retention
from exports.models import Chunk, Dataset, Event, File, Job, Slot
from exports.worker import leases, transitions
from tests.bench import growth, site
from tests.bench.report import Report
from tests.bench.turns import say
from tests.client import gate
from tests.integration.factories import result_of
from tests.waiting import let_pass, wait_until

CHUNKS, QUICK_CHUNKS = 2_000, 100
PROXIED = 200  # chunks through the proxy, which is slow
ALONE, QUICK_ALONE = 200, 20  # claims and ends, one after the other
CONNECTIONS = 100
OLD, QUICK_OLD = 100_000, 2_000  # chunks that are deleted
MANY_SLOTS, MANY_DATASETS = 1_000, 100
ROWS = 10
KEYS = 10
FIRST_DAY = date(2000, 1, 1)
LOOK_SECONDS = 0.2
# What still ends after a job's success: messages, calls' connections, hints that find nothing.
SETTLE_SECONDS = 1.0
REST_SECONDS, QUICK_REST_SECONDS = 30, 3  # two ticks of the reaper
CHILDREN = {"exports": 2, "bundles": 1, "webhooks": 1, "maintenance": 1}
FUNCTION = f"""
CREATE SCHEMA ledger;
CREATE FUNCTION ledger.rows_for(key text, effective_date date) RETURNS TABLE (k text, n int, d date)
LANGUAGE sql STABLE AS 'SELECT key, n, effective_date FROM generate_series(1, {ROWS}) n';
"""


def run(report: Report, *, rounds: int, quick: bool) -> None:
    rounds = 1 if quick else rounds
    user = site.prepare()
    site.in_source(FUNCTION)
    scene = Scene(
        dataset=site.make_dataset("ledger", "ledger.rows_for"),
        user=user,
        chunks=QUICK_CHUNKS if quick else CHUNKS,
        servers=site.servers(),
    )
    with site.working(CHILDREN) as workers:
        scene.workers = workers
        costs_of_job(scene)  # warm up
        costs = [costs_of_job(scene) for _ in range(rounds)]
        rest = costs_of_rest(scene, QUICK_REST_SECONDS if quick else REST_SECONDS)
    requests = requests_of_job(scene, min(PROXIED, scene.chunks))
    # Nobody works from here on: the hints of these jobs stay where they are.
    alone = times_alone(scene, rounds, QUICK_ALONE if quick else ALONE)
    connecting = [cpu_ms_of_connecting(scene, 10 if quick else CONNECTIONS) for _ in range(rounds)]
    speeds = [speeds_of_janitors(scene, QUICK_OLD if quick else OLD) for _ in range(rounds)]
    # Postgres forgets statements when it has seen thousands, and their counts with them.
    assert sql.scalar("SELECT dealloc FROM pg_stat_statements_info") == 0
    tell_costs(report, scene.chunks, costs, rest)
    tell_requests(report, requests)
    tell_alone(report, alone)
    tell_connecting(report, connecting)
    tell_speeds(report, speeds)


serial = count()


@dataclass(kw_only=True)
class Scene:
    """What is measured, and the processes that work for it. `servers`: their first processes, by name."""

    dataset: Dataset
    user: User
    chunks: int
    servers: Mapping[str, int]
    workers: Mapping[str, Process] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.backends = Backends(self.servers["Postgres"])

    def begin_anew(self) -> None:
        """Leave no rows, and let the next files go where there are none. The calls are the same every time: Postgres
        keeps count of a few thousand different ones."""
        growth.empty()
        Dataset.objects.filter(pk=self.dataset.pk).update(base_path=f"ledger-{next(serial)}")
        self.dataset.refresh_from_db()

    def submit(self, chunks: int) -> Job:
        pairs = [
            planning.Pair(f"STORE-{n % KEYS:04}", FIRST_DAY + timedelta(days=n // KEYS)) for n in range(chunks)
        ]  # fmt: skip
        return site.submit(self.dataset, pairs, self.user)

    def counters(self) -> dict[str, float]:
        """Return what was spent so far, and is there now. What is told is by how much it grew."""
        return {**self.cpu(), **of_ledger(), **sizes(), **of_valkey()}

    def cpu(self) -> dict[str, float]:
        others = [process.pid for name, process in self.workers.items() if name != "exports"]
        seconds = {
            **self.backends.seconds(),
            "exports worker": site.cpu_seconds([self.workers["exports"].pid]),
            "other workers, beat": site.cpu_seconds(others),
            "Valkey": site.cpu_seconds([self.servers["Valkey"]]),
            "SeaweedFS": site.cpu_seconds([self.servers["SeaweedFS"]]),
        }
        return {f"CPU ms: {name}": 1000 * spent for name, spent in seconds.items()}


# ---- What is counted ------------------------------------------------------------------------------------------------

OWN, MINE, SOURCE = "our database, workers", "our database, submission", "source"
REST = "Postgres besides: WAL, checkpoints, autovacuum"


class Backends:
    """CPU seconds of Postgres' processes, by the database that their title names.

    Connections come and go, and with one the account of its CPU: so they are looked at again and again. What one spent
    between the last look and its end counts with the rest.
    """

    def __init__(self, postmaster: int) -> None:
        self.postmaster = postmaster
        self.mine = int(sql.scalar("SELECT pg_backend_pid()"))
        self.titles = {
            title_of(settings.SLUICE.database_url.get_secret_value()): OWN,
            title_of(settings.SLUICE.source_url): SOURCE,
        }
        self.seen: dict[tuple[str, int], float] = {}

    def look(self) -> None:
        for pid in process_tree.members(self.postmaster):
            if kind := self.kind_of(pid):
                self.seen[kind, pid] = max(site.spent(pid), self.seen.get((kind, pid), 0.0))

    def kind_of(self, pid: int) -> str:
        """Return whose backend it is; "" for other processes, and for one that has ended."""
        shown = process_tree.command_line(pid)
        kind = next((kind for title, kind in self.titles.items() if title in shown), "")
        return MINE if kind and pid == self.mine else kind

    def seconds(self) -> dict[str, float]:
        """Return what each kind has spent so far, those that have ended included."""
        self.look()
        by_kind = dict.fromkeys((OWN, MINE, SOURCE), 0.0)
        for (kind, _), seconds in self.seen.items():
            by_kind[kind] += seconds
        return {**by_kind, REST: site.cpu_seconds([self.postmaster]) - sum(by_kind.values())}


def title_of(url: str) -> str:
    """Return what is in the titles of a database's backends: `postgres: cluster: user database host(port) …`."""
    parts = conninfo_to_dict(url)
    return f": {parts['user']} {parts['dbname']} "


# The texts of statements begin as exports/worker/leases.py and exports/worker/transitions.py have them. Their
# times are those in the server, without planning and without the commit.
COUNTED = """
SELECT pg_wal_lsn_diff(pg_current_wal_lsn(), '0/0') AS "WAL: bytes",
       images AS "WAL: full-page images",
       pg_snapshot_xmax(pg_current_snapshot())::text::bigint AS "transaction ids",
       statements AS "statements", claims AS "statements: claims", looks AS "statements: looks for files",
       ends AS "statements: ends", claim_ms AS "ms in the server: claims", end_ms AS "ms in the server: ends"
FROM (
    SELECT sum(calls) AS statements, sum(wal_fpi) AS images,
           sum(calls) FILTER (WHERE is_claim) AS claims, sum(total_exec_time) FILTER (WHERE is_claim) AS claim_ms,
           sum(calls) FILTER (WHERE is_end) AS ends, sum(total_exec_time) FILTER (WHERE is_end) AS end_ms,
           sum(calls) FILTER (WHERE is_look) AS looks
    FROM (
        SELECT *, starts_with(query, 'WITH turn AS') AS is_claim, starts_with(query, 'WITH head AS') AS is_look,
               starts_with(query, 'WITH ended AS') AND strpos(query, 'INSERT INTO exports_file') > 0 AS is_end
        FROM pg_stat_statements WHERE dbid = (SELECT oid FROM pg_database WHERE datname = current_database())
    ) ours
) told
"""
SIZES = """
SELECT name, pg_table_size(name::regclass) AS of_table, pg_indexes_size(name::regclass) AS of_indexes
FROM unnest(ARRAY['exports_chunk', 'exports_event', 'exports_file']) name
"""


def of_ledger() -> dict[str, float]:
    counted = sql.one(COUNTED)
    assert counted
    return {name: float(value or 0) for name, value in counted.items()}


def sizes() -> dict[str, float]:
    found = {}
    for row in sql.rows(SIZES):
        found[f"bytes of {row['name']}: table"] = float(row["of_table"])
        found[f"bytes of {row['name']}: indexes"] = float(row["of_indexes"])
    return found


def of_valkey() -> dict[str, float]:
    with redis.Redis.from_url(settings.SLUICE.broker_url) as client:
        all_commands: Any = client.info("stats")
        by_command: Any = client.info("commandstats")
    messages = by_command.get("cmdstat_lpush", {}).get("calls", 0)
    return {
        "commands of Valkey": float(all_commands["total_commands_processed"]),
        "messages, ticks included": float(messages),
    }


# ---- Jobs -----------------------------------------------------------------------------------------------------------


def costs_of_job(scene: Scene) -> dict[str, float]:
    """Return what a job costs, a chunk. This process' own backend counts for as long as it submits."""
    scene.begin_anew()
    before = scene.counters()
    job = scene.submit(scene.chunks)
    submitting = scene.backends.seconds()[MINE]
    wait_until(lambda: has_ended(scene, job), limit=site.LIMIT_SECONDS, every=LOOK_SECONDS)
    let_pass(SETTLE_SECONDS)
    after = scene.counters() | {f"CPU ms: {MINE}": 1000 * submitting}
    verify(job, scene.chunks)
    costs = {name: (after[name] - before[name]) / scene.chunks for name in before}
    say(
        f"a job of {scene.chunks:,}: {costs[f'CPU ms: {OWN}']:.2f} ms of our database, {costs['WAL: bytes']:,.0f} bytes"
    )
    return costs


def has_ended(scene: Scene, job: Job) -> bool:
    scene.backends.look()
    return Job.objects.filter(pk=job.pk, status__in=JOB_ENDED).exists()


def verify(job: Job, chunks: int) -> None:
    """Each chunk was called for once, and left one event and one file."""
    job.refresh_from_db()
    assert (job.status, job.done, job.rows) == (JobStatus.SUCCESS, chunks, ROWS * chunks), job.error_code
    assert Chunk.objects.filter(source="live", attempts=1).count() == chunks, "chunks ended otherwise"
    assert Event.objects.filter(kind=Event.Kind.CHUNK).count() == File.objects.count() == chunks, "rows are missing"


def costs_of_rest(scene: Scene, seconds: float) -> dict[str, float]:
    """Return what is spent a second while nothing is to be done."""
    before = scene.counters()
    let_pass(seconds)
    after = scene.counters()
    return {name: (after[name] - before[name]) / seconds for name in before}


def requests_of_job(scene: Scene, chunks: int) -> dict[str, float]:
    """Return the requests to the object storage a chunk, by method, and by whether they are for a chunk's file."""
    with (
        gate.running(str(settings.SLUICE.s3_endpoint_url)) as proxy,
        site.working(CHILDREN, variables={"S3_ENDPOINT_URL": proxy.url}),
    ):
        scene.begin_anew()
        job = scene.submit(chunks)
        site.wait_for(job, every=LOOK_SECONDS)
        files = f"/{scene.dataset.base_path}/"
        seen = Counter(f"{each.method}, {'a file' if files in each.path else 'else'}" for each in proxy.seen)
    verify(job, chunks)
    return {name: number / chunks for name, number in sorted(seen.items(), reverse=True)}


# ---- Alone ----------------------------------------------------------------------------------------------------------


@dataclass(kw_only=True)
class Alone:
    """Medians of each round, in ms."""

    claims: list[float] = field(default_factory=list)
    ends: list[float] = field(default_factory=list)
    hints: list[float] = field(default_factory=list)


@contextmanager
def many_slots() -> Iterator[None]:
    """All but the last are taken, so that each claim has to pass by them."""
    more = settings.SLUICE.model_copy(update={"export_db_slots": MANY_SLOTS})
    Slot.objects.provide(count=MANY_SLOTS)
    taken = Slot.objects.filter(dataset=None, number__lt=MANY_SLOTS)
    taken.update(token=0, lease_until=timezone.now() + timedelta(days=1))
    with override_settings(SLUICE=more):
        yield
    taken.update(token=None, lease_until=None)
    Slot.objects.filter(dataset=None, number__gt=settings.SLUICE.export_db_slots).delete()


@contextmanager
def many_datasets() -> Iterator[None]:
    others = [site.make_dataset(f"other-{n}", "ledger.rows_for").pk for n in range(MANY_DATASETS - 1)]
    yield
    Dataset.objects.filter(pk__in=others).delete()


def times_alone(scene: Scene, rounds: int, times: int) -> dict[str, Alone]:
    """Return how long claims, ends and hints take while nobody else does anything, in turn."""
    states: Mapping[str, Callable[[], AbstractContextManager[None]]] = {
        f"{settings.SLUICE.export_db_slots} slots, 1 dataset": nullcontext,
        f"{MANY_SLOTS:,} slots, one of them free": many_slots,
        f"{MANY_DATASETS} datasets": many_datasets,
    }
    taken = {name: Alone() for name in states}
    for _ in range(rounds):
        for name, state in states.items():
            scene.begin_anew()
            with state():
                measure_alone(scene, taken[name], times)
            say(f"{name}: claim {taken[name].claims[-1]:.2f} ms, end {taken[name].ends[-1]:.2f} ms")
    return taken


def measure_alone(scene: Scene, taken: Alone, times: int) -> None:
    """Claim and end chunks as workers do, by plans that are made once. Then send hints, as many as there are slots."""
    scene.submit(times)
    own: Any = connection
    own.close()
    own.close_pool()  # with its plans, as a worker does after each task
    claims, ends = [], []
    for _ in range(times):
        began = time.perf_counter()
        claim = leases.claim(backend="bench")
        claimed = time.perf_counter()
        assert claim
        assert transitions.finish([(claim, result_of(claim))])
        claims.append(1000 * (claimed - began))
        ends.append(1000 * (time.perf_counter() - claimed))
    began = time.perf_counter()
    wakeups.chunks(waiting=MANY_SLOTS)
    hints = min(MANY_SLOTS, settings.SLUICE.export_db_slots)
    taken.hints.append(1000 * (time.perf_counter() - began) / hints)
    taken.claims.append(median(claims))
    taken.ends.append(median(ends))


def cpu_ms_of_connecting(scene: Scene, times: int) -> float:
    """Return the CPU that a new connection costs Postgres: workers make one every few seconds."""
    url = settings.SLUICE.database_url.get_secret_value()
    before = site.cpu_seconds([scene.servers["Postgres"]])
    for _ in range(times):
        with psycopg.connect(url, autocommit=True) as one:
            one.execute("SELECT 1")
    let_pass(SETTLE_SECONDS)  # until the last of them has ended, and is on Postgres' own account
    return 1000 * (site.cpu_seconds([scene.servers["Postgres"]]) - before) / times


# ---- Janitors -------------------------------------------------------------------------------------------------------


def speeds_of_janitors(scene: Scene, chunks: int) -> dict[str, float]:
    """Return how many rows a second the sweep and the purge delete, of jobs that are as large as jobs may be."""
    scene.begin_anew()
    growth.have_ended(scene.dataset, scene.user, chunks)
    Job.objects.update(finished_at=timezone.now() - timedelta(days=settings.SLUICE.export_job_retention_days + 1))
    speeds = {
        "events forgotten": chunks / seconds_of(retention.delete_old_events),
        "chunks purged": chunks / seconds_of(retention.purge_jobs),
    }
    assert not Event.objects.exists(), "events are left"
    assert not Chunk.objects.exists(), "chunks are left"
    say(", ".join(f"{name}: {speed:,.0f}/s" for name, speed in speeds.items()))
    return speeds


def seconds_of(verb: Callable[[], object]) -> float:
    began = time.perf_counter()
    verb()
    return time.perf_counter() - began


# ---- The report -----------------------------------------------------------------------------------------------------


def tell_costs(report: Report, chunks: int, costs: Sequence[Mapping[str, float]], rest: Mapping[str, float]) -> None:
    rows = []
    for name in costs[0]:
        values = [each[name] for each in costs]
        report.series[f"ledger {name}"] = values
        at_rest = "" if name == f"CPU ms: {MINE}" or name.startswith("bytes of") else figure(rest[name])
        rows.append([name, figure(median(values)), f"{figure(min(values))} to {figure(max(values))}", at_rest])
    report.table(
        f"ledger: what a chunk costs, median of {len(costs)} jobs of {chunks:,}",
        ["", "a chunk", "from, to", "at rest, a second"],
        rows,
    )
    report.notes.append(
        "ledger: the bytes of tables and indexes are those of a row, with what its claim and its end left behind. "
        "Statements are those in our own database; ours that wait for the job's end are among them."
    )


def tell_requests(report: Report, requests: Mapping[str, float]) -> None:
    rows = [[name, f"{number:.3f}"] for name, number in requests.items()]
    report.table("ledger: requests to the object storage", ["", "a chunk"], rows)


def tell_alone(report: Report, alone: Mapping[str, Alone]) -> None:
    rows = []
    for name, each in alone.items():
        report.series[f"ledger claim, {name}"] = each.claims
        report.series[f"ledger end, {name}"] = each.ends
        rows.append([name, *(f"{median(values):.2f}" for values in (each.claims, each.ends, each.hints))])
    report.table(
        "ledger: alone, in ms, from the call to its return",
        ["", "a claim", "an end", "a hint, of as many as slots"],
        rows,
    )


def tell_connecting(report: Report, connecting: Sequence[float]) -> None:
    report.series["ledger CPU ms of a new connection"] = list(connecting)
    report.notes.append(f"ledger: a new connection takes {figure(median(connecting))} ms of Postgres' CPU.")


def tell_speeds(report: Report, speeds: Sequence[Mapping[str, float]]) -> None:
    rows = []
    for name in speeds[0]:
        values = [each[name] for each in speeds]
        report.series[f"ledger {name} a second"] = values
        rows.append([name, figure(median(values)), f"{figure(min(values))} to {figure(max(values))}"])
    report.table("ledger: old rows that are deleted, a second", ["", "rows", "from, to"], rows)


def figure(value: float) -> str:
    digits = 3 if abs(value) < 1 else 2 if abs(value) < 100 else 0
    return f"{value:,.{digits}f}"
