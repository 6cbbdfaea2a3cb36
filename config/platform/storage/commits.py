"""The commit of a write: the request that makes an object visible, and the interpretation of its response."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
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

UPLOAD_ID = "upload"
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


def with_upload_id(metadata: Mapping[str, str]) -> dict[str, str]:
    """Add a random id to an object's metadata, so that the writer can recognize its object."""
    return {**metadata, UPLOAD_ID: uuid4().hex}


def condition(if_match: str | None) -> dict[str, Any]:
    """Return the precondition of a write: the existing object has this ETag. None: no object exists."""
    return {"IfNoneMatch": "*"} if if_match is None else {"IfMatch": quoted(if_match)}


def commit(
    send: Callable[[], str], *, key: str, size: int, upload: str, if_match: str | None, checkpoint: Callable[[], None]
) -> str:
    """Send the request, at most twice, and return the object's ETag.

    A lost response, a timeout, a 412, or a "no such upload" may mean that the write succeeded. So after an error, a
    HEAD request checks the object. The write succeeded if the object has this `upload` id and size.

    Raises Conflict if `if_match` does not permit the existing object; otherwise the error of the request.
    """
    failure: StorageError = UploadFailed("the upload was not attempted")
    for _ in range(ATTEMPTS):
        checkpoint()
        try:
            return bare(attempt(send))
        except (RequestFailed, Missing, Changed) as error:
            failure = error
        try:
            found = head(key)
        except RequestFailed:
            if failure.retryable:
                continue
            break
        if found and found.metadata.get(UPLOAD_ID) == upload and found.size == size:
            return found.etag
        if (found and found.etag) != if_match:
            raise Conflict(found)
        if not failure.retryable:
            break
    raise failure
