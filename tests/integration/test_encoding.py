"""The encoded bytes of a chunk, compared with the output of COPY, and parsed with standard libraries."""

import base64
import csv
import gzip
import io
import json
from datetime import UTC, date, datetime
from decimal import Decimal

import psycopg
import pytest

from exports.core.errors import PermanentSourceError, SourceError, explain
from exports.core.planning import Dialect, Pair, Shape
from exports.source import database, encoding
from exports.source.encoding import decompress

PAIR = Pair("JFK", date(2024, 2, 29))
FUNCTION = ("data", "hostile")

# Values that CSV writers often get wrong.
HOSTILE = r'''
CREATE FUNCTION data.hostile(key text, effective_date date) RETURNS TABLE (
    "id" int, "text, with ""quotes""" text, big bigint, amount numeric, ratio double precision, at timestamptz,
    local timestamp, day date, flag boolean, raw bytea, tags text[], bigs bigint[], doc json, docb jsonb, nothing text
) LANGUAGE sql STABLE AS $$
    VALUES
    (1, 'plain', 9223372036854775807, 123456789012345678901234567890.123456789, 0.1,
     '2024-02-29 00:00:00+00'::timestamptz, '2024-02-29 00:00:00'::timestamp, '2024-02-29'::date, true,
     '\x00ff'::bytea, ARRAY['a,b', 'c"d', NULL],
     ARRAY[9007199254740993], E'{"a": 1,\n "b": "x\\ny"}'::json, '{"z": 1.10}'::jsonb, NULL::text),
    (2, E'a "quoted" word, a comma', -9007199254740993, 'NaN', 'NaN', '2024-02-29 12:34:56.789012+05:30', NULL,
     NULL, false, ''::bytea, '{}', NULL, NULL, NULL, ''),
    (3, E'CR\r\nLF\nTAB\t', 0, -0.000000000000000000000000000001, 'Infinity', 'infinity', '-infinity', NULL, NULL, NULL,
     NULL, NULL, NULL, NULL, NULL),
    (4, '🛫 naïve 日本', NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, '\.'),
    (5, '', NULL, 1e30, 1e300, NULL, NULL, NULL, NULL, NULL, NULL, NULL, '"=1+1"', NULL, E'\\N'),
    (6, '=1+1', NULL, -5, -5, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, '  @SUM(A1)'),
    (7, '-5', NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, '+.5e-10'),
    (8, E'\tx', NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, '-5-5')
    ORDER BY 1
$$
'''


@pytest.fixture
def hostile(source_db: psycopg.Connection) -> psycopg.Connection:
    source_db.execute(HOSTILE)
    return source_db


def encoded(shape: Shape, function: tuple[str, str] = FUNCTION) -> tuple[bytes, encoding.TextContent]:
    with database.SourceSession() as session:
        session.begin(timeout=30)
        columns = session.columns(function) if encoding.needs_columns(shape) else []
        stream = session.stream(encoding.copy_statement(function, PAIR, shape, columns, session.encoding))
        envelope = encoding.envelope(shape, PAIR, columns, dataset="things", version=3)
        content = encoding.TextContent(stream, shape, envelope=envelope)
        return b"".join(content), content


def oracle(connection: psycopg.Connection, call: str, options: str = "FORMAT csv, HEADER") -> bytes:
    """Return the output of COPY, read row by row with psycopg."""
    connection.execute("SET timezone = 'UTC'; SET datestyle = 'ISO'")
    with connection.cursor().copy(f"COPY (SELECT * FROM {call}) TO STDOUT ({options})") as copy:
        return b"".join(copy)


def test_csv_matches_the_output_of_copy(hostile: psycopg.Connection) -> None:
    """A20."""
    data, content = encoded(Shape())

    assert data == oracle(hostile, "data.hostile('JFK', '2024-02-29')")
    assert content.rows == 8
    assert data[: content.header_bytes] == data.split(b"\n")[0] + b"\n"


def test_null_and_the_empty_string_differ(hostile: psycopg.Connection) -> None:
    data, _ = encoded(Shape())

    assert b'1.10}",\n2,' in data  # row 1 ends with NULL
    assert b',""\n3,' in data  # row 2 ends with the empty string


def test_zero_rows_still_have_a_header(source_db: psycopg.Connection) -> None:
    source_db.execute("""
        CREATE FUNCTION data.empty(key text, effective_date date) RETURNS TABLE (a int, b text)
        LANGUAGE sql AS $$ SELECT 1, 'x' WHERE false $$
    """)
    for compression, unpack in (("none", bytes), ("gzip", gzip.decompress)):
        data, content = encoded(Shape(compression=compression), ("data", "empty"))
        assert unpack(data) == b"a,b\n"
        assert content.rows == 0


@pytest.mark.slow
def test_it_counts_rows_of_any_number_of_blocks(source_db: psycopg.Connection) -> None:
    source_db.execute("""
        CREATE FUNCTION data.many(key text, effective_date date) RETURNS TABLE (n int, filler text)
        LANGUAGE sql AS $$ SELECT n, repeat(E'line\n', n % 7) FROM generate_series(1, 200000) n $$
    """)
    data, content = encoded(Shape(), ("data", "many"))

    assert data == oracle(source_db, "data.many('JFK', '2024-02-29')")
    assert content.rows == 200_000


def test_zstd_files_have_a_frame_for_the_header(hostile: psycopg.Connection) -> None:
    """A31."""
    plain, _ = encoded(Shape())
    packed, content = encoded(Shape(compression="zstd"))
    again, _ = encoded(Shape(compression="zstd"))
    assert packed == again
    assert decompress(packed[: content.header_bytes], Shape(compression="zstd")) == plain.split(b"\n", 1)[0] + b"\n"
    assert decompress(packed[content.header_bytes :], Shape(compression="zstd")) == plain.split(b"\n", 1)[1]


def test_gzip_output_is_deterministic(hostile: psycopg.Connection) -> None:
    plain, _ = encoded(Shape())
    packed, content = encoded(Shape(compression="gzip"))
    again, _ = encoded(Shape(compression="gzip"))

    assert gzip.decompress(packed) == plain
    assert packed == again
    assert gzip.decompress(packed[content.header_bytes :]) == plain.split(b"\n", 1)[1]


def test_a_bom_and_another_delimiter_are_supported(hostile: psycopg.Connection) -> None:
    data, content = encoded(Shape(dialect=Dialect(bom=True, delimiter=";")))

    expected = oracle(hostile, "data.hostile('JFK', '2024-02-29')", "FORMAT csv, HEADER, DELIMITER ';'")
    assert data == b"\xef\xbb\xbf" + expected
    assert data[content.header_bytes :].startswith(b"1;plain;")


def test_the_formula_guard_escapes_formulas_and_not_numbers(hostile: psycopg.Connection) -> None:
    data, _ = encoded(Shape(dialect=Dialect(formula_policy="escape")))
    rows = {row["id"]: row for row in csv.DictReader(io.StringIO(data.decode(), newline=""))}
    text = 'text, with "quotes"'

    assert rows["6"][text] == "'=1+1"
    assert rows["6"]["nothing"] == "'  @SUM(A1)"
    assert rows["6"]["amount"] == "-5"
    assert rows["7"][text] == "-5"
    assert rows["7"]["nothing"] == "+.5e-10"
    assert rows["8"][text] == "'\tx"
    assert rows["8"]["nothing"] == "'-5-5"
    assert rows["1"][text] == "plain"


def test_the_formula_guard_leaves_other_text_unchanged(source_db: psycopg.Connection) -> None:
    source_db.execute("""
        CREATE FUNCTION data.calm(key text, effective_date date)
        RETURNS TABLE (a text, b char(5), c varchar, n numeric, nul text)
        LANGUAGE sql AS $$ SELECT 'x', 'ab', E'q"\n', -1.50, NULL $$
    """)
    data, _ = encoded(Shape(dialect=Dialect(formula_policy="escape")), ("data", "calm"))

    assert data == oracle(source_db, "data.calm('JFK', '2024-02-29')")


def test_jsonl_has_one_object_per_row_with_every_digit(hostile: psycopg.Connection) -> None:
    data, content = encoded(Shape(format="jsonl"))
    rows = [json.loads(line) for line in data.splitlines()]

    assert content.header_bytes == 0
    assert len(rows) == content.rows == 8
    assert rows[0] == {
        "id": 1,
        'text, with "quotes"': "plain",
        "big": "9223372036854775807",
        "amount": "123456789012345678901234567890.123456789",
        "ratio": 0.1,
        "at": "2024-02-29T00:00:00+00:00",
        "local": "2024-02-29T00:00:00+00:00",
        "day": "2024-02-29",
        "flag": True,
        "raw": "AP8=",
        "tags": ["a,b", 'c"d', None],
        "bigs": ["9007199254740993"],
        "doc": {"a": 1, "b": "x\ny"},
        "docb": {"z": 1.10},
        "nothing": None,
    }
    assert rows[1]["amount"] == rows[1]["ratio"] == "NaN"
    assert rows[2]["ratio"] == "Infinity"
    assert rows[3]['text, with "quotes"'] == "🛫 naïve 日本"


def test_nested_json_stays_on_one_line(source_db: psycopg.Connection) -> None:
    source_db.execute(r"""
        CREATE FUNCTION data.nested(key text, effective_date date) RETURNS TABLE (j json[], t timestamp[], n numeric[])
        LANGUAGE sql AS $$
            SELECT ARRAY[E'{\n"a": "x\\ny"}'::json], ARRAY['2024-02-29'::timestamp], ARRAY[1e30]::numeric[]
        $$
    """)
    data, _ = encoded(Shape(format="jsonl"), ("data", "nested"))
    assert [json.loads(line) for line in data.splitlines()] == [
        {"j": [{"a": "x\ny"}], "t": ["2024-02-29T00:00:00+00:00"], "n": ["1" + "0" * 30]}
    ]


def test_bytes_in_arrays_are_base64(source_db: psycopg.Connection) -> None:
    """A20: in arrays with any number of dimensions. Nothing else in the array changes."""
    source_db.execute(r"""
        CREATE FUNCTION data.blobs(key text, effective_date date) RETURNS TABLE (part bytea[], "a ""b" bytea[])
        LANGUAGE sql AS $$ VALUES
            (ARRAY['\x00ff', NULL, '', '\x22']::bytea[], ARRAY[['\x00ff', NULL], ['\x5c', '']]::bytea[]),
            ('{}', NULL),
            (ARRAY[NULL]::bytea[], '[0:1]={"\\x00ff",null}'),
            (ARRAY[convert_to(repeat('x', 100), 'UTF8')], '{{{"\\x00ff"}}}')
        $$
    """)
    rows = [json.loads(line) for line in encoded(Shape(format="jsonl"), ("data", "blobs"))[0].splitlines()]

    assert rows == [
        {"part": ["AP8=", None, "", "Ig=="], 'a "b': [["AP8=", None], ["XA==", ""]]},
        {"part": [], 'a "b': None},
        {"part": [None], 'a "b': ["AP8=", None]},
        {"part": [base64.b64encode(b"x" * 100).decode()], 'a "b': [[["AP8="]]]},
    ]


def test_escaped_names_that_are_equal_are_refused(source_db: psycopg.Connection) -> None:
    source_db.execute("""
        CREATE FUNCTION data.alike(key text, effective_date date) RETURNS TABLE ("=a" text, "'=a" text)
        LANGUAGE sql AS $$ SELECT 'x', 'y' $$
    """)
    with pytest.raises(PermanentSourceError, match="two columns have the same escaped name") as refused:
        encoded(Shape(dialect=Dialect(formula_policy="escape")), ("data", "alike"))
    assert explain(refused.value.code, str(refused.value))["retryable"] is False


def test_bytes_in_arrays_that_are_not_hex_are_an_error(source_db: psycopg.Connection) -> None:
    """A function can set `bytea_output = escape`, and its output, such as `ABC`, could be mistaken for hex."""
    source_db.execute(r"""
        CREATE FUNCTION data.escaped(key text, effective_date date) RETURNS TABLE (part bytea[], one bytea)
        LANGUAGE plpgsql AS $$ BEGIN
            PERFORM set_config('bytea_output', 'escape', true);
            RETURN QUERY SELECT ARRAY['12345'::bytea], 'ABC'::bytea;
        END $$
    """)
    with pytest.raises(SourceError, match="22023"):
        encoded(Shape(format="jsonl"), ("data", "escaped"))


def test_arrays_of_domains_are_written_as_arrays_of_their_base_types(source_db: psycopg.Connection) -> None:
    source_db.execute(r"""
        CREATE DOMAIN data.price AS numeric(12, 2);
        CREATE DOMAIN data.net_price AS data.price;
        CREATE DOMAIN data.number AS bigint;
        CREATE DOMAIN data.picture AS bytea;
        CREATE DOMAIN data.moment AS timestamp;
        CREATE DOMAIN data.prices AS data.net_price[];
        CREATE FUNCTION data.domains(key text, effective_date date)
        RETURNS TABLE (
            a data.price[], b data.net_price[], c data.number[], d data.picture[], e data.moment[], f data.prices)
        LANGUAGE sql AS $$ SELECT
            ARRAY[0.10]::data.price[], ARRAY[0.20, NULL]::data.net_price[], ARRAY[9007199254740993]::data.number[],
            ARRAY['\x00ff']::data.picture[], ARRAY['2024-02-29']::data.moment[], ARRAY[0.30]::data.net_price[]
        $$
    """)
    data, _ = encoded(Shape(format="jsonl"), ("data", "domains"))
    assert json.loads(data) == {
        "a": ["0.10"],
        "b": ["0.20", None],
        "c": ["9007199254740993"],
        "d": ["AP8="],
        "e": ["2024-02-29T00:00:00+00:00"],
        "f": ["0.30"],
    }


def test_arrays_of_domains_over_arrays_are_written_as_arrays_of_their_innermost_types(
    source_db: psycopg.Connection,
) -> None:
    """The last columns are composites: their fields are as in Postgres' `row_to_json`."""
    source_db.execute(r"""
        CREATE DOMAIN data.price AS numeric(12, 2);
        CREATE DOMAIN data.net_price AS data.price;
        CREATE DOMAIN data.prices AS data.net_price[];
        CREATE DOMAIN data.net_prices AS data.prices;
        CREATE DOMAIN data.lists AS data.net_prices[];
        CREATE DOMAIN data.numbers AS bigint[];
        CREATE DOMAIN data.pictures AS bytea[];
        CREATE DOMAIN data.moments AS timestamp[];
        CREATE DOMAIN data.words AS text[];
        CREATE TYPE data.pair AS (a numeric, b bigint);
        CREATE DOMAIN data.couple AS data.pair;
        CREATE FUNCTION data.nested(key text, effective_date date)
        RETURNS TABLE (
            a data.net_price, b data.net_prices, c data.prices[], d data.net_prices[], e data.lists[], f data.numbers[],
            g data.pictures[], h data.moments[], i data.words[], j data.couple, k data.couple[])
        LANGUAGE plpgsql AS $$ BEGIN RETURN QUERY SELECT
            0.10::data.net_price, '{0.10}'::data.net_prices, '{"{0.10,NULL}",NULL}'::data.prices[],
            '{"{-0.10,NaN}","{}"}'::data.net_prices[], '{"{\"{1,0.20}\"}"}'::data.lists[],
            '{"{{9007199254740993,-1}}"}'::data.numbers[], ARRAY[ARRAY['\x00ff'::bytea]::data.pictures],
            '{"{2024-02-29,NULL}"}'::data.moments[], '{"{1,-2.5}"}'::data.words[], (1.10, 5)::data.couple,
            ARRAY[(1.10, NULL)::data.couple];
        END $$
    """)
    data, _ = encoded(Shape(format="jsonl"), ("data", "nested"))
    assert json.loads(data, parse_float=Decimal) == {
        "a": "0.10",
        "b": ["0.10"],
        "c": [["0.10", None], None],
        "d": [["-0.10", "NaN"], []],
        "e": [[["1.00", "0.20"]]],
        "f": [[["9007199254740993", "-1"]]],
        "g": [["AP8="]],
        "h": [["2024-02-29T00:00:00+00:00", None]],
        "i": [["1", "-2.5"]],
        "j": {"a": Decimal("1.10"), "b": 5},
        "k": [{"a": Decimal("1.10"), "b": None}],
    }


def test_timestamps_are_in_utc_in_json_whatever_time_zone_the_function_sets(source_db: psycopg.Connection) -> None:
    source_db.execute("""
        CREATE FUNCTION data.local_days(key text, effective_date date)
        RETURNS TABLE (one timestamp, many timestamp[], nothing timestamp[], instant timestamptz)
        LANGUAGE plpgsql AS $$ BEGIN
            PERFORM set_config('TimeZone', 'Asia/Tokyo', true), set_config('DateStyle', 'German', true);
            RETURN QUERY VALUES
                (timestamp '2024-02-29 12:00',
                 '{{2024-02-29 12:00:00.5,0044-03-15 01:00:00 BC},{NULL,infinity}}'::timestamp[],
                 NULL::timestamp[], timestamptz '2024-02-29 12:00+00'),
                ('-infinity', '{}', NULL, NULL);
        END $$
    """)
    data, _ = encoded(Shape(format="jsonl"), ("data", "local_days"))
    first, second = (json.loads(line) for line in data.splitlines())

    noon = datetime(2024, 2, 29, 12, tzinfo=UTC)
    assert datetime.fromisoformat(first["one"]) == datetime.fromisoformat(first["instant"]) == noon
    assert first["many"] == [
        ["2024-02-29T12:00:00.5+00:00", "0044-03-15T01:00:00+00:00 BC"],
        [None, "infinity"],
    ]
    assert first["nothing"] is None
    assert (second["one"], second["many"]) == ("-infinity", [])


def test_json_includes_the_schema_version_and_columns(hostile: psycopg.Connection) -> None:
    data, _ = encoded(Shape(format="json"))
    document = json.loads(data)

    assert document["schemaVersion"] == 3
    assert (document["dataset"], document["key"], document["effectiveDate"]) == ("things", "JFK", "2024-02-29")
    assert {"name": "at", "type": "timestamp with time zone"} in document["columns"]
    assert [row["id"] for row in document["rows"]] == [1, 2, 3, 4, 5, 6, 7, 8]


def test_json_of_zero_rows_is_valid(source_db: psycopg.Connection) -> None:
    source_db.execute("""
        CREATE FUNCTION data.empty(key text, effective_date date) RETURNS TABLE (a int)
        LANGUAGE sql AS $$ SELECT 1 WHERE false $$
    """)
    assert json.loads(encoded(Shape(format="json"), ("data", "empty"))[0])["rows"] == []


def test_names_and_values_are_quoted(source_db: psycopg.Connection) -> None:
    """A8."""
    source_db.execute("""
        CREATE FUNCTION data."odd; ""name"" -- x"(key text, effective_date date) RETURNS TABLE ("a""b" text)
        LANGUAGE sql AS $$ SELECT key $$
    """)
    pair = Pair("'; DROP SCHEMA data CASCADE; --", date(2024, 2, 29))
    function = ("data", 'odd; "name" -- x')
    with database.SourceSession() as session:
        for shape in (Shape(), Shape(format="jsonl"), Shape(dialect=Dialect(formula_policy="escape"))):
            session.begin(timeout=30)
            statement = encoding.copy_statement(function, pair, shape, session.columns(function), session.encoding)
            data = b"".join(encoding.TextContent(session.stream(statement), shape))
            assert b"'; DROP SCHEMA data CASCADE; --" in data
