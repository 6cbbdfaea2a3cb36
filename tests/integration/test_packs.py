"""Packs of batches: objects with copies of small files, written as the chunks end. A26, A38, P4."""

import hashlib
import io
import json
import threading
import time
import zipfile
from collections.abc import Callable
from datetime import timedelta
from uuid import UUID

import psycopg
import pytest
from django.conf import settings
from django.contrib.auth.models import User
from django.db.models.functions import Now

from config.platform import storage
from config.platform.http.problems import Problem
from config.platform.storage import small_puts
from exports.core.errors import PermanentSourceError
from exports.core.planning import Shape
from exports.delivery import bundles, chunk_files, packs
from exports.jobs import actions
from exports.maintenance import after_restore, storage_cleanup
from exports.models import Chunk, Dataset, Job, Receipt
from exports.worker import completion, execution, leases
from tests.integration import faulty_s3, outcomes
from tests.integration.factories import claim_one, make_job
from tests.integration.test_batches import _long_time_limits, claim_batch, run  # noqa: F401 - fixtures
from tests.integration.test_completion import fetched
from tests.integration.test_execution import CONTENT, replace_function
from tests.integration.test_sweeper import violations

pytestmark = pytest.mark.usefixtures("empty_bucket")


@pytest.fixture(autouse=True)
def _writable_storage() -> None:
    """Mark the storage as writable, as after the first write of a worker."""
    storage.require_writable()


@pytest.fixture
def job(alone: Dataset, alice: User) -> Job:
    """A job with a manifest. The first chunk ended alone, and the others ended in two batches."""
    job = make_job(alone, alice, 7, delivery="manifest")
    for size in (1, 3, 3):
        run(claim_batch(size))
    assert packs_of(job) == [None, *[1] * 3, *[2] * 3]
    return job


def packs_of(job: Job) -> list[int | None]:
    """Return the number of the pack of each file, from 1 for the oldest pack. None: the file is in no pack."""
    tokens = list(job.chunks.in_request_order().values_list("pack", flat=True))
    numbers = {token: n for n, token in enumerate(sorted({token for token in tokens if token}), 1)}
    return [numbers.get(token or 0) for token in tokens]


def objects(job: Job) -> set[str]:
    """Return the keys of the delivered objects of a job, without the job's prefix and tokens."""
    keys = [item.key.split("/", 3)[2:] for item in storage.list_objects(f"_receipts/{job.pk}/")]
    return {folder if folder == "batches" else name for folder, name in keys}


def replace_files(job: Job) -> None:
    for chunk in job.chunks.all():
        if head := storage.head(chunk.path):
            storage.put(chunk.path, b"newer", content_type="text/csv", if_match=head.etag)


def file_of(chunk: Chunk) -> bytes:
    job = Job.objects.get(pk=chunk.job_id)
    return fetched(chunk_files.presign(job, key=chunk.key, effective_date=chunk.effective_date))


def check_files(job: Job) -> None:
    """Check that every file has its recorded checksum after all objects at the files' paths were replaced."""
    replace_files(job)
    for chunk in job.chunks.all():
        assert hashlib.sha256(file_of(chunk)).hexdigest() == chunk.sha256


def test_a_manifest_keeps_files_of_batches_that_were_replaced(job: Job) -> None:
    """A38: the completion reads none of them again."""
    for chunk in job.chunks.filter(pack__isnull=False):
        storage.delete(chunk.path)
    completion.complete(job.pk)

    job.refresh_from_db()
    assert job.status == "success"
    assert objects(job) == {"batches", f"{bundles.base_name(job)}.manifest.json", "packs/0"}
    sizes = {
        item.key.split("/")[2]: item.size
        for item in storage.list_objects(f"_receipts/{job.pk}/")
        if "packs/0" in item.key
    }
    assert list(sizes.values()) == [len(CONTENT)]  # only the file of the chunk that ended alone
    check_files(job)


def test_large_files_are_in_no_pack(alone: Dataset, alice: User, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packs, "PACKED_BYTES", len(CONTENT) - 1)
    job = make_job(alone, alice, 3, delivery="manifest")
    run(claim_batch(3))
    assert packs_of(job) == [None] * 3
    completion.complete(job.pk)
    check_files(job)


def test_a_pack_fits_one_request(alone: Dataset, alice: User, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packs, "BATCH_BYTES", 2 * packs.longest_frame(len(CONTENT)))
    job = make_job(alone, alice, 6, delivery="manifest")
    run(claim_batch(6))
    packed = packs_of(job)
    assert packed.count(1) >= 2
    assert packed[-1] is None
    completion.complete(job.pk)
    check_files(job)


@pytest.fixture
def refused(proxy: faulty_s3.Proxy) -> None:
    """An object storage that refuses packs of batches."""
    proxy.inject("PUT", "/batches/", faulty_s3.answer_500, times=1000)


@pytest.mark.usefixtures("refused")
def test_a_failure_to_store_a_pack_fails_no_chunk(alone: Dataset, alice: User) -> None:
    """The completion packs the files instead."""
    job = make_job(alone, alice, 3, delivery="manifest")
    run(claim_batch(3))
    assert packs_of(job) == [None] * 3
    assert set(job.chunks.values_list("status", "attempts")) == {("done", 1)}
    completion.complete(job.pk)
    assert objects(job) == {f"{bundles.base_name(job)}.manifest.json", "packs/0"}
    check_files(job)


@pytest.mark.slow
def test_a_hanging_storage_loses_no_lease(
    alone: Dataset, alice: User, proxy: faulty_s3.Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A16: a worker waits for a pack only for a few seconds, and the next batch does not try to store one."""
    monkeypatch.setattr(small_puts, "TIMEOUT_SECONDS", 1)
    held: list[bytes] = []
    over = threading.Event()

    def hang(handler: faulty_s3.Handler, body: bytes) -> None:
        held.append(body)
        over.wait(60)
        handler.close_connection = True

    proxy.inject("PUT", "/batches/", hang, times=1000)
    job = make_job(alone, alice, 7, delivery="manifest")
    began = time.monotonic()
    for size in (3, 3):
        run(claim_batch(size))
    assert time.monotonic() - began < 30  # the storage hangs for 60 s
    over.set()
    assert len(held) == 1
    storage.require_writable()
    assert not storage.is_suspected()
    assert packs_of(job) == [None] * 7
    assert set(job.chunks.filter(status="done").values_list("attempts", flat=True)) == {1}


@pytest.mark.parametrize("garbage", [b"x" * 4000, b""], ids=["other bytes", "nothing"])
def test_other_bytes_of_a_pack_are_not_delivered(job: Job, garbage: bytes) -> None:
    """A38: the file is delivered from its path if it is unchanged there."""
    completion.complete(job.pk)
    chunk = job.chunks.get(seq=2)
    key = packs.key_of_batch(job.pk, chunk.pack or 0)
    head = storage.head(key)
    assert head
    storage.put(key, garbage, content_type="text/csv", if_match=head.etag)

    assert hashlib.sha256(file_of(chunk)).hexdigest() == chunk.sha256
    replace_files(job)
    with pytest.raises(Problem, match="replaced"):
        file_of(job.chunks.get(seq=3))


def test_the_completion_packs_files_of_a_lost_pack_again(job: Job) -> None:
    """A28, A38: a pack can be lost when the database is restored from a backup."""
    storage.delete(packs.key_of_batch(job.pk, job.chunks.get(seq=1).pack or 0))
    completion.complete(job.pk)
    assert packs_of(job) == [None] * 4 + [1] * 3
    check_files(job)


def test_the_completion_packs_files_of_old_packs_again(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    """A38: the bucket's lifecycle rule would delete such a pack before the delivery expires."""
    monkeypatch.setattr(packs, "MAX_BATCH_AGE", timedelta(minutes=-1))
    completion.complete(job.pk)
    assert packs_of(job) == [None] * 7
    for item in list(storage.list_objects(f"{packs.folder_of_batches(job.pk)}/")):
        storage.delete(item.key)
    check_files(job)


def test_a_stale_completion_changes_no_pack(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    """A12: another worker may already have issued a receipt."""
    token = completion.claim(job.pk)
    assert token
    monkeypatch.setattr(packs, "MAX_BATCH_AGE", timedelta(minutes=-1))
    packs.unset_lost_packs(job.pk, token - 1)
    assert packs_of(job) == [None, *[1] * 3, *[2] * 3]
    packs.unset_lost_packs(job.pk, token)
    assert packs_of(job) == [None] * 7


def test_a_file_that_is_exported_again_leaves_its_pack(job: Job) -> None:
    token = completion.claim(job.pk)
    assert token
    chunk = job.chunks.get(seq=2)
    Chunk.objects.filter(pk=chunk.pk).update(pack=None)  # as if the pack had not been stored
    storage.delete(chunk.path)
    storage.delete(job.chunks.get(seq=3).path)  # this file is still in the pack
    assert completion.export_missing_again(job, token) == 1
    assert list(job.chunks.filter(status="pending").values_list("seq", "pack", "pack_offset")) == [(2, None, None)]

    execution.drain()
    completion.complete(job.pk)
    check_files(job)


def test_packs_are_deleted_with_their_delivery(job: Job) -> None:
    """A26."""
    completion.complete(job.pk)
    Receipt.objects.filter(pk=job.pk).update(expires_at="2000-01-01T00:00Z")
    storage_cleanup.delete_expired()
    assert objects(job) == set()


def test_no_completion_uses_a_pack_that_the_sweep_may_delete() -> None:
    """A38."""
    longest_task = timedelta(seconds=settings.CELERY_TASK_TIME_LIMIT)
    assert packs.MAX_BATCH_AGE + longest_task < storage_cleanup.GRACE - timedelta(minutes=10)


def test_the_sweep_deletes_packs_without_a_receipt(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    """A26: no receipt has promised an expiry of these packs, so they are not counted as violations."""
    assert storage_cleanup.delete_orphans() == 0  # the completion may use recent packs
    assert after_restore.find_unreferenced_deliveries(delete=False) == 0
    completion.complete(job.pk)
    monkeypatch.setattr(storage_cleanup, "GRACE", timedelta(seconds=-10))
    assert storage_cleanup.delete_orphans() == 0
    check_files(job)

    Receipt.objects.filter(pk=job.pk).update(deleted_at=Now())
    for item in list(storage.list_objects(f"_receipts/{job.pk}/")):
        if not packs.is_of_batch(item.key):
            storage.delete(item.key)
    before = violations()
    assert storage_cleanup.delete_orphans() == 2
    assert objects(job) == set()
    assert violations() == before


def test_a_retry_keeps_the_packs_of_finished_chunks(alone: Dataset, alice: User) -> None:
    job = make_job(alone, alice, 4, delivery="manifest")
    run(claim_batch(3))
    (claim,) = claim_batch(1)
    outcomes.fail(claim, PermanentSourceError("SQLSTATE 42883"), delay=None)
    actions.retry(job)
    assert claim_one(backend="test") is not None
    assert packs_of(job) == [1, 1, 1, None]


# ---- Reused files ---------------------------------------------------------------------------------------------------


def test_reused_files_are_packed_with_one_request_for_each(job: Job, alice: User, proxy: faulty_s3.Proxy) -> None:
    """A38, P9."""
    requests = recorded(proxy, "GET", "HEAD")
    again = make_job(job.dataset, alice, 7, delivery="manifest")
    execution.drain()
    assert len(requests) == 7
    again.refresh_from_db()
    assert (again.done, again.reused) == (7, 7)
    assert packs_of(again) == [1] * 7
    for chunk in again.chunks.all():
        storage.delete(chunk.path)
    completion.complete(again.pk)
    assert objects(again) == {"batches", f"{bundles.base_name(again)}.manifest.json"}
    check_files(again)


def test_reused_files_that_changed_are_exported(job: Job, alice: User) -> None:
    changed, gone = job.chunks.get(seq=1), job.chunks.get(seq=5)
    storage.put(changed.path, b"newer", content_type="text/csv", if_match=changed.etag)
    storage.delete(gone.path)
    again = make_job(job.dataset, alice, 7, delivery="manifest")
    execution.drain()
    assert list(again.chunks.in_request_order().values_list("source", flat=True)) == [
        "live" if seq in (1, 5) else "reused" for seq in range(7)
    ]
    completion.complete(again.pk)
    check_files(again)


def test_a_pack_of_reused_files_takes_bounded_memory(job: Job, alice: User, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packs, "BATCH_BYTES", 3 * len(CONTENT))
    again = make_job(job.dataset, alice, 7, delivery="manifest")
    claims = leases.claim_reusable(batch=10)
    assert list(execution.for_packs(claims)) == [True] * 3 + [False] * 4
    storage.suspect()
    assert list(execution.for_packs(claims)) == [False] * 7, "files were read that cannot be packed"
    outcomes.release(claims)
    execution.drain()
    completion.complete(again.pk)
    check_files(again)


# ---- Zips and joined files ------------------------------------------------------------------------------------------


@pytest.fixture(params=["zip", "single"])
def joined(request: pytest.FixtureRequest, alone: Dataset, alice: User) -> Job:
    """A job with a zip or a joined file. The first chunk ended alone, and the others ended in two batches."""
    job = make_job(alone, alice, 7, delivery=request.param)
    for size in (1, 3, 3):
        run(claim_batch(size))
    assert packs_of(job) == [None, *[1] * 3, *[2] * 3]
    return job


@pytest.fixture
def reads(proxy: faulty_s3.Proxy) -> list[str]:
    """The paths of the GET requests for files and packs since this fixture was requested."""
    return recorded(proxy, "GET")


def recorded(proxy: faulty_s3.Proxy, *methods: str) -> list[str]:
    """Return a list to which the paths of requests for files and packs are added from now on."""
    paths: list[str] = []

    def record(handler: faulty_s3.Handler, body: bytes) -> None:
        paths.append(handler.path.partition("?")[0])
        handler.answer(*handler.forward(body))

    for method in methods:
        for text in ("/things/", "/batches/"):
            proxy.inject(method, text, record, times=1000)
    return paths


def check_delivery(job: Job, expected: list[bytes]) -> None:
    """Complete the job, and check that its delivery consists of these files, whose first line is the header."""
    completion.complete(job.pk)
    job.refresh_from_db()
    assert job.status == "success"
    delivered = b"".join(storage.read(Receipt.objects.get(pk=job.pk).object_key))
    if job.delivery == "zip":
        archive = zipfile.ZipFile(io.BytesIO(delivered))
        assert [archive.read(name) for name in archive.namelist()[:-1]] == expected
        manifest = json.loads(archive.read("manifest.json"))
        assert [file["sha256"] for file in manifest["files"]] == [hashlib.sha256(file).hexdigest() for file in expected]
    else:
        header = expected[0].splitlines(keepends=True)[0]
        assert delivered == header + b"".join(file.removeprefix(header) for file in expected)


def files_of(job: Job) -> list[bytes]:
    return [b"".join(storage.read(chunk.path)) for chunk in job.chunks.in_request_order()]


def test_zips_and_joined_files_are_made_from_packs(joined: Job, reads: list[str]) -> None:
    """A38, P4: each pack takes one request. Replaced and deleted files are neither adopted nor exported again."""
    expected = files_of(joined)
    first, *others = joined.chunks.in_request_order()
    storage.put(others[0].path, b"newer", content_type="text/csv", if_match=others[0].etag)
    storage.delete(others[1].path)
    reads.clear()

    check_delivery(joined, expected)
    (read,) = [path for path in reads if "/batches/" not in path]
    assert read.endswith(f"/{first.path}")
    assert len(reads) == 3


def test_single_files_of_a_zip_are_extracted_from_its_packs(joined: Job) -> None:
    """A38: only the file that is in no pack is lost when it is replaced."""
    completion.complete(joined.pk)
    replace_files(joined)
    first, *others = joined.chunks.in_request_order()
    for chunk in others:
        assert hashlib.sha256(file_of(chunk)).hexdigest() == chunk.sha256
    with pytest.raises(Problem, match="replaced"):
        file_of(first)


@pytest.mark.parametrize("garbage", [b"x" * 4000, b""], ids=["other bytes", "nothing"])
def test_other_bytes_of_a_pack_are_not_joined(joined: Job, garbage: bytes) -> None:
    """A38: the files are read from their paths."""
    expected = files_of(joined)
    key = packs.key_of_batch(joined.pk, joined.chunks.get(seq=2).pack or 0)
    head = storage.head(key)
    assert head
    storage.put(key, garbage, content_type="text/csv", if_match=head.etag)
    check_delivery(joined, expected)


def test_a_frame_of_another_file_is_not_joined(joined: Job) -> None:
    """A38: all files of this job have the same size."""
    expected = files_of(joined)
    position = joined.chunks.get(seq=1).pack_offset
    assert joined.chunks.filter(seq=2).update(pack_offset=position) == 1
    check_delivery(joined, expected)


def test_a_pack_that_is_deleted_during_the_completion_is_not_needed(
    joined: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected, unset = files_of(joined), packs.unset_lost_packs

    def unset_and_delete(job_id: UUID, token: int) -> None:
        unset(job_id, token)
        storage.delete(packs.key_of_batch(joined.pk, joined.chunks.get(seq=2).pack or 0))

    monkeypatch.setattr(packs, "unset_lost_packs", unset_and_delete)
    check_delivery(joined, expected)


@pytest.mark.parametrize("fault", [faulty_s3.truncate_reply, faulty_s3.lose_reply])
def test_an_interrupted_read_of_a_pack_is_repeated(
    joined: Job, proxy: faulty_s3.Proxy, fault: Callable[[faulty_s3.Handler, bytes], None]
) -> None:
    """A40: neither the files at the paths nor another attempt is needed."""
    expected = files_of(joined)
    for chunk in joined.chunks.filter(seq__gt=0):
        storage.delete(chunk.path)
    proxy.inject("GET", "/batches/", fault)
    check_delivery(joined, expected)
    assert not storage.is_suspected()

    proxy.inject("GET", "/batches/", fault)
    assert file_of(joined.chunks.get(seq=2)) == expected[2]


@pytest.mark.parametrize("shape", [Shape(compression="zstd"), Shape(format="json"), Shape(format="parquet")])
def test_other_formats_are_joined_from_packs(alone: Dataset, alice: User, shape: Shape) -> None:
    """A joined file has the same bytes as one that is made from the files at the paths."""
    delivered = []
    for is_packed in (False, True):
        job = make_job(alone, alice, 3, delivery="single", shape=shape, reuse="never")
        for size in [3] if is_packed else [1, 1, 1]:
            run(claim_batch(size))
        assert packs_of(job) == ([1] * 3 if is_packed else [None] * 3)
        if is_packed:
            for chunk in job.chunks.all():
                storage.delete(chunk.path)
        completion.complete(job.pk)
        delivered.append(b"".join(storage.read(Receipt.objects.get(pk=job.pk).object_key)))
    assert delivered[0] == delivered[1]


def test_a_zip_adopts_a_newer_file_if_its_pack_cannot_be_used(
    joined: Job, alice: User, source_db: psycopg.Connection
) -> None:
    """A38: the chunk leaves the pack, which contains its older file."""
    chunk = joined.chunks.get(seq=2)
    replace_function(source_db, "RETURN QUERY SELECT key, 7, effective_date;")
    make_job(joined.dataset, alice, pairs=[chunk.pair], reuse="never")
    execution.drain()
    key = packs.key_of_batch(joined.pk, chunk.pack or 0)
    head = storage.head(key)
    assert head
    storage.put(key, b"", content_type=packs.CONTENT_TYPE, if_match=head.etag)

    expected = files_of(joined)
    assert b",7," in expected[2]
    check_delivery(joined, expected)
    assert packs_of(joined) == [None, 1, None, 1, *[2] * 3]


@pytest.mark.parametrize("garbage", [b"x" * 4000, None], ids=["other bytes", "no object"])
def test_a_file_that_neither_a_pack_nor_its_path_has_is_exported_again(joined: Job, garbage: bytes | None) -> None:
    """A28, A38: the object storage can lose objects, or be restored to an earlier state."""
    expected = files_of(joined)
    chunk = joined.chunks.get(seq=2)
    key = packs.key_of_batch(joined.pk, chunk.pack or 0)
    storage.delete(key)
    if garbage:
        storage.put(key, garbage, content_type=packs.CONTENT_TYPE, if_match=None)
    storage.delete(chunk.path)
    completion.complete(joined.pk)
    assert list(joined.chunks.filter(status="pending").values_list("seq", flat=True)) == [2]
    execution.drain()
    check_delivery(joined, expected)
