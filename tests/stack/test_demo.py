"""Tests of the demo's verification of exports. Most of them corrupt one thing, which the verification must report."""

import hashlib
import io
import json
from collections.abc import Iterator
from datetime import date
from pathlib import Path
from typing import Any
from zipfile import ZipFile

import duckdb
import psycopg
import pytest
from rich.console import Console

from config.dev.demo import comparison, screen
from config.dev.demo.checks import CheckFailed
from config.dev.demo.comparison import MANIFEST, Bucket, Chunk, SourceFunction
from config.dev.demo.screen import Totals
from config.dev.stack.servers import Servers

CHUNKS = comparison.chunks(("a", "b"), date(2024, 2, 28), date(2024, 3, 1))
# A line break and a quote inside a cell, NULL, and a time whose text depends on the session's time zone.
FUNCTION = """
CREATE SCHEMA demo_check;
CREATE FUNCTION demo_check.rows_for(key text, effective_date date) RETURNS TABLE (k text, n int, at timestamptz)
LANGUAGE sql STABLE AS $$
    SELECT key || E'\\n"x"', nullif(n, 2), effective_date::timestamp AT TIME ZONE 'UTC'
    FROM generate_series(1, 3) n ORDER BY n
$$
"""


@pytest.fixture
def function(stack_servers: Servers) -> Iterator[SourceFunction]:
    url = stack_servers.postgres.url("source")
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(FUNCTION)
        yield SourceFunction(url=url, schema="demo_check", name="rows_for")
        connection.execute("DROP SCHEMA demo_check CASCADE")


def content_of(each: Chunk) -> bytes:
    at = f"{each.day} 00:00:00+00"
    cell = f'"{each.key}\n""x"""'
    return f"k,n,at\n{cell},1,{at}\n{cell},,{at}\n{cell},3,{at}\n".encode()


class FinishedExport:
    """A correct export, which tests corrupt."""

    def __init__(self, bucket: Bucket, archive: Path) -> None:
        self.bucket, self.archive = bucket, archive
        self.files = {each.file_name: content_of(each) for each in CHUNKS}
        self.objects = dict(self.files)
        self.lines: list[dict[str, Any]] = [
            {
                "key": each.key,
                "effectiveDate": str(each.day),
                "fileName": each.file_name,
                "rows": 3,
                "bytes": len(content_of(each)),
                "sha256": hashlib.sha256(content_of(each)).hexdigest(),
            }
            for each in CHUNKS
        ]

    def compare(self, function: SourceFunction) -> Totals:
        with ZipFile(self.archive, "w") as zipped:
            for name, content in self.files.items():
                zipped.writestr(name, content)
            zipped.writestr(MANIFEST, json.dumps({"files": self.lines}))
        for name, content in self.objects.items():
            key = f"{self.bucket.base_path}/{name}"
            self.bucket.client.put_object(Bucket=self.bucket.name, Key=key, Body=content)
        return comparison.compare(self.archive, CHUNKS, function=function, bucket=self.bucket, show=lambda _: None)


@pytest.fixture
def delivered(stack_servers: Servers, tmp_path: Path) -> FinishedExport:
    bucket = comparison.bucket(stack_servers.environment(), base_path=tmp_path.name)
    return FinishedExport(bucket, tmp_path / "delivered.zip")


def corrupted(content: bytes) -> bytes:
    return content[:-2] + b"x" + content[-1:]


def test_it_counts_matching_files(delivered: FinishedExport, function: SourceFunction) -> None:
    """C5."""
    size = sum(map(len, delivered.files.values()))
    assert delivered.compare(function) == Totals(len(CHUNKS), 3 * len(CHUNKS), size)


def test_it_ignores_the_local_time_zone(
    delivered: FinishedExport, function: SourceFunction, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PGTZ", "America/New_York")
    monkeypatch.setenv("PGDATESTYLE", "German")
    assert delivered.compare(function).done == len(CHUNKS)


def test_it_fails_on_one_changed_byte_in_the_zip(delivered: FinishedExport, function: SourceFunction) -> None:
    name = "2024/02/29/b_20240229.csv"
    delivered.files[name] = corrupted(delivered.files[name])
    with pytest.raises(CheckFailed, match=rf"1 differences, the first:\n{name} in the zip differs from COPY"):
        delivered.compare(function)


def test_it_fails_on_one_changed_byte_in_the_bucket(delivered: FinishedExport, function: SourceFunction) -> None:
    name = "2024/03/01/a_20240301.csv"
    delivered.objects[name] = corrupted(delivered.objects[name])
    with pytest.raises(CheckFailed, match=rf"1 differences, the first:\n{name} in the bucket differs from COPY"):
        delivered.compare(function)


def test_it_fails_on_a_row_missing_from_both(delivered: FinishedExport, function: SourceFunction) -> None:
    for contents in (delivered.files, delivered.objects):
        name, content = next(iter(contents.items()))
        contents[name] = content[: content.rindex(b'"a')]
    with pytest.raises(CheckFailed, match="2 differences"):
        delivered.compare(function)


def test_it_fails_on_a_missing_object(delivered: FinishedExport, function: SourceFunction) -> None:
    name, _ = delivered.objects.popitem()
    with pytest.raises(CheckFailed, match=f"{name} is not in the bucket"):
        delivered.compare(function)


@pytest.mark.parametrize("extra", [{}, {"2024/03/02/a_20240302.csv": b"k\n"}], ids=["missing", "extra"])
def test_it_fails_on_unexpected_files_in_the_zip(
    delivered: FinishedExport, function: SourceFunction, extra: dict[str, bytes]
) -> None:
    delivered.files.popitem()
    delivered.files.update(extra)
    with pytest.raises(CheckFailed, match="exactly the requested files"):
        delivered.compare(function)


@pytest.mark.parametrize("field", ["key", "effectiveDate", "fileName", "rows", "bytes", "sha256"])
@pytest.mark.slow
def test_it_fails_on_a_wrong_manifest_entry(delivered: FinishedExport, function: SourceFunction, field: str) -> None:
    delivered.lines[1][field] = 0
    with pytest.raises(CheckFailed, match="manifest"):
        delivered.compare(function)


def test_it_fails_on_a_damaged_zip(delivered: FinishedExport, function: SourceFunction) -> None:
    delivered.compare(function)
    first = content_of(CHUNKS[0])
    delivered.archive.write_bytes(delivered.archive.read_bytes().replace(first, corrupted(first)))
    with pytest.raises(CheckFailed, match="the zip is damaged"):
        comparison.compare(delivered.archive, CHUNKS, function=function, bucket=delivered.bucket, show=lambda _: None)


def test_progress_in_a_log_is_one_plain_line_with_the_total() -> None:
    log = Console(file=io.StringIO(), highlight=False)
    with screen.progress(log, total=1095, unit="chunks") as show:
        for done in (0, 500, 1095, 1095):
            show(Totals(done, 300 * done, 30_000 * done))
    assert isinstance(log.file, io.StringIO)
    (line,) = log.file.getvalue().splitlines()
    assert line.isprintable()
    assert "1,095 of 1,095 chunks  328,500 rows" in line


# ---- Parquet --------------------------------------------------------------------------------------------------------
def parquet_of(folder: Path, select: str = "*") -> Path:
    """Write the content of all chunks to a Parquet file."""
    csv_file, file = folder / "copied.csv", folder / "all.parquet"
    header = b"k,n,at\n"
    csv_file.write_bytes(header + b"".join(content_of(each).removeprefix(header) for each in CHUNKS))
    with duckdb.connect() as writer:
        writer.execute("SET TimeZone = 'UTC'")
        columns = {"k": "VARCHAR", "n": "INTEGER", "at": "TIMESTAMPTZ"}
        writer.execute(
            "CREATE TABLE copied AS SELECT * FROM read_csv(?, header = true, columns = ?)", [str(csv_file), columns]
        )
        writer.execute(f"COPY (SELECT {select} FROM copied) TO '{file}' (FORMAT parquet)")
    return file


def test_it_counts_equal_rows_of_a_parquet_file(function: SourceFunction, tmp_path: Path) -> None:
    """C5, A30."""
    assert comparison.compare_parquet(parquet_of(tmp_path), CHUNKS, function=function) == 3 * len(CHUNKS)


def test_it_reports_a_parquet_file_with_another_value(function: SourceFunction, tmp_path: Path) -> None:
    file = parquet_of(
        tmp_path, """k, CASE WHEN "at" = '2024-02-29 00:00:00+00' AND n = 3 THEN 4 ELSE n END AS n, "at" """
    )
    with pytest.raises(CheckFailed, match=r"4 rows of all\.parquet and of COPY differ"):
        comparison.compare_parquet(file, CHUNKS, function=function)


def test_it_reports_a_file_that_is_not_parquet(function: SourceFunction, tmp_path: Path) -> None:
    (tmp_path / "all.parquet").write_bytes(b"PAR1")
    with pytest.raises(CheckFailed, match="DuckDB cannot compare all"):
        comparison.compare_parquet(tmp_path / "all.parquet", CHUNKS, function=function)
