"""P4, P5, and P9: a year of flights as one job, with 1,095 chunks of 307 rows on average.

- P4: from POST to success, with every chunk read from the source, against a bare loop in as many processes that only
  runs COPY and put_object. The difference is the cost of reliability. Bound: 1.15 times the loop's time. The first
  chunk must be done within 0.3 s, and a zip of the files within 1.0 s after the last chunk. These seconds depend on the
  machine. For information, the loop is also measured with Sluice's claim and end of each chunk. It is the lower limit
  for any program with these two statements.
- P9: the same job with all files reused, against P4. Bound: 0.4 times its time.
- P5: P4 against 16 clients that read the same rows from a paginated endpoint. Bounds: 0.25 times their time, 1.15 times
  the bare loop's time in the source, and no more connections to the source than slots. (One COPY of all rows already
  takes a quarter of the pages' time in the source.)
"""

import csv
import hashlib
import http.client
import io
import json
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field
from datetime import date
from http import HTTPStatus
from statistics import median
from typing import Any, NamedTuple

import psycopg
from django.conf import settings

from config.dev.stack import flights, processes
from config.dev.stack.ports import LOOPBACK
from config.dev.stack.postgres import program
from config.platform import storage
from exports.core import planning
from exports.core.states import JOB_ENDED, JobStatus
from exports.models import Chunk, Job
from tests.bench import site
from tests.bench.alternation import alternate
from tests.bench.meter import CLIENTS, POSTGRES, WEB, Lap, Meter, groups, own_url
from tests.bench.report import Report
from tests.bench.status_quo import readers
from tests.bench.status_quo.views import COLUMNS
from tests.waiting import wait_until

DATASET = "flights"
ORIGINS = ["EWR", "JFK", "LGA"]
FIRST, LAST, QUICK_LAST = date(2013, 1, 1), date(2013, 12, 31), date(2013, 1, 10)
PARALLEL = 2
OTHER_WORKERS = {"bundles": 1, "webhooks": 1, "maintenance": 1}
# More workers than slots, so that slots limit the connections to the source.
CROWD, FEW_SLOTS = 4, 2

SAFE = "bare loop that claims and ends"
SLUICE, REUSED, BARE, PAGES, ONCE = "Sluice", "Sluice, all reused", "bare loop", "16 clients, pages", "one COPY of all"
PAGES_ROUNDS = 3  # few, because reading pages takes long
STATUS_QUO = {"DJANGO_SETTINGS_MODULE": "tests.bench.status_quo.settings"}
EMPTY = [planning.Pair("EWR", day) for day in planning.days(date(2012, 1, 1), date(2012, 2, 29))]

POLL_SECONDS = 0.1  # short enough for a job of seconds; at 0.02, polling took 3% of all CPU time
WATCH_SECONDS = 0.005
COMPARE_THREADS = 4
EVERY = 10  # every tenth chunk is compared row by row with its pages


@dataclass(frozen=True, kw_only=True)
class YearOfFlights:
    """The data and the participants of the benchmark."""

    last: date
    pairs: list[planning.Pair]
    rows: int
    token: str
    web: processes.Web
    first_chunks: list[float] = field(default_factory=list)  # seconds from POST to the end of the first chunk


def run(report: Report, *, rounds: int, quick: bool) -> None:
    rounds = 1 if quick else rounds
    user = site.prepare()
    flights.load(settings.SLUICE.source_url)
    site.in_source("VACUUM ANALYZE demo.flights")  # otherwise, the first reader would set a million hint bits
    site.make_dataset(DATASET, flights.FUNCTION)
    last = QUICK_LAST if quick else LAST
    pairs = list(planning.expand(ORIGINS, FIRST, last))
    with site.serving() as web, psycopg.connect(own_url(), autocommit=True) as connection_to_sluice:
        year = YearOfFlights(last=last, pairs=pairs, rows=rows_until(last), token=site.token_of(user), web=web)
        with site.running_workers({"exports": PARALLEL, **OTHER_WORKERS}) as workers:
            meter = Meter(connection_to_sluice, groups(workers, web))
            warm_up(year, meter)
            measurements = measured(year, meter, rounds)
            zips = [zip_seconds(year) for _ in range(rounds)]
            peaks = {
                (SLUICE, f"{PARALLEL} children", settings.SLUICE.export_db_slots): watched(
                    lambda: export(year, reuse="never")
                ),
                (PAGES, f"a pool of {settings.SLUICE.database_pool_size}", 0): peak_of_pages(year),
            }
        with site.running_workers({"exports": CROWD, **OTHER_WORKERS}, variables={"EXPORT_DB_SLOTS": str(FEW_SLOTS)}):
            crowd = watched(lambda: export(year, reuse="never"))
            peaks[SLUICE, f"{CROWD} children", FEW_SLOTS] = crowd
        least = alternate({BARE: lambda: bare_loop(year, meter), SAFE: lambda: safe_loop(year, meter)}, rounds=rounds)
        meter.require_all_statements()
    report_times(report, measurements, least, len(pairs))
    report_seconds(report, year, zips)
    report_costs(report, meter.laps, len(pairs))
    report_databases(report, meter.laps)
    report_peaks(report, peaks)
    what = f"maximum concurrent connections to the source, {CROWD} children for {FEW_SLOTS} slots"
    report.bound("P5", what, crowd.connections, FEW_SLOTS, unit="connections")


def rows_until(last: date) -> int:
    with psycopg.connect(settings.SLUICE.source_url) as connection:
        row = connection.execute("SELECT count(*) FROM demo.flights WHERE flight_date <= %s", [last]).fetchone()
    assert row
    return int(row[0])


def warm_up(year: YearOfFlights, meter: Meter) -> None:
    """Fill caches, create the objects that later runs replace, and verify that all alternatives return equal rows."""
    bare_loop(year, meter)
    fresh(year, meter)
    reused(year, meter)
    compare(year)
    meter.laps.clear()
    year.first_chunks.clear()


def measured(year: YearOfFlights, meter: Meter, rounds: int) -> dict[str, list[float]]:
    alternatives = {
        BARE: lambda: bare_loop(year, meter),
        SLUICE: lambda: fresh(year, meter),
        REUSED: lambda: reused(year, meter),
    }
    with_pages = {**alternatives, PAGES: lambda: read_pages(year, meter), ONCE: lambda: copy_once(year, meter)}
    first = alternate(with_pages, rounds=min(rounds, PAGES_ROUNDS), warm_up=False)
    rest = alternate(alternatives, rounds=max(rounds - PAGES_ROUNDS, 0), warm_up=False)
    return {name: times + rest.get(name, []) for name, times in first.items()}


# ---- Alternatives --------------------------------------------------------------------------------------------------


def fresh(year: YearOfFlights, meter: Meter) -> float:
    with meter.lap(SLUICE) as lap, lap.timed():
        job = export(year, reuse="never")
    assert job.reused == 0
    first_end = job.chunks.earliest("finished_at").finished_at
    assert first_end
    year.first_chunks.append((first_end - job.created_at).total_seconds())
    return lap.seconds


def reused(year: YearOfFlights, meter: Meter) -> float:
    with meter.lap(REUSED) as lap, lap.timed():
        job = export(year, reuse="if-present")
    assert job.reused == job.total
    return lap.seconds


def zip_seconds(year: YearOfFlights) -> float:
    """Return the seconds from the end of the last chunk to success, for a delivery as zip."""
    job = export(year, reuse="if-present", delivery="zip")
    last_end = job.chunks.latest("finished_at").finished_at
    assert job.finished_at
    assert last_end
    return (job.finished_at - last_end).total_seconds()


def export(year: YearOfFlights, *, reuse: str, delivery: str = "manifest") -> Job:
    """Run an export from the POST to success. The default delivery is a manifest, because a zip is extra work."""
    job = submit(year, reuse, delivery)
    unfinished = Job.objects.filter(pk=job.pk).exclude(status__in=JOB_ENDED)
    wait_until(lambda: not unfinished.exists(), limit=site.LIMIT_SECONDS, every=POLL_SECONDS)
    job.refresh_from_db()
    assert (job.status, job.total, job.rows) == (JobStatus.SUCCESS, len(year.pairs), year.rows), job.error_code
    return job


def submit(year: YearOfFlights, reuse: str, delivery: str = "manifest") -> Job:
    wanted = {
        "dataset": DATASET,
        "filters": {"keys": ORIGINS, "dateFrom": FIRST.isoformat(), "dateTo": year.last.isoformat()},
        "delivery": delivery,
        "reuse": reuse,
    }
    headers = {"Authorization": f"Bearer {year.token}", "Content-Type": "application/json"}
    with closing(http.client.HTTPConnection(LOOPBACK, year.web.port, timeout=60)) as connection:
        connection.request("POST", "/exports", json.dumps(wanted), headers)
        response = connection.getresponse()
        accepted = json.loads(response.read())
    assert response.status == HTTPStatus.ACCEPTED, accepted
    return Job.objects.get(pk=accepted["jobId"])


def bare_loop(year: YearOfFlights, meter: Meter) -> float:
    """Run the bare loop. Its processes start before the measurement, so that their start is not counted."""
    with meter.lap(BARE) as lap, ExitStack() as stack:
        run_loops(lap, [stack.enter_context(started("bare_loop", year.pairs[n::PARALLEL])) for n in range(PARALLEL)])
    return lap.seconds


def safe_loop(year: YearOfFlights, meter: Meter) -> float:
    """Run a submitted job with the loops as its workers."""
    job = submit(year, "never")
    with meter.lap(SAFE) as lap, ExitStack() as stack:
        run_loops(lap, [stack.enter_context(started("safe_loop", [])) for _ in range(PARALLEL)])
    job.refresh_from_db()
    assert (job.done, job.rows) == (len(year.pairs), year.rows)
    return lap.seconds


def run_loops(lap: Lap, loops: Sequence[subprocess.Popen[str]]) -> None:
    for loop in loops:
        expect(loop, "ready")
    with lap.timed({CLIENTS: [loop.pid for loop in loops]}):
        for loop in loops:
            send_line(loop, "go")
        for loop in loops:
            expect(loop, "done")


def started(name: str, pairs: Sequence[planning.Pair]) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", f"tests.bench.status_quo.{name}"]
    loop = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    send_line(loop, json.dumps([(pair.key, pair.effective_date.isoformat(), bare_path(pair)) for pair in pairs]))
    return loop


def send_line(loop: subprocess.Popen[str], line: str) -> None:
    assert loop.stdin
    loop.stdin.write(f"{line}\n")
    loop.stdin.flush()


def expect(loop: subprocess.Popen[str], word: str) -> None:
    assert loop.stdout
    line_read = loop.stdout.readline().strip()
    assert line_read == word, line_read


def read_pages(year: YearOfFlights, meter: Meter) -> float:
    with meter.lap(PAGES) as lap, serving_pages() as webs:
        ports = [web.port for web in webs]
        readers.read(ports, year.token, EMPTY)  # warm-up, because the first requests of a process are slow
        with lap.timed({WEB: [web.pid for web in webs]}):
            rows = readers.read(ports, year.token, year.pairs)
    assert rows == year.rows
    return lap.seconds


@contextmanager
def serving_pages() -> Iterator[list[processes.Web]]:
    """Serve pages with as many web processes as there are export workers."""
    with ExitStack() as stack:
        yield [stack.enter_context(site.serving(variables=STATUS_QUO)) for _ in range(PARALLEL)]


def copy_once(year: YearOfFlights, meter: Meter) -> float:
    """Measure one COPY of all rows, which is the lower limit for reading them."""
    query = f"SELECT {', '.join(COLUMNS)} FROM demo.flights WHERE flight_date <= '{year.last}'"
    command = [str(program("psql")), settings.SLUICE.source_url, "-qXc", f"COPY ({query}) TO STDOUT (FORMAT csv)"]
    with meter.lap(ONCE) as lap, lap.timed():
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return lap.seconds


# ---- Equal results --------------------------------------------------------------------------------------------------


def compare(year: YearOfFlights) -> None:
    """Assert that every file has the hash that Sluice recorded, including the bare loop's files.

    A sample of the files is compared with the rows of the pages.
    """
    job = Job.objects.filter(reuse="never").latest("created_at")
    recorded = [chunk.sha256 for chunk in Chunk.objects.filter(job=job).in_request_order()]
    assert hashes(own_path(pair) for pair in year.pairs) == recorded
    assert hashes(bare_path(pair) for pair in year.pairs) == recorded
    with site.serving(variables=STATUS_QUO) as web, readers.connected(web.port) as connection:
        for pair in year.pairs[::EVERY]:
            pages = readers.pages(connection, year.token, pair)
            assert [as_text(row) for page in pages for row in page] == rows_of_file(own_path(pair)), pair


def own_path(pair: planning.Pair) -> str:
    return planning.object_key(DATASET, pair, planning.Shape())


def bare_path(pair: planning.Pair) -> str:
    return planning.object_key("bare-loop", pair, planning.Shape())


def hashes(paths: Iterator[str]) -> list[str]:
    with ThreadPoolExecutor(COMPARE_THREADS) as threads:
        return [hashlib.sha256(content).hexdigest() for content in threads.map(content_of, paths)]


def content_of(path: str) -> bytes:
    return b"".join(storage.read(path))


def rows_of_file(path: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(content_of(path).decode(), newline="")))


def as_text(row: Mapping[str, Any]) -> dict[str, str]:
    """Convert a row of JSON to the text format of CSV."""
    hour = row["time_hour"].replace("T", " ").replace("Z", "+00")
    return {name: "" if value is None else str(value) for name, value in {**row, "time_hour": hour}.items()}


# ---- Connections to the source --------------------------------------------------------------------------------------


class Peak(NamedTuple):
    connections: int = 0
    calls: int = 0  # connections that ran a statement


ACTIVITY = """
SELECT count(*), count(*) FILTER (WHERE state = 'active') FROM pg_stat_activity
WHERE datname = current_database() AND backend_type = 'client backend' AND pid <> pg_backend_pid()
"""


def peak_of_pages(year: YearOfFlights) -> Peak:
    with site.serving(variables=STATUS_QUO) as web:
        return watched(lambda: readers.read([web.port], year.token, year.pairs[::EVERY]))


def watched(run: Callable[[], object]) -> Peak:
    """Return the maximum concurrent connections to the source. Not timed, because sampling takes some time."""
    over = threading.Event()
    with ThreadPoolExecutor(1) as threads:
        peak = threads.submit(watch, over)
        try:
            run()
        finally:
            over.set()
        return peak.result()


def watch(over: threading.Event) -> Peak:
    peak = Peak()
    with psycopg.connect(settings.SLUICE.source_url, autocommit=True) as connection:
        while not over.wait(WATCH_SECONDS):
            connections, calls = connection.execute(ACTIVITY).fetchone() or peak
            peak = Peak(max(peak.connections, connections), max(peak.calls, calls))
    return peak


# ---- Report --------------------------------------------------------------------------------------------------------


def report_times(
    report: Report, measurements: Mapping[str, list[float]], least: Mapping[str, list[float]], chunks: int
) -> None:
    report.times("P4 and P9", {name: measurements[name] for name in (BARE, SLUICE, REUSED)})
    in_same_rounds = measurements[SLUICE][: len(measurements[PAGES])]
    report.times("P4, without workers", least)
    report.times("P5", {PAGES: measurements[PAGES], SLUICE: in_same_rounds, ONCE: measurements[ONCE]})
    safety = ratio(measurements[SLUICE], measurements[BARE])
    report.bound("P4", f"{chunks:,} chunks from POST to success, relative to the bare loop", safety, 1.15)
    report.bound(
        "P4", "lower limit of a reliable loop: a bare loop with claims and ends", ratio(least[SAFE], least[BARE])
    )
    report.bound(
        "P9", "the same with all files reused, relative to P4", ratio(measurements[REUSED], measurements[SLUICE]), 0.4
    )
    of_pages = ratio(in_same_rounds, measurements[PAGES])
    report.bound("P5", "P4, relative to 16 clients that read pages", of_pages, 0.25)


def report_seconds(report: Report, year: YearOfFlights, zips: list[float]) -> None:
    report.bound("P4", "from POST to the end of the first chunk", median(year.first_chunks), 0.3, unit="s")
    what = f"{len(year.pairs):,} files into a zip, from the end of the last chunk to success"
    report.bound("P4", what, median(zips), 1.0, unit="s")


def ratio(one: Sequence[float], other: Sequence[float]) -> float:
    return median(one) / median(other)


def report_costs(report: Report, laps: Mapping[str, list[Lap]], chunks: int) -> None:
    alternatives = (BARE, SLUICE, REUSED, PAGES)

    def row(name: str, value: Callable[[Lap], float]) -> list[str]:
        return [name, *(f"{middle(laps[alternative], value):.2f}" for alternative in alternatives)]

    report.table(
        f"P4, P9, P5: CPU seconds for {chunks:,} chunks",
        ["", *alternatives],
        [
            *(row(group, cpu_of(group)) for group in laps[SLUICE][0].cpu),
            row("total", lambda lap: sum(lap.cpu.values())),
            row("chunks per second", lambda lap: chunks / lap.seconds),
        ],
    )


def report_databases(report: Report, laps: Mapping[str, list[Lap]]) -> None:
    columns: dict[str, Callable[[Lap], float]] = {
        "statements in the source": lambda lap: lap.source.statements,
        "execution seconds": lambda lap: lap.source.seconds,
        "seconds active": lambda lap: lap.source.active,
        "seconds in Sluice's database": lambda lap: lap.own.seconds,
        "CPU seconds of Postgres": lambda lap: lap.cpu[POSTGRES],
    }
    rows = [
        [
            alternative,
            *(
                f"{middle(laps[alternative], value):,.{0 if 'statements' in name else 2}f}"
                for name, value in columns.items()
            ),
        ]
        for alternative in (PAGES, SLUICE, BARE, ONCE)
    ]
    report.table("P5: the databases", ["", *columns], rows)
    report.notes.append(
        "P5: seconds of statements are pg_stat_statements' total_exec_time, which holds the planning of a COPY and not "
        "that of a SELECT. Seconds active are pg_stat_database's active_time, which holds all of both."
    )
    pages = laps[PAGES]

    def share(alternative: str, value: Callable[[Lap], float]) -> float:
        return middle(laps[alternative][: len(pages)], value) / middle(pages, value)

    of_loop = middle(laps[SLUICE], lambda lap: lap.source.seconds) / middle(laps[BARE], lambda lap: lap.source.seconds)
    report.bound("P5", "source time of P4, relative to the bare loop", of_loop, 1.15)
    report.bound("P5", "source time of P4, relative to the pages", share(SLUICE, lambda lap: lap.source.seconds))
    report.bound("P5", "lower limit: one COPY of all rows", share(ONCE, lambda lap: lap.source.seconds))
    report.bound("P5", "source time, including planning", share(SLUICE, lambda lap: lap.source.active))
    both = share(SLUICE, lambda lap: lap.source.seconds + lap.own.seconds)
    report.bound("P5", "source time plus Sluice's database time", both)


def cpu_of(group: str) -> Callable[[Lap], float]:
    return lambda lap: lap.cpu[group]


def middle(laps: Sequence[Lap], value: Callable[[Lap], float]) -> float:
    return median(map(value, laps))


def report_peaks(report: Report, peaks: Mapping[tuple[str, str, int], Peak]) -> None:
    rows = [
        [alternative, processes, slots or "", peak.connections, peak.calls]
        for (alternative, processes, slots), peak in peaks.items()
    ]
    report.table(
        "P5: maximum concurrent connections to the source", ["", "processes", "slots", "connections", "busy"], rows
    )
