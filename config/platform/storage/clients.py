"""The one factory of boto3 clients, and what needs a client of a special kind: download links and the health check."""

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
from config.platform.storage.errors import attempt

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client
    from pydantic import AnyHttpUrl, SecretStr

ATTR_CHARS = "!#$&+-.^_`|~"  # RFC 8187 `attr-char`, beyond letters and digits


@dataclass
class Patience:
    """How long this process waits for the storage, in seconds."""

    connect: float  # also the limit for sending one slice of a body: urllib3 sends under the connect timeout
    read: float


patience = Patience(connect=5, read=60)


def hurry() -> None:
    """Have this process wait less from now on: people wait for it, and each of them takes a thread."""
    patience.connect, patience.read = 3, 10


class Door(NamedTuple):
    """Where a client goes, as whom, and how long it waits. `process` keeps a fork from using its parent's sockets."""

    process: int
    endpoint: AnyHttpUrl | None
    region: str
    access_key_id: SecretStr
    secret_access_key: SecretStr
    connect_seconds: float
    read_seconds: float


making = Lock()


def connect(door: Door) -> S3Client:
    """Return a client, made once for each door. Clients are safe to share between threads; sessions are not."""
    with making:  # each takes some 15 MB: eight threads that begin at the same moment must not make eight
        return make(door)


@cache
def session(_process: int) -> boto3.session.Session:
    """Return what clients of a process are made by: it reads the description of S3 once for all of them."""
    return boto3.session.Session()


@cache
def make(door: Door) -> S3Client:
    """Return a new client.

    Bodies are not signed. Over https TLS vouches for them, as in AWS's own SDKs; SeaweedFS was seen to accept any
    payload hash, so over http the second SHA-256 (0.18 s of CPU for 230 MB) bought nothing.
    """
    client: S3Client = session(door.process).client(
        "s3",
        endpoint_url=str(door.endpoint).rstrip("/") if door.endpoint else None,
        region_name=door.region,
        aws_access_key_id=door.access_key_id.get_secret_value(),
        aws_secret_access_key=door.secret_access_key.get_secret_value(),
        config=Config(
            signature_version="s3v4",
            s3={"addressing_style": "path", "payload_signing_enabled": False},
            # botocore's CRC32 of every body would be a third pass over the bytes, and not every S3 understands it.
            request_checksum_calculation="when_required",
            response_checksum_validation="when_required",
            connect_timeout=door.connect_seconds,
            read_timeout=door.read_seconds,
            retries={"total_max_attempts": 1},
            max_pool_connections=32,
            user_agent="sluice",  # botocore puts its own together anew for each request, a sixth of what a PUT costs
            tcp_keepalive=True,
        ),
    )
    tracing.watch(client)
    return client


def main_door() -> Door:
    env = settings.SLUICE
    return Door(
        os.getpid(), env.s3_endpoint_url, env.s3_region, env.s3_access_key_id, env.s3_secret_access_key,
        patience.connect, patience.read,
    )  # fmt: skip


def download_door() -> Door:
    """The public address, with the keys that may only download, as far as they are set."""
    env = settings.SLUICE
    return main_door()._replace(
        endpoint=env.s3_public_endpoint_url or env.s3_endpoint_url,
        access_key_id=env.s3_download_access_key_id or env.s3_access_key_id,
        secret_access_key=env.s3_download_secret_access_key or env.s3_secret_access_key,
    )


def upload_door() -> Door:
    """The public address, with the service's own keys: those for downloads may not write."""
    env = settings.SLUICE
    return main_door()._replace(endpoint=env.s3_public_endpoint_url or env.s3_endpoint_url)


def client() -> S3Client:
    return connect(main_door())


def bucket() -> str:
    name: str = settings.SLUICE.s3_bucket
    return name


def ping() -> None:
    """Return if the bucket answers within about 3 s, or raise StorageError."""
    attempt(lambda: connect(main_door()._replace(connect_seconds=1, read_seconds=2)).head_bucket(Bucket=bucket()))


def presign_download(key: str, *, seconds: int, content_type: str, file_name: str) -> str:
    """Return a URL that downloads the object for `seconds`, under this name and type and no others."""
    return connect(download_door()).generate_presigned_url(
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
    """Lets whoever holds it PUT one object: the URL, and the headers that have to be sent with it."""

    url: str
    headers: dict[str, str]


def presign_upload(key: str, *, seconds: int, content_type: str, size: int, metadata: Mapping[str, str]) -> Ticket:
    """Return what lets a client write the object for `seconds`, with these bytes in number and this type and no others.

    It may do so more than once. `metadata` has to be ASCII: its values are headers.
    """
    url = connect(upload_door()).generate_presigned_url(
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
    """Return an `attachment` header value (RFC 6266) that keeps any name, in ASCII and, if that loses something, UTF-8.

    Whatever could end the quoted string or the header, or name a folder, becomes an underscore.
    """
    name = "".join("_" if char in '/\\"' or not char.isprintable() else char for char in file_name) or "download"
    plain = "".join(char if char.isascii() and char not in "%;" else "_" for char in name)
    return f"attachment; filename=\"{plain}\"; filename*=UTF-8''{quote(name, safe=ATTR_CHARS)}"
