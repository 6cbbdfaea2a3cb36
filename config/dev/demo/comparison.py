"""Comparison of exported files with a direct COPY from the source database."""

import csv
import hashlib
import io
import json
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import date, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import boto3
import psycopg
from botocore.config import Config
from psycopg import sql

from config.dev.demo.promises import CheckFailed, require
from config.dev.demo.screen import Amount, Show

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client

READERS = 2  # a GET is mostly work of Python, so more threads do not help
MANIFEST = "manifest.json"
SHOWN = 5  # differences in the message


class Slice(NamedTuple):
    key: str
    day: date

    @property
    def file_name(self) -> str:
        """The path by the contract, such as `2013/02/15/JFK_20130215.csv`, repeated here to verify it."""
        return f"{self.day:%Y/%m/%d}/{self.key}_{self.day:%Y%m%d}.csv"


def slices(keys: tuple[str, ...], first: date, last: date) -> list[Slice]:
    days = [first + timedelta(days=n) for n in range((last - first).days + 1)]
    return [Slice(key, day) for key in keys for day in days]


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """The function in the source database."""

    url: str
    schema: str
    function: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Bucket:
    """The bucket of the files, which are at `<base_path>/<file name>`."""

    client: "S3Client"
    name: str
    base_path: str


def bucket(variables: Mapping[str, str], *, base_path: str) -> Bucket:
    client: S3Client = boto3.client(
        "s3",
        endpoint_url=variables["S3_ENDPOINT_URL"],
        region_name=variables["S3_REGION"],
        aws_access_key_id=variables["S3_ACCESS_KEY_ID"],
        aws_secret_access_key=variables["S3_SECRET_ACCESS_KEY"],
        config=Config(
            signature_version="s3v4", s3={"addressing_style": "path"}, max_pool_connections=READERS, proxies={}
        ),
    )
    return Bucket(client=client, name=variables["S3_BUCKET"], base_path=base_path)


def compare(archive: Path, expected: list[Slice], *, origin: Origin, bucket: Bucket, show: Show) -> Amount:
    """Compare each file in the zip, its object in the bucket and its line in the manifest with the source.

    Raises CheckFailed with the first differences. Rows are counted by a CSV reader, as a consumer would.
    """
    amount, wrong = Amount(0, 0, 0), list[str]()
    with open_archive(archive) as zipped, connected(origin.url) as source, ThreadPoolExecutor(READERS) as threads:
        lines = manifest(zipped, expected)
        objects = threads.map(lambda each: read_object(bucket, each), expected)
        for each, line, found in zip(expected, lines, objects, strict=True):
            content = copy_slice(source, origin, each)
            rows = count_rows(content)
            wrong += differences(each, content, in_zip=zipped.read(each.file_name), in_bucket=found)
            wrong += misstatements(each, content, rows, line)
            amount = Amount(amount.done + 1, amount.rows + rows, amount.size + len(content))
            show(amount)
    require(not wrong, f"{len(wrong):,} differences, the first:\n" + "\n".join(wrong[:SHOWN]))
    return amount


@contextmanager
def open_archive(archive: Path) -> Iterator[zipfile.ZipFile]:
    try:
        with zipfile.ZipFile(archive) as zipped:
            yield zipped
    except (zipfile.BadZipFile, zlib.error) as error:
        raise CheckFailed(f"the zip is damaged: {error}") from None


def manifest(zipped: zipfile.ZipFile, expected: list[Slice]) -> list[dict[str, Any]]:
    """Return the manifest's lines. Raises CheckFailed unless zip and manifest contain these files, in this order."""
    names = [each.file_name for each in expected]
    require(zipped.namelist() == [*names, MANIFEST], "the zip does not contain exactly the requested files")
    lines: list[dict[str, Any]] = json.loads(zipped.read(MANIFEST))["files"]
    require([line["fileName"] for line in lines] == names, "the manifest does not list exactly the files in the zip")
    return lines


@contextmanager
def connected(url: str) -> Iterator[psycopg.Connection]:
    with psycopg.connect(url, autocommit=True) as connection:
        # Set explicitly: psycopg would pass on the shell's PGTZ and PGDATESTYLE.
        connection.execute("SET TimeZone = 'UTC'; SET DateStyle = 'ISO'")
        yield connection


def copy_slice(source: psycopg.Connection, origin: Origin, each: Slice) -> bytes:
    """Return the output of `COPY (SELECT * FROM demo.flights_for(…)) TO STDOUT (FORMAT csv, HEADER)`."""
    statement = sql.SQL("COPY (SELECT * FROM {}({}, {})) TO STDOUT (FORMAT csv, HEADER)").format(
        sql.Identifier(origin.schema, origin.function), each.key, each.day.isoformat()
    )
    with source.cursor().copy(statement) as copy:
        return b"".join(copy)


def read_object(bucket: Bucket, each: Slice) -> bytes | None:
    """Return the object at the slice's path, or None if it does not exist."""
    try:
        response = bucket.client.get_object(Bucket=bucket.name, Key=f"{bucket.base_path}/{each.file_name}")
    except bucket.client.exceptions.NoSuchKey:
        return None
    return response["Body"].read()


def count_rows(content: bytes) -> int:
    return sum(1 for _ in csv.reader(io.StringIO(content.decode(), newline=""))) - 1


def differences(each: Slice, content: bytes, *, in_zip: bytes, in_bucket: bytes | None) -> Iterator[str]:
    if in_zip != content:
        yield f"{each.file_name} in the zip differs from COPY: {describe_difference(in_zip, content)}"
    if in_bucket is None:
        yield f"{each.file_name} is not in the bucket"
    elif in_bucket != content:
        yield f"{each.file_name} in the bucket differs from COPY: {describe_difference(in_bucket, content)}"


def describe_difference(found: bytes, content: bytes) -> str:
    pairs = zip(found, content, strict=False)
    at = next((n for n, (one, other) in enumerate(pairs) if one != other), min(len(found), len(content)))
    return f"{len(found):,} bytes instead of {len(content):,}; the first difference is at byte {at:,}"


def misstatements(each: Slice, content: bytes, rows: int, line: dict[str, Any]) -> Iterator[str]:
    facts = {
        "key": each.key,
        "effectiveDate": each.day.isoformat(),
        "rows": rows,
        "bytes": len(content),
        "sha256": hashlib.sha256(content).hexdigest(),
    }
    for name, value in facts.items():
        if line.get(name) != value:
            yield f"{each.file_name}: {name} is {line.get(name)!r} in the manifest instead of {value!r}"
