"""Parquet files, read back by pyarrow and DuckDB and compared with the values in Postgres. A30."""

import io
import math
import zipfile
from datetime import UTC, date, datetime, time
from decimal import Decimal
from pathlib import Path
from typing import Any

import duckdb
import psycopg
import pyarrow as pa
import pytest
from django.contrib.auth.models import User
from pyarrow import parquet
from rest_framework.test import APIClient

from config.platform import storage
from exports.core.planning import Shape
from exports.delivery import bundles
from exports.models import Chunk, Dataset, Job
from exports.source import parquet as writer
from exports.worker import completion, execution
from tests.integration.factories import make_job
from tests.integration.test_completion import delivered, finish

pytestmark = pytest.mark.usefixtures("empty_bucket")

PARQUET = Shape(format="parquet", compression="zstd")
NAN = float("nan")

# Column, type in Postgres, type in the file, and values: as SQL, and as Python reads them from the file.
TYPES: list[tuple[str, str, pa.DataType, list[tuple[str, Any]]]] = [
    ("small", "smallint", pa.int16(), [("-32768", -32768), ("32767", 32767)]),
    ("whole", "integer", pa.int32(), [("-2147483648", -(2**31)), ("2147483647", 2**31 - 1)]),
    ("big", "bigint", pa.int64(), [("'-9223372036854775808'", -(2**63)), ("9223372036854775807", 2**63 - 1)]),
    ("single", "real", pa.float32(), [("'NaN'", NAN), ("'-Infinity'", -math.inf), ("1e-45", 1.401298464324817e-45)]),
    ("ratio", "double precision", pa.float64(), [("0.1", 0.1), ("'Infinity'", math.inf), ("'NaN'", NAN), ("5e-324", 5e-324)]),  # noqa: E501
    ("flag", "boolean", pa.bool_(), [("true", True), ("false", False)]),
    ("day", "date", pa.date32(), [("'0001-01-01'", date(1, 1, 1)), ("'9999-12-31'", date(9999, 12, 31))]),
    ("clock", "time", pa.time64("us"), [("'00:00'", time()), ("'23:59:59.999999'", time(23, 59, 59, 999999))]),
    ("local", "timestamp", pa.timestamp("us"), [("'0001-01-01'", datetime(1, 1, 1)), ("'9999-12-31 23:59:59.999999'", datetime(9999, 12, 31, 23, 59, 59, 999999))]),  # noqa: DTZ001, E501
    ("at", "timestamptz", pa.timestamp("us", "UTC"), [("'2024-02-29 12:34:56.789012+05:30'", datetime(2024, 2, 29, 7, 4, 56, 789012, UTC))]),  # noqa: E501
    ("raw", "bytea", pa.binary(), [(r"'\x00ff'", b"\x00\xff"), ("''", b"")]),
    ("price", "data.money_of_two", pa.decimal128(10, 2), [("1.5", Decimal("1.50")), ("-99999999.99", Decimal("-99999999.99"))]),  # noqa: E501
    ("any_number", "numeric", pa.string(), [("123456789012345678901234567890.123456789", "123456789012345678901234567890.123456789"), ("'NaN'", "NaN")]),  # noqa: E501
    ("words", "text", pa.string(), [("''", ""), (r"E'a\r\n\"b\", \\c'", 'a\r\n"b", \\c'), (r"'\.'", r"\."), ("'🛫 日本'", "🛫 日本"), ("'NULL'", "NULL"), ("'null'", "null")]),  # noqa: E501
    ("padded", "char(3)", pa.string(), [("'a'", "a  ")]),
    ("id", "uuid", pa.string(), [("'0197a3c4-0000-7000-8000-000000000001'", "0197a3c4-0000-7000-8000-000000000001")]),
    ("doc", "json", pa.string(), [("""'{"a": 1,\n "b": 1.10}'""", '{"a": 1,\n "b": 1.10}')]),
    ("docb", "jsonb", pa.string(), [("""'{"z": 1.10}'""", '{"z": 1.10}')]),
    ("span", "interval", pa.string(), [("'1 day 2 hours'", "1 day 02:00:00")]),
    ("clock_tz", "timetz", pa.string(), [("'12:00+02'", "12:00:00+02")]),
    ("money", "money", pa.string(), [("1.5", "$1.50")]),
    ("net", "inet", pa.string(), [("'10.0.0.1/8'", "10.0.0.1/8")]),
    ("range_", "int4range", pa.string(), [("'[1,5)'", "[1,5)")]),
    ("bits", "bit(3)", pa.string(), [("B'101'", "101")]),
    ("place", "point", pa.string(), [("'(1,2)'", "(1,2)")]),
    ("mood", "data.mood", pa.string(), [("'happy'", "happy")]),
    ("old_vector", "int2vector", pa.string(), [("'1 2'", "1 2")]),
    ("bigs", "bigint[]", pa.list_(pa.int64()), [("'{9007199254740993,NULL}'", [9007199254740993, None]), ("'{}'", [])]),
    ("ratios", "real[]", pa.list_(pa.float32()), [("'{NaN,Infinity,0.5}'", [NAN, math.inf, 0.5])]),
    ("flags", "boolean[]", pa.list_(pa.bool_()), [("'{t,f,NULL}'", [True, False, None])]),
    ("days", "date[]", pa.list_(pa.date32()), [("'{2024-02-29}'", [date(2024, 2, 29)])]),
    ("clocks", "time[]", pa.list_(pa.time64("us")), [("'{12:34:56.5}'", [time(12, 34, 56, 500000)])]),
    ("ats", "timestamptz[]", pa.list_(pa.timestamp("us", "UTC")), [("'{2024-02-29 00:00:00+00}'", [datetime(2024, 2, 29, tzinfo=UTC)])]),  # noqa: E501
    ("raws", "bytea[]", pa.list_(pa.binary()), [(r"""'{"\\x00ff","\\x",NULL}'""", [b"\x00\xff", b"", None])]),
    ("tags", "text[]", pa.list_(pa.string()), [("""ARRAY['a,b', 'c"d', '', 'NULL', NULL, E'\\n']""", ["a,b", 'c"d', "", "NULL", None, "\n"])]),  # noqa: E501
    ("padded_ones", "char(3)[]", pa.list_(pa.string()), [("""'{a,"   ",NULL}'""", ["a  ", "   ", None])]),
    ("nets", "inet[]", pa.list_(pa.string()), [("'{10.0.0.1,10.0.0.1/8,NULL}'", ["10.0.0.1", "10.0.0.1/8", None]), ("'{::1}'", ["::1"])]),  # noqa: E501
    ("docs", "jsonb[]", pa.list_(pa.string()), [("""ARRAY['{"a": [1]}'::jsonb]""", ['{"a": [1]}'])]),
    ("numbers", "numeric[]", pa.list_(pa.string()), [("'{1.10,NaN}'", ["1.10", "NaN"])]),
]  # fmt: skip
ROWS = 1 + max(len(values) for *_, values in TYPES)


def function(source_db: psycopg.Connection, name: str, columns: str, rows: str) -> None:
    source_db.execute(f"""
        CREATE FUNCTION data.{name}(key text, effective_date date) RETURNS TABLE ({columns})
        LANGUAGE sql STABLE AS $$ {rows} $$
    """)


@pytest.fixture
def typed(dataset: Dataset, source_db: psycopg.Connection) -> Dataset:
    """A dataset with a column of each type. The last row is all NULL."""
    source_db.execute("CREATE DOMAIN data.money_of_two AS numeric(10, 2); CREATE TYPE data.mood AS ENUM ('happy')")
    rows = []
    for n in range(ROWS):
        cells = [f"({values[n][0] if n < len(values) else 'NULL'})::{name}" for _, name, _, values in TYPES]
        rows.append(f"({', '.join(cells)})")
    columns = ", ".join(f"{column} {name}" for column, name, *_ in TYPES)
    function(source_db, "typed", columns, "VALUES " + ", ".join(rows))
    dataset.function = "data.typed"
    dataset.save()
    return dataset


def comparable(value: Any) -> Any:
    """Return the value in a form in which NaN is equal to itself."""
    if isinstance(value, list):
        return [comparable(each) for each in value]
    return "NaN" if isinstance(value, float) and math.isnan(value) else value


def test_every_type_is_read_back_equal(typed: Dataset, alice: User, tmp_path: Path) -> None:
    """A30: by pyarrow, and by DuckDB."""
    data = delivered(finish(make_job(typed, alice, 1, shape=PARQUET)))
    table = parquet.read_table(io.BytesIO(data))

    assert table.num_rows == ROWS == Chunk.objects.get().rows
    assert table.column_names == [column for column, *_ in TYPES]
    (tmp_path / "file.parquet").write_bytes(data)
    with duckdb.connect() as duck:
        duck.execute("SET timezone = 'UTC'")
        read = duck.execute(f"SELECT * FROM '{tmp_path}/file.parquet'").fetchall()
    for n, (column, _, kind, values) in enumerate(TYPES):
        expected = comparable([value for _, value in values] + [None] * (ROWS - len(values)))
        assert table.schema.field(column).type == kind, column
        assert comparable(table.column(column).to_pylist()) == expected, column
        assert comparable([row[n] for row in read]) == expected, column


def test_texts_that_begin_with_a_byte_order_mark_are_unchanged(
    dataset: Dataset, alice: User, source_db: psycopg.Connection
) -> None:
    """A30: also at the beginning of a block of rows."""
    text = "'\ufeff' || CASE WHEN n % 500 = 0 THEN '' ELSE repeat('x', 1000) END"
    function(source_db, "marked", "t text", f"SELECT {text} FROM generate_series(0, 2999) n")
    dataset.function = "data.marked"
    dataset.save()
    data = delivered(finish(make_job(dataset, alice, 1, shape=PARQUET)))
    texts = parquet.read_table(io.BytesIO(data)).column("t").to_pylist()
    assert texts == ["\ufeff" + "x" * 1000 * (n % 500 > 0) for n in range(3000)]


def test_the_schema_is_in_the_file_without_rows(typed: Dataset, alice: User, source_db: psycopg.Connection) -> None:
    """A30."""
    function(source_db, "none", "k text, n integer", "SELECT 'a', 1 WHERE false")
    typed.function = "data.none"
    typed.save()
    data = delivered(finish(make_job(typed, alice, 1, shape=PARQUET)))
    table = parquet.read_table(io.BytesIO(data))
    assert (table.num_rows, table.schema) == (0, pa.schema([("k", pa.string()), ("n", pa.int32())]))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("type_name", "value"),
    [
        ("date", "'infinity'"),
        ("date", "'-infinity'"),
        ("date", "'10000-01-01'"),
        ("date", "'0044-03-15 BC'"),
        ("timestamp", "'infinity'"),
        ("timestamptz", "'-infinity'"),
        ("time", "'24:00'"),
        ("data.two", "'NaN'"),
        ("integer[]", "'{{1,2},{3,4}}'"),
        ("timestamptz[]", "'{infinity}'"),
    ],
)
def test_a_value_that_a_type_cannot_hold_fails_the_chunk(
    dataset: Dataset, alice: User, source_db: psycopg.Connection, type_name: str, value: str
) -> None:
    """A30: the value is not changed silently, and the chunk is not retried.

    The detail names the column, never the value.
    """
    source_db.execute("CREATE DOMAIN data.two AS numeric(4, 2)")
    function(source_db, "bad", f'n int, "the value" {type_name}', f"VALUES (1, NULL), (2, ({value})::{type_name})")
    dataset.function = "data.bad"
    dataset.save()
    job = make_job(dataset, alice, 1, shape=PARQUET)
    execution.drain()

    chunk = Chunk.objects.get()
    assert (chunk.status, chunk.attempts, chunk.error_code) == ("failed", 1, "EXPORT_SOURCE_ERROR")
    assert chunk.error_detail.startswith('column "the value" has a value that ')
    assert storage.head(chunk.path) is None
    # The connection to the source database is still usable.
    dataset.function = "data.rows_for"
    dataset.save()
    assert finish(make_job(dataset, alice, 1, key="LGA", shape=PARQUET)).rows == 3
    assert Job.objects.get(pk=job.pk).status == "failed"


def test_single_is_one_file_in_the_order_of_the_request(
    dataset: Dataset, alice: User, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A30: both for small files, which are read completely, and for large ones, which are read by range requests."""
    for small_bytes in (bundles.SMALL_BYTES, 0):
        monkeypatch.setattr(bundles, "SMALL_BYTES", small_bytes)
        receipt = finish(make_job(dataset, alice, 12, delivery="single", shape=PARQUET))
        assert receipt.content_type == "application/vnd.apache.parquet"
        assert receipt.file_name.endswith(".parquet")
        file = parquet.ParquetFile(io.BytesIO(delivered(receipt)))
        rows = file.read().to_pylist()
        assert file.num_row_groups == 1
        assert len(rows) == receipt.rows == 36
        assert [row["d"] for row in rows] == sorted(row["d"] for row in rows)
        assert rows[:3] == [{"k": "JFK", "n": n, "d": date(2024, 2, 28)} for n in (1, 2, 3)]


def test_single_adopts_a_file_that_was_replaced(dataset: Dataset, alice: User, monkeypatch: pytest.MonkeyPatch) -> None:
    """A30: also a large file, whose ETag changed after its chunk was done."""
    monkeypatch.setattr(bundles, "SMALL_BYTES", 0)
    job = make_job(dataset, alice, 2, delivery="single", shape=PARQUET)
    execution.drain()
    newer = make_job(dataset, alice, 2, key="JFK", delivery="single", shape=PARQUET, reuse="never")
    execution.drain()
    completion.complete(newer.pk)
    assert delivered(finish(job)) == delivered(finish(newer))


def test_files_with_other_columns_are_not_joined(dataset: Dataset, alice: User, source_db: psycopg.Connection) -> None:
    """A30."""
    finish(make_job(dataset, alice, 1, shape=PARQUET))
    function(source_db, "other", "k text, n bigint, d date", "SELECT 'a', 1::bigint, date '2024-01-01'")
    dataset.function = "data.other"
    dataset.save()
    job = make_job(dataset, alice, 2, delivery="single", shape=PARQUET)
    execution.drain()
    completion.complete(job.pk)
    job.refresh_from_db()
    assert (job.status, job.error_code) == ("failed", "EXPORT_BUNDLE_FAILED")
    assert "different columns" in job.error_detail


def test_a_zip_of_parquet_files_is_read_by_one_statement(dataset: Dataset, alice: User, tmp_path: Path) -> None:
    """A30, A32: with the statement of docs/api-exports.md. Columns can be selected as in other formats."""
    shape = Shape(format="parquet", compression="none", columns=("n", "k"))
    archive = zipfile.ZipFile(io.BytesIO(delivered(finish(make_job(dataset, alice, 3, delivery="zip", shape=shape)))))
    archive.extractall(tmp_path)
    with duckdb.connect() as duck:
        rows = duck.execute(f"SELECT * FROM read_parquet('{tmp_path}/**/*.parquet')").fetchall()
    assert rows == [(n, "JFK") for _ in range(3) for n in (1, 2, 3)]
    assert all(each.path.startswith("things/_compression-none/_columns-") for each in Chunk.objects.all())


def test_row_groups_are_bounded_by_their_bytes(
    dataset: Dataset, alice: User, source_db: psycopg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A30."""
    monkeypatch.setattr(writer, "PARSED_BYTES", 1000)
    monkeypatch.setattr(writer, "GROUP_BYTES", 10_000)
    function(source_db, "many", "n bigint", "SELECT generate_series(1, 100000)")
    dataset.function = "data.many"
    dataset.save()
    file = parquet.ParquetFile(io.BytesIO(delivered(finish(make_job(dataset, alice, 1, shape=PARQUET)))))
    assert file.num_row_groups > 1
    assert file.read().column("n").to_pylist() == list(range(1, 100001))


def test_a_requested_parquet_file_is_compressed_internally(api: APIClient, dataset: Dataset) -> None:
    """A30."""
    item = {"key": "JFK", "effectiveDate": "2024-02-28"}
    body = {"dataset": "things", "items": [item], "format": "parquet"}
    job = Job.objects.get(pk=api.post("/exports", body, format="json").json()["jobId"])
    assert job.compression == "zstd"
    file = parquet.ParquetFile(io.BytesIO(delivered(finish(job))))
    assert file.metadata.row_group(0).column(0).compression == "ZSTD"
    dataset.formats = ["csv"]
    dataset.save()
    refused = api.post("/exports", body, format="json").json()
    assert refused["errors"][0]["pointer"] == "/format"


def plpgsql(source_db: psycopg.Connection, returns: str, body: str) -> None:
    source_db.execute(f"""
        CREATE FUNCTION data.own(key text, effective_date date) RETURNS TABLE ({returns})
        LANGUAGE plpgsql AS $$ BEGIN {body} END $$
    """)


@pytest.mark.parametrize(
    ("setting", "span"),
    [
        (("TimeZone", "Asia/Kolkata"), "1 day 02:00:00"),
        (("IntervalStyle", "iso_8601"), "P1DT2H"),
        (("DateStyle", "German"), None),
    ],
)
def test_settings_of_the_function_do_not_change_times_and_dates(
    dataset: Dataset,
    alice: User,
    source_db: psycopg.Connection,
    setting: tuple[str, str],
    span: str | None,
) -> None:
    """A30: values in other time zones are converted. Dates in another style are refused rather than misread.

    Intervals are text, in the style of their function, as in CSV files. `span`: None if the chunk fails.
    """
    plpgsql(source_db, '"at" timestamptz, "day" date, "span" interval', f"""
        PERFORM set_config('{setting[0]}', '{setting[1]}', false);
        RETURN QUERY SELECT timestamptz '2024-02-29 12:00:00+00', date '2024-02-01', interval '1 day 2:00';
    """)  # fmt: skip
    dataset.function = "data.own"
    dataset.save()
    job = make_job(dataset, alice, 1, shape=PARQUET)
    execution.drain()
    if span:
        rows = parquet.read_table(io.BytesIO(delivered(finish(job)))).to_pylist()
        assert rows == [{"at": datetime(2024, 2, 29, 12, tzinfo=UTC), "day": date(2024, 2, 1), "span": span}]
    else:
        assert Chunk.objects.get().error_detail.startswith('column "at" has a value that ')


@pytest.mark.parametrize(("digits", "ratio"), [(0, 0.3), (1, 0.30000000000000004)])
def test_floats_have_the_digits_that_the_function_sets(
    dataset: Dataset, alice: User, source_db: psycopg.Connection, digits: int, ratio: float
) -> None:
    """A30: as in CSV and JSON."""
    plpgsql(source_db, "ratio float8", f"SET extra_float_digits = {digits}; RETURN QUERY SELECT 0.1::float8 + 0.2;")
    dataset.function = "data.own"
    dataset.save()
    job = make_job(dataset, alice, 1, shape=PARQUET)
    execution.drain()
    assert parquet.read_table(io.BytesIO(delivered(finish(job)))).to_pylist() == [{"ratio": ratio}]


@pytest.mark.slow
def test_a_call_is_cancelled_after_its_timeout(dataset: Dataset, alice: User, source_db: psycopg.Connection) -> None:
    """A30: the timeout of other formats applies, even if some rows have arrived."""
    function(source_db, "slow", "n int, t text", "SELECT n, pg_sleep(0.01)::text FROM generate_series(1, 1000) n")
    dataset.function, dataset.statement_timeout = "data.slow", 1
    dataset.save()
    make_job(dataset, alice, 1, shape=PARQUET)
    execution.drain()
    assert Chunk.objects.get().error_code == "EXPORT_SOURCE_TIMEOUT"
    assert not source_db.execute(
        "SELECT 1 FROM pg_stat_activity WHERE query LIKE '%COPY%' AND state = 'active' AND pid <> pg_backend_pid()"
    ).fetchone()
