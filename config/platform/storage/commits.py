"""Commits of writes: the request that makes an object visible, and the check of its outcome."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from types import MappingProxyType
from typing import Any
from uuid import uuid4

from config.platform.storage.errors import (
    Changed,
    Conflict,
    Missing,
    RequestFailed,
    StorageError,
    UploadFailed,
    attempt,
)
from config.platform.storage.objects import bare, head, quoted

WRITE_ID = "upload"  # name of the metadata; not S3's UploadId
ENCRYPTED: Mapping[str, Any] = {"ServerSideEncryption": "AES256"}
NO_METADATA: Mapping[str, str] = MappingProxyType({})
ATTEMPTS = 2


def no_checkpoint() -> None:
    """Do nothing: the checkpoint of writes without a lease."""


@contextmanager
def as_upload_failures() -> Iterator[None]:
    """Translate storage errors to UploadFailed."""
    try:
        yield
    except (RequestFailed, Missing, Changed) as error:
        # Missing: the upload was aborted. Changed: an object was created and deleted. In both cases, a retry may
        # succeed.
        retryable = error.retryable or not isinstance(error, RequestFailed)
        raise UploadFailed(str(error), retryable=retryable, is_outage=error.is_outage) from None


def with_write_id(metadata: Mapping[str, str]) -> dict[str, str]:
    """Add a random ID to an object's metadata, so that the writer can recognize its object."""
    return {**metadata, WRITE_ID: uuid4().hex}


def condition(if_match: str | None) -> dict[str, Any]:
    """Return the precondition of a write: the existing object has this ETag. None: no object exists."""
    return {"IfNoneMatch": "*"} if if_match is None else {"IfMatch": quoted(if_match)}


def commit(
    send: Callable[[], str], *, key: str, size: int, write_id: str, if_match: str | None, checkpoint: Callable[[], None]
) -> str:
    """Send the request, at most twice, and return the object's ETag.

    The write may have succeeded although the response was lost, timed out, or was 412 or NoSuchUpload. So after an
    error, a HEAD request checks the object: the write succeeded if the object has this `write_id` and size.

    Raises Conflict if another object exists than `if_match` permits, and otherwise the error of the request.
    """
    failure: StorageError = UploadFailed("the upload was not attempted")
    for _ in range(ATTEMPTS):
        checkpoint()
        try:
            return bare(attempt(send))
        except (RequestFailed, Missing, Changed) as error:
            failure = error
        with suppress(RequestFailed):  # the error of the write is more useful than that of the HEAD request
            found = head(key)
            if found and found.metadata.get(WRITE_ID) == write_id and found.size == size:
                return found.etag
            existing = found.etag if found else None
            if existing != if_match:
                raise Conflict(found)
        if not failure.retryable:
            break
    raise failure
