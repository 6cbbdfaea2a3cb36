"""A deployment, as docs/upgrade.md tells it: this release and the next one run side by side, in either direction."""

import re
import signal
from collections.abc import Iterator
from contextlib import suppress
from http.client import IncompleteRead
from typing import NamedTuple

import pytest
from django.db import connection

from config.dev.stack.orphan_watchdog import PROJECT
from config.dev.stack.process import Process
from etl.models import Task
from exports.models import Chunk, Event, Job, Tick
from tests.chaos.documents import ocr_calls, settle, submit
from tests.chaos.site import Site
from tests.docs.blocks import blocks_of
from tests.e2e.test_streams import Client, Told
from tests.operations.releases import BEFORE, Release, next_one, this_one
from tests.serving import token_of
from tests.waiting import wait_until

PAGE = PROJECT / "docs" / "upgrade.md"
PAUSE = 0.4  # of each chunk, so that there are always some under way


@pytest.fixture
def releases(site: Site) -> Iterator[tuple[Release, Release]]:
    """This release and the next. In the end the schema is this one's again."""
    site.slots = 8
    old, new = this_one(site), next_one(site)
    yield old, new
    for release in (old, new):
        if release.workers:
            release.kill()
    new.manage("migrate", "--no-input", "exports", BEFORE)


def migrate(release: Release) -> None:
    """Do what the page says."""
    (block,) = [block for block in blocks_of(PAGE) if block.language == "sh"]
    python, script, *arguments = block.text.split()
    assert (python, script) == ("python", "manage.py")
    release.manage(*arguments)


def ask(site: Site, release: Release) -> None:
    """From now on requests go to this release's web process."""
    site.client.base_url = release.web.url
    site.client.headers["Authorization"] = f"Bearer {token_of(site.owner)}"


def makers(*jobs: Job) -> set[str]:
    """Return who has ended chunks of these jobs: "next", or "" for this release, which knows of no such column."""
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT DISTINCT made_by FROM exports_chunk WHERE status = 'done' AND job_id = ANY(%s)",
            [[job.pk for job in jobs]],
        )
        return {maker for (maker,) in cursor.fetchall()}


def submit_to(site: Site, release: Release, key: str) -> tuple[Job, Task]:
    """Submit an export of many chunks and a document."""
    ask(site, release)
    site.source.behave(key, pause=PAUSE)
    return site.submit(key, days=20), submit(site, f"wait {PAUSE}\npost:wait {PAUSE}\n{key}")


def submit_long(site: Site) -> tuple[Job, Task]:
    """Submit an export and a document that end for nobody but those who begin them again."""
    site.points.arm("about to commit", "wait", key="LONG", times=2)
    job, document = site.submit("LONG", "SHORT", days=2), submit(site, "once:until never")
    return job, document


class Reader:
    """Reads a job's stream from one web process after the other."""

    def __init__(self, site: Site, job: Job) -> None:
        self.site, self.job, self.told = site, job, list[Told]()

    def read_on(self, client: Client) -> None:
        """Read until the stream ends."""
        with suppress(ConnectionError, IncompleteRead):  # where its process is killed
            for told in client:
                self.told.append(told)
        client.leave()

    def watch(self, release: Release) -> Client:
        client = Client(release.web, token_of(self.site.owner))
        return client.watch(self.job, after=self.told[-1].id if self.told else None)


def leave(*processes: Process) -> None:
    """Tell them to end, one after the other."""
    for process in processes:
        process.ask_to_stop()
        wait_until(lambda process=process: not process.alive, limit=60)  # type: ignore[misc]
        assert process.exit_status in (0, -signal.SIGTERM), f"{process.name}: {process.exit_status}\n{process.tail()}"


def go_away(before: Release, reader: "Reader", stream: Client, after: Release, *, is_crash: bool) -> Client:
    """Return the reader's stream from the other release."""
    if is_crash:
        before.kill()
    else:
        leave(before.web.started())
    reader.read_on(stream)
    assert reader.told, "nothing was told before"
    stream = reader.watch(after)
    if not is_crash:
        leave(*before.workers)
        before.beat.stop()  # Celery's now and then ends amid a tick with a traceback; it holds nothing
    return stream


class Way(NamedTuple):
    is_back: bool = False
    is_crash: bool = False


WAYS = {"forward": Way(), "back": Way(is_back=True), "forward, with a crash": Way(is_crash=True)}


@pytest.mark.timeout(600)
@pytest.mark.parametrize("way", WAYS)
def test_nothing_is_lost_between_two_releases(way: str, site: Site, releases: tuple[Release, Release]) -> None:
    """`back` is the deployment that is taken back: the schema stays."""
    is_back, is_crash = WAYS[way]
    this, ahead = releases
    before, after = (ahead, this) if is_back else (this, ahead)
    if is_back:
        migrate(ahead)
    before.start()
    first, *documents = submit_to(site, before, "FIRST")
    long, long_document = submit_long(site)
    reader = Reader(site, long)
    stream = reader.watch(before)
    wait_until(lambda: len(site.points.reached()) == 2 and ocr_calls(long_document) == 1)

    if not is_back:
        migrate(ahead)
    after.start()
    jobs = [first, long]
    documents.append(long_document)
    for key, release in {"SENT-BEFORE": before, "SENT-AFTER": after}.items():
        job, document = submit_to(site, release, key)
        jobs, documents = [*jobs, job], [*documents, document]
        wait_until(lambda job=job: makers(job) == {"", "next"})  # type: ignore[misc]
    assert Chunk.objects.filter(job=long, status="running", attempts=1).count() == 2, "nothing was under way"
    assert ocr_calls(long_document) == 1
    stream = go_away(before, reader, stream, after, is_crash=is_crash)
    reader.read_on(stream)
    last, document = submit_to(site, after, "LAST")
    documents.append(document)
    site.settle(*jobs, last)
    settle(*documents)

    assert {job.status for job in (*jobs, last)} == {"success"}
    assert max(Chunk.objects.values_list("attempts", flat=True)) <= 1 + is_crash, "an attempt was burned"
    assert {Task.objects.get(pk=task.pk).status for task in documents} == {"completed"}
    if not is_crash:
        assert '"lease_expired"' not in site.logs(), "work waited for a lease"
        assert '"stage_released"' in site.logs()
    expect_whole(reader)
    expect_calm(site, this, ahead)


def expect_whole(reader: Reader) -> None:
    """Every event was told, once and in order, across both web processes."""
    numbers = [told.id for told in reader.told]
    assert numbers == sorted(set(numbers))
    assert reader.told[-1].data["status"] == "success"
    known = Event.objects.filter(job=reader.job, seq__gt=numbers[0]).exclude(kind="note")
    assert set(known.values_list("seq", flat=True)) <= set(numbers)
    assert {told.event for told in reader.told} == {"snapshot", "chunk", "progress", "status"}


def expect_calm(site: Site, this: Release, ahead: Release) -> None:
    """What this release does not know, it leaves alone."""
    assert Tick.objects.filter(name="look_ahead").exists(), "the new kind of task was never run"
    assert Event.objects.filter(kind="note").exists()
    unknown = re.compile(r"unregistered task|look_ahead")
    for release in (this, ahead):
        for file in sorted(release.folder.rglob("[!b]*.log")):
            lines = [line for line in file.read_text(errors="replace").splitlines() if "Traceback" in line]
            assert [line for line in lines if not unknown.search(line)] == [], file.name
