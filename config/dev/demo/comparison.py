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
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, NamedTuple

import boto3
import duckdb
import psycopg
from botocore.config import Config
from psycopg import sql

from config.dev.demo.checks import CheckFailed, require
from config.dev.demo.screen import Show, Totals

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client

READERS = 2  # a GET is mostly CPU time in Python, so more threads do not help
MANIFEST = "manifest.json"
MAX_SHOWN_DIFFERENCES = 5


class Chunk(NamedTuple):
    """An expected file."""

    key: str
    day: date

    @property
    def file_name(self) -> str:
        """The path that the API promises, such as `2013/02/15/JFK_20130215.csv`, repeated here to verify it."""
        return f"{self.day:%Y/%m/%d}/{self.key}_{self.day:%Y%m%d}.csv"


def chunks(keys: tuple[str, ...], first: date, last: date) -> list[Chunk]:
    days = [first + timedelta(days=n) for n in range((last - first).days + 1)]
    return [Chunk(key, day) for key in keys for day in days]


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceFunction:
    """The function in the source database."""

    url: str
    schema: str
    name: str


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


def compare(archive: Path, expected: list[Chunk], *, function: SourceFunction, bucket: Bucket, show: Show) -> Totals:
    """Compare each file in the zip, its object in the bucket and its entry in the manifest with the source.

    Raises CheckFailed with the first differences. Rows are counted by a CSV reader, as a consumer would count them.
    """
    totals, failures = Totals(0, 0, 0), list[str]()
    with open_archive(archive) as zipped, connected(function.url) as source, ThreadPoolExecutor(READERS) as threads:
        entries = manifest(zipped, expected)
        objects = threads.map(lambda chunk: read_object(bucket, chunk), expected)
        for chunk, entry, found in zip(expected, entries, objects, strict=True):
            content = copy_chunk(source, function, chunk)
            rows = count_rows(content)
            failures += differences(chunk, content, in_zip=zipped.read(chunk.file_name), in_bucket=found)
            failures += manifest_errors(chunk, content, rows, entry)
            totals = Totals(totals.done + 1, totals.rows + rows, totals.size + len(content))
            show(totals)
    require(not failures, f"{len(failures):,} differences, the first:\n" + "\n".join(failures[:MAX_SHOWN_DIFFERENCES]))
    return totals


@contextmanager
def open_archive(archive: Path) -> Iterator[zipfile.ZipFile]:
    try:
        with zipfile.ZipFile(archive) as zipped:
            yield zipped
    except (zipfile.BadZipFile, zlib.error) as error:
        raise CheckFailed(f"the zip is damaged: {error}") from None


def manifest(zipped: zipfile.ZipFile, expected: list[Chunk]) -> list[dict[str, Any]]:
    """Return the manifest's entries. Raises CheckFailed unless zip and manifest contain these files, in this order."""
    names = [chunk.file_name for chunk in expected]
    require(zipped.namelist() == [*names, MANIFEST], "the zip does not contain exactly the requested files")
    entries: list[dict[str, Any]] = json.loads(zipped.read(MANIFEST))["files"]
    listed = [entry["fileName"] for entry in entries]
    require(listed == names, "the manifest does not list exactly the files in the zip")
    return entries


@contextmanager
def connected(url: str) -> Iterator[psycopg.Connection]:
    with psycopg.connect(url, autocommit=True) as connection:
        # Set explicitly: psycopg would pass on the shell's PGTZ and PGDATESTYLE.
        connection.execute("SET TimeZone = 'UTC'; SET DateStyle = 'ISO'")
        yield connection


def copy_chunk(source: psycopg.Connection, function: SourceFunction, chunk: Chunk) -> bytes:
    """Return the output of `COPY (SELECT * FROM demo.flights_for(…)) TO STDOUT (FORMAT csv, HEADER)`."""
    statement = sql.SQL("COPY (SELECT * FROM {}({}, {})) TO STDOUT (FORMAT csv, HEADER)").format(
        sql.Identifier(function.schema, function.name), chunk.key, chunk.day.isoformat()
    )
    with source.cursor().copy(statement) as copy:
        return b"".join(copy)


def compare_parquet(file: Path, expected: list[Chunk], *, function: SourceFunction) -> int:
    """Compare the rows of a Parquet file, as DuckDB reads them, with COPY. Return the row count. Raises CheckFailed."""
    with TemporaryDirectory() as folder, connected(function.url) as source, duckdb.connect() as reader:
        copied = Path(folder) / "copied.csv"
        with copied.open("wb") as target:
            for number, chunk in enumerate(expected):
                header, _, lines = copy_chunk(source, function, chunk).partition(b"\n")
                target.write(lines if number else header + b"\n" + lines)
        try:
            rows, differing = compare_with_duckdb(reader, file, copied)
        except duckdb.Error as error:
            raise CheckFailed(f"DuckDB cannot compare {file.name} with COPY: {error}") from None
    require(not differing, f"{differing:,} rows of {file.name} and of COPY differ")
    return rows


def compare_with_duckdb(reader: duckdb.DuckDBPyConnection, parquet: Path, copied: Path) -> tuple[int, int]:
    """Return the number of rows in the Parquet file, and the number of rows that only one of the two files contains."""
    reader.execute("SET TimeZone = 'UTC'")
    described = reader.execute("DESCRIBE SELECT * FROM read_parquet(?)", [str(parquet)]).fetchall()
    types = {name: kind for name, kind, *_ in described}
    reader.execute("CREATE TABLE ours AS SELECT * FROM read_parquet(?)", [str(parquet)])
    # An unquoted empty field is NULL, and a quoted one an empty string, as in the output of COPY.
    reader.execute(
        "CREATE TABLE theirs AS SELECT * FROM read_csv(?, header = true, columns = ?, allow_quoted_nulls = false)",
        [str(copied), types],
    )
    (rows,) = reader.execute("SELECT count(*) FROM ours").fetchone() or (0,)
    (differing,) = reader.execute("""
        SELECT count(*) FROM (
            (SELECT * FROM ours EXCEPT ALL SELECT * FROM theirs)
            UNION ALL (SELECT * FROM theirs EXCEPT ALL SELECT * FROM ours)
        )
    """).fetchone() or (0,)
    return rows, differing


def read_object(bucket: Bucket, chunk: Chunk) -> bytes | None:
    """Return the object at the chunk's path, or None if it does not exist."""
    try:
        response = bucket.client.get_object(Bucket=bucket.name, Key=f"{bucket.base_path}/{chunk.file_name}")
    except bucket.client.exceptions.NoSuchKey:
        return None
    return response["Body"].read()


def count_rows(content: bytes) -> int:
    return sum(1 for _ in csv.reader(io.StringIO(content.decode(), newline=""))) - 1


def differences(chunk: Chunk, content: bytes, *, in_zip: bytes, in_bucket: bytes | None) -> Iterator[str]:
    if in_zip != content:
        yield f"{chunk.file_name} in the zip differs from COPY: {describe_difference(in_zip, content)}"
    if in_bucket is None:
        yield f"{chunk.file_name} is not in the bucket"
    elif in_bucket != content:
        yield f"{chunk.file_name} in the bucket differs from COPY: {describe_difference(in_bucket, content)}"


def describe_difference(found: bytes, content: bytes) -> str:
    pairs = zip(found, content, strict=False)
    at = next((n for n, (one, other) in enumerate(pairs) if one != other), min(len(found), len(content)))
    return f"{len(found):,} bytes instead of {len(content):,}; the first difference is at byte {at:,}"


def manifest_errors(chunk: Chunk, content: bytes, rows: int, entry: dict[str, Any]) -> Iterator[str]:
    facts = {
        "key": chunk.key,
        "effectiveDate": chunk.day.isoformat(),
        "rows": rows,
        "bytes": len(content),
        "sha256": hashlib.sha256(content).hexdigest(),
    }
    for name, value in facts.items():
        if entry.get(name) != value:
            yield f"{chunk.file_name}: {name} is {entry.get(name)!r} in the manifest instead of {value!r}"
