"""Storage of submitted documents.

A document is sent with the request, or was uploaded earlier by a presigned PUT. Either way, the task gets a separate
copy under `etl/documents/`, which clients cannot overwrite with an upload URL that is still valid.
"""

import hashlib
import re
from abc import ABC, abstractmethod
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import cached_property
from pathlib import PurePath
from typing import Any
from uuid import uuid4

from django.core.files.uploadedfile import UploadedFile
from django.db import transaction

from config.platform import storage
from config.platform.db import clock
from config.platform.http import audit
from config.platform.http.problems import BadInput, InputError
from etl.core.formats import HEAD_BYTES, DocumentFormat
from etl.ingest.acceptance import accepted_format, check_size, check_type, translate_storage_errors
from etl.models.task import printable
from etl.pipeline import queue_limit, quotas, schemas
from etl.pipeline.artifacts import DOCUMENTS, UPLOADS, UUID

UPLOAD_SECONDS = 15 * 60
MAX_NAME = 255


# ---- Documents ------------------------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True, kw_only=True)
class StoredDocument:
    """A document in the task's object, which clients cannot overwrite."""

    key: str
    kind: DocumentFormat
    size: int
    filename: str
    sha256: str  # "" if it is not known yet

    @property
    def columns(self) -> dict[str, Any]:
        """The values of a task's columns for this document."""
        return {
            "filename": self.filename,
            "kind": self.kind,
            "size": self.size,
            "document_key": self.key,
            "sha256": self.sha256,
        }

    def drop(self) -> None:
        """Delete the object, for which no task was created. If that fails, the hourly sweep deletes it."""
        with suppress(storage.StorageError):
            storage.delete(self.key)


def new_key(kind: DocumentFormat) -> str:
    return f"{DOCUMENTS}{uuid4()}.{kind.value}"


class SentFile:
    """A document in the request body."""

    upload = ""

    def __init__(self, file: UploadedFile) -> None:
        self.file = file

    @property
    def name(self) -> str:
        return self.file.name or ""

    def identity(self) -> dict[str, Any]:
        """Return the document's part of the idempotency fingerprint: a hash of its bytes."""
        return {"file": self.sha256}

    @cached_property
    def sha256(self) -> str:
        digest = hashlib.sha256()
        for block in self.file.chunks():
            digest.update(block)
        return digest.hexdigest()

    @cached_property
    def size(self) -> int:
        return self.file.size or 0

    @cached_property
    def kind(self) -> DocumentFormat:
        self.file.seek(0)
        return accepted_format(self.file.read(HEAD_BYTES), size=self.size, name=self.name, pointer="/file")

    def check(self) -> None:
        """Raise a problem if the document is not accepted."""
        _ = self.kind

    def store(self, mark: Mapping[str, str]) -> StoredDocument:
        """Store the document. Raises StorageUnavailable."""
        filename = display_name(self.name, default=f"document.{self.kind.value}")
        return store_blocks(self.file.chunks(), mark, kind=self.kind, size=self.size, filename=filename)


def store_blocks(
    blocks: Iterable[bytes], mark: Mapping[str, str], *, kind: DocumentFormat, size: int, filename: str
) -> StoredDocument:
    """Store a document block by block, so that at most one part of it is in memory.

    `mark`: the mark of this service (`config.platform.db.identity`). Raises StorageUnavailable, and the errors of
    `blocks`.
    """
    key = new_key(kind)
    with (
        translate_storage_errors(),
        storage.Upload(
            key, content_type=kind.media_type, metadata=mark, if_match=None, checkpoint=lambda: None
        ) as upload,
    ):
        for block in blocks:
            upload.write(block)
        stored = upload.commit()
    return StoredDocument(key=key, kind=kind, size=size, filename=filename, sha256=stored.sha256)


class StoredFile(ABC):
    """A document that is already in object storage. `pointer`: pointer of the member of the request that names it."""

    key: str
    upload: str  # the key of an upload whose quota the task takes over, or ""
    pointer: str

    @cached_property
    @abstractmethod
    def head(self) -> storage.Head | storage.Listed:
        """The metadata of the object. Raises a problem if the user has no such file."""

    @property
    @abstractmethod
    def name(self) -> str: ...

    def identity(self) -> dict[str, Any]:
        return {"file_key": self.key}

    @property
    def size(self) -> int:
        return self.head.size

    @cached_property
    def kind(self) -> DocumentFormat:
        check_size(self.size, pointer=self.pointer)
        with refuse_changes(self.pointer):
            first = storage.read_span(self.key, start=0, size=HEAD_BYTES, if_match=self.head.etag)
        return accepted_format(first, size=self.head.size, name=self.name, pointer=self.pointer)

    def check(self) -> None:
        """Raise a problem if the document is not accepted."""
        _ = self.kind

    def store(self, mark: Mapping[str, str]) -> StoredDocument:
        """Copy exactly the bytes that were checked. Raises StorageUnavailable, and BadInput if they have changed."""
        key = new_key(self.kind)
        with refuse_changes(self.pointer):
            storage.copy(
                self.key,
                key,
                if_match_source=self.head.etag,
                size=self.head.size,
                content_type=self.kind.media_type,
                sha256="",
                metadata=mark,
            )
        filename = display_name(self.name, default=f"document.{self.kind.value}")
        return StoredDocument(key=key, kind=self.kind, size=self.head.size, filename=filename, sha256="")


class EarlierUpload(StoredFile):
    """A document that the user uploaded earlier to a presigned URL. Uploads of other users are treated as missing."""

    pointer = "/file_key"

    def __init__(self, file_key: str, *, user_id: int) -> None:
        self.key = self.upload = file_key
        self.user_id = user_id

    @cached_property
    def head(self) -> storage.Head:
        if not re.fullmatch(f"{re.escape(UPLOADS)}{self.user_id}/{UUID}", self.key):
            raise unknown_file()
        with translate_storage_errors():
            found = storage.head(self.key)
        if found is None:
            raise unknown_file()
        return found

    @property
    def name(self) -> str:
        return decode_name(self.head.metadata.get("filename", ""))


def unknown_file() -> BadInput:
    return BadInput(InputError(pointer="/file_key", code="unknown_file", detail="You have no upload with this key."))


@contextmanager
def refuse_changes(pointer: str) -> Iterator[None]:
    """Raise BadInput if the file changes while it is read, and StorageUnavailable for other storage errors."""
    with translate_storage_errors():
        try:
            yield
        except (storage.Missing, storage.Changed):
            detail = "The file was changed while it was read. Submit it again."
            raise BadInput(InputError(pointer=pointer, code="file_changed", detail=detail)) from None


# ---- Presigned uploads ----------------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True, kw_only=True)
class UploadTarget:
    """A presigned upload, valid for exactly this content type and number of bytes."""

    file_key: str
    ticket: storage.Ticket
    expires_at: datetime


def create(*, user_id: int, filename: str, content_type: str, size: int) -> UploadTarget:
    """Presign an upload, and count it toward the user's quota.

    Raises QuotaExceeded, and a problem if the declared type or size is not accepted.
    """
    check_size(size, pointer="/size")
    check_type(content_type)
    key = f"{UPLOADS}{user_id}/{uuid4()}"
    expires_at = clock.now() + timedelta(seconds=UPLOAD_SECONDS)
    with transaction.atomic():
        queue_limit.lock()
        quotas.reserve(user_id, file_key=key, size=size, expires_at=expires_at)
        audit.record_change()
    ticket = storage.presign_upload(
        key,
        seconds=UPLOAD_SECONDS,
        content_type=content_type,
        size=size,
        # There is no task before the submission, so the object's metadata has the file name.
        metadata={"filename": encode_name(display_name(filename, default=""))},
    )
    return UploadTarget(file_key=key, ticket=ticket, expires_at=expires_at)


def body_of(target: UploadTarget) -> schemas.UploadPlace:
    return {
        "file_key": target.file_key,
        "upload_url": target.ticket.url,
        "method": "PUT",
        "headers": target.ticket.headers,
        "expires_at": target.expires_at,
    }


# ---- Names ----------------------------------------------------------------------------------------------------------
def display_name(name: str, *, default: str) -> str:
    """Return a safe display name: the last part of the path, printable, and of limited length."""
    clean = printable(re.split(r"[/\\]", name)[-1])
    if clean in ("", ".", ".."):
        return default
    end = PurePath(clean).suffix[: MAX_NAME // 2]
    return clean if len(clean) <= MAX_NAME else clean[: MAX_NAME - len(end)] + end


def encode_name(name: str) -> str:
    """Encode a file name in ASCII for a header. Percent-encoding could exceed S3's limit of 2 KiB."""
    return urlsafe_b64encode(name.encode()).decode()


def decode_name(text: str) -> str:
    try:
        return urlsafe_b64decode(text).decode()
    except ValueError:
        return ""
