"""Minimal exporter: COPY and put_object for each chunk, without job tables or a queue.

It is controlled by lines on stdin. The first line is JSON, `[["JFK", "2013-02-15", "its/path"], …]`. The exporter
prints `ready` after imports and connections. For each further line, it exports all chunks, and prints `done`.
"""

import json
import os
import sys
from typing import TYPE_CHECKING

import boto3
import psycopg
from botocore.config import Config
from psycopg import sql

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client

COPY = sql.SQL("COPY (SELECT * FROM demo.flights_for({}, {})) TO STDOUT (FORMAT csv, HEADER)")


def main() -> None:
    chunks: list[tuple[str, str, str]] = json.loads(sys.stdin.readline())
    bucket, storage = os.environ["S3_BUCKET"], client()
    with psycopg.connect(
        os.environ["SOURCE_DATABASE_URL"], autocommit=True, options="-c timezone=UTC -c datestyle=ISO"
    ) as source:
        print_line("ready")
        while sys.stdin.readline():
            for key, day, path in chunks:
                storage.put_object(
                    Bucket=bucket, Key=path, Body=copy_slice(source, key, day), ContentType="text/csv; charset=utf-8",
                    ServerSideEncryption="AES256",
                )  # fmt: skip
            print_line("done")


def copy_slice(source: psycopg.Connection, key: str, day: str) -> bytes:
    with source.cursor().copy(COPY.format(key, day)) as copy:
        return b"".join(copy)


def client() -> "S3Client":
    """Return a client like Sluice's, which neither signs bodies nor computes checksums."""
    s3: S3Client = boto3.client(
        "s3",
        endpoint_url=os.environ["S3_ENDPOINT_URL"],
        region_name=os.environ["S3_REGION"],
        aws_access_key_id=os.environ["S3_ACCESS_KEY_ID"],
        aws_secret_access_key=os.environ["S3_SECRET_ACCESS_KEY"],
        config=Config(
            signature_version="s3v4",
            s3={"addressing_style": "path", "payload_signing_enabled": False},
            request_checksum_calculation="when_required",
            response_checksum_validation="when_required",
            tcp_keepalive=True,
        ),
    )
    return s3


def print_line(word: str) -> None:
    print(word, flush=True)


if __name__ == "__main__":
    main()
