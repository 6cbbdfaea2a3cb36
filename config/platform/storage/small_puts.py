"""PUTs of small objects with obstore, which uses a fifth of boto3's CPU time.

The errors of obstore have no status and no code. Therefore, after an error, `commit` checks the object, and repeats the
request with boto3.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import obstore
from botocore.session import Session
from obstore.exceptions import AlreadyExistsError, BaseError, PreconditionError
from obstore.store import S3Store

from config.platform.observability import tracing
from config.platform.storage.clients import ClientProfile, bucket, client, main_profile
from config.platform.storage.errors import Changed, RequestFailed
from config.platform.storage.objects import bare, quoted

if TYPE_CHECKING:
    from obstore.store import ClientConfig

SMALL_BYTES = 1024 * 1024
# For the whole request, during which no signal is handled. boto3 repeats a slower request, and waits longer.
TIMEOUT_SECONDS = 10
# obstore encodes other characters differently.
PLAIN_KEY = re.compile(r"[A-Za-z0-9._-]+(/[A-Za-z0-9._-]+)*")

used_by: set[int] = set()  # process IDs; the threads of obstore do not survive a fork


def is_possible(key: str, size: int) -> bool:
    """Return whether `put` can store an object of `size` bytes. A process cannot if its parent has used obstore."""
    return size <= SMALL_BYTES and PLAIN_KEY.fullmatch(key) is not None and used_by <= {os.getpid()}


def put(key: str, content: bytes, *, content_type: str, metadata: Mapping[str, str], if_match: str | None) -> str:
    """Store the object and return its ETag. `if_match`: the ETag to replace; None: no object may exist.

    The object is encrypted, and the storage verifies its SHA-256. Raises Changed if the condition is not met, and
    RequestFailed for all other errors.
    """
    with calling("PutObject") as s3_store:
        result = obstore.put(
            s3_store,
            key,
            content,
            attributes={"Content-Type": content_type, **metadata},
            mode={"e_tag": quoted(if_match)} if if_match else "create",
            use_multipart=False,
        )
    return bare(result["e_tag"] or "")


def put_once(key: str, content: bytes, *, content_type: str, metadata: Mapping[str, str]) -> None:
    """Store an object that is not required later, in one request of at most TIMEOUT_SECONDS. Raises StorageError.

    For code without a heartbeat: no lease is renewed during the request.
    """
    if not is_possible(key, 0):
        raise RequestFailed("this process cannot store an object in one request")
    put(key, content, content_type=content_type, metadata=metadata, if_match=None)


@contextmanager
def calling(operation: str) -> Iterator[S3Store]:
    """Surround a call of obstore. Raises Changed for a failed condition, and RequestFailed for all other errors."""
    used_by.add(os.getpid())
    with tracing.call(operation) as record_status:
        try:
            yield store(main_profile(), bucket())
        except (AlreadyExistsError, PreconditionError):
            record_status(412)
            raise Changed(f"{operation} returned 412") from None
        except (BaseError, OSError) as error:  # may quote the URL
            raise RequestFailed(f"the request failed: {type(error).__name__}", retryable=True, is_outage=True) from None
        record_status(200)


@cache
def store(profile: ClientProfile, name: str) -> S3Store:
    return S3Store(
        name,
        endpoint=client().meta.endpoint_url,  # with AWS, that of the region
        region=profile.region,
        access_key_id=profile.access_key_id.get_secret_value(),
        secret_access_key=profile.secret_access_key.get_secret_value(),
        virtual_hosted_style_request=False,
        server_side_encryption="AES256",
        checksum_algorithm="SHA256",
        unsigned_payload=True,
        retry_config={"max_retries": 0},
        client_options=options_of(profile),
    )


def options_of(profile: ClientProfile) -> ClientConfig:
    """Return the options of the HTTP client. It trusts the certificates of the system, and those that boto3 trusts."""
    options: ClientConfig = {
        "allow_http": True,
        "connect_timeout": f"{profile.connect_seconds}s",
        "timeout": f"{min(TIMEOUT_SECONDS, profile.read_seconds)}s",
        "user_agent": "sluice",
    }
    if ca_file := Session().get_config_variable("ca_bundle") or os.environ.get("REQUESTS_CA_BUNDLE"):
        options["root_certificate"] = Path(ca_file).read_bytes()
    return options
