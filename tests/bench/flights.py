"""P4, P5 and P9: a year of flights as one job, 1,095 slices of 307 rows on average.

P4: from POST to success, every slice read anew, against a bare loop in as many processes that only runs COPY and
put_object for each: what it costs that nothing is lost. Bar: 1.6 of its time. What such a loop takes with the claim
and the end of each slice, and nothing else of Sluice, is told: nobody who writes these two can take less.
P9: the same job when all files are there, against P4. Bar: 0.4 of its time.
P5: P4 against 16 clients that read the same rows from an endpoint with pages. Bars: 0.33 of their time, 0.25 of the
time that they have the source work, and no more connections to the source than slots.
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
from dataclasses import dataclass
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
from tests.bench.meter import CLIENTS, POSTGRES, WEB, Lap, Meter, groups, own_url
from tests.bench.report import Report
from tests.bench.status_quo import readers
from tests.bench.status_quo.views import COLUMNS
from tests.bench.turns import in_turn
from tests.waiting import wait_until

DATASET = "flights"
ORIGINS = ["EWR", "JFK", "LGA"]
FIRST, LAST, QUICK_LAST = date(2013, 1, 1), date(2013, 12, 31), date(2013, 1, 10)
PARALLEL = 2
OTHERS = {"bundles": 1, "webhooks": 1, "maintenance": 1}
# To see that it is slots that bound the connections to the source, and not workers.
CROWD, FEW_SLOTS = 4, 2

SAFE = "bare loop that claims and ends"
SLUICE, REUSED, BARE, PAGES, ONCE = "Sluice", "Sluice, all reused", "bare loop", "16 clients, pages", "one COPY of all"
PAGES_ROUNDS = 3  # it takes long
STATUS_QUO = {"DJANGO_SETTINGS_MODULE": "tests.bench.status_quo.settings"}
NOTHING_THERE = [planning.Pair("EWR", day) for day in planning.days(date(2012, 1, 1), date(2012, 2, 29))]

POLL_SECONDS = 0.1  # often enough for a job of seconds; at 0.02 its own CPU time was 3% of all
WATCH_SECONDS = 0.005
COMPARED_BY = 4  # threads
EVERY = 10  # slice is compared row by row with its pages


@dataclass(frozen=True, kw_only=True)
class Year:
    """What is read, and who asks whom for it."""

    last: date
    pairs: list[planning.Pair]
    rows: int
    token: str
    web: processes.Web


def run(report: Report, *, rounds: int, quick: bool) -> None:
    user = site.prepare()
    flights.load(settings.SLUICE.source_url)
    site.in_source("VACUUM ANALYZE demo.flights")  # or the first reader would set a million hint bits
    site.make_dataset(DATASET, flights.FUNCTION)
    last = QUICK_LAST if quick else LAST
    pairs = list(planning.expand(ORIGINS, FIRST, last))
    with site.serving() as web, psycopg.connect(own_url(), autocommit=True) as asking:
        year = Year(last=last, pairs=pairs, rows=rows_until(last), token=site.token_of(user), web=web)
        with site.working({"exports": PARALLEL, **OTHERS}) as workers:
            meter = Meter(asking, groups(workers, web))
            warm_up(year, meter)
            taken = measured(year, meter, 1 if quick else rounds)
            peaks = {
                (SLUICE, f"{PARALLEL} children", settings.SLUICE.export_db_slots): watched(
                    lambda: export(year, reuse="never")
                ),
                (PAGES, f"a pool of {settings.SLUICE.database_pool_size}", 0): peak_of_pages(year),
            }
        with site.working({"exports": CROWD, **OTHERS}, variables={"EXPORT_DB_SLOTS": str(FEW_SLOTS)}):
            crowd = watched(lambda: export(year, reuse="never"))
            peaks[SLUICE, f"{CROWD} children", FEW_SLOTS] = crowd
        least = in_turn(
            {BARE: lambda: bare_loop(year, meter), SAFE: lambda: safe_loop(year, meter)}, rounds=1 if quick else rounds
        )
        meter.insist_on_all_statements()
    tell_times(report, taken, least, len(pairs))
    tell_costs(report, meter.laps, len(pairs))
    tell_databases(report, meter.laps)
    tell_peaks(report, peaks)
    what = f"most connections to the source at once, {CROWD} children for {FEW_SLOTS} slots"
    report.bar("P5", what, crowd.connections, FEW_SLOTS, unit="connections")


def rows_until(last: date) -> int:
    with psycopg.connect(settings.SLUICE.source_url) as connection:
        row = connection.execute("SELECT count(*) FROM demo.flights WHERE flight_date <= %s", [last]).fetchone()
    assert row
    return int(row[0])


def warm_up(year: Year, meter: Meter) -> None:
    """Have caches be filled and objects be there to replace, and see that all of them are the same."""
    bare_loop(year, meter)
    fresh(year, meter)
    reused(year, meter)
    compare(year)
    meter.laps.clear()


def measured(year: Year, meter: Meter, rounds: int) -> dict[str, list[float]]:
    ways = {
        BARE: lambda: bare_loop(year, meter),
        SLUICE: lambda: fresh(year, meter),
        REUSED: lambda: reused(year, meter),
    }
    some = {**ways, PAGES: lambda: read_pages(year, meter), ONCE: lambda: copy_once(year, meter)}
    first = in_turn(some, rounds=min(rounds, PAGES_ROUNDS), warm_up=False)
    rest = in_turn(ways, rounds=max(rounds - PAGES_ROUNDS, 0), warm_up=False)
    return {name: times + rest.get(name, []) for name, times in first.items()}


# ---- The ways -------------------------------------------------------------------------------------------------------


def fresh(year: Year, meter: Meter) -> float:
    with meter.lap(SLUICE) as lap, lap.timed():
        job = export(year, reuse="never")
    assert job.reused == 0
    return lap.seconds


def reused(year: Year, meter: Meter) -> float:
    with meter.lap(REUSED) as lap, lap.timed():
        job = export(year, reuse="if-present")
    assert job.reused == job.total
    return lap.seconds


def export(year: Year, *, reuse: str) -> Job:
    """From the POST to success."""
    job = submit(year, reuse)
    unfinished = Job.objects.filter(pk=job.pk).exclude(status__in=JOB_ENDED)
    wait_until(lambda: not unfinished.exists(), limit=site.LIMIT_SECONDS, every=POLL_SECONDS)
    job.refresh_from_db()
    assert (job.status, job.total, job.rows) == (JobStatus.SUCCESS, len(year.pairs), year.rows), job.error_code
    return job


def submit(year: Year, reuse: str) -> Job:
    wanted = {
        "dataset": DATASET,
        "filters": {"keys": ORIGINS, "dateFrom": FIRST.isoformat(), "dateTo": year.last.isoformat()},
        "delivery": "manifest",  # a zip would be work that nobody else here does
        "reuse": reuse,
    }
    headers = {"Authorization": f"Bearer {year.token}", "Content-Type": "application/json"}
    with closing(http.client.HTTPConnection(LOOPBACK, year.web.port, timeout=60)) as connection:
        connection.request("POST", "/exports", json.dumps(wanted), headers)
        answer = connection.getresponse()
        accepted = json.loads(answer.read())
    assert answer.status == HTTPStatus.ACCEPTED, accepted
    return Job.objects.get(pk=accepted["jobId"])


def bare_loop(year: Year, meter: Meter) -> float:
    """Its processes are new each time, but what they need before their first slice does not count."""
    with meter.lap(BARE) as lap, ExitStack() as stack:
        go(lap, [stack.enter_context(started("bare_loop", year.pairs[n::PARALLEL])) for n in range(PARALLEL)])
    return lap.seconds


def safe_loop(year: Year, meter: Meter) -> float:
    """The same for a job that was submitted, and whose workers are the loops."""
    job = submit(year, "never")
    with meter.lap(SAFE) as lap, ExitStack() as stack:
        go(lap, [stack.enter_context(started("safe_loop", [])) for _ in range(PARALLEL)])
    job.refresh_from_db()
    assert (job.done, job.rows) == (len(year.pairs), year.rows)
    return lap.seconds


def go(lap: Lap, loops: Sequence["subprocess.Popen[str]"]) -> None:
    for loop in loops:
        expect(loop, "ready")
    with lap.timed({CLIENTS: [loop.pid for loop in loops]}):
        for loop in loops:
            tell(loop, "go")
        for loop in loops:
            expect(loop, "done")


def started(name: str, pairs: Sequence[planning.Pair]) -> "subprocess.Popen[str]":
    command = [sys.executable, "-m", f"tests.bench.status_quo.{name}"]
    loop = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    tell(loop, json.dumps([(pair.key, pair.effective_date.isoformat(), bare_path(pair)) for pair in pairs]))
    return loop


def tell(loop: "subprocess.Popen[str]", line: str) -> None:
    assert loop.stdin
    loop.stdin.write(f"{line}\n")
    loop.stdin.flush()


def expect(loop: "subprocess.Popen[str]", word: str) -> None:
    assert loop.stdout
    said = loop.stdout.readline().strip()
    assert said == word, said


def read_pages(year: Year, meter: Meter) -> float:
    with meter.lap(PAGES) as lap, one_for_each_core() as webs:
        ports = [web.port for web in webs]
        readers.read(ports, year.token, NOTHING_THERE)  # a process' first requests are its slowest
        with lap.timed({WEB: [web.pid for web in webs]}):
            rows = readers.read(ports, year.token, year.pairs)
    assert rows == year.rows
    return lap.seconds


@contextmanager
def one_for_each_core() -> Iterator[list[processes.Web]]:
    """Serve pages with as many web processes as files have workers."""
    with ExitStack() as stack:
        yield [stack.enter_context(site.serving(variables=STATUS_QUO)) for _ in range(PARALLEL)]


def copy_once(year: Year, meter: Meter) -> float:
    """The least that reading these rows can take."""
    query = f"SELECT {', '.join(COLUMNS)} FROM demo.flights WHERE flight_date <= '{year.last}'"
    command = [str(program("psql")), settings.SLUICE.source_url, "-qXc", f"COPY ({query}) TO STDOUT (FORMAT csv)"]
    with meter.lap(ONCE) as lap, lap.timed():
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return lap.seconds


# ---- That all of them give the same ---------------------------------------------------------------------------------


def compare(year: Year) -> None:
    """Every file, the bare loop's too, has the hash that Sluice wrote down. Some of them have the rows of the pages."""
    job = Job.objects.filter(reuse="never").latest("created_at")
    written_down = [chunk.sha256 for chunk in Chunk.objects.filter(job=job).in_request_order()]
    assert hashes(own_path(pair) for pair in year.pairs) == written_down
    assert hashes(bare_path(pair) for pair in year.pairs) == written_down
    with site.serving(variables=STATUS_QUO) as web, readers.connected(web.port) as connection:
        for pair in year.pairs[::EVERY]:
            pages = readers.pages(connection, year.token, pair)
            assert [in_text(row) for page in pages for row in page] == rows_of_file(own_path(pair)), pair


def own_path(pair: planning.Pair) -> str:
    return planning.object_key(DATASET, pair, planning.Shape())


def bare_path(pair: planning.Pair) -> str:
    return planning.object_key("bare-loop", pair, planning.Shape())


def hashes(paths: Iterator[str]) -> list[str]:
    with ThreadPoolExecutor(COMPARED_BY) as threads:
        return [hashlib.sha256(content).hexdigest() for content in threads.map(content_of, paths)]


def content_of(path: str) -> bytes:
    return b"".join(storage.read(path))


def rows_of_file(path: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(content_of(path).decode(), newline="")))


def in_text(row: Mapping[str, Any]) -> dict[str, str]:
    """Return a row of JSON as CSV writes it."""
    hour = row["time_hour"].replace("T", " ").replace("Z", "+00")
    return {name: "" if value is None else str(value) for name, value in {**row, "time_hour": hour}.items()}


# ---- Connections to the source --------------------------------------------------------------------------------------


class Peak(NamedTuple):
    connections: int = 0
    calls: int = 0  # those that ran something


ACTIVITY = """
SELECT count(*), count(*) FILTER (WHERE state = 'active') FROM pg_stat_activity
WHERE datname = current_database() AND backend_type = 'client backend' AND pid <> pg_backend_pid()
"""


def peak_of_pages(year: Year) -> Peak:
    with site.serving(variables=STATUS_QUO) as web:
        return watched(lambda: readers.read([web.port], year.token, year.pairs[::EVERY]))


def watched(run: Callable[[], object]) -> Peak:
    """Return the most connections that the source had at the same time. Watching costs a little: it is not timed."""
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


# ---- What is told ---------------------------------------------------------------------------------------------------


def tell_times(report: Report, taken: Mapping[str, list[float]], least: Mapping[str, list[float]], slices: int) -> None:
    report.times("P4 and P9", {name: taken[name] for name in (BARE, SLUICE, REUSED)})
    in_same_rounds = taken[SLUICE][: len(taken[PAGES])]
    report.times("P4, without workers", least)
    report.times("P5", {PAGES: taken[PAGES], SLUICE: in_same_rounds, ONCE: taken[ONCE]})
    safety = ratio(taken[SLUICE], taken[BARE])
    report.bar("P4", f"{slices:,} slices from POST to success, of the bare loop's time", safety, 1.6)
    report.bar("P4", "the least that safety costs: a bare loop that claims and ends", ratio(least[SAFE], least[BARE]))
    report.bar("P9", "the same with all files reused, of P4's time", ratio(taken[REUSED], taken[SLUICE]), 0.4)
    of_pages = ratio(in_same_rounds, taken[PAGES])
    report.bar("P5", "P4 of the time of 16 clients who read pages", of_pages, 0.33)


def ratio(one: Sequence[float], other: Sequence[float]) -> float:
    return median(one) / median(other)


def tell_costs(report: Report, laps: Mapping[str, list[Lap]], slices: int) -> None:
    ways = (BARE, SLUICE, REUSED, PAGES)

    def row(name: str, value: Callable[[Lap], float]) -> list[str]:
        return [name, *(f"{middle(laps[way], value):.2f}" for way in ways)]

    report.table(
        f"P4, P9, P5: CPU seconds for {slices:,} slices",
        ["", *ways],
        [
            *(row(group, cpu_of(group)) for group in laps[SLUICE][0].cpu),
            row("together", lambda lap: sum(lap.cpu.values())),
            row("slices a second", lambda lap: slices / lap.seconds),
        ],
    )


def tell_databases(report: Report, laps: Mapping[str, list[Lap]]) -> None:
    columns: dict[str, Callable[[Lap], float]] = {
        "statements in the source": lambda lap: lap.source.statements,
        "their seconds": lambda lap: lap.source.seconds,
        "seconds active": lambda lap: lap.source.active,
        "seconds in Sluice's database": lambda lap: lap.own.seconds,
        "CPU seconds of Postgres": lambda lap: lap.cpu[POSTGRES],
    }
    rows = [
        [way, *(f"{middle(laps[way], value):,.{0 if 'statements' in name else 2}f}" for name, value in columns.items())]
        for way in (PAGES, SLUICE, BARE, ONCE)
    ]
    report.table("P5: the databases", ["", *columns], rows)
    report.notes.append(
        "P5: seconds of statements are pg_stat_statements' total_exec_time, which holds the planning of a COPY and not "
        "that of a SELECT. Seconds active are pg_stat_database's active_time, which holds all of both."
    )
    pages = laps[PAGES]

    def share(way: str, value: Callable[[Lap], float]) -> float:
        return middle(laps[way][: len(pages)], value) / middle(pages, value)

    report.bar(
        "P5", "the source's time for P4, of that for the pages", share(SLUICE, lambda lap: lap.source.seconds), 0.25
    )
    report.bar("P5", "the least there can be: one COPY of all rows", share(ONCE, lambda lap: lap.source.seconds))
    report.bar("P5", "the source's time, planning included", share(SLUICE, lambda lap: lap.source.active))
    both = share(SLUICE, lambda lap: lap.source.seconds + lap.own.seconds)
    report.bar("P5", "the source's time and that of Sluice's database", both)


def cpu_of(group: str) -> Callable[[Lap], float]:
    return lambda lap: lap.cpu[group]


def middle(laps: Sequence[Lap], value: Callable[[Lap], float]) -> float:
    return median(map(value, laps))


def tell_peaks(report: Report, peaks: Mapping[tuple[str, str, int], Peak]) -> None:
    rows = [
        [way, processes, slots or "", peak.connections, peak.calls] for (way, processes, slots), peak in peaks.items()
    ]
    report.table("P5: most connections to the source at once", ["", "by", "slots", "connections", "busy"], rows)
