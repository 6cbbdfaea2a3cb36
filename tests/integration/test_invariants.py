"""The checks of invariants in chaos tests. They accept correct rows and objects, and reject each kind of error."""

import json
import threading
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import psycopg
import pytest
from django.contrib.auth.models import User
from django.db import connection
from django.db.models import F, Value
from django.db.models.functions import Concat
from django.utils import timezone

from config.platform import storage
from exports.core.planning import Shape
from exports.delivery import bundles, chunk_files, packs
from exports.jobs import actions, webhook_events
from exports.models import Chunk, Dataset, Delivery, File, Job, Usage, Webhook
from exports.worker import completion, leases
from tests.chaos import changes, file_invariants, invariants, webhook_invariants
from tests.chaos.history.source import CLEAN, TABLES
from tests.chaos.site import DeliberateChanges
from tests.chaos.source import LIVE_CALLS
from tests.integration.factories import fail_chunk, finish, make_job
from tests.integration.receiver import OK, Received, Receiver
from tests.integration.test_batches import _long_time_limits, claim_batch, run  # noqa: F401 - fixtures
from tests.integration.test_leases import in_threads
from tests.waiting import wait_until

pytestmark = pytest.mark.usefixtures("empty_bucket")

ALL = ["export.succeeded", "export.failed", "export.cancelled"]
URL = "http://127.0.0.1:1/hook"


@pytest.fixture(autouse=True)
def _recorded_changes(transactional_db: None) -> Iterator[None]:
    changes.record_changes()
    yield
    with connection.cursor() as cursor:
        cursor.execute("DROP SCHEMA chaos CASCADE")


def run_batches(job: Job, *sizes: int) -> Job:
    storage.require_writable()
    for size in sizes:
        run(claim_batch(size))
    completion.complete(job.pk)
    job.refresh_from_db()
    assert job.status == "success"
    return job


def key_of_copy(job: Job, chunk: Chunk) -> str:
    return bundles.key_of_file(bundles.folder_of(job.receipt.object_key), job, chunk)


def replace(key: str, content: bytes, **metadata: str) -> storage.StoredObject:
    """Replace an object as another process would."""
    head = storage.head(key)
    if_match = head.etag if head else None
    return storage.put(key, content, content_type="text/csv", if_match=if_match, metadata=metadata)


def flip(key: str) -> None:
    """Change the last byte of an object."""
    content = b"".join(storage.read(key))
    replace(key, content[:-1] + bytes([content[-1] ^ 1]))


# ---- Packs ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def packed(alone: Dataset, alice: User) -> Job:
    """A manifest whose first two files are in the pack of the completion, and the others in packs of two batches."""
    return run_batches(make_job(alone, alice, 8, delivery="manifest"), 1, 1, 3, 3)


def pack_of_completion(job: Job) -> str:
    return packs.key_of(bundles.folder_of(job.receipt.object_key), 0)


def pack_of_batch(job: Job) -> str:
    return packs.key_of_batch(job.pk, Chunk.objects.get(job=job, seq=4).pack or 0)


@pytest.mark.parametrize("compression", ["none", "gzip"])
def test_it_accepts_the_files_of_a_manifest(alone: Dataset, alice: User, compression: str) -> None:
    shape = Shape(compression=compression)
    job = run_batches(make_job(alone, alice, 8, delivery="manifest", shape=shape), 1, 1, 3, 3)
    assert [chunk.pack is None for chunk in job.chunks.in_request_order()] == [True] * 2 + [False] * 6
    chunk_files.presign(job, key="JFK", effective_date=job.chunks.in_request_order()[4].effective_date)
    truth = truth_of(job)
    file_invariants.check_delivery(job, truth)
    file_invariants.check_copies(job, truth)


def truth_of(job: Job) -> file_invariants.Truth:
    """Return the checksums of the function's output, as the oracle does."""
    return {
        (chunk.key, chunk.effective_date): file_invariants.sha256(
            "".join(["k,n,d\n", *(f"{chunk.key},{n},{chunk.effective_date}\n" for n in (1, 2, 3))]).encode()
        )
        for chunk in job.chunks.all()
    }


def shift_in_pack(job: Job) -> None:
    Chunk.objects.filter(job=job, seq=4).update(pack_offset=F("pack_offset") + 1)


def swap_in_pack(job: Job) -> None:
    first, second = Chunk.objects.filter(job=job, seq__in=(3, 4)).order_by("seq")
    Chunk.objects.filter(pk=first.pk).update(pack_offset=second.pack_offset)


def name_other_pack(job: Job) -> None:
    Chunk.objects.filter(job=job, seq=4).update(pack=F("pack") + 100_000)


def replace_copy(job: Job) -> None:
    chunk = Chunk.objects.get(job=job, seq=4)
    chunk_files.presign(job, key=chunk.key, effective_date=chunk.effective_date)
    flip(key_of_copy(job, chunk))


def deliver_unknown_file(job: Job) -> None:
    replace(f"{bundles.folder_of(job.receipt.object_key)}/files/other.csv", b"other")


def forget_large_file(job: Job) -> None:
    """Make a file too large for a pack. It has no copy then."""
    Chunk.objects.filter(job=job, seq=1).update(bytes=packs.PACKED_BYTES + 1)


WRONG_COPIES: dict[str, Callable[[Job], Any]] = {
    "the pack of a batch has other bytes": lambda job: flip(pack_of_batch(job)),
    "the pack of a completion has other bytes": lambda job: flip(pack_of_completion(job)),
    "the pack of a batch is missing": lambda job: storage.delete(pack_of_batch(job)),
    "the pack of a completion is missing": lambda job: storage.delete(pack_of_completion(job)),
    "an offset is wrong": shift_in_pack,
    "the offset of another file": swap_in_pack,
    "another pack": name_other_pack,
    "a copy has other bytes": replace_copy,
    "a copy of no chunk": deliver_unknown_file,
    "a large file without a copy": forget_large_file,
}


@pytest.mark.parametrize("wrong", WRONG_COPIES)
def test_it_rejects_wrong_bytes_of_a_manifest(packed: Job, wrong: str) -> None:
    WRONG_COPIES[wrong](packed)
    with pytest.raises(AssertionError, match="I2"):
        file_invariants.check_copies(packed, {})


def test_it_rejects_packed_bytes_that_differ_from_the_oracle(packed: Job) -> None:
    (some,) = {chunk.effective_date for chunk in packed.chunks.filter(seq=4)}
    with pytest.raises(AssertionError, match="I2"):
        file_invariants.check_copies(packed, {**truth_of(packed), ("JFK", some): "0" * 64})


@pytest.mark.parametrize("change", [{"rows": 1}, {"files": 1}, {"degraded": True}, {"checksum": "0"}])
def test_it_rejects_a_receipt_that_differs_from_its_job(packed: Job, change: dict[str, Any]) -> None:
    type(packed.receipt).objects.filter(job=packed).update(**change)
    with pytest.raises(AssertionError):
        file_invariants.check_delivery(packed, {})


# ---- The reuse cache ------------------------------------------------------------------------------------------------


@pytest.fixture
def cached(alone: Dataset, alice: User) -> File:
    """The file of a successful export, as recorded in the reuse cache."""
    run_batches(make_job(alone, alice, 1), 1)
    return File.objects.get()


def check_cache(file: File) -> None:
    job = Job.objects.order_by("created_at").first()
    assert job
    file_invariants.check_reuse_cache(truth_of(job))


def unsuccessful_chunk(file: File, *, started: bool = True) -> Chunk:
    job = make_job(file.dataset, User.objects.get(), 1, reuse="never")
    if started:
        fail_chunk()
    else:
        actions.cancel(job)
    return job.chunks.get()


def test_it_accepts_a_recorded_file(cached: File) -> None:
    check_cache(cached)


def test_it_accepts_a_file_that_an_unsuccessful_chunk_replaced(cached: File) -> None:
    chunk = unsuccessful_chunk(cached)
    replace(cached.path, b"other", chunk=str(chunk.pk))
    check_cache(cached)
    storage.delete(cached.path)  # as by the sweep
    check_cache(cached)


def late_record(file: File) -> None:
    """Replace the file with the upload of a successful chunk, as if an earlier upload had been recorded later."""
    replace(file.path, b"newer", chunk=str(Chunk.objects.get(status="done").pk))


def late_record_beside_a_failure(file: File) -> None:
    """Do the same as `late_record`, beside an unsuccessful chunk at the path, which did not write the object."""
    unsuccessful_chunk(file)
    late_record(file)


def lost_beside_an_unstarted_chunk(file: File) -> None:
    unsuccessful_chunk(file, started=False)
    storage.delete(file.path)


def lost_after_an_earlier_failure(file: File) -> None:
    unsuccessful_chunk(file)
    File.objects.update(data_as_of=timezone.now())
    storage.delete(file.path)


WRONG_FILES: dict[str, Callable[[File], Any]] = {
    "an ETag that no object has": lambda _: File.objects.update(etag="0" * 32),
    "an ETag that no object has, beside a failed chunk": lambda file: (
        unsuccessful_chunk(file), File.objects.update(etag="0" * 32),
    ),
    "an object of no chunk": lambda file: replace(file.path, b"other"),
    "a late record": late_record,
    "a late record beside a failed chunk": late_record_beside_a_failure,
    "no object": lambda file: storage.delete(file.path),
    "no object, and a chunk that never started": lost_beside_an_unstarted_chunk,
    "no object, and a chunk that failed earlier": lost_after_an_earlier_failure,
    "another checksum": lambda _: File.objects.update(sha256="0" * 64),
    "another size": lambda _: File.objects.update(bytes=F("bytes") + 1),
    "other rows than the oracle": lambda file: File.objects.update(
        sha256=file_invariants.sha256(b"k\n"), bytes=2, etag=replace(file.path, b"k\n").etag
    ),
}  # fmt: skip


@pytest.mark.parametrize("wrong", WRONG_FILES)
def test_it_rejects_a_wrong_row_of_the_reuse_cache(cached: File, wrong: str) -> None:
    WRONG_FILES[wrong](cached)
    with pytest.raises(AssertionError, match="I2"):
        check_cache(cached)


# ---- Webhooks -------------------------------------------------------------------------------------------------------


@pytest.fixture
def receiver(alone: Dataset, alice: User) -> Receiver:
    """A receiver with the deliveries of a job that failed, was retried, and failed again."""
    webhook = Webhook.objects.create(user=alice, url=URL, events=ALL, secret="whsec_" + "c2x1aWNl" * 4)
    job = make_job(alone, alice, 1)
    for retry in (False, True):
        if retry:
            actions.retry(job)
        fail_chunk()
        webhook_events.fan_out()
        job.refresh_from_db()
    Delivery.objects.update(status="delivered")
    its = Delivery.objects.filter(webhook=webhook).order_by("seq")
    received = [Received({"webhook-id": str(row.pk)}, row.body.encode()) for row in its]
    return Receiver(URL, OK, received=received)


def check_webhooks(receiver: Receiver, **allowed: Any) -> None:
    webhook_invariants.check([receiver], DeliberateChanges(**allowed))


def change_body(number: int, receiver: Receiver, **facts: Any) -> None:
    """Change the body of a delivery, both in its row and where it arrived."""
    row = Delivery.objects.order_by("seq")[number]
    body = json.loads(row.body)
    (body if facts.keys() <= body.keys() else body["data"]).update(facts)
    Delivery.objects.filter(pk=row.pk).update(body=json.dumps(body))
    receiver.received = [
        Received(each.headers, json.dumps(body).encode()) if each.id == str(row.pk) else each
        for each in receiver.received
    ]


def add_delivery(receiver: Receiver) -> None:
    """Add a delivery of an end that did not happen."""
    row = Delivery.objects.order_by("seq")[1]
    row.pk, row.seq = "00000000-0000-4000-8000-000000000001", 99
    row.body = json.dumps({**json.loads(row.body), "timestamp": "2999-01-01T00:00:00Z"})
    row.status = "failed"
    row.save(force_insert=True)


def lose(receiver: Receiver) -> None:
    Delivery.objects.filter(pk=receiver.received.pop().id).delete()


def swap_numbers(receiver: Receiver) -> None:
    first, second = Delivery.objects.order_by("seq")
    Delivery.objects.filter(pk=first.pk).update(seq=(second.seq or 0) + 1)


WRONG_DELIVERIES: dict[str, Callable[[Receiver], Any]] = {
    "another status": lambda to: change_body(1, to, status="cancelled", type="export.cancelled"),
    "another type than status": lambda _: Delivery.objects.update(type="export.cancelled"),
    "another job": lambda to: change_body(1, to, jobId="00000000-0000-4000-8000-000000000002"),
    "another body than the row": lambda _: Delivery.objects.update(body=Concat("body", Value(" "))),
    "an end that did not happen": add_delivery,
    "no delivery of the last end": lose,
    "no row": lambda _: Delivery.objects.all().delete(),
    "numbers in another order than the events": swap_numbers,
    "arrived in another order": lambda to: to.received.reverse(),
    "delivered, and not arrived": lambda to: to.received.pop(),
}


@pytest.mark.parametrize("deleted", [False, True])
def test_it_accepts_the_deliveries_of_a_job(receiver: Receiver, *, deleted: bool) -> None:
    if deleted:
        Job.objects.all().delete()
        assert set(Delivery.objects.values_list("job", flat=True)) == {None}
    check_webhooks(receiver)
    receiver.received += receiver.received  # repeated attempts
    check_webhooks(receiver)


@pytest.mark.parametrize("deleted", [False, True])
@pytest.mark.parametrize("wrong", WRONG_DELIVERIES)
def test_it_rejects_wrong_deliveries(receiver: Receiver, wrong: str, *, deleted: bool) -> None:
    """Also after the job was deleted, which sets `Delivery.job` to NULL."""
    if deleted:
        Job.objects.all().delete()
    WRONG_DELIVERIES[wrong](receiver)
    with pytest.raises(AssertionError, match="I4"):
        check_webhooks(receiver)


# ---- Charges --------------------------------------------------------------------------------------------------------


def test_it_rejects_a_charge_of_another_day(alone: Dataset, alice: User) -> None:
    """I1: the sum of the days would be right."""
    finish(make_job(alone, alice, 2))
    invariants.check_sums()
    usage = Usage.objects.get()
    Usage.objects.create(user=alice, day=usage.day - timedelta(days=1), chunks=1)
    Usage.objects.update(chunks=1)
    with pytest.raises(AssertionError, match="charged"):
        invariants.check_sums()


# ---- Recorded changes, and calls ------------------------------------------------------------------------------------


def test_it_rejects_a_job_without_recorded_changes(alone: Dataset, alice: User) -> None:
    job = make_job(alone, alice, 1)
    with pytest.raises(AssertionError, match="no status change"):
        changes.check_recorded("job", [job.pk])
    actions.cancel(job)
    changes.check_recorded("job", [job.pk])


@pytest.mark.slow
def test_calls_of_every_dataset_are_counted(source_db: psycopg.Connection, alice: User, slots: int) -> None:
    """I3: also those of the datasets of a soak."""
    source_db.execute(TABLES)
    source_db.execute(CLEAN.format(schema=1))
    dataset = Dataset.objects.create(name="clean", function="data.clean_1", base_path="clean")
    seen = threading.Event()

    def call_or_watch(number: int) -> None:
        if number:
            wait_until(lambda: calls(source_db) == 1, limit=30)
            seen.set()
            return
        for _ in range(5):  # a call takes a second, and the machine may stall for as long
            make_job(dataset, alice, 1, key="SLOW", reuse="never")
            run(leases.claim_batch(backend="test", sizes={}))
            if seen.is_set():
                return

    in_threads(2, call_or_watch)


def calls(source_db: psycopg.Connection) -> int:
    row = source_db.execute(LIVE_CALLS).fetchone()
    assert row
    return int(row[0])
