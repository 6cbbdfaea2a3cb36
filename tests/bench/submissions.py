"""P7: `POST /exports` over HTTP, with 10,000 items against 1,000.

Bounds: 10 times as long, which is linear growth, and 2 s for 99 of 100 requests with 10,000 items. Measured from the
connection to the end of the response, with the real web process: authentication, rate limits, JSON, quota, rows of
chunks, and wake-up messages. No workers run, so that the machine is otherwise idle. Every second item has a reusable
file.
"""

import http.client
import json
import time
from datetime import date, timedelta
from functools import partial
from statistics import median
from typing import Any

from django.db import connection
from django.db.models.functions import Now

from config.dev.stack import processes
from config.dev.stack.ports import LOOPBACK
from exports.core import planning
from exports.models import Dataset, File, Job
from tests.bench import site
from tests.bench.alternation import Measurement, alternate, quantile
from tests.bench.report import Report

SIZES = 1_000, 10_000
QUICK_SIZES = 100, 1_000
# The default number of rounds is too low for a p99. With fewer than 100 requests, the p99 is the slowest one.
POSTS, QUICK_POSTS = 50, 3
KEYS = 10
FIRST_DAY = date(2000, 1, 1)
SECONDS = 2
# Sluice reads the columns of the function, but never calls it.
FUNCTION = """
CREATE SCHEMA submissions;
CREATE FUNCTION submissions.rows_for(key text, effective_date date) RETURNS TABLE (k text)
LANGUAGE sql STABLE AS 'SELECT key';
"""


def run(report: Report, *, rounds: int, quick: bool) -> None:
    user = site.prepare()
    site.in_source(FUNCTION)
    dataset = site.make_dataset("submissions", "submissions.rows_for")
    sizes = QUICK_SIZES if quick else SIZES
    fill_reuse_cache(dataset, pairs(max(sizes))[::2])
    token = site.token_of(user)
    with site.serving() as web:
        alternatives: dict[str, Measurement] = {
            f"{items:,} items": partial(seconds_of_post, web, token, body_of(dataset, items), items) for items in sizes
        }
        measurements = alternate(alternatives, rounds=QUICK_POSTS if quick else max(POSTS, rounds))
    report_results(report, measurements, linear=max(sizes) / min(sizes))


# ---- Requests -------------------------------------------------------------------------------------------------------


def pairs(count: int) -> list[planning.Pair]:
    return [planning.Pair(f"KEY{n % KEYS}", FIRST_DAY + timedelta(days=n // KEYS)) for n in range(count)]


def fill_reuse_cache(dataset: Dataset, known: list[planning.Pair]) -> None:
    """Fill the reuse cache, which every submission queries. Objects are not needed, because only workers check them."""
    File.objects.bulk_create(
        File(
            path=planning.object_key(dataset.base_path, pair, planning.Shape()), dataset=dataset,
            schema_version=dataset.schema_version, key=pair.key, effective_date=pair.effective_date, etag="0" * 32,
            sha256="0" * 64, rows=0, bytes=0, data_as_of=Now(),
        )
        for pair in known
    )  # fmt: skip
    vacuum()


def body_of(dataset: Dataset, items: int) -> bytes:
    """Return a minimal request body, which uses default values."""
    listed = [{"key": pair.key, "effectiveDate": pair.effective_date.isoformat()} for pair in pairs(items)]
    return json.dumps({"dataset": dataset.name, "items": listed}).encode()


def seconds_of_post(web: processes.Web, token: str, body: bytes, items: int) -> float:
    """Submit a job, verify that it is complete, and delete it. Only the request is measured."""
    seconds, content = post(web, token, body)
    job = Job.objects.get(pk=content["jobId"])
    assert content["totalChunks"] == job.chunks.count() == items, "some chunks are missing"
    assert job.chunks.filter(reusable=True).count() == items / 2, "reusable files were not found"
    Job.objects.all().delete()
    vacuum()
    return seconds


def post(web: processes.Web, token: str, body: bytes) -> tuple[float, dict[str, Any]]:
    headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
    connection = http.client.HTTPConnection(LOOPBACK, web.port, timeout=60)
    started = time.perf_counter()
    try:
        connection.request("POST", "/exports", body, headers)
        response = connection.getresponse()
        content = response.read()
        seconds = time.perf_counter() - started
    finally:
        connection.close()
    assert response.status == http.HTTPStatus.ACCEPTED, content
    return seconds, json.loads(content)


def vacuum() -> None:
    """Vacuum, so that the next request reuses the space of deleted rows."""
    with connection.cursor() as cursor:
        cursor.execute("VACUUM ANALYZE exports_chunk, exports_jobs, exports_file")


# ---- Report --------------------------------------------------------------------------------------------------------


def report_results(report: Report, measurements: dict[str, list[float]], *, linear: float) -> None:
    report.times("P7", measurements)
    small, large = measurements
    posts = len(measurements[large])
    rank = ", the slowest" if posts < 100 else ""
    ratio = median(measurements[large]) / median(measurements[small])
    report.bound("P7", f"POST /exports of {large}, relative to {small}", ratio, linear)
    report.bound(
        "P7", f"POST /exports of {large}, p99 of {posts}{rank}", quantile(measurements[large], 0.99), SECONDS, unit="s"
    )
