"""Metrics: access, aggregation over processes, and gauges from the database. A27, B11, C6."""

import importlib
import re
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from ipaddress import ip_network
from pathlib import Path

import prometheus_client
import pytest
from django.conf import LazySettings
from django.contrib.auth.models import User
from django.db.models.functions import Now
from django.test import Client
from prometheus_client.parser import text_string_to_metric_families
from pydantic import SecretStr

from config.platform.observability import exposition
from etl.core import metrics as etl_metrics
from etl.maintenance import cleanup as etl_sweeper
from etl.maintenance import recovery as etl_recovery
from etl.models import Task
from exports.core import gauges
from exports.maintenance import periodic
from exports.models import Chunk, Dataset, Job, Receipt
from exports.worker import completion
from tests.broker import valkey
from tests.conftest import change_settings
from tests.integration import outcomes
from tests.integration.etl_factories import make_row
from tests.integration.factories import make_job, result_of
from tests.integration.plans import nodes_reading
from tests.integration.test_leases import claim
from tests.waiting import expect_within

PAGE = (Path(__file__).parents[2] / "docs" / "metrics.md").read_text()

COUNT = """
import sys
from prometheus_client import Counter
Counter("sluice_test_events", "Events.").inc(int(sys.argv[1]))
"""


def test_loopback_clients_need_no_user(client: Client) -> None:
    response = client.get("/metrics", REMOTE_ADDR="127.0.0.1", headers={"Accept": "application/openmetrics-text"})

    assert response.status_code == 200
    assert response["Content-Type"].startswith("text/plain; version=")
    assert b"django_http_requests_total_by_method_total" in response.content


def test_it_refuses_other_addresses_with_a_problem(client: Client) -> None:
    response = client.get("/metrics", REMOTE_ADDR="192.0.2.1", headers={"X-Forwarded-For": "127.0.0.1"})

    assert (response.status_code, response.json()["code"]) == (403, "permission_denied")


def test_forwarded_addresses_of_trusted_proxies_count(client: Client, settings: LazySettings) -> None:
    change_settings(settings, trusted_proxy_cidrs=[ip_network("127.0.0.1/32")])

    assert client.get("/metrics", headers={"X-Forwarded-For": "192.0.2.1"}).status_code == 403


@pytest.mark.django_db
@pytest.mark.parametrize(("is_staff", "status"), [(True, 200), (False, 403)])
def test_staff_may_read_metrics_from_anywhere(client: Client, *, is_staff: bool, status: int) -> None:
    client.force_login(User.objects.create_user("ada", is_staff=is_staff))

    assert client.get("/metrics", REMOTE_ADDR="192.0.2.1").status_code == status


def test_it_sums_over_all_processes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PROMETHEUS_MULTIPROC_DIR", str(tmp_path))
    for amount in ("2", "3"):
        subprocess.run([sys.executable, "-c", COUNT, amount], check=True)

    assert b"sluice_test_events_total 5.0" in exposition.exposition()


# ---- Names ----------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("name", "kind", "sample"),
    [
        ("export_job_latency_ms", "histogram", "export_job_latency_ms_count"),
        ("export_receipt_ttl_violation_total", "counter", "export_receipt_ttl_violation_total"),
        ("export_job_status_total", "counter", 'export_job_status_total{status="success"}'),
        ("export_signed_download_403_total", "counter", "export_signed_download_403_total"),
    ],
)
def test_metrics_exist_from_the_start(client: Client, name: str, kind: str, sample: str) -> None:
    """A27."""
    lines = client.get("/metrics").content.decode().splitlines()

    assert f"# TYPE {name} {kind}" in lines
    assert [line for line in lines if line.startswith(f"{sample} ")]


def exposed_metrics() -> dict[str, tuple[str, set[str]]]:
    """Return the type and the labels of each exposed metric of Sluice, by name."""
    return {
        family.name + ("_total" if family.type == "counter" else ""): (
            family.type,
            {label for sample in family.samples for label in sample.labels} - {"le"},
        )
        for family in text_string_to_metric_families(exposition.exposition().decode())
        if family.name.startswith(("export_", "etl_", "sluice_"))
    }


@pytest.mark.django_db(transaction=True)
def test_the_documentation_lists_exactly_the_metrics() -> None:
    for module in ("config.urls", "config.platform.worker_consumer"):  # as in web and worker processes
        importlib.import_module(module)
    periodic.run_if_due("reap", every=1, run=lambda: None)  # so that the tick's age is exposed
    rows = re.findall(r"^\| `(\w+)` \| (\w+) \|([^|]*)\|", PAGE, re.MULTILINE)
    documented = {name: (kind, set(re.findall(r"`(\w+)`", labels))) for name, kind, labels in rows}

    assert documented == exposed_metrics()


# ---- Gauges from the database ---------------------------------------------------------------------------------------
def gauge(name: str, **labels: str) -> float:
    """Return the current value of an exposed gauge."""
    text = prometheus_client.generate_latest(exposition.at_scrape).decode()
    (value,) = (
        sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if (sample.name, sample.labels) == (name, labels)
    )
    return value


def depth() -> dict[str, float]:
    states = ("pending", "running", "retrying", "reusable")
    return {state: value for state in states if (value := gauge("export_queue_depth", state=state))}


def test_it_reports_queue_depth_and_age(dataset: Dataset, alice: User, slots: int) -> None:
    """A27: queue depth, age of the oldest pending chunk, and slots in use."""
    make_job(dataset, alice, 5)
    Job.objects.update(created_at=Now() - timedelta(seconds=100))
    make_job(dataset, alice, 3)
    claim()

    assert gauge("sluice_database_up") == 1
    assert depth() == {"pending": 7, "running": 1}
    assert gauge("export_oldest_pending_age_seconds") == pytest.approx(100, abs=20)
    assert (gauge("export_slots", state="held"), gauge("export_slots", state="free")) == (1, slots - 1)
    assert gauge("export_jobs_active", status="pending") == gauge("export_jobs_active", status="running") == 1
    assert gauge("export_leases_overdue") == 0


def test_it_reports_the_depth_and_age_of_document_queues(alice: User, settings: LazySettings) -> None:
    """C6, B11."""
    for seconds in (100, 50):
        Task.objects.filter(pk=make_row(alice).pk).update(updated_at=Now() - timedelta(seconds=seconds))
    Task.objects.filter(pk=make_row(alice).pk).update(status="cancelled", updated_at=Now() - timedelta(days=1))

    assert gauge("etl_tasks_open") == 2
    assert gauge("etl_queue_size") == settings.SLUICE.etl_queue_size
    assert gauge("etl_oldest_open_age_seconds") == pytest.approx(100, abs=20)


def test_runs_of_recovery_and_of_the_sweep_are_counted(db: None) -> None:
    """C6: a run is counted once, even if several schedulers (Celery beats) start it."""

    def ticks(tick: str) -> float:
        value: float = etl_metrics.TICKS.labels(tick)._value.get()
        return value

    before = ticks("recover"), ticks("sweep")
    valkey().delete(f"etl:{etl_recovery.NAME}")
    etl_recovery.recover()
    etl_recovery.recover()
    etl_sweeper.sweep()
    assert (ticks("recover"), ticks("sweep")) == (before[0] + 1, before[1] + 1)


def test_it_reports_overdue_leases_and_the_age_of_ticks(dataset: Dataset, alice: User) -> None:
    make_job(dataset, alice, 2)
    claim()
    Chunk.objects.filter(status="running").update(lease_until=Now() - timedelta(seconds=1))
    periodic.run_if_due("reap", every=1, run=lambda: None)

    assert gauge("export_leases_overdue") == 1
    assert gauge("export_tick_age_seconds", tick="reap") == pytest.approx(0, abs=20)


def test_it_reports_pending_file_checks_and_completions(dataset: Dataset, alice: User) -> None:
    make_job(dataset, alice, 2)
    outcomes.finish([(claimed, result_of(claimed)) for claimed in (claim(), claim())])
    make_job(dataset, alice, 3)

    assert depth() == {"pending": 3, "reusable": 2}
    assert gauge("export_jobs_completing") == 1
    assert gauge("export_oldest_pending_age_seconds") < 20


def test_it_reports_objects_of_expired_receipts(dataset: Dataset, alice: User) -> None:
    job = make_job(dataset, alice, 1)
    claimed = claim()
    outcomes.finish([(claimed, result_of(claimed))])
    assert completion.claim(job.pk)
    Receipt.objects.create(
        job=job, object_key="_receipts/x", etag="x", checksum="x", size_bytes=1, rows=1, files=1, content_type="x",
        file_name="x", expires_at=Now() - timedelta(minutes=2),
    )  # fmt: skip

    assert gauge("export_receipts_outlived") == 1


def test_it_reads_no_ended_or_waiting_chunks(dataset: Dataset, alice: User) -> None:
    """A27: the cost of a scrape does not depend on the size of the table."""
    make_job(dataset, alice, 1000)
    claimed = [claim() for _ in range(8)]
    outcomes.finish([(one, result_of(one)) for one in claimed[:6]])
    Chunk.objects.filter(status="pending", seq__gt=500).update(
        status="done", rows=1, bytes=1, sha256="x", etag="x", source="live"
    )
    scans = nodes_reading("exports_chunk", gauges.GAUGES, {"slots": 8})

    assert sum(node["Actual Rows"] for node in scans) == 2
    assert not [node for node in scans if node["Node Type"] == "Seq Scan"]


@contextmanager
def unresponsive_port(*, listening: bool) -> Iterator[int]:
    """Yield a port that refuses connections or, with `listening`, accepts them and never responds."""
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        if listening:
            server.listen()
        yield server.getsockname()[1]


@pytest.mark.slow
@pytest.mark.parametrize("listening", [False, True])
def test_counters_are_available_without_the_database(
    client: Client, settings: LazySettings, *, listening: bool
) -> None:
    """A27: within the timeout of a scraper."""
    with unresponsive_port(listening=listening) as port:
        url = SecretStr(f"postgresql://127.0.0.1:{port}/x")
        change_settings(settings, database_url=url)

        def scrape() -> None:
            lines = client.get("/metrics").content.decode().splitlines()
            assert "sluice_database_up 0.0" in lines
            assert [line for line in lines if line.startswith("export_signed_download_403_total ")]
            assert not [line for line in lines if line.startswith("export_queue_depth")]

        expect_within(4, scrape)
