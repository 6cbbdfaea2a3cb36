"""A source database that is slow, silent, gone, or fails for one key. Row 9 of docs/reliability.md."""

import time
from itertools import pairwise

from exports.core.states import Source
from exports.models import Chunk, Event, Job
from tests.chaos.site import LEASE_SECONDS, Site
from tests.waiting import wait_until

BACKOFF_SECONDS = 0.3  # of the foundation's workers; each pause is at least half of what it doubles to


def chunk_of(job: Job, key: str) -> Chunk:
    return Chunk.objects.get(job=job, key=key)


def test_a_slow_source_keeps_its_worker(site: Site) -> None:
    """9: rows come for longer than a lease is; nobody else takes the chunk."""
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


def test_a_source_that_falls_silent_for_a_while_keeps_its_worker(site: Site) -> None:
    """9: in the middle of its rows, for longer than a lease is."""
    site.source.behave("SLOW", rows=400_000, pause=0.5)
    site.start_worker()
    site.start_beat()
    site.start_web()
    job = site.submit("SLOW", "QUICK")
    site.wait_for_call()
    site.source_proxy.stall()
    lease = chunk_of(job, "SLOW").lease_until
    assert lease
    # Not the silence counts, but that the lease is held through it.
    wait_until(lambda: (chunk_of(job, "SLOW").lease_until or lease) > lease + (lease - job.created_at))
    site.source_proxy.pass_on()
    site.settle(job)

    assert (job.status, chunk_of(job, "SLOW").attempts, site.source.calls()) == ("success", 1, 2)


def test_calls_that_break_off_end_before_others_get_their_slots(site: Site) -> None:
    """9: the server, which looks at its clients once a second, would run them beside their own retries: see I3."""
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


def test_a_source_that_is_gone_for_a_while_is_tried_again(site: Site) -> None:
    """9: gone in the middle of a call; the chunk is RETRYING, and done when the source is back."""
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
    site.source_proxy.pass_on()
    back_at = time.monotonic()
    site.settle(job)

    site.measured("the source is back", time.monotonic() - back_at)
    assert job.status == "success"
    assert chunk_of(job, "SLOW").attempts > 1


def test_a_source_that_stays_away_fails_the_job_and_a_person_can_retry_it(site: Site) -> None:
    """9: longer than the retries last."""
    site.start_worker()
    site.start_beat()
    site.start_web()
    site.source_proxy.refuse()
    job = site.submit("A", "B")
    site.settle(job)
    assert (job.status, job.error_code) == ("failed", "EXPORT_SOURCE_UNAVAILABLE")
    assert {chunk.attempts for chunk in job.chunks.all()} == {4}

    site.source_proxy.pass_on()
    site.allowed.retried.add(str(job.pk))
    assert site.client.post(f"/exports/{job.pk}/retry").status_code == 202
    site.settle(job)
    assert (job.status, site.source.calls()) == ("success", 2)


def test_an_error_for_one_key_fails_that_chunk_alone_after_growing_pauses(site: Site) -> None:
    """9."""
    site.source.behave("BAD", error=True)
    site.start_worker()
    site.start_beat()
    site.start_web()
    job = site.submit("A", "BAD", "B", "C", days=2)
    site.settle(job)

    assert (job.status, job.done, job.failed, job.error_code) == ("failed", 6, 2, "EXPORT_SOURCE_ERROR")
    for chunk in job.chunks.filter(key="BAD"):
        assert (chunk.status, chunk.attempts, chunk.error_detail) == ("failed", 4, "SQLSTATE P0001")
        told = Event.objects.filter(chunk_id=chunk.pk).order_by("seq").values_list("status", "at")
        assert [status for status, _ in told] == ["retrying"] * 3 + ["failed"]
        for number, ((_, earlier), (_, later)) in enumerate(pairwise(told)):
            assert (later - earlier).total_seconds() >= BACKOFF_SECONDS * 2**number / 2
    assert site.source.calls() == 6 + 2 * 4


def test_an_older_file_stands_in_for_one_key_that_fails(site: Site) -> None:
    """9: with allowDegraded; its siblings are read anew."""
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
    site.source.behave("BAD")  # what stands in is compared with what the source says now

    chunk = chunk_of(job, "BAD")
    assert (job.status, job.degraded, chunk.source) == ("success", 1, Source.SNAPSHOT)
    assert (chunk.sha256, chunk.data_as_of, chunk.error_code) == (
        before.sha256, before.data_as_of, "EXPORT_SOURCE_ERROR",
    )  # fmt: skip
    assert chunk_of(job, "A").source == Source.LIVE
    assert (strict.status, strict.done, strict.failed) == ("failed", 1, 1)
