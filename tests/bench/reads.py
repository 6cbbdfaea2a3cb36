"""P8: 50 concurrent clients read a job of 1,095 chunks and the task of a document, alternating with an empty view.

Bounds: 1.5 times the median latency of the empty view of the same web process, no query on chunks for a job, and no
query on etl_task for a task whose state is in Redis. The empty view authenticates its user and counts for the rate
limits, like the other views. Jobs are read before they start, while they run, and with a receipt and a link. Tasks are
read during OCR, and with their result.
"""

import http.client
import json
import subprocess
import sys
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from statistics import median
from tempfile import gettempdir
from typing import Any, NamedTuple

from django.contrib.auth.models import User
from django.db import connection

from config.dev.stack.ports import LOOPBACK
from etl import runstate
from etl.core.states import Stage, Status
from etl.models import Task
from exports.models import Job
from tests.bench import site
from tests.bench.alternation import alternate, quantile
from tests.bench.report import Report
from tests.integration.etl_factories import make_task
from tests.integration.factories import claim_one, end_chunk, pairs
from tests.waiting import wait_until

CLIENTS = 50
MAX_RATIO = 1.5
HELD = 4  # running chunks of the running job
DAY = 86_400
LIMIT_SECONDS = 600
CHUNKS, TASKS = "exports_chunk", "etl_task"  # tables
WORKERS = {"exports": 2, "bundles": 1, "etl-ocr": 1, "etl-postprocess": 1}
SERVING = {
    "DJANGO_SETTINGS_MODULE": "tests.bench.reads_settings",
    # All clients are one user, whose rate limit is raised. Every request is still counted.
    "EXPORT_POLL_RATE": "1000000/min",
    "ETL_POLL_RATE": "1000000/min",
}
FUNCTION = """
CREATE SCHEMA reads;
CREATE FUNCTION reads.rows_for(key text, effective_date date) RETURNS TABLE (k text, n int, d date)
LANGUAGE sql STABLE AS 'SELECT key, n, effective_date FROM generate_series(1, 10) n'
"""


class Load(NamedTuple):
    """Measurements of one round of requests. `total_requests` includes warm-up requests, like the statements."""

    latencies: list[float]
    seconds: float
    total_requests: int
    statements: int
    on_table: int


@dataclass(frozen=True)
class Subject:
    """A path, a text that each response must contain, and a table that must not be queried."""

    name: str
    path: str
    expected: str
    table: str
    loads: list[Load] = field(default_factory=list)

    @property
    def latencies(self) -> list[float]:
        return [each for load in self.loads for each in load.latencies]

    @property
    def total_requests(self) -> int:
        return sum(load.total_requests for load in self.loads)

    @property
    def queries_on_table(self) -> float:
        return sum(load.on_table for load in self.loads) / self.total_requests


EMPTY = "an empty view"


def run(report: Report, *, rounds: int, quick: bool) -> None:
    chunks, requests = (40, 100) if quick else (1_095, 1_000)
    rounds = 1 if quick else rounds
    user = site.prepare()
    token = site.token_of(user)
    subjects = [Subject(EMPTY, "/empty", '"ok":true', CHUNKS), *jobs(user, chunks), *tasks(user)]
    in_main("ANALYZE")  # like autovacuum would within a minute
    with site.serving(variables=SERVING) as web:
        for subject in subjects:
            verify(subject, get_json(web.port, token, subject.path), chunks)
        alternatives = {
            subject.name: partial(send_requests, subject, web.port, token, requests) for subject in subjects
        }
        measurements = alternate(alternatives, rounds=rounds)
    for subject in subjects:
        del subject.loads[0]  # the warm-up
    report_results(report, subjects, measurements)


# ---- Subjects --------------------------------------------------------------------------------------------------------


def jobs(user: User, chunks: int) -> list[Subject]:
    """Create a job that real workers finished, one that is half done, and one that has not started."""
    site.in_source(FUNCTION)
    dataset = site.make_dataset("reads", "reads.rows_for")
    with site.running_workers({name: WORKERS[name] for name in ("exports", "bundles")}):
        done = site.submit(dataset, pairs(chunks, key="DONE"), user)
        Job.objects.filter(pk=done.pk).update(ttl=DAY)  # its link must not expire during the measurement
        site.wait_for(done, limit=LIMIT_SECONDS)
    running = site.submit(dataset, pairs(chunks, key="RUNS"), user)
    for _ in range(chunks // 2):
        end_chunk()
    claims = [claim_one(backend="bench") for _ in range(HELD)]
    assert {claim.job_id for claim in claims if claim} == {running.pk}
    waiting = site.submit(dataset, pairs(chunks, key="WAITS"), user)
    return [
        Subject(f"a job, {status}", f"/exports/{job.pk}", f'"status":"{status}"', CHUNKS)
        for status, job in (("pending", waiting), ("running", running), ("success", done))
    ]


def tasks(user: User) -> list[Subject]:
    """Create a task that real workers completed, and one in OCR. Redis has the states of both."""
    # Without this setting, the OCR worker would use the document folder of this repository.
    folder = {"ETL_CACHE_DIR": str(Path(gettempdir()) / "documents")}
    with site.running_workers({name: WORKERS[name] for name in ("etl-ocr", "etl-postprocess")}, variables=folder):
        done = make_task(user)
        wait_until(
            lambda: Task.objects.filter(pk=done.pk, status=Status.COMPLETED).exists(),
            limit=LIMIT_SECONDS,
            always=lambda: not Task.objects.filter(pk=done.pk, status=Status.FAILED).exists(),
        )
    running = make_task(user)
    state = runstate.start(running.pk, stage=Stage.OCR).state
    assert state
    runstate.record_progress(state, 20, step="2/5")
    return [
        Subject(f"a task, {status}", f"/api/v1/etl/tasks/{task.pk}", f'"status":"{status}"', TASKS)
        for status, task in ((Status.MINERU_PARSING.value, running), (Status.COMPLETED.value, done))
    ]


def get_json(port: int, token: str, path: str) -> dict[str, Any]:
    connection_to_web = http.client.HTTPConnection(LOOPBACK, port, timeout=20)
    try:
        connection_to_web.request("GET", path, headers={"Authorization": f"Bearer {token}"})
        read: dict[str, Any] = json.loads(connection_to_web.getresponse().read())
    finally:
        connection_to_web.close()
    return read


def verify(subject: Subject, shown: dict[str, Any], chunks: int) -> None:
    """Assert that a response is correct, before times are measured."""
    match subject.name:
        case "an empty view":
            assert shown == {"ok": True}, shown
        case "a job, pending":
            assert shown["progress"]["pending"] == shown["progress"]["total"] == chunks, shown
        case "a job, running":
            progress = shown["progress"]
            assert (progress["total"], progress["done"], progress["running"]) == (chunks, chunks // 2, HELD), shown
        case "a job, success":
            assert shown["progress"]["done"] == shown["receipt"]["files"] == chunks, shown
            assert shown["receipt"]["signedUrl"], shown
        case "a task, mineru_parsing":
            assert (shown["progress"], shown["result"]) == (20, None), shown
        case "a task, completed":
            assert shown["progress"] == 100, shown
            assert shown["result"], shown
        case _:
            raise AssertionError(subject.name)


# ---- Measuring ------------------------------------------------------------------------------------------------------


def send_requests(subject: Subject, port: int, token: str, requests: int) -> float:
    """Send requests from all clients. Return the median latency, and add all measurements to the subject."""
    order = {
        "host": LOOPBACK, "port": port, "path": subject.path, "token": token, "expected": subject.expected,
        "clients": CLIENTS, "requests": requests,
    }  # fmt: skip
    command = [sys.executable, "-m", "tests.bench.reads_clients"]
    before = statements(subject.table)
    done = subprocess.run(
        command, input=json.dumps(order), stdout=subprocess.PIPE, text=True, check=True, timeout=LIMIT_SECONDS
    )
    after = statements(subject.table)
    load = Load(**json.loads(done.stdout), statements=after[0] - before[0], on_table=after[1] - before[1])
    assert len(load.latencies) == requests
    assert load.statements >= load.total_requests, (
        "statements are not counted, although each request looks up its token"
    )
    subject.loads.append(load)
    return median(load.latencies)


# During a measurement, only the web process queries this database. This query is the exception, but its recorded text
# has $1 instead of the table.
STATEMENTS = """
SELECT coalesce(sum(calls), 0)::bigint, coalesce(sum(calls) FILTER (WHERE strpos(query, %s) > 0), 0)::bigint
FROM pg_stat_statements WHERE dbid = (SELECT oid FROM pg_database WHERE datname = current_database())
"""


def statements(table: str) -> tuple[int, int]:
    """Return the number of executed statements, and the number of those that contain the name of this table."""
    every, on_table = in_main(STATEMENTS, table)
    return every, on_table


def in_main(statement: str, *values: str) -> tuple[int, ...]:
    """Execute a statement on Sluice's database, and return its first row."""
    with connection.cursor() as cursor:
        cursor.execute(statement, values)
        return cursor.fetchone() or () if cursor.description else ()


# ---- Report --------------------------------------------------------------------------------------------------------


def report_results(report: Report, subjects: list[Subject], measurements: dict[str, list[float]]) -> None:
    report.times("P8", measurements)
    report.table(
        f"P8, {CLIENTS} clients, all rounds together",
        ["", "median, ms", "p99, ms", "requests/s", "statements per request"],
        [row(subject) for subject in subjects],
    )
    for subject in subjects[1:]:
        ratio = median(measurements[subject.name]) / median(measurements[EMPTY])
        report.bound("P8", f"{subject.name}: median latency, relative to an empty view", ratio, MAX_RATIO)
    for table, what in ((CHUNKS, "a job"), (TASKS, "a task that Redis has")):
        most = max(subject.queries_on_table for subject in subjects[1:] if subject.table == table)
        report.bound("P8", f"queries on {table} for {what}", most, 0, unit="per request")


def row(subject: Subject) -> list[str]:
    latencies, loads = subject.latencies, subject.loads
    rate = len(latencies) / sum(load.seconds for load in loads)
    return [
        subject.name,
        f"{median(latencies) * 1000:.1f}",
        f"{quantile(latencies, 0.99) * 1000:.1f}",
        f"{rate:.0f}",
        f"{sum(load.statements for load in loads) / subject.total_requests:.2f}",
    ]
