"""Continuous cleanup during running jobs, with valid links. Row 14 of docs/reliability.md."""

import hashlib
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from io import BytesIO
from threading import Event as Flag
from threading import Thread
from typing import Any

import httpx2
import pytest
from django.db import connection
from django.db.models.functions import Now

from config.platform import storage
from exports import tasks
from exports.models import Chunk, Event, File, Job, Receipt, Tick, Webhook
from tests.chaos.site import LEASE_SECONDS, Site
from tests.integration.receiver import receiver
from tests.waiting import wait_until


@contextmanager
def continuous_cleanup(site: Site) -> Iterator[None]:
    """Make workers sweep, purge, and reap continuously, ignoring their intervals."""
    stopped = Flag()
    thread = Thread(target=send_rounds, args=(stopped,), daemon=True)
    thread.start()
    try:
        yield
    finally:
        stopped.set()
        thread.join(10)
    assert "cleanup_step_failed" not in site.logs()


def send_rounds(stopped: Flag) -> None:
    try:
        while not stopped.wait(0.2):
            Tick.objects.all().delete()
            for task in (tasks.sweep, tasks.purge, tasks.reap):
                task.delay()
    finally:
        connection.close()


def rounds(site: Site) -> int:
    """Return the number of completed sweeps."""
    return site.logs().count('"orphans_deleted"')


def receipt_of(site: Site, job: Job) -> Any:
    return site.client.get(f"/exports/{job.pk}").json()["receipt"]


def download(site: Site, url: str) -> bytes:
    response = site.client.get(url)
    assert response.status_code == 302, response.text
    return httpx2.get(response.headers["Location"], trust_env=False).raise_for_status().content


def backdate_job(job: Job) -> None:
    """Backdate a job's end by eight days. Its receipt has expired, but is not deleted yet."""
    Job.objects.filter(pk=job.pk).update(finished_at=Now() - timedelta(days=8))
    Receipt.objects.filter(pk=job.pk).update(expires_at=Now() - timedelta(days=8))


@pytest.mark.timeout(300)
def test_needed_files_survive_every_sweep_and_purge(site: Site) -> None:
    """14: unused links, files that later jobs reuse, and uploads and bundles in progress."""
    site.source.behave("BIG", rows=400_000, pause=LEASE_SECONDS + 1)  # the upload takes longer than a lease
    site.source.behave("SLOW", pause=0.3)
    site.start_worker("exports,bundles,webhooks", children=4)
    site.start_worker("maintenance")
    site.start_beat()
    site.start_web()
    old = site.submit("A", "B", days=3)
    linked = site.submit("C", "D")
    site.settle(old, linked)
    links = {linked.pk: receipt_of(site, linked)}
    backdate_job(old)

    site.points.set_grace(600)  # longer than the bundle is held, even on a busy machine
    site.points.arm("bundle made", "wait")  # the delivered object exists, but no receipt references it yet
    with continuous_cleanup(site):
        held = site.submit("A", "B", days=2)  # reuses the files of a job that is about to be purged
        wait_until(lambda: not site.points.armed("bundle made"))
        wait_until(lambda: not Job.objects.filter(pk=old.pk).exists())
        seen = rounds(site)
        wait_until(lambda: rounds(site) > seen + 5)
        site.points.release("bundle made")
        running = site.submit("BIG", "SLOW", days=2)
        site.settle(held, running)
        seen = rounds(site)
        wait_until(lambda: rounds(site) > seen + 5)
        # Everything is recorded now, so it must survive sweeps for which nothing is recent.
        newest = max(item.last_modified for item in storage.list_objects(""))
        wait_until(lambda: storage.now() > newest + timedelta(seconds=2))
        site.points.set_grace(1)
        seen = rounds(site)
        wait_until(lambda: rounds(site) > seen + 5)
        for job in (held, running):
            links[job.pk] = receipt_of(site, job)
        contents = {pk: download(site, receipt["signedUrl"]) for pk, receipt in links.items()}

    assert (held.status, held.reused, running.status) == ("success", 4, "success")
    assert set(Chunk.objects.filter(job__in=[held, running]).values_list("attempts", flat=True)) <= {0, 1}
    assert site.source.calls() == 6 + 2 + 4
    for pk, content in contents.items():
        assert f"sha256:{hashlib.sha256(content).hexdigest()}" == links[pk]["checksum"]
        assert zipfile.ZipFile(BytesIO(content)).testzip() is None
    assert {item.key for item in storage.list_objects("things/")} == set(File.objects.values_list("path", flat=True))
    assert File.objects.count() == 12


def test_undelivered_events_survive_every_sweep(site: Site) -> None:
    """14: events of a job that ended days ago, whose webhook delivery is still pending."""
    site.start_worker("exports,bundles,maintenance")
    site.start_beat()
    site.start_web()
    with receiver() as receiving:
        site.receivers.append(receiving)
        site.subscribe(receiving.url)
        job, other = site.submit("A"), site.submit("B")
        site.settle(job, other)
        Event.objects.filter(job=other).update(told_at=Now())
        site.allowed.undelivered.add(str(other.pk))
        Event.objects.update(at=Now() - timedelta(days=2))
        Webhook.objects.update(created_at=Now() - timedelta(days=3))  # otherwise, it would not get these events
        Job.objects.update(finished_at=Now() - timedelta(days=2))
        with continuous_cleanup(site):
            wait_until(lambda: not Event.objects.filter(job=other).exists())
            seen = rounds(site)
            wait_until(lambda: rounds(site) > seen + 3)
            backdate_job(other)
            wait_until(lambda: not Job.objects.filter(pk=other.pk).exists())
        assert Event.objects.filter(job=job).awaiting_fan_out().count() == 1
        assert Event.objects.filter(job=job).count() == 3
        site.start_worker("webhooks", children=1)
        wait_until(lambda: receiving.ids)
    assert receiving.received[0].json["data"]["jobId"] == str(job.pk)
