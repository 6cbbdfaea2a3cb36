"""Metrics of real web processes and prefork workers, compared with the rows. A27."""

import http.client
import json
from collections.abc import Iterator
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import psycopg
import pytest
from django.contrib.auth.models import User
from django.db.models import Count, F, Sum
from knox.models import AuthToken
from prometheus_client.parser import text_string_to_metric_families

from config.dev.stack.ports import LOOPBACK
from config.dev.stack.processes import Web
from exports.models import Chunk, Dataset, Job
from tests.e2e.conftest import Workers
from tests.serving import serving
from tests.waiting import wait_until

pytestmark = pytest.mark.usefixtures("empty_bucket")

FOLDER = "PROMETHEUS_MULTIPROC_DIR"

# The key selects the behavior: two kinds of errors, one retryable and one permanent.
FUNCTION = """
CREATE OR REPLACE FUNCTION data.rows_for(key text, effective_date date) RETURNS TABLE (k text, n int, d date)
LANGUAGE plpgsql AS $$ BEGIN
    IF key = 'BROKEN' OR key = '{down}' THEN RAISE EXCEPTION 'broken' USING ERRCODE = 'P0001'; END IF;
    IF key = 'REFUSED' THEN RAISE EXCEPTION 'refused' USING ERRCODE = '42501'; END IF;
    RETURN QUERY SELECT key, i, effective_date FROM generate_series(1, length(key)) i;
END $$
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder for the metrics of this test's processes. `workers` reads it from the environment."""
    monkeypatch.setenv(FOLDER, str(tmp_path / "metrics"))
    monkeypatch.setenv("EXPORT_MAX_ATTEMPTS", "2")
    monkeypatch.setenv("EXPORT_BACKOFF_BASE_SECONDS", "0.1")
    return tmp_path / "metrics"


@pytest.fixture
def webs(folder: Path, workers: Workers) -> Iterator[list[Web]]:
    """Two web processes side by side."""
    roots = (workers.root / "one", workers.root / "two")
    for root in roots:
        root.mkdir()
    with serving(roots[0], workers.environment()) as one, serving(roots[1], workers.environment()) as two:
        yield [one, two]


@pytest.fixture
def client(dataset: Dataset, alice: User, source_db: psycopg.Connection, webs: list[Web]) -> "Client":
    source_db.execute(FUNCTION.format(down=""))
    return Client(webs[0], alice)


class Client:
    def __init__(self, web: Web, user: User) -> None:
        self.port, (_, self.token) = web.port, AuthToken.objects.create(user)

    def post(self, **body: Any) -> None:
        connection = http.client.HTTPConnection(LOOPBACK, self.port, timeout=20)
        headers = {"Authorization": f"Bearer {self.token}", "Content-Type": "application/json"}
        connection.request("POST", "/exports", json.dumps({"dataset": "things", **body}), headers)
        response = connection.getresponse()
        assert response.status == 202, response.read()
        connection.close()


def scrape(web: Web) -> dict[str, dict[str, float]]:
    """Return the metrics of Sluice as `{sample: {label value, or "": number}}`, without buckets."""
    connection = http.client.HTTPConnection(LOOPBACK, web.port, timeout=20)
    connection.request("GET", "/metrics")
    text = connection.getresponse().read().decode()
    connection.close()
    found: dict[str, dict[str, float]] = {}
    for metric in text_string_to_metric_families(text):
        for sample in metric.samples:
            if sample.name.startswith(("export_", "sluice_")) and "le" not in sample.labels:
                found.setdefault(sample.name, {})["".join(sample.labels.values())] = sample.value
    return found


def has_counted(web: Web, *, jobs: int) -> bool:
    return scrape(web)["export_job_latency_ms_count"][""] >= jobs


def nonzero(numbers: dict[str, float]) -> dict[str, float]:
    return {label: number for label, number in numbers.items() if number}


def ended() -> bool:
    return not Job.objects.active().exists()


def items(*keys: str) -> list[dict[str, str]]:
    return [{"key": key, "effectiveDate": "2024-02-29"} for key in keys]


def run(client: Client, source_db: psycopg.Connection) -> None:
    """Submit six jobs, in sequence where they depend on each other, and wait until they end."""
    client.post(filters={"keys": ["A", "BB", "CCC"], "dateFrom": "2024-01-01", "dateTo": "2024-01-10"})
    client.post(items=items("A", "BB", "CCC", "DDDD"))
    client.post(items=items("A", "REFUSED"))
    client.post(items=items("BROKEN"))
    wait_until(ended)
    client.post(items=items("A", "BB", "EEEEE"))  # reuses two files
    wait_until(ended)
    source_db.execute(FUNCTION.format(down="DDDD"))
    client.post(items=items("DDDD"), reuse="never")  # a snapshot
    wait_until(ended)


def counts_by(field: str, **filters: Any) -> dict[str, float]:
    counted = Chunk.objects.filter(**filters).values_list(field).annotate(n=Count("pk")).order_by()
    return {name: float(number) for name, number in counted}


def sums_of(field: str) -> dict[str, float]:
    sums = Chunk.objects.filter(status="done").values_list("source").annotate(n=Sum(field)).order_by()
    return {name: float(number) for name, number in sums}


@pytest.mark.slow
def test_a_scrape_of_any_web_process_matches_the_rows(
    client: Client, source_db: psycopg.Connection, workers: Workers, webs: list[Web]
) -> None:
    """A27, A17: jobs, chunks, rows, and bytes of two prefork children, exported by two web processes."""
    workers.start(concurrency=2)
    first, second = webs
    before = scrape(first)
    assert not nonzero(before["export_job_status_total"])
    run(client, source_db)
    # Counters are incremented after the commit.
    wait_until(partial(has_counted, second, jobs=4))
    # A worker frees its slot after its last chunk. Another worker may complete the job before that.
    wait_until(lambda: scrape(second)["export_slots"] == {"held": 0, "free": 8})
    exported = scrape(second)

    assert Job.objects.filter(status="success").count() == 4
    transitions = exported["export_job_status_total"]
    assert {name: transitions[name] for name in ("pending", "success", "failed", "cancelled")} == {
        "pending": 6, "success": 4, "failed": 2, "cancelled": 0
    }  # fmt: skip
    assert exported["export_job_latency_ms_count"] == {"": 4}
    assert exported["export_job_latency_ms_sum"][""] == pytest.approx(latencies().total_seconds() * 1000)

    failures = counts_by("error_code", status="failed")
    assert failures == {"EXPORT_SOURCE_ERROR": 2}
    assert nonzero(exported["export_chunk_failures_total"]) == failures
    sources = counts_by("source", status="done")
    assert sources.keys() == {"live", "reused", "snapshot"}
    # BROKEN and DDDD were tried twice.
    assert nonzero(exported["export_chunks_total"]) == {**sources, "failed": 2, "retried": 2}
    assert exported["export_chunk_duration_seconds_count"] == {"": sources["live"]}
    assert nonzero(exported["export_rows_total"]) == sums_of("rows")
    assert nonzero(exported["export_bytes_total"]) == sums_of("bytes")

    assert nonzero(exported["export_queue_depth"]) == {}
    assert exported["export_slots"] == {"held": 0, "free": 8}
    assert counters_of(scrape(first)) == counters_of(exported)


def latencies() -> timedelta:
    """Return the sum of the durations of all successful jobs, from submission to end."""
    times = Job.objects.filter(status="success").aggregate(sum=Sum(F("finished_at") - F("created_at")))
    total: timedelta = times["sum"]
    return total


def counters_of(exported: dict[str, dict[str, float]]) -> dict[str, dict[str, float]]:
    return {name: numbers for name, numbers in exported.items() if name.endswith(("_total", "_count", "_sum"))}


@pytest.mark.slow
def test_counts_survive_the_processes_that_counted(
    client: Client, workers: Workers, webs: list[Web], folder: Path
) -> None:
    """A27: SIGKILL loses no counts, and the next worker continues in the same files."""
    files = 0
    for number in (1, 2, 3):
        worker = workers.start(concurrency=2)
        client.post(items=items(*("A" * length for length in range(1, 10))), reuse="never")
        wait_until(partial(has_counted, webs[1], jobs=number))
        # The other child may still count chunks that it has committed.
        wait_until(lambda: scrape(webs[1])["export_chunks_total"]["live"] >= 9 * number)  # noqa: B023 - called at once
        worker.kill()
        assert scrape(webs[1])["export_job_latency_ms_count"] == {"": number}
        assert scrape(webs[1])["export_chunks_total"]["live"] == 9 * number
        files = files or len(list(folder.glob("*.db")))

    assert len(list(folder.glob("*.db"))) == files
