"""Interrupted work: cancelled jobs, and workers that shut down. Rows 16 and 17 of docs/reliability.md."""

import time

from django.db.models import Sum
from django.utils import timezone

from config.platform import storage
from exports.models import Chunk, Slot, Usage
from tests.chaos.site import Site
from tests.chaos.test_workers import TWO_PARTS
from tests.waiting import let_pass, wait_until

SOFT_SHUTDOWN_SECONDS = 3  # in settings.py of this folder


def test_a_cancelled_job_stops_its_workers_at_the_next_part(site: Site) -> None:
    """16: all workers are uploading."""
    site.slots = running = 8
    keys = [f"K{number}" for number in range(running)]
    for key in keys:
        site.source.behave(key, rows=TWO_PARTS)
    site.points.arm("part handed over", "wait", times=running)
    site.start_worker("exports", children=running)
    site.start_worker("bundles,webhooks,maintenance")
    site.start_beat()
    site.start_web()
    before = used(site)
    job = site.submit(*keys, "LATER", "LAST")
    wait_until(lambda: len(site.points.reached()) == running, limit=60)
    assert len(list(storage.list_uploads("things/"))) == running
    assert used(site) == before + running + 2

    response = site.client.post(f"/exports/{job.pk}/cancel")
    assert response.status_code == 200, response.text
    assert used(site) == before
    let_pass(1)  # a worker checks its lease once a second at most
    cancelled_at = time.monotonic()
    site.points.release("part handed over")
    wait_until(lambda: not list(storage.list_uploads("things/")))
    site.record_duration("16: uploads of 8 cancelled chunks are aborted", time.monotonic() - cancelled_at)
    wait_until(lambda: not Slot.objects.held().exists())
    site.record_duration("16: their slots are free", time.monotonic() - cancelled_at)

    job.refresh_from_db()
    assert (job.status, job.cancelled, job.done) == ("cancelled", running + 2, 0)
    assert not list(storage.list_objects("things/"))
    assert site.source.calls() == running
    assert used(site) == before


def used(site: Site) -> int:
    """Return the number of chunks of the daily quota that the owner has used."""
    return Usage.objects.filter(user=site.owner).aggregate(chunks=Sum("chunks"))["chunks"] or 0


def test_graceful_shutdown_hands_chunks_to_another_worker(site: Site) -> None:
    """17: the worker finishes short work. Another one starts the rest again, and no attempt is counted."""
    site.source.behave("QUERY", rows=10, pause=60)
    site.source.behave("UPLOAD", rows=TWO_PARTS)
    site.points.arm("part handed over", "wait", key="UPLOAD")
    site.points.arm("about to commit", "wait", key="SOON")
    leaving = site.start_worker(children=3)
    site.start_beat()
    site.start_web()
    site.wait_for_workers()
    job = site.submit("SOON", "QUERY", "UPLOAD")
    wait_until(lambda: len(site.points.reached()) == 2 and site.source.live_calls() > 0)
    site.start_worker(children=3)
    site.wait_for_workers()
    site.source.behave("QUERY", rows=10)

    terminated_at, terminated_on = time.monotonic(), timezone.now()
    leaving.send_stop_signal()
    site.points.release("about to commit")
    wait_until(lambda: not leaving.alive)
    left_at = time.monotonic()
    site.settle(job)

    site.record_duration(
        "17: graceful shutdown of a worker", left_at - terminated_at, soft_shutdown=SOFT_SHUTDOWN_SECONDS
    )
    restarted = Chunk.objects.filter(job=job, started_at__gt=terminated_on)
    assert restarted.count() == 2
    latest = max(chunk.started_at - terminated_on for chunk in restarted if chunk.started_at)
    site.record_duration("17: another worker takes over", latest.total_seconds(), soft_shutdown=SOFT_SHUTDOWN_SECONDS)
    chunks = dict(Chunk.objects.filter(job=job).values_list("key", "attempts"))
    assert chunks == {"SOON": 1, "QUERY": 1, "UPLOAD": 1}, "an attempt was counted"
    assert site.source.calls() == 5
    assert '"lease_expired"' not in site.logs(), "the work waited for the lease to expire"
    assert leaving.exit_status == 0
