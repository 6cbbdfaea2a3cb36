"""Reading, listing, and deleting of objects; listing and aborting of multipart uploads."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from contextlib import closing, suppress
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING

import structlog

from config.platform.observability import logs
from config.platform.storage.clients import bucket, client
from config.platform.storage.errors import (
    VENDOR_ERRORS,
    Missing,
    RequestFailed,
    StorageError,
    attempt,
    request,
    translate,
)

if TYPE_CHECKING:
    from datetime import datetime

    from mypy_boto3_s3.type_defs import GetObjectOutputTypeDef

log = structlog.get_logger(__name__)

BLOCK_BYTES = 256 * 1024
DELETE_BATCH = 1000  # the limit of DeleteObjects
EMPTY_RANGE = "InvalidRange"


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredObject:
    """A written object. `size` is in bytes, `sha256` is in hex."""

    key: str
    etag: str
    size: int
    sha256: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Head:
    etag: str
    size: int
    metadata: Mapping[str, str]
    last_modified: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class Listed:
    key: str
    etag: str
    size: int
    last_modified: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenUpload:
    key: str
    upload_id: str
    initiated: datetime


def bare(etag: str) -> str:
    """Remove the quotes of an ETag. AWS always sends them, SeaweedFS sometimes."""
    return etag.strip('"')


def quoted(etag: str) -> str:
    return f'"{etag}"'


def now() -> datetime:
    """Return the time of the object storage's clock, which also dates objects and uploads."""
    reply = request(lambda: client().head_bucket(Bucket=bucket()))
    return parsedate_to_datetime(reply["ResponseMetadata"]["HTTPHeaders"]["date"])


def head(key: str) -> Head | None:
    """Return the description of the object, or None if it does not exist."""
    try:
        reply = request(lambda: client().head_object(Bucket=bucket(), Key=key))
    except Missing:
        return None
    return Head(
        etag=bare(reply["ETag"]),
        size=reply["ContentLength"],
        metadata=reply["Metadata"],
        last_modified=reply["LastModified"],
    )


# ---- Reading --------------------------------------------------------------------------------------------------------


class Blocks(Iterator[bytes]):
    """The blocks of a download. `close` stops the download, even before the first block."""

    def __init__(self, blocks: Generator[bytes], end: Callable[[], object]) -> None:
        self._blocks, self._end = blocks, end

    def __next__(self) -> bytes:
        return next(self._blocks)

    def close(self) -> None:
        self._blocks.close()
        self._end()  # a generator that was never started does not run its cleanup


def read(key: str, *, if_match: str | None = None, start: int = 0) -> Blocks:
    """Return the bytes from `start` to the end, in blocks of at most 256 KiB; empty if the object is shorter.

    The request is sent immediately: this call raises Missing, and Changed if the ETag is not `if_match`. An interrupted
    download is resumed once, if the object is still the same.
    """
    try:
        reply = request(lambda: get(key, if_match, start))
    except RequestFailed as error:
        if EMPTY_RANGE in str(error):
            return Blocks(nothing(), lambda: None)
        raise
    return Blocks(transfer(key, reply, start), reply["Body"].close)


def read_span(key: str, *, start: int, size: int, if_match: str | None = None) -> bytes:
    """Return `size` bytes from `start`, or fewer if the object ends before. Raises the errors of `read`.

    An interrupted download is repeated once.
    """
    conditions = {} if if_match is None else {"IfMatch": quoted(if_match)}
    span = f"bytes={start}-{start + size - 1}"

    def transferred() -> bytes:
        reply = client().get_object(Bucket=bucket(), Key=key, Range=span, **conditions)  # type: ignore[arg-type]
        with closing(reply["Body"]) as body:
            content = bytes(body.read(size))
        if len(content) < min(size, reply["ContentLength"]):
            raise RequestFailed("the download was interrupted", retryable=True, is_outage=True)
        return content

    try:
        return request(transferred)
    except RequestFailed as error:
        if EMPTY_RANGE in str(error):
            return b""
        raise


def get(key: str, if_match: str | None, start: int) -> GetObjectOutputTypeDef:
    conditions: dict[str, str] = {}
    if if_match is not None:
        conditions["IfMatch"] = quoted(if_match)
    if start:
        conditions["Range"] = f"bytes={start}-"
    return client().get_object(Bucket=bucket(), Key=key, **conditions)  # type: ignore[arg-type]


def nothing() -> Generator[bytes]:
    yield from ()


def transfer(key: str, reply: GetObjectOutputTypeDef, position: int) -> Generator[bytes]:
    etag = bare(reply["ETag"])
    resumed = False
    while True:
        try:
            for block in reply["Body"].iter_chunks(BLOCK_BYTES):
                position += len(block)
                yield block
        except VENDOR_ERRORS as error:
            if resumed:
                raise translate(error) from None
        else:
            return
        finally:
            reply["Body"].close()
        resumed = True
        reply = attempt(lambda: get(key, etag, position))  # noqa: B023 - called immediately


# ---- Deleting -------------------------------------------------------------------------------------------------------


def delete(key: str, *, if_match: str | None = None) -> None:
    """Delete the object if it exists. Raises Changed if its ETag is not `if_match`."""
    condition = {} if if_match is None else {"IfMatch": quoted(if_match)}
    with suppress(Missing):
        request(lambda: client().delete_object(Bucket=bucket(), Key=key, **condition))  # type: ignore[arg-type]


def delete_many(keys: Iterable[str]) -> None:
    """Delete the objects that exist. At the end, raises RequestFailed if some could not be deleted."""
    pending = list(dict.fromkeys(keys))
    failed = 0
    for start in range(0, len(pending), DELETE_BATCH):
        failed += delete_batch(pending[start : start + DELETE_BATCH])
    if failed:
        raise RequestFailed(f"{failed} of {len(pending)} objects were not deleted", retryable=True)


def delete_batch(keys: list[str]) -> int:
    """Delete the objects, and return the number that could not be deleted."""
    reply = request(
        lambda: client().delete_objects(
            Bucket=bucket(), Delete={"Objects": [{"Key": key} for key in keys], "Quiet": True}
        )
    )
    return sum(error.get("Code") != "NoSuchKey" for error in reply.get("Errors", []))


# ---- Listing --------------------------------------------------------------------------------------------------------


def list_objects(prefix: str) -> Iterator[Listed]:
    """Yield the objects with this prefix, in the order of their keys."""
    position: dict[str, str] = {}
    while True:
        page = request(lambda: client().list_objects_v2(Bucket=bucket(), Prefix=prefix, **position))  # type: ignore[arg-type]  # noqa: B023
        for item in page.get("Contents", []):
            yield Listed(
                key=item["Key"], etag=bare(item["ETag"]), size=item["Size"], last_modified=item["LastModified"]
            )
        if not page["IsTruncated"]:
            return
        position = {"ContinuationToken": page["NextContinuationToken"]}


def list_uploads(prefix: str) -> Iterator[OpenUpload]:
    """Yield the open multipart uploads with this prefix."""
    position: dict[str, str] = {}
    while True:
        page = request(lambda: client().list_multipart_uploads(Bucket=bucket(), Prefix=prefix, **position))  # type: ignore[arg-type]  # noqa: B023
        for item in page.get("Uploads", []):
            yield OpenUpload(key=item["Key"], upload_id=item["UploadId"], initiated=item["Initiated"])
        if not page["IsTruncated"]:
            return
        position = {"KeyMarker": page["NextKeyMarker"], "UploadIdMarker": page["NextUploadIdMarker"]}


def abort_upload(key: str, upload_id: str) -> None:
    """Abort a multipart upload and delete its parts. An upload that no longer exists is not an error."""
    with suppress(Missing):
        request(lambda: client().abort_multipart_upload(Bucket=bucket(), Key=key, UploadId=upload_id))


def abort_quietly(key: str, upload_id: str) -> None:
    """Abort a multipart upload after another error. If this fails, the sweep aborts it later."""
    try:
        abort_upload(key, upload_id)
    except StorageError as error:
        log.warning("upload_not_aborted", path_hash=logs.path_hash(key), error=str(error))
