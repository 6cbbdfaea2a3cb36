"""A18: snapshots. If the source fails, no retry is left, and the job allows it, an older file replaces a chunk."""

import io
import json
import time
import zipfile
from collections.abc import Callable
from typing import Any

import psycopg
import pytest
from django.contrib.auth.models import User
from django.db.models.functions import Now
from rest_framework.test import APIClient

from config.platform import storage
from exports.maintenance import lost_leases, manual_actions
from exports.models import Chunk, Dataset, File, Job, Usage
from exports.source.database import SourceSession
from exports.source.encoding import Content
from exports.worker import completion, execution
from exports.worker.leases import Claim
from tests.conftest import change_settings
from tests.integration import faulty_s3
from tests.integration.factories import make_job
from tests.integration.test_execution import PATH, replace_function
from tests.integration.test_leases import in_threads

pytestmark = pytest.mark.usefixtures("empty_bucket")

RAISES = "RAISE EXCEPTION 'secret row';"


def run(times: int = 4) -> None:
    """Run all ready chunks, including their retries."""
    for _ in range(times):
        Chunk.objects.filter(status="retrying").update(available_at=Now())
        execution.drain()
    for job in Job.objects.ready_to_complete():
        completion.complete(job.pk)


@pytest.fixture(autouse=True)
def _long_pauses(settings: Any) -> None:
    """Raise the pauses before retries: if the machine stalls, a drain must not run the retry of its own attempt."""
    change_settings(settings, export_backoff_base_seconds=60.0)


@pytest.fixture
def older(dataset: Dataset, alice: User, source_db: psycopg.Connection) -> Job:
    """A finished job for one day. Later calls of the source fail."""
    job = make_job(dataset, alice, 1)
    run(1)
    replace_function(source_db, RAISES)
    return job


def test_a_snapshot_replaces_a_chunk_after_its_retries(
    api: APIClient, older: Job, dataset: Dataset, alice: User
) -> None:
    """A18: the receipt and the chunk show this, with the time of the older data and the error."""
    old = older.chunks.get()
    job = make_job(dataset, alice, 1, reuse="never")
    run(3)
    assert api.get(f"/exports/{job.pk}").json()["status"] == "retrying"
    run(1)

    body = api.get(f"/exports/{job.pk}").json()
    assert (body["status"], body["receipt"]["degraded"]) == ("success", True)
    assert (body["progress"]["done"], body["progress"]["degraded"], body["progress"]["failed"]) == (1, 1, 0)
    (chunk,) = api.get(f"/exports/{job.pk}/chunks").json()["results"]
    assert (chunk["status"], chunk["source"], chunk["attempts"]) == ("done", "snapshot", 4)
    assert chunk["dataAsOf"] == api.get(f"/exports/{older.pk}/chunks").json()["results"][0]["dataAsOf"]
    assert chunk["checksum"] == f"sha256:{old.sha256}"
    assert (chunk["error"]["code"], "P0001" in chunk["error"]["detail"]) == ("EXPORT_SOURCE_ERROR", True)
    assert "secret" not in json.dumps([body, chunk])


def test_a_chunk_fails_if_its_job_does_not_allow_snapshots(
    api: APIClient, older: Job, dataset: Dataset, alice: User
) -> None:
    """A18."""
    job = make_job(dataset, alice, 1, reuse="never", allow_degraded=False)
    run()

    body = api.get(f"/exports/{job.pk}").json()
    assert (body["status"], body["error"]["code"], body["receipt"]) == ("failed", "EXPORT_SOURCE_ERROR", None)


def test_a_chunk_fails_without_an_older_file(older: Job, dataset: Dataset, alice: User) -> None:
    """A18: only one of two days has an older file."""
    job = make_job(dataset, alice, 2, reuse="never")
    run()

    job.refresh_from_db()
    assert (job.status, job.done, job.degraded, job.failed) == ("failed", 1, 1, 1)


@pytest.mark.slow
@pytest.mark.parametrize("harm", ["deleted", "changed", "other version"])
def test_a_chunk_fails_if_the_older_file_has_changed(older: Job, dataset: Dataset, alice: User, harm: str) -> None:
    """A16, A18."""
    if harm == "deleted":
        storage.delete(PATH)
    elif harm == "changed":
        head = storage.head(PATH)
        assert head
        storage.put(PATH, b"other", content_type="text/csv", if_match=head.etag)
    else:
        dataset.schema_version = 2
        dataset.save()
    job = make_job(dataset, alice, 1, reuse="never")
    run()

    job.refresh_from_db()
    assert (job.status, job.degraded) == ("failed", 0)


def test_a_permanent_source_error_degrades_immediately(
    older: Job, dataset: Dataset, alice: User, source_db: psycopg.Connection
) -> None:
    """A17, A18: there are no retries, because they cannot help."""
    source_db.execute("DROP FUNCTION data.rows_for")
    job = make_job(dataset, alice, 1, reuse="never")
    run(1)

    job.refresh_from_db()
    chunk = job.chunks.get()
    assert (job.status, chunk.source, chunk.attempts) == ("success", "snapshot", 1)


def during_the_call(monkeypatch: pytest.MonkeyPatch, action: Callable[[], object]) -> None:
    """Run an action in another thread between the next claim and its call."""
    prepare = execution.prepare_call

    def act_and_prepare(claim: Claim, session: SourceSession) -> Content:
        monkeypatch.setattr(execution, "prepare_call", prepare)
        in_threads(1, lambda _: action())
        return prepare(claim, session)

    monkeypatch.setattr(execution, "prepare_call", act_and_prepare)


def test_a_file_that_another_job_stored_during_the_call_replaces_a_chunk(
    older: Job, dataset: Dataset, alice: User, source_db: psycopg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A18: the file that was known at the claim is gone, and the newer one is at least as good."""

    def export_by_another_job() -> None:
        replace_function(source_db, "RETURN QUERY SELECT key, 2, effective_date;")
        make_job(dataset, alice, 1, reuse="never")
        execution.drain()
        source_db.execute("DROP FUNCTION data.rows_for")

    job = make_job(dataset, alice, 1, reuse="never")
    during_the_call(monkeypatch, export_by_another_job)
    run(1)

    job.refresh_from_db()
    chunk = job.chunks.get()
    assert (job.status, chunk.source, chunk.rows) == ("success", "snapshot", 2)


def test_a_first_file_that_another_job_stored_during_the_call_replaces_a_chunk(
    dataset: Dataset, alice: User, source_db: psycopg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A18."""

    def export_by_another_job() -> None:
        make_job(dataset, alice, 1)
        execution.drain()
        source_db.execute("DROP FUNCTION data.rows_for")

    job = make_job(dataset, alice, 1)
    during_the_call(monkeypatch, export_by_another_job)
    run(1)

    job.refresh_from_db()
    assert (job.status, job.degraded) == ("success", 1)


def test_a_file_that_staff_excluded_during_the_call_replaces_no_chunk(
    older: Job, dataset: Dataset, alice: User, source_db: psycopg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A18."""
    source_db.execute("DROP FUNCTION data.rows_for")
    job = make_job(dataset, alice, 1, reuse="never")
    during_the_call(monkeypatch, lambda: manual_actions.invalidate_file(File.objects.get()))
    run(1)

    job.refresh_from_db()
    assert (job.status, job.degraded) == ("failed", 0)


def test_a_snapshot_that_another_job_replaced_with_new_rows_is_reused(
    api: APIClient, older: Job, dataset: Dataset, alice: User, source_db: psycopg.Connection
) -> None:
    """A18, A38: the completion adopts the new file. Only failures of the source degrade a delivery."""
    source_db.execute("DROP FUNCTION data.rows_for")
    job = make_job(dataset, alice, 1, reuse="never")
    execution.drain()
    used = Usage.objects.get().chunks
    assert job.chunks.get().source == "snapshot"
    replace_function(source_db, "RETURN QUERY SELECT key, 2, effective_date;")
    make_job(dataset, alice, 1, reuse="never")
    execution.drain()
    completion.complete(job.pk)

    body = api.get(f"/exports/{job.pk}").json()
    assert (body["status"], body["receipt"]["degraded"]) == ("success", False)
    assert (body["progress"]["done"], body["progress"]["reused"], body["progress"]["degraded"]) == (1, 1, 0)
    (chunk,) = api.get(f"/exports/{job.pk}/chunks").json()["results"]
    assert (chunk["source"], chunk["rows"], chunk["error"]) == ("reused", 2, None)
    assert Usage.objects.get().chunks == used  # one more for the other job, and one less for the reused chunk


def test_a_reused_chunk_that_adopts_a_newer_file_is_refunded_once(
    older: Job, dataset: Dataset, alice: User, source_db: psycopg.Connection
) -> None:
    """A2: it was refunded when it was reused."""
    job = make_job(dataset, alice, 1)
    execution.drain()
    old = job.chunks.get()
    assert old.source == "reused"
    replace_function(source_db, "RETURN QUERY SELECT key, 2, effective_date;")
    make_job(dataset, alice, 1, reuse="never")
    execution.drain()
    used = Usage.objects.get().chunks
    completion.complete(job.pk)

    assert job.chunks.get().etag != old.etag
    assert Usage.objects.get().chunks == used


def test_an_object_storage_failure_does_not_degrade_an_export(
    older: Job, dataset: Dataset, alice: User, source_db: psycopg.Connection, settings: Any
) -> None:
    """A17, A18: only a failure of the source degrades an export."""
    source_db.execute("""
        CREATE OR REPLACE FUNCTION data.rows_for(key text, effective_date date)
        RETURNS TABLE (k text, n int, d date) LANGUAGE sql AS $$ SELECT key, 1, effective_date $$
    """)
    job = make_job(dataset, alice, 1, reuse="never")
    change_settings(settings, s3_bucket="there-is-no-such-bucket")
    execution.drain()

    chunk = job.chunks.get()
    assert (chunk.status, chunk.error_code) == ("retrying", "EXPORT_UPLOAD_FAILED")


def test_a_chunk_waits_while_the_storage_cannot_be_checked_for_an_older_file(
    older: Job, dataset: Dataset, alice: User, proxy: faulty_s3.Proxy
) -> None:
    """A18, A40."""
    job = make_job(dataset, alice, 1, reuse="never")
    run(3)
    Chunk.objects.filter(status="retrying").update(available_at=Now())
    proxy.inject("HEAD", "", faulty_s3.answer_500, times=1000)
    execution.drain()
    chunk = job.chunks.get()
    assert (chunk.status, chunk.attempts, chunk.error_code) == ("retrying", 3, "EXPORT_UPLOAD_FAILED")

    proxy.faults.clear()
    run(1)
    job.refresh_from_db()
    assert (job.status, job.degraded) == ("success", 1)


def test_a_chunk_fails_with_its_source_error_after_a_long_storage_outage(
    older: Job, dataset: Dataset, alice: User, settings: Any, proxy: faulty_s3.Proxy
) -> None:
    """A40."""
    job = make_job(dataset, alice, 1, reuse="never")
    run(3)
    Chunk.objects.filter(status="retrying").update(available_at=Now())
    change_settings(settings, export_storage_patience_seconds=0)
    proxy.inject("HEAD", "", faulty_s3.answer_500, times=1000)
    execution.drain()

    chunk = job.chunks.get()
    assert (chunk.status, chunk.attempts, chunk.error_code) == ("failed", 4, "EXPORT_SOURCE_ERROR")


def test_the_manifest_names_the_snapshots(older: Job, dataset: Dataset, alice: User, source_db: Any) -> None:
    """A18, A21."""
    source_db.execute("""
        CREATE OR REPLACE FUNCTION data.rows_for(key text, effective_date date)
        RETURNS TABLE (k text, n int, d date) LANGUAGE plpgsql AS $$
        BEGIN
            IF effective_date = '2024-02-28' THEN RAISE EXCEPTION 'no'; END IF;
            RETURN QUERY SELECT key, 1, effective_date;
        END $$
    """)
    job = make_job(dataset, alice, 2, reuse="never")
    run()

    job.refresh_from_db()
    archive = zipfile.ZipFile(io.BytesIO(b"".join(storage.read(job.receipt.object_key, if_match=job.receipt.etag))))
    files = json.loads(archive.read("manifest.json"))["files"]
    assert [file["source"] for file in files] == ["snapshot", "live"]
    assert files[0]["dataAsOf"] < files[1]["dataAsOf"]


def test_snapshots_count_toward_the_quota(older: Job, dataset: Dataset, alice: User) -> None:
    """A2: only reused, failed, and cancelled chunks are refunded."""
    make_job(dataset, alice, 1, reuse="never")
    run()
    assert Usage.objects.get().chunks == 2


@pytest.mark.slow
def test_a_hanging_storage_loses_no_lease_before_a_snapshot(
    older: Job, dataset: Dataset, alice: User, settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A18, A40."""
    job = make_job(dataset, alice, 1, reuse="never")
    run(3)
    Chunk.objects.filter(status="retrying").update(available_at=Now())
    change_settings(settings, export_lease_seconds=6)  # renewed every 2 s, so it survives a stall of the machine
    head = storage.head

    def hang(path: str) -> storage.Head | None:
        time.sleep(7)
        lost_leases.reclaim_chunks()
        return head(path)

    monkeypatch.setattr(storage, "head", hang)
    execution.drain()
    chunk = job.chunks.get()
    assert (chunk.status, chunk.source, chunk.attempts) == ("done", "snapshot", 4)
