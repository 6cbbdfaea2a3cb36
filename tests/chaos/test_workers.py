"""Workers that are killed, suspended, or crash. Rows 1 to 4 and 12 of docs/reliability.md."""

import os
import signal
import time
from collections.abc import Iterator
from typing import Any

import pytest
from django.db.models import Sum

from config.dev.stack import process_tree
from config.dev.stack.process import Process
from config.platform import storage
from exports import tasks
from exports.models import Chunk, File, Job, Receipt, Slot
from tests.broker import queued
from tests.chaos.site import REAPER_SECONDS, Site, has_ended
from tests.waiting import wait_until

BUSY = 3  # seconds of tolerance on a busy machine


@pytest.fixture
def source_without_client_checks(site: Site) -> Iterator[None]:
    """A source that does not check whether its clients are still connected, as by default in Postgres."""
    site.source.run("ALTER DATABASE source SET client_connection_check_interval = 0")
    yield
    site.source.run("ALTER DATABASE source RESET client_connection_check_interval")


@pytest.mark.usefixtures("source_without_client_checks")
def test_the_query_of_a_killed_worker_ends_and_its_chunk_is_retried(site: Site) -> None:
    """1: the query ends before the lease expires."""
    lease = 10
    site.source.behave("SLOW", rows=1000, pause=60)
    site.start_worker(EXPORT_LEASE_SECONDS=lease)
    site.start_beat()
    site.start_web()
    job = site.submit("SLOW")
    site.wait_for_call()
    token, backend = Chunk.objects.get(job=job).token, Slot.objects.held().get().backend
    site.source.behave("SLOW", rows=1000)

    killed_at = time.monotonic()
    for pid in site.children():
        os.kill(pid, signal.SIGKILL)
    wait_until(lambda: not connections(site, backend), limit=5)
    site.record_duration("1: the query of a killed worker has ended", time.monotonic() - killed_at)
    assert Chunk.objects.get(job=job).token == token, "the lease expired, so the reaper may have ended the call"

    wait_until(lambda: Chunk.objects.get(job=job).token != token, limit=lease + REAPER_SECONDS + BUSY)
    site.settle(job)
    chunk = Chunk.objects.get(job=job)
    site.record_duration("1: another worker finished its chunk", time.monotonic() - killed_at, lease=lease)
    assert (job.status, chunk.attempts, site.source.calls()) == ("success", 2, 2)


def connections(site: Site, backend: str) -> int:
    return site.source.run("SELECT count(*) FROM pg_stat_activity WHERE application_name = %s", backend)


TWO_PARTS = 180_000  # rows: about 10 MB
# The point of the crash, and the resulting number of attempts and calls of the chunk.
STEPS = {
    "chunk claimed": (2, 1),
    "call about to begin": (2, 1),
    "part handed over": (2, 2),
    "about to commit": (2, 2),
    "PUT checked": (2, 2),
    "commit checked": (2, 2),
    "object committed": (2, 2),
    "outcome written": (1, 1),
}


def arm_each(site: Site, action: str) -> dict[str, str]:
    """Arm each step for a different key. Return the keys by step."""
    keys = {step: step.replace(" ", "-") for step in STEPS}
    for step, key in keys.items():
        site.points.arm(step, action, key=key)
    for step in ("part handed over", "commit checked"):
        site.source.behave(keys[step], rows=TWO_PARTS)
    return keys


def test_a_chunk_survives_a_worker_crash_at_any_step(site: Site) -> None:
    """2: each chunk of the job has its worker crash at a different step."""
    keys = arm_each(site, "die")
    site.start_worker(children=4)
    site.start_beat()
    site.start_web()
    job = site.submit(*keys.values())
    site.settle(job)

    assert len(site.points.reached()) == len(STEPS)
    attempts = dict(Chunk.objects.filter(job=job).values_list("key", "attempts"))
    assert attempts == {keys[step]: expected for step, (expected, _) in STEPS.items()}
    assert (job.status, site.source.calls()) == ("success", sum(calls for _, calls in STEPS.values()))

    redeliver(job)
    assert site.source.calls() == sum(calls for _, calls in STEPS.values())


MAX_BATCH = 32


def test_a_worker_crash_repeats_at_most_its_batch(site: Site) -> None:
    """2: with small chunks, which are claimed and completed in batches."""
    crashes = {"batch claimed": 2, "chunk of a batch ended": 2}
    for step, times in crashes.items():
        site.points.arm(step, "die", times=times)
    site.start_worker(children=2)
    site.start_beat()
    site.start_web()
    job = site.submit(*[f"K{n}" for n in range(300)])
    site.settle(job)

    assert len(site.points.reached()) == sum(crashes.values())
    calls = site.source.calls()
    assert (job.status, job.done) == ("success", 300)
    assert 300 <= calls <= 300 + sum(crashes.values()) * MAX_BATCH
    chunks = Chunk.objects.filter(job=job)
    assert sum(chunk.attempts - 1 for chunk in chunks) <= sum(crashes.values()) * MAX_BATCH
    assert not Slot.objects.held().exists()
    redeliver(job)
    assert site.source.calls() == calls


def redeliver(job: Job) -> None:
    """Send the messages of a job again, as after a lost acknowledgement, and assert that nothing changes."""
    before = facts_of(job)
    for _ in range(5):
        tasks.run_chunks.delay()
        tasks.reuse_files.delay()
        tasks.complete_job.delay(job_id=str(job.pk))
    wait_until(lambda: queued("exports") == queued("bundles") == 0)
    assert facts_of(job) == before


def facts_of(job: Job) -> list[Any]:
    """Return everything that must not change after a job has ended: rows, files, and objects."""
    chunks = list(Chunk.objects.filter(job=job).order_by("seq").values())
    heads = {chunk["path"]: storage.head(chunk["path"]) for chunk in chunks}
    files = list(File.objects.order_by("path").values())
    return [chunks, files, list(Job.objects.filter(pk=job.pk).values()), list(Receipt.objects.values()), heads]


# The point of the crash, and the number of additional attempts of the completion.
COMPLETION_STEPS = {"bundle claimed": 1, "bundle made": 1, "receipt inserted": 1, "receipt committed": 0}


def test_a_delivery_survives_a_worker_crash_at_any_step(site: Site) -> None:
    """2: at each step, in any of the jobs."""
    for step in COMPLETION_STEPS:
        site.points.arm(step, "die")
    site.start_worker()
    site.start_beat()
    site.start_web()
    jobs = [site.submit(key, days=2) for key in ("A", "B", "C", "D")]
    site.settle(*jobs)

    assert len(site.points.reached()) == len(COMPLETION_STEPS)
    assert {job.status for job in jobs} == {"success"}
    assert sum(job.completion_attempts for job in jobs) == len(jobs) + sum(COMPLETION_STEPS.values())
    assert site.source.calls() == 8


def test_a_suspended_worker_changes_nothing_after_another_finished(site: Site) -> None:
    """3: each chunk of the job has its worker suspended at a different step."""
    keys = suspend_workers(site)
    job = site.submit(*keys)
    site.settle(job)
    assert job.status == "success"
    before = facts_of(job)
    resume_workers(site)
    assert facts_of(job) == before


def test_a_suspended_worker_changes_nothing_while_another_works(site: Site) -> None:
    """3: only the fencing token distinguishes the two workers."""
    keys = suspend_workers(site)
    job = site.submit(*keys)
    others = set(STEPS) - {"outcome written"}
    wait_until(lambda: suspend_next_holders(site, others), limit=60)
    wait_until(lambda: len(site.points.reached()) == 2 * len(STEPS) - 1, limit=60)
    before = holders(job)
    assert [attempts for status, _, attempts in before if status == "running"] == [2] * (len(STEPS) - 1)
    resume_workers(site)
    assert holders(job) == before
    assert File.objects.count() == 1

    site.points.release("export begun")
    site.settle(job)
    assert job.status == "success"


def holders(job: Job) -> list[tuple[str, int | None, int]]:
    return list(Chunk.objects.filter(job=job).order_by("seq").values_list("status", "token", "attempts"))


def suspend_next_holders(site: Site, steps: set[str]) -> bool:
    """For each step that has suspended its worker, make the chunk's next worker wait, and remove the step from `steps`.

    Return whether no step remains.
    """
    for step in [step for step in steps if not site.points.armed(step)]:
        site.points.arm("export begun", "wait", key=step.replace(" ", "-"))
        steps.remove(step)
    return not steps


def suspend_workers(site: Site) -> list[str]:
    """Start a site whose workers are suspended at each step. Return the keys of the affected chunks."""
    site.slots = 2 * len(STEPS)
    keys = arm_each(site, "stop")
    site.start_worker("exports", children=len(STEPS) + 2)
    site.start_worker("exports", children=len(STEPS) + 2)
    site.start_worker("bundles,webhooks,maintenance")
    site.start_beat()
    site.start_web()
    return list(keys.values())


def resume_workers(site: Site) -> None:
    """Resume the suspended workers, and wait until each has noticed that it lost its chunk."""
    for pid in site.points.reached():
        os.kill(pid, signal.SIGCONT)
    lost = len(STEPS) - 1  # the worker whose outcome was written keeps its chunk
    wait_until(lambda: site.logs().count('"lease_lost"') == lost)


@pytest.mark.timeout(400)
def test_a_job_of_500_chunks_survives_kills_every_few_seconds(site: Site) -> None:
    """4: a third of the child processes, repeatedly, and a complete worker once."""
    for key in "ABCDE":
        site.source.behave(key, rows=50, pause=0.05)
    for children in (4, 3):
        # Each crash counts as an attempt, also of the bundle.
        site.start_worker(children=children, EXPORT_MAX_ATTEMPTS=20)
    site.start_beat()
    site.start_web()
    site.wait_for_workers()
    began_at = time.monotonic()
    job = site.submit(*"ABCDE", days=100, delivery="manifest")
    first = site.workers[0]

    kills = 0
    while not has_ended_within(job, site.random.uniform(1.5, 3.5)):
        assert time.monotonic() - began_at < 300, "the job did not end"
        if first.alive and job.done > 250:
            first.kill()
            site.start_worker(children=4, EXPORT_MAX_ATTEMPTS=20)
        alive = sorted(
            pid for worker in site.workers if is_ready(worker) for pid in process_tree.members(worker.pid)[1:]
        )
        for pid in site.random.sample(alive, round(0.3 * len(alive))):
            process_tree.send(pid, signal.SIGKILL)
            kills += 1

    chunks = Chunk.objects.filter(job=job)
    site.record_duration(
        "4: a job of 500 chunks under kill -9",
        time.monotonic() - began_at,
        children_killed=kills,
        leases_expired=site.logs().count('"lease_expired"'),
        attempts=chunks.aggregate(attempts=Sum("attempts"))["attempts"],
        calls=site.source.calls(),
    )
    assert (job.status, job.done) == ("success", 500)
    assert not first.alive
    assert kills > 3, "the job ended before enough kills"


def has_ended_within(job: Job, seconds: float) -> bool:
    limit = time.monotonic() + seconds
    wait_until(lambda: has_ended(job) or time.monotonic() > limit, every=0.2)
    return job.has_ended


def is_ready(worker: Process) -> bool:
    """Return whether the worker consumes messages. If a child is killed during the start, the worker exits."""
    return worker.alive and "ready." in worker.log.read_text()


def test_a_chunk_that_always_crashes_its_worker_fails_alone(site: Site) -> None:
    """12: one crashes before its call, and one after its file is committed. That file must be deleted."""
    attempts = 3
    site.points.arm("call about to begin", "die", times=attempts, key="KILLER")
    site.points.arm("object committed", "die", times=attempts, key="LATE-KILLER")
    site.start_worker(children=4, EXPORT_MAX_ATTEMPTS=attempts)
    site.start_beat()
    site.start_web()
    site.wait_for_workers()
    job = site.submit("A", "KILLER", "B", "LATE-KILLER", "C")
    site.settle(job)

    assert job.finished_at
    assert job.started_at
    site.record_duration("12: the chunks failed", (job.finished_at - job.started_at).total_seconds(), attempts=attempts)
    ended = Chunk.objects.filter(job=job).order_by("finished_at").values_list("status", flat=True)
    assert list(ended) == ["done"] * 3 + ["failed"] * 2, "other chunks waited for the failing ones"
    chunks = list(Chunk.objects.filter(job=job).order_by("seq").values_list("key", "status", "error_code", "attempts"))
    lost = ("failed", "EXPORT_WORKER_LOST", attempts)
    done = ("done", "", 1)
    assert chunks == [("A", *done), ("KILLER", *lost), ("B", *done), ("LATE-KILLER", *lost), ("C", *done)]
    assert (job.status, job.error_code, job.done, job.failed) == ("failed", "EXPORT_WORKER_LOST", 3, 2)
