"""boto3 clients, presigned URLs, and the health check."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from threading import Lock
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import quote

import boto3
from botocore.config import Config
from django.conf import settings

from config.platform.observability import tracing
from config.platform.storage import signing
from config.platform.storage.errors import attempt

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client
    from pydantic import AnyHttpUrl, SecretStr

ATTR_CHARS = "!#$&+-.^_`|~"  # RFC 8187 `attr-char`, beyond letters and digits


@dataclass
class Timeouts:
    """Timeouts of this process for storage requests, in seconds."""

    connect: float  # also limits the sending of each block of a body: urllib3 sends under the connect timeout
    read: float


timeouts = Timeouts(connect=5, read=60)


def use_short_timeouts() -> None:
    """Use short timeouts in this web process, where each waiting request blocks a thread."""
    timeouts.connect, timeouts.read = 3, 10


class ClientProfile(NamedTuple):
    """Endpoint, credentials, and timeouts of a client. `process` keeps a fork from using its parent's sockets."""

    process: int
    endpoint: AnyHttpUrl | None
    region: str
    access_key_id: SecretStr
    secret_access_key: SecretStr
    connect_seconds: float
    read_seconds: float


client_lock = Lock()


def connect(profile: ClientProfile) -> S3Client:
    """Return the client of a profile. Threads may share clients, but not sessions."""
    with client_lock:  # a client uses about 15 MB; threads that start together must not create one each
        return make(profile)


@cache
def session(_process: int) -> boto3.session.Session:
    """Return the session of a process. It loads botocore's S3 model once for all clients."""
    signing.install()
    return boto3.session.Session()


@cache
def make(profile: ClientProfile) -> S3Client:
    """Create the client of a profile.

    Bodies are not signed. Over https, TLS protects them, as in AWS's own SDKs. Over http, a second SHA-256 (0.18 s of
    CPU for 230 MB) would not help: SeaweedFS accepts any payload hash.
    """
    client: S3Client = session(profile.process).client(
        "s3",
        endpoint_url=str(profile.endpoint).rstrip("/") if profile.endpoint else None,
        region_name=profile.region,
        aws_access_key_id=profile.access_key_id.get_secret_value(),
        aws_secret_access_key=profile.secret_access_key.get_secret_value(),
        config=Config(
            signature_version="s3v4",
            s3={"addressing_style": "path", "payload_signing_enabled": False},
            # botocore's CRC32 would be a third pass over each body, and not every S3 server supports it.
            request_checksum_calculation="when_required",
            response_checksum_validation="when_required",
            connect_timeout=profile.connect_seconds,
            read_timeout=profile.read_seconds,
            retries={"total_max_attempts": 1},
            max_pool_connections=32,
            user_agent="sluice",  # botocore would build one for each request, which takes a sixth of the time of a PUT
            tcp_keepalive=True,
        ),
    )
    tracing.trace_calls(client)
    return client


def main_profile() -> ClientProfile:
    env = settings.SLUICE
    return ClientProfile(
        os.getpid(), env.s3_endpoint_url, env.s3_region, env.s3_access_key_id, env.s3_secret_access_key,
        timeouts.connect, timeouts.read,
    )  # fmt: skip


def download_profile() -> ClientProfile:
    """Return the profile of download links: the public endpoint and the download-only keys, if set."""
    env = settings.SLUICE
    return main_profile()._replace(
        endpoint=env.s3_public_endpoint_url or env.s3_endpoint_url,
        access_key_id=env.s3_download_access_key_id or env.s3_access_key_id,
        secret_access_key=env.s3_download_secret_access_key or env.s3_secret_access_key,
    )


def upload_profile() -> ClientProfile:
    """Return the profile of upload URLs: the public endpoint and the main keys. The download keys cannot write."""
    env = settings.SLUICE
    return main_profile()._replace(endpoint=env.s3_public_endpoint_url or env.s3_endpoint_url)


def client() -> S3Client:
    return connect(main_profile())


def bucket() -> str:
    name: str = settings.SLUICE.s3_bucket
    return name


def ping() -> None:
    """Raise StorageError unless the bucket responds within about 3 s."""
    attempt(lambda: connect(main_profile()._replace(connect_seconds=1, read_seconds=2)).head_bucket(Bucket=bucket()))


def presign_download(key: str, *, seconds: int, content_type: str, file_name: str) -> str:
    """Return a URL that downloads the object with this file name and type. It expires after `seconds`."""
    return connect(download_profile()).generate_presigned_url(
        "get_object",
        Params={
            "Bucket": bucket(),
            "Key": key,
            "ResponseContentType": content_type,
            "ResponseContentDisposition": content_disposition(file_name),
        },
        ExpiresIn=seconds,
    )


class Ticket(NamedTuple):
    """A presigned PUT of one object: the URL and the required headers."""

    url: str
    headers: dict[str, str]


def presign_upload(key: str, *, seconds: int, content_type: str, size: int, metadata: Mapping[str, str]) -> Ticket:
    """Return a ticket to write the object with exactly this size and type, valid for `seconds`.

    The client can use it more than once. `metadata` must be ASCII, because its values are headers.
    """
    url = connect(upload_profile()).generate_presigned_url(
        "put_object",
        Params={
            "Bucket": bucket(),
            "Key": key,
            "ContentType": content_type,
            "ContentLength": size,
            "Metadata": metadata,
            "ServerSideEncryption": "AES256",
        },
        ExpiresIn=seconds,
    )
    named = {f"x-amz-meta-{name}": value for name, value in metadata.items()}
    return Ticket(url, {"Content-Type": content_type, "x-amz-server-side-encryption": "AES256", **named})


def content_disposition(file_name: str) -> str:
    """Return an `attachment` header value (RFC 6266) with the name in ASCII and in UTF-8.

    Characters that could end the quoted string or the header, or form a path, become underscores.
    """
    name = "".join("_" if char in '/\\"' or not char.isprintable() else char for char in file_name) or "download"
    plain = "".join(char if char.isascii() and char not in "%;" else "_" for char in name)
    return f"attachment; filename=\"{plain}\"; filename*=UTF-8''{quote(name, safe=ATTR_CHARS)}"
