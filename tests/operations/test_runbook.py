"""Each query and command of docs/runbook.md, read from the page and run in the situation that it is for."""

import ast
import csv
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import suppress
from datetime import timedelta
from ipaddress import ip_network
from pathlib import Path

import httpx2
import psycopg
import pytest
from django.conf import LazySettings, settings
from django.contrib.auth.models import User
from django.db.models.functions import Now
from django.utils import timezone
from knox.models import AuthToken
from rest_framework.test import APIClient

from config.dev.stack import ports
from config.dev.stack.orphan_watchdog import PROJECT
from config.dev.stack.postgres import SUPERUSER, program
from config.platform import storage
from config.platform.webhooks import sender, subscriptions
from config.platform.webhooks.models import Attempt, Webhook
from etl.models import ModelUsage, Task
from exports.core import wakeups
from exports.core.errors import ChunkUploadFailed
from exports.delivery import links
from exports.jobs import actions, webhook_events
from exports.models import Chunk, Dataset, Delivery, Event, Job, Slot, Tick
from exports.source import database
from exports.worker import completion, execution
from tests import servers
from tests.broker import lose_messages, queued
from tests.docs.blocks import Block, blocks_of
from tests.e2e.conftest import Workers
from tests.integration import outcomes
from tests.integration.etl_factories import make_row
from tests.integration.factories import claim_one, finish, make_job
from tests.integration.receiver import receiver
from tests.serving import serving, variables
from tests.waiting import wait_until

pytestmark = pytest.mark.timeout(900)  # each command is a separate process
PAGE = PROJECT / "docs" / "runbook.md"
TESTED_ELSEWHERE = {"a-deployment-loses-nothing", "restoring-a-backup"}  # these have separate tests


# ---- The page -------------------------------------------------------------------------------------------------------
def blocks() -> list[tuple[str, Block]]:
    """Return each block with the anchor of its chapter."""
    lines = PAGE.read_text().splitlines()

    def chapter(block: Block) -> str:
        heading = next(line for line in reversed(lines[: block.line]) if line.startswith("## "))
        return heading.removeprefix("## ").lower().replace(" ", "-")

    return [(chapter(block), block) for block in blocks_of(PAGE)]


def block(anchor: str, words: str) -> Block:
    """Return the block of this chapter that contains these words, or equals them."""
    inside = [block for chapter, block in blocks() if chapter == anchor and words in block.text]
    (found,) = [block for block in inside if block.text.strip() == words] or inside
    return found


def test_every_runbook_block_is_run_by_a_test() -> None:
    """C6."""
    calls = [
        (call.args[0].value, call.args[1].value)
        for call in ast.walk(ast.parse(Path(__file__).read_text()))
        if isinstance(call, ast.Call)
        and isinstance(call.func, ast.Name | ast.Attribute)
        and getattr(call.func, "id", getattr(call.func, "attr", "")) in {"query", "execute"}
        and len(call.args) > 1
        and isinstance(call.args[0], ast.Constant)
        and isinstance(call.args[1], ast.Constant)
    ]
    run = [block(str(anchor), str(words)) for anchor, words in calls]
    left = [each.place for chapter, each in blocks() if chapter not in TESTED_ELSEWHERE and each not in run]
    assert left == []


class Operator:
    """An operator with the page, a shell, and psql. Variables such as $JOB are passed as `JOB=…`."""

    def __init__(self, root: Path) -> None:
        folders = [str(Path(sys.executable).parent), str(program("psql").parent), os.environ["PATH"]]
        self.environment = variables(
            root, PATH=os.pathsep.join(folders), EXPORT_LEASE_SECONDS="9", EXPORT_WEBHOOK_ALLOW_CIDRS="127.0.0.0/8",
        )  # fmt: skip

    def query(self, anchor: str, words: str, *, replace: tuple[str, str] = ("", "")) -> list[dict[str, str]]:
        """Run a query like psql. Returns its rows, or [{"error": …}] if it fails."""
        found = block(anchor, words)
        url = self.environment["SOURCE_DATABASE_URL" if "source" in found.title else "DATABASE_URL"]
        done = subprocess.run(
            ["psql", "--no-psqlrc", "--csv", "--set", "ON_ERROR_STOP=1", url],
            check=False, input=found.text.replace(*replace), env=self.environment, capture_output=True, text=True,
            timeout=60,
        )  # fmt: skip
        return list(csv.DictReader(done.stdout.splitlines())) if done.returncode == 0 else [{"error": done.stderr}]

    def execute(self, anchor: str, words: str, *, status: int = 0, **given: object) -> str:
        """Run commands. Returns all of their output."""
        done = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", block(anchor, words).text],
            check=False, cwd=PROJECT, env=self.environment | {name: str(value) for name, value in given.items()},
            capture_output=True, text=True, timeout=120,
        )  # fmt: skip
        assert done.returncode == status, f"{done.stdout}\n{done.stderr}"
        return done.stdout + done.stderr


@pytest.fixture
def operator(transactional_db: None, tmp_path: Path) -> Operator:
    lose_messages()
    return Operator(tmp_path)


@pytest.fixture
def slow(dataset: Dataset, source_db: psycopg.Connection) -> Dataset:
    """A dataset whose calls take a minute."""
    source_db.execute("""
        CREATE OR REPLACE FUNCTION data.rows_for(key text, effective_date date)
        RETURNS TABLE (k text, n int, d date) LANGUAGE sql AS $$ SELECT key, 1, effective_date FROM pg_sleep(60) $$
    """)
    return dataset


def fail_upload() -> Job:
    claim = claim_one(backend="test")
    assert claim
    outcomes.fail(claim, ChunkUploadFailed(), delay=None)
    return Job.objects.get(pk=claim.job_id)


# ---- First look -----------------------------------------------------------------------------------------------------
def test_first_look(operator: Operator, dataset: Dataset, alice: User, tmp_path: Path) -> None:
    make_job(dataset, alice, 3)
    (row,) = operator.query("first-look", "chunks_left")
    assert (row["status"], row["jobs"], row["chunks_left"]) == ("pending", "1", "3")

    printed = operator.execute("first-look", "manage.py doctor", status=2)
    assert "No worker consumes the queue exports" in printed

    with serving(tmp_path, operator.environment) as web:
        assert '"status":"ok"' in operator.execute("first-look", "/readyz", BASE_URL=web.url)


# ---- Jobs are stuck -------------------------------------------------------------------------------------------------
def test_a_worker_that_was_killed(operator: Operator, slow: Dataset, alice: User, workers: Workers) -> None:
    job = make_job(slow, alice, 2)
    worker = workers.start("exports", concurrency=1)
    wait_until(lambda: Slot.objects.held().exists())
    (row,) = operator.query("jobs-are-stuck", "JOIN exports_dataset")
    assert (row["job_id"], row["pending"], row["running"], row["overdue"]) == (str(job.pk), "1", "1", "0")

    worker.kill()
    wait_until(lambda: operator.query("jobs-are-stuck", "JOIN exports_dataset")[0]["overdue"] == "1")
    (slot,) = operator.query("jobs-are-stuck", "FROM exports_slot")
    assert (slot["job_id"], slot["overdue"]) == (str(job.pk), "t")
    assert slot["backend"].startswith("sluice-export-")

    operator.execute("jobs-are-stuck", "repair reap")
    assert not Slot.objects.held().exists()
    assert set(job.chunks.values_list("status", flat=True)) == {"pending"}


def test_a_worker_that_hangs(operator: Operator, dataset: Dataset, alice: User) -> None:
    make_job(dataset, alice, 1)
    claim = claim_one(backend="sluice-export-nobody")
    assert claim
    (slot,) = operator.query("jobs-are-stuck", "FROM exports_slot")
    assert (slot["chunk"], slot["overdue"]) == (str(claim.chunk_id), "f")

    assert "may still be alive" in operator.execute("jobs-are-stuck", "repair free", status=1, SLOT=slot["slot"])
    assert "queued again" in operator.execute("jobs-are-stuck", "repair release", CHUNK=slot["chunk"])
    assert Chunk.objects.get().status == "pending"
    assert "This chunk is not running" in operator.execute(
        "jobs-are-stuck", "repair release", status=1, CHUNK=slot["chunk"]
    )

    Slot.objects.filter(pk=slot["slot"]).update(lease_until=Now() - timedelta(seconds=1))
    operator.execute("jobs-are-stuck", "repair free", SLOT=slot["slot"])
    operator.execute("jobs-are-stuck", "repair free", SLOT=slot["slot"])  # the lock is free
    assert not Slot.objects.held().exists()


def test_abandoned_and_failed_jobs(operator: Operator, dataset: Dataset, alice: User) -> None:
    unwanted = make_job(dataset, alice, 2)
    operator.execute("jobs-are-stuck", "repair cancel", JOB=unwanted.pk)
    unwanted.refresh_from_db()
    assert unwanted.status == "cancelled"

    make_job(dataset, alice, 1)
    failed = fail_upload()
    assert "1 failed chunk queued" in operator.execute("jobs-are-stuck", "repair retry", FAILED_JOB=failed.pk)
    assert queued("exports") > 0
    failed.refresh_from_db()
    assert failed.status == "running"
    assert "has not failed" in operator.execute("jobs-are-stuck", "repair retry", status=1, FAILED_JOB=failed.pk)
    assert "Not found" in operator.execute("jobs-are-stuck", "repair cancel", status=1, JOB="nothing")


# ---- Nothing runs ---------------------------------------------------------------------------------------------------
def test_beat_and_workers_are_dead(operator: Operator, dataset: Dataset, alice: User, workers: Workers) -> None:
    Tick.objects.create(name="reap", ran_at=timezone.now() - timedelta(hours=2))
    (tick,) = operator.query("nothing-runs", "exports_tick")
    assert tick["name"] == "reap"
    assert tick["ago"].startswith("02:00:")

    assert "No worker consumes the queue exports" in operator.execute("nothing-runs", "manage.py doctor", status=2)
    worker = workers.start("exports", concurrency=1)
    wait_until(lambda: "ready." in worker.log.read_text())
    printed = operator.execute("nothing-runs", "manage.py doctor", status=2)
    assert "The queue exports has 1 worker." in printed
    assert "No worker consumes the queue maintenance" in printed
    worker.kill()

    make_job(dataset, alice, 3)
    lose_messages()
    operator.execute("nothing-runs", "python manage.py repair reap")
    assert queued("exports") > 0


def test_a_full_broker_can_be_purged_and_refilled(operator: Operator, dataset: Dataset, alice: User) -> None:
    make_job(dataset, alice, 3)
    for _ in range(50):
        wakeups.chunks(waiting=1)
    before = queued("exports")
    operator.execute("nothing-runs", "purge --force")
    assert 0 < queued("exports") < before


# ---- Disk is full ---------------------------------------------------------------------------------------------------
def test_disk_is_full(operator: Operator, dataset: Dataset, alice: User) -> None:
    assert "Avail" in operator.execute("disk-is-full", "df -h")
    names = {row["name"] for row in operator.query("disk-is-full", "pg_total_relation_size")}
    assert names & {"auth_permission", "etl_rule", "django_content_type"}

    with psycopg.connect(servers.started[0].postgres.url(SUPERUSER), autocommit=True) as admin:
        admin.execute("SELECT pg_create_physical_replication_slot('gone', true)")
        try:
            (slot,) = operator.query("disk-is-full", "pg_replication_slots")
        finally:
            admin.execute("SELECT pg_drop_replication_slot('gone')")
    assert (slot["slot_name"], slot["active"]) == ("gone", "f")

    old, ended = make_job(dataset, alice, 1), make_job(dataset, alice, 1)
    for job, days in ((old, 4), (ended, 2)):
        actions.cancel(job)
        ended_at = timezone.now() - timedelta(days=days)
        Job.objects.filter(pk=job.pk).update(finished_at=ended_at)
        Event.objects.filter(job=job).update(at=ended_at)
    Event.objects.update(told_at=Now())
    operator.execute("disk-is-full", "repair purge")
    assert list(Job.objects.all()) == [ended]
    assert ended.events.exists()
    operator.execute("disk-is-full", "repair sweep")
    operator.environment["S3_ENDPOINT_URL"] = "http://127.0.0.1:1"
    assert "Failed: delete_orphans" in operator.execute("disk-is-full", "repair sweep", status=1)
    assert not ended.events.exists()


def make_old_row(user: User) -> Task:
    """Create a document whose row was last changed an hour ago."""
    row = make_row(user)
    Task.objects.filter(pk=row.pk).update(updated_at=timezone.now() - timedelta(hours=1))
    return row


# ---- Redis is lost --------------------------------------------------------------------------------------------------
def test_redis_is_lost(operator: Operator, dataset: Dataset, alice: User) -> None:
    make_job(dataset, alice, 3)
    make_old_row(alice)
    lose_messages()
    assert operator.query("redis-is-lost", "AS documents") == [{"chunks": "3", "deliveries": "0", "documents": "1"}]
    operator.execute("redis-is-lost", "repair reap")
    assert queued("exports") > 0
    assert queued("etl-ocr") == 1


# ---- Source is slow -------------------------------------------------------------------------------------------------
@pytest.fixture
def blocked(source_db: psycopg.Connection) -> Iterator[threading.Thread]:
    """A call that waits for a lock of another session."""
    source_db.execute("CREATE TABLE data.facts (n int)")
    with psycopg.connect(settings.SLUICE.source_url) as migration:
        migration.execute("LOCK TABLE data.facts")

        def call() -> None:
            with suppress(psycopg.Error), database.connect(database.name_backend()) as session:
                session.execute("SET lock_timeout = 0")
                session.execute("SELECT * FROM data.facts")

        thread = threading.Thread(target=call)
        thread.start()
        yield thread
        migration.rollback()
        thread.join(30)


def test_source_is_slow(operator: Operator, blocked: threading.Thread) -> None:
    wait_until(lambda: operator.query("source-is-slow", "pg_blocking_pids"))
    (row,) = operator.query("source-is-slow", "pg_blocking_pids")
    assert row["call"] == "SELECT * FROM data.facts"
    assert row["blocked_by"] != "{}"
    assert row["wait_event_type"] == "Lock"

    assert operator.query("source-is-slow", "pg_terminate_backend") == []  # no call is that old
    assert blocked.is_alive()
    ended = operator.query("source-is-slow", "pg_terminate_backend", replace=("5 minutes", "0 seconds"))
    assert ended == [{"pg_terminate_backend": "t"}]
    blocked.join(30)
    assert not blocked.is_alive()


def test_fewer_calls_of_one_dataset(operator: Operator, dataset: Dataset) -> None:
    function, path = "data.rows_for", "things"
    operator.execute("source-is-slow", "--max-concurrency", DATASET="things", FUNCTION=function, BASE_PATH=path)
    dataset.refresh_from_db()
    assert dataset.max_concurrency == 1
    assert Slot.objects.filter(dataset=dataset).count() == 1


def test_no_calls_for_a_while(operator: Operator, workers: Workers, dataset: Dataset, alice: User) -> None:
    """The workers of the queue are stopped, and started again."""
    exporting = workers.start("exports", concurrency=1)
    workers.start("bundles,maintenance", concurrency=1)
    wait_until(lambda: "ready." in exporting.log.read_text())
    exporting.stop()
    job = make_job(dataset, alice, 2)
    wakeups.chunks(waiting=1)
    operator.execute("nothing-runs", "python manage.py repair reap")
    assert set(job.chunks.values_list("status", "attempts")) == {("pending", 0)}

    workers.start("exports", concurrency=1)
    wait_until(lambda: Job.objects.get().status == "success")


# ---- Object storage is unreachable ----------------------------------------------------------------------------------
def test_object_storage_is_unreachable(operator: Operator, dataset: Dataset, alice: User) -> None:
    jobs = [make_job(dataset, alice, 1, key=key) for key in ("JFK", "EWR")]
    for _ in jobs:
        fail_upload()
    failed = [row["job_id"] for row in operator.query("object-storage-is-unreachable", "EXPORT_UPLOAD_FAILED")]
    assert failed == [str(job.pk) for job in jobs]
    operator.execute("object-storage-is-unreachable", "repair retry", FAILED_JOBS=" ".join(failed))
    assert set(Job.objects.values_list("status", flat=True)) == {"running"}
    assert operator.query("object-storage-is-unreachable", "EXPORT_UPLOAD_FAILED") == []


# ---- A chunk fails repeatedly ---------------------------------------------------------------------------------------
RAISES = """
CREATE OR REPLACE FUNCTION data.rows_for(key text, effective_date date) RETURNS TABLE (k text, n int, d date)
LANGUAGE plpgsql AS $$ BEGIN RAISE division_by_zero; END $$
"""
FIXED = RAISES.replace("plpgsql AS $$ BEGIN RAISE division_by_zero; END $$", "sql AS $$ SELECT $1, 1, $2 $$")


def test_a_failing_function_is_found_fixed_and_retried(
    operator: Operator, dataset: Dataset, alice: User, source_db: psycopg.Connection, settings: LazySettings
) -> None:
    settings.SLUICE = settings.SLUICE.model_copy(update={"export_max_attempts": 1})
    source_db.execute(RAISES)
    job = make_job(dataset, alice, 1, reuse="never", allow_degraded=False)
    execution.drain()
    (row,) = operator.query("a-chunk-fails-repeatedly", "error_detail")
    assert (row["job_id"], row["key"], row["effective_date"]) == (str(job.pk), "JFK", "2024-02-28")
    assert (row["error_code"], row["error_detail"]) == ("EXPORT_SOURCE_ERROR", "SQLSTATE 22012")
    assert "division_by_zero" in operator.query("a-chunk-fails-repeatedly", "SELECT count(*)")[0]["error"]

    source_db.execute(FIXED)
    assert operator.query("a-chunk-fails-repeatedly", "SELECT count(*)") == [{"count": "1"}]
    operator.execute("a-chunk-fails-repeatedly", "repair retry", FAILED_JOB=job.pk)
    execution.drain()
    completion.complete(job.pk)
    job.refresh_from_db()
    assert job.status == "success"
    assert operator.query("a-chunk-fails-repeatedly", "error_detail") == []


def test_a_chunk_that_kills_its_workers(operator: Operator, dataset: Dataset, alice: User) -> None:
    make_job(dataset, alice, 1)
    for _ in range(settings.SLUICE.export_max_attempts):
        assert claim_one(backend="sluice-export-nobody")
        past = Now() - timedelta(seconds=1)
        Chunk.objects.update(lease_until=past)
        Slot.objects.held().update(lease_until=past)
        operator.execute("jobs-are-stuck", "repair reap")
    (row,) = operator.query("a-chunk-fails-repeatedly", "error_detail")
    assert (row["status"], row["error_code"]) == ("failed", "EXPORT_WORKER_LOST")
    assert row["attempts"] == str(settings.SLUICE.export_max_attempts)


# ---- Documents are stuck --------------------------------------------------------------------------------------------
def test_documents_are_stuck(operator: Operator, alice: User) -> None:
    waiting, failed = make_old_row(alice), make_row(alice)
    error = {"code": "provider_unavailable", "stage": "ocr", "detail": "", "retryable": True}
    Task.objects.filter(pk=failed.pk).update(status="failed", error=error)
    assert [row["task_id"] for row in operator.query("documents-are-stuck", "AS waiting")] == [str(waiting.pk)]
    assert operator.query("documents-are-stuck", "error ->> 'code'") == [
        {"code": "provider_unavailable", "stage": "ocr", "tasks": "1"}
    ]
    operator.execute("documents-are-stuck", "repair reap")
    assert queued("etl-ocr") == 1
    lose_messages()
    assert "recreated" in operator.execute("documents-are-stuck", "repair wake", TASK=waiting.pk)
    assert queued("etl-ocr") == 1
    assert "This task has ended" in operator.execute("documents-are-stuck", "repair wake", status=1, TASK=failed.pk)


# ---- Language models cost too much ----------------------------------------------------------------------------------
def test_language_models_cost_too_much(operator: Operator, alice: User) -> None:
    usage = {"prompt_tokens": 900, "completion_tokens": 30, "calls": 3}
    spent, _waiting = make_row(alice), make_row(alice)
    spent.metadata = {"postprocess": {"usage": usage}}
    for run in (spent.first_run, spent.first_run + 1):
        spent.run = run
        ModelUsage.objects.record_run(spent)
    ModelUsage.objects.create(user=alice, rule_id=0, calls=1, prompt_tokens=10, completion_tokens=5)
    row, trial = operator.query("language-models-cost-too-much", "FROM etl_model_usage")
    assert (trial["rule_id"], trial["calls"], trial["rule_tests"]) == ("0", "1", "1")
    assert (row["username"], row["rule_id"], row["tasks"], row["runs"]) == ("alice", str(spent.rule_id), "1", "2")
    assert (row["calls"], row["prompt"], row["completion"]) == ("6", "1800", "60")


# ---- Webhooks do not arrive -----------------------------------------------------------------------------------------
def test_webhooks_do_not_arrive(operator: Operator, dataset: Dataset, alice: User, settings: LazySettings) -> None:
    settings.SLUICE = settings.SLUICE.model_copy(update={"export_webhook_allow_cidrs": [ip_network("127.0.0.0/8")]})
    with receiver() as hook:
        made = subscriptions.create(user_id=alice.pk, url=hook.url, events=["export.cancelled"])
        make_job(dataset, alice, 1)
        operator.execute("jobs-are-stuck", "repair cancel", JOB=Job.objects.get().pk)
        (untold,) = operator.query("webhooks-do-not-arrive", "AS untold")
        assert untold["untold"] == "1"

        webhook_events.fan_out()
        lost = Delivery.objects.get()
        Delivery.objects.update(status="failed", attempts=10, finished_at=Now())
        Attempt.objects.create(delivery=lost, error="no response in time", duration_ms=15_000)
        Webhook.objects.update(enabled=False, disabled_reason="It never arrived.", failures=10)
        (row,) = operator.query("webhooks-do-not-arrive", "disabled_reason")
        assert (row["webhook"], row["username"], row["enabled"], row["failed"]) == (str(made.pk), "alice", "f", "1")
        (attempt,) = operator.query("webhooks-do-not-arrive", "exports_attempt")
        assert (attempt["error"], attempt["duration_ms"]) == ("no response in time", "15000")

        operator.execute("webhooks-do-not-arrive", "repair redeliver", WEBHOOK=row["webhook"])
        sender.drain()
        assert hook.ids == [str(lost.pk)]
    (row,) = operator.query("webhooks-do-not-arrive", "disabled_reason")
    assert (row["enabled"], row["failed"], row["waiting"], row["failures"]) == ("t", "0", "0", "0")


# ---- Metrics are missing --------------------------------------------------------------------------------------------
def test_metrics_are_missing(operator: Operator, tmp_path: Path) -> None:
    with serving(tmp_path, operator.environment) as web:
        printed = operator.execute("metrics-are-missing", "/metrics", BASE_URL=web.url)
    assert "sluice_database_up 1.0" in printed
    assert 'export_slots{state="free"}' in printed
    assert "export_chunks_total" in printed


# ---- A link leaked --------------------------------------------------------------------------------------------------
@pytest.fixture
def finished(dataset: Dataset, alice: User) -> Job:
    return finish(make_job(dataset, alice, 1))


def test_a_leaked_link_can_be_revoked(operator: Operator, finished: Job, api: APIClient) -> None:
    other_client = APIClient(REMOTE_ADDR="203.0.113.9")
    path = links.path_of(finished.receipt.links.get())
    operator.execute("a-link-leaked", "revoke-links", JOB=finished.pk)
    assert other_client.get(path).json()["code"] == "link_revoked"
    (row,) = operator.query("a-link-leaked", "d.user_agent")
    assert (row["outcome"], row["address"]) == ("link_revoked", "203.0.113.9")
    (row,) = operator.query("a-link-leaked", "AS attempts")
    assert row == {"outcome": "link_revoked", "address": "203.0.113.9", "attempts": "1", "jobs": "1"}
    assert api.post(f"/exports/{finished.pk}/link").status_code in {200, 201}


def test_a_leaked_presigned_url_can_be_disabled(operator: Operator, finished: Job, api: APIClient) -> None:
    """The test checks the object too, because the commands may take longer than the minute that a URL is valid."""
    url = api.get(links.path_of(finished.receipt.links.get()))["Location"]
    assert httpx2.get(url, timeout=10).status_code == 200
    assert operator.query("a-link-leaked", "d.user_agent")[0]["outcome"] == "redeemed"
    assert storage.head(finished.receipt.object_key)
    operator.execute("a-link-leaked", "repair withdraw", JOB=finished.pk)
    assert storage.head(finished.receipt.object_key) is None
    assert httpx2.get(url, timeout=10).status_code in {403, 404}
    assert api.post(f"/exports/{finished.pk}/link").status_code == 410
    assert "The delivery has expired" in operator.execute("a-link-leaked", "repair withdraw", status=1, JOB=finished.pk)


def test_a_delivery_can_be_ended_during_a_storage_outage(operator: Operator, finished: Job, api: APIClient) -> None:
    operator.environment["S3_ENDPOINT_URL"] = "http://127.0.0.1:1"
    output = operator.execute("a-link-leaked", "repair withdraw", status=1, JOB=finished.pk)
    assert "`reap` will delete the object later" in output
    assert api.post(f"/exports/{finished.pk}/link").status_code == 410


def test_leaked_tokens_can_be_revoked(operator: Operator, api: APIClient, bob: User) -> None:
    AuthToken.objects.create(bob)
    assert api.get("/exports").status_code == 200
    assert "Revoked 1 token." in operator.execute("a-link-leaked", "revoke-tokens", USERNAME="alice")
    assert api.get("/exports").status_code == 401
    assert AuthToken.objects.get().user == bob
    operator.execute("keys-are-rotated", "revoke-tokens", USERNAME="bob")
    assert not AuthToken.objects.exists()


def test_a_new_key_is_long_enough(operator: Operator) -> None:
    assert len(operator.execute("keys-are-rotated", "token_urlsafe").strip()) >= 50


# ---- The command ----------------------------------------------------------------------------------------------------
def test_reap_reports_a_redis_outage(operator: Operator, alice: User) -> None:
    make_old_row(alice)
    operator.environment["REDIS_URL"] = f"redis://127.0.0.1:{ports.free(1)[0]}/0"
    assert "does not respond" in operator.execute("redis-is-lost", "repair reap", status=1)
