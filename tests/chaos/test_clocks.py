"""Several beats, and processes with wrong clocks. Row 11 of docs/reliability.md."""

import json
import re
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import httpx2
import pytest
from django.db import connection
from django.db.models.functions import Now
from standardwebhooks import Webhook as Verifier

from config.celery import app
from config.dev.stack import processes
from config.dev.stack.process import Process
from exports import tasks
from exports.models import Chunk, Job, Tick
from tests.broker import lose_messages, queued, valkey
from tests.chaos.documents import submit
from tests.chaos.site import LEASE_SECONDS, REAPER_SECONDS, Site
from tests.integration.receiver import receiver
from tests.waiting import wait_until

SHARED_MEMORY = Path("/dev/shm")  # noqa: S108 - where libfaketime puts it
MISSING = "This test needs libfaketime. Install it (Debian, Ubuntu: sudo apt install faketime)."
BUSY = 9  # seconds of tolerance beyond a reaper interval on a busy machine
OFF_SECONDS = 600  # S3 rejects requests that are 15 minutes off


def clock_off_by(seconds: int) -> dict[str, str]:
    """Return environment variables that shift a process's clock, except the monotonic clock."""
    libraries = sorted(Path("/usr/lib").glob("*/faketime/libfaketimeMT.so.1"))
    assert libraries, MISSING
    return {
        "LD_PRELOAD": str(libraries[0]),
        "FAKETIME": f"{seconds:+d}s",
        "FAKETIME_DONT_FAKE_MONOTONIC": "1",
        "DONT_FAKE_MONOTONIC": "1",
    }


# ---- Beats ----------------------------------------------------------------------------------------------------------

CREATE_TICK_LOG = """
CREATE TABLE chaos.tick (name text NOT NULL, at timestamptz NOT NULL);
CREATE FUNCTION chaos.note_tick() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO chaos.tick VALUES (NEW.name, NEW.ran_at);
    RETURN NULL;
END $$;
CREATE TRIGGER chaos_note AFTER INSERT OR UPDATE ON exports_tick FOR EACH ROW EXECUTE FUNCTION chaos.note_tick();
"""
DROP_TICK_LOG = "DROP TRIGGER chaos_note ON exports_tick; DROP FUNCTION chaos.note_tick; DROP TABLE chaos.tick"


@pytest.fixture
def _tick_log(site: Site) -> Iterator[None]:
    with connection.cursor() as cursor:
        cursor.execute(CREATE_TICK_LOG)
    yield
    with connection.cursor() as cursor:
        cursor.execute(DROP_TICK_LOG)


def ticks(name: str) -> list[datetime]:
    """Return the times at which the periodic task ran."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT at FROM chaos.tick WHERE name = %s ORDER BY at", [name])
        return [at for (at,) in cursor.fetchall()]


def received(task: str) -> int:
    """Return the number of messages of a task that the workers have received, from their statistics."""
    stats = app.control.inspect(timeout=5, limit=1).stats() or {}
    return sum(worker_stats["total"].get(task, 0) for worker_stats in stats.values())


@pytest.mark.usefixtures("_tick_log")
@pytest.mark.parametrize("beats", [2, 5])
def test_only_one_of_several_beats_ticks(site: Site, beats: int) -> None:
    """11: all messages arrive, but the row of the task in `exports_tick` permits only one run per half interval."""
    site.start_worker()
    for _ in range(beats):
        site.start_beat()
    wait_until(lambda: received("exports.reap") >= 8 * beats, limit=60, every=0.5)

    messages, times = received("exports.reap"), ticks("reap")
    assert all(later - earlier >= timedelta(seconds=REAPER_SECONDS / 2) for earlier, later in pairwise(times))
    seconds = (times[-1] - times[0]).total_seconds()
    site.record_duration(f"{beats} beats", seconds, messages=messages, ran=len(times))
    if beats > 2:  # two beats may alternate, half an interval apart
        assert len(times) < messages


@pytest.mark.usefixtures("_tick_log")
def test_hourly_and_daily_work_runs_once_with_several_beats(site: Site) -> None:
    """11: each message is sent five times, as by five beats within the same hour."""
    site.start_worker()
    for _ in range(5):
        tasks.sweep.delay()
        tasks.purge.delay()
    wait_until(lambda: received("exports.sweep") == received("exports.purge") == 5, every=0.5)
    wait_until(lambda: not queued("maintenance") and not valkey().hlen("unacked"))
    assert (len(ticks("sweep")), len(ticks("purge"))) == (1, 1)


# ---- Clocks ---------------------------------------------------------------------------------------------------------


# An unreachable broker for the web process. The wake-up messages of its jobs are lost, so the reaper has to start them.
LOST = "redis://127.0.0.1:1/0"


def last_log_time(worker: Process) -> datetime:
    """Return the last time in a worker's log. Its last line may be incomplete, or not JSON."""
    return datetime.fromisoformat(re.findall(r'"timestamp": "([^"]+)"', worker.log.read_text())[-1])


def sent_at() -> datetime:
    """Return the time at which a queued message was sent, by beat's clock."""
    message = valkey().lindex("maintenance", -1)
    assert isinstance(message, bytes)
    headers = json.loads(message)["headers"]
    lifetime: Any = app.conf.beat_schedule[headers["task"]]["options"]["expires"]
    return datetime.fromisoformat(str(headers["expires"])) - timedelta(seconds=lifetime)


def is_shifted(time: datetime, seconds: int) -> bool:
    return abs(time - datetime.now(UTC) - timedelta(seconds=seconds)) < timedelta(minutes=1)


def waited(job: Job) -> float:
    """Return the seconds until a job started, by the database's clock."""
    assert job.started_at
    return (job.started_at - job.created_at).total_seconds()


@pytest.fixture
def _tidy(site: Site) -> Iterator[None]:
    """Remove shared memory that libfaketime leaves when its process is killed."""
    yield
    web = [site.web.process] if site.web and site.web.process else []
    for process in (*web, *site.workers, *site.beats):
        pids = process.members()
        process.kill()
        for pid in pids:
            for name in (f"faketime_shm_{pid}", f"sem.faketime_sem_{pid}"):
                (SHARED_MEMORY / name).unlink(missing_ok=True)


@pytest.mark.usefixtures("_tidy")
@pytest.mark.parametrize("seconds", [OFF_SECONDS, -OFF_SECONDS], ids=["ahead", "behind"])
def test_a_wrong_worker_clock_changes_nothing(site: Site, seconds: int) -> None:
    """11: leases of long calls are renewed, lost wake-up messages are sent again, and retries start when due."""
    site.source.behave("LONG", rows=1000, pause=LEASE_SECONDS + 1)
    site.source.behave("FLAKY", error=True)
    worker = site.start_worker(children=3, EXPORT_BACKOFF_BASE_SECONDS=2, **clock_off_by(seconds))
    site.start_beat()
    site.start_web(REDIS_URL=LOST)
    wait_until(lambda: Tick.objects.filter(name="reap").exists())
    job = site.submit("LONG", "FLAKY")
    wait_until(lambda: Chunk.objects.filter(job=job, key="FLAKY", status="retrying").exists())
    site.source.behave("FLAKY")
    site.settle(job)

    assert is_shifted(last_log_time(worker), seconds)
    site.record_duration(
        f"workers' clocks off by {seconds:+} s: a lost wake-up message", waited(job), reaper=REAPER_SECONDS
    )
    assert job.status == "success"
    assert job.chunks.get(key="LONG").attempts == 1
    assert waited(job) < REAPER_SECONDS + BUSY


@pytest.mark.usefixtures("_tidy")
@pytest.mark.parametrize("seconds", [OFF_SECONDS, -OFF_SECONDS], ids=["ahead", "behind"])
def test_a_wrong_beat_clock_changes_nothing(site: Site, seconds: int) -> None:
    """11: beat still sends tasks, and workers do not discard them as expired."""
    site.start_beat(**clock_off_by(seconds))
    site.start_web(REDIS_URL=LOST)
    wait_until(lambda: queued("maintenance"))
    assert is_shifted(sent_at(), seconds)
    site.start_worker()
    wait_until(lambda: Tick.objects.filter(name="reap").exists())
    job = site.submit("A", days=2)
    site.settle(job)

    assert (job.status, site.source.calls()) == ("success", 2)
    assert waited(job) < REAPER_SECONDS + BUSY


@pytest.mark.usefixtures("_tidy")
def test_a_beat_whose_clock_was_ahead_works_again_at_once(site: Site) -> None:
    """11: times in the future, in beat's file or in the database, do not delay the periodic tasks."""
    ahead = site.start_beat(**clock_off_by(OFF_SECONDS))
    wait_until(lambda: queued("maintenance"))
    ahead.stop()
    lose_messages()
    Tick.objects.create(name="reap", ran_at=Now() + timedelta(days=2))
    right = processes.beat(root=site.folder / "beat0", environment=site.environment())
    right.start()
    site.beats.append(right)
    site.start_worker()
    before = valkey().time()[0]
    wait_until(lambda: Tick.objects.filter(name="reap", ran_at__lte=Now()).exists(), limit=REAPER_SECONDS + BUSY)
    assert Tick.objects.get(name="reap").ran_at.timestamp() >= before


@pytest.mark.usefixtures("_tidy")
@pytest.mark.parametrize("seconds", [OFF_SECONDS, -OFF_SECONDS], ids=["ahead", "behind"])
def test_a_wrong_worker_clock_changes_no_webhook_signature(site: Site, seconds: int) -> None:
    """11: receivers reject times that are five minutes off."""
    off: dict[str, Any] = {**clock_off_by(seconds), "EXPORT_WEBHOOK_ALLOW_CIDRS": "127.0.0.1/32"}
    with receiver() as hook:
        site.receivers.append(hook)
        site.start_web(EXPORT_WEBHOOK_ALLOW_CIDRS="127.0.0.1/32")
        webhook = site.client.post("/exports/webhooks", json={"url": hook.url, "events": ["export.succeeded"]}).json()
        worker = site.start_worker(**off)
        site.start_beat()
        job = site.submit("A")
        site.settle(job)
        wait_until(lambda: hook.received)

        assert is_shifted(last_log_time(worker), seconds)
        delivery = hook.received[0]
        Verifier(webhook["secret"]).verify(delivery.body, delivery.headers)


def export_by_web_off_by(site: Site, seconds: int) -> Job:
    """Return an ended job that a web process with a wrong clock accepted."""
    site.start_worker()
    site.start_beat()
    site.start_web(**clock_off_by(seconds))
    job = site.submit("A")
    site.settle(job)
    assert site.web
    assert site.web.process
    assert is_shifted(last_log_time(site.web.process), seconds)
    return job


@pytest.mark.usefixtures("_tidy")
@pytest.mark.parametrize("seconds", [OFF_SECONDS, -OFF_SECONDS], ids=["ahead", "behind"])
def test_a_wrong_web_clock_changes_no_time_of_a_job_or_document(site: Site, seconds: int) -> None:
    """11: all times of a job are from the same clock: it starts after its creation, and has a positive duration."""
    job = export_by_web_off_by(site, seconds)

    assert job.started_at
    assert timedelta(0) < job.started_at - job.created_at < timedelta(seconds=REAPER_SECONDS + BUSY)
    assert 0 < job.milliseconds < OFF_SECONDS * 1000
    task = submit(site, "Hello.")
    assert is_shifted(task.created_at, 0)
    assert is_shifted(task.updated_at, 0)


@pytest.mark.usefixtures("_tidy")
@pytest.mark.parametrize("seconds", [OFF_SECONDS, -OFF_SECONDS], ids=["ahead", "behind"])
def test_a_wrong_web_clock_changes_no_presigned_url(site: Site, seconds: int) -> None:
    """11: the URL is valid for the minute after its request, by the clocks of the database and the object storage."""
    job = export_by_web_off_by(site, seconds)

    link = urlsplit(site.client.get(f"/exports/{job.pk}").json()["receipt"]["signedUrl"])
    url = site.client.get(f"{link.path}?{link.query}").headers["location"]

    signed = datetime.strptime(parse_qs(urlsplit(url).query)["X-Amz-Date"][0], "%Y%m%dT%H%M%S%z")
    assert is_shifted(signed, 0)
    assert httpx2.get(url).status_code == 200
