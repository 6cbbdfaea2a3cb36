"""Backup and restore, by the commands of docs/backup.md: the database goes back in time, and nothing else does."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg
import pytest
from django.db import connection
from psycopg import sql

from config.dev.stack.orphan_watchdog import PROJECT
from config.dev.stack.postgres import SUPERUSER, program
from config.dev.stack.process import Process
from config.platform import storage
from etl import runstate
from etl.models import Task
from etl.pipeline import artifacts
from exports.delivery import receipts
from exports.models import Chunk, Delivery, File, Job, Link, Receipt
from tests import rehearsal
from tests.chaos.documents import BOTH, ocr_calls, post_calls, rehearsed_rule, settle, submit
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
    """Return the block of the page that has these words."""
    (block,) = [block for block in blocks_of(PAGE) if block.language == "sh" and words in block.text]
    return block.text


def shell(site: Site) -> dict[str, str]:
    """The variables of the operator's shell: the servers themselves, without our proxies."""
    paths = [str(TOOLS), str(Path(sys.executable).parent), os.environ["PATH"]]
    return site.environment(PATH=":".join(paths), BACKUPS=site.folder, PYTHONUNBUFFERED=1)


def run(site: Site, words: str) -> str:
    """Do what the page says, and return what was printed."""
    done = subprocess.run(
        ["bash", "-euc", command(words)], check=False, cwd=PROJECT, env=shell(site), capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def run_and_die(site: Site, words: str, *, at: str) -> None:
    """Do what the page says, and kill it when it has said `at`."""
    with subprocess.Popen(
        ["bash", "-euc", f"exec {command(words)}"],
        cwd=PROJECT, env=shell(site), stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
    ) as process:  # fmt: skip
        assert process.stdout
        assert any(at in line for line in process.stdout), f"it never said {at}"
        process.kill()


# ---- Losing the database --------------------------------------------------------------------------------------------
def add_an_extension(site: Site) -> None:
    """As the databases of the stack and of compose.yaml have it: the role that restores them may not make it."""
    with psycopg.connect(site.servers.postgres.url(SUPERUSER, connection.settings_dict["NAME"])) as superuser:
        superuser.execute("CREATE EXTENSION IF NOT EXISTS pg_stat_statements")


def lose_the_database(site: Site) -> None:
    """Drop the database, whoever is connected, and make an empty one in its place."""
    name = connection.settings_dict["NAME"]
    connection.close()
    connection.close_pool()  # type: ignore[attr-defined]
    with psycopg.connect(site.servers.postgres.url("sluice"), autocommit=True) as own:
        own.execute(sql.SQL("DROP DATABASE {} WITH (FORCE)").format(sql.Identifier(name)))
        own.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name)))


def stop_all(site: Site, *, but: Process) -> None:
    """Stop what can be stopped."""
    if site.web:
        site.web.stop()
    for process in (*site.workers, *site.beats):
        if process is not but:
            process.stop()


def highest_token() -> int:
    with connection.cursor() as cursor:
        cursor.execute("SELECT last_value FROM exports_fence_seq")
        return int(cursor.fetchone()[0])


@contextmanager
def listening(site: Site, job: Job, *, after: object = None) -> Iterator[Client]:
    assert site.web
    client = Client(site.web, token_of(site.owner))
    try:
        yield client.watch(job, after=after)
    finally:
        client.leave()


def receipt_of(site: Site, job: Job) -> Any:
    answer = site.client.get(f"/exports/{job.pk}")
    assert answer.status_code == 200, answer.text
    return answer.json()["receipt"]


def retry(site: Site, task: Task, rule: Any) -> None:
    answer = site.client.post(f"/api/v1/etl/tasks/{task.pk}/retry", json={"from_stage": "ocr", "rule_id": rule.pk})
    assert answer.status_code == 202, answer.text


# ---- The story ------------------------------------------------------------------------------------------------------
class Story:
    """Work of every kind, at the moment of the backup and in the time that is lost afterwards."""

    def __init__(self, site: Site, heard: Any) -> None:
        self.site, self.heard = site, heard
        self.rule = rehearsed_rule(site)
        self.other_rule = make_rule(site.owner, name="other")

    def before(self) -> None:
        """Until the backup: a worker stands still amid a chunk, others are at work, and some work waits."""
        site = self.site
        site.start_web()
        answer = site.client.post("/exports/webhooks", json={"url": self.heard.url, "events": ["export.succeeded"]})
        answer.raise_for_status()
        site.points.arm("about to commit", "stop", key="FROZEN")
        self.frozen_worker = site.start_worker("exports", children=1)
        self.frozen = site.submit("FROZEN")
        wait_until(lambda: len(site.points.reached()) == 1)
        (self.frozen_pid,) = site.points.reached()

        site.start_worker(QUEUES)
        site.start_worker(BOTH)
        self.done, self.vanished = site.submit("DONE"), site.submit("VANISHED")
        self.failed = submit(site, "once:raise FileCorrupt", rule=self.rule)
        site.settle(self.done, self.vanished)
        wait_until(lambda: len(self.heard.ids) == 2)
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
        # The web process comes back at another port.
        self.link = "/exports/" + receipt_of(site, self.done)["signedUrl"].partition("/exports/")[2]

    def afterwards(self) -> None:
        """The time that will not have been: everything ends, is used, replaced and deleted, and more of it comes."""
        site = self.site
        with listening(site, self.half) as client:
            site.points.release("about to commit")
            rehearsal.allow(f"go-{self.rule.name}")
            site.start_beat()
            self.last_heard = list(client)[-1].id
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
        wait_until(lambda: len(self.heard.ids) == 8)
        self.token, self.calls = highest_token(), self.paid()

    def paid(self) -> tuple[int, int]:
        """What the document was read, and what a model was asked."""
        return ocr_calls(self.document), post_calls(self.rule)


@pytest.mark.timeout(600)
def test_a_database_that_was_restored_agrees_with_what_is_of_later(site: Site) -> None:
    """One worker stands still all the time, from before the backup until after the restore."""
    with receiver() as heard:
        story = Story(site, heard)
        story.before()
        add_an_extension(site)
        run(site, "pg_dump")
        story.afterwards()

        stop_all(site, but=story.frozen_worker)
        lose_the_database(site)
        run(site, "pg_restore")
        assert " success " in run(site, "psql"), "the rehearsal sees nothing"
        run(site, "migrate")
        run_and_die(site, "reconcile\n", at="links revoked")
        said = run(site, "reconcile\n")

        expect_agreement(site, story, said)
        go_on(site, story)
        tell_the_future_apart(site, story)
        remove_what_nobody_knows(site, story)


def expect_agreement(site: Site, story: Story, said: str) -> None:
    """Before anything runs."""
    assert not Chunk.objects.filter(token__isnull=False).exists()
    assert not Link.objects.filter(used_at=None, revoked_at=None).exists()
    assert Receipt.objects.get(job=story.vanished).deleted_at, "a receipt promises what is gone"
    assert Receipt.objects.get(job=story.done).deleted_at is None
    there = {(item.key, item.etag) for item in storage.list_objects("things/")}
    assert set(File.objects.values_list("path", "etag")) <= there, "the cache vouches for what is gone"
    assert highest_token() > story.token, "a token would be given out again"
    assert runstate.read(story.lost_task.pk) is None
    assert artifacts.find_ocr(story.lost_task), "nothing is deleted before somebody asks for it"
    assert " artefacts of documents without a row" in said


def go_on(site: Site, story: Story) -> None:
    """Everything is started, and the worker that stood still wakes up."""
    site.start_web()
    with listening(site, story.half, after=story.last_heard) as client:
        site.start_worker(QUEUES)
        site.start_worker(BOTH)
        site.start_beat()
        told = list(client)
    assert told[-1].event == "status"
    assert told[-1].data["status"] == "success"
    assert {event.data["key"] for event in told if event.event == "chunk"} == {"HALF"}
    assert min(event.id for event in told) > story.last_heard
    os.kill(story.frozen_pid, signal.SIGCONT)
    site.settle(story.half, story.stuck, story.waiting, story.frozen)
    settle(story.document)
    wait_until(lambda: '"lease_lost"' in story.frozen_worker.log.read_text(), limit=30)


def tell_the_future_apart(site: Site, story: Story) -> None:
    """Nothing of the time that never was is taken for what is now."""
    jobs = Job.objects.all()
    assert {job.status for job in jobs} == {"success"}
    assert set(Chunk.objects.values_list("attempts", flat=True)) == {1}, "an attempt was burned"

    assert site.client.get(story.link).json()["code"] == "link_revoked", "a link works twice"
    fresh = site.client.post(f"/exports/{story.done.pk}/link").json()["signedUrl"]
    assert site.client.get(fresh).status_code == 302
    assert receipt_of(site, story.vanished)["state"] == "expired"
    assert site.client.get(f"/exports/{story.lost.pk}").status_code == 404

    ended = Task.objects.get(pk=story.document.pk)
    assert ended.status == "completed"
    assert story.paid() == story.calls, "it was paid for twice"
    assert site.client.get(f"/api/v1/etl/tasks/{story.lost_task.pk}").status_code == 404
    again = submit(site, "Another text.", rule=story.rule)
    assert again.pk > story.lost_task.pk
    site.allowed.retried_tasks.add(str(story.failed.pk))
    assert Task.objects.get(pk=story.failed.pk).status == "failed"
    retry(site, story.failed, story.rule)
    settle(again, story.failed)
    result = Task.objects.get(pk=story.failed.pk).result
    assert result
    assert "data" in result, "it took over what another retry has left"


def remove_what_nobody_knows(site: Site, story: Story) -> None:
    """While everything runs; and what is known stays."""
    assert storage.head(story.lost_path)
    foreign = "things/notes.txt"
    storage.put(foreign, b"Somebody put this here.", content_type="text/plain")

    run(site, "--delete-unknown")

    assert storage.head(story.lost_path) is None
    assert not list(storage.list_objects(f"_receipts/{story.lost.pk}/"))
    assert not list(storage.list_objects(artifacts.folder(story.lost_task.pk)))
    assert storage.head(foreign), "it is not ours"
    storage.delete(foreign)
    told = [each.json["data"]["jobId"] for each in story.heard.received]
    twice = {str(job.pk) for job in (story.half, story.stuck, story.waiting, story.frozen)}
    assert {job_id for job_id in told if told.count(job_id) > 1} == twice
    known = {str(pk) for pk in Delivery.objects.values_list("pk", flat=True)}
    assert set(story.heard.ids[:2]) <= known, "a delivery changed its id"
