"""Execution of chunks in this process, with a real source database and real object storage. A9 to A19, A38, A40."""

import gzip
import hashlib
import os
import socket
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import psycopg
import pytest
from django.conf import settings as django_settings
from django.contrib.auth.models import User
from django.db import connection
from django.utils import timezone
from pydantic import AnyHttpUrl

from config.platform import storage
from config.platform.heartbeat import LeaseLost
from exports.core.planning import Shape
from exports.jobs import actions
from exports.maintenance import lost_leases
from exports.models import Chunk, Dataset, File, Job, Slot
from exports.source import database
from exports.source.copy_stream import CopyStream
from exports.worker import completion, execution, leases
from exports.worker.slot import WorkerSlot
from tests.integration import faulty_s3, outcomes
from tests.integration.factories import claim_one, make_job, result_of

pytestmark = pytest.mark.usefixtures("empty_bucket")

PATH = "things/2024/02/28/JFK_20240228.csv"
CONTENT = b"k,n,d\nJFK,1,2024-02-28\nJFK,2,2024-02-28\nJFK,3,2024-02-28\n"


def content(path: str) -> bytes:
    return b"".join(storage.read(path))


def count_calls(source_db: psycopg.Connection, dataset: Dataset) -> None:
    """Replace the function with one that counts its calls in a sequence, which a rollback does not reset."""
    dataset.allow_writes = True
    dataset.save()
    source_db.execute("CREATE SEQUENCE data.calls")
    source_db.execute("""
        CREATE OR REPLACE FUNCTION data.rows_for(key text, effective_date date) RETURNS TABLE (k text, n int, d date)
        LANGUAGE plpgsql AS $$ #variable_conflict use_column
        BEGIN
            PERFORM nextval('data.calls');
            RETURN QUERY SELECT key, n, effective_date FROM generate_series(1, 3) n ORDER BY n;
        END $$
    """)


def calls(source_db: psycopg.Connection) -> int:
    row = source_db.execute("SELECT CASE WHEN is_called THEN last_value ELSE 0 END FROM data.calls").fetchone()
    assert row
    return int(row[0])


def test_a_chunk_is_one_call_and_one_file(dataset: Dataset, alice: User, source_db: psycopg.Connection) -> None:
    """A9."""
    count_calls(source_db, dataset)
    job = make_job(dataset, alice, 2)
    execution.drain()

    assert calls(source_db) == 2
    assert sorted(item.key for item in storage.list_objects("things/")) == [
        PATH,
        "things/2024/02/29/JFK_20240229.csv",
    ]
    assert content(PATH) == CONTENT
    job.refresh_from_db()
    assert (job.done, job.rows, job.bytes) == (2, 6, 2 * len(CONTENT))


def test_the_chunk_and_the_cache_record_the_file(dataset: Dataset, alice: User) -> None:
    make_job(dataset, alice, 1)
    execution.drain()

    chunk, file, head = Chunk.objects.get(), File.objects.get(), storage.head(PATH)
    assert head is not None
    assert chunk.status == "done"
    assert (chunk.source, chunk.rows, chunk.bytes, chunk.header_bytes) == ("live", 3, len(CONTENT), 6)
    assert chunk.etag == file.etag == head.etag
    assert chunk.sha256 == file.sha256 == hashlib.sha256(CONTENT).hexdigest()
    assert chunk.data_as_of == file.data_as_of


def test_files_are_encrypted_at_rest(dataset: Dataset, alice: User) -> None:
    """A15."""
    make_job(dataset, alice, 1)
    execution.drain()
    reply = storage.client().head_object(Bucket=django_settings.SLUICE.s3_bucket, Key=PATH)
    assert reply["ServerSideEncryption"] == "AES256"


def test_gzip_files_unpack_to_the_same_bytes(dataset: Dataset, alice: User) -> None:
    make_job(dataset, alice, 1, shape=Shape(compression="gzip"))
    execution.drain()
    assert gzip.decompress(content(f"{PATH}.gz")) == CONTENT


# ---- Reuse ----------------------------------------------------------------------------------------------------------


def test_an_existing_file_is_reused_without_a_call(
    dataset: Dataset, alice: User, source_db: psycopg.Connection
) -> None:
    """A16."""
    count_calls(source_db, dataset)
    make_job(dataset, alice, 3)
    execution.drain()
    again = make_job(dataset, alice, 3)
    execution.drain()

    assert calls(source_db) == 3
    again.refresh_from_db()
    assert (again.done, again.reused, again.rows) == (3, 3, 9)
    assert set(again.chunks.values_list("source", flat=True)) == {"reused"}


@pytest.mark.parametrize("change", ["deleted", "changed"])
def test_a_missing_or_changed_file_is_exported_again(dataset: Dataset, alice: User, change: str) -> None:
    """A16."""
    make_job(dataset, alice, 1)
    execution.drain()
    if change == "deleted":
        storage.delete(PATH)
    else:
        storage.client().put_object(
            Bucket=django_settings.SLUICE.s3_bucket, Key=PATH, Body=b"changed by another program"
        )
    make_job(dataset, alice, 1)
    execution.drain()

    assert content(PATH) == CONTENT
    assert list(Chunk.objects.values_list("source", flat=True)) == ["live", "live"]


@pytest.mark.slow
def test_no_file_is_exported_again_because_of_an_outage_of_the_storage(
    dataset: Dataset, alice: User, source_db: psycopg.Connection, proxy: faulty_s3.Proxy
) -> None:
    """A40: the file may exist, and a new one could not be stored."""
    count_calls(source_db, dataset)
    make_job(dataset, alice, 2)
    execution.drain()
    for method in ("GET", "HEAD", "PUT"):
        proxy.inject(method, "", faulty_s3.answer_500, times=1000)
    again = make_job(dataset, alice, 2)
    execution.drain()
    assert calls(source_db) == 2
    assert set(again.chunks.values_list("status", "attempts")) == {("pending", 0)}


def test_fresh_exports_reuse_no_file(dataset: Dataset, alice: User, source_db: psycopg.Connection) -> None:
    """A16: the jobs have `reuse: never`."""
    count_calls(source_db, dataset)
    for _ in range(2):
        make_job(dataset, alice, 1, reuse="never")
        execution.drain()
    assert calls(source_db) == 2


# ---- Fencing --------------------------------------------------------------------------------------------------------


def test_a_fenced_worker_changes_no_object(dataset: Dataset, alice: User) -> None:
    """A11: it continues with other data after another worker has finished its chunk."""
    make_job(dataset, alice, 1)
    stale = claim_one(backend="stale")
    assert stale
    Chunk.objects.update(lease_until="2000-01-01T00:00Z")
    lost_leases.reclaim_batch(batch=1)
    execution.drain()
    before = storage.head(PATH)

    with storage.Upload(
        stale.path, content_type="text/csv", metadata={}, if_match=None, checkpoint=lambda: None
    ) as upload:
        upload.write(b"rows of the stale worker")
        with pytest.raises(storage.Conflict):
            upload.commit()
    assert outcomes.finish([(stale, result_of(stale))]) is None

    assert content(PATH) == CONTENT
    assert storage.head(PATH) == before
    assert Chunk.objects.get().status == "done"


@pytest.mark.slow
def test_an_upload_stops_before_its_next_part_when_the_lease_is_lost(
    dataset: Dataset, alice: User, source_db: psycopg.Connection
) -> None:
    """A11, A19: no object is created, no upload stays open, and the slot is released."""
    source_db.execute("""
        CREATE OR REPLACE FUNCTION data.rows_for(key text, effective_date date) RETURNS TABLE (k text, n int, d date)
        LANGUAGE plpgsql AS $$ #variable_conflict use_column
        BEGIN
            RETURN QUERY SELECT repeat(key, 100), n, effective_date FROM generate_series(1, 200000) n;
            PERFORM pg_sleep(1.5);
            RETURN QUERY SELECT repeat(key, 100), n, effective_date FROM generate_series(1, 200000) n;
        END $$
    """)
    make_job(dataset, alice, 1)
    with database.SourceSession() as session:
        claim = claim_one(backend=session.backend)
        assert claim
        thief = threading.Timer(0.5, steal)
        thief.start()
        with WorkerSlot(session, token=claim.token) as slot:
            execution.run_batch([claim], slot, time.monotonic())
        thief.join()

    assert storage.head(PATH) is None
    assert list(storage.list_uploads("things/")) == []
    assert not Slot.objects.held().exists()
    assert Chunk.objects.get().token == 10**9


def steal() -> None:
    Chunk.objects.update(token=10**9)
    connection.close()


def test_an_upload_of_a_dead_worker_is_replaced(dataset: Dataset, alice: User) -> None:
    """A11: its object was committed but not recorded, and the next holder replaces it."""
    make_job(dataset, alice, 1)
    storage.put(PATH, b"left behind", content_type="text/csv")
    execution.drain()

    assert content(PATH) == CONTENT
    assert Chunk.objects.get().status == "done"


def test_the_source_connection_has_keepalives_within_a_minute(dataset: Dataset, alice: User) -> None:
    make_job(dataset, alice, 1)
    with database.SourceSession() as session:
        claim = claim_one(backend=session.backend)
        assert claim
        execution.run_batch([claim], WorkerSlot(session, token=claim.token), time.monotonic())
        assert session._connection
        with socket.socket(fileno=os.dup(session._connection.fileno())) as connection:
            assert connection.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
            idle, interval, count = (
                connection.getsockopt(socket.IPPROTO_TCP, option)
                for option in (socket.TCP_KEEPIDLE, socket.TCP_KEEPINTVL, socket.TCP_KEEPCNT)
            )
    assert idle + interval * count <= 60


def test_a_file_created_by_another_job_in_the_meantime_is_reused(dataset: Dataset, alice: User) -> None:
    """Two jobs request the same key and date at the same time. Both finish with the file of one of them."""
    for _ in range(2):
        make_job(dataset, alice, 1)
    with database.SourceSession() as one, database.SourceSession() as other:
        claims = [claim_one(backend=one.backend), claim_one(backend=other.backend)]
        for claim, session in zip(claims, (one, other), strict=True):
            assert claim
            execution.run_batch([claim], WorkerSlot(session, token=claim.token), time.monotonic())

    assert list(Chunk.objects.order_by("job__created_at").values_list("source", flat=True)) == ["live", "reused"]
    assert len(set(Chunk.objects.values_list("etag", flat=True))) == 1


def test_repeated_replacements_by_other_jobs_cost_no_second_call(
    dataset: Dataset, alice: User, source_db: psycopg.Connection, proxy: faulty_s3.Proxy
) -> None:
    """A38: a chunk does not fail when other jobs export the same key and date."""
    count_calls(source_db, dataset)
    versions = iter(range(100))

    def replace_by_another() -> None:
        head = storage.head(PATH)
        # This request matches the fault as well, but has no metadata, so the proxy only forwards it.
        storage.put(PATH, b"%d" % next(versions), content_type="text/csv", if_match=head.etag if head else None)

    def lose_race(handler: faulty_s3.Handler, body: bytes) -> None:
        if handler.headers["x-amz-meta-job"]:
            replace_by_another()
        handler.answer(*handler.forward(body))

    proxy.inject("PUT", PATH, lose_race, times=9)
    make_job(dataset, alice, 1, reuse="never")
    execution.drain()

    chunk = Chunk.objects.get()
    assert (chunk.status, chunk.attempts, calls(source_db)) == ("done", 1, 1)
    assert content(PATH) == CONTENT


# ---- Failures -------------------------------------------------------------------------------------------------------


def replace_function(source_db: psycopg.Connection, body: str) -> None:
    """Replace the function with one that executes these statements, and then returns one row."""
    source_db.execute(f"""
        CREATE OR REPLACE FUNCTION data.rows_for(key text, effective_date date) RETURNS TABLE (k text, n int, d date)
        LANGUAGE plpgsql AS $$ #variable_conflict use_column
        BEGIN {body} RETURN QUERY SELECT key, 1, effective_date; END $$
    """)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("body", "status", "code", "detail"),
    [
        ("RAISE EXCEPTION 'secret row 42';", "retrying", "EXPORT_SOURCE_ERROR", "SQLSTATE P0001"),
        ("PERFORM 1/0;", "retrying", "EXPORT_SOURCE_ERROR", "SQLSTATE 22012"),
        ("PERFORM pg_sleep(3);", "retrying", "EXPORT_SOURCE_TIMEOUT", "SQLSTATE 57014"),
        ("PERFORM pg_terminate_backend(pg_backend_pid());", "retrying", "EXPORT_SOURCE_UNAVAILABLE", "SQLSTATE 57P01"),
        (r"PERFORM convert_from('\xff', 'UTF8');", "failed", "EXPORT_SOURCE_ERROR", "SQLSTATE 22021"),
        ("PERFORM convert_to('→', 'LATIN1');", "failed", "EXPORT_SOURCE_ERROR", "SQLSTATE 22P05"),
        ("PERFORM nothing.at_all();", "failed", "EXPORT_SOURCE_ERROR", "SQLSTATE 3F000"),
        ("PERFORM * FROM nowhere;", "failed", "EXPORT_SOURCE_ERROR", "SQLSTATE 42P01"),
    ],
)
def test_source_errors_are_classified(
    dataset: Dataset,
    alice: User,
    source_db: psycopg.Connection,
    caplog: Any,
    *,
    body: str,
    status: str,
    code: str,
    detail: str,
) -> None:
    """A17: the logs do not contain the source's message."""
    replace_function(source_db, body)
    if code == "EXPORT_SOURCE_TIMEOUT":
        dataset.statement_timeout = 1
        dataset.save()
    make_job(dataset, alice, 1)
    execution.drain()

    chunk = Chunk.objects.get()
    assert (chunk.status, chunk.error_code) == (status, code)
    assert chunk.error_detail == detail
    assert "secret row" not in caplog.text
    assert storage.head(PATH) is None
    assert not Slot.objects.held().exists()


def test_an_error_after_many_rows_leaves_no_object(
    dataset: Dataset, alice: User, source_db: psycopg.Connection
) -> None:
    replace_function(
        source_db,
        "RETURN QUERY SELECT repeat('x', 100), n, effective_date FROM generate_series(1, 200000) n; PERFORM 1/0;",
    )
    make_job(dataset, alice, 1)
    execution.drain()

    assert Chunk.objects.get().status == "retrying"
    assert storage.head(PATH) is None
    assert list(storage.list_uploads("things/")) == []


def test_a_failed_chunk_does_not_delay_other_chunks(
    dataset: Dataset, alice: User, source_db: psycopg.Connection
) -> None:
    replace_function(source_db, "IF effective_date = '2024-02-29' THEN PERFORM nothing.at_all(); END IF;")
    job = make_job(dataset, alice, 5)
    execution.drain()

    job.refresh_from_db()
    assert (job.status, job.done, job.failed) == ("failed", 4, 1)


def test_an_unexpected_error_is_recorded_as_a_failed_attempt(
    dataset: Dataset, alice: User, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The chunk must not stay leased or be retried forever, and the error must not look like one of the source."""
    make_job(dataset, alice, 1)
    monkeypatch.setattr("exports.source.encoding.CONTENT_TYPES", {})
    execution.drain()

    chunk = Chunk.objects.get()
    assert (chunk.status, chunk.error_code, chunk.error_detail) == (
        "retrying",
        "EXPORT_WORKER_LOST",
        "unexpected error",
    )
    assert not Slot.objects.held().exists()


def rejects(status: int, code: str) -> Callable[[faulty_s3.Handler, bytes], None]:
    text = faulty_s3.ERROR.replace(b"InternalError", code.encode())
    return lambda handler, _body: handler.answer(status, [], text)


def test_a_rejected_file_fails_its_chunk(dataset: Dataset, alice: User, proxy: faulty_s3.Proxy) -> None:
    """A17: the error is EXPORT_UPLOAD_FAILED. There is no retry, because it would be rejected too."""
    proxy.inject("PUT", "things/", rejects(400, "KeyTooLongError"), times=2)
    job = make_job(dataset, alice, 1)
    execution.drain()

    job.refresh_from_db()
    assert (job.status, job.error_code) == ("failed", "EXPORT_UPLOAD_FAILED")
    assert "400" in job.error_detail


@pytest.mark.slow
def test_a_chunk_whose_upload_was_discarded_is_retried(
    dataset: Dataset, alice: User, source_db: psycopg.Connection, proxy: faulty_s3.Proxy
) -> None:
    """A17: AWS discards a multipart upload after a conflict. A new upload succeeds."""
    replace_function(
        source_db, "RETURN QUERY SELECT repeat('x', 1000), n, effective_date FROM generate_series(1, 9000) n;"
    )

    def discard() -> None:
        for upload in list(storage.list_uploads("things/")):
            storage.abort_upload(upload.key, upload.upload_id)

    proxy.inject("POST", "uploadId", faulty_s3.first(discard))  # CompleteMultipartUpload
    job = make_job(dataset, alice, 1)
    execution.drain()
    chunk = job.chunks.get()
    assert (chunk.status, chunk.attempts, chunk.error_code) == ("retrying", 1, "EXPORT_UPLOAD_FAILED")

    Chunk.objects.update(available_at=timezone.now())
    execution.drain()
    assert job.chunks.get().status == "done"


REFUSALS = {
    "failing": faulty_s3.answer_500,
    "full": rejects(507, "InsufficientStorage"),
    "busy": rejects(503, "SlowDown"),
    "read-only": rejects(403, "AccessDenied"),
}


@pytest.mark.slow
@pytest.mark.parametrize("refuse", REFUSALS.values(), ids=REFUSALS)
def test_a_storage_that_refuses_writes_pauses_exports(
    dataset: Dataset,
    alice: User,
    proxy: faulty_s3.Proxy,
    refuse: Callable[[faulty_s3.Handler, bytes], None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A40: only writes are refused. Only one source call has to be repeated, and all jobs succeed afterward."""
    calls = []
    export = execution.export

    def counted(claim: Any, *rest: Any, **options: Any) -> Any:
        calls.append(claim.chunk_id)
        return export(claim, *rest, **options)

    monkeypatch.setattr(execution, "export", counted)
    jobs = [make_job(dataset, alice, 5, key=f"key-{number}") for number in range(4)]
    for method in ("PUT", "POST"):
        proxy.inject(method, "", refuse, times=1000)
    for _ in range(3):
        execution.drain()
    assert len(calls) == 1
    waiting = Chunk.objects.get(pk=calls[0])
    assert (waiting.status, waiting.attempts, waiting.error_code) == ("retrying", 0, "EXPORT_UPLOAD_FAILED")
    assert Chunk.objects.filter(status="pending").count() == 19

    proxy.faults.clear()
    Chunk.objects.filter(status="retrying").update(available_at="2000-01-01T00:00Z")
    execution.drain()
    for job in jobs:
        completion.complete(job.pk)
    assert set(Job.objects.values_list("status", flat=True)) == {"success"}
    assert len(calls) == 21


@pytest.mark.slow
def test_a_refusal_counts_after_the_storage_patience(dataset: Dataset, alice: User, proxy: faulty_s3.Proxy) -> None:
    """A40: the storage refuses only this dataset's files, for longer than EXPORT_STORAGE_PATIENCE_SECONDS."""
    proxy.inject("PUT", "things/", faulty_s3.answer_500, times=1000)
    job = make_job(dataset, alice, 1)

    def attempt() -> Chunk:
        Chunk.objects.filter(status="retrying").update(available_at="2000-01-01T00:00Z")
        execution.PAUSES.end(dataset.name)
        execution.drain()
        return job.chunks.get()

    assert [attempt().attempts for _ in range(6)] == [0] * 6
    Chunk.objects.update(refused_at=timezone.now() - timedelta(seconds=3601))
    chunks = [attempt() for _ in range(4)]
    assert [chunk.attempts for chunk in chunks] == [1, 2, 3, 4]
    job.refresh_from_db()
    assert (job.status, job.error_code) == ("failed", "EXPORT_UPLOAD_FAILED")

    proxy.faults.clear()
    actions.retry(job)
    chunk = attempt()
    assert (chunk.status, chunk.refused_at) == ("done", None)


def test_a_worker_tests_a_suspect_storage_with_a_write(dataset: Dataset, alice: User, proxy: faulty_s3.Proxy) -> None:
    """A40: the worker has written nothing yet, so it cannot know whether the storage accepts writes."""
    storage.suspect()
    proxy.inject("PUT", "", faulty_s3.answer_500, times=1000)
    job = make_job(dataset, alice, 1)
    execution.drain()
    assert job.chunks.get().status == "pending"

    proxy.faults.clear()
    execution.drain()
    assert job.chunks.get().status == "done"
    assert list(storage.list_objects("_receipts/probe/")) == []


def test_a_storage_outage_costs_no_attempt(dataset: Dataset, alice: User, settings: Any) -> None:
    """A17, A40: other chunks are not started during the outage, even if their worker is woken repeatedly."""
    job = make_job(dataset, alice, 4)
    original = settings.SLUICE
    settings.SLUICE = original.model_copy(update={"s3_endpoint_url": AnyHttpUrl("http://127.0.0.1:1")})
    for _ in range(3):
        execution.drain()
    statuses = sorted(job.chunks.values_list("status", flat=True))
    attempts = set(job.chunks.values_list("attempts", flat=True))
    settings.SLUICE = original
    Chunk.objects.filter(status="retrying").update(available_at="2000-01-01T00:00Z")
    execution.drain()

    assert statuses == ["pending", "pending", "pending", "retrying"]
    assert attempts == {0}
    assert set(job.chunks.values_list("status", flat=True)) == {"done"}


def test_a_worker_suspended_before_its_call_does_not_make_it(dataset: Dataset, alice: User) -> None:
    """A13: its lease has expired and its slot is free, and the source has no call yet that the reaper could end."""
    make_job(dataset, alice, 1)
    with database.SourceSession() as session:
        claim = claim_one(backend=session.backend)
        assert claim
        with session.calling(claim.chunk_id):
            session.cancel(claim.chunk_id)
            with pytest.raises(LeaseLost):
                execution.prepare_call(claim, session)


def test_the_loss_of_a_chunk_does_not_stop_the_call_of_the_next(dataset: Dataset, alice: User) -> None:
    """A12: a worker can lose a chunk whose file it uploads while it calls the source for the next chunk."""
    make_job(dataset, alice, 2)
    with database.SourceSession() as session:
        before, claim = (claim_one(backend=session.backend) for _ in range(2))
        assert before
        assert claim
        with session.calling(claim.chunk_id):
            session.cancel(before.chunk_id)
            assert b"".join(execution.prepare_call(claim, session)).count(b"\n") == 4


def test_graceful_shutdown_hands_the_chunk_to_another_worker(dataset: Dataset, alice: User) -> None:
    make_job(dataset, alice, 1)
    with database.SourceSession() as session:
        claim = claim_one(backend=session.backend)
        assert claim
        with (
            StoppingSession(session) as stopping,
            pytest.raises(SystemExit),
            WorkerSlot(stopping, token=claim.token) as slot,
        ):
            execution.run_batch([claim], slot, time.monotonic())

    chunk = Chunk.objects.get()
    assert (chunk.status, chunk.attempts) == ("pending", 0)
    assert not Slot.objects.held().exists()


class StoppingSession(database.SourceSession):
    """A session whose process receives SIGTERM when it starts to read."""

    def __init__(self, session: database.SourceSession) -> None:
        super().__init__()
        self.backend = session.backend

    def stream(self, *_args: object, **_options: object) -> CopyStream:
        raise SystemExit


def test_lost_leases_raise(dataset: Dataset, alice: User) -> None:
    make_job(dataset, alice, 1)
    claim = claim_one(backend="test")
    assert claim
    Chunk.objects.update(token=claim.token + 1)
    with pytest.raises(LeaseLost):
        leases.renew(claim)
