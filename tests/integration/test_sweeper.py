"""Cleanup: lost work is recovered, expired and unreferenced objects are deleted, and others are kept. A12, A26."""

import os
import socket
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import timedelta
from functools import partial
from typing import Any

import psycopg
import pytest
from django.contrib.auth.models import User
from django.contrib.sessions.models import Session
from django.db import OperationalError, transaction
from django.db.models.functions import Now
from django.utils import timezone
from prometheus_client import REGISTRY
from psycopg.errors import DeadlockDetected
from pydantic import SecretStr
from structlog.testing import capture_logs

from config.platform import storage
from config.platform.db import identity
from config.platform.storage import probe, writability
from exports.core.errors import PermanentSourceError
from exports.delivery import bundles
from exports.jobs import actions, webhook_events
from exports.maintenance import lost_leases, lost_wakeups, manual_actions, periodic, retention, storage_cleanup
from exports.models import Chunk, Dataset, File, Job, Receipt, Slot, Tick
from exports.source import database
from exports.worker import completion, execution
from exports.worker.leases import Claim
from tests.broker import broker_at, lose_messages, queued, valkey
from tests.conftest import change_settings
from tests.integration import faulty_s3, outcomes
from tests.integration.factories import claim_one, make_job, result_of
from tests.integration.test_completion import delivered, finish
from tests.integration.test_execution import PATH
from tests.integration.test_leases import expire_leases, in_threads
from tests.waiting import expect_within

pytestmark = pytest.mark.usefixtures("empty_bucket", "empty_redis")


def violations() -> float:
    return REGISTRY.get_sample_value("export_receipt_ttl_violation_total") or 0


def expire(receipt: Receipt, *, seconds: int = 31) -> None:
    Receipt.objects.filter(pk=receipt.pk).update(expires_at=Now() - timedelta(seconds=seconds))


# ---- Lost workers and messages --------------------------------------------------------------------------------------


def test_the_chunk_of_a_lost_worker_is_queued_again_and_its_slot_freed(dataset: Dataset, alice: User) -> None:
    """A12."""
    make_job(dataset, alice, 1)
    claim_one(backend="lost")
    expire_leases()
    periodic.reap()

    assert Chunk.objects.get().status == "pending"
    assert not Slot.objects.held().exists()


def test_the_log_names_the_holder_of_the_lease(dataset: Dataset, alice: User) -> None:
    """The host, the process, and the log of the worker can be found from the chunk."""
    job = make_job(dataset, alice, 1)
    name = database.SourceSession().backend
    claim_one(backend=name)
    expire_leases()

    with capture_logs() as lines:
        periodic.reap()

    (line,) = (line for line in lines if line["event"] == "lease_expired")
    assert (line["job_id"], line["chunk_id"]) == (str(job.pk), Chunk.objects.get().pk)
    assert (line["attempt"], line["backend"]) == (1, name)
    assert f"-{os.getpid()}-" in name
    assert len(name) <= 63
    assert database.SourceSession().backend != name


def test_the_chunk_of_a_live_worker_is_left_alone(dataset: Dataset, alice: User) -> None:
    make_job(dataset, alice, 1)
    claim = claim_one(backend="alive")
    periodic.reap()

    assert claim
    assert Chunk.objects.get().token == claim.token
    assert Slot.objects.held().count() == 1


def test_the_call_of_a_lost_worker_is_ended_before_its_slot_is_free(
    dataset: Dataset, alice: User, source_db: psycopg.Connection
) -> None:
    """A13."""
    make_job(dataset, alice, 1)
    with psycopg.connect(source_db.info.dsn, password=source_db.info.password, application_name="lost-one") as call:
        claim_one(backend="lost-one")
        expire_leases()
        periodic.reap()
        with pytest.raises(psycopg.OperationalError):
            call.execute("SELECT 1")
    assert not Slot.objects.held().exists()


def test_slots_stay_taken_while_the_source_is_unavailable(dataset: Dataset, alice: User, settings: Any) -> None:
    """A13: the call may still run. The chunk itself is not delayed."""
    make_job(dataset, alice, 1)
    claim_one(backend="lost")
    expire_leases()
    change_settings(settings, source_database_url=SecretStr("postgresql://127.0.0.1:1/none"))
    lost_leases.reclaim_chunks()
    lost_leases.free_slots()

    assert Slot.objects.held().count() == 1
    assert Chunk.objects.get().status == "pending"


def test_uploads_of_lost_workers_are_aborted_and_those_of_live_ones_are_not(
    dataset: Dataset, alice: User, settings: Any
) -> None:
    """A26."""
    make_job(dataset, alice, 1)
    alive = claim_one(backend="alive")
    assert alive
    for key in (alive.path, "things/2024/lost.csv"):
        storage.client().create_multipart_upload(Bucket=settings.SLUICE.s3_bucket, Key=key)
    assert storage_cleanup.abort_lost_uploads() == 0  # younger than a lease

    change_settings(settings, export_lease_seconds=-5)
    assert storage_cleanup.abort_lost_uploads() == 1
    assert [upload.key for upload in storage.list_uploads("things/")] == [alive.path]


def test_copies_for_downloads_are_not_aborted_until_they_are_abandoned(
    dataset: Dataset, alice: User, settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A38: a web process copies a large file of a delivery when it is requested for the first time."""
    receipt = finish(make_job(dataset, alice, 2))
    key = f"{bundles.folder_of(receipt.object_key)}/files/large.csv"
    storage.client().create_multipart_upload(Bucket=settings.SLUICE.s3_bucket, Key=key)
    change_settings(settings, export_lease_seconds=-5)
    assert storage_cleanup.abort_lost_uploads() == 0

    monkeypatch.setattr(storage_cleanup, "GRACE", timedelta(seconds=-60))
    assert storage_cleanup.abort_abandoned_uploads() == 1


@pytest.mark.parametrize("has_ended", [True, False])
def test_uploads_of_lost_completions_are_aborted_while_the_next_one_runs_and_after_it(
    dataset: Dataset, alice: User, settings: Any, *, has_ended: bool
) -> None:
    """A26: also while a delivery is live. Its folder has another token."""
    job, token = make_job(dataset, alice, 1), 5
    if has_ended:
        finish(job)
    else:
        Job.objects.filter(pk=job.pk).update(status="running", completion_token=token)
    keys = [f"{bundles.folder_of_attempt(job, each)}/x.zip" for each in ((0,) if has_ended else (0, token))]
    for key in keys:
        storage.client().create_multipart_upload(Bucket=settings.SLUICE.s3_bucket, Key=key)
    change_settings(settings, export_lease_seconds=-5)
    assert storage_cleanup.abort_lost_uploads() == 1
    assert [upload.key for upload in storage.list_uploads("_receipts/")] == keys[1:]


def test_a_cleanup_step_that_fails_does_not_stop_the_others(
    dataset: Dataset, alice: User, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_job(dataset, alice, 1)
    claim_one(backend="lost")
    expire_leases()
    lose_messages()

    def provide_slots() -> None:
        raise OperationalError

    monkeypatch.setattr(periodic, "provide_slots", provide_slots)  # the first step
    assert periodic.reap() == ["provide_slots"]

    assert not Slot.objects.held().exists()
    assert queued("exports") == 1


def test_lost_wake_ups_are_sent_again(dataset: Dataset, alice: User) -> None:
    """A12."""
    make_job(dataset, alice, 3)
    lose_messages()
    periodic.reap()
    assert queued("exports") == 3

    while claim_one(backend="x"):
        pass
    lose_messages()
    periodic.reap()
    assert queued("exports") == 0


def test_wake_ups_do_not_accumulate_without_workers(dataset: Dataset, alice: User) -> None:
    """Otherwise, they would fill the broker while no worker runs, or while workers use fewer slots than there are."""
    make_job(dataset, alice, 3)
    lose_messages()
    for _ in range(3):
        periodic.reap()
    assert queued("exports") == 3
    lose_messages()
    valkey().lpush("exports", b"one of them")
    periodic.reap()
    assert queued("exports") == 3


@pytest.mark.slow
@pytest.mark.parametrize("is_silent", [False, True])
def test_an_unavailable_broker_does_not_delay_the_cleanup(dataset: Dataset, alice: User, is_silent: bool) -> None:  # noqa: FBT001
    make_job(dataset, alice, 3)
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        if is_silent:
            closed.listen()
        with broker_at(f"redis://127.0.0.1:{closed.getsockname()[1]}/0"), capture_logs() as logs:
            expect_within(5, lost_wakeups.wake_workers)
    assert {line["event"] for line in logs} == {"wakeup_not_sent"}


def test_completion_messages_are_sent_while_few_are_queued(dataset: Dataset, alice: User, slots: int) -> None:
    """A12: a lost message delays a job by one interval of the reaper. Messages do not accumulate.

    One message is enough for all jobs that can be completed.
    """
    make_job(dataset, alice, 1)
    execution.drain()
    lose_messages()
    valkey().lpush("bundles", *[b"another"] * (slots - 1))
    periodic.reap()
    assert queued("bundles") == slots
    periodic.reap()
    assert queued("bundles") == slots


def test_a_lost_completion_message_is_sent_again(dataset: Dataset, alice: User) -> None:
    job = make_job(dataset, alice, 1)
    execution.drain()
    lose_messages()
    periodic.reap()
    assert queued("bundles") == 1

    completion.claim(job.pk)
    lose_messages()
    periodic.reap()
    assert queued("bundles") == 0


def test_slots_are_added_when_the_setting_grows(slots: int) -> None:
    Slot.objects.filter(number=slots).delete()
    periodic.reap()
    assert Slot.objects.filter(dataset=None).count() == slots


# ---- Expired objects ------------------------------------------------------------------------------------------------


def test_an_expired_delivery_is_deleted_and_the_file_is_kept(dataset: Dataset, alice: User) -> None:
    """A26."""
    over, live = finish(make_job(dataset, alice, 1)), finish(make_job(dataset, alice, 2))
    expire(over, seconds=1)
    periodic.reap()
    assert delivered(over)  # a client may just have been redirected to it
    expire(over)
    periodic.reap()

    assert storage.head(over.object_key) is None
    over.refresh_from_db()
    assert over.deleted_at is not None
    assert delivered(live)
    assert storage.head(PATH) is not None


def test_the_hourly_sweep_deletes_deliveries_that_the_reaper_missed(dataset: Dataset, alice: User) -> None:
    """A26."""
    receipt = finish(make_job(dataset, alice, 1))
    expire(receipt, seconds=61)
    assert storage_cleanup.delete_overdue() == 1
    assert storage.head(receipt.object_key) is None
    assert storage_cleanup.delete_overdue() == 0


def test_the_hourly_sweep_counts_every_late_receipt(
    dataset: Dataset, alice: User, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A26: also those beyond the first batch, which the reaper would delete without counting them."""
    late = [finish(make_job(dataset, alice, 1)) for _ in range(3)]
    for receipt in late:
        expire(receipt, seconds=61)
    monkeypatch.setattr(storage_cleanup, "BATCH", 1)
    before = violations()
    assert storage_cleanup.delete_overdue() == 3
    assert violations() == before + 3
    assert not any(storage.head(receipt.object_key) for receipt in late)


def test_orphans_are_deleted_and_objects_of_live_receipts_kept(
    dataset: Dataset, alice: User, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A26."""
    live = finish(make_job(dataset, alice, 1))
    storage.put("_receipts/orphan/1/x.csv", b"x", content_type="text/csv", metadata=identity.marker())
    assert storage_cleanup.delete_orphans() == 0  # its receipt may not be written yet

    monkeypatch.setattr(storage_cleanup, "GRACE", timedelta(seconds=-60))
    assert storage_cleanup.delete_orphans() == 1
    assert storage.head("_receipts/orphan/1/x.csv") is None
    assert delivered(live)


def test_leftovers_of_the_doctor_are_deleted_and_are_not_violations(db: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """An interrupted doctor leaves them. No client was promised their deletion."""
    key = f"{writability.PREFIX}interrupted"
    storage.put(key, probe.CONTENT, content_type=probe.TYPE)
    monkeypatch.setattr(storage_cleanup, "GRACE", timedelta(seconds=-60))
    before = violations()

    assert storage_cleanup.delete_orphans() == 1
    assert storage.head(key) is None
    assert violations() == before


def test_abandoned_uploads_are_aborted(dataset: Dataset, settings: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A26."""
    job = make_job(dataset, User.objects.create_user("ann"), 1)
    for key in ("things/2024/x.csv", f"_receipts/{job.pk}/1/y.zip"):
        storage.client().create_multipart_upload(Bucket=settings.SLUICE.s3_bucket, Key=key)
    assert storage_cleanup.abort_abandoned_uploads() == 0

    monkeypatch.setattr(storage_cleanup, "GRACE", timedelta(seconds=-60))
    assert storage_cleanup.abort_abandoned_uploads() == 2
    assert storage_cleanup.abort_abandoned_uploads() == 0


def test_uploads_of_documents_are_not_aborted_for_a_dataset_with_a_reserved_path(
    dataset: Dataset, settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    Dataset.objects.of_functions().update(base_path="etl/documents")
    key = "etl/documents/0b0e7b1c.pdf"
    storage.client().create_multipart_upload(Bucket=settings.SLUICE.s3_bucket, Key=key)
    monkeypatch.setattr(storage_cleanup, "GRACE", timedelta(seconds=-60))
    storage_cleanup.abort_abandoned_uploads()
    kept = list(storage.list_uploads(key))
    for upload in kept:
        storage.abort_upload(upload.key, upload.upload_id)
    assert [upload.key for upload in kept] == [key]


# ---- Unreferenced files ---------------------------------------------------------------------------------------------


@pytest.fixture
def no_grace(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(storage_cleanup, "GRACE", timedelta(seconds=-60))


def put_file(claim: Claim, content: bytes = b"x") -> str:
    """Put a file at a worker's path, without a row, and return its ETag."""
    metadata = {"job": str(claim.job_id), "chunk": str(claim.chunk_id), "token": str(claim.token)}
    head = storage.head(claim.path)
    return storage.put(
        claim.path, content, content_type="text/csv", metadata=metadata, if_match=head.etag if head else None
    ).etag


def claimed(dataset: Dataset, user: User, **changes: Any) -> Claim:
    make_job(dataset, user, 1, **changes)
    claim = claim_one(backend="x")
    assert claim
    return claim


def fail(claim: Claim) -> None:
    outcomes.fail(claim, PermanentSourceError(), delay=None)


def cancel(claim: Claim) -> None:
    actions.cancel(Job.objects.get(pk=claim.job_id))


def release_and_cancel(claim: Claim) -> None:
    """Release a chunk as in a graceful shutdown, which resets its attempts, and cancel its job."""
    outcomes.release([claim])
    cancel(claim)


def retry_and_cancel(claim: Claim) -> None:
    fail(claim)
    actions.retry(Job.objects.get(pk=claim.job_id))
    cancel(claim)


@pytest.mark.usefixtures("no_grace")
@pytest.mark.parametrize("end", [fail, cancel, release_and_cancel, retry_and_cancel])
def test_the_file_of_a_chunk_that_ended_without_it_is_deleted(
    dataset: Dataset, alice: User, end: Callable[[Claim], None]
) -> None:
    """A26."""
    claim = claimed(dataset, alice)
    put_file(claim)
    assert storage_cleanup.delete_unreferenced() == 0  # its row may not be written yet

    end(claim)
    assert storage_cleanup.delete_unreferenced() == 1
    assert storage.head(claim.path) is None
    assert storage_cleanup.delete_unreferenced() == 0


@pytest.mark.usefixtures("no_grace")
def test_an_unreferenced_file_that_replaced_a_referenced_one_is_deleted(dataset: Dataset, alice: User) -> None:
    make_job(dataset, alice, 1)
    execution.drain()
    claim = claimed(dataset, alice, reuse="never")
    etag = put_file(claim, b"newer")
    fail(claim)
    assert File.objects.get().etag != etag
    assert storage_cleanup.delete_unreferenced() == 1

    make_job(dataset, alice, 1)
    execution.drain()
    assert Job.objects.filter(done=1).count() == 2  # the missing file is exported again


@pytest.mark.usefixtures("no_grace")
def test_referenced_files_are_kept(dataset: Dataset, alice: User) -> None:
    """Also those of chunks that were done when their job was cancelled, and those of other jobs."""
    job = make_job(dataset, alice, 3)
    claim_one(backend="lost")
    done = claim_one(backend="x")
    assert done
    outcomes.finish([(done, result_of(done, etag=put_file(done)))])
    actions.cancel(job)
    make_job(dataset, alice, 3)
    execution.drain()

    assert storage_cleanup.delete_unreferenced() == 0
    assert len(list(storage.list_objects("things/"))) == File.objects.count() == 3


@pytest.mark.usefixtures("no_grace")
def test_objects_that_workers_did_not_write_are_kept(dataset: Dataset, alice: User) -> None:
    claim = claimed(dataset, alice)
    storage.put(claim.path, b"put there by hand", content_type="text/csv")
    fail(claim)
    assert storage_cleanup.delete_unreferenced() == 0
    assert storage.head(claim.path)


@pytest.mark.usefixtures("no_grace")
def test_an_invalidated_file_is_kept(dataset: Dataset, alice: User) -> None:
    """Receipts of manifests refer to it."""
    make_job(dataset, alice, 1)
    execution.drain()
    manual_actions.invalidate_file(File.objects.get())
    fail(claimed(dataset, alice))
    assert storage_cleanup.delete_unreferenced() == 0
    assert storage.head(PATH)


@pytest.mark.usefixtures("no_grace")
def test_a_file_is_kept_while_a_running_chunk_may_replace_it(dataset: Dataset, alice: User) -> None:
    claim = claimed(dataset, alice)
    put_file(claim)
    fail(claim)
    other = claimed(dataset, alice)
    assert other.path == claim.path
    assert storage_cleanup.delete_unreferenced() == 0

    fail(other)
    assert storage_cleanup.delete_unreferenced() == 1


def test_recent_files_and_files_of_recently_ended_chunks_are_kept(
    dataset: Dataset, alice: User, monkeypatch: pytest.MonkeyPatch
) -> None:
    claim = claimed(dataset, alice)
    put_file(claim)
    fail(claim)
    assert storage_cleanup.delete_unreferenced() == 0
    Job.objects.update(finished_at=Now() - timedelta(hours=2))
    assert storage_cleanup.delete_unreferenced() == 0

    monkeypatch.setattr(storage_cleanup, "GRACE", timedelta(seconds=-60))
    Job.objects.update(finished_at=Now() - timedelta(hours=25))
    assert storage_cleanup.delete_unreferenced() == 0  # before the search period
    Job.objects.update(finished_at=Now() - timedelta(hours=23))
    assert storage_cleanup.delete_unreferenced() == 1


@pytest.mark.usefixtures("no_grace")
def test_a_file_written_during_the_sweep_is_kept(
    dataset: Dataset, alice: User, settings: Any, proxy: faulty_s3.Proxy
) -> None:
    claim = claimed(dataset, alice)
    put_file(claim)
    fail(claim)
    replace = partial(storage.client().put_object, Bucket=settings.SLUICE.s3_bucket, Key=claim.path, Body=b"another")
    proxy.inject("DELETE", claim.path, faulty_s3.first(replace))
    assert storage_cleanup.delete_unreferenced() == 0
    assert b"".join(storage.read(claim.path)) == b"another"


@pytest.mark.usefixtures("no_grace")
def test_the_sweep_takes_two_queries_per_batch(
    dataset: Dataset, alice: User, django_assert_num_queries: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_job(dataset, alice, 7)
    claims = []
    while claim := claim_one(backend="x"):
        fail(claim)
        claims.append(claim)
    # Three queries find built-in datasets and both kinds of chunks. Two per batch find running chunks and files.
    for batch, queries in ((500, 3 + 2), (3, 3 + 3 * 2)):
        monkeypatch.setattr(storage_cleanup, "BATCH", batch)
        for claim in claims:
            put_file(claim)
        with django_assert_num_queries(queries):
            assert storage_cleanup.delete_unreferenced() == 7


# ---- Old rows -------------------------------------------------------------------------------------------------------


def test_old_jobs_are_purged_and_their_files_kept(dataset: Dataset, alice: User) -> None:
    """A26."""
    old, young = finish(make_job(dataset, alice, 2)), finish(make_job(dataset, alice, 1))
    webhook_events.fan_out()
    Job.objects.filter(pk=old.pk).update(finished_at=Now() - timedelta(days=7, seconds=1))
    periodic.purge()
    assert Job.objects.count() == 2  # its delivered object is still there

    expire(old)
    storage_cleanup.delete_expired()
    periodic.purge()
    assert list(Job.objects.values_list("pk", flat=True)) == [young.pk]
    assert Chunk.objects.count() == 1
    assert File.objects.count() == 2


def test_a_job_is_not_purged_before_the_webhook_deliveries_of_its_end_exist(dataset: Dataset, alice: User) -> None:
    """A25: if no worker ran for a week, a purge would otherwise lose the event of the end."""
    make_job(dataset, alice, 1)
    actions.cancel(Job.objects.get())
    Job.objects.update(finished_at=Now() - timedelta(days=8))
    periodic.purge()
    assert Job.objects.exists()

    webhook_events.fan_out()
    periodic.purge()
    assert not Job.objects.exists()


def test_a_concurrently_retried_job_is_not_purged(dataset: Dataset, alice: User) -> None:
    job = make_job(dataset, alice, 1)
    Job.objects.update(status="failed", finished_at=Now() - timedelta(days=8))
    with transaction.atomic():
        Job.objects.select_for_update().get(pk=job.pk)
        in_threads(1, lambda _: periodic.purge())
    assert Job.objects.count() == 1


@pytest.mark.slow
def test_retry_and_purge_do_not_deadlock(dataset: Dataset, alice: User) -> None:
    """Both lock the failed chunks, then the job."""
    for _ in range(30):
        jobs = [make_job(dataset, alice, 40) for _ in range(3)]
        Chunk.objects.update(status="failed", finished_at=Now() - timedelta(days=8))
        Job.objects.update(status="failed", failed=40, finished_at=Now() - timedelta(days=8))

        def act(number: int, jobs: list[Job] = jobs) -> None:
            if number:
                with suppress(actions.NotFailed):
                    actions.retry(jobs[number - 1])
            else:
                retention.purge_batch()

        in_threads(4, act)
        for job in Job.objects.all():
            assert (job.status, job.chunks.count()) == ("running", 40)
        Job.objects.all().delete()


def test_the_purge_continues_after_a_deadlock() -> None:
    outcomes: Iterator[int | Exception] = iter([OperationalError(), 50, OperationalError(), 7, 0])

    def delete_some() -> int:
        outcome = next(outcomes)
        if isinstance(outcome, Exception):
            raise outcome from DeadlockDetected()
        return outcome

    assert retention.in_batches(delete_some) == 57
    with pytest.raises(OperationalError):
        retention.in_batches(partial(raise_it, OperationalError()))


def raise_it(error: Exception) -> int:
    raise error


def test_a_running_job_is_never_purged(dataset: Dataset, alice: User) -> None:
    make_job(dataset, alice, 1)
    Job.objects.update(created_at=timezone.now() - timedelta(days=30))
    periodic.purge()
    assert Job.objects.count() == 1


# ---- Two beats ------------------------------------------------------------------------------------------------------


def test_a_tick_runs_once_with_any_number_of_beats(slots: int) -> None:
    """A26."""
    ran: list[int] = []
    outcomes = in_threads(5, lambda n: periodic.run_if_due("sweep", every=3600, run=lambda: ran.append(n)))
    assert outcomes.count(True) == len(ran) == 1


@pytest.mark.parametrize(("seconds", "is_due"), [(1_700, False), (1_900, True)])
def test_a_tick_is_due_after_half_an_interval(slots: int, *, seconds: int, is_due: bool) -> None:
    """A26: a run that started late does not suppress the next one."""
    Tick.objects.create(name="sweep", ran_at=Now() - timedelta(seconds=seconds))
    assert periodic.run_if_due("sweep", every=3600, run=lambda: None) is is_due


def test_a_tick_in_the_future_does_not_delay_the_next(slots: int) -> None:
    """A26: it was written while the clock of the server was ahead."""
    periodic.run_if_due("sweep", every=3600, run=lambda: None)
    Tick.objects.update(ran_at=Now() + timedelta(days=2))
    assert periodic.run_if_due("sweep", every=3600, run=lambda: None)
    assert not periodic.run_if_due("sweep", every=3600, run=lambda: None)


def test_every_periodic_task_is_idempotent(dataset: Dataset, alice: User) -> None:
    """A26."""
    receipt = finish(make_job(dataset, alice, 2))
    for _ in range(3):
        assert [*periodic.reap(), *periodic.sweep(), *periodic.purge()] == []
    assert delivered(receipt)


def test_expired_sessions_are_deleted(db: None) -> None:
    for key, end in (("old", "2000-01-01T00:00Z"), ("new", "2999-01-01T00:00Z")):
        Session.objects.create(session_key=key, session_data="", expire_date=end)
    assert periodic.purge() == []
    assert Session.objects.get().session_key == "new"


def test_a_delivery_that_cannot_be_deleted_does_not_keep_the_others(
    dataset: Dataset, alice: User, proxy: faulty_s3.Proxy
) -> None:
    """A26."""
    stuck, other = finish(make_job(dataset, alice, 1)), finish(make_job(dataset, alice, 2))
    expire(stuck, seconds=90)
    expire(other)
    proxy.inject("GET", str(stuck.pk), faulty_s3.answer_500, times=1000)  # the list of its folder
    with pytest.raises(storage.StorageError):
        storage_cleanup.delete_expired()

    stuck.refresh_from_db()
    other.refresh_from_db()
    assert (stuck.deleted_at, other.deleted_at is None) == (None, False)
    assert storage.head(other.object_key) is None
    proxy.faults.clear()
    assert storage_cleanup.delete_expired() == 1
