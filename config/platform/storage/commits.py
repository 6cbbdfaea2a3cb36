"""The last request of a write, the one that makes an object visible, and what to make of its answer."""

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
from config.platform.storage.objects import Head, bare, head, quoted

UPLOAD_ID = "upload"
ENCRYPTED: Mapping[str, Any] = {"ServerSideEncryption": "AES256"}
NO_METADATA: Mapping[str, str] = MappingProxyType({})
ATTEMPTS = 2


def unchecked() -> None:
    """A checkpoint for writes that no lease stands behind."""


@contextmanager
def failing_as_upload() -> Iterator[None]:
    """Whatever goes wrong with the storage in here is, to the caller, a failed upload."""
    try:
        yield
    except (RequestFailed, Missing, Changed) as error:
        # Missing: somebody aborted the upload. Changed: an object came and went. Both may do better next time.
        raise UploadFailed(str(error), retryable=error.retryable or not isinstance(error, RequestFailed)) from None


def signed(metadata: Mapping[str, str]) -> dict[str, str]:
    """Add a random id to an object's metadata, by which its writer knows it again."""
    return {**metadata, UPLOAD_ID: uuid4().hex}


def condition(if_match: str | None) -> dict[str, Any]:
    """Return the precondition of a write: the object replaced has this ETag, or, for None, there is none yet."""
    return {"IfNoneMatch": "*"} if if_match is None else {"IfMatch": quoted(if_match)}


def commit(
    send: Callable[[], str], *, key: str, size: int, upload: str, if_match: str | None, checkpoint: Callable[[], None]
) -> str:
    """Send the request, at most twice, and return the object's ETag.

    Whatever goes wrong, the object itself is asked: a reply that was lost, a timeout, a 412 or a "no such upload" may
    all mean that our object is in place. If it carries our `upload` id and size, it is ours.

    Raises Conflict when another object is in place than `if_match` allows; otherwise the error of the request.
    """
    failure: StorageError = UploadFailed("the upload was not tried")
    for _ in range(ATTEMPTS):
        checkpoint()
        try:
            return bare(attempt(send))
        except (RequestFailed, Missing, Changed) as error:
            failure = error
        found = head(key)
        if found and found.metadata.get(UPLOAD_ID) == upload and found.size == size:
            return found.etag
        if is_taken(found, if_match):
            raise Conflict(found)
        if not failure.retryable:
            break
    raise failure


def is_taken(found: Head | None, if_match: str | None) -> bool:
    return (found and found.etag) != if_match
