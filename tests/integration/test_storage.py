"""The object storage, on a real SeaweedFS, behind a fault-injecting proxy where requests must fail."""

import gc
import hashlib
import logging
import multiprocessing
import os
import queue
import resource
import subprocess
import sys
import textwrap
import threading
import urllib.error
import urllib.request
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, suppress
from functools import partial
from mmap import mmap
from pathlib import Path
from threading import Barrier
from typing import Any
from urllib.parse import urlsplit
from uuid import uuid4

import pytest
from django.conf import LazySettings
from pydantic import AnyHttpUrl

from config.platform import storage
from config.platform.observability import logs
from config.platform.storage import clients, copies, parts, uploads
from tests.conftest import change_settings
from tests.integration import faulty_s3
from tests.integration.faulty_s3 import Proxy
from tests.waiting import wait_until

PART = parts.PART_BYTES
ALLOCATE = parts.allocate
BLOCK = os.urandom(100_003)  # does not divide the size of a part


class LeaseGone(Exception):
    """The exception that a checkpoint raises when the lease is lost."""


def lease_held() -> None:
    """A checkpoint that raises nothing, because the lease is still held."""


@pytest.fixture
def folder() -> str:
    return f"_receipts/tests/{uuid4()}"


@pytest.fixture(params=["plain", "Zürich & co"])
def key(folder: str, request: pytest.FixtureRequest) -> str:
    """A key that obstore can write, and one that requires boto3."""
    return f"{folder}/{request.param}/2024-02-29.csv"


def content(size: int) -> bytes:
    return (BLOCK * (size // len(BLOCK) + 1))[:size]


def begin(key: str, *, if_match: str | None = None, checkpoint: Callable[[], None] = lease_held) -> storage.Upload:
    return storage.Upload(key, content_type="text/csv", metadata={"job": "7"}, if_match=if_match, checkpoint=checkpoint)


def feed(upload: storage.Upload, data: bytes) -> None:
    for start in range(0, len(data), len(BLOCK)):
        upload.write(data[start : start + len(BLOCK)])


def store(key: str, data: bytes, *, if_match: str | None = None) -> storage.StoredObject:
    with begin(key, if_match=if_match) as upload:
        feed(upload, data)
        return upload.commit()


def fetch(key: str) -> bytes:
    return b"".join(storage.read(key))


SMALL = content(1000)
LARGE = content(2 * PART + 5)
both_sizes = pytest.mark.parametrize("data", [SMALL, LARGE], ids=["one-part", "many-parts"])


# ---- Round trips ----------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("size", [0, 1, 1000, 2 * 1024**2, PART - 1, PART, PART + 1, 5 * PART + 12345])
def test_stores_the_bytes_and_metadata(key: str, size: int) -> None:
    data = content(size)
    stored = store(key, data)
    assert stored.key == key
    assert stored.size == size
    assert stored.sha256 == hashlib.sha256(data).hexdigest()
    assert fetch(key) == data
    head = storage.head(key)
    assert head is not None
    assert (head.etag, head.size, head.metadata["job"]) == (stored.etag, size, "7")


@pytest.mark.parametrize(("size", "is_multipart"), [(0, False), (PART, False), (PART + 1, True)])
def test_a_small_object_takes_one_request(key: str, size: int, is_multipart: bool) -> None:  # noqa: FBT001
    assert ("-" in store(key, content(size)).etag) is is_multipart


@both_sizes
def test_encrypts_and_keeps_the_type(key: str, data: bytes) -> None:
    store(key, data)
    reply = storage.client().head_object(Bucket=bucket(), Key=key)
    assert reply["ServerSideEncryption"] == "AES256"
    assert reply["ContentType"] == "text/csv"


def bucket() -> str:
    return os.environ["S3_BUCKET"]


def test_callers_may_reuse_their_blocks(key: str) -> None:
    block = bytearray(BLOCK)
    with begin(key) as upload:
        for _ in range(200):
            upload.write(memoryview(block))
        block[:] = bytes(len(block))
        upload.commit()
    assert fetch(key) == BLOCK * 200


def test_accepts_a_block_larger_than_a_part(key: str) -> None:
    with begin(key) as upload:
        upload.write(LARGE)
        upload.commit()
    assert fetch(key) == LARGE


def test_part_sizes_grow_so_that_10000_parts_reach_5_tib() -> None:
    sent = count = 0
    while sent < 5 * 1024**4:
        assert parts.part_bytes(sent) <= 5 * 1024**3
        sent += parts.part_bytes(sent)
        count += 1
    assert count < 10_000


@pytest.mark.slow
def test_sends_grown_parts_from_a_file(key: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parts, "PARTS_PER_SIZE", 1)
    data = content(5 * PART + 1)  # parts of 8, 16 and 16 MiB
    assert store(key, data).etag.endswith("-3")
    assert fetch(key) == data


MEMORY = """
    import sys, resource, django
    django.setup()
    from config.platform import storage
    block = bytearray(256 * 1024)
    with storage.Upload(sys.argv[1], content_type="a/b", metadata={}, if_match=None, checkpoint=lambda: None) as upload:
        for _ in range(int(sys.argv[2]) * 4):
            upload.write(block)
        upload.commit()
    print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
"""


@pytest.mark.slow
def test_memory_does_not_grow_with_the_upload(folder: str) -> None:
    small, large = (peak_kib(f"{folder}/{mib}", mib) for mib in (50, 400))
    assert large < small * 1.05


def peak_kib(key: str, mib: int) -> int:
    command = [sys.executable, "-c", textwrap.dedent(MEMORY), key, str(mib)]
    return int(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


# ---- Conditions -----------------------------------------------------------------------------------------------------


@both_sizes
def test_an_unexpected_object_is_not_overwritten(key: str, data: bytes) -> None:
    theirs = store(key, b"theirs")
    with pytest.raises(storage.Conflict) as caught:
        store(key, data)
    assert caught.value.etag == theirs.etag
    assert caught.value.head is not None
    assert caught.value.head.metadata["job"] == "7"
    assert fetch(key) == b"theirs"
    assert list(storage.list_uploads(key)) == []


@both_sizes
def test_replaces_the_expected_object(key: str, data: bytes) -> None:
    old = store(key, b"old")
    store(key, data, if_match=old.etag)
    assert fetch(key) == data


@both_sizes
def test_the_object_of_a_faster_writer_is_not_overwritten(key: str, data: bytes) -> None:
    old = store(key, b"old")
    with begin(key, if_match=old.etag) as stale:
        feed(stale, data)
        newer = store(key, b"newer", if_match=old.etag)
        with pytest.raises(storage.Conflict) as caught:
            stale.commit()
    assert caught.value.etag == newer.etag
    assert fetch(key) == b"newer"
    assert list(storage.list_uploads(key)) == []


@both_sizes
def test_a_missing_object_to_replace_is_reported(key: str, data: bytes) -> None:
    with pytest.raises(storage.Conflict) as caught:
        store(key, data, if_match="d41d8cd98f00b204e9800998ecf8427e")
    assert caught.value.etag is None
    assert storage.head(key) is None


@pytest.mark.slow
@both_sizes
def test_a_conflict_is_resolved_without_sending_parts_again(proxy: Proxy, key: str, data: bytes) -> None:
    store(key, b"left by a dead worker")
    with begin(key) as upload:
        feed(upload, data)
        with pytest.raises(storage.Conflict) as caught:
            upload.commit()
        proxy.inject("PUT", "partNumber=", faulty_s3.answer_500, times=99)
        stored = upload.replace(caught.value)
    assert proxy.faults[0].times == 99
    assert fetch(key) == data
    assert stored.sha256 == hashlib.sha256(data).hexdigest()
    assert list(storage.list_uploads(key)) == []


@both_sizes
def test_creates_the_object_after_a_conflict_with_a_deleted_one(key: str, data: bytes) -> None:
    with begin(key, if_match="d41d8cd98f00b204e9800998ecf8427e") as upload:
        feed(upload, data)
        with pytest.raises(storage.Conflict) as caught:
            upload.commit()
        upload.replace(caught.value)
    assert fetch(key) == data


@both_sizes
def test_an_object_created_after_the_conflict_is_not_replaced(key: str, data: bytes) -> None:
    first = store(key, b"first")
    with begin(key) as upload:
        feed(upload, data)
        with pytest.raises(storage.Conflict) as caught:
            upload.commit()
        store(key, b"second", if_match=first.etag)
        with pytest.raises(storage.Conflict):
            upload.replace(caught.value)
    assert fetch(key) == b"second"


# ---- Aborting -------------------------------------------------------------------------------------------------------


def stop_at(calls: int) -> Callable[[], None]:
    """Return a checkpoint that raises LeaseGone from its n-th call on."""
    countdown = iter(range(calls - 1))

    def check() -> None:
        if next(countdown, None) is None:
            raise LeaseGone

    return check


@pytest.mark.slow
@pytest.mark.parametrize("calls", [1, 2, 3, 5])
def test_a_raising_checkpoint_aborts_the_upload(key: str, calls: int) -> None:
    with pytest.raises(LeaseGone), begin(key, checkpoint=stop_at(calls)) as upload:
        feed(upload, content(12 * PART))
    assert list(storage.list_uploads(key)) == []
    assert storage.head(key) is None


@both_sizes
def test_a_raising_last_checkpoint_prevents_the_commit(key: str, data: bytes) -> None:
    lost = False

    def check() -> None:
        if lost:
            raise LeaseGone

    with begin(key, checkpoint=check) as upload:
        feed(upload, data)
        lost = True
        with pytest.raises(LeaseGone):
            upload.commit()
    assert list(storage.list_uploads(key)) == []
    assert storage.head(key) is None


def test_aborts_when_the_producer_fails(key: str) -> None:
    def produce() -> None:
        with begin(key) as upload:
            feed(upload, LARGE)
            raise LeaseGone

    with pytest.raises(LeaseGone):
        produce()
    assert list(storage.list_uploads(key)) == []


@contextmanager
def no_memory() -> Iterator[None]:
    """Limit the memory of this process, so that it cannot allocate the buffer of another part."""
    limits = resource.getrlimit(resource.RLIMIT_AS)
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + PART // 2, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, limits)


@contextmanager
def no_threads() -> Iterator[None]:
    """Make starting a thread fail: the address space has no room for its stack."""
    size = threading.stack_size(1 << 47)
    try:
        yield
    finally:
        threading.stack_size(size)


@pytest.mark.parametrize(("shortage", "failure"), [(no_memory, OSError), (no_threads, RuntimeError)])
def test_an_upload_that_cannot_start_leaves_nothing_in_the_storage(
    key: str, shortage: Callable[[], AbstractContextManager[None]], failure: type[Exception]
) -> None:
    def produce() -> None:
        with begin(key) as upload:
            feed(upload, content(PART - 1))
            with shortage():
                feed(upload, b"and the first byte of a second part")

    with pytest.raises(failure):
        produce()
    assert list(storage.list_uploads(key)) == []


def test_hanging_requests_of_an_aborted_upload_end(
    proxy: Proxy, key: str, monkeypatch: pytest.MonkeyPatch, buffers: list[weakref.ref[mmap]]
) -> None:
    """Otherwise, each request would keep a thread and a buffer until the worker exits."""
    monkeypatch.setattr(parts, "STOP_SECONDS", 0.2)
    over = threading.Event()
    hanging: list[faulty_s3.Handler] = []

    def hang(handler: faulty_s3.Handler, _body: bytes) -> None:
        hanging.append(handler)
        over.wait(60)
        faulty_s3.answer_500(handler, b"")

    proxy.inject("PUT", "partNumber=", hang, times=9)
    before = set(threading.enumerate())
    with suppress(storage.UploadFailed), begin(key) as upload:
        feed(upload, content(2 * PART + 5))
        senders = [each for each in set(threading.enumerate()) - before if each.name == "upload"]
        wait_until(lambda: len(hanging) == parts.SENDERS)
        upload.abort()
    assert any(each.is_alive() for each in senders)
    over.set()
    wait_until(lambda: not any(each.is_alive() for each in senders))
    del upload
    gc.collect()
    assert sum(len(buffer) for taken in buffers if (buffer := taken()) is not None) < PART


@pytest.fixture
def buffers(monkeypatch: pytest.MonkeyPatch) -> list[weakref.ref[mmap]]:
    """Track the buffers of uploads while they exist."""
    taken: list[weakref.ref[mmap]] = []

    def allocate(size: int, *, preallocate: bool = False) -> mmap:
        buffer = ALLOCATE(size, preallocate=preallocate)
        taken.append(weakref.ref(buffer))
        return buffer

    for module in (parts, uploads):
        monkeypatch.setattr(module, "allocate", allocate)
    return taken


@pytest.mark.slow
@pytest.mark.parametrize(
    "fault",
    [
        (method, text, how)
        for method, text in (("POST", "uploads"), ("PUT", "partNumber=2"), ("POST", "uploadId="))
        for how in (faulty_s3.answer_500, faulty_s3.lose_request, faulty_s3.lose_reply)
    ],
)
@pytest.mark.parametrize("times", [1, 2])
def test_buffers_are_freed_without_garbage_collection(
    proxy: Proxy, key: str, buffers: list[weakref.ref[mmap]], fault: tuple[Any, ...], times: int
) -> None:
    proxy.inject(*fault, times=times)
    gc.disable()
    try:
        with suppress(storage.UploadFailed):
            store(key, LARGE)
        sizes = [len(buffer) for taken in buffers if (buffer := taken()) is not None]
    finally:
        gc.enable()
    assert len(buffers) > 3
    assert sum(sizes) < PART


def test_a_commit_whose_upload_was_aborted_sends_nothing(key: str) -> None:
    """A signal may abort the upload while another thread commits. An aborted upload has no buffer to send."""
    upload: storage.Upload

    def abort() -> None:
        upload.abort()

    upload = storage.Upload(key, content_type="text/plain", metadata={}, if_match=None, checkpoint=abort)
    upload.write(b"content")
    with pytest.raises(ValueError, match="has ended"):
        upload.commit()
    assert storage.head(key) is None


def test_an_abort_during_the_end_of_an_upload_stops_its_threads(key: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A signal may abort the upload just after a thread took the end marker that the other thread also needs."""
    taken, may_continue = threading.Event(), threading.Event()

    class PausingQueue(queue.Queue[Any]):
        def get(self, *given: Any, **options: Any) -> Any:
            item = super().get(*given, **options)
            if item is None:
                taken.set()
                may_continue.wait(10)
            return item

    monkeypatch.setattr(queue, "Queue", PausingQueue)
    upload = parts.Multipart(key, headers={}, digest=hashlib.sha256(), checkpoint=lambda: None)
    with ThreadPoolExecutor(2) as pool:
        pool.submit(upload.finish)
        assert taken.wait(10)
        aborted = pool.submit(upload.abort)
        wait_until(upload._waiting.full)
        may_continue.set()
        aborted.result(10)
    assert not any(thread.is_alive() for thread in upload._senders)


def test_an_abort_is_idempotent_and_final(key: str) -> None:
    upload = begin(key)
    feed(upload, LARGE)
    upload.abort()
    upload.abort()
    with pytest.raises(ValueError, match="ended"):
        upload.write(b"more")
    with pytest.raises(ValueError, match="ended"):
        upload.commit()
    assert storage.head(key) is None


# ---- Failures -------------------------------------------------------------------------------------------------------

PUT_OBJECT = ("PUT", "2024-02-29.csv")
COMPLETE = ("POST", "uploadId=")
CREATE = ("POST", "uploads")
SECOND_PART = ("PUT", "partNumber=2")
FAILURES = [faulty_s3.answer_500, faulty_s3.lose_request, faulty_s3.lose_reply]
failures = pytest.mark.parametrize("failure", FAILURES, ids=lambda failure: failure.__name__)
LAST_REQUESTS = [(SMALL, PUT_OBJECT), (LARGE, COMPLETE)]
last_requests = pytest.mark.parametrize(("data", "request_"), LAST_REQUESTS, ids=["put", "complete"])


@last_requests
@pytest.mark.parametrize("replaces", [False, True])
def test_recognizes_its_object_after_a_lost_reply(
    proxy: Proxy,
    key: str,
    data: bytes,
    request_: tuple[str, str],
    replaces: bool,  # noqa: FBT001
) -> None:
    old = store(key, b"old").etag if replaces else None
    proxy.inject(*request_, faulty_s3.lose_reply)
    stored = store(key, data, if_match=old)
    head = storage.head(key)
    assert head is not None
    assert head.etag == stored.etag
    assert fetch(key) == data


@last_requests
def test_recognizes_its_object_after_an_outage(proxy: Proxy, key: str, data: bytes, request_: tuple[str, str]) -> None:
    """The storage may be unavailable when the object is checked, so the check is tried twice, too."""
    proxy.inject(*request_, faulty_s3.lose_reply)
    proxy.inject("HEAD", "", faulty_s3.lose_request)
    store(key, data)
    assert fetch(key) == data


@last_requests
def test_equal_bytes_of_another_writer_are_a_conflict(
    proxy: Proxy, key: str, data: bytes, request_: tuple[str, str]
) -> None:
    with begin(key) as upload:
        feed(upload, data)
        theirs = store(key, data)
        proxy.inject(*request_, faulty_s3.lose_reply)
        with pytest.raises(storage.Conflict) as caught:
            upload.commit()
    assert caught.value.etag == theirs.etag


@pytest.mark.slow
@last_requests
def test_a_200_response_with_an_error_is_an_error(
    proxy: Proxy, key: str, data: bytes, request_: tuple[str, str]
) -> None:
    proxy.inject(*request_, faulty_s3.answer_200_with_error, times=2)
    with pytest.raises(storage.UploadFailed):
        store(key, data)
    assert storage.head(key) is None
    store(key, data)
    assert fetch(key) == data


@pytest.mark.slow
@failures
@pytest.mark.parametrize(
    ("data", "request_"),
    [*LAST_REQUESTS, (LARGE, CREATE), (LARGE, SECOND_PART)],
    ids=["put", "complete", "create", "part"],
)
def test_retries_once_immediately(
    proxy: Proxy,
    key: str,
    data: bytes,
    request_: tuple[str, str],
    failure: Callable[[faulty_s3.Handler, bytes], None],
) -> None:
    proxy.inject(*request_, failure)
    store(key, data)
    assert fetch(key) == data


@pytest.mark.slow
@pytest.mark.parametrize(
    ("data", "request_"),
    [*LAST_REQUESTS, (LARGE, CREATE), (LARGE, SECOND_PART)],
    ids=["put", "complete", "create", "part"],
)
def test_fails_after_the_second_failure(proxy: Proxy, key: str, data: bytes, request_: tuple[str, str]) -> None:
    proxy.inject(*request_, faulty_s3.answer_500, times=2)
    with pytest.raises(storage.UploadFailed) as caught:
        store(key, data)
    assert caught.value.retryable
    assert storage.head(key) is None
    assert list(storage.list_uploads(key)) == []


def test_fails_if_the_upload_was_aborted(key: str) -> None:
    with begin(key) as upload:
        feed(upload, LARGE)
        for found in storage.list_uploads(key):
            storage.abort_upload(found.key, found.upload_id)
        with pytest.raises(storage.UploadFailed) as caught:
            upload.commit()
    assert caught.value.retryable
    assert storage.head(key) is None


def test_uploads_that_cannot_be_aborted_are_logged_by_the_hash_of_their_path(
    proxy: Proxy, key: str, caplog: pytest.LogCaptureFixture
) -> None:
    proxy.inject("DELETE", "uploadId", faulty_s3.answer_500, times=2)
    with suppress(LeaseGone), begin(key) as upload:
        feed(upload, LARGE)
        raise LeaseGone
    (formatter,) = {one.formatter for one in logging.root.handlers if isinstance(one.formatter, logs.LineFormatter)}
    lines = [formatter.format(record) for record in caplog.records]
    (line,) = [line for line in lines if "upload_not_aborted" in line]
    assert logs.path_hash(key) in line
    assert ".csv" not in line
    storage.abort_upload(key, next(storage.list_uploads(key)).upload_id)


def test_refusals_are_not_retried_and_do_not_reveal_the_path(key: str, settings: LazySettings) -> None:
    env = settings.SLUICE
    change_settings(
        settings,
        s3_access_key_id=env.s3_download_access_key_id,
        s3_secret_access_key=env.s3_download_secret_access_key,
    )
    with pytest.raises(storage.UploadFailed) as caught:
        store(key, SMALL)
    assert not caught.value.retryable
    assert "2024" not in str(caught.value)
    assert "AccessDenied" in str(caught.value)


def test_fails_if_the_server_is_unreachable(key: str, settings: LazySettings) -> None:
    change_settings(settings, s3_endpoint_url=AnyHttpUrl("http://127.0.0.1:9"))
    with pytest.raises(storage.UploadFailed) as caught:
        store(key, SMALL)
    assert caught.value.retryable
    with pytest.raises(storage.StorageError):
        storage.ping()


# ---- Reading --------------------------------------------------------------------------------------------------------


def test_reads_any_range_in_bounded_blocks(key: str) -> None:
    store(key, LARGE)
    blocks = list(storage.read(key, start=PART + 1))
    assert b"".join(blocks) == LARGE[PART + 1 :]
    assert max(map(len, blocks)) <= 256 * 1024


@pytest.mark.parametrize("data", [b"", b"abc"])
def test_reading_at_the_end_returns_nothing(key: str, data: bytes) -> None:
    store(key, data)
    assert list(storage.read(key, start=len(data))) == []
    assert list(storage.read(key, start=len(data) + 1)) == []


def established(port: int) -> int:
    """Count the connections to this port."""
    lines = [line.split() for line in Path("/proc/self/net/tcp").read_text().splitlines()[1:]]
    return sum(to.endswith(f":{port:04X}") and state == "01" for _, _, to, state, *_ in lines)


@pytest.mark.parametrize("taken", [0, 1])
def test_a_transfer_ends_when_it_is_closed(proxy: Proxy, key: str, taken: int) -> None:
    store(key, SMALL)
    blocks = storage.read(key)
    port = urlsplit(proxy.url).port
    assert port
    before = established(port)
    for _ in range(taken):
        next(blocks)
    blocks.close()
    assert list(blocks) == []
    assert established(port) == before - 1 + taken  # the connection of a finished transfer is kept open for reuse


def test_reads_only_the_expected_object(key: str) -> None:
    with pytest.raises(storage.Missing):
        storage.read(key)
    stored = store(key, b"abc")
    assert b"".join(storage.read(key, if_match=stored.etag)) == b"abc"
    with pytest.raises(storage.Changed):
        storage.read(key, if_match="d41d8cd98f00b204e9800998ecf8427e")


@pytest.mark.slow
def test_an_interrupted_transfer_is_resumed(proxy: Proxy, key: str) -> None:
    store(key, LARGE)
    proxy.inject("GET", "2024-02-29.csv", faulty_s3.truncate_reply)
    assert fetch(key) == LARGE


@pytest.mark.slow
def test_a_transfer_is_not_resumed_in_another_object(proxy: Proxy, key: str) -> None:
    stored = store(key, LARGE)
    proxy.inject("GET", "2024-02-29.csv", faulty_s3.truncate_reply)
    blocks = storage.read(key)
    store(key, LARGE[::-1], if_match=stored.etag)
    with pytest.raises(storage.Changed):
        list(blocks)


def test_a_transfer_interrupted_twice_fails(proxy: Proxy, key: str) -> None:
    store(key, LARGE)
    proxy.inject("GET", "2024-02-29.csv", faulty_s3.truncate_reply, times=2)
    with pytest.raises(storage.RequestFailed) as caught:
        fetch(key)
    assert caught.value.retryable


def test_reads_small_objects_as_a_whole(key: str) -> None:
    stored = store(key, SMALL)
    assert storage.read_small(key, size=len(SMALL), if_match=stored.etag) == SMALL
    with pytest.raises(storage.Changed):
        storage.read_small(key, size=len(SMALL), if_match="d41d8cd98f00b204e9800998ecf8427e")
    with pytest.raises(storage.Changed):
        storage.read_small(key, size=len(SMALL) + 1, if_match=stored.etag)
    with pytest.raises(storage.Missing):
        storage.read_small(f"{key}.gz", size=1, if_match=stored.etag)


@pytest.mark.parametrize("failure", [faulty_s3.answer_500, faulty_s3.truncate_reply])
def test_a_failed_read_of_a_small_object_is_repeated(
    proxy: Proxy, key: str, failure: Callable[[faulty_s3.Handler, bytes], None]
) -> None:
    stored = store(key, SMALL)
    proxy.inject("GET", "2024-02-29.csv", failure)
    assert storage.read_small(key, size=len(SMALL), if_match=stored.etag) == SMALL
    proxy.inject("GET", "2024-02-29.csv", failure, times=5)
    with pytest.raises(storage.RequestFailed) as caught:
        storage.read_small(key, size=len(SMALL), if_match=stored.etag)
    assert caught.value.is_outage
    assert key not in str(caught.value)


def test_finds_the_etag_of_an_object(proxy: Proxy, key: str) -> None:
    assert storage.etag_of(key) is None
    stored = store(key, SMALL)
    assert storage.etag_of(key) == stored.etag
    proxy.inject("HEAD", "2024-02-29.csv", faulty_s3.lose_request)
    assert storage.etag_of(key) == stored.etag
    proxy.inject("HEAD", "2024-02-29.csv", faulty_s3.lose_request, times=5)
    with pytest.raises(storage.RequestFailed):
        storage.etag_of(key)


def test_reads_a_byte_range(key: str) -> None:
    stored = store(key, SMALL)
    assert storage.read_span(key, start=10, size=5, if_match=stored.etag) == SMALL[10:15]
    assert storage.read_span(key, start=990, size=50) == SMALL[990:]
    assert storage.read_span(key, start=2000, size=50) == b""


# ---- Copying --------------------------------------------------------------------------------------------------------


def make_copy(source: storage.StoredObject, target: str, *, if_match: str | None = None) -> storage.StoredObject:
    return storage.copy(
        source.key,
        target,
        if_match_source=source.etag,
        size=source.size,
        content_type="application/zip",
        sha256=source.sha256,
        metadata={"job": "8"},
        if_match=if_match,
    )


@pytest.fixture(params=["whole", "parts"])
def copying(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make copies in one request, or in parts."""
    if request.param == "parts":
        monkeypatch.setattr(copies, "COPY_BYTES", PART)


@pytest.mark.usefixtures("copying")
class TestCopy:
    @pytest.mark.slow
    def test_a_copy_has_its_own_key_type_and_metadata(self, folder: str) -> None:
        source = store(f"{folder}/ä b+c", LARGE)
        copied = make_copy(source, f"{folder}/target")
        head = storage.head(copied.key)
        assert head is not None
        assert fetch(copied.key) == LARGE
        assert (head.etag, head.metadata["job"]) == (copied.etag, "8")
        assert (copied.size, copied.sha256) == (source.size, source.sha256)
        reply = storage.client().head_object(Bucket=bucket(), Key=copied.key)
        assert (reply["ServerSideEncryption"], reply["ContentType"]) == ("AES256", "application/zip")

    def test_copies_only_the_expected_object(self, folder: str) -> None:
        source = store(f"{folder}/source", LARGE)
        store(source.key, b"newer", if_match=source.etag)
        with pytest.raises(storage.Changed):
            make_copy(source, f"{folder}/target")
        storage.delete(source.key)
        with pytest.raises(storage.Missing):
            make_copy(source, f"{folder}/target")
        assert storage.head(f"{folder}/target") is None

    @pytest.mark.slow
    def test_detects_a_source_that_changes_during_the_copy(self, proxy: Proxy, folder: str) -> None:
        source = store(f"{folder}/source", LARGE)
        overwrite = partial(store, source.key, LARGE[::-1], if_match=source.etag)
        proxy.inject("PUT", "/target", faulty_s3.first(overwrite))
        with pytest.raises(storage.Changed):
            make_copy(source, f"{folder}/target")
        assert storage.head(f"{folder}/target") is None
        assert list(storage.list_uploads(folder)) == []

    @pytest.mark.slow
    def test_an_unexpected_target_is_not_overwritten(self, folder: str) -> None:
        source, target = store(f"{folder}/source", LARGE), store(f"{folder}/target", b"theirs")
        with pytest.raises(storage.Conflict) as caught:
            make_copy(source, target.key)
        assert caught.value.etag == target.etag
        assert fetch(target.key) == b"theirs"
        assert list(storage.list_uploads(folder)) == []
        make_copy(source, target.key, if_match=target.etag)
        assert fetch(target.key) == LARGE

    @pytest.mark.slow
    @failures
    @pytest.mark.parametrize("method", ["PUT", "POST"])
    def test_retries_once_immediately(
        self, proxy: Proxy, folder: str, method: str, failure: Callable[[faulty_s3.Handler, bytes], None]
    ) -> None:
        source = store(f"{folder}/source", LARGE)
        proxy.inject(method, "/target", failure)
        make_copy(source, f"{folder}/target")
        assert fetch(f"{folder}/target") == LARGE


@pytest.mark.slow
@pytest.mark.parametrize(("method", "text"), [("PUT", "partNumber=2"), ("POST", "uploadId=")])
def test_a_copy_whose_upload_was_aborted_may_be_retried(
    proxy: Proxy, folder: str, monkeypatch: pytest.MonkeyPatch, method: str, text: str
) -> None:
    """It must not look like a copy of a missing object."""
    monkeypatch.setattr(copies, "COPY_BYTES", PART)
    source = store(f"{folder}/source", LARGE)

    def abort() -> None:
        (upload,) = storage.list_uploads(folder)
        storage.abort_upload(upload.key, upload.upload_id)

    proxy.inject(method, text, faulty_s3.first(abort))
    with pytest.raises(storage.UploadFailed) as caught:
        make_copy(source, f"{folder}/target")
    assert caught.value.retryable
    assert proxy.faults[0].times == 0
    assert storage.head(f"{folder}/target") is None
    make_copy(source, f"{folder}/target")
    assert fetch(f"{folder}/target") == LARGE


# ---- Listing and deleting -------------------------------------------------------------------------------------------


def test_lists_objects_under_a_prefix(folder: str) -> None:
    stored = [storage.put(f"{folder}/{name}", name.encode(), content_type="a/b") for name in ("a", "b/c", "ü")]
    storage.put(f"{folder}-other", b"x", content_type="a/b")
    listed = list(storage.list_objects(f"{folder}/"))
    assert [(item.key, item.etag, item.size) for item in listed] == [
        (item.key, item.etag, item.size) for item in stored
    ]
    assert all(abs((storage.now() - item.last_modified).total_seconds()) < 60 for item in listed)


@pytest.mark.slow
def test_lists_and_deletes_more_than_a_page(folder: str) -> None:
    keys = {f"{folder}/{number}" for number in range(1005)}
    for key in keys:
        storage.put(key, b"", content_type="a/b")
    assert {item.key for item in storage.list_objects(f"{folder}/")} == keys
    storage.delete_many(keys | {f"{folder}/never-there"})
    assert list(storage.list_objects(f"{folder}/")) == []
    storage.delete_many([])


def test_deletion_ignores_missing_objects(key: str) -> None:
    stored = store(key, b"abc")
    with pytest.raises(storage.Changed):
        storage.delete(key, if_match="d41d8cd98f00b204e9800998ecf8427e")
    storage.delete(key, if_match=stored.etag)
    assert storage.head(key) is None
    storage.delete(key)


def test_finds_and_aborts_unfinished_uploads(folder: str) -> None:
    for number in range(3):
        storage.client().create_multipart_upload(Bucket=bucket(), Key=f"{folder}/{number}")
    found = list(storage.list_uploads(folder))
    assert {upload.key for upload in found} == {f"{folder}/{number}" for number in range(3)}
    for upload in found:
        storage.abort_upload(upload.key, upload.upload_id)
        storage.abort_upload(upload.key, upload.upload_id)
    assert list(storage.list_uploads(folder)) == []


# ---- Links ----------------------------------------------------------------------------------------------------------


def presign(key: str, *, seconds: int = 60) -> str:
    return storage.presign_download(
        key, seconds=seconds, content_type="text/csv; charset=utf-8", file_name="Zürich 2024.csv"
    )


def test_presigns_a_download_under_its_name_and_type(key: str) -> None:
    store(key, SMALL)
    with urllib.request.urlopen(presign(key)) as reply:  # noqa: S310
        assert reply.read() == SMALL
        assert reply.headers["Content-Type"] == "text/csv; charset=utf-8"
        assert reply.headers["Content-Disposition"] == (
            "attachment; filename=\"Z_rich 2024.csv\"; filename*=UTF-8''Z%C3%BCrich%202024.csv"
        )


@pytest.mark.parametrize("change", [("text", "image"), ("rich", "poor"), ("X-Amz-Expires=60", "X-Amz-Expires=61")])
def test_a_changed_presigned_url_is_refused(key: str, change: tuple[str, str]) -> None:
    store(key, SMALL)
    url = presign(key)
    assert change[0] in url
    assert status_of(url.replace(*change)) == 403


def test_presigns_for_a_limited_time(key: str) -> None:
    store(key, SMALL)
    long, short = presign(key, seconds=60), presign(key, seconds=1)
    assert status_of(long) == 200
    wait_until(lambda: status_of(short) == 403)
    assert status_of(long) == 200


def status_of(url: str) -> int:
    """Return the HTTP status of a download."""
    try:
        with urllib.request.urlopen(url) as reply:  # noqa: S310
            return int(reply.status)
    except urllib.error.HTTPError as error:
        with error:
            return error.code


def test_presigns_with_the_download_keys(key: str, settings: LazySettings) -> None:
    assert f"X-Amz-Credential={os.environ['S3_DOWNLOAD_ACCESS_KEY_ID']}" in presign(key)
    change_settings(settings, s3_download_access_key_id=None, s3_download_secret_access_key=None)
    assert f"X-Amz-Credential={os.environ['S3_ACCESS_KEY_ID']}" in presign(key)


def test_presigns_for_the_public_address(key: str, settings: LazySettings) -> None:
    change_settings(settings, s3_public_endpoint_url=AnyHttpUrl("https://files.example.com/"))
    assert presign(key).startswith(f"https://files.example.com/{bucket()}/_receipts/tests/")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("plain.csv", "filename=\"plain.csv\"; filename*=UTF-8''plain.csv"),
        ('a"; x="b', "filename=\"a__ x=_b\"; filename*=UTF-8''a_%3B%20x%3D_b"),
        ("a\r\nSet-Cookie: b", "filename=\"a__Set-Cookie: b\"; filename*=UTF-8''a__Set-Cookie%3A%20b"),
        ("../../etc/passwd", "filename=\".._.._etc_passwd\"; filename*=UTF-8''.._.._etc_passwd"),
        ("東京.csv", "filename=\"__.csv\"; filename*=UTF-8''%E6%9D%B1%E4%BA%AC.csv"),
        ("100%.csv", "filename=\"100_.csv\"; filename*=UTF-8''100%25.csv"),
        ("", "filename=\"download\"; filename*=UTF-8''download"),
    ],
)
def test_file_names_cannot_leave_their_quotes(name: str, value: str) -> None:
    assert storage.content_disposition(name) == f"attachment; {value}"


# ---- Processes ------------------------------------------------------------------------------------------------------


def test_checks_that_the_bucket_exists(settings: LazySettings) -> None:
    storage.ping()
    change_settings(settings, s3_bucket="another-bucket")
    with pytest.raises(storage.StorageError):
        storage.ping()


@pytest.mark.slow
def test_forks_share_no_connection(key: str) -> None:
    store(key, SMALL)
    ours = storage.client()
    child = multiprocessing.get_context("fork").Process(target=check_fork, args=(key, id(ours)))
    child.start()
    assert fetch(key) == SMALL
    child.join(60)
    assert child.exitcode == 0


def check_fork(key: str, parents: int) -> None:
    assert id(storage.client()) != parents
    assert fetch(key) == SMALL


# ---- Clients --------------------------------------------------------------------------------------------------------


def test_concurrent_threads_share_one_client() -> None:
    """Each client takes about 15 MB, and eight threads check for existing files."""
    profile = clients.main_profile()._replace(read_seconds=61.0)  # a profile without a client
    together = Barrier(8)

    def connect(_number: int) -> object:
        together.wait(60)
        return clients.connect(profile)

    with ThreadPoolExecutor(8) as pool:
        assert len(set(map(id, list(pool.map(connect, range(8)))))) == 1


# ---- Writability ----------------------------------------------------------------------------------------------------


def test_the_probe_of_a_worker_requests_encryption(proxy: Proxy) -> None:
    """A bucket policy may refuse writes that do not, and then no worker would start."""
    requested: list[str | None] = []

    def record(handler: faulty_s3.Handler, body: bytes) -> None:
        requested.append(handler.headers.get("x-amz-server-side-encryption"))
        handler.answer(*handler.forward(body))

    proxy.inject("PUT", "_receipts/probe/", record)
    storage.suspect()
    storage.require_writable()
    assert requested == ["AES256"]
    assert not storage.is_suspected()
