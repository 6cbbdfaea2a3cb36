"""A source database that is slow, silent, unavailable, or fails for one key. Row 9 of docs/reliability.md."""

import time
from itertools import pairwise

from exports.core.states import Source
from exports.models import Chunk, Event, Job
from tests.chaos.site import LEASE_SECONDS, Site
from tests.waiting import wait_until

BACKOFF_SECONDS = 0.3  # as configured in Site; it doubles with each attempt, and jitter takes at most half of it


def chunk_of(job: Job, key: str) -> Chunk:
    return Chunk.objects.get(job=job, key=key)


def test_a_slow_source_keeps_its_worker(site: Site) -> None:
    """9: rows arrive for longer than a lease, but no other worker claims the chunk."""
    site.source.behave("SLOW", rows=20_000)  # 1 MB
    site.source_proxy.slow(200_000)
    site.start_worker()
    site.start_beat()
    site.start_web()
    job = site.submit("SLOW")
    site.settle(job)

    chunk = chunk_of(job, "SLOW")
    assert chunk.started_at
    assert chunk.finished_at
    assert (chunk.finished_at - chunk.started_at).total_seconds() > LEASE_SECONDS
    assert (job.status, chunk.attempts, site.source.calls()) == ("success", 1, 1)


def test_a_temporarily_silent_source_keeps_its_worker(site: Site) -> None:
    """9: the source sends no bytes for longer than a lease, in the middle of its rows."""
    site.source.behave("SLOW", rows=400_000, pause=0.5)
    site.start_worker()
    site.start_beat()
    site.start_web()
    job = site.submit("SLOW", "QUICK")
    site.wait_for_call()
    site.source_proxy.stall()
    lease = chunk_of(job, "SLOW").lease_until
    assert lease
    # The lease must be renewed during the silence.
    wait_until(lambda: (chunk_of(job, "SLOW").lease_until or lease) > lease + (lease - job.created_at))
    site.source_proxy.remove_faults()
    site.settle(job)

    assert (job.status, chunk_of(job, "SLOW").attempts, site.source.calls()) == ("success", 1, 2)


def test_aborted_calls_end_before_their_slots_are_reused(site: Site) -> None:
    """9: otherwise, a call would run at the same time as its retry.

    The server checks its clients once a second. See I3.
    """
    site.source.behave("SLOW", rows=1000, pause=1.5)
    site.start_worker(children=site.slots)
    site.start_beat()
    site.start_web()
    job = site.submit("SLOW", days=4 * site.slots)
    for _ in range(3):
        wait_until(lambda: site.source.live_calls() == site.slots)
        site.source_proxy.reset()
    site.settle(job)

    assert job.status == "success"


def test_calls_are_retried_after_a_source_outage(site: Site) -> None:
    """9: the outage starts during a call. The chunk is retrying, and done when the source is available again."""
    site.source.behave("SLOW", rows=400_000, pause=1)
    site.start_worker(EXPORT_BACKOFF_BASE_SECONDS=1)
    site.start_beat()
    site.start_web()
    job = site.submit("SLOW", "A", "B")
    site.wait_for_call()
    site.source_proxy.refuse()
    wait_until(lambda: chunk_of(job, "SLOW").status == "retrying")
    assert Job.objects.get(pk=job.pk).status == "retrying"
    assert chunk_of(job, "SLOW").error_code == "EXPORT_SOURCE_UNAVAILABLE"
    site.source_proxy.remove_faults()
    back_at = time.monotonic()
    site.settle(job)

    site.record_duration("the source is back", time.monotonic() - back_at)
    assert job.status == "success"
    assert chunk_of(job, "SLOW").attempts > 1


def test_a_long_source_outage_fails_the_job_and_a_user_can_retry_it(site: Site) -> None:
    """9: the outage is longer than all retries."""
    site.start_worker()
    site.start_beat()
    site.start_web()
    site.source_proxy.refuse()
    job = site.submit("A", "B")
    site.settle(job)
    assert (job.status, job.error_code) == ("failed", "EXPORT_SOURCE_UNAVAILABLE")
    assert {chunk.attempts for chunk in job.chunks.all()} == {4}

    site.source_proxy.remove_faults()
    site.allowed.retried.add(str(job.pk))
    assert site.client.post(f"/exports/{job.pk}/retry").status_code == 202
    site.settle(job)
    assert (job.status, site.source.calls()) == ("success", 2)


def test_an_error_for_one_key_fails_that_chunk_alone_after_backoff(site: Site) -> None:
    """9: the delay grows with each attempt, and other chunks are not affected."""
    site.source.behave("BAD", error=True)
    site.start_worker()
    site.start_beat()
    site.start_web()
    job = site.submit("A", "BAD", "B", "C", days=2)
    site.settle(job)

    assert (job.status, job.done, job.failed, job.error_code) == ("failed", 6, 2, "EXPORT_SOURCE_ERROR")
    for chunk in job.chunks.filter(key="BAD"):
        assert (chunk.status, chunk.attempts, chunk.error_detail) == ("failed", 4, "SQLSTATE P0001")
        events = Event.objects.filter(chunk_id=chunk.pk).order_by("seq").values_list("status", "at")
        assert [status for status, _ in events] == ["retrying"] * 3 + ["failed"]
        for number, ((_, earlier), (_, later)) in enumerate(pairwise(events)):
            assert (later - earlier).total_seconds() >= BACKOFF_SECONDS * 2**number / 2
    assert site.source.calls() == 6 + 2 * 4


def test_a_snapshot_replaces_the_chunk_of_a_failing_key(site: Site) -> None:
    """9: with allowDegraded. The other keys are read from the source."""
    site.start_worker()
    site.start_beat()
    site.start_web()
    first = site.submit("A", "BAD")
    site.settle(first)
    before = chunk_of(first, "BAD")

    site.source.behave("BAD", error=True)
    job = site.submit("A", "BAD", reuse="never", allowDegraded=True)
    site.settle(job)
    strict = site.submit("A", "BAD", reuse="never", allowDegraded=False)
    site.settle(strict)
    site.source.behave("BAD")  # the snapshot is compared with the source's current rows

    chunk = chunk_of(job, "BAD")
    assert (job.status, job.degraded, chunk.source) == ("success", 1, Source.SNAPSHOT)
    assert (chunk.sha256, chunk.data_as_of, chunk.error_code) == (
        before.sha256, before.data_as_of, "EXPORT_SOURCE_ERROR",
    )  # fmt: skip
    assert chunk_of(job, "A").source == Source.LIVE
    assert (strict.status, strict.done, strict.failed) == ("failed", 1, 1)
