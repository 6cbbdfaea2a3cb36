"""Backup and restore with the commands of docs/backup.md: only the database returns to an earlier point in time."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx2
import psycopg
import pytest
from django.db import connection
from psycopg import sql

from config.dev.stack.orphan_watchdog import PROJECT
from config.dev.stack.postgres import SUPERUSER, program
from config.dev.stack.process import Process
from config.platform import storage
from etl import runstate
from etl.maintenance import after_restore
from etl.models import Task
from etl.pipeline import artifacts
from exports.delivery import receipts
from exports.models import Chunk, Delivery, File, Job, Link, Receipt, Watermark
from tests import scripted_stages
from tests.chaos.documents import BOTH_QUEUES, markdown_of, ocr_calls, post_calls, scripted_rule, settle, submit
from tests.chaos.site import QUEUES, Site
from tests.docs.blocks import blocks_of
from tests.e2e.test_streams import Client
from tests.integration.etl_factories import make_rule
from tests.integration.receiver import receiver
from tests.serving import token_of
from tests.waiting import wait_until

PAGE = PROJECT / "docs" / "backup.md"
TOOLS = program("pg_dump").parent


def command(words: str) -> str:
    """Return the only shell block of the page that contains these words."""
    (block,) = [block for block in blocks_of(PAGE) if block.language == "sh" and words in block.text]
    return block.text


def shell(site: Site) -> dict[str, str]:
    """Return the variables of the operator's shell, with the addresses of the servers and not of the proxies."""
    paths = [str(TOOLS), str(Path(sys.executable).parent), os.environ["PATH"]]
    return site.environment(PATH=":".join(paths), BACKUPS=site.folder, PYTHONUNBUFFERED=1)


def run(site: Site, words: str) -> str:
    """Run a block of the page, and return its output."""
    done = subprocess.run(
        ["bash", "-euc", command(words)], check=False, cwd=PROJECT, env=shell(site), capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def run_and_kill(site: Site, words: str, *, at: str) -> None:
    """Run a block of the page, and kill it when it has printed `at`."""
    with subprocess.Popen(
        ["bash", "-euc", f"exec {command(words)}"],
        cwd=PROJECT, env=shell(site), stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
    ) as process:  # fmt: skip
        assert process.stdout
        assert any(at in line for line in process.stdout), f"it never printed {at}"
        process.kill()


# ---- Losing the database --------------------------------------------------------------------------------------------
def create_extension(site: Site) -> None:
    """Create an extension that the restoring role cannot create.

    The databases of the stack and of compose.yaml have it.
    """
    with psycopg.connect(site.servers.postgres.url(SUPERUSER, connection.settings_dict["NAME"])) as superuser:
        superuser.execute("CREATE EXTENSION IF NOT EXISTS pg_stat_statements")


def recreate_database(site: Site) -> None:
    """Drop the database despite its connections, and create an empty one."""
    name = connection.settings_dict["NAME"]
    connection.close()
    connection.close_pool()  # type: ignore[attr-defined]
    with psycopg.connect(site.servers.postgres.url("sluice"), autocommit=True) as own:
        own.execute(sql.SQL("DROP DATABASE {} WITH (FORCE)").format(sql.Identifier(name)))
        own.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name)))


def stop_all(site: Site, *, keep: Process | None = None) -> None:
    """Stop all processes that can be stopped."""
    if site.web:
        site.web.stop()
    for process in (*site.workers, *site.beats):
        if process is not keep:
            process.stop()


def highest_token() -> int:
    with connection.cursor() as cursor:
        cursor.execute("SELECT last_value FROM exports_fence_seq")
        return int(cursor.fetchone()[0])


@contextmanager
def event_stream(site: Site, job: Job, *, after: object = None) -> Iterator[Client]:
    assert site.web
    client = Client(site.web, token_of(site.owner))
    try:
        yield client.watch(job, after=after)
    finally:
        client.disconnect()


def receipt_of(site: Site, job: Job) -> Any:
    response = site.client.get(f"/exports/{job.pk}")
    assert response.status_code == 200, response.text
    return response.json()["receipt"]


def retry(site: Site, task: Task, rule: Any) -> None:
    response = site.client.post(f"/api/v1/etl/tasks/{task.pk}/retry", json={"from_stage": "ocr", "rule_id": rule.pk})
    assert response.status_code == 202, response.text


# ---- The scenario --------------------------------------------------------------------------------------------------
class RestoreScenario:
    """Work of every kind, before the backup and in the period that the restore loses."""

    def __init__(self, site: Site, receiving: Any) -> None:
        self.site, self.receiving = site, receiving
        self.rule = scripted_rule(site)
        self.other_rule = make_rule(site.owner, name="other")

    def run_before_backup(self) -> None:
        """Suspend a worker during a chunk, leave other chunks running, and queue some work."""
        site = self.site
        site.start_web()
        site.subscribe(self.receiving.url)
        site.points.arm("about to commit", "stop", key="FROZEN")
        self.frozen_worker = site.start_worker("exports", children=1)
        self.frozen = site.submit("FROZEN")
        wait_until(lambda: len(site.points.reached()) == 1)
        (self.frozen_pid,) = site.points.reached()

        site.start_worker(QUEUES)
        site.start_worker(BOTH_QUEUES)
        self.done, self.vanished = site.submit("DONE"), site.submit("VANISHED")
        self.failed = submit(site, "once:raise FileCorrupt", rule=self.rule)
        site.settle(self.done, self.vanished)
        wait_until(lambda: len(self.receiving.ids) == 2)
        settle(self.failed)

        for key in ("HALF", "STUCK"):
            site.points.arm("about to commit", "wait", key=key)
        self.half = site.submit("HALF", "FIRST")
        wait_until(lambda: Job.objects.get(pk=self.half.pk).done == 1)
        self.stuck = site.submit("STUCK")
        wait_until(lambda: len(site.points.reached()) == 3)
        self.waiting = site.submit("WAITING")
        self.document = submit(site, f"until go-{self.rule.name}", rule=self.rule)
        wait_until(lambda: ocr_calls(self.document) == 1)
        # The web process restarts on another port.
        self.link = "/exports/" + receipt_of(site, self.done)["signedUrl"].partition("/exports/")[2]

    def run_lost_period(self) -> None:
        """Run the work that the restore loses.

        Jobs end, a link is used, objects are replaced and deleted, and new work is submitted.
        """
        site = self.site
        with event_stream(site, self.half) as client:
            site.points.release("about to commit")
            scripted_stages.allow(f"go-{self.rule.name}")
            site.start_beat()
            self.last_event_id = list(client)[-1].id
        assert site.client.get(self.link).status_code == 302
        receipts.revoke(Receipt.objects.get(job=self.vanished))
        storage.delete(Receipt.objects.get(job=self.vanished).object_key)
        site.source.behave("DONE", rows=5)
        self.lost = site.submit("LOST")
        site.settle(site.submit("DONE", reuse="never"), self.lost, self.half, self.stuck, self.waiting, self.frozen)
        site.source.behave("DONE", rows=3)
        self.lost_path = Chunk.objects.get(job=self.lost).path
        self.lost_task = submit(site, "A secret of a time that never was.", rule=self.rule)
        retry(site, self.failed, self.other_rule)
        settle(self.document, self.lost_task, self.failed)
        wait_until(lambda: len(self.receiving.ids) == 8)
        self.token, self.calls = highest_token(), self.paid_calls()

    def paid_calls(self) -> tuple[int, int]:
        """Return the number of OCR runs of the document, and of model calls."""
        return ocr_calls(self.document), post_calls(self.rule)


@pytest.mark.timeout(600)
def test_a_restored_database_is_consistent_with_newer_external_state(site: Site) -> None:
    """One worker is suspended from before the backup until after the restore."""
    with receiver() as receiving:
        scenario = RestoreScenario(site, receiving)
        scenario.run_before_backup()
        create_extension(site)
        run(site, "pg_dump")
        scenario.run_lost_period()

        stop_all(site, keep=scenario.frozen_worker)
        recreate_database(site)
        run(site, "pg_restore")
        assert " success " in run(site, "psql"), "the dry run reports nothing"
        run(site, "migrate")
        run_and_kill(site, "reconcile\n", at="links revoked")
        output = run(site, "reconcile\n")

        assert_consistent(site, scenario, output)
        resume(site, scenario)
        assert_lost_period_ignored(site, scenario)
        assert_unknown_objects_removed(site, scenario)


def assert_consistent(site: Site, scenario: RestoreScenario, output: str) -> None:
    """Assert consistency before any process runs."""
    assert not Chunk.objects.filter(token__isnull=False).exists()
    assert not Link.objects.filter(used_at=None, revoked_at=None).exists()
    assert Receipt.objects.get(job=scenario.vanished).deleted_at, "a receipt names a missing object"
    assert Receipt.objects.get(job=scenario.done).deleted_at is None
    stored = {(item.key, item.etag) for item in storage.list_objects("things/")}
    assert set(File.objects.values_list("path", "etag")) <= stored, "the reuse cache names a missing file"
    assert highest_token() > scenario.token, "a fencing token would be issued again"
    assert runstate.read(scenario.lost_task.pk) is None
    assert artifacts.find_ocr(scenario.lost_task), "an artifact was deleted without a request"
    assert " artifacts of documents without a row" in output


def resume(site: Site, scenario: RestoreScenario) -> None:
    """Start all processes, and resume the suspended worker."""
    site.start_web()
    with event_stream(site, scenario.half, after=scenario.last_event_id) as client:
        site.start_worker(QUEUES)
        site.start_worker(BOTH_QUEUES)
        site.start_beat()
        events = list(client)
    assert events[-1].event == "status"
    assert events[-1].data["status"] == "success"
    assert {event.data["key"] for event in events if event.event == "chunk"} == {"HALF"}
    assert min(event.id for event in events) > scenario.last_event_id
    os.kill(scenario.frozen_pid, signal.SIGCONT)
    site.settle(scenario.half, scenario.stuck, scenario.waiting, scenario.frozen)
    settle(scenario.document)
    wait_until(lambda: '"lease_lost"' in scenario.frozen_worker.log.read_text(), limit=30)


def assert_lost_period_ignored(site: Site, scenario: RestoreScenario) -> None:
    """Assert that nothing from the lost period is used."""
    jobs = Job.objects.all()
    assert {job.status for job in jobs} == {"success"}
    assert set(Chunk.objects.values_list("attempts", flat=True)) == {1}, "an attempt was counted"

    assert site.client.get(scenario.link).json()["code"] == "link_revoked", "a link was redeemed twice"
    fresh = site.client.post(f"/exports/{scenario.done.pk}/link").json()["signedUrl"]
    assert site.client.get(fresh).status_code == 302
    assert receipt_of(site, scenario.vanished)["state"] == "expired"
    assert site.client.get(f"/exports/{scenario.lost.pk}").status_code == 404

    ended = Task.objects.get(pk=scenario.document.pk)
    assert ended.status == "completed"
    assert scenario.paid_calls() == scenario.calls, "a paid call was repeated"
    assert site.client.get(f"/api/v1/etl/tasks/{scenario.lost_task.pk}").status_code == 404
    again = submit(site, "Another text.", rule=scenario.rule)
    assert again.pk > scenario.lost_task.pk
    site.allowed.retried_tasks.add(str(scenario.failed.pk))
    assert Task.objects.get(pk=scenario.failed.pk).status == "failed"
    retry(site, scenario.failed, scenario.rule)
    settle(again, scenario.failed)
    result = Task.objects.get(pk=scenario.failed.pk).result
    assert result
    assert "data" in result, "it reused the result of another retry"


def assert_unknown_objects_removed(site: Site, scenario: RestoreScenario) -> None:
    """Remove unknown objects while all processes run, and assert that foreign ones stay."""
    assert storage.head(scenario.lost_path)
    foreign = "things/notes.txt"
    storage.put(foreign, b"A foreign object.", content_type="text/plain")

    run(site, "--delete-unknown")

    assert storage.head(scenario.lost_path) is None
    assert not list(storage.list_objects(f"_receipts/{scenario.lost.pk}/"))
    assert not list(storage.list_objects(artifacts.folder(scenario.lost_task)))
    assert storage.head(foreign), "a foreign object was deleted"
    storage.delete(foreign)
    events = [each.json["data"]["jobId"] for each in scenario.receiving.received]
    twice = {str(job.pk) for job in (scenario.half, scenario.stuck, scenario.waiting, scenario.frozen)}
    assert {job_id for job_id in events if events.count(job_id) > 1} == twice
    known = {str(pk) for pk in Delivery.objects.values_list("pk", flat=True)}
    assert set(scenario.receiving.ids[:2]) <= known, "a delivery changed its id"


@pytest.mark.timeout(300)
@pytest.mark.parametrize("is_redis_lost", [False, True], ids=["with Redis", "without Redis"])
def test_a_document_never_gets_the_text_of_a_lost_one(site: Site, *, is_redis_lost: bool) -> None:
    """Without `reconcile`, the ID of the lost document is issued again. Redis and the bucket still have its data."""
    site.start_web()
    site.start_worker(BOTH_QUEUES)
    create_extension(site)
    run(site, "pg_dump")
    lost = submit(site, "A secret of another document.")
    settle(lost)
    (scripted_stages.folder() / f"ocr-{lost.pk}").unlink()  # or the invariants count its calls as the next document's
    stop_all(site)
    recreate_database(site)
    run(site, "pg_restore")
    if is_redis_lost:
        site.restart_broker_empty()

    site.start_web()
    site.start_worker(BOTH_QUEUES)
    again = submit(site, "Its own text.")
    assert again.pk == lost.pk
    settle(again)

    assert markdown_of(again).endswith("Its own text.")
    assert "secret" not in site.client.get(f"/api/v1/etl/tasks/{again.pk}/markdown").text
    assert after_restore.unknown_artifacts(delete=True)
    assert markdown_of(again).endswith("Its own text.")


def reports_older_database(site: Site) -> bool:
    """Return whether web's metric reports a database that is older than the bucket."""
    assert site.web
    return "sluice_database_older_than_bucket 1.0" in httpx2.get(f"{site.web.url}/metrics").text


def doctor(site: Site) -> str:
    done = subprocess.run(
        [sys.executable, "manage.py", "doctor"],
        check=False, cwd=PROJECT, env=shell(site), capture_output=True, text=True,
    )  # fmt: skip
    return done.stdout


@pytest.mark.timeout(300)
def test_a_restore_without_reconcile_is_noticed(site: Site) -> None:
    """The metric and the doctor report it until `reconcile` has run."""

    def start() -> None:
        site.start_web()
        site.start_worker(QUEUES)
        site.start_beat()

    start()
    wait_until(lambda: Watermark.objects.filter(number__gt=1).exists(), limit=30)
    create_extension(site)
    run(site, "pg_dump")
    number = Watermark.objects.get().number
    wait_until(lambda: Watermark.objects.get().number > number + 1, limit=30)
    assert not reports_older_database(site)
    stop_all(site)
    recreate_database(site)
    run(site, "pg_restore")
    assert "It is older than the bucket" in doctor(site)

    start()
    wait_until(lambda: reports_older_database(site), limit=30)
    assert '"database_older_than_bucket"' in site.logs()

    stop_all(site)
    assert " steps of the watermark" in run(site, "reconcile\n")
    assert "It is as new as the bucket" in doctor(site)
    start()
    number = Watermark.objects.get().number
    wait_until(lambda: Watermark.objects.get().number > number, limit=30)
    assert not reports_older_database(site)
