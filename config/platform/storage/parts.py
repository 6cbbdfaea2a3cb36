"""A multipart upload: parts that fill in memory, and threads that send them."""

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
# Part sizes double after 1,700 parts (13 GiB), and then each time the object has doubled: 5 TiB come to 8,930 parts
# of at most 4 GiB, where S3 allows 10,000 of at most 5 GiB.
PARTS_OF_A_SIZE = 1700
# Two threads, because a server that works on a part leaves its connection idle. With the part that fills and one
# that waits there are four in memory, 32 MiB.
SENDERS = 2
WAITING = 1
SLICE_BYTES = MIB  # sent in one go; each slice has the connect timeout for itself
STOP_SECONDS = 30


def part_bytes(sent: int) -> int:
    """Return the size of the next part after `sent` bytes."""
    return PART_BYTES << (sent // (PARTS_OF_A_SIZE * PART_BYTES)).bit_length()


POPULATE = getattr(mmap, "MAP_POPULATE", 0)  # Linux


def allocate(size: int, *, at_once: bool = False) -> mmap.mmap:
    """Return a buffer. Memory is used for what is written to it, or `at_once`; large ones lie in a file without a name.

    Raises OSError if the disk is full: now, and not as a SIGBUS when the buffer is written to.
    """
    if size <= PART_BYTES:
        return mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | (POPULATE if at_once else 0))
    with tempfile.TemporaryFile() as file:
        os.posix_fallocate(file.fileno(), 0, size)
        return mmap.mmap(file.fileno(), size)


NOTHING = allocate(1)  # in the place of a buffer that was let go of


class Body:
    """A file for botocore over memory that is not copied.

    urllib3 reads files in 16 KiB; here it gets a slice of a size worth sending, whatever it asks for.
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

    def forget(self) -> None:
        """Let go of the memory. Whoever keeps this file, as the errors of a connection do, does not."""
        self._view = memoryview(b"")


@contextmanager
def body(view: memoryview) -> Iterator[Any]:
    """Give a request's body. botocore asks leave to send files (`Expect: 100-continue`), but not bytearrays."""
    if len(view) <= SLICE_BYTES:
        yield bytearray(view)
        return
    file = Body(view)
    try:
        yield file
    finally:
        file.forget()


@dataclass(slots=True)
class Part:
    number: int
    buffer: mmap.mmap
    used: int

    @property
    def view(self) -> memoryview:
        return memoryview(self.buffer)[: self.used]

    def give_up(self) -> mmap.mmap:
        """Return the buffer, which is no longer this part's: errors hold what their frames worked with."""
        buffer, self.buffer = self.buffer, NOTHING
        return buffer


def forget_locals(error: BaseException | None) -> None:
    """Have an error no longer hold what its frames worked with: buffers, of which there are few."""
    while error is not None:
        traceback.clear_frames(error.__traceback__)
        error = error.__context__


def empty(kept: queue.Queue[Any] | queue.SimpleQueue[Any]) -> None:
    with contextlib.suppress(queue.Empty):
        while True:
            kept.get_nowait()


class Multipart:
    """Sends the parts that it is given, two at a time, and hashes them in their order.

    An error in a thread stops the sending; `send` and `finish` raise it. Buffers come back through `spare`.
    """

    def __init__(self, key: str, *, headers: Mapping[str, Any], digest: _Hash, checkpoint: Callable[[], None]) -> None:
        checkpoint()
        self.key = key
        self._digest = digest
        self._checkpoint = checkpoint
        self._numbers = 0
        self._etags: dict[int, str] = {}
        self._waiting: queue.Queue[Part | None] = queue.Queue(WAITING)
        # All at once: a file of 20 MB takes as much memory as one of 20 GB, whoever is slower.
        self._spare: queue.SimpleQueue[mmap.mmap] = queue.SimpleQueue()
        for _ in range(SENDERS + WAITING):
            self._spare.put(allocate(PART_BYTES, at_once=True))
        self._turn = threading.Lock()
        self._failure: BaseException | None = None
        self._aborted = False
        self._senders: list[threading.Thread] = []
        self.id = ""
        try:
            # After all that may fail for want of memory: nobody would abort an upload of which nobody knows.
            self.id = request(lambda: client().create_multipart_upload(Bucket=bucket(), Key=key, **headers))["UploadId"]
            for _ in range(SENDERS):
                thread = threading.Thread(target=tracing.carried(self._work), name="upload", daemon=True)
                thread.start()
                self._senders.append(thread)
        except BaseException:
            self.abort()
            raise

    def send(self, buffer: mmap.mmap, used: int) -> None:
        """Hand a part over; waits while enough of them wait."""
        self.check()
        self._numbers += 1
        self._waiting.put(Part(self._numbers, buffer, used))

    def spare(self, size: int) -> mmap.mmap:
        """Return a buffer of this size, one that was used before if possible: its memory is mapped already."""
        with contextlib.suppress(queue.Empty):
            buffer = self._spare.get_nowait()
            if len(buffer) == size:
                return buffer
        return allocate(size)

    def check(self) -> None:
        if self._failure is not None:
            raise self._failure

    def finish(self) -> list[CompletedPartTypeDef]:
        """Wait until all parts are sent, and return what CompleteMultipartUpload wants to know of them."""
        self._waiting.put(None)
        for thread in self._senders:
            thread.join()
        self.check()
        return [{"PartNumber": number, "ETag": etag} for number, etag in sorted(self._etags.items())]

    def abort(self) -> None:
        """Stop sending and drop what was sent. Raises nothing: what stays behind is left to the sweep."""
        self._failure = self._failure or UploadFailed("the upload was aborted")
        self._aborted = True
        empty(self._waiting)
        self._waiting.put(None)
        if not self._have_ended():
            log.warning("upload_still_sending", path_hash=logs.path_hash(self.key))
        self.free()
        if self.id:
            abort_quietly(self.key, self.id)

    def free(self) -> None:
        """Let go of the buffers. An error, also of a request that was made again, holds all this until garbage is
        collected."""
        forget_locals(self._failure)
        empty(self._spare)

    def _have_ended(self) -> bool:
        """Wait for the senders, for some seconds. Whoever takes longer ends, and lets its buffer go, when it may."""
        deadline = time.monotonic() + STOP_SECONDS
        for thread in self._senders:
            thread.join(max(0, deadline - time.monotonic()))
        return not any(thread.is_alive() for thread in self._senders)

    def _work(self) -> None:
        while (part := self._take()) is not None:
            if self._failure is None:
                self._record(lambda: self._upload(part))
            self._give_back(part)

    def _give_back(self, part: Part) -> None:
        """Make the part's buffer a spare one. Not in `_work`: what an error was raised in holds on to its callers."""
        buffer = part.give_up()
        if not self._aborted:
            self._spare.put(buffer)

    def _take(self) -> Part | None:
        """Wait for a part and hash it. One thread at a time: the hash needs the parts in their order."""
        with self._turn:
            part = self._waiting.get()
            if part is None:
                self._waiting.put(None)  # the end, for all of them
            elif self._failure is None:
                self._digest.update(part.view)
                self._record(self._checkpoint)
            return part

    def _upload(self, part: Part) -> None:
        self._etags[part.number] = bare(request(lambda: self._send(part))["ETag"])

    def _send(self, part: Part) -> UploadPartOutputTypeDef:
        with body(part.view) as content:
            return client().upload_part(
                Bucket=bucket(), Key=self.key, UploadId=self.id, PartNumber=part.number, Body=content
            )

    def _record(self, step: Callable[[], None]) -> None:
        try:
            step()
        except BaseException as error:  # noqa: BLE001 - it is raised in the thread that produces
            self._failure = self._failure or error
