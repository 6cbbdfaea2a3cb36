"""Batches of small chunks, with a real source database and real object storage. A10 to A13, A19, P4."""

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager, nullcontext
from typing import Any

import psycopg
import pytest
from celery.exceptions import SoftTimeLimitExceeded
from django.conf import LazySettings
from django.conf import settings as django_settings
from django.contrib.auth.models import User
from django.db import OperationalError, connection, transaction
from django.db.backends.signals import connection_created
from django.db.backends.utils import CursorWrapper

from exports.core import wakeups
from exports.core.errors import SourceConnectionsExhausted, SourceError
from exports.delivery import packs
from exports.jobs import actions, quotas
from exports.maintenance import lost_leases
from exports.models import Chunk, Dataset, Event, Job, Slot
from exports.source import database
from exports.source.copy_stream import CopyStream
from exports.worker import batches, execution, leases, transitions
from exports.worker.leases import Claim
from exports.worker.slot import WorkerSlot
from tests.broker import lose_messages, queued
from tests.conftest import change_settings
from tests.integration import faulty_s3, outcomes
from tests.integration.factories import claim_one, make_job, result_of
from tests.integration.plans import nodes, plans_of, rows_of
from tests.integration.test_execution import replace_function
from tests.integration.test_leases import in_threads
from tests.waiting import wait_until


@pytest.fixture(autouse=True)
def _long_time_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Raise the time limits of batches, so that a slow machine does not split them or make them smaller."""
    monkeypatch.setattr(batches, "BATCH_SECONDS", 60)
    monkeypatch.setattr(batches, "TARGET_SECONDS", 240)


def claim_batch(size: int = 32) -> list[Claim]:
    return leases.claim_batch(backend="test", sizes={"things": size})


def run(claims: list[Claim]) -> None:
    with database.SourceSession() as session:
        run_with(session, claims)


def run_with(session: database.SourceSession, claims: list[Claim]) -> None:
    with WorkerSlot(session, token=claims[0].token) as slot:
        execution.run_batch(claims, slot, time.monotonic())


def statuses(job: Job) -> list[str]:
    return list(job.chunks.in_request_order().values_list("status", flat=True))


# ---- Claims ---------------------------------------------------------------------------------------------------------


def test_a_batch_has_one_slot_and_one_token(dataset: Dataset, alice: User) -> None:
    job = make_job(dataset, alice, 100)
    claims = claim_batch(5)

    assert [claim.pair for claim in claims] == [chunk.pair for chunk in job.chunks.in_request_order()[:5]]
    token = Slot.objects.held().get().token
    chunks = Chunk.objects.filter(status="running")
    assert set(chunks.values_list("token", "attempts")) == {(token, 1)}
    assert chunks.count() == 5
    assert all(chunk.lease_until for chunk in chunks)
    job.refresh_from_db()
    assert (job.status, job.event_seq) == ("running", 1)


def test_a_batch_leaves_chunks_for_other_workers(dataset: Dataset, alice: User, slots: int) -> None:
    make_job(dataset, alice, slots * 2 + 1)
    assert len(claim_batch()) == 3
    assert len(claim_batch()) == 2  # its share of the remaining chunks, rounded up


def test_the_only_worker_takes_all_chunks(alone: Dataset, alice: User) -> None:
    make_job(alone, alice, 7)
    assert len(claim_batch()) == 7
    assert Slot.objects.held().count() == 2  # a shared slot, and a slot of the dataset


@pytest.mark.parametrize("sizes", [{}, {"others": 32}, {"things": 1}])
def test_chunks_of_a_dataset_without_a_batch_size_are_claimed_singly(
    dataset: Dataset, alice: User, sizes: dict[str, int]
) -> None:
    make_job(dataset, alice, 40)
    assert len(leases.claim_batch(backend="test", sizes=sizes)) == 1


def test_a_batch_has_chunks_of_one_job(dataset: Dataset, alice: User, bob: User) -> None:
    make_job(dataset, alice, 9)
    make_job(dataset, bob, 9)
    first, second = claim_batch(), claim_batch()
    assert len({claim.job_id for claim in first}) == len({claim.job_id for claim in second}) == 1
    assert first[0].job_id != second[0].job_id  # bob's chunks have the lowest rank now


def test_chunks_of_lost_workers_run_alone(dataset: Dataset, alice: User) -> None:
    """One of them may have killed the worker. In a batch, it would make the others fail each time."""
    make_job(dataset, alice, 100)
    lost = claim_batch(3)
    Chunk.objects.filter(status="running").update(lease_until="2000-01-01T00:00Z")
    assert len(lost_leases.reclaim_batch(batch=10)) == len(lost) == 3
    transitions.free_slots([lost[0].token])

    again = [claim_batch(3) for _ in range(4)]
    assert [len(claims) for claims in again] == [1, 1, 1, 3]
    assert {claims[0].chunk_id for claims in again[:3]} == {claim.chunk_id for claim in lost}


def test_a_batch_has_no_chunk_of_a_lost_worker(dataset: Dataset, alice: User) -> None:
    make_job(dataset, alice, 100)
    first, lost = claim_batch(3), claim_batch(3)
    Chunk.objects.filter(token=lost[0].token).update(lease_until="2000-01-01T00:00Z")
    assert len(lost_leases.reclaim_batch(batch=10)) == 3
    outcomes.release(first)

    again = claim_batch(9)
    assert len(again) == 9
    assert not {claim.chunk_id for claim in again} & {claim.chunk_id for claim in lost}


def test_a_claim_reads_few_chunks_of_a_job_that_statistics_do_not_include_yet(dataset: Dataset, alice: User) -> None:
    """P6: autovacuum updates the statistics up to a minute after a job is submitted."""
    actions.cancel(make_job(dataset, alice, 10_000))
    with connection.cursor() as cursor:
        cursor.execute("REINDEX INDEX exports_chunk_ready; ANALYZE exports_chunk")
    make_job(dataset, alice, 5000, key="LGA")

    plans = [plan for _, plan in plans_of(lambda _: claim_batch(8))]
    reads = [rows_of(node) for plan in plans for node in nodes(plan) if node.get("Relation Name") == "exports_chunk"]
    assert reads
    assert max(reads) <= 8 * Slot.objects.filter(dataset=None).count()


def test_a_retry_runs_alone(dataset: Dataset, alice: User) -> None:
    make_job(dataset, alice, 100)
    failed = claim_batch(1)[0]
    outcomes.fail(failed, SourceError(), delay=0)
    claims = [claim_batch(3) for _ in range(2)]  # retries and new chunks alternate
    assert sorted(len(each) for each in claims) == [1, 3]
    assert [each[0].chunk_id for each in claims if len(each) == 1] == [failed.chunk_id]


def test_concurrent_batches_are_disjoint_and_within_the_slots(dataset: Dataset, alice: User, slots: int) -> None:
    make_job(dataset, alice, 200)
    found = in_threads(12, lambda _: claim_batch(8))
    taken = [claim.chunk_id for claims in found for claim in claims]
    assert len([claims for claims in found if claims]) == slots == Slot.objects.held().count()
    assert len(taken) == len(set(taken))


def test_concurrent_batches_do_not_block_each_other(dataset: Dataset, alice: User) -> None:
    """A10: while the claim of a batch is in progress, another claim takes other chunks."""
    make_job(dataset, alice, 200)
    claim_batch(1)  # starts the job, so that later claims do not change its row

    def claim_concurrently() -> list[Claim]:
        try:
            return claim_batch(8)
        finally:
            connection.close()

    # The transaction ends before the pool, so that a claim that waits for it fails after the timeout.
    with ThreadPoolExecutor(1) as pool, transaction.atomic():
        ours = claim_batch(8)
        theirs = pool.submit(claim_concurrently).result(timeout=60)
    assert len(ours) == len(theirs) == 8
    assert not {claim.chunk_id for claim in ours} & {claim.chunk_id for claim in theirs}


# ---- Outcomes -------------------------------------------------------------------------------------------------------


@pytest.fixture
def statements(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The statements that Django sends to the main database, from all threads."""
    found: list[str] = []
    execute = CursorWrapper.execute

    def recorded(cursor: CursorWrapper, statement: Any, values: Any = None) -> Any:
        found.append(str(statement))
        return execute(cursor, statement, values)

    monkeypatch.setattr(CursorWrapper, "execute", recorded)
    return found


def test_a_batch_is_recorded_by_one_statement(alone: Dataset, alice: User, statements: list[str]) -> None:
    job = make_job(alone, alice, 30)
    claims = claim_batch(6)
    statements.clear()
    run(claims)

    assert len([statement for statement in statements if "exports_chunk" in statement]) == 1
    assert statuses(job)[:7] == ["done"] * 6 + ["pending"]
    job.refresh_from_db()
    assert (job.done, job.rows, job.status) == (6, 18, "running")
    ends = Event.objects.filter(job=job, kind="chunk").order_by("seq").values_list("chunk_id", "status")
    assert list(ends) == [(claim.chunk_id, "done") for claim in claims]
    assert not Slot.objects.held().exists()
    assert {(chunk.sha256 != "", chunk.source) for chunk in job.chunks.filter(status="done")} == {(True, "live")}


def test_workers_claim_small_chunks_in_batches(alone: Dataset, alice: User, statements: list[str]) -> None:
    job = make_job(alone, alice, 120)
    execution.drain()

    job.refresh_from_db()
    assert (job.done, job.rows) == (120, 360)
    claims = [statement for statement in statements if "exports_turn_seq" in statement]
    ends = [statement for statement in statements if "status = 'done', token = NULL" in statement]
    assert len(ends) == 5  # the first chunk alone, then three batches of 32 and the rest
    assert len(claims) - len(ends) <= 2  # claims that found no chunk
    assert not Slot.objects.held().exists()


def test_chunks_not_started_are_returned_before_ended_chunks_are_recorded(
    alone: Dataset, alice: User, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Recording ended chunks may take long, because it may send a request to the storage."""
    monkeypatch.setattr(batches, "BATCH_SECONDS", 0.5)  # long enough to end the first chunk on a slow machine
    job = make_job(alone, alice, 24)
    seen: list[list[str]] = []

    def record(ended: list[batches.Ended]) -> None:
        seen.append(statuses(job)[:3])
        execution.record_successes(ended)

    with database.SourceSession() as session, batches.Batch(claim_batch(3), session, record) as batch:
        first, second = (next(iter(batch)) for _ in range(2))
        batch.end(first, result_of(first), 0.1)
        wait_until(lambda: statuses(job)[0] == "done")
        batch.end(second, result_of(second), 0.1)
    assert seen == [["running", "running", "pending"], ["done", "running", "pending"]]
    assert statuses(job)[:3] == ["done", "done", "pending"]


def test_a_shutdown_while_a_batch_is_recorded_loses_no_chunk(
    alone: Dataset, alice: User, monkeypatch: pytest.MonkeyPatch
) -> None:
    """C4: all its chunks are done except the last one, which is released immediately, without counting an attempt."""
    job = make_job(alone, alice, 24, delivery="manifest")
    claims, calls = claim_batch(3), []

    def interrupted_once(*_: object) -> list[None]:
        calls.append(1)
        if len(calls) == 1:
            raise SystemExit
        return [None] * 3

    monkeypatch.setattr(packs, "store_batch", interrupted_once)
    with pytest.raises(SystemExit):
        run(claims)
    assert sorted(statuses(job)[:3]) == ["done", "done", "pending"]
    assert set(job.chunks.filter(status="pending").values_list("attempts", flat=True)) == {0}
    assert not Slot.objects.held().exists()


@contextmanager
def held_call(source_db: psycopg.Connection, day: str) -> Iterator[None]:
    """Make the call for this day wait until the block ends. It polls, because the session has a `lock_timeout`."""
    replace_function(
        source_db,
        f"IF effective_date = '{day}' THEN"
        " WHILE NOT pg_try_advisory_xact_lock(17) LOOP PERFORM pg_sleep(0.05); END LOOP; END IF;",
    )
    source_db.execute("SELECT pg_advisory_lock(17)")
    try:
        yield
    finally:
        source_db.execute("SELECT pg_advisory_unlock(17)")


@pytest.mark.slow
def test_a_slow_chunk_does_not_delay_others(
    alone: Dataset, alice: User, source_db: psycopg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While it runs, ended chunks are recorded, and chunks that have not started are returned."""
    monkeypatch.setattr(batches, "BATCH_SECONDS", 4)  # the third call begins before, even if the machine stalls
    job = make_job(alone, alice, 24)
    worker = threading.Thread(target=in_thread, args=[run, claim_batch(6)])
    with held_call(source_db, "2024-03-01"):
        worker.start()
        wait_until(lambda: statuses(job)[:6] == ["done", "done", "running", "pending", "pending", "pending"])
        assert Slot.objects.held().count() == 2
        assert set(job.chunks.filter(status="pending").values_list("attempts", flat=True)) == {0}

    worker.join()
    assert statuses(job)[:4] == ["done", "done", "done", "pending"]
    assert not Slot.objects.held().exists()
    job.refresh_from_db()
    assert (job.done, job.rows) == (3, 3)


@pytest.mark.slow
@pytest.mark.parametrize(("usable", "messages"), [(1, 0), (3, 2)])
def test_returned_chunks_wake_workers_for_free_slots_only(  # noqa: PLR0917 - pytest passes fixtures by name
    dataset: Dataset,
    alice: User,
    source_db: psycopg.Connection,
    monkeypatch: pytest.MonkeyPatch,
    settings: LazySettings,
    usable: int,
    messages: int,
) -> None:
    """A13: more workers could take slots while this worker has none, and connect to the source in addition to it."""
    change_settings(settings, export_db_slots=usable)
    replace_function(source_db, "PERFORM pg_sleep(3);")
    monkeypatch.setattr(batches, "BATCH_SECONDS", 1)
    job = make_job(dataset, alice, 24)
    claims = claim_batch(6)
    lose_messages()
    run(claims)

    assert statuses(job)[:3] == ["done", "pending", "pending"]
    assert queued("exports") == messages


def in_thread(work: Callable[..., object], *args: Any, **options: Any) -> None:
    try:
        work(*args, **options)
    finally:
        connection.close()


def test_a_failure_ends_only_its_chunk(alone: Dataset, alice: User, source_db: psycopg.Connection) -> None:
    replace_function(source_db, "IF effective_date = '2024-02-29' THEN RAISE 'no' USING ERRCODE = 'P0001'; END IF;")
    job = make_job(alone, alice, 16)
    run(claim_batch(4))

    assert statuses(job)[:5] == ["done", "retrying", "done", "done", "pending"]
    job.refresh_from_db()
    assert (job.done, job.retrying, job.status) == (3, 1, "retrying")
    assert not Slot.objects.held().exists()


def test_a_failure_of_the_last_chunk_frees_the_slot(alone: Dataset, alice: User, source_db: psycopg.Connection) -> None:
    replace_function(source_db, "IF effective_date = '2024-03-02' THEN RAISE 'no' USING ERRCODE = 'P0001'; END IF;")
    job = make_job(alone, alice, 16)
    run(claim_batch(4))
    assert statuses(job)[:5] == ["done", "done", "done", "retrying", "pending"]
    assert not Slot.objects.held().exists()


def test_cancelled_chunks_of_a_batch_are_not_recorded(alone: Dataset, alice: User) -> None:
    job = make_job(alone, alice, 8)
    before = quotas.state(alice.pk).chunks
    claims = claim_batch(4)
    actions.cancel(job)
    run(claims)

    job.refresh_from_db()
    assert (job.status, job.done, job.cancelled) == ("cancelled", 0, 8)
    assert quotas.state(alice.pk).chunks == before - 8
    assert not Slot.objects.held().exists()


def test_a_finished_batch_skips_withdrawn_chunks(alone: Dataset, alice: User) -> None:
    job = make_job(alone, alice, 12)
    claims = claim_batch(3)
    assert lost_leases.withdraw(claims[1].chunk_id, token=claims[1].token)
    results = [(claim, result_of(claim)) for claim in claims]
    progress = outcomes.finish(results)
    assert progress
    assert sorted(progress.chunk_ids) == [claims[0].chunk_id, claims[2].chunk_id]
    assert statuses(job)[:3] == ["done", "pending", "done"]
    assert outcomes.finish(results) is None  # a batch can be finished only once


# ---- Uploads during calls -------------------------------------------------------------------------------------------


class CountingSession(database.SourceSession):
    """A session that counts its calls."""

    def __init__(self) -> None:
        super().__init__()
        self.calls = 0

    def stream(self, *args: Any, **options: Any) -> CopyStream:
        self.calls += 1
        return super().stream(*args, **options)


def test_a_chunk_calls_the_source_while_the_last_file_is_uploaded(
    alone: Dataset, alice: User, proxy: faulty_s3.Proxy
) -> None:
    """P4: a batch has one slot, so it makes one call at a time, with one upload in parallel."""
    job = make_job(alone, alice, 8)
    seen: list[int] = []
    with CountingSession() as session:

        def wait_for_the_next_call() -> None:
            # With a limit below the client's timeout, so that the request is not repeated.
            wait_until(lambda: session.calls == 2, limit=5)
            seen.append(session.calls)

        proxy.inject("PUT", "", faulty_s3.first(wait_for_the_next_call))
        run_with(session, claim_batch(4))
    assert seen == [2]
    assert statuses(job)[:5] == ["done"] * 4 + ["pending"]
    assert not Slot.objects.held().exists()


def test_uploads_of_a_batch_need_no_database_connection(alone: Dataset, alice: User) -> None:
    """P4: also if they replace files. A connection for each small file would cost more than its upload.

    The thread that ends last records the batch. That is the thread of the uploads if the last chunk, which the main
    thread uploads, overtakes the chunk before it.
    """
    make_job(alone, alice, 8)
    run(claim_batch(8))
    job = make_job(alone, alice, 8, reuse="never")
    threads: list[str] = []

    def on_connection(**_: object) -> None:
        threads.append(threading.current_thread().name)

    connection_created.connect(on_connection)
    try:
        in_threads(1, lambda _: run(claim_batch(8)))
    finally:
        connection_created.disconnect(on_connection)
    assert statuses(job) == ["done"] * 8
    assert threads
    assert len([name for name in threads if name.startswith("upload")]) <= 1


@pytest.mark.slow
def test_a_file_is_recorded_while_the_next_call_takes_long(
    alone: Dataset, alice: User, proxy: faulty_s3.Proxy, source_db: psycopg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The upload ends after the time limit of the batch. The running call still holds the slot."""
    monkeypatch.setattr(batches, "BATCH_SECONDS", 4)  # the second call begins before, even if the machine stalls
    job = make_job(alone, alice, 24)

    def wait_for_the_time_limit() -> None:
        # With a limit below the client's timeout, so that the request is not repeated.
        in_thread(wait_until, lambda: statuses(job)[2] == "pending", limit=9)

    proxy.inject("PUT", "", faulty_s3.first(wait_for_the_time_limit))
    worker = threading.Thread(target=in_thread, args=[run, claim_batch(3)])
    with held_call(source_db, "2024-02-29"):
        worker.start()
        wait_until(lambda: statuses(job)[:3] == ["done", "running", "pending"])
        assert Slot.objects.held().count() == 2
    worker.join()
    assert statuses(job)[:3] == ["done", "done", "pending"]
    assert not Slot.objects.held().exists()


@pytest.mark.parametrize("failing", range(4))
def test_a_failed_upload_ends_only_its_chunk(alone: Dataset, alice: User, proxy: faulty_s3.Proxy, failing: int) -> None:
    """The upload runs during the next call or, for the last chunk, after all calls."""
    job = make_job(alone, alice, 16)
    claims = claim_batch(4)
    denied = faulty_s3.ERROR.replace(b"InternalError", b"InvalidRequest")
    proxy.inject("PUT", claims[failing].path, lambda handler, _body: handler.answer(400, [], denied), times=4)
    run(claims)

    expected = ["done"] * 4
    expected[failing] = "failed"
    assert statuses(job)[:4] == expected
    job.refresh_from_db()
    assert (job.done, job.failed) == (3, 1)
    assert not Slot.objects.held().exists()


def test_a_shutdown_during_an_upload_loses_no_file(alone: Dataset, alice: User, proxy: faulty_s3.Proxy) -> None:
    """C4: the signal arrives while the worker calls the source for the third chunk and uploads the second file."""
    job = make_job(alone, alice, 24)
    claims = claim_batch(6)
    proxy.inject("PUT", claims[1].path, faulty_s3.first(lambda: time.sleep(0.5)))
    with InterruptedSession(SystemExit()) as session, pytest.raises(SystemExit):
        run_with(session, claims)
    assert statuses(job)[:6] == ["done"] * 2 + ["pending"] * 4
    assert not Slot.objects.held().exists()


@pytest.mark.parametrize("cleanup", ["upload", "release", "record"])
def test_an_error_does_not_end_a_shutdown(
    alone: Dataset, alice: User, proxy: faulty_s3.Proxy, monkeypatch: pytest.MonkeyPatch, cleanup: str
) -> None:
    """C4: otherwise, the worker would claim more chunks, and be killed while it exports them."""
    job = make_job(alone, alice, 24)
    claims = claim_batch(6)

    def fail(*_given: object) -> None:
        raise OperationalError("gone")

    if cleanup == "upload":
        proxy.inject("PUT", claims[1].path, faulty_s3.answer_500, times=9)
    else:
        monkeypatch.setattr(*{"release": (transitions, "release"), "record": (transitions, "finish")}[cleanup], fail)
    with InterruptedSession(SystemExit()) as session, pytest.raises(SystemExit):
        run_with(session, claims)
    expected = {
        "upload": ["done", "retrying", *["pending"] * 4],
        "release": ["done", "done", *["running"] * 4],
        "record": ["running", "running", "pending", *["running"] * 3],
    }
    assert statuses(job)[:6] == expected[cleanup]


def test_the_time_limit_of_a_worker_ends_a_chunk(alone: Dataset, alice: User) -> None:
    job = make_job(alone, alice, 24)
    with InterruptedSession(SoftTimeLimitExceeded()) as session, pytest.raises(SoftTimeLimitExceeded):
        run_with(session, claim_batch(6))
    assert statuses(job)[:6] == ["done", "done", "retrying", *["pending"] * 3]
    chunk = job.chunks.get(status="retrying")
    assert (chunk.attempts, chunk.error_code) == (1, "EXPORT_WORKER_LOST")
    assert chunk.error_detail == "over the worker's time limit"


# ---- Stopping workers -----------------------------------------------------------------------------------------------


class InterruptedSession(database.SourceSession):
    """A session that raises an exception at the start of its third call, like a signal handler."""

    def __init__(self, error: BaseException) -> None:
        super().__init__()
        self.error = error
        self.calls = 0

    def stream(self, *args: Any, **options: Any) -> CopyStream:
        self.calls += 1
        if self.calls == 3:
            raise self.error
        return super().stream(*args, **options)


def test_a_shutdown_records_ended_chunks_and_returns_the_rest(alone: Dataset, alice: User) -> None:
    job = make_job(alone, alice, 24)
    with InterruptedSession(SystemExit()) as session, pytest.raises(SystemExit):
        run_with(session, claim_batch(6))

    assert statuses(job)[:6] == ["done"] * 2 + ["pending"] * 4
    assert set(job.chunks.filter(status="pending").values_list("attempts", flat=True)) == {0}
    assert not Slot.objects.held().exists()


def test_a_lost_database_connection_leaves_the_batch_to_its_lease(alone: Dataset, alice: User) -> None:
    job = make_job(alone, alice, 24)
    with InterruptedSession(OperationalError("gone")) as session, pytest.raises(OperationalError):
        run_with(session, claim_batch(6))

    assert statuses(job)[:6] == ["done", "done", "running", "pending", "pending", "pending"]
    Chunk.objects.filter(status="running").update(lease_until="2000-01-01T00:00Z")
    assert [chunk.status for chunk in lost_leases.reclaim_batch(batch=10)] == ["pending"]


class DisconnectingSession(database.SourceSession):
    """A session that ends the thread's connection to the main database before its first call."""

    is_connected = True

    def stream(self, *args: Any, **options: Any) -> CopyStream:
        if self.is_connected:
            self.is_connected = False
            with psycopg.connect(django_settings.SLUICE.database_url.get_secret_value(), autocommit=True) as other:
                other.execute("SELECT pg_terminate_backend(%s, 10000)", [connection.connection.info.backend_pid])
        return super().stream(*args, **options)


@pytest.mark.usefixtures("empty_bucket")  # a conflict with another file would need the database, too
@pytest.mark.parametrize("chunks", [1, 6])
@pytest.mark.parametrize("duration", ["short", "long"])
def test_a_lost_database_connection_repeats_no_call(
    alone: Dataset, alice: User, source_db: psycopg.Connection, chunks: int, duration: str
) -> None:
    """I1: a proxy closed the connection during the call. The heartbeat has its own connections, so the lease is valid.

    After a long call, the worker renews the lease, and connects again if that fails.
    """
    if duration == "long":
        replace_function(source_db, "IF effective_date = '2024-02-28' THEN PERFORM pg_sleep(1.1); END IF;")
    job = make_job(alone, alice, chunks)
    expected = nullcontext() if duration == "long" else pytest.raises(OperationalError)
    with DisconnectingSession() as session, expected:
        run_with(session, claim_batch(chunks))

    assert not session.is_connected
    assert set(job.chunks.values_list("status", "attempts", "source")) == {("done", 1, "live")}
    if duration == "long":  # otherwise, the slot may be left to its lease
        assert not Slot.objects.held().exists()


def test_no_call_follows_a_call_that_lost_its_connection(
    alone: Dataset, alice: User, source_db: psycopg.Connection
) -> None:
    """A13: the reaper looks for calls by the name of the lost connection. It would not find the new call, and would
    free the slot."""
    replace_function(
        source_db, "IF effective_date = '2024-02-28' THEN PERFORM pg_terminate_backend(pg_backend_pid()); END IF;"
    )
    job = make_job(alone, alice, 24)
    run(claim_batch(6))

    assert statuses(job)[:6] == ["retrying"] + ["pending"] * 5
    assert not Slot.objects.held().exists()


def test_no_call_follows_a_call_that_may_still_run(
    alone: Dataset, alice: User, monkeypatch: pytest.MonkeyPatch, source_db: psycopg.Connection
) -> None:
    """The reaper frees the slot when it has ended the call. The other chunks use other slots."""
    replace_function(source_db, "RAISE 'no' USING ERRCODE = 'P0001';")
    monkeypatch.setattr(database.SourceSession, "_end_call", lambda _session: False)
    job = make_job(alone, alice, 24)
    run(claim_batch(6))

    assert statuses(job)[:6] == ["retrying"] + ["pending"] * 5
    assert Slot.objects.held().count() == 2


# ---- The slot of a worker -------------------------------------------------------------------------------------------


def test_a_worker_keeps_its_slot_between_batches(
    dataset: Dataset, alice: User, settings: LazySettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A13: otherwise another worker would take the slot, and both would be connected to the source."""
    change_settings(settings, export_db_slots=1)
    job = make_job(dataset, alice, 60)
    others: list[Claim | None] = []
    connections: list[str] = []
    record, connect = execution.record_successes, database.connect

    def record_and_let_others_claim(ended: list[batches.Ended]) -> None:
        record(ended)
        others.append(claim_one(backend="another worker"))

    def counted(backend: str) -> psycopg.Connection:
        connections.append(backend)
        return connect(backend)

    monkeypatch.setattr(execution, "record_successes", record_and_let_others_claim)
    monkeypatch.setattr(database, "connect", counted)
    execution.drain()
    assert len(connections) == 1
    assert len(others) > 2
    assert set(others) == {None}
    assert set(statuses(job)) == {"done"}
    assert not Slot.objects.held().exists()


def test_a_worker_frees_the_slot_of_another_dataset(alone: Dataset, alice: User) -> None:
    """A13: a worker that continues with another dataset does not block a dataset with its own limit."""
    make_job(alone, alice, 1)
    with database.SourceSession() as session, WorkerSlot(session) as slot:
        (first,) = slot.claim(sizes={}, paused=())
        assert Slot.objects.held().count() == 2
        transitions.finish([(first, result_of(first))])
        make_job(Dataset.objects.create(name="other", function="data.rows_for", base_path="other"), alice, 1)
        (second,) = slot.claim(sizes={}, paused=())
        assert (first.dataset, second.dataset) == (alone.name, "other")
        slot.free_previous()
        assert Slot.objects.held().get().token == second.token
        assert slot.claim(sizes={}, paused=()) == []
        assert Slot.objects.held().exists()
    assert not Slot.objects.held().exists()


@pytest.mark.parametrize("limit", [1, None], ids=["lowered", "removed"])
def test_a_worker_frees_a_slot_that_a_changed_limit_excludes(dataset: Dataset, alice: User, limit: int | None) -> None:
    """The connection would be terminated when the lease of that slot expires, in the middle of a later call."""
    dataset.max_concurrency = 2
    dataset.save()
    make_job(dataset, alice, 9)
    other = claim_one(backend="another worker")
    assert other
    with database.SourceSession() as session, WorkerSlot(session) as slot:
        (first,) = slot.claim(sizes={}, paused=())
        outcomes.finish([(other, result_of(other))])
        transitions.finish([(first, result_of(first))])
        assert Slot.objects.get(dataset=dataset, token=first.token).number == 2
        Dataset.objects.update(max_concurrency=limit)
        (second,) = slot.claim(sizes={}, paused=())
        slot.free_previous()
        assert set(Slot.objects.held().values_list("token", flat=True)) == {second.token}
    assert not Slot.objects.held().exists()


@pytest.mark.parametrize("limit", [None, 2])
def test_a_worker_frees_its_slot_if_another_claim_has_locked_it(
    dataset: Dataset, alice: User, limit: int | None
) -> None:
    """A13: a claim whose snapshot shows a slot as free locks it, even if a worker has taken it in the meantime."""
    dataset.max_concurrency = limit
    dataset.save()
    make_job(dataset, alice, 2)
    locked, is_claimed = threading.Event(), threading.Event()

    def lock() -> None:
        with closing(connection), transaction.atomic():
            Slot.objects.select_for_update().get(dataset=dataset if limit else None, number=1)
            locked.set()
            is_claimed.wait()

    with database.SourceSession() as session, WorkerSlot(session) as slot, ThreadPoolExecutor(1) as pool:
        (first,) = slot.claim(sizes={}, paused=())
        transitions.finish([(first, result_of(first))])
        other = pool.submit(lock)
        assert locked.wait(10)
        (second,) = slot.claim(sizes={}, paused=())
        is_claimed.set()
        other.result()
        slot.free_previous()
        assert set(Slot.objects.held().values_list("token", flat=True)) == {second.token}
    assert not Slot.objects.held().exists()


def test_a_worker_checks_for_chunks_after_freeing_its_slot(dataset: Dataset, alice: User) -> None:
    """Another worker may have been woken for a new job just before, when no slot was free."""
    make_job(dataset, alice, 1)
    with database.SourceSession() as session, WorkerSlot(session) as slot:
        (claim,) = slot.claim(sizes={}, paused=())
        transitions.finish([(claim, result_of(claim))])
        assert execution.export_chunks(slot)
        assert not execution.export_chunks(slot)


def test_a_shutdown_frees_the_slot_before_it_wakes_a_worker(
    alone: Dataset, alice: User, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_job(alone, alice, 24)
    free: list[bool] = []
    monkeypatch.setattr(wakeups, "chunks", lambda **_: free.append(not Slot.objects.held().exists()))
    with InterruptedSession(SystemExit()) as session, pytest.raises(SystemExit):
        run_with(session, claim_batch(6))
    assert free[-1]


@pytest.mark.parametrize("place", ["free", "claim", "record"])
def test_a_shutdown_while_files_are_checked_leaves_no_chunk_running(
    dataset: Dataset, alice: User, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    make_job(dataset, alice, 2)
    execution.drain()
    job = make_job(dataset, alice, 2)

    def stop(*_given: object, **_options: object) -> None:
        raise SystemExit

    target = {
        "free": (WorkerSlot, "free"), "claim": (execution, "try_reuse"), "record": (packs, "store_batch"),
    }[place]  # fmt: skip
    with database.SourceSession() as session, ThreadPoolExecutor(1) as pool, monkeypatch.context() as patch:
        patch.setattr(*target, stop)
        with pytest.raises(SystemExit):
            execution.reuse_batch(pool, WorkerSlot(session))
    assert statuses(job) == ["pending", "pending"]


def test_a_worker_does_not_use_a_slot_that_the_reaper_freed(dataset: Dataset, alice: User, slots: int) -> None:
    """A12: the worker was suspended until after its lease, and another worker has the slot."""
    make_job(dataset, alice, slots + 3)
    with database.SourceSession() as session, WorkerSlot(session) as slot:
        (claim,) = slot.claim(sizes={}, paused=())
        transitions.finish([(claim, result_of(claim))])
        transitions.free_slots([claim.token])
        others = [claim_one(backend="test") for _ in range(slots)]
        assert None not in others
        assert slot.claim(sizes={}, paused=()) == []
    assert Slot.objects.held().count() == slots


def test_a_worker_checks_files_without_its_slot(dataset: Dataset, alice: User, monkeypatch: pytest.MonkeyPatch) -> None:
    make_job(dataset, alice, 2)
    execution.drain()
    make_job(dataset, alice, 4)
    held: list[int] = []
    reuse = execution.reuse

    def observed(*given: Any, **options: Any) -> Any:
        held.append(Slot.objects.held().count())
        connection.close()
        return reuse(*given, **options)

    with database.SourceSession() as session, WorkerSlot(session) as slot, ThreadPoolExecutor(1) as pool:
        assert slot.claim(sizes={}, paused=())
        monkeypatch.setattr(execution, "reuse", observed)
        assert execution.reuse_batch(pool, slot)
    assert held == [0, 0]


# ---- Sizes ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def durations() -> batches.ChunkDurations:
    return batches.ChunkDurations()


@pytest.mark.parametrize(
    ("seconds", "size"), [(0.0001, leases.MAX_BATCH), (0.01, 12), (0.06, 2), (0.1, None), (5, None)]
)
def test_the_batch_size_follows_the_durations_of_recent_chunks(
    durations: batches.ChunkDurations, monkeypatch: pytest.MonkeyPatch, seconds: float, size: int | None
) -> None:
    monkeypatch.setattr(batches, "TARGET_SECONDS", 0.125)
    for _ in range(10):
        durations.add("things", seconds)
    assert durations.sizes().get("things") == size


def test_one_slow_chunk_makes_batches_small_immediately(durations: batches.ChunkDurations) -> None:
    for _ in range(10):
        durations.add("things", 0.005)
    durations.add("things", 300)
    assert durations.sizes() == {}


def test_a_worker_without_a_chunk_closes_its_connection(
    dataset: Dataset, alice: User, source_db: psycopg.Connection
) -> None:
    """A13: another worker may have taken the slot, and may connect to the source."""
    make_job(dataset, alice, 1)
    with database.SourceSession() as session, WorkerSlot(session) as slot:
        while execution.export_chunks(slot):
            name = session.backend
        wait_until(
            lambda: not source_db.execute("SELECT FROM pg_stat_activity WHERE application_name = %s", [name]).rowcount,
            limit=5,
        )


def test_a_refused_connection_wakes_no_workers(alone: Dataset, alice: User, monkeypatch: pytest.MonkeyPatch) -> None:
    """A13: the reaper wakes them. Otherwise, each refused worker would wake several others."""
    make_job(alone, alice, 7)
    claims = claim_batch(7)
    lose_messages()

    def refuse(_backend: str) -> psycopg.Connection:
        raise SourceConnectionsExhausted("SQLSTATE 53300")

    monkeypatch.setattr(database, "connect", refuse)
    with pytest.raises(SourceConnectionsExhausted):
        run(claims)
    assert queued("exports") == 0
    assert set(Chunk.objects.values_list("status", "attempts")) == {("pending", 0)}
    assert not Slot.objects.held().exists()
