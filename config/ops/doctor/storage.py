"""Checks of object storage: permissions of the service's key, the download key and the public, and bucket rules."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from datetime import UTC, datetime
from http import HTTPStatus
from typing import Any

import httpx2
from django.conf import settings

from config.ops.doctor import clocks
from config.ops.doctor.findings import Finding, Subject, failure, ok, warning
from config.platform import storage
from config.platform.http import outbound
from config.platform.http.outbound import Deadline, ResponseTooLarge
from config.platform.storage import probe

SECONDS = 4
MAX_BODY_BYTES = 1024**2
DAY = 86_400
PAGE = "docs/object-storage.md"


def check_reading(key: str) -> Finding:
    if storage.read_span(key, start=0, size=2 * len(probe.CONTENT)) != probe.CONTENT:
        return failure("The content of an object differs from what was written.", "Do not use this storage.")
    if key not in {item.key for item in storage.list_objects(key)}:
        return failure("A new object is not listed.", f"Use a storage with read-after-write consistency: {PAGE}.")
    return ok("The service's key can put, get and list objects.")


def check_conditions(key: str) -> Finding:
    """Check conditional writes, which keep a worker that lost its lease from overwriting the file of its successor."""
    attempts: dict[str, Callable[[], bool]] = {
        "PUT with If-None-Match": lambda: probe.replaces(key),
        "PUT with If-Match": lambda: probe.replaces(key, if_match="0" * 32),
        "CompleteMultipartUpload with If-None-Match": lambda: probe.replaces_by_parts(key),
        "CopyObject with x-amz-copy-source-if-match": lambda: probe.copies_another_version(key),
    }
    ignored = [name for name, overwrites in attempts.items() if overwrites()]
    if ignored:
        return failure(
            f"It ignores conditions ({', '.join(ignored)}): files can be overwritten, or copies differ.",
            f"Use a storage that supports conditions on writes and copies, such as AWS and SeaweedFS 4: {PAGE}.",
        )
    return ok("Conditional writes work.")


def check_parts(key: str) -> Finding:
    probe.upload_parts(probe.second_key(key))
    return ok("Multipart uploads work.")


def check_encryption(key: str) -> Finding:
    if probe.is_encrypted(key):
        return ok("Objects are encrypted at rest.")
    return warning(
        "Objects are not encrypted at rest, although every write requests it (SSE-S3, AES-256).",
        "Use a storage that encrypts, or put its data on an encrypted disk.",
    )


def check_versioning(key: str) -> Finding:
    if probe.is_versioned(key):
        return warning(
            "The bucket keeps versions: objects that Sluice deletes remain and are billed.",
            f"Suspend versioning, or add a NoncurrentVersionExpiration to its lifecycle: {PAGE}.",
        )
    return ok("The bucket keeps no versions of deleted objects.")


def check_download_key(key: str) -> Finding:
    if settings.SLUICE.s3_download_access_key_id is None:
        return warning(
            "S3_DOWNLOAD_ACCESS_KEY_ID is not set: links are signed with the key that can write and delete.",
            f"Create a key with the policy docs/iam/download.json and set S3_DOWNLOAD_*: {PAGE}.",
        )
    allowed = probe.excess_permissions(key)
    if allowed:
        return failure(
            f"The download key can {' and '.join(allowed)}; it should only read.",
            f"Give its user the policy docs/iam/download.json and no other: {PAGE}.",
        )
    return ok("The download key can only read.")


def check_presigned(key: str) -> Finding:
    """Download as clients do: with a presigned URL of S3_PUBLIC_ENDPOINT_URL."""
    if not storage.head(key):
        return failure(
            "The test object was deleted.", "Check which key deleted it; the download key may be allowed to."
        )
    try:
        status, content = get(probe.presign(key))
    except httpx2.TransportError:
        return warning(
            "S3_PUBLIC_ENDPOINT_URL cannot be reached from here; clients may be able to reach it.",
            "Run the doctor where clients are, or check that its host resolves and its port is open.",
        )
    if status != HTTPStatus.OK or content != probe.CONTENT:
        return failure(
            f"A presigned URL of S3_PUBLIC_ENDPOINT_URL returned status {status}: links do not work.",
            "Check that the proxy in front of the storage passes the Host header on unchanged, "
            "and that the download key can read _receipts/*.",
        )
    return ok("Presigned URLs of S3_PUBLIC_ENDPOINT_URL work.")


def check_public_access(key: str) -> Iterator[Finding]:
    """Send requests without a key."""
    object_url = probe.presign(key).partition("?")[0]
    bucket_url = object_url.removesuffix(f"/{key}")
    requests_by_name = {"read objects": object_url, "list the bucket": f"{bucket_url}?list-type=2&max-keys=1"}
    try:
        allowed = [name for name, url in requests_by_name.items() if get(url)[0] == HTTPStatus.OK]
    except httpx2.TransportError:
        return  # reported by check_presigned
    if allowed:
        yield failure(
            f"Anyone can {' and '.join(allowed)} without a key.",
            f"Block public access to the bucket: {PAGE}.",
        )
    else:
        yield ok("The bucket has no public access.")


def get(url: str) -> tuple[int, bytes]:
    """Return the status and the body. Raises httpx2.TransportError."""
    with outbound.Client(Deadline(SECONDS)) as client, client.send("GET", url) as response:
        try:
            return response.status_code, outbound.read_body(response, limit=MAX_BODY_BYTES)
        except ResponseTooLarge:
            return response.status_code, b""


def check_lifecycle(_key: str) -> Finding:
    try:
        rules = [rule for rule in probe.lifecycle() if rule.get("Status") == "Enabled"]
    except storage.StorageError:
        return warning(
            "The service's key cannot read the bucket's lifecycle rules.",
            f"Allow it s3:GetLifecycleConfiguration (docs/iam/service.json), or compare the rules manually: {PAGE}.",
        )
    if not any("AbortIncompleteMultipartUpload" in rule and covers_prefix(rule, "") for rule in rules):
        return warning(
            "No lifecycle rule aborts abandoned multipart uploads: their parts remain, unlisted and billed.",
            f"Apply docs/iam/lifecycle.json to the bucket: {PAGE}.",
        )
    days = [rule["Expiration"]["Days"] for rule in rules if is_expiry(rule, "_receipts/")]
    if days and min(days) * DAY < settings.SLUICE.export_delivery_ttl_max_seconds + 3600:
        return failure(
            f"The bucket deletes deliveries after {min(days)} days, before they expire "
            "(EXPORT_DELIVERY_TTL_MAX_SECONDS).",
            "Raise Days of that rule (expire-deliveries in docs/iam) above the longest lifetime of a delivery.",
        )
    if not days:
        return warning(
            "No lifecycle rule deletes old deliveries: if `reap` does not run, they are never deleted.",
            f"Apply docs/iam/lifecycle.json to the bucket: {PAGE}.",
        )
    return ok("The bucket deletes old deliveries, and not too early.")


def covers_prefix(rule: Any, prefix: str) -> bool:
    """Return whether a rule applies to every object with this prefix.

    A rule may also filter by tags or sizes, and S3 accepts the prefix in any of three places.
    """
    filter_ = rule.get("Filter") or {}
    conditions = filter_.get("And") or filter_
    found = conditions.get("Prefix", rule.get("Prefix")) or ""
    return prefix.startswith(found) and not conditions.keys() - {"Prefix"}


def is_expiry(rule: Any, prefix: str) -> bool:
    return covers_prefix(rule, prefix) and "Days" in rule.get("Expiration", {})


def check_clock(_key: str) -> Finding:
    requested = datetime.now(UTC)
    return clocks.compare(storage.now(), requested=requested, resolution=1)


def open_probe() -> AbstractContextManager[str]:
    storage.ping()
    return probe.probe()


SUBJECT = Subject(
    name="storage",
    open=open_probe,
    checks=(
        check_reading, check_conditions, check_parts, check_encryption, check_versioning, check_clock, check_lifecycle,
        check_presigned, check_public_access, check_download_key,
    ),
    remedy_if_unreachable="Check S3_ENDPOINT_URL, S3_BUCKET and the keys: "
    "docs/runbook.md#object-storage-is-unreachable.",
)  # fmt: skip
