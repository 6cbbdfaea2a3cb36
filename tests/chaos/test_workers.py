"""Workers that are killed, stand still, or are told to leave. Rows 1 to 4, 12, 16 and 17 of docs/reliability.md."""

import os
import signal

import pytest

from exports.models import Chunk
from tests.chaos.site import LEASE_SECONDS, REAPER_SECONDS, Site
from tests.waiting import wait_until


def test_the_query_of_a_killed_worker_ends_and_its_chunk_runs_again(site: Site) -> None:
    """1."""
    site.source.behave("SLOW", rows=1000, pause=3)
    site.start_web()
    worker = site.start_worker()
    site.start_beat()
    job = site.submit("SLOW")
    site.wait_for_call()

    token = Chunk.objects.get(job=job).token
    for pid in site.children():
        os.kill(pid, signal.SIGKILL)
    wait_until(lambda: site.source.live_calls() == 0 or Chunk.objects.get(job=job).token != token, limit=5)
    wait_until(lambda: Chunk.objects.get(job=job).token not in (None, token), limit=LEASE_SECONDS + REAPER_SECONDS + 5)
    site.settle(job)

    assert worker.alive
    assert (job.status, Chunk.objects.get(job=job).attempts) == ("success", 2)


@pytest.mark.parametrize(
    ("point", "attempts", "calls"),
    [
        ("chunk claimed", 2, 1),
        ("call about to begin", 2, 1),
        ("part handed over", 2, 2),
        ("about to commit", 2, 2),
        ("object committed", 2, 2),
        ("outcome written", 1, 1),
    ],
)
def test_a_worker_may_die_at_any_step_of_a_chunk(site: Site, point: str, attempts: int, calls: int) -> None:
    """2."""
    site.source.behave("BIG", rows=400_000)  # 20 MB, in several parts
    site.points.arm(point, "die")
    site.start_web()
    site.start_worker()
    site.start_beat()
    job = site.submit("BIG")
    site.settle(job)

    assert len(site.points.reached()) == 1
    assert (job.status, Chunk.objects.get(job=job).attempts) == ("success", attempts)
    assert site.source.calls() == calls
