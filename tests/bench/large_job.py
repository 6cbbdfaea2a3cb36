"""P14: a job of 100,000 chunks, the highest value that docs/api.md allows for EXPORT_MAX_CHUNKS_PER_JOB.

No statement takes a second, and memory is bounded.

Two jobs are submitted over HTTP to a web process, and run by workers. The first job is cancelled while it runs, and all
pages of its chunks are read. The second job runs to its manifest, which is read. Statement times are the maximum in
pg_stat_statements, including waits for locks. Memory is the kernel's VmHWM of the largest process of each kind.
"""

import http.client
import json
import time
from collections.abc import Mapping
from datetime import date, timedelta
from typing import Any
from urllib.parse import urlsplit

import psycopg
from django.conf import settings

from config.dev.stack import process_tree, processes
from config.dev.stack.ports import LOOPBACK
from config.dev.stack.process import Process
from config.platform import storage
from exports.core import planning
from exports.models import Chunk, Dataset, Job
from tests.bench import memory, site
from tests.bench.alternation import log_progress
from tests.bench.report import Report
from tests.waiting import wait_until

CHUNKS, QUICK_CHUNKS = 100_000, 2_000
KEYS = 100
FIRST_DAY = date(2000, 1, 1)
STATEMENT_SECONDS = 1
CANCEL_SECONDS = 5
MEGABYTES = 300
LIMIT_SECONDS = 3600
CHILDREN = {"exports": 2, "bundles": 1, "webhooks": 1, "maintenance": 1}
FUNCTION = """
CREATE SCHEMA large_job;
CREATE FUNCTION large_job.rows_for(key text, effective_date date) RETURNS TABLE (k text, d date)
LANGUAGE sql STABLE AS 'SELECT key, effective_date';
"""
SLOWEST = """
SELECT max_exec_time / 1000, calls, left(regexp_replace(query, '\\s+', ' ', 'g'), 120) FROM pg_stat_statements
JOIN pg_database ON pg_database.oid = dbid WHERE datname = current_database()
ORDER BY max_exec_time DESC LIMIT 8
"""


class Client:
    """API client that measures its requests."""

    def __init__(self, port: int, token: str) -> None:
        self.port = port
        self.headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}

    def ask(self, method: str, path: str, body: bytes | None = None) -> tuple[float, Any]:
        """Send a request. Return its duration in seconds, and the JSON of the response."""
        connection = http.client.HTTPConnection(LOOPBACK, self.port, timeout=60)
        started = time.perf_counter()
        try:
            connection.request(method, path, body, self.headers)
            response = connection.getresponse()
            content = response.read()
        finally:
            connection.close()
        seconds = time.perf_counter() - started
        assert response.status < 400, content[:300]
        return seconds, json.loads(content)


def run(report: Report, *, rounds: int, quick: bool) -> None:
    chunks = QUICK_CHUNKS if quick else CHUNKS
    variables = {"EXPORT_MAX_CHUNKS_PER_JOB": str(chunks), "EXPORT_RATE": "1000/min", "EXPORT_POLL_RATE": "100000/min"}
    user = site.prepare()
    site.in_source(FUNCTION)
    dataset = site.make_dataset("large_job", "large_job.rows_for")
    body = body_of(dataset, chunks)
    with site.serving(variables=variables) as web, site.running_workers(CHILDREN, variables=variables) as workers:
        client = Client(web.port, site.token_of(user))
        posted, cancelled = submit_and_cancel(client, body, chunks)
        log_progress(f"POST: {posted:.2f} s, cancelled: {cancelled:.2f} s")
        slowest_page = read_all(client, chunks)
        log_progress(
            f"slowest page: {slowest_page:.2f} s, statement: {execute(SLOWEST)[0]}, memory: {peaks_of(web, workers)}"
        )
        delivered = deliver(client, body, chunks)
        peaks = peaks_of(web, workers)
    slowest = execute(SLOWEST)
    report.table(
        "P14, the slowest statements", ["seconds", "calls", ""], [[f"{s:.3f}", n, text] for s, n, text in slowest]
    )
    report.table(
        "P14, peak of the largest process", ["", "MB"], [[name, f"{peak:.0f}"] for name, peak in peaks.items()]
    )
    report.notes.append(f"P14: {len(body):,} bytes of items; pages of chunks: at most {slowest_page:.2f} s.")
    report.bound("P14", f"POST /exports of {chunks:,} items", posted, unit="s")
    report.bound("P14", f"cancellation of {chunks:,} chunks", cancelled, CANCEL_SECONDS, unit="s")
    report.bound("P14", f"{chunks:,} chunks from POST to manifest", delivered, unit="s")
    report.bound("P14", "the slowest statement", slowest[0][0], STATEMENT_SECONDS, unit="s")
    report.bound("P14", "peak memory of the largest process", max(peaks.values()), MEGABYTES, unit="MB")


def execute(statement: str) -> list[tuple[Any, ...]]:
    with psycopg.connect(settings.SLUICE.database_url.get_secret_value(), autocommit=True) as connection:
        cursor = connection.execute(statement)
        return cursor.fetchall() if cursor.description else []


def body_of(dataset: Dataset, chunks: int) -> bytes:
    pairs = [planning.Pair(f"K{n % KEYS}", FIRST_DAY + timedelta(days=n // KEYS)) for n in range(chunks)]
    items = [{"key": pair.key, "effectiveDate": pair.effective_date.isoformat()} for pair in pairs]
    request = {"dataset": dataset.name, "items": items, "delivery": "manifest"}
    return json.dumps(request, separators=(",", ":")).encode()


def submit_and_cancel(client: Client, body: bytes, chunks: int) -> tuple[float, float]:
    """Submit a job, and cancel it while it runs. Return the seconds of both requests."""
    posted, job = client.ask("POST", "/exports", body)
    assert job["totalChunks"] == chunks
    path = job["receiptUrl"]
    wait_until(lambda: client.ask("GET", path)[1]["progress"]["done"] >= chunks / 100, limit=LIMIT_SECONDS, every=0.2)
    cancelled, job = client.ask("POST", f"{path}/cancel", b"{}")
    progress = job["progress"]
    assert (job["status"], progress["done"] + progress["cancelled"]) == ("cancelled", chunks), progress
    assert not Chunk.objects.filter(status__in=("pending", "running", "retrying")).exists(), "chunks are still waiting"
    return posted, cancelled


def read_all(client: Client, chunks: int) -> float:
    """Read all pages of the cancelled job's chunks. Return the seconds of the slowest page."""
    address, seen, slowest = f"/exports/{Job.objects.get().job_id}/chunks?limit=200", 0, 0.0
    while address:
        seconds, page = client.ask("GET", address)
        seen, slowest = seen + len(page["results"]), max(slowest, seconds)
        parts = urlsplit(page["next"] or "")
        address = f"{parts.path}?{parts.query}" if page["next"] else ""
    assert seen == chunks, "chunks are missing in the pages"
    return slowest


def deliver(client: Client, body: bytes, chunks: int) -> float:
    """Run a job to its receipt, and check the manifest. Return the seconds from the submission."""
    started = time.perf_counter()
    _, accepted = client.ask("POST", "/exports", body)
    path = accepted["receiptUrl"]
    wait_until(lambda: client.ask("GET", path)[1]["status"] in {"success", "failed"}, limit=LIMIT_SECONDS, every=1)
    seconds = time.perf_counter() - started
    job = Job.objects.get(pk=accepted["jobId"])
    assert (job.status, job.done, job.receipt.files) == ("success", chunks, chunks), job.error_code
    manifest = json.loads(b"".join(storage.read(job.receipt.object_key)))
    assert len(manifest["files"]) == chunks, "files are missing in the manifest"
    return seconds


def peaks_of(web: processes.Web, workers: Mapping[str, Process]) -> dict[str, float]:
    """Return the peak memory, in MB, of the largest process of each kind."""
    pids = {"web": web.pid, **{name: worker.pid for name, worker in workers.items()}}
    return {name: max(map(memory.peak, process_tree.members(pid))) for name, pid in pids.items()}
