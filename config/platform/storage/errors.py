"""Storage errors, and the translation of botocore's errors.

Errors are raised `from None`, because a botocore message may quote the URL, which contains the object's key.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

from botocore.exceptions import (
    BotoCoreError,
    ClientError,
    NoCredentialsError,
    ParamValidationError,
    PartialCredentialsError,
)
from botocore.parsers import ResponseParserError

if TYPE_CHECKING:
    from config.platform.storage.objects import Head

T = TypeVar("T")
VENDOR_ERRORS = (ClientError, BotoCoreError, ResponseParserError)
NOT_RETRYABLE = (ParamValidationError, NoCredentialsError, PartialCredentialsError)
MISSING_CODES = {"NoSuchKey", "404"}
NO_UPLOAD = "NoSuchUpload"
PRECONDITION_CODES = {"PreconditionFailed", "412"}
NO_BUCKET = "NoSuchBucket"
SERVER_ERROR = 500
RETRYABLE_STATUSES = {408, 409, 429}
REFUSED_STATUSES = {401, 403}
RETRYABLE_CODES = {"RequestTimeout", "SlowDown", "ConditionalRequestConflict", "OperationAborted", "Throttling"}


class StorageError(Exception):
    """A request to the object storage failed.

    `retryable`: an immediate retry may succeed. `is_outage`: the storage is unreachable, full, overloaded, or rejects
    our credentials, so other requests fail too, and this one may succeed after the outage.
    """

    def __init__(self, message: str, *, retryable: bool = False, is_outage: bool = False) -> None:
        super().__init__(message)
        self.retryable = retryable
        self.is_outage = is_outage


class RequestFailed(StorageError):
    """A request was refused, or failed."""


class UploadFailed(StorageError):
    """The object was not written, or the result is unknown and the object cannot be found."""


class Missing(StorageError):
    """The object or multipart upload does not exist."""


class UploadMissing(Missing):
    """The multipart upload does not exist: it was aborted or completed."""


class Changed(StorageError):
    """The object was replaced: it has another ETag."""


class Conflict(StorageError):
    """The condition of a write was not met, and nothing was written.

    `head` describes the existing object. It is None if the object to replace does not exist.
    """

    def __init__(self, head: Head | None) -> None:
        super().__init__("another object exists" if head else "the object to replace does not exist")
        self.head = head

    @property
    def etag(self) -> str | None:
        return self.head.etag if self.head else None


def translate(error: Exception) -> StorageError:
    if isinstance(error, ClientError):
        return translate_response(error)
    return RequestFailed(
        f"the request failed: {type(error).__name__}",
        retryable=not isinstance(error, NOT_RETRYABLE),
        is_outage=not isinstance(error, ParamValidationError),
    )


def translate_response(error: ClientError) -> StorageError:
    # The code takes precedence over the status: CompleteMultipartUpload and CopyObject may return status 200 with an
    # error in the body, which botocore reports as 500.
    code = error.response.get("Error", {}).get("Code", "")
    status = error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
    message = f"{error.operation_name} returned {status} {code}"
    if code == NO_UPLOAD:
        return UploadMissing(message)
    if code in MISSING_CODES:
        return Missing(message)
    if code in PRECONDITION_CODES:
        return Changed(message)
    is_temporary = status >= SERVER_ERROR or status in RETRYABLE_STATUSES or code in RETRYABLE_CODES
    return RequestFailed(
        message, retryable=is_temporary, is_outage=is_temporary or status in REFUSED_STATUSES or code == NO_BUCKET
    )


def attempt(call: Callable[[], T]) -> T:
    """Return the result of `call`. Its botocore errors are translated."""
    try:
        return call()
    except VENDOR_ERRORS as error:
        raise translate(error) from None


def request(call: Callable[[], T]) -> T:
    """Return the result of `call`. A retryable failure is retried once, immediately."""
    try:
        return attempt(call)
    except RequestFailed as error:
        if not error.retryable:
            raise
    return attempt(call)
