"""Throughput by number of export processes on several machines. It has no bounds: its purpose is to find bottlenecks.

The workers run in three network namespaces, with one Postgres, Valkey, and S3. Calls of 0.2 s are the use case for many
machines: the source is slow, and each process adds throughput. With cheap calls, the limit is the CPU of this machine,
which runs both workers and servers.
"""

import os
import time
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from datetime import date, timedelta
from itertools import count
from pathlib import Path
from statistics import median
from typing import NamedTuple

import psycopg
from django.conf import settings
from django.contrib.auth.models import User
from django.test import override_settings

from config.dev.stack import processes
from config.dev.stack.ports import LOOPBACK
from config.dev.stack.process import Process
from config.platform import storage
from exports.core import planning
from exports.core.states import ChunkStatus
from exports.jobs import actions
from exports.models import Chunk, Dataset, Job, Slot
from tests.bench import scaling_machines, site
from tests.bench.alternation import log_progress
from tests.bench.report import Curve, Report
from tests.bench.scaling_machines import Machine
from tests.waiting import wait_until

STEPS, QUICK_STEPS = (1, 2, 4, 8, 16), (1, 2)  # processes that export
MOST_ROUNDS = 2
SECONDS, QUICK_SECONDS = 10, 3  # duration of counting chunks
SPARE_SECONDS = 5  # duration of additional work, so that the job does not end too early
WARM_UP_CHUNKS = 5  # chunks per process before counting starts
LIMIT_SECONDS = 60
FIRST_DAY = date(2000, 1, 1)
# Enough slots for all processes.
SLOTS = max(STEPS)
VARIABLES = {"EXPORT_DB_SLOTS": str(SLOTS)}
PLOT, X, Y = "Throughput by workers", "processes that export", "chunks/s"
FUNCTIONS = """
CREATE SCHEMA scaling;
CREATE FUNCTION scaling.slow(key text, effective_date date) RETURNS TABLE (k text, n int, d date)
LANGUAGE sql VOLATILE AS 'SELECT pg_sleep(0.2); SELECT key, n, effective_date FROM generate_series(1, 100) n';
CREATE FUNCTION scaling.cheap(key text, effective_date date) RETURNS TABLE (k text, n int, d date)
LANGUAGE sql STABLE AS 'SELECT key, n, effective_date FROM generate_series(1, 10) n'
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """A kind of call. `rate`: maximum chunks/s of one process. `most`: maximum number of processes to measure."""

    name: str
    title: str
    rows: int
    rate: int
    most: int


SLOW = Load(name="slow", title="calls of 0.2 s", rows=100, rate=5, most=16)
CHEAP = Load(name="cheap", title="cheap calls", rows=10, rate=800, most=4)
LOADS = (SLOW, CHEAP)


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """Throughput with a number of processes. `cores`: average number of busy cores by purpose."""

    rate: float
    addresses: int
    cores: dict[str, float]


class Sample(NamedTuple):
    at: float
    done: int
    cpu: dict[str, float]


@dataclass(slots=True, kw_only=True)
class Bench:
    """Shared state of all measurements. `servers`: process IDs by name. `points`: by load and number of processes."""

    user: User
    seconds: int
    servers: dict[str, int]
    points: dict[tuple[Load, int], list[Point]] = field(default_factory=dict)


def run(report: Report, *, rounds: int, quick: bool) -> None:
    steps, seconds = (QUICK_STEPS, QUICK_SECONDS) if quick else (STEPS, SECONDS)
    # A submission wakes as many processes as there are slots.
    with (
        override_settings(SLUICE=settings.SLUICE.model_copy(update={"export_db_slots": SLOTS})),
        ExitStack() as stack,
    ):
        bench = Bench(user=site.prepare(slots=SLOTS), seconds=seconds, servers=site.server_pids())
        site.in_source(FUNCTIONS)
        for load in LOADS:
            site.make_dataset(load.name, f"scaling.{load.name}")
        machines = machines_for(report, bench, stack)
        stack.enter_context(site.running_workers({"bundles": 1, "maintenance": 1}, variables=VARIABLES))
        with running_export_workers(machines, len(machines)):
            for load in LOADS:
                verify(load, bench.user)
        for number in range(1 if quick else min(rounds, MOST_ROUNDS)):
            log_progress(f"round {number + 1}")
            run_round(bench, machines, steps)
    for load in LOADS:
        report_results(report, load, {each: points for (of, each), points in bench.points.items() if of == load})


def machines_for(report: Report, bench: Bench, stack: ExitStack) -> list[Machine]:
    """Return simulated machines, which exist until the stack is closed, or this machine if they are unavailable."""
    ports = site.server_ports().values()
    try:
        machines = stack.enter_context(
            scaling_machines.running_machines(ports=ports, postmaster=bench.servers["Postgres"])
        )
    except scaling_machines.Unavailable as error:
        report.notes.append(f"Scaling: without network namespaces ({error}). The workers ran on this machine itself.")
        return [Machine()] * scaling_machines.COUNT
    report.notes.append(
        f"Scaling: the workers ran in {len(machines)} network namespaces, each with an address of its own, connected "
        f"to this machine by veth pairs. A route leads to {LOOPBACK}, where the servers listen (route_localnet): there "
        "is no relay, and no translation of addresses."
    )
    return machines


def run_round(bench: Bench, machines: list[Machine], steps: Iterable[int]) -> None:
    for children in steps:
        with running_export_workers(machines, children) as workers:
            for load in LOADS:
                if children <= load.most:
                    point = measured(bench, load, workers, children)
                    bench.points.setdefault((load, children), []).append(point)
                    log_progress(f"{load.title}, {children} processes: {point.rate:.1f} chunks/s")


# ---- Workers --------------------------------------------------------------------------------------------------------


@contextmanager
def running_export_workers(machines: list[Machine], children: int) -> Iterator[list[Process]]:
    """Run workers with this number of processes, spread over the machines."""
    with site.folder() as root, ExitStack() as stack:
        workers = []
        for number, (machine, share) in enumerate(zip(machines, spread(children, len(machines)), strict=True)):
            if share:
                worker = export_worker(machine, f"exports-{number}", share, root)
                stack.callback(worker.stop)
                worker.start()
                workers.append((worker, share))
        for worker, share in workers:
            site.wait_for_children(worker, share)
        yield [worker for worker, _ in workers]
        for worker, _ in workers:
            worker.send_stop_signal()


def export_worker(machine: Machine, name: str, children: int, root: Path) -> Process:
    worker = processes.worker(
        name, queues="exports", concurrency=children, root=root,
        environment=site.default_environment(VARIABLES),
    )  # fmt: skip
    worker.command = machine.command(worker.command)
    return worker


def spread(children: int, machines: int) -> list[int]:
    each, more = divmod(children, machines)
    return [each + (number < more) for number in range(machines)]


# ---- Measuring ------------------------------------------------------------------------------------------------------

serial = count()


def pairs(load: Load, chunks: int) -> list[planning.Pair]:
    """Return pairs that no job has used, so that each creates a new object."""
    key = f"{load.name}{next(serial)}"
    return [planning.Pair(key, FIRST_DAY + timedelta(days=day)) for day in range(chunks)]


def verify(load: Load, user: User) -> None:
    """Assert that files from all machines equal the output of COPY."""
    dataset, some = Dataset.objects.get(name=load.name), pairs(load, 2 * scaling_machines.COUNT)
    site.wait_for(site.submit(dataset, some, user), limit=LIMIT_SECONDS)
    with psycopg.connect(settings.SLUICE.source_url) as source:
        for pair in some:
            call = f"SELECT * FROM {dataset.function}('{pair.key}', '{pair.effective_date}')"
            with source.cursor().copy(f"COPY ({call}) TO STDOUT (FORMAT csv, HEADER)".encode()) as copy:
                expected = b"".join(copy)
            stored = b"".join(storage.read(planning.object_key(dataset.base_path, pair, planning.Shape())))
            assert stored == expected, f"the file of {pair} differs"


def measured(bench: Bench, load: Load, workers: list[Process], children: int) -> Point:
    """Count the chunks of a large job for some seconds, then cancel the job."""
    chunks = load.rate * children * (bench.seconds + SPARE_SECONDS) + WARM_UP_CHUNKS * children
    job = site.submit(Dataset.objects.get(name=load.name), pairs(load, chunks), bench.user)
    wait_until(lambda: done(job) >= WARM_UP_CHUNKS * children, limit=LIMIT_SECONDS)
    before = sample(bench, job, workers)
    time.sleep(bench.seconds)
    after = sample(bench, job, workers)
    seen = addresses()
    assert Job.objects.active().filter(pk=job.pk).exists(), f"the job was too small for {load.title}"
    end(job, load)
    seconds = after.at - before.at
    return Point(
        rate=(after.done - before.done) / seconds,
        addresses=seen,
        cores={name: (spent - before.cpu[name]) / seconds for name, spent in after.cpu.items()},
    )


def done(job: Job) -> int:
    return Job.objects.values_list("done", flat=True).get(pk=job.pk)


def sample(bench: Bench, job: Job, workers: list[Process]) -> Sample:
    finished, at = done(job), time.perf_counter()
    cpu = {
        "workers": site.cpu_seconds([worker.pid for worker in workers]),
        **{name: site.cpu_seconds([pid]) for name, pid in bench.servers.items()},
        "all": busy_seconds(),
    }
    return Sample(at, finished, cpu)


def busy_seconds() -> float:
    """Return the total busy seconds of this machine's cores, in user and kernel mode."""
    user, nice, system, _idle, _waiting, interrupts, soft = map(
        int, Path("/proc/stat").read_text().splitlines()[0].split()[1:8]
    )
    return (user + nice + system + interrupts + soft) / site.CLOCK_TICKS


def addresses() -> int:
    """Return the number of client addresses with current calls."""
    with psycopg.connect(settings.SLUICE.source_url) as source:
        row = source.execute(
            "SELECT count(DISTINCT client_addr) FROM pg_stat_activity WHERE application_name LIKE 'sluice-export-%'"
        ).fetchone()
    assert row is not None
    return int(row[0])


def end(job: Job, load: Load) -> None:
    """Cancel the job, wait until no worker holds a slot, and verify the finished chunks."""
    actions.cancel(job)
    wait_until(lambda: not Slot.objects.held().exists(), limit=LIMIT_SECONDS)
    job.refresh_from_db()
    assert job.failed == 0, "chunks failed"
    finished = Chunk.objects.filter(job=job, status=ChunkStatus.DONE)
    assert not finished.exclude(rows=load.rows, attempts=1).exists(), "chunks are wrong or were repeated"


# ---- Report --------------------------------------------------------------------------------------------------------


def report_results(report: Report, load: Load, points: dict[int, list[Point]]) -> None:
    rates = {children: median(point.rate for point in some) for children, some in points.items()}
    fewest, most = min(rates), max(rates)
    alone = rates[fewest] / fewest
    for children, some in points.items():
        report.series[f"scaling {load.title}, {children} processes"] = [point.rate for point in some]
    groups = list(points[fewest][0].cores)
    report.table(
        f"Scaling, {load.title}: chunks/s by export processes, median of {len(points[fewest])}, and cores busy "
        f"of {os.cpu_count()}",
        ["processes", "addresses", "chunks/s", "range", "speed-up", *groups],
        [[children, *line(points[children], alone), *cores(points[children], groups)] for children in rates],
    )
    report.bound("scaling", f"{load.title}: speed-up of {most} processes over {fewest}", rates[most] / rates[fewest])
    x, y = [float(children) for children in rates], list(rates.values())
    report.curves.append(Curve(PLOT, load.title, x, y, X, Y))
    if load is SLOW:
        report.curves.append(Curve(PLOT, f"{load.title}, ideal", x, [alone * each for each in x], X, Y))


def line(points: list[Point], alone: float) -> list[str]:
    rates = [point.rate for point in points]
    middle = median(rates)
    spread_of = f"{min(rates):.1f} to {max(rates):.1f}"
    return [str(max(point.addresses for point in points)), f"{middle:.1f}", spread_of, f"{middle / alone:.2f}"]


def cores(points: list[Point], groups: list[str]) -> list[str]:
    return [f"{median(point.cores[name] for point in points):.2f}" for name in groups]
