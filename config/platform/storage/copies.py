"""Copies of objects within the bucket."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

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
from config.platform.storage.errors import RequestFailed, UploadFailed, UploadMissing, request
from config.platform.storage.objects import StoredObject, abort_quietly, bare, quoted

if TYPE_CHECKING:
    from mypy_boto3_s3.type_defs import CompletedPartTypeDef

# S3 allows 5 GiB per request, but it responds only after the copy, which must be within the read timeout.
COPY_BYTES = 1024**3


def copy(
    source_key: str,
    target_key: str,
    *,
    if_match_source: str,
    size: int,
    content_type: str,
    sha256: str,
    metadata: Mapping[str, str] = NO_METADATA,
    if_match: str | None = None,
    checkpoint: Callable[[], None] = no_checkpoint,
) -> StoredObject:
    """Copy an object of any size within the bucket, with the same condition on the target as an Upload.

    `size` and `sha256` are those of the source with the ETag `if_match_source`, and are returned. Raises Missing or
    Changed for the source, Conflict for the target, UploadFailed, and the exceptions of `checkpoint`.
    """
    operation = CopyOperation(
        origin={"CopySource": {"Bucket": bucket(), "Key": source_key}, "CopySourceIfMatch": quoted(if_match_source)},
        key=target_key,
        size=size,
        headers={"ContentType": content_type, "Metadata": with_write_id(metadata), **ENCRYPTED},
        if_match=if_match,
        checkpoint=checkpoint,
    )
    try:
        etag = operation.copy_in_one_request() if size <= COPY_BYTES else operation.copy_in_parts()
    except UploadMissing as error:  # not the source
        raise UploadFailed(str(error), retryable=True) from None
    except RequestFailed as error:
        raise UploadFailed(str(error), retryable=error.retryable, is_outage=error.is_outage) from None
    return StoredObject(key=target_key, etag=etag, size=size, sha256=sha256)


@dataclass(frozen=True, slots=True, kw_only=True)
class CopyOperation:
    """A copy with its source, target, and conditions."""

    origin: Mapping[str, Any]
    key: str
    size: int
    headers: Mapping[str, Any]
    if_match: str | None
    checkpoint: Callable[[], None]

    def copy_in_one_request(self) -> str:
        """Copy in one request; return the ETag."""
        return self._commit(
            lambda: client().copy_object(
                Bucket=bucket(),
                Key=self.key,
                MetadataDirective="REPLACE",
                **self.origin,
                **self.headers,
                **condition(self.if_match),
            )["CopyObjectResult"]["ETag"]
        )

    def copy_in_parts(self) -> str:
        """Copy as a multipart upload, which is aborted after an error; return the ETag."""
        self.checkpoint()
        upload_id = request(lambda: client().create_multipart_upload(Bucket=bucket(), Key=self.key, **self.headers))[
            "UploadId"
        ]
        try:
            parts = list(self._parts(upload_id))
            with as_upload_failures():
                return self._commit(
                    lambda: client().complete_multipart_upload(
                        Bucket=bucket(),
                        Key=self.key,
                        UploadId=upload_id,
                        MultipartUpload={"Parts": parts},
                        **condition(self.if_match),
                    )["ETag"]
                )
        except BaseException:
            abort_quietly(self.key, upload_id)
            raise

    def _parts(self, upload_id: str) -> Iterator[CompletedPartTypeDef]:
        for number, start in enumerate(range(0, self.size, COPY_BYTES), start=1):
            end = min(start + COPY_BYTES, self.size) - 1
            self.checkpoint()
            yield {"PartNumber": number, "ETag": self._copy_part(upload_id, number, f"bytes={start}-{end}")}

    def _copy_part(self, upload_id: str, number: int, span: str) -> str:
        reply = request(
            lambda: client().upload_part_copy(
                Bucket=bucket(),
                Key=self.key,
                UploadId=upload_id,
                PartNumber=number,
                CopySourceRange=span,
                **self.origin,
            )
        )
        return bare(reply["CopyPartResult"]["ETag"])

    def _commit(self, send: Callable[[], str]) -> str:
        return commit(
            send,
            key=self.key,
            size=self.size,
            write_id=self.headers["Metadata"][WRITE_ID],
            if_match=self.if_match,
            checkpoint=self.checkpoint,
        )
