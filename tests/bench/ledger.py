"""Cost of a chunk on each server, for information. docs/scaling.md uses the results to plan several machines.

- A job of 2,000 chunks with 10 rows each, all read from the source into new objects by real workers: CPU time by
  purpose, WAL, statements, bytes of rows and indexes, and Valkey commands. The idle system is measured too. Another job
  runs through a proxy that counts requests to object storage.
- Without workers: the time of a claim and of an end, of one chunk and of a batch, with many slots and with many
  datasets, and the deletion rate of old rows.

This process submits the job. The tables are empty before, so that their sizes result from this job, including the dead
row versions that claims and ends leave.
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
from tests.bench.alternation import log_progress
from tests.bench.report import Report
from tests.client import fault_proxy
from tests.integration.factories import result_of
from tests.waiting import let_pass, wait_until

CHUNKS, QUICK_CHUNKS = 2_000, 100
PROXIED = 200  # chunks through the proxy, which is slow
ALONE, QUICK_ALONE = 200, 20  # claims and ends, in sequence
CONNECTIONS = 100
OLD, QUICK_OLD = 100_000, 2_000  # chunks that are deleted
MANY_SLOTS, MANY_DATASETS = 1_000, 100
ROWS = 10
KEYS = 10
FIRST_DAY = date(2000, 1, 1)
SAMPLE_SECONDS = 0.2
# Time for work after a job's success: messages, closing connections, and wake-up messages without work.
SETTLE_SECONDS = 1.0
REST_SECONDS, QUICK_REST_SECONDS = 30, 3  # two runs of the reaper
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
        servers=site.server_pids(),
    )
    with site.running_workers(CHILDREN) as workers:
        scene.workers = workers
        costs_of_job(scene)  # warm up
        costs = [costs_of_job(scene) for _ in range(rounds)]
        idle = idle_costs(scene, QUICK_REST_SECONDS if quick else REST_SECONDS)
    requests = requests_of_job(scene, min(PROXIED, scene.chunks))
    # No worker runs from here on. The wake-up messages of these jobs stay in the queue.
    alone = times_alone(scene, rounds, QUICK_ALONE if quick else ALONE)
    connection_costs = [cpu_ms_of_connecting(scene, 10 if quick else CONNECTIONS) for _ in range(rounds)]
    rates = [cleanup_rates(scene, QUICK_OLD if quick else OLD) for _ in range(rounds)]
    # After thousands of statements, pg_stat_statements evicts entries together with their counts.
    assert sql.scalar("SELECT dealloc FROM pg_stat_statements_info") == 0
    report_costs(report, scene.chunks, costs, idle)
    report_requests(report, requests)
    report_alone(report, alone)
    report_connecting(report, connection_costs)
    report_rates(report, rates)


serial = count()


@dataclass(kw_only=True)
class Scene:
    """The measured system and its processes. `servers`: the process ID of each server, by name."""

    dataset: Dataset
    user: User
    chunks: int
    servers: Mapping[str, int]
    workers: Mapping[str, Process] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.backends = Backends(self.servers["Postgres"])

    def reset(self) -> None:
        """Delete all rows, and use new paths for the next files.

        The calls stay the same, because pg_stat_statements keeps only a few thousand statements.
        """
        growth.empty_tables()
        Dataset.objects.filter(pk=self.dataset.pk).update(base_path=f"ledger-{next(serial)}")
        self.dataset.refresh_from_db()

    def submit(self, chunks: int) -> Job:
        pairs = [
            planning.Pair(f"STORE-{n % KEYS:04}", FIRST_DAY + timedelta(days=n // KEYS)) for n in range(chunks)
        ]  # fmt: skip
        return site.submit(self.dataset, pairs, self.user)

    def counters(self) -> dict[str, float]:
        """Return cumulative counters and current sizes. The report shows their growth."""
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


# ---- Counters --------------------------------------------------------------------------------------------------------
OWN, MINE, SOURCE = "our database, workers", "our database, submission", "source"
REST = "rest of Postgres: WAL, checkpoints, autovacuum"


class Backends:
    """CPU seconds of Postgres backends, by the database in their process title.

    Backends are sampled continuously, because their CPU times are no longer readable after their exit. CPU time between
    the last sample and the exit is counted as REST.
    """

    def __init__(self, postmaster: int) -> None:
        self.postmaster = postmaster
        self.mine = int(sql.scalar("SELECT pg_backend_pid()"))
        self.titles = {
            title_of(settings.SLUICE.database_url.get_secret_value()): OWN,
            title_of(settings.SLUICE.source_url): SOURCE,
        }
        self.seen: dict[tuple[str, int], float] = {}

    def sample(self) -> None:
        for pid in process_tree.members(self.postmaster):
            if kind := self.kind_of(pid):
                self.seen[kind, pid] = max(site.process_cpu_seconds(pid), self.seen.get((kind, pid), 0.0))

    def kind_of(self, pid: int) -> str:
        """Return the kind of a backend, or "" for other processes and exited ones."""
        shown = process_tree.command_line(pid)
        kind = next((kind for title, kind in self.titles.items() if title in shown), "")
        return MINE if kind and pid == self.mine else kind

    def seconds(self) -> dict[str, float]:
        """Return the CPU seconds of each kind so far, including exited processes."""
        self.sample()
        by_kind = dict.fromkeys((OWN, MINE, SOURCE), 0.0)
        for (kind, _), seconds in self.seen.items():
            by_kind[kind] += seconds
        return {**by_kind, REST: site.cpu_seconds([self.postmaster]) - sum(by_kind.values())}


def title_of(url: str) -> str:
    """Return the part of backend process titles that names a database.

    Titles are like `postgres: cluster: user database host(port) …`.
    """
    parts = conninfo_to_dict(url)
    return f": {parts['user']} {parts['dbname']} "


# Recognizes statements of exports/worker/leases.py and exports/worker/transitions.py by their first words. Times are
# execution times in the server, without planning and commit.
COUNTED = """
SELECT pg_wal_lsn_diff(pg_current_wal_lsn(), '0/0') AS "WAL: bytes",
       images AS "WAL: full-page images",
       pg_snapshot_xmax(pg_current_snapshot())::text::bigint AS "transaction ids",
       statements AS "statements", claims AS "statements: claims", looks AS "statements: searches for reusable chunks",
       ends AS "statements: ends", claim_ms AS "ms in the server: claims", end_ms AS "ms in the server: ends"
FROM (
    SELECT sum(calls) AS statements, sum(wal_fpi) AS images,
           sum(calls) FILTER (WHERE is_claim) AS claims, sum(total_exec_time) FILTER (WHERE is_claim) AS claim_ms,
           sum(calls) FILTER (WHERE is_end) AS ends, sum(total_exec_time) FILTER (WHERE is_end) AS end_ms,
           sum(calls) FILTER (WHERE is_look) AS looks
    FROM (
        SELECT *, starts_with(query, 'WITH alternation AS') AS is_claim,
               starts_with(query, 'SELECT id FROM exports_chunk WHERE status') AS is_look,
               strpos(query, 'INSERT INTO exports_file') > 0 AS is_end
        FROM pg_stat_statements WHERE dbid = (SELECT oid FROM pg_database WHERE datname = current_database())
    ) ours
) counts
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
    """Return the cost of a job per chunk. The backend of this process is only counted during the submission."""
    scene.reset()
    before = scene.counters()
    job = scene.submit(scene.chunks)
    submitting = scene.backends.seconds()[MINE]
    wait_until(lambda: has_ended(scene, job), limit=site.LIMIT_SECONDS, every=SAMPLE_SECONDS)
    let_pass(SETTLE_SECONDS)
    after = scene.counters() | {f"CPU ms: {MINE}": 1000 * submitting}
    verify(job, scene.chunks)
    costs = {name: (after[name] - before[name]) / scene.chunks for name in before}
    log_progress(
        f"a job of {scene.chunks:,}: {costs[f'CPU ms: {OWN}']:.2f} ms of our database, {costs['WAL: bytes']:,.0f} bytes"
    )
    return costs


def has_ended(scene: Scene, job: Job) -> bool:
    scene.backends.sample()
    return Job.objects.filter(pk=job.pk, status__in=JOB_ENDED).exists()


def verify(job: Job, chunks: int) -> None:
    """Assert that each chunk was exported with one call, and has one event and one file."""
    job.refresh_from_db()
    assert (job.status, job.done, job.rows) == (JobStatus.SUCCESS, chunks, ROWS * chunks), job.error_code
    assert Chunk.objects.filter(source="live", attempts=1).count() == chunks, "chunks did not all succeed"
    assert Event.objects.filter(kind=Event.Kind.CHUNK).count() == File.objects.count() == chunks, "rows are missing"


def idle_costs(scene: Scene, seconds: float) -> dict[str, float]:
    """Return the cost per second of an idle system."""
    before = scene.counters()
    let_pass(seconds)
    after = scene.counters()
    return {name: (after[name] - before[name]) / seconds for name in before}


def requests_of_job(scene: Scene, chunks: int) -> dict[str, float]:
    """Return the requests to object storage per chunk, by method and by whether they are for a chunk's file."""
    with (
        fault_proxy.running(str(settings.SLUICE.s3_endpoint_url)) as proxy,
        site.running_workers(CHILDREN, variables={"S3_ENDPOINT_URL": proxy.url}),
    ):
        scene.reset()
        job = scene.submit(chunks)
        site.wait_for(job, every=SAMPLE_SECONDS)
        files = f"/{scene.dataset.base_path}/"
        seen = Counter(f"{each.method}, {'a file' if files in each.path else 'else'}" for each in proxy.seen)
    verify(job, chunks)
    return {name: number / chunks for name, number in sorted(seen.items(), reverse=True)}


# ---- Statements alone -----------------------------------------------------------------------------------------------


@dataclass(kw_only=True)
class StatementTimes:
    """Median times of each round, in milliseconds."""

    claims: list[float] = field(default_factory=list)
    ends: list[float] = field(default_factory=list)
    wake_ups: list[float] = field(default_factory=list)


@contextmanager
def many_slots() -> Iterator[None]:
    """Create many slots and occupy all but the last, so that each claim has to skip them."""
    more = settings.SLUICE.model_copy(update={"export_db_slots": MANY_SLOTS})
    Slot.objects.provide(count=MANY_SLOTS)
    occupied = Slot.objects.filter(dataset=None, number__lt=MANY_SLOTS)
    occupied.update(token=0, lease_until=timezone.now() + timedelta(days=1))
    with override_settings(SLUICE=more):
        yield
    occupied.update(token=None, lease_until=None)
    Slot.objects.filter(dataset=None, number__gt=settings.SLUICE.export_db_slots).delete()


@contextmanager
def many_datasets() -> Iterator[None]:
    others = [site.make_dataset(f"other-{n}", "ledger.rows_for").pk for n in range(MANY_DATASETS - 1)]
    yield
    Dataset.objects.filter(pk__in=others).delete()


def times_alone(scene: Scene, rounds: int, times: int) -> dict[str, StatementTimes]:
    """Measure claims, ends, and wake-up messages without other load, alternating between states."""
    one = f"{settings.SLUICE.export_db_slots} slots, 1 dataset"
    batch = f"{one}, batches of {leases.MAX_BATCH}"
    states: Mapping[str, Callable[[], AbstractContextManager[None]]] = {
        one: nullcontext,
        batch: nullcontext,
        f"{MANY_SLOTS:,} slots, one of them free": many_slots,
        f"{MANY_DATASETS} datasets": many_datasets,
    }
    measurements = {name: StatementTimes() for name in states}
    for _ in range(rounds):
        for name, state in states.items():
            scene.reset()
            with state():
                measure_alone(scene, measurements[name], times, size=leases.MAX_BATCH if name == batch else 1)
            log_progress(
                f"{name}: claim {measurements[name].claims[-1]:.2f} ms, end {measurements[name].ends[-1]:.2f} ms"
            )
    return measurements


def measure_alone(scene: Scene, measurements: StatementTimes, times: int, size: int) -> None:
    """Claim and finish batches like a worker, with prepared statements. Then send one wake-up message per slot."""
    left_to_others = 0 if size == 1 else size * settings.SLUICE.export_db_slots
    scene.submit(times * size + left_to_others)
    sizes = {} if size == 1 else {scene.dataset.name: size}
    own: Any = connection
    own.close()
    own.close_pool()  # including prepared statements, like a worker after each task
    claims, ends = [], []
    held: int | None = None
    for _ in range(times):
        began = time.perf_counter()
        batch = leases.claim_batch(backend="bench", sizes=sizes, held=held)
        claimed = time.perf_counter()
        assert len(batch) == size
        assert transitions.finish([(claim, result_of(claim)) for claim in batch])
        claims.append(1000 * (claimed - began))
        ends.append(1000 * (time.perf_counter() - claimed))
        held = batch[0].token
    transitions.free_slots([held] if held else [])
    began = time.perf_counter()
    wakeups.chunks(waiting=MANY_SLOTS)
    wake_ups = min(MANY_SLOTS, settings.SLUICE.export_db_slots)
    measurements.wake_ups.append(1000 * (time.perf_counter() - began) / wake_ups)
    measurements.claims.append(median(claims))
    measurements.ends.append(median(ends))


def cpu_ms_of_connecting(scene: Scene, times: int) -> float:
    """Return Postgres's CPU time for a new connection. Workers open one every few seconds."""
    url = settings.SLUICE.database_url.get_secret_value()
    before = site.cpu_seconds([scene.servers["Postgres"]])
    for _ in range(times):
        with psycopg.connect(url, autocommit=True) as one:
            one.execute("SELECT 1")
    let_pass(SETTLE_SECONDS)  # until the last backend has exited, so that Postgres's main process includes its CPU time
    return 1000 * (site.cpu_seconds([scene.servers["Postgres"]]) - before) / times


# ---- Cleanup ---------------------------------------------------------------------------------------------------------


def cleanup_rates(scene: Scene, chunks: int) -> dict[str, float]:
    """Return the rows per second that the sweep and the purge delete, for jobs of the maximum size."""
    scene.reset()
    growth.create_ended_chunks(scene.dataset, scene.user, chunks)
    ended_at = timezone.now() - timedelta(days=settings.SLUICE.export_job_retention_days + 1)
    Job.objects.update(finished_at=ended_at)
    for job in Job.objects.all():
        Event.objects.create(job=job, seq=job.event_seq, kind=Event.Kind.STATUS, status=JobStatus.SUCCESS)
    Event.objects.update(at=ended_at, told_at=ended_at)
    growth.run_statements("VACUUM ANALYZE exports_event")
    rates = {"events deleted": chunks / seconds_of(retention.delete_old_events)}
    assert not Event.objects.exists(), "events remain"
    rates["chunks purged"] = chunks / seconds_of(retention.purge_jobs)
    assert not Chunk.objects.exists(), "chunks remain"
    log_progress(", ".join(f"{name}: {speed:,.0f}/s" for name, speed in rates.items()))
    return rates


def seconds_of(verb: Callable[[], object]) -> float:
    began = time.perf_counter()
    verb()
    return time.perf_counter() - began


# ---- The report -----------------------------------------------------------------------------------------------------


def report_costs(report: Report, chunks: int, costs: Sequence[Mapping[str, float]], idle: Mapping[str, float]) -> None:
    rows = []
    for name in costs[0]:
        values = [each[name] for each in costs]
        report.series[f"ledger {name}"] = values
        at_rest = "" if name == f"CPU ms: {MINE}" or name.startswith("bytes of") else figure(idle[name])
        rows.append([name, figure(median(values)), f"{figure(min(values))} to {figure(max(values))}", at_rest])
    report.table(
        f"ledger: cost per chunk, median of {len(costs)} jobs of {chunks:,}",
        ["", "per chunk", "range", "idle, per second"],
        rows,
    )
    report.notes.append(
        "ledger: the bytes of tables and indexes are per row, including dead versions from its claim and its end. "
        "Statements are those in Sluice's database, including the benchmark's polling for the job's end."
    )


def report_requests(report: Report, requests: Mapping[str, float]) -> None:
    rows = [[name, f"{number:.3f}"] for name, number in requests.items()]
    report.table("ledger: requests to object storage", ["", "per chunk"], rows)


def report_alone(report: Report, alone: Mapping[str, StatementTimes]) -> None:
    rows = []
    for name, each in alone.items():
        report.series[f"ledger claim, {name}"] = each.claims
        report.series[f"ledger end, {name}"] = each.ends
        rows.append([name, *(f"{median(values):.2f}" for values in (each.claims, each.ends, each.wake_ups))])
    report.table(
        "ledger: ms per call, without other load",
        ["", "a claim", "an end", "a wake-up message, of one per slot"],
        rows,
    )


def report_connecting(report: Report, connection_costs: Sequence[float]) -> None:
    report.series["ledger CPU ms of a new connection"] = list(connection_costs)
    report.notes.append(f"ledger: a new connection takes {figure(median(connection_costs))} ms of Postgres's CPU time.")


def report_rates(report: Report, rates: Sequence[Mapping[str, float]]) -> None:
    rows = []
    for name in rates[0]:
        values = [each[name] for each in rates]
        report.series[f"ledger {name} a second"] = values
        rows.append([name, figure(median(values)), f"{figure(min(values))} to {figure(max(values))}"])
    report.table("ledger: deleted rows per second", ["", "rows", "range"], rows)


def figure(value: float) -> str:
    digits = 3 if abs(value) < 1 else 2 if abs(value) < 100 else 0
    return f"{value:,.{digits}f}"
