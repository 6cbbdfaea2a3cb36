"""Claims and outcomes of chunks, with a real Postgres. A10 to A14, A16, A17, A19."""

import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from django.conf import settings
from django.contrib.auth.models import User
from django.db import connection, transaction
from django.db.models.functions import Now

from config.platform.heartbeat import LeaseLost
from exports.core.errors import PermanentSourceError, SourceError
from exports.core.states import JobStatus, Source
from exports.maintenance import lost_leases
from exports.models import Chunk, Dataset, File, Job, Slot
from exports.source import errors
from exports.worker import leases, transitions
from exports.worker.leases import Claim
from tests.conftest import change_settings
from tests.integration import outcomes
from tests.integration.factories import claim_one, make_job, pairs, result_of
from tests.integration.plans import nodes_reading
from tests.waiting import wait_until


def claim() -> Claim:
    claimed = claim_one(backend="test")
    assert claimed is not None
    return claimed


def in_threads(count: int, work: Any) -> list[Any]:
    """Return the results of `work(n)` in threads that start together, each with its own database connection."""
    barrier = threading.Barrier(count)

    def run(n: int) -> Any:
        try:
            barrier.wait()
            return work(n)
        finally:
            connection.close()

    with ThreadPoolExecutor(count) as pool:
        return list(pool.map(run, range(count)))


def expire_leases() -> None:
    Chunk.objects.filter(status="running").update(lease_until=Now() - timedelta(seconds=1))
    Slot.objects.held().update(lease_until=Now() - timedelta(seconds=1))


# ---- Claim ----------------------------------------------------------------------------------------------------------


def test_a_claim_takes_a_chunk_and_a_slot_under_one_token(dataset: Dataset, alice: User) -> None:
    job = make_job(dataset, alice)
    claimed = claim()

    chunk = Chunk.objects.get(pk=claimed.chunk_id)
    slot = Slot.objects.held().get()
    assert (chunk.status, chunk.token, chunk.attempts) == ("running", claimed.token, 1)
    assert (slot.token, slot.chunk_id, slot.job_id, slot.backend) == (claimed.token, chunk.pk, job.pk, "test")
    job.refresh_from_db()
    assert job.status == JobStatus.RUNNING
    assert job.started_at is not None


def test_a_claim_without_ready_chunks_is_empty(dataset: Dataset) -> None:
    assert claim_one(backend="test") is None
    assert not Slot.objects.held().exists()


def test_a_claim_without_free_slots_is_empty(dataset: Dataset, alice: User, slots: int) -> None:
    """A13."""
    make_job(dataset, alice, slots + 1)
    for _ in range(slots):
        claim()

    assert claim_one(backend="test") is None
    assert Chunk.objects.filter(status="pending").count() == 1


def test_concurrent_claims_take_different_chunks_within_the_slots(dataset: Dataset, alice: User, slots: int) -> None:
    """A10, A13."""
    make_job(dataset, alice, 40)
    claims = [claimed for claimed in in_threads(16, lambda _: claim_one(backend="test")) if claimed]

    assert len(claims) == slots
    assert len({claimed.chunk_id for claimed in claims}) == slots
    assert len({claimed.token for claimed in claims}) == slots


def test_concurrent_claims_do_not_block_each_other(dataset: Dataset, alice: User) -> None:
    """A10, A13: while a claim is in progress, another claim takes another slot and another chunk."""
    make_job(dataset, alice, 3)
    claim()  # starts the job, so that later claims do not change its row

    def claim_concurrently() -> Claim:
        try:
            return claim()
        finally:
            connection.close()

    # The transaction ends before the pool, so that a claim that waits for it fails after the timeout.
    with ThreadPoolExecutor(1) as pool, transaction.atomic():
        ours = claim()
        theirs = pool.submit(claim_concurrently).result(timeout=60)
    assert theirs.chunk_id != ours.chunk_id
    assert Slot.objects.held().count() == 3


def test_the_cap_of_a_dataset_does_not_affect_other_datasets(dataset: Dataset, alice: User) -> None:
    """A13."""
    dataset.max_concurrency = 1
    dataset.save()
    other = Dataset.objects.create(name="other", function="data.rows_for", base_path="other")
    make_job(dataset, alice, 5)
    make_job(other, alice, 2)

    first, *rest = [claim() for _ in range(3)]
    assert first.dataset == "things"
    assert [each.dataset for each in rest] == ["other", "other"]
    assert claim_one(backend="test") is None

    outcomes.finish([(first, result_of(first))])
    assert claim().dataset == "things"


def test_jobs_are_claimed_in_turn(dataset: Dataset, alice: User, bob: User) -> None:
    """A10: a small job starts although a large job of another user came first, and the large job continues."""
    large = make_job(dataset, alice, 50)
    for _ in range(3):
        served = claim()
        outcomes.finish([(served, result_of(served))])
    small = make_job(dataset, bob, 3, key="EWR")

    order = []
    for _ in range(6):
        served = claim()
        order.append(served.job_id)
        outcomes.finish([(served, result_of(served))])
    assert Counter(order) == {large.pk: 3, small.pk: 3}


# ---- Fencing --------------------------------------------------------------------------------------------------------


def taken_over(dataset: Dataset, alice: User) -> tuple[Claim, Claim]:
    """Return a claim whose lease has expired, and the claim of the worker that holds the chunk now."""
    make_job(dataset, alice, 1)
    stale = claim()
    expire_leases()
    lost_leases.reclaim_batch(batch=10)
    fresh = claim()
    assert fresh.chunk_id == stale.chunk_id
    return stale, fresh


def test_a_stale_fencing_token_changes_nothing(dataset: Dataset, alice: User) -> None:
    """A11."""
    stale, fresh = taken_over(dataset, alice)
    before = snapshot()

    assert outcomes.finish([(stale, result_of(stale))]) is None
    assert outcomes.fail(stale, SourceError(), delay=1) is None
    with pytest.raises(LeaseLost):
        leases.renew(stale)
    outcomes.release([stale])

    after = snapshot()
    # The stale worker can free its own slot, because its call has ended.
    assert after["chunks"] == before["chunks"]
    assert after["jobs"] == before["jobs"]
    assert after["files"] == []
    assert [slot["token"] for slot in after["slots"] if slot["token"]] == [fresh.token]


def snapshot() -> dict[str, list[dict[str, Any]]]:
    models: dict[str, Any] = {"chunks": Chunk, "jobs": Job, "files": File, "slots": Slot}
    return {name: list(model.objects.order_by("pk").values()) for name, model in models.items()}


def test_a_batch_skips_lost_chunks(dataset: Dataset, alice: User) -> None:
    """A11."""
    make_job(dataset, alice, 2)
    lost, kept = claim(), claim()
    Chunk.objects.filter(pk=lost.chunk_id).update(lease_until=Now() - timedelta(seconds=1))
    lost_leases.reclaim_batch(batch=10)
    fresh = claim()

    progress = outcomes.finish([(lost, result_of(lost)), (kept, result_of(kept))])

    assert progress is not None
    assert (progress.done, progress.chunks) == (1, 1)
    assert Chunk.objects.get(pk=lost.chunk_id).token == fresh.token
    assert Chunk.objects.get(pk=kept.chunk_id).status == "done"
    assert outcomes.finish([(lost, result_of(lost)), (kept, result_of(kept))]) is None


def test_the_new_holder_finishes_the_chunk(dataset: Dataset, alice: User) -> None:
    stale, fresh = taken_over(dataset, alice)
    outcomes.finish([(stale, result_of(stale, rows=1))])
    progress = outcomes.finish([(fresh, result_of(fresh, rows=2))])

    assert progress is not None
    assert progress.all_done
    chunk = Chunk.objects.get()
    assert (chunk.status, chunk.rows, chunk.attempts) == ("done", 2, 2)
    assert File.objects.get().etag == f'"{fresh.token}"'


def test_fencing_tokens_only_grow(dataset: Dataset, alice: User) -> None:
    make_job(dataset, alice, 5)
    tokens = [claim().token for _ in range(5)]
    assert tokens == sorted(set(tokens))


def test_a_renewal_extends_the_leases_of_chunk_and_slot(dataset: Dataset, alice: User) -> None:
    make_job(dataset, alice, 1)
    claimed = claim()
    expire_leases()
    leases.renew(claimed)

    assert Chunk.objects.filter(lease_until__gt=Now() + timedelta(seconds=50)).count() == 1
    assert Slot.objects.filter(lease_until__gt=Now() + timedelta(seconds=50)).count() == 1
    assert lost_leases.reclaim_batch(batch=10) == []


# ---- Outcomes -------------------------------------------------------------------------------------------------------


def test_a_finish_updates_the_counts_and_leaves_the_slot_to_the_worker(dataset: Dataset, alice: User) -> None:
    job = make_job(dataset, alice, 2)
    claimed = claim()
    progress = transitions.finish([(claimed, result_of(claimed))])

    assert progress is not None
    assert not progress.all_done
    job.refresh_from_db()
    assert (job.done, job.rows, job.bytes, job.status) == (1, 3, 60, "running")
    assert Slot.objects.held().get().token == claimed.token


def test_concurrent_finishes_complete_a_job_once(dataset: Dataset, alice: User) -> None:
    """A19."""
    for _ in range(20):
        job = make_job(dataset, alice, 2, reuse="never")
        claims = [claim(), claim()]

        progress = in_threads(2, lambda n, claims=claims: outcomes.finish([(claims[n], result_of(claims[n]))]))

        assert [each.all_done for each in progress].count(True) == 1
        job.refresh_from_db()
        assert job.done == 2


def test_a_repeated_finish_counts_once(dataset: Dataset, alice: User) -> None:
    job = make_job(dataset, alice, 2)
    claimed = claim()
    outcomes.finish([(claimed, result_of(claimed))])

    assert outcomes.finish([(claimed, result_of(claimed))]) is None
    job.refresh_from_db()
    assert job.done == 1


def test_attempts_after_a_conflict_of_a_replica_are_far_apart(dataset: Dataset, alice: User) -> None:
    """A14, A17: replication conflicts last longer than other errors, which are retried within 15 s."""
    make_job(dataset, alice, 1)
    first = claim()
    conflict = errors.as_export_error("40001")
    delays = [transitions.delay_after(replace(first, attempts=number), conflict) or 0 for number in (1, 2, 3)]
    env = settings.SLUICE
    assert sum(delays) >= 0.5 * 8 * env.export_backoff_base_seconds * 3
    assert transitions.delay_after(replace(first, attempts=4), conflict) is None


def test_a_failure_is_retried_with_backoff_and_then_final(dataset: Dataset, alice: User, settings: Any) -> None:
    """A17: the chunk is retried three times, and then fails."""
    long = {f"export_backoff_{name}_seconds": getattr(settings.SLUICE, f"export_backoff_{name}_seconds") * 1000
            for name in ("base", "max")}  # fmt: skip
    change_settings(settings, **long)
    job = make_job(dataset, alice, 1)
    delays = []
    for attempt in range(1, 5):
        claimed = claim()
        assert claimed.attempts == attempt
        error = SourceError("SQLSTATE 22012")
        delay = transitions.delay_after(claimed, error)
        outcomes.fail(claimed, error, delay=delay)
        job.refresh_from_db()
        if delay is not None:
            assert job.status == JobStatus.RETRYING
            assert job.retrying == 1
            assert claim_one(backend="test") is None  # the retry is not due yet
            delays.append(delay)
            Chunk.objects.update(available_at=Now())

    assert 1000 <= delays[0] <= 2000 <= delays[1] <= 4000 <= delays[2] <= 8000
    chunk = Chunk.objects.get()
    assert (chunk.status, chunk.error_code, chunk.error_detail) == ("failed", "EXPORT_SOURCE_ERROR", "SQLSTATE 22012")
    assert (job.status, job.failed, job.retrying, job.error_code) == ("failed", 1, 0, "EXPORT_SOURCE_ERROR")
    assert job.finished_at is not None


def test_a_permanent_error_is_final_immediately(dataset: Dataset, alice: User) -> None:
    """A17."""
    job = make_job(dataset, alice, 1)
    claimed, error = claim(), PermanentSourceError("SQLSTATE 42883")
    outcomes.fail(claimed, error, delay=transitions.delay_after(claimed, error))

    job.refresh_from_db()
    assert job.status == JobStatus.FAILED


def test_other_chunks_still_finish_after_a_failed_one(dataset: Dataset, alice: User) -> None:
    """A17."""
    job = make_job(dataset, alice, 2)
    outcomes.fail(claim(), PermanentSourceError(), delay=None)
    job.refresh_from_db()
    assert job.status == JobStatus.RUNNING

    last = claim()
    outcomes.finish([(last, result_of(last))])
    job.refresh_from_db()
    assert (job.status, job.done, job.failed) == ("failed", 1, 1)


def test_a_chunk_that_kills_its_workers_fails(dataset: Dataset, alice: User) -> None:
    """A17: claims count attempts, so such a chunk is not retried forever."""
    job = make_job(dataset, alice, 1)
    for _ in range(4):
        token = claim().token
        expire_leases()
        assert lost_leases.reclaim_batch(batch=10)
        transitions.free_slots([token])

    assert claim_one(backend="test") is None
    assert Chunk.objects.get().error_code == "EXPORT_WORKER_LOST"
    job.refresh_from_db()
    assert job.status == JobStatus.FAILED


def test_a_released_chunk_does_not_count_an_attempt(dataset: Dataset, alice: User) -> None:
    make_job(dataset, alice, 1)
    outcomes.release([claim()])

    assert not Slot.objects.held().exists()
    assert claim().attempts == 1


def test_a_lost_worker_keeps_its_slot_until_its_call_has_ended(dataset: Dataset, alice: User) -> None:
    """A13: the query of a suspended worker may still run."""
    make_job(dataset, alice, 1)
    lost = claim()
    assert lost_leases.expired_slots() == []
    expire_leases()
    lost_leases.reclaim_batch(batch=10)

    assert lost_leases.expired_slots() == [(lost.token, "test")]
    assert Slot.objects.held().count() == 1
    transitions.free_slots([lost.token])
    assert not Slot.objects.held().exists()


def test_a_late_renewal_does_not_keep_the_slot(dataset: Dataset, alice: User) -> None:
    """A13: a suspended worker must not keep the slot of a chunk that another worker holds."""
    stale, _ = taken_over(dataset, alice)
    with pytest.raises(LeaseLost):
        leases.renew(stale)

    assert lost_leases.expired_slots() == [(stale.token, "test")]


def test_a_slot_is_held_as_long_as_its_chunk(dataset: Dataset, alice: User) -> None:
    """A13: an expired lease can be renewed until the chunk is reclaimed."""
    make_job(dataset, alice, 1)
    held = claim()
    expire_leases()

    assert lost_leases.expired_slots() == []
    leases.renew(held)


def test_the_slot_of_a_withdrawn_chunk_is_freed_after_its_lease(dataset: Dataset, alice: User) -> None:
    """A13: its worker may not have detected the loss yet, and may be running a call."""
    make_job(dataset, alice, 1)
    held = claim()
    assert lost_leases.withdraw(held.chunk_id, token=held.token)

    assert lost_leases.expired_slots() == []
    Slot.objects.held().update(lease_until=Now() - timedelta(seconds=1))
    assert lost_leases.expired_slots() == [(held.token, "test")]


# ---- Reuse ----------------------------------------------------------------------------------------------------------


def finished_job(dataset: Dataset, alice: User, chunks: int) -> Job:
    job = make_job(dataset, alice, chunks)
    while claimed := claim_one(backend="test"):
        outcomes.finish([(claimed, result_of(claimed))])
    return job


def test_chunks_with_a_known_file_are_checked_without_a_slot(dataset: Dataset, alice: User) -> None:
    """A16."""
    finished_job(dataset, alice, 3)
    again = make_job(dataset, alice, 4)

    claims = leases.claim_reusable(batch=10)
    assert len(claims) == 3
    assert all(each.may_reuse and each.known_file for each in claims)
    assert not Slot.objects.held().exists()

    progress = outcomes.finish([(each, result_of(each, source=Source.REUSED)) for each in claims])
    assert progress is not None
    again.refresh_from_db()
    assert (again.done, again.reused) == (3, 3)


def test_a_file_of_an_older_schema_version_is_not_reused(dataset: Dataset, alice: User) -> None:
    """A16."""
    finished_job(dataset, alice, 1)
    dataset.schema_version = 2
    dataset.save()
    make_job(dataset, alice, 1)

    assert leases.claim_reusable(batch=10) == []
    assert not claim().may_reuse


def test_a_file_that_is_too_old_is_not_reused(dataset: Dataset, alice: User) -> None:
    finished_job(dataset, alice, 1)
    dataset.reuse_max_age = 60
    dataset.save()
    File.objects.update(data_as_of=Now() - timedelta(seconds=61))
    make_job(dataset, alice, 1)

    assert leases.claim_reusable(batch=10) == []
    assert not claim().may_reuse


def test_a_job_with_fresh_files_reuses_none(dataset: Dataset, alice: User) -> None:
    finished_job(dataset, alice, 1)
    make_job(dataset, alice, 1, reuse="never")

    assert leases.claim_reusable(batch=10) == []
    fresh = claim()
    assert not fresh.may_reuse
    assert fresh.known_file is not None  # the new file replaces the object with this ETag


def test_a_check_of_a_file_that_times_out_leads_to_a_call(dataset: Dataset, alice: User) -> None:
    """A hanging object storage must not cause endless checks of the same chunks."""
    finished_job(dataset, alice, 1)
    make_job(dataset, alice, 1)
    leases.claim_reusable(batch=10)
    expire_leases()
    lost_leases.reclaim_batch(batch=10)

    assert leases.claim_reusable(batch=10) == []
    assert claim().attempts == 1


def test_a_missing_file_leads_to_a_call(dataset: Dataset, alice: User) -> None:
    finished_job(dataset, alice, 1)
    make_job(dataset, alice, 1)
    outcomes.release(leases.claim_reusable(batch=10), attempt=0)

    assert claim().attempts == 1


def test_batches_with_the_same_files_in_another_order_do_not_deadlock(dataset: Dataset, alice: User, bob: User) -> None:
    """I1: after a deadlock, the chunks of the aborted transaction would stay running until their leases expire."""
    finished_job(dataset, alice, 5)
    jobs = [
        make_job(dataset, user, reuse="never", pairs=order)
        for user, order in ((alice, pairs(5)), (bob, pairs(5)[::-1]))
    ]
    batches: dict[Any, list[Claim]] = {job.pk: [] for job in jobs}
    for _ in range(10):
        claimed = claim()
        batches[claimed.job_id].append(claimed)
        transitions.free_slots([claimed.token])

    def finish(batch: list[Claim]) -> Any:
        try:
            return transitions.finish([(each, result_of(each)) for each in batch])
        finally:
            connection.close()

    with ThreadPoolExecutor(2) as pool, transaction.atomic():
        File.objects.select_for_update().get(path=batches[jobs[0].pk][2].path)
        running = [pool.submit(finish, batch) for batch in batches.values()]
        wait_until(lambda: waiting_locks() == 2)
    assert [each.result().chunks for each in running] == [5, 5]


def waiting_locks() -> int:
    with connection.cursor() as cursor:
        cursor.execute("SELECT count(DISTINCT pid) FROM pg_locks WHERE NOT granted")
        return int(cursor.fetchone()[0])


# ---- Cost -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("waiting", [500, 5000])
def test_a_claim_reads_one_of_many_waiting_chunks(dataset: Dataset, alice: User, waiting: int) -> None:
    make_job(dataset, alice, waiting)
    values = {"slots": 8, "lease": 60, "backend": "test", "paused": [], "held": None}
    scans = nodes_reading("exports_chunk", leases.CLAIM + leases.DESCRIBE, values)

    assert scans
    assert all(node["Actual Rows"] <= 1 for node in scans)
    assert not [node for node in scans if node["Node Type"] == "Seq Scan"]
