"""The bucket: what the service's key can do, what the download key and strangers cannot, and its rules."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from datetime import UTC, datetime
from http import HTTPStatus
from typing import Any

import requests
from django.conf import settings

from config.ops.doctor import clocks
from config.ops.doctor.findings import Finding, Subject, failure, ok, warning
from config.platform import storage
from config.platform.storage import probe

SECONDS = 4
DAY = 86_400
PAGE = "docs/object-storage.md"


def check_reading(key: str) -> Iterator[Finding]:
    """That there is a probe at all means that put works."""
    if storage.read_head(key, size=2 * len(probe.CONTENT)) != probe.CONTENT:
        yield failure("What was written is not what is read.", "Do not use this storage: it changes bytes.")
    elif key not in {item.key for item in storage.list_objects(key)}:
        yield failure("An object that was just written is not listed.", f"Use an S3 that is consistent: {PAGE}.")
    else:
        yield ok("The service's key puts, gets and lists.")


def check_conditions(key: str) -> Iterator[Finding]:
    """What keeps a worker that was taken for lost from writing over the file of the next one."""
    attempts: dict[str, Callable[[], bool]] = {
        "PUT with If-None-Match": lambda: probe.replaces(key),
        "PUT with If-Match": lambda: probe.replaces(key, if_match="0" * 32),
        "CompleteMultipartUpload with If-None-Match": lambda: probe.replaces_by_parts(key),
    }
    unheeded = [name for name, goes_through in attempts.items() if goes_through()]
    if unheeded:
        yield failure(
            f"It does not heed conditions of writes ({', '.join(unheeded)}): late workers overwrite files.",
            f"Use an S3 that honours If-None-Match and If-Match on writes, as AWS and SeaweedFS 4 do: {PAGE}.",
        )
    else:
        yield ok("Conditions of writes are heeded.")


def check_parts(key: str) -> Iterator[Finding]:
    probe.upload_parts(probe.beside(key))
    yield ok("Multipart uploads work.")


def check_encryption(key: str) -> Iterator[Finding]:
    if probe.is_encrypted(key):
        yield ok("Objects are encrypted at rest.")
    else:
        yield warning(
            "Objects are not encrypted at rest, although each write asks for it (SSE-S3, AES-256).",
            "Use an S3 that encrypts, or an encrypted disk below it.",
        )


def check_versioning(key: str) -> Iterator[Finding]:
    if probe.is_versioned(key):
        yield warning(
            "The bucket keeps versions: what Sluice deletes stays, and costs.",
            f"Suspend versioning, or add a NoncurrentVersionExpiration to its lifecycle: {PAGE}.",
        )
    else:
        yield ok("What is deleted is gone.")


def check_download_key(key: str) -> Iterator[Finding]:
    if settings.SLUICE.s3_download_access_key_id is None:
        yield warning(
            "S3_DOWNLOAD_ACCESS_KEY_ID is not set: links are signed with the key that may write and delete.",
            f"Make a key with the policy docs/iam/download.json and set S3_DOWNLOAD_*: {PAGE}.",
        )
        return
    allowed = probe.allowed_to_downloads(key)
    if allowed:
        yield failure(
            f"The download key may {' and '.join(allowed)}, and not only read.",
            f"Give its user the policy docs/iam/download.json and no other: {PAGE}.",
        )
    else:
        yield ok("The download key may read and nothing else.")


def check_presigned(key: str) -> Iterator[Finding]:
    """The way that clients take: presigned, and through S3_PUBLIC_ENDPOINT_URL."""
    if not storage.head(key):
        yield failure("The probe is gone.", "See which key deleted it: the download key may.")
        return
    try:
        answer = get(probe.presign(key))
    except requests.RequestException:
        yield warning(
            "S3_PUBLIC_ENDPOINT_URL cannot be reached from here; clients may fare better.",
            "Run doctor where clients are, or see that its host resolves and its port is open.",
        )
        return
    if answer.status_code != HTTPStatus.OK or answer.content != probe.CONTENT:
        yield failure(
            f"A presigned URL through S3_PUBLIC_ENDPOINT_URL is answered with {answer.status_code}: no link works.",
            "See that the proxy before the storage passes the Host header on as it came, "
            "and that the download key may read _receipts/*.",
        )
    else:
        yield ok("Presigned URLs work through S3_PUBLIC_ENDPOINT_URL.")


def check_strangers(key: str) -> Iterator[Finding]:
    """What anybody may do who has no key."""
    url = probe.presign(key).partition("?")[0]
    folder = url.removesuffix(f"/{key}")
    try:
        open_to_all = [
            name
            for name, asked in (("read objects", url), ("list the bucket", f"{folder}?list-type=2&max-keys=1"))
            if get(asked).status_code == HTTPStatus.OK
        ]
    except requests.RequestException:
        return  # told by the check before
    if open_to_all:
        yield failure(
            f"Anybody may {' and '.join(open_to_all)} without a key.",
            f"Block public access to the bucket: {PAGE}.",
        )
    else:
        yield ok("Nobody gets anything without a key.")


def get(url: str) -> requests.Response:
    with requests.Session() as session:
        session.trust_env = False
        return session.get(url, timeout=SECONDS, allow_redirects=False)


def check_lifecycle(_key: str) -> Iterator[Finding]:
    try:
        rules = [rule for rule in probe.lifecycle() if rule.get("Status") == "Enabled"]
    except storage.StorageError:
        yield warning(
            "The bucket's lifecycle rules are not shown to the service's key.",
            f"Allow it s3:GetLifecycleConfiguration (docs/iam/service.json), or compare them by hand: {PAGE}.",
        )
        return
    if not any("AbortIncompleteMultipartUpload" in rule and is_for_all_below(rule, "") for rule in rules):
        yield warning(
            "No lifecycle rule aborts forgotten multipart uploads: their parts stay, unseen and paid.",
            f"Apply docs/iam/lifecycle.json to the bucket: {PAGE}.",
        )
    days = [rule["Expiration"]["Days"] for rule in rules if is_expiry(rule, "_receipts/")]
    if days and min(days) * DAY < settings.SLUICE.export_link_ttl_seconds + 3600:
        yield failure(
            f"The bucket deletes deliveries after {min(days)} days, before EXPORT_LINK_TTL_SECONDS is over.",
            "Raise Days of the rule expire-deliveries above the links' life.",
        )
    elif not days:
        yield warning(
            "No lifecycle rule deletes old deliveries: should no reaper run, they stay for ever.",
            f"Apply docs/iam/lifecycle.json to the bucket: {PAGE}.",
        )
    else:
        yield ok("The bucket deletes old deliveries by itself, and not too soon.")


def is_for_all_below(rule: Any, prefix: str) -> bool:
    """A rule may be for some tags or sizes alone, and may have its prefix in any of three places."""
    filter_ = rule.get("Filter") or {}
    conditions = filter_.get("And") or filter_
    below = conditions.get("Prefix", rule.get("Prefix")) or ""
    return below == prefix and not conditions.keys() - {"Prefix"}


def is_expiry(rule: Any, prefix: str) -> bool:
    return is_for_all_below(rule, prefix) and "Days" in rule.get("Expiration", {})


def check_clock(_key: str) -> Iterator[Finding]:
    asked = datetime.now(UTC)
    yield from clocks.compare(storage.now(), asked=asked, step=1)


def open_probe() -> AbstractContextManager[str]:
    storage.ping()
    return probe.probe()


SUBJECT = Subject(
    name="storage",
    open=open_probe,
    checks=(
        check_reading, check_conditions, check_parts, check_encryption, check_versioning, check_clock, check_lifecycle,
        check_presigned, check_strangers, check_download_key,
    ),
    away="See that S3_ENDPOINT_URL, S3_BUCKET and the keys are right: docs/runbook.md#object-storage-is-away.",
)  # fmt: skip
