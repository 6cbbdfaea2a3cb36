"""Completion of jobs: from the last chunk to the receipt and its link. A19, A21 to A24."""

import csv
import gzip
import hashlib
import io
import json
import multiprocessing
import os
import random
import signal
import threading
import time
import urllib.request
import zipfile
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from typing import Any
from uuid import uuid4

import psycopg
import pytest
import zstandard
from celery.exceptions import SoftTimeLimitExceeded
from django.conf import LazySettings
from django.contrib.auth.models import User
from django.db import OperationalError, connection
from django.db.models import F
from django.db.models.functions import Now
from django.test import Client
from django.utils import timezone
from rest_framework.test import APIClient

from config.platform import storage
from config.platform.db import identity, sql
from config.platform.heartbeat import LeaseLost
from config.platform.storage import uploads
from exports.api import event_hub
from exports.core.errors import explain
from exports.core.planning import Dialect, Pair, Shape
from exports.delivery import bundles, chunk_files, links, packs, receipts
from exports.delivery.links import ReceiptExpired
from exports.jobs import actions
from exports.maintenance import storage_cleanup
from exports.models import Chunk, Dataset, Download, File, Job, Link, Receipt
from exports.source.database import SourceSession
from exports.worker import adoption, batches, completion, execution, transitions
from exports.worker.heartbeat import heartbeat
from exports.worker.leases import Claim
from exports.worker.slot import WorkerSlot
from exports.worker.transitions import ChunkResult
from tests.broker import lose_messages, queued
from tests.conftest import change_settings, client_of
from tests.integration import faulty_s3, zip_streams
from tests.integration.factories import FIRST_DAY, claim_one, end_chunk, fail_chunk, make_job, result_of
from tests.integration.test_execution import CONTENT, PATH, replace_function
from tests.integration.test_leases import in_threads
from tests.waiting import let_pass, wait_until

pytestmark = pytest.mark.usefixtures("empty_bucket")

CLIENT = links.LinkClient(address="127.0.0.1", user_agent="tests")


def finish(job: Job) -> Receipt:
    execution.drain()
    completion.complete(job.pk)
    return Receipt.objects.get(pk=job.pk)


def delivered(receipt: Receipt) -> bytes:
    data = b"".join(storage.read(receipt.object_key))
    assert hashlib.sha256(data).hexdigest() == receipt.checksum
    assert len(data) == receipt.size_bytes
    return data


# ---- Delivery -------------------------------------------------------------------------------------------------------


def test_a_single_chunk_is_delivered_as_its_file(dataset: Dataset, alice: User) -> None:
    """A21."""
    receipt = finish(make_job(dataset, alice, 1))

    assert delivered(receipt) == CONTENT
    assert receipt.object_key != PATH
    assert (receipt.file_name, receipt.content_type) == ("JFK_20240228.csv", "text/csv; charset=utf-8")
    assert (receipt.files, receipt.rows, receipt.degraded) == (1, 3, False)


def test_a_zip_contains_every_file_and_the_manifest(dataset: Dataset, alice: User) -> None:
    """A21."""
    job = make_job(dataset, alice, 12)
    archive = zipfile.ZipFile(io.BytesIO(delivered(finish(job))))

    assert archive.testzip() is None
    manifest = json.loads(archive.read("manifest.json"))
    assert len(manifest["files"]) == 12
    assert archive.namelist()[:-1] == [file["fileName"] for file in manifest["files"]]
    for file in manifest["files"]:
        data = archive.read(file["fileName"])
        assert (len(data), hashlib.sha256(data).hexdigest()) == (file["bytes"], file["sha256"])
        assert (file["rows"], file["source"]) == (3, "live")
        assert file["url"] == f"/exports/{job.pk}/files/JFK/{file['effectiveDate']}"
        assert file["dataAsOf"].endswith("Z")


UNPACK: dict[str, Callable[[bytes], bytes]] = {
    "none": bytes,
    "gzip": gzip.decompress,
    "zstd": lambda data: zstandard.ZstdDecompressor().stream_reader(data, read_across_frames=True).read(),
}


@pytest.mark.parametrize("compression", UNPACK)
def test_single_csv_has_one_header(dataset: Dataset, alice: User, compression: str) -> None:
    """A21, A31."""
    shape = Shape(compression=compression, dialect=Dialect(bom=True))
    data = delivered(finish(make_job(dataset, alice, 12, delivery="single", shape=shape)))
    text = UNPACK[compression](data).decode("utf-8-sig")

    rows = list(csv.reader(io.StringIO(text)))
    assert rows[0] == ["k", "n", "d"]
    assert len(rows) == 1 + 36
    assert [row[2] for row in rows[1::3]] == sorted(row[2] for row in rows[1::3])
    assert "\ufeff" not in text


@pytest.mark.parametrize("compression", UNPACK)
def test_single_json_is_one_array(dataset: Dataset, alice: User, compression: str) -> None:
    """A31."""
    shape = Shape(format="json", compression=compression)
    data = delivered(finish(make_job(dataset, alice, 3, delivery="single", shape=shape)))
    documents = json.loads(UNPACK[compression](data))
    assert [len(document["rows"]) for document in documents] == [3, 3, 3]


def test_a_zip_does_not_compress_compressed_files(dataset: Dataset, alice: User) -> None:
    """A31."""
    shape = Shape(format="jsonl", compression="zstd")
    data = delivered(finish(make_job(dataset, alice, 2, delivery="zip", shape=shape)))
    archive = zipfile.ZipFile(io.BytesIO(data))
    file = archive.getinfo("2024/02/28/JFK_20240228.jsonl.zst")
    assert [json.loads(line)["n"] for line in UNPACK["zstd"](archive.read(file)).splitlines()] == [1, 2, 3]
    # Deflate stores bytes without compression in blocks with 5 extra bytes each. The last block may be empty.
    assert 0 < file.compress_size - file.file_size <= 10
    assert archive.read(file) in data


@pytest.mark.slow
def test_compressed_files_grow_by_less_than_a_thousandth_in_a_zip(dataset: Dataset, alice: User) -> None:
    content = random.Random(0).randbytes(2_000_000)  # of many blocks of deflate
    job = make_job(dataset, alice, 2, shape=Shape(compression="gzip"))
    execution.drain()
    for chunk in job.chunks.all():
        stored = storage.put(chunk.path, content, content_type="application/gzip", if_match=chunk.etag)
        Chunk.objects.filter(pk=chunk.pk).update(etag=stored.etag, sha256=stored.sha256, bytes=stored.size)
    completion.complete(job.pk)

    archive = zipfile.ZipFile(io.BytesIO(delivered(Receipt.objects.get())))
    for file in archive.infolist()[:2]:
        assert archive.read(file) == content
        assert file.compress_size - file.file_size < file.file_size / 1000


@pytest.mark.parametrize("small_bytes", [bundles.SMALL_BYTES, 0])
@pytest.mark.parametrize(
    "shape",
    [Shape(), Shape(compression="gzip"), Shape(format="jsonl", compression="zstd"), Shape(format="parquet")],
    ids=lambda shape: shape.extension,
)
def test_a_zip_can_be_read_without_its_directory(
    dataset: Dataset, alice: User, shape: Shape, small_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Java's ZipInputStream and other readers of streams see only the entries, not the directory at the end."""
    monkeypatch.setattr(bundles, "SMALL_BYTES", small_bytes)
    data = delivered(finish(make_job(dataset, alice, 3, delivery="zip", shape=shape)))

    archive = zipfile.ZipFile(io.BytesIO(data))
    assert list(zip_streams.entries(data)) == [(name, archive.read(name)) for name in archive.namelist()]
    assert len(archive.namelist()) == 4


@pytest.mark.parametrize("delivery", ["zip", "manifest"])
def test_files_whose_keys_differ_in_case_have_names_that_differ_in_more(
    dataset: Dataset, alice: User, delivery: str
) -> None:
    """File systems of Windows and macOS ignore case and Unicode normalization: one file would replace another."""
    keys = ["JFK", "jfk", "\u00e9", "e\u0301"]
    expected = [f"2024/02/28/{name}.csv" for name in ("JFK_20240228", "jfk_20240228_2", "\u00e9_20240228")]
    expected.append("2024/02/28/e\u0301_20240228_2.csv")
    for _ in range(2):
        job = make_job(dataset, alice, delivery=delivery, pairs=[Pair(key, FIRST_DAY) for key in keys], reuse="never")
        data = delivered(finish(job))
        archive = zipfile.ZipFile(io.BytesIO(data)) if delivery == "zip" else None
        assert archive is None or archive.namelist() == [*expected, "manifest.json"]
        manifest = json.loads(archive.read("manifest.json") if archive else data)
        assert [(file["key"], file["fileName"]) for file in manifest["files"]] == list(zip(keys, expected, strict=True))


def test_a_file_of_more_than_4_gib_has_a_zip64_entry(dataset: Dataset, alice: User) -> None:
    job = make_job(dataset, alice, 2)
    execution.drain()

    Chunk.objects.filter(seq=0).update(bytes=5 * 1024**3)
    large = first_header(job)
    assert (large.is_zip64, large.version, large.compressed, large.size) == (True, 45, 0xFFFFFFFF, 0xFFFFFFFF)
    Chunk.objects.filter(seq=0).update(bytes=1024**3)
    small = first_header(job)
    assert (small.is_zip64, small.version, small.compressed, small.size) == (False, 20, 0, 0)


def first_header(job: Job) -> zip_streams.LocalHeader:
    stream = io.BytesIO(next(bundles.zipped(job, lambda chunk: chunk)))
    assert stream.read(4) == zip_streams.LOCAL
    return zip_streams.read_header(stream)


@pytest.mark.parametrize("delivery", ["zip", "single"])
@pytest.mark.parametrize("size", [bundles.SMALL_BYTES + 1, 5 * 1024**3])
def test_a_large_file_of_another_size_fails_the_attempt(
    dataset: Dataset, alice: User, delivery: str, size: int
) -> None:
    job = make_job(dataset, alice, 2, delivery=delivery)
    execution.drain()
    Chunk.objects.filter(seq=1).update(bytes=size)
    completion.complete(job.pk)

    job.refresh_from_db()
    assert (job.status, job.error_code, job.completion_attempts) == ("running", "EXPORT_BUNDLE_FAILED", 1)
    assert job.error_detail == f"a file has {len(CONTENT)} bytes, but {size} are recorded"
    assert not list(storage.list_objects(f"{packs.PREFIX}/"))


def test_a_manifest_does_not_contain_the_files(dataset: Dataset, alice: User) -> None:
    receipt = finish(make_job(dataset, alice, 3, delivery="manifest"))
    manifest = json.loads(delivered(receipt))
    assert receipt.content_type == "application/json"
    assert manifest["files"][0]["fileName"] == "2024/02/28/JFK_20240228.csv"
    assert manifest["csv"] == {"bom": False, "delimiter": ",", "formulaPolicy": "none"}


def test_a_zip_of_large_files_contains_their_bytes(
    dataset: Dataset, alice: User, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bundles, "SMALL_BYTES", 0)
    archive = zipfile.ZipFile(io.BytesIO(delivered(finish(make_job(dataset, alice, 3)))))
    assert archive.read("2024/02/28/JFK_20240228.csv") == CONTENT


def test_a_delivery_keeps_its_bytes_when_the_file_is_replaced(dataset: Dataset, alice: User) -> None:
    """A21."""
    receipt = finish(make_job(dataset, alice, 1))
    storage.put(PATH, b"newer", content_type="text/csv", if_match=Chunk.objects.get().etag)
    assert delivered(receipt) == CONTENT


# ---- Exactly once ---------------------------------------------------------------------------------------------------


def test_concurrent_completions_complete_a_job_once(dataset: Dataset, alice: User) -> None:
    """A19."""
    job = make_job(dataset, alice, 5)
    execution.drain()
    in_threads(6, lambda _: completion.complete(job.pk))

    job.refresh_from_db()
    assert (job.status, job.completion_attempts) == ("success", 1)
    assert Receipt.objects.count() == Link.objects.count() == 1


def test_a_completion_without_its_lease_issues_no_receipt(dataset: Dataset, alice: User) -> None:
    """A11."""
    job = make_job(dataset, alice, 1)
    execution.drain()
    stale = completion.claim(job.pk)
    assert stale
    Job.objects.update(completion_lease_until="2000-01-01T00:00Z")
    completion.complete(job.pk)

    job.refresh_from_db()
    with heartbeat(lambda: None) as beat:
        delivery = bundles.make(attempt_of(job, stale, beat.check))
    with pytest.raises(LeaseLost):
        completion.issue(job, stale, delivery)
    assert Receipt.objects.get().object_key != delivery.stored.key


def test_a_job_with_a_failed_chunk_is_not_completed(dataset: Dataset, alice: User) -> None:
    job = make_job(dataset, alice, 2)
    end_chunk()
    fail_chunk()
    completion.complete(job.pk)

    job.refresh_from_db()
    assert (job.status, job.done, job.failed) == ("failed", 1, 1)
    assert not Receipt.objects.exists()


def test_a_running_job_is_not_completed(dataset: Dataset, alice: User) -> None:
    """A19: one of its two chunks is done."""
    job = make_job(dataset, alice, 2)
    end_chunk()

    assert completion.claim(job.pk) is None
    assert completion.unclaimed_jobs() == []


def test_one_message_completes_all_ready_jobs(dataset: Dataset, alice: User) -> None:
    """A12: the messages for the other jobs were lost, and this message is for a job that is already complete."""
    jobs = [make_job(dataset, alice, 1, key=key) for key in ("EWR", "JFK", "LGA")]
    execution.drain()
    completion.complete(jobs[0].pk)

    completion.drain(jobs[0].pk)

    assert {job.status for job in Job.objects.all()} == {"success"}


def test_a_worker_sends_a_message_for_jobs_that_it_does_not_complete(
    dataset: Dataset, alice: User, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = (make_job(dataset, alice, 1, key=key) for key in ("EWR", "JFK"))
    execution.drain()
    lose_messages()
    monkeypatch.setattr(completion, "DRAIN_SECONDS", 0)

    completion.drain(first.pk)

    assert completion.unclaimed_jobs() == [second.pk]
    assert queued("bundles") == 1


def test_the_stale_completion_of_two_changes_nothing(dataset: Dataset, alice: User) -> None:
    """A11: both are running, and the lease of the first one has expired."""
    job = make_job(dataset, alice, 1)
    end_chunk()
    stale = completion.claim(job.pk)
    assert stale
    Job.objects.update(completion_lease_until="2000-01-01T00:00Z")
    fresh = completion.claim(job.pk)
    assert fresh
    File.objects.update(etag="another's", rows=9)
    before = Job.objects.values().get(), Chunk.objects.values().get()

    job.refresh_from_db()
    bundle = bundles.Bundle(
        stored=storage.StoredObject(key="_receipts/x", etag="e", size=1, sha256="s"), content_type="", file_name="x"
    )
    with pytest.raises(LeaseLost):
        completion.renew(job.pk, stale)
    with pytest.raises(LeaseLost):
        completion.issue(job, stale, bundle)
    completion.fail(job, stale, "too late")
    with pytest.raises(LeaseLost):
        adoption.adopt(stale, Chunk.objects.get())
    values = {"chunks": [before[1]["id"]], "patience": 3600, "attempts": 4}
    for statement in (completion.REDO, completion.RELEASE):
        assert sql.scalar(statement, job=job.pk, token=stale, **values) is None

    assert (Job.objects.values().get(), Chunk.objects.values().get()) == before
    assert not Receipt.objects.exists()
    completion.issue(job, fresh, bundle)


def attempt_of(job: Job, token: int, checkpoint: Callable[[], None]) -> bundles.Attempt:
    return bundles.Attempt(job=job, token=token, checkpoint=checkpoint, adopt=partial(adoption.adopt, token))


def complete_now(job: Job) -> None:
    """Complete a job without waiting for the backoff after an earlier attempt."""
    Job.objects.update(completion_lease_until=None)
    completion.complete(job.pk)


def test_a_replaced_file_is_delivered_in_its_new_version(dataset: Dataset, alice: User) -> None:
    job = make_job(dataset, alice, 2)
    execution.drain()
    make_job(dataset, alice, 2, reuse="never")
    execution.drain()
    completion.complete(job.pk)

    job.refresh_from_db()
    assert (job.status, job.completion_attempts) == ("success", 1)
    assert set(job.chunks.values_list("etag", flat=True)) == set(File.objects.values_list("etag", flat=True))


@pytest.mark.slow
@pytest.mark.parametrize("harm", ["deleted", "changed"])
def test_a_missing_file_is_exported_again(dataset: Dataset, alice: User, harm: str) -> None:
    """A missing or unreferenced object must not make the job fail."""
    job = make_job(dataset, alice, 2)
    execution.drain()
    if harm == "deleted":
        storage.delete(PATH)
    else:
        storage.put(PATH, b"unreferenced", content_type="text/csv", if_match=job.chunks.get(seq=0).etag)
    completion.complete(job.pk)
    job.refresh_from_db()
    assert (job.status, job.done, job.rows) == ("running", 1, 3)

    receipt = finish(job)
    archive = zipfile.ZipFile(io.BytesIO(delivered(receipt)))
    assert archive.read("2024/02/28/JFK_20240228.csv") == CONTENT
    job.refresh_from_db()
    assert (job.status, job.done, job.rows, job.bytes) == ("success", 2, 6, 2 * len(CONTENT))


@pytest.mark.slow
def test_a_chunk_that_is_exported_again_has_no_file(
    dataset: Dataset, alice: User, api: APIClient, source_db: psycopg.Connection
) -> None:
    """A38: it would otherwise show the checksum of the missing file, also if it fails or is cancelled."""
    job = make_job(dataset, alice, 2)
    execution.drain()
    storage.delete(PATH)
    source_db.execute("DROP FUNCTION data.rows_for")
    completion.complete(job.pk)

    for status in ("pending", "failed"):
        body = api.get(f"/exports/{job.pk}/chunks").json()["results"][0]
        assert body["status"] == status
        assert [body[name] for name in ("source", "rows", "bytes", "checksum", "dataAsOf")] == [None] * 5
        execution.drain()
    job.refresh_from_db()
    assert (job.status, job.done, job.rows, job.bytes) == ("failed", 1, 3, len(CONTENT))


def test_a_file_is_recorded_after_others_stored_the_same_bytes_again(
    dataset: Dataset, alice: User, source_db: psycopg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A38: during a call, other jobs replace the file, and then store its earlier bytes again."""

    def export(rows: int) -> Job:
        replace_function(source_db, f"RETURN QUERY SELECT key, n, effective_date FROM generate_series(1, {rows}) n;")
        job = make_job(dataset, alice, 1, reuse="never")
        execution.drain()
        return job

    upload_number = adoption.upload_number

    def number_after_others(*arguments: Any) -> int:
        monkeypatch.setattr(execution, "upload_number", upload_number)
        in_threads(1, lambda _: [export(rows) for rows in (2, 1)])
        return upload_number(*arguments)

    export(1)
    monkeypatch.setattr(adoption, "RECENT_SECONDS", 0)  # as if the call had taken long
    monkeypatch.setattr(execution, "upload_number", number_after_others)
    job = export(3)

    head = storage.head(PATH)
    assert head
    assert head.etag == File.objects.get().etag == job.chunks.get().etag


@pytest.mark.slow
def test_a_missing_file_at_the_last_attempt_fails_the_job(dataset: Dataset, alice: User) -> None:
    """The job would otherwise have no attempt left and never end."""
    job = make_job(dataset, alice, 2)
    execution.drain()
    storage.delete(PATH)
    Job.objects.update(completion_attempts=3, started_at=timezone.now() - timedelta(hours=2))
    completion.complete(job.pk)

    job.refresh_from_db()
    assert (job.status, job.error_code, job.done) == ("failed", "EXPORT_BUNDLE_FAILED", 2)


def test_a_completion_without_attempts_or_lease_fails(dataset: Dataset, alice: User) -> None:
    """EXPORT_MAX_ATTEMPTS was lowered in the meantime."""
    job = make_job(dataset, alice, 1)
    execution.drain()
    Job.objects.update(completion_attempts=9, completion_lease_until=None)
    completion.fail_exhausted()

    job.refresh_from_db()
    assert job.status == "failed"


@pytest.mark.slow
def test_the_lease_is_renewed_while_files_are_checked(
    dataset: Dataset, alice: User, settings: LazySettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A11: checking 10,000 files takes longer than a lease."""
    change_settings(settings, export_lease_seconds=3)
    job = make_job(dataset, alice, 2)
    execution.drain()
    storage.delete(PATH)
    head = storage.head

    def slow_head(path: str) -> storage.Head | None:
        time.sleep(4)
        return head(path)

    monkeypatch.setattr(storage, "head", slow_head)
    completion.complete(job.pk)

    job.refresh_from_db()
    assert (job.status, job.done) == ("running", 1)


def test_a_stale_completion_changes_no_chunk(dataset: Dataset, alice: User) -> None:
    """A11."""
    job = make_job(dataset, alice, 1)
    execution.drain()
    stale = completion.claim(job.pk)
    assert stale
    complete_now(job)
    make_job(dataset, alice, 1, reuse="never")
    execution.drain()
    before = (list(job.chunks.values()), Job.objects.values().get(pk=job.pk))
    with pytest.raises(LeaseLost):
        adoption.adopt(stale, job.chunks.get())
    completion.export_missing_again(job, stale)

    assert (list(job.chunks.values()), Job.objects.values().get(pk=job.pk)) == before


def test_a_bundle_that_kills_its_workers_fails(dataset: Dataset, alice: User) -> None:
    """A17: an attempt is counted when it is claimed."""
    job = make_job(dataset, alice, 1)
    execution.drain()
    for _ in range(4):
        assert completion.claim(job.pk)
        Job.objects.update(completion_lease_until="2000-01-01T00:00Z")
    assert completion.claim(job.pk) is None
    completion.fail_exhausted()

    job.refresh_from_db()
    assert (job.status, job.error_code) == ("failed", "EXPORT_BUNDLE_FAILED")
    actions.retry(job)
    completion.complete(job.pk)
    job.refresh_from_db()
    assert job.status == "success"


def interrupt_bundle(monkeypatch: pytest.MonkeyPatch, error: BaseException) -> None:
    def interrupted(*_args: object) -> None:
        raise error

    monkeypatch.setattr(bundles, "make", interrupted)


def test_graceful_shutdown_hands_the_completion_to_another_worker(
    dataset: Dataset, alice: User, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = make_job(dataset, alice, 1)
    execution.drain()
    interrupt_bundle(monkeypatch, SystemExit())
    with pytest.raises(SystemExit):
        completion.complete(job.pk)
    job.refresh_from_db()
    assert (job.completion_attempts, job.completion_token, completion.unclaimed_jobs()) == (0, None, [job.pk])


def test_an_error_does_not_end_the_shutdown_of_a_completion(
    dataset: Dataset, alice: User, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = make_job(dataset, alice, 1)
    execution.drain()
    interrupt_bundle(monkeypatch, SystemExit())
    monkeypatch.setattr(completion, "RELEASE", "SELECT pg_terminate_backend(pg_backend_pid())")
    with pytest.raises(SystemExit):
        completion.drain(job.pk)


def test_the_time_limit_of_a_worker_ends_an_attempt(
    dataset: Dataset, alice: User, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = make_job(dataset, alice, 1)
    execution.drain()
    interrupt_bundle(monkeypatch, SoftTimeLimitExceeded())
    with pytest.raises(SoftTimeLimitExceeded):
        completion.drain(job.pk)
    job.refresh_from_db()
    assert (job.status, job.completion_attempts, job.completion_token) == ("running", 1, None)
    assert job.error_detail.startswith("over the worker's time limit")


def test_a_lost_database_connection_leaves_the_completion_to_its_lease(
    dataset: Dataset, alice: User, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = make_job(dataset, alice, 1)
    execution.drain()
    with monkeypatch.context() as patch:
        interrupt_bundle(patch, OperationalError("gone"))
        completion.drain(job.pk)
    job.refresh_from_db()
    assert (job.status, job.error_code, completion.unclaimed_jobs()) == ("running", "", [])

    Job.objects.update(completion_lease_until="2000-01-01T00:00Z")
    completion.drain(job.pk)
    job.refresh_from_db()
    assert job.status == "success"


# ---- Links ----------------------------------------------------------------------------------------------------------


def test_a_link_downloads_the_bytes_once(dataset: Dataset, api: APIClient, alice: User) -> None:
    """A22."""
    job = make_job(dataset, alice, 1)
    finish(job)
    url = api.get(f"/exports/{job.pk}").json()["receipt"]["signedUrl"]

    first = APIClient().get(url)
    assert first.status_code == 302
    assert first["Cache-Control"] == "no-store"
    assert "X-Amz-Signature=" in first["Location"]
    with urllib.request.urlopen(first["Location"]) as answer:  # noqa: S310
        assert answer.read() == CONTENT
        assert answer.headers["Content-Disposition"].startswith("attachment;")
        assert answer.headers["Content-Type"] == "text/csv; charset=utf-8"

    second = APIClient().get(url)
    assert (second.status_code, second.json()["code"]) == (403, "link_used")
    receipt = api.get(f"/exports/{job.pk}").json()["receipt"]
    assert (receipt["state"], receipt["signedUrl"]) == ("redeemed", None)


def test_one_of_a_hundred_concurrent_requests_gets_the_redirect(dataset: Dataset, alice: User) -> None:
    """A22."""
    job = make_job(dataset, alice, 1)
    token = links.token_of(finish(job).links.get())

    def attempt(_: int) -> str:
        try:
            return links.redeem(job.pk, token, CLIENT)[:4]
        except links.LinkUnusable as refusal:
            return refusal.outcome

    # The pool holds ten connections; the other requests wait for one.
    outcomes = in_threads(100, attempt)
    assert outcomes.count("http") == 1
    assert outcomes.count("link_used") == 99
    assert Download.objects.filter(outcome="redeemed").count() == 1
    assert Download.objects.count() == 100


@pytest.mark.parametrize("headers", [{"Sec-Purpose": "prefetch;prerender"}, {"Purpose": "prefetch"}])
def test_head_requests_do_not_consume_a_link(dataset: Dataset, alice: User, headers: dict[str, str]) -> None:
    """A22."""
    job = make_job(dataset, alice, 1)
    path = links.path_of(finish(job).links.get())

    head = APIClient().head(path)
    assert (head.status_code, head["Content-Length"]) == (200, str(len(CONTENT)))
    assert APIClient().get(path, headers=headers).status_code == 204
    assert APIClient().get(path).status_code == 302
    assert APIClient().head(path).status_code == 403


def test_a_modified_link_is_refused(dataset: Dataset, alice: User) -> None:
    job, other = make_job(dataset, alice, 1), make_job(dataset, alice, 1, key="EWR")
    link, others = finish(job).links.get(), finish(other).links.get()
    token = links.token_of(link)

    for path in (
        f"/exports/{job.pk}/download?token={token}x",
        f"/exports/{job.pk}/download?token={token[1:]}",
        f"/exports/{job.pk}/download?token={links.token_of(others)}",
        f"/exports/{job.pk}/download?token=%00",
        f"/exports/{job.pk}/download",
        "/exports/00000000-0000-0000-0000-000000000000/download?token=" + token,
    ):
        assert APIClient().get(path).status_code in (400, 403), path
    assert Link.objects.filter(used_at=None).count() == 2


def test_a_link_expires(dataset: Dataset, alice: User, api: APIClient) -> None:
    """A22, A24."""
    job = make_job(dataset, alice, 1)
    path = links.path_of(finish(job).links.get())
    for model in (Link, Receipt):
        model.objects.update(expires_at="2000-01-01T00:00Z")

    assert APIClient().get(path).json()["code"] == "link_expired"
    fresh = api.post(f"/exports/{job.pk}/link")
    assert (fresh.status_code, fresh.json()["code"]) == (410, "receipt_expired")
    assert api.get(f"/exports/{job.pk}").json()["receipt"]["state"] == "expired"


def test_a_new_link_revokes_the_previous_one(dataset: Dataset, alice: User, api: APIClient) -> None:
    """A24."""
    job = make_job(dataset, alice, 1)
    old = links.path_of(finish(job).links.get())
    fresh = api.post(f"/exports/{job.pk}/link").json()["signedUrl"]

    assert APIClient().get(old).json()["code"] == "link_revoked"
    assert APIClient().get(fresh).status_code == 302
    again = api.post(f"/exports/{job.pk}/link").json()["signedUrl"]
    assert APIClient().get(again).status_code == 302


def test_an_unfinished_job_has_no_link(dataset: Dataset, alice: User, api: APIClient) -> None:
    job = make_job(dataset, alice, 1)
    response = api.post(f"/exports/{job.pk}/link")
    assert (response.status_code, response.json()["code"]) == (409, "not_ready")


# ---- Single files ---------------------------------------------------------------------------------------------------


def test_only_the_owner_downloads_files_of_a_manifest(
    dataset: Dataset, alice: User, staff: User, api: APIClient
) -> None:
    """A21."""
    job = make_job(dataset, alice, 2, delivery="manifest")
    url = json.loads(delivered(finish(job)))["files"][0]["url"]

    answer = api.get(url)
    assert answer.status_code == 302
    with urllib.request.urlopen(answer["Location"]) as reply:  # noqa: S310
        assert reply.read() == CONTENT
    assert APIClient().get(url).status_code == 401
    assert client_of(staff).get(url).status_code == 404  # staff see jobs, not their data
    assert client_of(staff).post(f"/exports/{job.pk}/link").status_code == 404
    assert api.get(f"/exports/{job.pk}/files/JFK/1999-01-01").status_code == 404

    Receipt.objects.update(expires_at="2000-01-01T00:00Z")
    assert api.get(url).json()["code"] == "receipt_expired"


def fetched(url: str) -> bytes:
    with urllib.request.urlopen(url) as reply:  # noqa: S310
        return bytes(reply.read())


def test_a_manifest_delivers_its_bytes_after_files_were_replaced(dataset: Dataset, alice: User, api: APIClient) -> None:
    """A38."""
    job = make_job(dataset, alice, 2, delivery="manifest")
    entries = json.loads(delivered(finish(job)))["files"]
    before = api.get(entries[0]["url"])["Location"]
    storage.put(PATH, b"newer", content_type="text/csv", if_match=job.chunks.get(seq=0).etag)

    for url in (before, api.get(entries[0]["url"])["Location"]):
        assert hashlib.sha256(fetched(url)).hexdigest() == entries[0]["sha256"]
    storage.delete(PATH)
    assert fetched(api.get(entries[0]["url"])["Location"]) == CONTENT


def test_a_manifest_stores_small_files_in_packs_and_large_ones_separately(
    dataset: Dataset, alice: User, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A38: the chunks' objects are deleted before the first request for a file."""
    monkeypatch.setattr(packs, "FILES", 2)
    monkeypatch.setattr(packs, "PACKED_BYTES", 100)
    job = make_job(dataset, alice, 6, delivery="manifest")
    execution.drain()
    for seq, content in ((1, b"a,b\n1,2\n"), (2, b"large\n" * 40), (3, b""), (4, b"large\n" * 20)):
        chunk = job.chunks.get(seq=seq)
        stored = storage.put(chunk.path, content, content_type="text/csv", if_match=chunk.etag)
        File.objects.filter(path=chunk.path).update(etag=stored.etag, sha256=stored.sha256, bytes=stored.size)
    completion.complete(job.pk)
    storage.delete_many(chunk.path for chunk in job.chunks.all())

    receipt = Receipt.objects.get(pk=job.pk)
    folder = bundles.folder_of(receipt.object_key)
    kept = {item.key.removeprefix(f"{folder}/"): item.size for item in storage.list_objects(folder)}
    assert kept.pop(receipt.file_name)
    assert kept == {
        "packs/0": len(CONTENT) + 8,
        "files/2024/03/01/JFK_20240301.csv": 240,
        "files/2024/03/03/JFK_20240303.csv": 120,
        "packs/2": len(CONTENT),
    }
    chunks = list(job.chunks.order_by("seq"))
    for chunk in chunks[::-1]:
        chunk_files.presign(receipt.job, key=chunk.key, effective_date=chunk.effective_date)
    check_delivery(receipt, chunks)


def test_concurrent_first_requests_for_a_file_return_its_bytes(dataset: Dataset, alice: User) -> None:
    """A38."""
    job = make_job(dataset, alice, 3, delivery="manifest")
    job = finish(job).job
    chunk = job.chunks.get(seq=1)
    urls = in_threads(6, lambda _: chunk_files.presign(job, key=chunk.key, effective_date=chunk.effective_date))
    assert {hashlib.sha256(fetched(url)).hexdigest() for url in urls} == {chunk.sha256}


@pytest.mark.parametrize("delivery", ["zip", "manifest"])
def test_a_file_of_a_delivery_that_was_revoked_meanwhile_is_not_kept(
    dataset: Dataset, alice: User, proxy: faulty_s3.Proxy, delivery: str
) -> None:
    """A38: the first request for the file copies it after the delivery was deleted."""
    receipt = finish(make_job(dataset, alice, 3, delivery=delivery))
    chunk = receipt.job.chunks.get(seq=1)

    def revoke() -> None:
        receipts.revoke(receipt)
        storage_cleanup.delete_revoked(receipt)
        connection.close()

    proxy.inject("PUT", "/files/", faulty_s3.first(revoke))
    with pytest.raises(ReceiptExpired):
        chunk_files.presign(receipt.job, key=chunk.key, effective_date=chunk.effective_date)
    assert not list(storage.list_objects(f"_receipts/{receipt.pk}/"))


def test_changed_bytes_of_a_pack_are_not_delivered(dataset: Dataset, alice: User, api: APIClient) -> None:
    """A38: the file is read from its path instead, if the object there has the recorded bytes."""
    job = make_job(dataset, alice, 3, delivery="manifest")
    receipt = finish(job)
    pack = packs.key_of(bundles.folder_of(receipt.object_key), 0)
    head = storage.head(pack)
    assert head
    storage.put(pack, b"x" * head.size, content_type="text/csv", if_match=head.etag)
    storage.delete(job.chunks.get(seq=1).path)
    first, second = (
        api.get(f"/exports/{job.pk}/files/JFK/{chunk.effective_date}") for chunk in job.chunks.order_by("seq")[:2]
    )
    assert fetched(first["Location"]) == CONTENT
    assert (second.status_code, second.json()["code"]) == (410, "file_superseded")


def test_a_file_of_a_zip_is_copied_by_its_first_request(dataset: Dataset, alice: User, api: APIClient) -> None:
    """A38: later exports do not change the bytes of the URL. A file replaced before that is superseded."""
    job = make_job(dataset, alice, 2, delivery="zip")
    finish(job)
    first, second = (
        f"/exports/{job.pk}/files/{chunk.key}/{chunk.effective_date}" for chunk in job.chunks.order_by("seq")
    )
    url = api.get(first)["Location"]
    for chunk in job.chunks.all():
        storage.put(chunk.path, b"newer", content_type="text/csv", if_match=chunk.etag)

    assert fetched(url) == fetched(api.get(first)["Location"]) == CONTENT
    superseded = api.get(second)
    assert (superseded.status_code, superseded.json()["code"]) == (410, "file_superseded")


def test_an_equal_file_with_another_etag_is_not_superseded(dataset: Dataset, alice: User, api: APIClient) -> None:
    job = make_job(dataset, alice, 2, delivery="zip")
    finish(job)
    newer = storage.put(PATH, b"newer", content_type="text/csv", if_match=job.chunks.get(seq=0).etag)
    # Simulates another upload of the same bytes, with another ETag.
    File.objects.filter(path=PATH).update(etag=newer.etag)

    assert fetched(api.get(f"/exports/{job.pk}/files/JFK/2024-02-28")["Location"]) == b"newer"


def test_copies_of_files_are_deleted_with_their_delivery(dataset: Dataset, alice: User) -> None:
    """A26."""
    receipt = finish(make_job(dataset, alice, 2, delivery="manifest"))
    kept = finish(make_job(dataset, alice, 2, delivery="manifest"))
    folder = f"_receipts/{receipt.pk}/"
    assert len(list(storage.list_objects(folder))) == 2
    Receipt.objects.filter(pk=receipt.pk).update(expires_at="2000-01-01T00:00Z")
    storage_cleanup.delete_expired()

    assert list(storage.list_objects(folder)) == []
    assert len(list(storage.list_objects(f"_receipts/{kept.pk}/"))) == 2


@pytest.mark.slow
@pytest.mark.parametrize("refused", ["POST /packs/", "PUT .manifest.json"])
def test_a_failed_attempt_leaves_no_copy_that_was_still_running(
    dataset: Dataset, alice: User, proxy: faulty_s3.Proxy, monkeypatch: pytest.MonkeyPatch, refused: str
) -> None:
    """A26: its folder is deleted after the copies have ended."""
    monkeypatch.setattr(packs, "PACKED_BYTES", len(CONTENT))
    monkeypatch.setattr(batches, "TARGET_SECONDS", 0)  # no batch packs a file before the completion
    job = make_job(dataset, alice, bundles.READERS, delivery="manifest")
    execution.drain()
    chunk = job.chunks.get(seq=bundles.READERS - 1)
    large = storage.put(chunk.path, b"x" * 100, content_type="text/csv", if_match=chunk.etag)
    Chunk.objects.filter(pk=chunk.pk).update(etag=large.etag, sha256=large.sha256, bytes=large.size)
    copying, discarding = threading.Event(), threading.Event()
    discard = bundles.discard

    def discard_and_notify(folder: str) -> None:
        discard(folder)
        discarding.set()

    def copy_slowly() -> None:
        copying.set()
        discarding.wait(2)

    def refuse(handler: faulty_s3.Handler, body: bytes) -> None:
        copying.wait(30)
        faulty_s3.answer_500(handler, body)

    monkeypatch.setattr(bundles, "discard", discard_and_notify)
    # The object needs several parts. The first part of the manifest is sent after the copies have started.
    first_part = 1000 if refused.endswith(".manifest.json") else 10
    monkeypatch.setattr(uploads, "part_bytes", lambda sent: 10 if sent else first_part)
    proxy.inject("PUT", "/files/", faulty_s3.first(copy_slowly))
    method, text = refused.split()
    proxy.inject(method, text, refuse, times=1000)
    completion.complete(job.pk)

    job.refresh_from_db()
    assert (job.status, job.error_code) == ("running", "EXPORT_BUNDLE_FAILED")
    assert copying.is_set()
    let_pass(1)  # for a copy that is still running
    assert not list(storage.list_objects(f"_receipts/{job.pk}/"))


def test_the_sweep_keeps_the_copies_of_live_deliveries(
    dataset: Dataset, alice: User, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A26: it deletes the copies of killed attempts."""
    monkeypatch.setattr(storage_cleanup, "GRACE", timedelta(seconds=-10))
    receipt = finish(make_job(dataset, alice, 2, delivery="manifest"))
    live = {item.key for item in storage.list_objects("_receipts/")}
    died = f"_receipts/{receipt.pk}/1"
    for orphan in (f"{died}/files/a.csv", packs.key_of(died, 0), f"_receipts/{uuid4()}/2/files/b.csv"):
        storage.put(orphan, b"x", content_type="text/csv", metadata=identity.marker())

    assert storage_cleanup.delete_orphans() == 3
    assert {item.key for item in storage.list_objects("_receipts/")} == live


@pytest.mark.parametrize("mark", [{}, {"database": str(uuid4())}], ids=["an earlier release", "this release"])
def test_the_sweep_keeps_the_deliveries_of_another_service_in_the_bucket(
    dataset: Dataset, alice: User, monkeypatch: pytest.MonkeyPatch, settings: LazySettings, mark: dict[str, str]
) -> None:
    """A26: two services that share a bucket must not delete each other's deliveries or abort each other's uploads."""
    monkeypatch.setattr(storage_cleanup, "GRACE", timedelta(seconds=-10))
    receipt = finish(make_job(dataset, alice, 2, delivery="manifest"))
    theirs = f"_receipts/{uuid4()}/1/x.zip"
    storage.put(theirs, b"x", content_type="application/zip", metadata={"job": "x", **mark})
    for key in (theirs, f"_receipts/{receipt.pk}/9/x.zip"):
        storage.client().create_multipart_upload(Bucket=settings.SLUICE.s3_bucket, Key=key)

    try:
        assert storage_cleanup.delete_orphans() == 0
        assert storage_cleanup.abort_abandoned_uploads() == 1
        assert storage.head(theirs) is not None
        (upload,) = storage.list_uploads("_receipts/")
        assert upload.key == theirs
    finally:
        storage.delete(theirs)
        for upload in storage.list_uploads("_receipts/"):
            storage.abort_upload(upload.key, upload.upload_id)


def test_a_file_is_refused_after_its_expiry_by_the_database_clock(
    dataset: Dataset, alice: User, api: APIClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A22: as for links, because `expiresAt` comes from the database, and the web process may have a wrong clock."""
    job = make_job(dataset, alice, 2, delivery="manifest")
    finish(job)
    now = timezone.now()
    url = f"/exports/{job.pk}/files/JFK/2024-02-28"
    monkeypatch.setattr(timezone, "now", lambda: now + timedelta(days=10))
    assert api.get(url).status_code == 302

    Receipt.objects.update(expires_at="2000-01-01T00:00Z")
    monkeypatch.setattr(timezone, "now", lambda: now - timedelta(days=10_000))
    assert api.get(url).json()["code"] == "receipt_expired"


def test_the_state_of_a_receipt_follows_the_database_clock(
    dataset: Dataset, alice: User, api: APIClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A22: a web process whose clock is ahead does not show a valid link as expired."""
    job = make_job(dataset, alice, 2)
    finish(job)
    browser, now = Client(), timezone.now()
    browser.force_login(alice)
    monkeypatch.setattr(timezone, "now", lambda: now + timedelta(minutes=11))
    assert api.get(f"/exports/{job.pk}").json()["receipt"]["state"] == "active"
    assert "data-download" in browser.get("/app/exports").content.decode()


# ---- A storage that refuses writes ----------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_refused_delivery_costs_no_attempt(dataset: Dataset, alice: User, proxy: faulty_s3.Proxy) -> None:
    """A40: this holds for EXPORT_STORAGE_PATIENCE_SECONDS."""
    job = make_job(dataset, alice, 2)
    execution.drain()
    proxy.inject("PUT", str(job.pk), faulty_s3.answer_500, times=1000)
    for _ in range(6):
        complete_now(job)
    job.refresh_from_db()
    assert (job.status, job.completion_attempts) == ("running", 0)
    Job.objects.update(refused_at=timezone.now() - timedelta(seconds=3601))
    for _ in range(4):
        complete_now(job)
    job.refresh_from_db()
    assert (job.status, job.error_code) == ("failed", "EXPORT_BUNDLE_FAILED")

    proxy.faults.clear()
    actions.retry(job)
    completion.complete(job.pk)
    job.refresh_from_db()
    assert job.status == "success"


def test_no_completion_starts_while_the_storage_refuses_writes(
    dataset: Dataset, alice: User, proxy: faulty_s3.Proxy
) -> None:
    """A40."""
    job = make_job(dataset, alice, 2)
    execution.drain()
    storage.suspect()
    proxy.inject("PUT", "", faulty_s3.answer_500, times=1000)
    completion.drain(job.pk)

    assert completion.unclaimed_jobs() == [job.pk]


@pytest.mark.slow
def test_an_attempt_without_a_receipt_leaves_no_copies(
    dataset: Dataset, alice: User, proxy: faulty_s3.Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A40: a delivery with a file that cannot be copied would fill the storage otherwise."""
    monkeypatch.setattr(packs, "FILES", 8)
    monkeypatch.setattr(batches, "TARGET_SECONDS", 0)  # no batch packs a file before the completion
    job = make_job(dataset, alice, 12, delivery="manifest")
    execution.drain()
    folder = f"_receipts/{job.pk}/"
    proxy.inject("PUT", packs.key_of("", 1), faulty_s3.answer_500, times=1000)
    completion.complete(job.pk)
    assert list(storage.list_objects(folder)) == []
    proxy.faults.clear()
    storage.delete(PATH)
    complete_now(job)
    assert list(storage.list_objects(folder)) == []
    execution.drain()
    job.refresh_from_db()
    assert (job.status, job.done) == ("running", 12)

    token = completion.claim(job.pk)
    assert token
    Job.objects.filter(pk=job.pk).update(status="cancelled", completion_token=None, completion_lease_until=None)
    completion.attempt(job, token)
    assert list(storage.list_objects(folder)) == []


@pytest.mark.slow
def test_a_delivery_is_created_again_after_its_worker_was_killed(
    dataset: Dataset, alice: User, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A12, A26: the worker is killed after its first pack. The sweep deletes the objects of the killed attempt."""
    monkeypatch.setattr(packs, "FILES", 2)
    monkeypatch.setattr(batches, "TARGET_SECONDS", 0)  # no batch packs a file before the completion
    monkeypatch.setattr(storage_cleanup, "GRACE", timedelta(seconds=-10))
    job = make_job(dataset, alice, 12, delivery="manifest")
    execution.drain()
    token = completion.claim(job.pk)
    assert token
    folder = bundles.folder_of_attempt(job, token)
    database: Any = connection
    database.close()
    database.close_pool()  # the child must not use its sockets
    child = multiprocessing.get_context("fork").Process(target=make_until_killed, args=(job, token))
    child.start()
    child.join(60)
    assert child.exitcode == -signal.SIGKILL
    left = [item.key for item in storage.list_objects(folder)]
    assert packs.key_of(folder, 0) in left

    complete_now(job)
    assert storage_cleanup.delete_orphans() == len(left)
    assert list(storage.list_objects(folder)) == []
    check_delivery(Receipt.objects.get(pk=job.pk), list(job.chunks.order_by("seq")))


def make_until_killed(job: Job, token: int) -> None:
    def die() -> None:
        if storage.head(packs.key_of(bundles.folder_of_attempt(job, token), 0)):
            os.kill(os.getpid(), signal.SIGKILL)

    bundles.make(attempt_of(job, token, die))


def test_the_pause_of_a_refused_delivery_grows(dataset: Dataset, alice: User, proxy: faulty_s3.Proxy) -> None:
    """A40: otherwise, a file that cannot be copied would be tried every two seconds for an hour."""
    job = make_job(dataset, alice, 2)
    execution.drain()
    proxy.inject("PUT", str(job.pk), faulty_s3.answer_500, times=1000)
    completion.complete(job.pk)
    # If the machine stalls, part of the pause has passed when it is read, so the lower bounds leave a margin.
    for refused_for, at_least, at_most in ((0, -60, 10), (100, 15, 40), (1000, 45, 61)):
        Job.objects.update(refused_at=Now() - timedelta(seconds=refused_for))
        complete_now(job)
        pause = Job.objects.annotate(pause=F("completion_lease_until") - Now()).get().pause
        assert at_least <= pause.total_seconds() <= at_most


def test_a_bundle_that_is_started_again_creates_its_copies_again(
    dataset: Dataset, alice: User, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A38: a file is replaced as often as a chunk may adopt newer files, so the bundle is started again."""
    monkeypatch.setattr(bundles, "ADOPTIONS", 2)
    job = make_job(dataset, alice, 3, delivery="manifest")
    execution.drain()
    last = job.chunks.get(seq=2)
    adopt = adoption.adopt
    adopted: list[int] = []

    def replace_last() -> None:
        head = storage.head(last.path)
        assert head
        stored = storage.put(last.path, b"%d" % len(adopted), content_type="text/csv", if_match=head.etag)
        File.objects.filter(path=last.path).update(etag=stored.etag, sha256=f"{len(adopted):064}", bytes=1, rows=0)

    def replaced_again(token: int, chunk: Chunk) -> Chunk:
        adopted.append(chunk.pk)
        if len(adopted) == 1:
            newer = adopt(token, chunk)
            replace_last()
            return newer
        return adopt(token, chunk)

    monkeypatch.setattr(completion, "adopt", replaced_again)
    replace_last()
    completion.complete(job.pk)

    job.refresh_from_db()
    assert (len(adopted), job.status, job.completion_attempts, job.error_detail) == (2, "success", 1, "")


# ---- Concurrent exports of the same files ---------------------------------------------------------------------------


@pytest.mark.parametrize(("delivery", "chunks"), [("zip", 3), ("single", 3), ("single", 1), ("manifest", 3)])
def test_a_delivery_matches_its_chunks_while_files_are_replaced(
    dataset: Dataset, alice: User, delivery: str, chunks: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A38: files are replaced each time the bundle has started to read one."""
    job = make_job(dataset, alice, chunks, delivery=delivery)
    execution.drain()
    versions = iter(range(100))

    def replace_one() -> None:
        """Write a newer file to the path of a chunk, like another job."""
        if (number := next(versions)) < 6:
            chunk = job.chunks.get(seq=number % chunks)
            content = b"id,name\n" + b"%d,x\n" % number
            head = storage.head(chunk.path)
            assert head
            stored = storage.put(chunk.path, content, content_type="text/csv", if_match=head.etag)
            File.objects.filter(path=chunk.path).update(
                etag=stored.etag, sha256=stored.sha256, rows=1, bytes=stored.size, header_bytes=8
            )

    File.objects.update(header_bytes=8)
    adopt = adoption.adopt

    def replaced_again(token: int, chunk: Chunk) -> Chunk:
        newer = adopt(token, chunk)
        replace_one()
        return newer

    monkeypatch.setattr(completion, "adopt", replaced_again)
    for _ in range(chunks):
        replace_one()
    completion.complete(job.pk)

    job.refresh_from_db()
    assert (job.status, job.completion_attempts) == ("success", 1)
    rows = list(job.chunks.order_by("seq"))
    assert (job.rows, job.bytes) == (sum(c.rows or 0 for c in rows), sum(c.bytes or 0 for c in rows))
    check_delivery(Receipt.objects.get(pk=job.pk), rows)


def check_delivery(receipt: Receipt, chunks: list[Chunk]) -> None:
    """Check that the delivered bytes match the receipt, the manifest, and the chunks."""
    content = delivered(receipt)
    job = receipt.job
    if job.delivery == "zip":
        archive = zipfile.ZipFile(io.BytesIO(content))
        files = {entry["fileName"]: entry["sha256"] for entry in json.loads(archive.read("manifest.json"))["files"]}
        assert {name: hashlib.sha256(archive.read(name)).hexdigest() for name in files} == files
        assert list(files.values()) == [chunk.sha256 for chunk in chunks]
    elif job.delivery == "manifest":
        for chunk, entry in zip(chunks, json.loads(content)["files"], strict=True):
            url = chunk_files.presign(job, key=chunk.key, effective_date=chunk.effective_date)
            assert hashlib.sha256(fetched(url)).hexdigest() == chunk.sha256 == entry["sha256"]
    elif len(chunks) == 1:
        assert receipt.checksum == chunks[0].sha256
    else:
        assert content.count(b"\n") == receipt.rows + 1


@pytest.mark.slow
def test_concurrent_exports_of_the_same_files_do_not_make_jobs_fail(
    dataset: Dataset,
    alice: User,
    source_db: psycopg.Connection,
    settings: LazySettings,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A38: every file is replaced several times a second, each time with different bytes."""
    monkeypatch.setattr(batches, "TARGET_SECONDS", 0)  # no batch packs a file before the completion
    change_settings(settings, export_backoff_base_seconds=0.1, export_backoff_max_seconds=0.1)
    source_db.execute("""
        CREATE FUNCTION data.rows_now(key text, effective_date date) RETURNS TABLE (k text, n int, at text)
        LANGUAGE sql AS $$ SELECT key, n, clock_timestamp()::text FROM generate_series(1, 1 + length(key)) n $$
    """)
    dataset.function = "data.rows_now"
    dataset.save()
    jobs = [make_job(dataset, alice, 12, delivery=delivery) for delivery in ("zip", "manifest", "single")]
    execution.drain()
    ended = threading.Event()

    def export_again() -> None:
        while not ended.is_set():
            make_job(dataset, alice, 12, reuse="never")
            execution.drain()

    def finish_all() -> None:
        try:
            wait_until(lambda: not File.objects.filter(etag__in=jobs[0].chunks.values("etag")).exists())
            for _ in range(60):
                for job in jobs:
                    completion.complete(job.pk)
                    job.refresh_from_db()
                if all(job.has_ended for job in jobs):
                    break
                execution.drain()
                time.sleep(0.05)
        finally:
            ended.set()

    steps = [finish_all, export_again, export_again]
    in_threads(3, lambda number: steps[number]())

    assert [job.status for job in jobs] == ["success"] * 3
    for job in jobs:
        check_delivery(job.receipt, list(job.chunks.order_by("seq")))


@pytest.mark.slow
@pytest.mark.parametrize("base_path", ["things", "moved"])
def test_jobs_of_two_schema_versions_do_not_replace_each_others_files_endlessly(
    dataset: Dataset, alice: User, source_db: psycopg.Connection, base_path: str
) -> None:
    """A38: the dataset is registered again while a job waits. Both versions are exported before either completes."""
    source_db.execute("""
        CREATE FUNCTION data.next_rows(key text, effective_date date) RETURNS TABLE (k text, extra int)
        LANGUAGE sql AS $$ SELECT key, 1 $$
    """)
    older = make_job(dataset, alice, 3, delivery="manifest", reuse="never")
    dataset.function, dataset.schema_version = "data.next_rows", 2
    dataset.save()
    newer = make_job(dataset, alice, 3, delivery="manifest", reuse="never")
    Dataset.objects.filter(pk=dataset.pk).update(base_path=base_path)
    for _ in range(3):
        execution.drain()
        completion.complete(older.pk)
        execution.drain()
        completion.complete(newer.pk)

    for job, header in ((older, b"k,n,d"), (newer, b"k,extra")):
        job.refresh_from_db()
        assert job.status == "success"
        chunks = list(job.chunks.order_by("seq"))
        check_delivery(job.receipt, chunks)
        for chunk in chunks:
            url = chunk_files.presign(job, key=chunk.key, effective_date=chunk.effective_date)
            assert fetched(url).splitlines()[0] == header
    versions = set(Chunk.objects.filter(path__contains="/dataset-").values_list("job__schema_version", flat=True))
    assert len(versions) == 1  # only one of the two jobs uses other paths


@pytest.fixture
def successor(dataset: Dataset, source_db: psycopg.Connection) -> Callable[[], Dataset]:
    """Return a function that moves the dataset to another base path, and registers another dataset at its old one."""
    source_db.execute("""
        CREATE FUNCTION data.other_rows(key text, effective_date date) RETURNS TABLE (k text, other int)
        LANGUAGE sql AS $$ SELECT key, 1 $$
    """)

    def take_over() -> Dataset:
        Dataset.objects.filter(pk=dataset.pk).update(base_path="moved")
        return Dataset.objects.create(name="other", function="data.other_rows", base_path="things")

    return take_over


@pytest.mark.parametrize("reuse", ["if-present", "never"])
def test_files_of_another_dataset_at_the_same_path_are_not_reused(
    dataset: Dataset, alice: User, successor: Callable[[], Dataset], reuse: str
) -> None:
    """A16."""
    finish(make_job(dataset, alice, 1))
    other = successor()
    receipt = finish(make_job(other, alice, 1, reuse=reuse))

    assert delivered(receipt) == b"k,other\nJFK,1\n"


def test_files_of_another_dataset_at_the_same_path_are_no_snapshots(
    dataset: Dataset, alice: User, successor: Callable[[], Dataset], source_db: psycopg.Connection
) -> None:
    """A18."""
    finish(make_job(dataset, alice, 1))
    other = successor()
    source_db.execute("DROP FUNCTION data.other_rows")
    job = make_job(other, alice, 1, reuse="never")
    execution.drain()

    job.refresh_from_db()
    assert (job.status, job.degraded) == ("failed", 0)


def test_jobs_of_two_datasets_at_the_same_path_deliver_their_own_files(
    dataset: Dataset, alice: User, successor: Callable[[], Dataset]
) -> None:
    """A38: while a job of the first dataset waits, its dataset moves, and the second one takes over its base path."""
    first = make_job(dataset, alice, 3, delivery="manifest")
    second = make_job(successor(), alice, 3, delivery="manifest")
    for _ in range(3):
        execution.drain()
        completion.complete(first.pk)
        execution.drain()
        completion.complete(second.pk)

    for job, header in ((first, b"k,n,d"), (second, b"k,other")):
        job.refresh_from_db()
        assert job.status == "success"
        check_delivery(job.receipt, list(job.chunks.order_by("seq")))
        for chunk in job.chunks.all():
            url = chunk_files.presign(job, key=chunk.key, effective_date=chunk.effective_date)
            assert fetched(url).splitlines()[0] == header


def test_an_upload_does_not_adopt_the_file_of_another_dataset(
    dataset: Dataset, alice: User, successor: Callable[[], Dataset]
) -> None:
    """A38: another dataset stores its file at the path while the first dataset's chunk runs."""
    first = make_job(dataset, alice, 1)
    claim = claim_one(backend="slow")
    assert claim
    second = make_job(successor(), alice, 1)
    execution.drain()
    with SourceSession() as session:
        execution.run_batch([claim], WorkerSlot(session, token=claim.token), time.monotonic())
    for job in (first, second):
        for _ in range(3):
            execution.drain()
            completion.complete(job.pk)

    assert delivered(Receipt.objects.get(pk=first.pk)) == CONTENT
    assert delivered(Receipt.objects.get(pk=second.pk)) == b"k,other\nJFK,1\n"


def versioned_data(source_db: psycopg.Connection, dataset: Dataset) -> Callable[[], object]:
    """Make the function return a version number, and return a function that increments it."""
    source_db.execute("""
        CREATE TABLE data.version AS SELECT 1 AS v;
        CREATE FUNCTION data.versioned(key text, effective_date date) RETURNS TABLE (k text, v int)
        LANGUAGE sql STABLE AS $$ SELECT key, v FROM data.version $$
    """)
    dataset.function = "data.versioned"
    dataset.save()
    return partial(source_db.execute, "UPDATE data.version SET v = v + 1")


def test_a_fresh_export_does_not_adopt_data_from_before_its_start(
    dataset: Dataset, alice: User, source_db: psycopg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A16: a slow export has read earlier data, and replaces the file just before the faster one records it."""
    increment = versioned_data(source_db, dataset)
    finish(make_job(dataset, alice, 1))
    make_job(dataset, alice, 1, reuse="never")
    slow = claim_one(backend="slow")
    assert slow
    increment()
    fresh = make_job(dataset, alice, 1, reuse="never")
    finish_chunk = transitions.finish

    def replaced_before(results: list[tuple[Claim, ChunkResult]], **options: Any) -> Any:
        monkeypatch.undo()
        older = storage.put(PATH, b"k,v\nJFK,1\n", content_type="text/csv", if_match=results[0][1].etag)
        progress = finish_chunk(results, **options)
        number = results[0][1].upload_number + 1
        row = result_of(slow, etag=older.etag, bytes=older.size, sha256=older.sha256, rows=1, upload_number=number)
        finish_chunk([(slow, row)])
        return progress

    monkeypatch.setattr(transitions, "finish", replaced_before)
    execution.drain()
    monkeypatch.setattr(adoption, "ADOPT_TIMEOUT_SECONDS", 0.1)
    completion.complete(fresh.pk)

    assert delivered(finish(fresh)) == b"k,v\nJFK,2\n"
    fresh.refresh_from_db()
    assert fresh.completion_attempts == 1


def test_files_recorded_in_another_order_than_stored(
    dataset: Dataset, alice: User, source_db: psycopg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A16: the worker with the older claim replaces the other worker's object, and records its own first."""
    increment = versioned_data(source_db, dataset)
    make_job(dataset, alice, 1, reuse="never")
    older = claim_one(backend="older")
    assert older
    make_job(dataset, alice, 1, reuse="never")
    finish_chunk = transitions.finish
    stored = []

    def finish_after_older(results: list[tuple[Claim, ChunkResult]]) -> Any:
        monkeypatch.undo()
        increment()
        with SourceSession() as session:
            execution.run_batch([older], WorkerSlot(session, token=older.token), time.monotonic())
        stored.append(storage.etag_of(PATH))
        return finish_chunk(results)

    monkeypatch.setattr(transitions, "finish", finish_after_older)
    execution.drain()

    assert File.objects.get().etag == stored[0] == storage.etag_of(PATH)


@pytest.mark.parametrize("existing", [False, True])
def test_a_worker_that_records_late_does_not_restore_a_replaced_file(
    dataset: Dataset, alice: User, source_db: psycopg.Connection, monkeypatch: pytest.MonkeyPatch, *, existing: bool
) -> None:
    """A16: after its upload, a worker waits until another worker has replaced the object and recorded the new one."""
    increment = versioned_data(source_db, dataset)
    if existing:
        finish(make_job(dataset, alice, 1))
    late = make_job(dataset, alice, 1, reuse="never")
    finish_chunk = transitions.finish

    def finish_after_another(results: list[tuple[Claim, ChunkResult]]) -> Any:
        monkeypatch.undo()
        increment()
        make_job(dataset, alice, 1, reuse="never")
        faster = claim_one(backend="faster")
        assert faster
        with SourceSession() as session:
            execution.run_batch([faster], WorkerSlot(session, token=faster.token), time.monotonic())
        return finish_chunk(results)

    increment()
    monkeypatch.setattr(transitions, "finish", finish_after_another)
    execution.drain()

    assert File.objects.get().etag == storage.etag_of(PATH)
    assert delivered(finish(late)) == b"k,v\nJFK,3\n"


def test_an_upload_does_not_adopt_a_file_older_than_the_limit_of_its_dataset(
    dataset: Dataset, alice: User, source_db: psycopg.Connection
) -> None:
    """A16: while a chunk runs, another job stores rows that it read long ago."""
    increment = versioned_data(source_db, dataset)
    Dataset.objects.update(reuse_max_age=60)
    job = make_job(dataset, alice, 1)
    claim = claim_one(backend="first")
    assert claim
    make_job(dataset, alice, 1, reuse="never")
    execution.drain()
    File.objects.update(data_as_of=timezone.now() - timedelta(minutes=5))
    increment()
    with SourceSession() as session:
        execution.run_batch([claim], WorkerSlot(session, token=claim.token), time.monotonic())

    assert delivered(finish(job)) == b"k,v\nJFK,2\n"


def test_a_completion_does_not_adopt_a_file_older_than_the_limit_of_its_dataset(
    dataset: Dataset, alice: User, source_db: psycopg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A16: after a chunk is done, another job replaces its file with rows that it read long ago."""
    increment = versioned_data(source_db, dataset)
    Dataset.objects.update(reuse_max_age=60)
    job = make_job(dataset, alice, 1)
    execution.drain()
    make_job(dataset, alice, 1, reuse="never")
    increment()
    execution.drain()
    File.objects.update(data_as_of=timezone.now() - timedelta(minutes=5))
    increment()
    monkeypatch.setattr(adoption, "ADOPT_TIMEOUT_SECONDS", 0.1)
    completion.complete(job.pk)

    assert delivered(finish(job)) == b"k,v\nJFK,3\n"


def test_adopting_a_file_creates_events(dataset: Dataset, alice: User, source_db: psycopg.Connection) -> None:
    """A25: clients have received the rows, bytes, and checksum of the previous file."""
    increment = versioned_data(source_db, dataset)
    job = make_job(dataset, alice, 2)
    execution.drain()
    increment()
    make_job(dataset, alice, 2, reuse="never")
    execution.drain()
    position = Job.objects.get(pk=job.pk).event_seq
    completion.complete(job.pk)

    update = event_hub.read({job.pk: position})[0][job.pk]
    frames = [(number, content.partition(b"event: ")[2].split()[0].decode()) for number, content in update.frames]
    assert [kind for _, kind in frames] == ["chunk", "chunk", "progress", "status"]
    assert [number for number, _ in frames] == sorted({number for number, _ in frames})
    for chunk in job.chunks.all():
        assert chunk.sha256.encode() in b"".join(content for _, content in update.frames)


def joined_from_two_functions(dataset: Dataset, user: User, source_db: psycopg.Connection, shape: Shape) -> Job:
    """Return a job whose first file was reused, and whose second file lacks the column `n`, before its completion."""
    finish(make_job(dataset, user, 1, shape=shape))
    source_db.execute("DROP FUNCTION data.rows_for")
    source_db.execute("""
        CREATE FUNCTION data.rows_for(key text, effective_date date) RETURNS TABLE (k text, d date)
        LANGUAGE sql AS $$ SELECT key, effective_date $$
    """)
    job = make_job(dataset, user, 2, delivery="single", shape=shape)
    execution.drain()
    return job


@pytest.mark.parametrize("compression", ["none", "gzip"])
def test_files_with_different_columns_are_not_joined(
    dataset: Dataset, alice: User, source_db: psycopg.Connection, compression: str
) -> None:
    """A38: the function was changed in the source without a new schema version."""
    job = joined_from_two_functions(dataset, alice, source_db, Shape(compression=compression))
    completion.complete(job.pk)

    job.refresh_from_db()
    assert (job.status, job.error_code) == ("failed", "EXPORT_BUNDLE_FAILED")
    assert "different columns" in job.error_detail
    assert explain(job.error_code, job.error_detail)["retryable"] is False


@pytest.mark.parametrize("form", ["jsonl", "json"])
def test_json_files_with_different_columns_are_joined_because_each_row_names_them(
    dataset: Dataset, alice: User, source_db: psycopg.Connection, form: str
) -> None:
    """A38."""
    text = delivered(finish(joined_from_two_functions(dataset, alice, source_db, Shape(format=form))))

    documents = json.loads(text) if form == "json" else [{"rows": [json.loads(line) for line in text.splitlines()]}]
    rows = [row for document in documents for row in document["rows"]]
    assert [list(row) for row in rows] == [["k", "n", "d"]] * 3 + [["k", "d"]]
    if form == "json":
        assert [[column["name"] for column in each["columns"]] for each in documents] == [["k", "n", "d"], ["k", "d"]]
