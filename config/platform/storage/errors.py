"""What can go wrong, and botocore's errors put into these terms.

Errors are raised `from None`: a botocore message may quote the URL, and with it the key of the object.
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
OUR_FAULT = (ParamValidationError, NoCredentialsError, PartialCredentialsError)
NOTHING_THERE = {"NoSuchKey", "NoSuchUpload", "404"}
PRECONDITION = {"PreconditionFailed", "412"}
SERVER_ERROR = 500
PASSING_STATUS = {408, 409, 429}
PASSING_CODES = {"RequestTimeout", "SlowDown", "ConditionalRequestConflict", "OperationAborted", "Throttling"}


class StorageError(Exception):
    """The object storage did not do what was asked. `retryable`: the same may well succeed later."""

    def __init__(self, message: str, *, retryable: bool = False) -> None:
        super().__init__(message)
        self.retryable = retryable


class RequestFailed(StorageError):
    """A request was refused, or failed twice."""


class UploadFailed(StorageError):
    """The object was not written, or nobody can say whether it was; ours is nowhere to be seen."""


class Missing(StorageError):
    """There is no such object, or no such multipart upload."""


class Changed(StorageError):
    """The object is no longer the one that was meant: its ETag is another."""


class Conflict(StorageError):
    """Somebody else's object is where ours should go; it was left alone.

    `head` describes it, or is None if the object that should have been replaced is gone.
    """

    def __init__(self, head: Head | None) -> None:
        super().__init__("another object is in place" if head else "the object to replace is gone")
        self.head = head

    @property
    def etag(self) -> str | None:
        return self.head.etag if self.head else None


def translate(error: Exception) -> StorageError:
    if isinstance(error, ClientError):
        return translate_answer(error)
    return RequestFailed(f"the request failed: {type(error).__name__}", retryable=not isinstance(error, OUR_FAULT))


def translate_answer(error: ClientError) -> StorageError:
    # The code goes before the status: CompleteMultipartUpload and CopyObject may answer 200 with any error in the body,
    # which botocore then reports as 500.
    code = error.response.get("Error", {}).get("Code", "")
    status = error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
    message = f"{error.operation_name} was answered with {status} {code}"
    if code in NOTHING_THERE:
        return Missing(message)
    if code in PRECONDITION:
        return Changed(message)
    return RequestFailed(message, retryable=status >= SERVER_ERROR or status in PASSING_STATUS or code in PASSING_CODES)


def attempt(call: Callable[[], T]) -> T:
    """Return what `call` returns; its botocore errors become ours."""
    try:
        return call()
    except VENDOR_ERRORS as error:
        raise translate(error) from None


def request(call: Callable[[], T]) -> T:
    """Return what `call` returns; a failure that may pass is tried once more, at once, and never again."""
    try:
        return attempt(call)
    except RequestFailed as error:
        if not error.retryable:
            raise
    return attempt(call)
