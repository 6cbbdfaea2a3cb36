"""A rolling upgrade as in docs/upgrade.md: this release beside the next or the previous one, in either direction."""

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
from tests.chaos.documents import attempts, code_of, ocr_calls, settle, submit
from tests.chaos.site import QUEUES, Site
from tests.docs.blocks import blocks_of
from tests.e2e.test_streams import Client, StreamEvent
from tests.operations.releases import LATEST_MIGRATION, Release, earlier_release, next_release, this_release
from tests.serving import token_of
from tests.waiting import wait_until

PAGE = PROJECT / "docs" / "upgrade.md"
PAUSE = 0.4  # seconds for each chunk and stage, so that some are always running


@pytest.fixture
def releases(site: Site) -> Iterator[tuple[Release, Release]]:
    """This release and the next one. At the end, the schema is this release's again."""
    site.slots = 8
    old, new = this_release(site), next_release(site)
    yield old, new
    for release in (old, new):
        if release.workers:
            release.kill()
    new.manage("migrate", "--no-input", "exports", LATEST_MIGRATION)


def migrate(release: Release) -> None:
    """Run the page's migration command."""
    (block,) = [block for block in blocks_of(PAGE) if block.language == "sh"]
    python, script, *arguments = block.text.split()
    assert (python, script) == ("python", "manage.py")
    release.manage(*arguments)


def route_requests(site: Site, release: Release) -> None:
    """Send requests to this release's web process from now on."""
    site.client.base_url = release.web.url
    site.client.headers["Authorization"] = f"Bearer {token_of(site.owner)}"


def completing_releases(*jobs: Job) -> set[str]:
    """Return the releases that ended chunks of these jobs: "next", or "" for this one, which lacks the new column."""
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT DISTINCT made_by FROM exports_chunk WHERE status = 'done' AND job_id = ANY(%s)",
            [[job.pk for job in jobs]],
        )
        return {maker for (maker,) in cursor.fetchall()}


def submit_to(site: Site, release: Release, key: str) -> tuple[Job, Task]:
    """Submit an export of many chunks, and a document."""
    route_requests(site, release)
    site.source.behave(key, pause=PAUSE)
    return site.submit(key, days=20), submit(site, f"wait {PAUSE}\npost:wait {PAUSE}\n{key}")


def submit_long(site: Site) -> tuple[Job, Task]:
    """Submit an export and a document that end only if another worker repeats them."""
    site.points.arm("about to commit", "wait", key="LONG", times=2)
    return site.submit("LONG", "SHORT", days=2), submit(site, "once:until never")


class Reader:
    """A client that reads a job's event stream from several web processes in sequence."""

    def __init__(self, site: Site, job: Job) -> None:
        self.site, self.job, self.events = site, job, list[StreamEvent]()

    def read_to_end(self, client: Client) -> None:
        """Read until the stream ends."""
        with suppress(ConnectionError, IncompleteRead):  # its process was killed
            for event in client:
                self.events.append(event)
        client.disconnect()

    def watch(self, release: Release) -> Client:
        client = Client(release.web, token_of(self.site.owner))
        return client.watch(self.job, after=self.events[-1].id if self.events else None)


def shut_down(*processes: Process) -> None:
    """Shut the processes down in sequence."""
    for process in processes:
        process.send_stop_signal()
        wait_until(lambda process=process: not process.alive, limit=60)  # type: ignore[misc]
        assert process.exit_status in (0, -signal.SIGTERM), f"{process.name}: {process.exit_status}\n{process.tail()}"


def switch_release(before: Release, reader: Reader, stream: Client, after: Release, *, is_crash: bool) -> Client:
    """Move the reader to the stream of the other release."""
    if is_crash:
        before.kill()
    else:
        shut_down(before.web.started())
    reader.read_to_end(stream)
    assert reader.events, "no events before the switch"
    stream = reader.watch(after)
    if not is_crash:
        shut_down(*before.workers)
        before.beat.stop()  # Celery's beat sometimes exits in a tick with a traceback, and holds no work
    return stream


class Scenario(NamedTuple):
    is_rollback: bool = False
    is_crash: bool = False


SCENARIOS = {
    "forward": Scenario(),
    "back": Scenario(is_rollback=True),
    "forward, with a crash": Scenario(is_crash=True),
}


@pytest.mark.timeout(600)
@pytest.mark.parametrize("direction", SCENARIOS)
def test_a_rolling_upgrade_loses_nothing(direction: str, site: Site, releases: tuple[Release, Release]) -> None:
    """`back` is a rollback: the schema of the next release stays."""
    is_rollback, is_crash = SCENARIOS[direction]
    this, upcoming = releases
    before, after = (upcoming, this) if is_rollback else (this, upcoming)
    if is_rollback:
        migrate(upcoming)
    before.start()
    first, *documents = submit_to(site, before, "FIRST")
    long, long_document = submit_long(site)
    reader = Reader(site, long)
    stream = reader.watch(before)
    wait_until(lambda: len(site.points.reached()) == 2 and ocr_calls(long_document) == 1)

    if not is_rollback:
        migrate(upcoming)
    after.start()
    jobs = [first, long]
    documents.append(long_document)
    for key, release in {"SENT-BEFORE": before, "SENT-AFTER": after}.items():
        job, document = submit_to(site, release, key)
        jobs, documents = [*jobs, job], [*documents, document]
        wait_until(lambda job=job: completing_releases(job) == {"", "next"})  # type: ignore[misc]
    assert Chunk.objects.filter(job=long, status="running", attempts=1).count() == 2, "no work was running"
    assert ocr_calls(long_document) == 1
    stream = switch_release(before, reader, stream, after, is_crash=is_crash)
    reader.read_to_end(stream)
    last, document = submit_to(site, after, "LAST")
    documents.append(document)
    site.settle(*jobs, last)
    settle(*documents)

    assert {job.status for job in (*jobs, last)} == {"success"}
    assert max(Chunk.objects.values_list("attempts", flat=True)) <= 1 + is_crash, "an attempt was counted"
    assert {Task.objects.get(pk=task.pk).status for task in documents} == {"completed"}
    if not is_crash:
        assert '"lease_expired"' not in site.logs(), "work waited for a lease to expire"
        assert '"stage_released"' in site.logs()
    assert_complete(reader)
    assert_ignored(site, this, upcoming)


def assert_complete(reader: Reader) -> None:
    """Assert that every event was received once and in order across both web processes."""
    numbers = [event.id for event in reader.events]
    assert numbers == sorted(set(numbers))
    assert reader.events[-1].data["status"] == "success"
    known = Event.objects.filter(job=reader.job, seq__gt=numbers[0]).exclude(kind="note")
    assert set(known.values_list("seq", flat=True)) <= set(numbers)
    assert {event.event for event in reader.events} == {"snapshot", "chunk", "progress", "status"}


def assert_ignored(site: Site, this: Release, upcoming: Release) -> None:
    """Assert that this release ignores unknown Celery tasks and events."""
    assert Tick.objects.filter(name="look_ahead").exists(), "the new kind of task was never run"
    assert Event.objects.filter(kind="note").exists()
    unknown = re.compile(r"unregistered task|look_ahead")
    for release in (this, upcoming):
        for file in sorted(release.folder.rglob("[!b]*.log")):
            lines = [line for line in file.read_text(errors="replace").splitlines() if "Traceback" in line]
            assert [line for line in lines if not unknown.search(line)] == [], file.name


# ---- Documents and the release before -------------------------------------------------------------------------------
@pytest.mark.timeout(300)
@pytest.mark.parametrize("direction", ["forward", "back"])
def test_stages_of_documents_run_in_different_releases(direction: str, site: Site) -> None:
    """One release runs OCR, the other post-processing. Each accepts two documents, and later retries all four."""
    this, earlier = this_release(site), earlier_release(site)
    before, after = (earlier, this) if direction == "forward" else (this, earlier)
    before.start_with(ocr="etl-ocr")
    after.start_with(postprocess="etl-postprocess", exports=QUEUES)
    documents = []
    for release in (before, after):
        route_requests(site, release)
        documents += [submit(site, f"accepted by {release.name} {number}") for number in range(2)]
    settle(*documents)
    assert_completed_once(documents)
    site.allowed.retried_tasks |= {str(document.pk) for document in documents}
    for release in (before, after):
        route_requests(site, release)
        for document, stage in zip(documents, ("ocr", "postprocess") * 2, strict=True):
            response = site.client.post(f"/api/v1/etl/tasks/{document.pk}/retry", json={"from_stage": stage})
            assert response.status_code == 202, response.text
        settle(*documents)
        assert_completed_once(documents)
    for release in (before, after):
        shut_down(release.web.started(), *release.workers)
        release.beat.stop()


def assert_completed_once(documents: list[Task]) -> None:
    assert [(code_of(document), attempts(document)) for document in documents] == [
        (("completed", "postprocess"), (1, 1))
    ] * len(documents)
