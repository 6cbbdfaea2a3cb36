"""Six faults: the time until each sign is visible, and the remedy in docs/runbook.md.

Prometheus evaluates the shipped alerts fifteen times as fast as in production: scrapes, `for`, ranges, ages, and the
intervals of the periodic tasks are a fifteenth. The table in docs/runbook.md has the times of a run, multiplied by
fifteen. The comment at each remedy begins with its section in docs/runbook.md.
"""

import os
import re
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

import httpx2
import psycopg
import pytest
import yaml
from django.conf import settings
from django.contrib.auth.models import User
from django.db.models import F
from django.test import Client as DjangoClient
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from config.dev.stack.postgres import SUPERUSER
from config.dev.stack.process import Process
from config.dev.stack.processes import Web
from etl.models import Task
from exports.models import Chunk, Dataset, Job, Tick
from tests import servers
from tests.chaos.documents import ALL
from tests.e2e.conftest import Workers
from tests.integration import openai_server
from tests.integration.etl_factories import make_rule
from tests.integration.llm_factories import INVOICE
from tests.integration.openai_server import data_reply
from tests.integration.staff import confirm, pages, select, staff  # noqa: F401 - fixtures
from tests.operations.test_doctor import doctor, failed_checks
from tests.operations.test_observability import FOLDER, Client, Prometheus
from tests.serving import serving, token_of, variables
from tests.waiting import wait_until

pytestmark = pytest.mark.timeout(400)
SCALE = 15
UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400}
# Thresholds in seconds.
AGES = {
    'export_tick_age_seconds{tick="reap"}) > 60': 'export_tick_age_seconds{tick="reap"}) > 4',
    "export_oldest_pending_age_seconds) > 120": "export_oldest_pending_age_seconds) > 8",
}
LIMIT = 90


def fast(duration: str) -> str:
    return f"{max(1, int(duration[:-1]) * UNITS[duration[-1]] // SCALE)}s"


def fast_rules() -> str:
    text = (FOLDER / "alerts.yml").read_text()
    for before, after in AGES.items():
        assert before in text
        text = text.replace(before, after)
    text = re.sub(r"\[(\d+[smhd])\]", lambda found: f"[{fast(found[1])}]", text)
    rules: dict[str, Any] = yaml.safe_load(text)
    for rule in (rule for group in rules["groups"] for rule in group["rules"]):
        if "for" in rule:
            rule["for"] = fast(rule["for"])
    return yaml.safe_dump(rules)


class FastPrometheus(Prometheus):
    """A Prometheus with the shipped rules, fifteen times as fast. The base class accelerates one copied rule."""

    def __init__(self, folder: Path, target: str) -> None:
        super().__init__(folder, target)
        (folder / "fast.yml").write_text(fast_rules())
        configuration = folder / "prometheus.yml"
        configuration.write_text(configuration.read_text().replace(f"{FOLDER}/alerts.yml", "fast.yml"))


@dataclass
class Drill:
    """An installation, and the seconds from the fault until each sign of it was visible."""

    workers: Workers
    environment: dict[str, str]
    web: Web
    client: Client
    prometheus: Prometheus
    beat: Process
    times: dict[str, float] = field(default_factory=dict)
    began: float = 0

    def start_clock(self) -> None:
        self.began = time.monotonic()

    def wait_for_signs(self, **signs: Callable[[], object]) -> None:
        """Wait for signs of the fault, each in a separate thread, and record their times."""

        def wait(sign: str) -> None:
            wait_until(signs[sign], limit=LIMIT, every=0.5)
            self.times[sign] = time.monotonic() - self.began

        with ThreadPoolExecutor(len(signs)) as pool:
            list(pool.map(wait, signs))

    def doctor(self) -> dict[str, str]:
        return failed_checks(doctor(self.environment)[1])

    def readiness(self) -> dict[str, str]:
        checks: dict[str, str] = httpx2.get(f"{self.web.url}/readyz", timeout=10).json()["checks"]
        return checks

    def metric(self, expression: str) -> float:
        result = self.prometheus.request("query", query=expression)["result"]
        return float(result[0]["value"][1]) if result else 0.0

    def fires(self, alert: str) -> bool:
        return self.prometheus.alert(alert) == "firing"

    def wait_until_silent(self, alert: str) -> None:
        """Wait until the alert is silent, and print the times."""
        wait_until(lambda: self.prometheus.alert(alert) == "inactive", limit=LIMIT, every=0.5)
        self.times["silent"] = time.monotonic() - self.began
        print(alert, {name: round(seconds, 1) for name, seconds in self.times.items()})  # noqa: T201

    def export(self) -> str:
        return self.client.submit(items=[{"key": "JFK", "effectiveDate": "2024-02-29"}], reuse="never")


@contextmanager
def drill(workers: Workers, alice: User, **changes: str) -> Iterator[Drill]:
    environment = workers.environment() | {
        "PROMETHEUS_MULTIPROC_DIR": str(workers.root / "metrics"),
        "EXPORT_BACKOFF_BASE_SECONDS": "0.1",
        "ETL_RETRY_BACKOFF_BASE_SECONDS": "0.1",
        "ETL_RETRY_BACKOFF_MAX_SECONDS": "0.1",
        **changes,
    }
    workers.environment = lambda: environment  # type: ignore[method-assign]
    workers.start(ALL, concurrency=2)
    beat = workers.start_beat()
    with ExitStack() as stack:
        web = stack.enter_context(serving(workers.root, environment))
        target = web.url.removeprefix("http://")
        prometheus = stack.enter_context(FastPrometheus(workers.root / "prometheus", target))
        installation = Drill(workers, environment, web, Client(web, token_of(alice)), prometheus, beat)
        wait_until(lambda: installation.metric("sum(increase(etl_ticks_total[20s]))") > 0, limit=LIMIT)
        wait_until(lambda: installation.metric('max(export_tick_age_seconds{tick="reap"}) < bool 4') > 0, limit=LIMIT)
        yield installation


def wait_for_success(job: str) -> None:
    wait_until(lambda: Job.objects.get(pk=job).status == "success", limit=LIMIT)


# ---- Beat is dead ---------------------------------------------------------------------------------------------------
def test_beat_is_dead(workers: Workers, dataset: Dataset, alice: User) -> None:
    with drill(workers, alice) as installation:
        installation.start_clock()
        installation.beat.kill()
        installation.wait_for_signs(
            metric=lambda: installation.metric('max(export_tick_age_seconds{tick="reap"})') > 4,
            alert=lambda: installation.fires("ExportReaperLate"),
            second_alert=lambda: installation.fires("EtlRecoveryStopped"),
        )
        assert set(installation.readiness().values()) == {"ok"}  # web needs no beat
        Tick.objects.update(ran_at=F("ran_at") - timedelta(minutes=1))  # the doctor's limit is not scaled
        installation.wait_for_signs(
            doctor=lambda: "database.ticks" in installation.doctor(),
        )

        workers.start_beat()  # Nothing runs: all queues have consumers, ticks are old
        installation.wait_until_silent("ExportReaperLate")
        wait_until(lambda: "database.ticks" not in installation.doctor(), limit=LIMIT)


# ---- The password is wrong ------------------------------------------------------------------------------------------
@pytest.fixture
def role(transactional_db: None) -> Iterator[str]:
    """Create a second role as in the runbook's section *Keys are rotated*, and yield its URL."""
    url = variables(Path())["DATABASE_URL"]
    owner = conninfo_to_dict(url)["user"]
    with psycopg.connect(servers.started[0].postgres.url(SUPERUSER), autocommit=True) as admin:
        admin.execute(f"CREATE ROLE sluice2 LOGIN PASSWORD 'right' IN ROLE {owner}")
        yield make_conninfo(url, user="sluice2", password="right")
        admin.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = 'sluice2'")
        admin.execute("DROP ROLE sluice2")


def test_the_password_of_the_database_is_wrong(workers: Workers, dataset: Dataset, alice: User, role: str) -> None:
    source = settings.SLUICE.source_url
    with (
        drill(workers, alice, DATABASE_URL=role, SOURCE_DATABASE_URL=source) as installation,
        psycopg.connect(servers.started[0].postgres.url(SUPERUSER), autocommit=True) as admin,
    ):
        admin.execute("ALTER ROLE sluice2 PASSWORD 'wrong'")
        admin.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = 'sluice2'")
        installation.start_clock()
        installation.wait_for_signs(
            health_page=lambda: installation.readiness()["database"] == "rejects the user name or password",
            metric=lambda: installation.metric("min(sluice_database_up) == bool 0") > 0,
            alert=lambda: installation.fires("SluiceDatabaseDown"),
            doctor=lambda: "database.reachable" in installation.doctor(),
        )

        admin.execute("ALTER ROLE sluice2 PASSWORD 'right'")  # Database is unreachable: the password and the URL differ
        installation.wait_until_silent("SluiceDatabaseDown")
        wait_until(lambda: set(installation.readiness().values()) == {"ok"}, limit=LIMIT)
        wait_for_success(installation.export())


# ---- The bucket is gone ---------------------------------------------------------------------------------------------
@contextmanager
def without_bucket() -> Iterator[Callable[[], None]]:
    """Delete the bucket with its objects. Yields the function that creates it again."""
    store = servers.started[0].seaweedfs
    for page in store.client.get_paginator("list_objects_v2").paginate(Bucket=store.bucket):
        for item in page.get("Contents", []):
            store.client.delete_object(Bucket=store.bucket, Key=item["Key"])
    store.client.delete_bucket(Bucket=store.bucket)
    try:
        yield store.provision
    finally:
        store.provision()


def test_the_bucket_is_gone(workers: Workers, dataset: Dataset, alice: User) -> None:
    with drill(workers, alice) as installation, without_bucket() as create:
        installation.start_clock()
        job = installation.export()
        installation.wait_for_signs(
            health_page=lambda: installation.readiness()["storage"] == "does not have this bucket",
            metric=lambda: installation.metric("max(export_oldest_pending_age_seconds)") > 8,
            alert=lambda: installation.fires("ExportChunksNotTaken"),
            second_alert=lambda: installation.fires("SluiceCleanupFailing"),
            doctor=lambda: any(name.startswith("storage.") for name in installation.doctor()),
        )

        create()  # Object storage is unreachable: bring it back, then check the doctor
        wait_until(lambda: not any(name.startswith("storage.") for name in installation.doctor()), limit=LIMIT)
        wait_for_success(job)
        installation.wait_until_silent("ExportChunksNotTaken")


# ---- The key of the object storage is wrong -------------------------------------------------------------------------
@contextmanager
def other_secret() -> Iterator[Callable[[], None]]:
    """Change the secret of the service's key in the object storage. Yields the function that restores it."""
    store = servers.started[0].seaweedfs
    right = store.identities.read_text()
    secret = store.keys["S3_SECRET_ACCESS_KEY"]
    assert right.count(secret) == 1

    def load(identities: str) -> None:
        store.identities.write_text(identities)
        os.kill(store.pid, signal.SIGHUP)

    load(right.replace(secret, "another"))
    try:
        yield lambda: load(right)
    finally:
        load(right)


def test_the_key_of_the_object_storage_is_wrong(workers: Workers, dataset: Dataset, alice: User) -> None:
    """Without waiting work."""
    with drill(workers, alice) as installation, other_secret() as correct:
        installation.start_clock()
        installation.wait_for_signs(
            health_page=lambda: installation.readiness()["storage"] == "denies these keys access to the bucket",
            metric=lambda: installation.metric('sum(increase(sluice_caught_errors_total{place="cleanup"}[20s]))') > 0,
            alert=lambda: installation.fires("SluiceCleanupFailing"),
            doctor=lambda: any(name.startswith("storage.") for name in installation.doctor()),
        )
        job = installation.export()

        # Object storage is unreachable: status 403. Keys are rotated: SeaweedFS reloads its file on SIGHUP.
        correct()
        wait_until(lambda: not any(name.startswith("storage.") for name in installation.doctor()), limit=LIMIT)
        wait_for_success(job)
        assert set(Chunk.objects.values_list("attempts", flat=True)) == {1}
        installation.wait_until_silent("SluiceCleanupFailing")


# ---- The spool is full ----------------------------------------------------------------------------------------------
@pytest.fixture
def spool(tmp_path: Path) -> Iterator[Path]:
    """A file system of 4 MB for TMPDIR. Without root, it needs a mount namespace, as CONTRIBUTING.md describes."""
    folder = tmp_path / "spool"
    folder.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", folder], check=False).returncode != 0:
        pytest.skip("no permission to mount: prefix the command with unshare --map-current-user --keep-caps --mount")
    yield folder
    subprocess.run(["umount", "--lazy", folder], check=True)


def test_the_spool_is_full(workers: Workers, dataset: Dataset, alice: User, spool: Path) -> None:
    with drill(workers, alice, TMPDIR=str(spool), ETL_MAX_FILE_BYTES="1200000") as installation:
        body = b"word " * 200_000

        def is_refused() -> bool:
            try:
                installation.client.submit_document(body)
            except AssertionError:
                return True
            return False

        assert "MiB are needed" not in " ".join(installation.doctor().values())
        (spool / "full").write_bytes(bytes(4_100_000 - sum(file.stat().st_size for file in spool.iterdir())))
        installation.start_clock()
        assert is_refused()
        installation.wait_for_signs(
            metric=lambda: installation.metric("sum(sluice_disk_full_total)") > 0,
            alert=lambda: installation.fires("SluiceDiskFull"),
            doctor=lambda: "MiB are needed" in " ".join(installation.doctor().values()),
        )
        assert set(installation.readiness().values()) == {"ok"}  # everything but uploads works

        (spool / "full").unlink()  # Disk is full: its files go with their process
        task = installation.client.submit_document(b"Hello.")
        wait_until(lambda: installation.client.status(task) == "completed", limit=LIMIT)
        installation.wait_until_silent("SluiceDiskFull")


# ---- The model server is down ---------------------------------------------------------------------------------------
def test_the_model_server_is_down(
    workers: Workers,
    dataset: Dataset,
    alice: User,
    pages: DjangoClient,  # noqa: F811
) -> None:
    rule = make_rule(alice, mode="llm", name="invoices", json_schema=INVOICE)
    with openai_server.running() as models:
        models.set_default(openai_server.problem(503))
        changes = {"ETL_LLM_BASE_URL": models.url, "ETL_LLM_MODEL": openai_server.MODEL}
        with drill(workers, alice, **changes, ETL_POSTPROCESS_MAX_ATTEMPTS="1") as installation:
            installation.start_clock()
            text = b"Invoice INV-2024-17. Total due: 1,234.50 EUR"
            tasks = [installation.client.submit_document(text, rule=rule.pk) for _ in range(4)]
            installation.wait_for_signs(
                metric=lambda: installation.metric('sum(etl_task_failures_total{code="llm_unavailable"})') > 2,
                alert=lambda: installation.fires("EtlServiceUnavailable"),
                doctor=lambda: "peers.model" in installation.doctor(),
            )
            assert set(installation.readiness().values()) == {"ok"}  # web does not need the model

            # Documents are stuck: bring the model server back, then retry from the admin's list of documents.
            models.set_default(data_reply({"number": "INV-2024-17", "total": 1234.5}))
            failed = Task.objects.filter(status="failed")
            wait_until(lambda: failed.count() == len(tasks), limit=LIMIT)
            confirm(pages, select(pages, "retry_postprocess", *failed))
            wait_until(lambda: Task.objects.filter(status="completed").count() == len(tasks), limit=LIMIT)
            installation.wait_until_silent("EtlServiceUnavailable")
