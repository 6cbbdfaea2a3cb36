"""The demo's own check must be able to fail: each case here spoils one thing that was right."""

import hashlib
import io
import json
from collections.abc import Iterator
from datetime import date
from pathlib import Path
from typing import Any
from zipfile import ZipFile

import psycopg
import pytest
from rich.console import Console

from config.dev.demo import comparison, screen
from config.dev.demo.comparison import MANIFEST, Bucket, Origin, Slice
from config.dev.demo.promises import DidNotHold
from config.dev.demo.screen import Amount
from config.dev.stack.servers import Servers

SLICES = comparison.slices(("a", "b"), date(2024, 2, 28), date(2024, 3, 1))
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
def origin(stack_servers: Servers) -> Iterator[Origin]:
    url = stack_servers.postgres.url("source")
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(FUNCTION)
        yield Origin(url=url, schema="demo_check", function="rows_for")
        connection.execute("DROP SCHEMA demo_check CASCADE")


def content_of(each: Slice) -> bytes:
    at = f"{each.day} 00:00:00+00"
    cell = f'"{each.key}\n""x"""'
    return f"k,n,at\n{cell},1,{at}\n{cell},,{at}\n{cell},3,{at}\n".encode()


class Delivered:
    """An export that is right in everything, until a test spoils it."""

    def __init__(self, bucket: Bucket, archive: Path) -> None:
        self.bucket, self.archive = bucket, archive
        self.files = {each.file_name: content_of(each) for each in SLICES}
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
            for each in SLICES
        ]

    def compare(self, origin: Origin) -> Amount:
        with ZipFile(self.archive, "w") as zipped:
            for name, content in self.files.items():
                zipped.writestr(name, content)
            zipped.writestr(MANIFEST, json.dumps({"files": self.lines}))
        for name, content in self.objects.items():
            key = f"{self.bucket.base_path}/{name}"
            self.bucket.client.put_object(Bucket=self.bucket.name, Key=key, Body=content)
        return comparison.compare(self.archive, SLICES, origin=origin, bucket=self.bucket, show=lambda _: None)


@pytest.fixture
def delivered(stack_servers: Servers, tmp_path: Path) -> Delivered:
    bucket = comparison.bucket(stack_servers.environment(), base_path=tmp_path.name)
    return Delivered(bucket, tmp_path / "delivered.zip")


def spoiled(content: bytes) -> bytes:
    return content[:-2] + b"x" + content[-1:]


def test_it_counts_what_is_right(delivered: Delivered, origin: Origin) -> None:
    """C5."""
    size = sum(map(len, delivered.files.values()))
    assert delivered.compare(origin) == Amount(len(SLICES), 3 * len(SLICES), size)


def test_it_is_not_misled_by_the_time_zone_of_whoever_runs_it(
    delivered: Delivered, origin: Origin, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PGTZ", "America/New_York")
    monkeypatch.setenv("PGDATESTYLE", "German")
    assert delivered.compare(origin).done == len(SLICES)


def test_it_fails_on_one_changed_byte_in_the_zip(delivered: Delivered, origin: Origin) -> None:
    name = "2024/02/29/b_20240229.csv"
    delivered.files[name] = spoiled(delivered.files[name])
    with pytest.raises(DidNotHold, match=rf"1 differences, the first:\n{name} in the zip is not what COPY gives"):
        delivered.compare(origin)


def test_it_fails_on_one_changed_byte_in_the_bucket(delivered: Delivered, origin: Origin) -> None:
    name = "2024/03/01/a_20240301.csv"
    delivered.objects[name] = spoiled(delivered.objects[name])
    with pytest.raises(DidNotHold, match=rf"1 differences, the first:\n{name} in the bucket is not what COPY gives"):
        delivered.compare(origin)


def test_it_fails_on_a_row_that_is_in_neither(delivered: Delivered, origin: Origin) -> None:
    for contents in (delivered.files, delivered.objects):
        name, content = next(iter(contents.items()))
        contents[name] = content[: content.rindex(b'"a')]
    with pytest.raises(DidNotHold, match="2 differences"):
        delivered.compare(origin)


def test_it_fails_on_an_object_that_is_missing(delivered: Delivered, origin: Origin) -> None:
    name, _ = delivered.objects.popitem()
    with pytest.raises(DidNotHold, match=f"{name} is not in the bucket"):
        delivered.compare(origin)


@pytest.mark.parametrize("extra", [{}, {"2024/03/02/a_20240302.csv": b"k\n"}], ids=["missing", "extra"])
def test_it_fails_on_other_files_in_the_zip_than_were_asked_for(
    delivered: Delivered, origin: Origin, extra: dict[str, bytes]
) -> None:
    delivered.files.popitem()
    delivered.files.update(extra)
    with pytest.raises(DidNotHold, match="exactly the files that were asked for"):
        delivered.compare(origin)


@pytest.mark.parametrize("field", ["key", "effectiveDate", "fileName", "rows", "bytes", "sha256"])
def test_it_fails_on_a_wrong_line_of_the_manifest(delivered: Delivered, origin: Origin, field: str) -> None:
    delivered.lines[1][field] = 0
    with pytest.raises(DidNotHold, match="manifest"):
        delivered.compare(origin)


def test_it_fails_on_a_damaged_zip(delivered: Delivered, origin: Origin) -> None:
    delivered.compare(origin)
    first = content_of(SLICES[0])
    delivered.archive.write_bytes(delivered.archive.read_bytes().replace(first, spoiled(first)))
    with pytest.raises(DidNotHold, match="the zip is damaged"):
        comparison.compare(delivered.archive, SLICES, origin=origin, bucket=delivered.bucket, show=lambda _: None)


def test_a_log_gets_plain_lines_that_end_with_the_whole() -> None:
    log = Console(file=io.StringIO(), highlight=False)
    with screen.progress(log, total=1095, unit="chunks") as show:
        for done in (0, 500, 1095, 1095):
            show(Amount(done, 300 * done, 30_000 * done))
    assert isinstance(log.file, io.StringIO)
    (line,) = log.file.getvalue().splitlines()
    assert line.isprintable()
    assert "1,095 of 1,095 chunks  328,500 rows" in line
