"""Probes of the operator's bucket and keys for `manage.py doctor`, made with real requests."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from http import HTTPStatus
from typing import Any
from uuid import uuid4

from botocore.exceptions import ClientError

from config.platform.storage.clients import bucket, client, connect, download_profile, main_profile, presign_download
from config.platform.storage.commits import ENCRYPTED
from config.platform.storage.copies import copy
from config.platform.storage.errors import VENDOR_ERRORS, Changed, Conflict, StorageError, attempt, translate
from config.platform.storage.objects import delete, head
from config.platform.storage.uploads import put
from config.platform.storage.writability import PREFIX

CONTENT = b"A probe of manage.py doctor. It may be deleted.\n"
TYPE = "text/plain"
REFUSED = {HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN}


@contextmanager
def probe() -> Iterator[str]:
    """Write an object and yield its key. Afterwards, delete it and the second object of the checks."""
    key = f"{PREFIX}{uuid4().hex}"
    put(key, CONTENT, content_type=TYPE)
    try:
        yield key
    finally:
        for name in (key, second_key(key)):
            if head(name):
                delete(name)


def second_key(key: str) -> str:
    return f"{key}-parts"


def replaces(key: str, **condition: Any) -> bool:
    """Return whether a PUT succeeds although its condition forbids it."""
    try:
        put(key, CONTENT, content_type=TYPE, **condition)
    except Conflict:
        return False
    return True


def copies_another_version(key: str) -> bool:
    """Return whether a copy succeeds although its condition names another version of the source."""
    text: dict[str, Any] = {"content_type": TYPE, "sha256": "", "size": len(CONTENT)}
    try:
        copy(key, second_key(key), if_match_source="0" * 32, **text)
    except Changed:
        return False
    delete(second_key(key))
    return True


def is_encrypted(key: str) -> bool:
    return bool(attribute(key, "ServerSideEncryption"))


def is_versioned(key: str) -> bool:
    return attribute(key, "VersionId") not in {None, "", "null"}


def attribute(key: str, name: str) -> Any:
    return attempt(lambda: client().head_object(Bucket=bucket(), Key=key)).get(name)


def upload_parts(key: str) -> None:
    """Create an object by a multipart upload. Raise Changed, and abort the upload, if the object exists."""
    upload = attempt(lambda: client().create_multipart_upload(Bucket=bucket(), Key=key, ContentType=TYPE, **ENCRYPTED))
    target: dict[str, Any] = {"Bucket": bucket(), "Key": key, "UploadId": upload["UploadId"]}
    try:
        part = attempt(lambda: client().upload_part(**target, PartNumber=1, Body=CONTENT))
        parts: Any = {"Parts": [{"PartNumber": 1, "ETag": part["ETag"]}]}
        attempt(lambda: client().complete_multipart_upload(**target, MultipartUpload=parts, IfNoneMatch="*"))
    except StorageError:
        with suppress(*VENDOR_ERRORS):
            client().abort_multipart_upload(**target)
        raise


def replaces_by_parts(key: str) -> bool:
    """Return whether a multipart upload replaces an object although its condition forbids it."""
    try:
        upload_parts(key)
    except Changed:
        return False
    return True


def lifecycle() -> Sequence[Mapping[str, Any]]:
    """Return the bucket's lifecycle rules. Raise StorageError if the keys are not allowed to read them."""
    try:
        return client().get_bucket_lifecycle_configuration(Bucket=bucket()).get("Rules", [])
    except ClientError as error:
        if error.response.get("Error", {}).get("Code") == "NoSuchLifecycleConfiguration":
            return []
        raise translate(error) from None
    except VENDOR_ERRORS as error:
        raise translate(error) from None


# ---- The download key -----------------------------------------------------------------------------------------------


def presign(key: str) -> str:
    return presign_download(key, seconds=60, content_type=TYPE, file_name="probe.txt")


def excess_permissions(key: str) -> list[str]:
    """Return the operations, other than reading, that the download key permits. Tries each on the probe object."""
    # Uses the internal endpoint, which this process can reach. A key has the same permissions at both endpoints.
    s3 = connect(download_profile()._replace(endpoint=main_profile().endpoint))
    own: dict[str, Any] = {"Bucket": bucket(), "Key": key}
    attempts: dict[str, Callable[[], object]] = {
        "list": lambda: s3.list_objects_v2(Bucket=bucket(), Prefix=PREFIX, MaxKeys=1),
        "write": lambda: s3.put_object(**own, Body=CONTENT, **ENCRYPTED),
        "delete": lambda: s3.delete_object(**own),
    }
    return [name for name, call in attempts.items() if is_allowed(call)]


def is_allowed(call: Callable[[], object]) -> bool:
    """Return whether the request is permitted. Raise StorageError for other failures."""
    try:
        call()
    except ClientError as error:
        if error.response.get("ResponseMetadata", {}).get("HTTPStatusCode") in REFUSED:
            return False
        raise translate(error) from None
    except VENDOR_ERRORS as error:
        raise translate(error) from None
    return True
