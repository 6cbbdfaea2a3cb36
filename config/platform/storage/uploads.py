"""Streamed, atomic uploads: an object becomes visible as a whole if a condition is met, or not at all."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from config.platform.storage import small_puts
from config.platform.storage.clients import bucket, client
from config.platform.storage.commits import (
    ENCRYPTED,
    NO_METADATA,
    WRITE_ID,
    as_upload_failures,
    commit,
    condition,
    no_checkpoint,
    with_write_id,
)
from config.platform.storage.errors import RequestFailed
from config.platform.storage.objects import StoredObject, bare
from config.platform.storage.parts import NOTHING, Multipart, allocate, body, part_bytes

if TYPE_CHECKING:
    from mypy_boto3_s3.type_defs import CompletedPartTypeDef

    from config.platform.storage.errors import Conflict


class Upload:
    """The upload of one object, as a context manager that aborts an uncommitted upload.

    `if_match` is the ETag of the object to replace; with None, no object may exist. `checkpoint` is called before the
    first request, before each part (from a sending thread, one at a time), and before the commit. Its exception stops
    the upload, and is raised by the next `write` or by `commit`.

    Memory stays at 32 MiB for any size. Parts after the first 13 GiB are larger, and are buffered in unnamed files. An
    object of one part is a single PUT without threads.
    """

    def __init__(
        self,
        key: str,
        *,
        content_type: str,
        metadata: Mapping[str, str],
        if_match: str | None,
        checkpoint: Callable[[], None],
    ) -> None:
        self._key = key
        self._headers: dict[str, Any] = {"ContentType": content_type, "Metadata": with_write_id(metadata), **ENCRYPTED}
        self._if_match = if_match
        self._checkpoint = checkpoint
        self._digest = hashlib.sha256()
        self._sent = 0  # bytes of the queued parts
        self._used = 0  # bytes in the buffer
        self._size = part_bytes(0)
        self._buffer = allocate(self._size)
        self._multipart: Multipart | None = None
        self._parts: list[CompletedPartTypeDef] = []
        self._is_closed = False
        self._by_boto3 = False

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.abort()

    def write(self, block: bytes | bytearray | memoryview) -> None:
        """Copy the block into the buffer. Blocks while the storage is slower than the caller.

        Raises the error of `checkpoint`, or UploadFailed.
        """
        self._require_open()
        with as_upload_failures():
            if self._multipart:
                self._multipart.check()
            view = memoryview(block)
            while len(view) > 0:
                if self._used == self._size:
                    self._send_part()
                taken = min(len(view), self._size - self._used)
                self._buffer[self._used : self._used + taken] = view[:taken]
                self._used += taken
                view = view[taken:]

    def commit(self) -> StoredObject:
        """Make the object visible and return it. Call it once.

        Raises the error of `checkpoint`, UploadFailed, or Conflict, after which `replace` may be called.
        """
        self._require_open()
        with as_upload_failures():
            self._sent += self._used
            if self._multipart is None:
                self._digest.update(self._last)
            else:
                self._multipart.send(self._buffer, self._used)
                self._parts = self._multipart.finish()
        return self._commit(self._if_match)

    def replace(self, conflict: Conflict) -> StoredObject:
        """Replace the object that caused `conflict`, an error of `commit`, with the uploaded bytes.

        Parts are not sent again, because a multipart upload survives a 412. (Tested on SeaweedFS, and reported for AWS.
        After a 409, AWS discards the upload, which raises UploadFailed.) Raises the errors of `commit`. Another
        Conflict means that the object was replaced again.
        """
        self._require_open()
        return self._commit(conflict.etag)

    def content(self, maximum: int) -> bytes | None:
        """Return the content, or None if it exceeds `maximum` bytes or one part. Call it in the `with` block."""
        return bytes(self._last) if self._multipart is None and self._used <= maximum else None

    def abort(self) -> None:
        """Abort an uncommitted upload. Can be called repeatedly. Does nothing after a commit.

        A signal may leave a commit running in another thread. It raises ValueError before its next request.
        """
        if self._multipart:
            if not self._is_closed:
                self._multipart.abort()
            self._multipart.free()
        self._is_closed = True  # before the buffer is released
        self._buffer = NOTHING  # exceptions may keep this upload alive

    @property
    def _last(self) -> memoryview:
        """The bytes written since the last part."""
        return memoryview(self._buffer)[: self._used]

    def _require_open(self) -> None:
        if self._is_closed:
            # Otherwise, only the last part would be committed.
            raise ValueError("the upload has ended")

    def _send_part(self) -> None:
        if self._multipart is None:
            self._multipart = Multipart(
                self._key, headers=self._headers, digest=self._digest, checkpoint=self._checkpoint
            )
        self._multipart.send(self._buffer, self._used)
        self._sent += self._used
        self._used = 0
        self._size = part_bytes(self._sent)
        self._buffer = self._multipart.spare(self._size)

    def _commit(self, if_match: str | None) -> StoredObject:
        send = self._complete if self._multipart else self._put
        with as_upload_failures():
            etag = commit(
                lambda: send(if_match),
                key=self._key,
                size=self._sent,
                write_id=self._headers["Metadata"][WRITE_ID],
                if_match=if_match,
                checkpoint=self._checkpoint,
            )
        self._is_closed = True
        return StoredObject(key=self._key, etag=etag, size=self._sent, sha256=self._digest.hexdigest())

    def _put(self, if_match: str | None) -> str:
        if not self._by_boto3 and small_puts.is_possible(self._key, self._used):
            return self._put_small(if_match)
        # The hash of a single part is the hash of the file, so the storage can verify it without extra work.
        checksum = base64.b64encode(self._digest.digest()).decode()
        with body(self._last) as content:
            self._require_open()
            reply = client().put_object(
                Bucket=bucket(),
                Key=self._key,
                Body=content,
                ChecksumSHA256=checksum,
                **self._headers,
                **condition(if_match),
            )
        return bare(reply["ETag"])

    def _put_small(self, if_match: str | None) -> str:
        metadata, content_type = self._headers["Metadata"], self._headers["ContentType"]
        content = bytes(self._last)
        self._require_open()
        try:
            return small_puts.put(self._key, content, content_type=content_type, metadata=metadata, if_match=if_match)
        except RequestFailed:
            self._by_boto3 = True
            raise

    def _complete(self, if_match: str | None) -> str:
        assert self._multipart  # noqa: S101 - for mypy
        reply = client().complete_multipart_upload(
            Bucket=bucket(),
            Key=self._key,
            UploadId=self._multipart.id,
            MultipartUpload={"Parts": self._parts},
            **condition(if_match),
        )
        return bare(reply["ETag"])


def put(
    key: str,
    content: bytes,
    *,
    content_type: str,
    metadata: Mapping[str, str] = NO_METADATA,
    if_match: str | None = None,
    checkpoint: Callable[[], None] = no_checkpoint,
) -> StoredObject:
    """Store a small object, under the same conditions as an Upload. Raises the errors of `Upload.commit`."""
    with Upload(key, content_type=content_type, metadata=metadata, if_match=if_match, checkpoint=checkpoint) as upload:
        upload.write(content)
        return upload.commit()
