"""Multipart uploads: parts are buffered in memory, or in unnamed files if they are large, and sent by threads."""

from __future__ import annotations

import contextlib
import mmap
import os
import queue
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import structlog

from config.platform.observability import logs, tracing
from config.platform.storage.clients import bucket, client
from config.platform.storage.errors import UploadFailed, request
from config.platform.storage.objects import abort_quietly, bare

if TYPE_CHECKING:
    from hashlib import _Hash

    from mypy_boto3_s3.type_defs import CompletedPartTypeDef, UploadPartOutputTypeDef

log = structlog.get_logger(__name__)

MIB = 1024 * 1024
PART_BYTES = 8 * MIB
# Part sizes double after 1,700 parts (13 GiB), and then each time the object has doubled: 5 TiB need 8,930 parts of at
# most 4 GiB. S3 allows 10,000 parts of at most 5 GiB.
PARTS_PER_SIZE = 1700
# Two threads, because a connection is idle while the server processes a part. With the part that is being filled and
# one in the queue, four parts are in memory: 32 MiB.
SENDERS = 2
QUEUE_SIZE = 1
SLICE_BYTES = MIB  # sent at once; the connect timeout applies to each slice
STOP_SECONDS = 30


def part_bytes(sent: int) -> int:
    """Return the size of the next part after `sent` bytes."""
    return PART_BYTES << (sent // (PARTS_PER_SIZE * PART_BYTES)).bit_length()


POPULATE = getattr(mmap, "MAP_POPULATE", 0)  # Linux


def allocate(size: int, *, preallocate: bool = False) -> mmap.mmap:
    """Return a buffer, whose memory is allocated by writes or, with `preallocate`, immediately.

    Large buffers are unnamed files. Raises OSError if the disk is full; otherwise, a write to the buffer would cause a
    SIGBUS.
    """
    if size <= PART_BYTES:
        return mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | (POPULATE if preallocate else 0))
    with tempfile.TemporaryFile() as file:
        os.posix_fallocate(file.fileno(), 0, size)
        return mmap.mmap(file.fileno(), size)


NOTHING = allocate(1)  # replaces a released buffer


class BufferFile:
    """A file-like view of a buffer, so that botocore sends it without copies.

    urllib3 reads 16 KiB at a time; `read` returns larger slices regardless of the requested size.
    """

    def __init__(self, view: memoryview) -> None:
        self._view = view
        self._position = 0

    def __len__(self) -> int:
        return len(self._view)

    def read(self, _size: int = -1) -> memoryview:
        block = self._view[self._position : self._position + SLICE_BYTES]
        self._position += len(block)
        return block

    def seek(self, position: int, whence: int = os.SEEK_SET) -> int:
        base = {os.SEEK_SET: 0, os.SEEK_CUR: self._position, os.SEEK_END: len(self._view)}[whence]
        self._position = base + position
        return self._position

    def tell(self) -> int:
        return self._position

    def release(self) -> None:
        """Release the memory, even if an error of the connection keeps a reference to this file."""
        self._view = memoryview(b"")


@contextmanager
def body(view: memoryview) -> Iterator[Any]:
    """Yield a request's body. botocore sends `Expect: 100-continue` for files, but not for bytearrays."""
    if len(view) <= SLICE_BYTES:
        yield bytearray(view)
        return
    file = BufferFile(view)
    try:
        yield file
    finally:
        file.release()


@dataclass(slots=True)
class UploadPart:
    number: int
    buffer: mmap.mmap
    used: int

    @property
    def view(self) -> memoryview:
        return memoryview(self.buffer)[: self.used]

    def take_buffer(self) -> mmap.mmap:
        """Return the buffer and drop the reference to it, because exceptions keep the objects of their frames alive."""
        buffer, self.buffer = self.buffer, NOTHING
        return buffer


def clear_locals(error: BaseException | None) -> None:
    """Clear the local variables of an exception's frames, which keep buffers alive."""
    while error is not None:
        traceback.clear_frames(error.__traceback__)
        error = error.__context__


def empty(kept: queue.Queue[Any] | queue.SimpleQueue[Any]) -> None:
    with contextlib.suppress(queue.Empty):
        while True:
            kept.get_nowait()


class Multipart:
    """Multipart upload that sends parts, two at a time, and hashes them in order.

    An error in a thread stops the upload; `send` and `finish` raise it. `spare` returns a buffer for the next part.
    """

    def __init__(self, key: str, *, headers: Mapping[str, Any], digest: _Hash, checkpoint: Callable[[], None]) -> None:
        checkpoint()
        self.key = key
        self._digest = digest
        self._checkpoint = checkpoint
        self._numbers = 0
        self._etags: dict[int, str] = {}
        self._waiting: queue.Queue[UploadPart | None] = queue.Queue(QUEUE_SIZE)
        # Preallocated, so that memory does not depend on the size of the object.
        self._spare: queue.SimpleQueue[mmap.mmap] = queue.SimpleQueue()
        for _ in range(SENDERS + QUEUE_SIZE):
            self._spare.put(allocate(PART_BYTES, preallocate=True))
        self._turn = threading.Lock()
        self._failure: BaseException | None = None
        self._aborted = False
        self._senders: list[threading.Thread] = []
        self.id = ""
        try:
            # After all allocations: if one failed, an upload with an unknown ID could not be aborted.
            self.id = request(lambda: client().create_multipart_upload(Bucket=bucket(), Key=key, **headers))["UploadId"]
            for _ in range(SENDERS):
                thread = threading.Thread(target=tracing.in_context(self._work), name="upload", daemon=True)
                thread.start()
                self._senders.append(thread)
        except BaseException:
            self.abort()
            raise

    def send(self, buffer: mmap.mmap, used: int) -> None:
        """Queue a part. Blocks while the queue is full."""
        self.check()
        self._numbers += 1
        self._waiting.put(UploadPart(self._numbers, buffer, used))

    def spare(self, size: int) -> mmap.mmap:
        """Return a buffer of this size. Prefer a used one, because its memory is already mapped."""
        with contextlib.suppress(queue.Empty):
            buffer = self._spare.get_nowait()
            if len(buffer) == size:
                return buffer
        return allocate(size)

    def check(self) -> None:
        if self._failure is not None:
            raise self._failure

    def finish(self) -> list[CompletedPartTypeDef]:
        """Wait until all parts are sent, and return the parts for CompleteMultipartUpload."""
        self._waiting.put(None)
        for thread in self._senders:
            thread.join()
        self.check()
        return [{"PartNumber": number, "ETag": etag} for number, etag in sorted(self._etags.items())]

    def abort(self) -> None:
        """Stop sending and abort the upload. Raises nothing; the sweep deletes leftovers."""
        self._failure = self._failure or UploadFailed("the upload was aborted")
        self._aborted = True
        empty(self._waiting)
        self._put_end()
        if not self._join():
            log.warning("upload_still_sending", path_hash=logs.path_hash(self.key))
        self.free()
        if self.id:
            abort_quietly(self.key, self.id)

    def _put_end(self) -> None:
        """Put the end marker into the queue, unless it is there already."""
        with contextlib.suppress(queue.Full):
            self._waiting.put_nowait(None)

    def free(self) -> None:
        """Release the buffers. Exceptions, even of retried requests, keep them alive until garbage collection."""
        clear_locals(self._failure)
        empty(self._spare)

    def _join(self) -> bool:
        """Wait up to STOP_SECONDS for the threads, and return whether they stopped. The others stop later."""
        deadline = time.monotonic() + STOP_SECONDS
        for thread in self._senders:
            thread.join(max(0, deadline - time.monotonic()))
        return not any(thread.is_alive() for thread in self._senders)

    def _work(self) -> None:
        while (part := self._take()) is not None:
            if self._failure is None:
                self._record(lambda: self._upload(part))
            self._give_back(part)

    def _give_back(self, part: UploadPart) -> None:
        """Keep the part's buffer for reuse.

        A separate function, because exceptions keep the frames of `_work` alive.
        """
        buffer = part.take_buffer()
        if not self._aborted:
            self._spare.put(buffer)

    def _take(self) -> UploadPart | None:
        """Wait for a part and hash it. One thread at a time, because the hash needs the parts in order."""
        with self._turn:
            part = self._waiting.get()
            if part is None:
                self._put_end()  # for the other threads
            elif self._failure is None:
                self._digest.update(part.view)
                self._record(self._checkpoint)
            return part

    def _upload(self, part: UploadPart) -> None:
        self._etags[part.number] = bare(request(lambda: self._send(part))["ETag"])

    def _send(self, part: UploadPart) -> UploadPartOutputTypeDef:
        with body(part.view) as content:
            return client().upload_part(
                Bucket=bucket(), Key=self.key, UploadId=self.id, PartNumber=part.number, Body=content
            )

    def _record(self, step: Callable[[], None]) -> None:
        try:
            step()
        except BaseException as error:  # noqa: BLE001 - raised in the thread that produces the parts
            self._failure = self._failure or error
