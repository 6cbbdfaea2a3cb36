"""Encoding of rows into a file: the COPY statement, and the bytes before and after its output.

Postgres formats all values in the COPY, which preserves them exactly and needs no work in Python.
"""

import zlib
from codecs import BOM_UTF8
from collections.abc import Iterable, Iterator
from itertools import chain
from typing import Any, Protocol

import orjson
import zstandard
from psycopg import sql

from exports.core.errors import NoColumns, PermanentSourceError
from exports.core.planning import Pair, Shape
from exports.source import formula_guard
from exports.source.columns import Column
from exports.source.copy_stream import CopyStream
from exports.source.database import call_of

CONTENT_TYPES = {"csv": "text/csv; charset=utf-8", "jsonl": "application/x-ndjson", "json": "application/json"}
PARQUET_TYPE = "application/vnd.apache.parquet"
COMPRESSED_TYPES = {"gzip": "application/gzip", "zstd": "application/zstd"}
GZIP_LEVEL = 4
ZSTD_LEVEL = 3

# JSON from Postgres never contains these two control characters unescaped. As quote and delimiter, they keep COPY from
# adding quotes.
JSON_LINES = sql.SQL(r"(FORMAT csv, QUOTE E'\x01', DELIMITER E'\x02')")


def content_type(shape: Shape) -> str:
    if shape.format == "parquet":
        return PARQUET_TYPE
    return COMPRESSED_TYPES.get(shape.compression) or CONTENT_TYPES[shape.format]


def needs_columns(shape: Shape) -> bool:
    """Return whether the COPY statement depends on the columns of the function.

    `call` is the alias of the function in the statement: if no column has this name, it stands for the whole row. So a
    selected column of this name is checked; otherwise, the file would contain whole rows instead of an error.
    """
    return shape.format != "csv" or shape.dialect.formula_policy == "escape" or "call" in shape.columns


def selected_columns(columns: list[Column], shape: Shape) -> list[Column]:
    """Return the columns of the file.

    Raises NoColumns if the function returns none, and PermanentSourceError if it no longer returns a selected column.
    """
    if not columns:
        raise NoColumns
    if not shape.columns:
        return columns
    by_name = {column.name: column for column in columns}
    if not by_name.keys() >= set(shape.columns):
        raise PermanentSourceError("SQLSTATE 42703")  # undefined_column, as Postgres would report it
    return [by_name[name] for name in shape.columns]


def copy_statement(
    function: tuple[str, str], pair: Pair, shape: Shape, columns: list[Column], encoding: str
) -> sql.Composed:
    """Return the statement that reads a chunk from a source database of this encoding.

    Identifiers and values are quoted.
    """
    call = call_of(function, sql.Literal(pair.key), sql.Literal(pair.effective_date))
    if shape.format == "csv":
        cells = csv_cells(shape, columns, encoding)
        options = sql.SQL("(FORMAT csv, HEADER, DELIMITER {})").format(shape.dialect.delimiter)
        return sql.SQL("COPY (SELECT {} FROM {}) TO STDOUT {}").format(cells, call, options)
    if shape.format == "parquet":
        cells = sql.SQL(", ").join(parquet_cell(column) for column in columns)
        return sql.SQL("COPY (SELECT {} FROM {}) TO STDOUT (FORMAT csv)").format(cells, call)
    cells = sql.SQL(", ").join(json_cell(column) for column in columns)
    rows = sql.SQL("SELECT {} FROM {}").format(cells, call)
    # Values of type json keep their white space, so only they can contain raw line breaks. `line.*` is the whole row,
    # even if a column is named `line`.
    line = sql.SQL(r"translate(row_to_json(line.*)::text, E'\n\r', '  ')")
    return sql.SQL("COPY (SELECT {} FROM ({}) AS line) TO STDOUT {}").format(line, rows, JSON_LINES)


def csv_cells(shape: Shape, columns: list[Column], encoding: str) -> sql.Composable:
    if shape.dialect.formula_policy == "none":
        return sql.SQL(", ").join(map(sql.Identifier, shape.columns)) if shape.columns else sql.SQL("*")
    return formula_guard.cells(columns, encoding)


# Types that JSON does not represent exactly. All bigint and numeric values become strings, so that no JSON parser
# rounds them.
JSON_AS = {
    "bigint": "{}::text",
    "numeric": "{}::text",
    "money": "{}::text",
    "bytea": "replace(encode({}, 'base64'), E'\\n', '')",
    # An explicit offset, because a function can change the session's time zone.
    "timestamp without time zone": "{} AT TIME ZONE 'UTC'",
}
# Dimensions and NULLs are kept. Postgres writes a bytea[] as `["\\x00ff",null]`. Hex contains no quotes, so when the
# text is split at quotes, every second part is an element. An element without the prefix means that the function has
# set `bytea_output = escape`; `decode` then fails on the invalid digits `no hex`.
JSON_ARRAY_AS = {
    "bigint": "{}::text[]",
    "numeric": "{}::text[]",
    "bytea": """(
        SELECT string_agg(
            CASE position % 2
                WHEN 0 THEN replace(encode(decode(
                    CASE left(part, 3) WHEN '\\\\x' THEN substr(part, 4) ELSE 'no hex' END, 'hex'
                ), 'base64'), E'\\n', '')
                ELSE part
            END, '"' ORDER BY position
        )::json
        FROM unnest(string_to_array(to_json({})::text, '"')) WITH ORDINALITY AS parts (part, position)
    )""",
    "timestamp without time zone": r"regexp_replace(to_json({})::text, '(T[0-9:.]+)', '\1+00:00', 'g')::json",
}
# A cast to text[] would turn each inner array of a domain into one string. This expression also converts the numbers
# inside them, but takes three times as long as the cast.
QUOTED_NUMBERS = r"""regexp_replace(to_json({})::text, '-?[0-9]+(\.[0-9]+)?', '"\&"', 'g')::json"""
JSON_NESTED_AS = JSON_ARRAY_AS | {"bigint": QUOTED_NUMBERS, "numeric": QUOTED_NUMBERS}


def json_cell(column: Column) -> sql.Composable:
    name = sql.Identifier(column.name)
    forms = JSON_NESTED_AS if column.is_nested else JSON_ARRAY_AS if column.element else JSON_AS
    form = forms.get(column.scalar or column.type, "{}")
    return sql.SQL("{} AS {}").format(sql.SQL(form).format(name), name)


# Types whose cast to text differs from their output: it removes the padding of `character`, and adds /32 to `inet`.
CHANGED_BY_CAST = ("character", "inet")


def parquet_cell(column: Column) -> sql.Composable:
    """Return the expression whose output `exports.source.parquet` parses.

    Arrays are JSON arrays of strings, and bytes are in hex.
    """
    name = sql.Identifier(column.name)
    if column.is_array:
        return sql.SQL("to_json({})" if column.element in CHANGED_BY_CAST else "to_json({}::text[])").format(name)
    return sql.SQL("encode({}, 'hex')").format(name) if column.type == "bytea" else name


class Content(Protocol):
    """The bytes of a file in blocks. After the last block, `rows` and `header_bytes` are known."""

    header_bytes: int

    @property
    def rows(self) -> int: ...

    def __iter__(self) -> Iterator[bytes | bytearray]: ...


def content_of(stream: CopyStream, shape: Shape, columns: list[Column], *, envelope: tuple[bytes, bytes]) -> Content:
    if shape.format == "parquet":
        from exports.source import parquet  # pyarrow needs much memory, so it is imported only for Parquet

        return parquet.ParquetContent(stream, columns, shape.compression)
    return TextContent(stream, shape, envelope=envelope)


class TextContent:
    """The bytes of a file in blocks: a head, the lines of the stream, and a tail, compressed if requested.

    After the last block, `rows` and `header_bytes` are known. The header is a separate gzip member or zstd frame, so
    that files can be joined by concatenating them, without the first `header_bytes` bytes of each file after the first.
    """

    def __init__(self, stream: CopyStream, shape: Shape, *, envelope: tuple[bytes, bytes] = (b"", b"")) -> None:
        self._stream = stream
        self._shape = shape
        self._head, self._tail = envelope
        self.header_bytes = 0

    @property
    def rows(self) -> int:
        return self._stream.rows

    def __iter__(self) -> Iterator[bytes | bytearray]:
        blocks = iter(self._stream)
        first = next(blocks)
        cut = self._stream.first_line if self._shape.format == "csv" else 0
        header = self._bom() + self._head + first[:cut]
        body: Iterator[bytes | bytearray] = chain([first[cut:]], blocks)
        if self._shape.format == "json":
            body = chain(comma_separated(body), [self._tail])
        if self._shape.compression != "none":
            header = compress(header, self._shape) if header else b""
            body = compress_blocks(body, self._shape.compression)
        self.header_bytes = len(header)
        return chain([header], body)

    def _bom(self) -> bytes:
        return BOM_UTF8 if self._shape.format == "csv" and self._shape.dialect.bom else b""


def envelope(shape: Shape, pair: Pair, columns: list[Column], *, dataset: str, version: int) -> tuple[bytes, bytes]:
    """Return the bytes before and after the rows, which are empty for formats other than json."""
    if shape.format != "json":
        return b"", b""
    fields = {
        "schemaVersion": version,
        "dataset": dataset,
        "key": pair.key,
        "effectiveDate": pair.effective_date,
        "columns": [{"name": column.name, "type": column.type} for column in columns],
    }
    return orjson.dumps(fields)[:-1] + b',"rows":[\n', b"]}\n"


def comma_separated(blocks: Iterable[bytes | bytearray]) -> Iterator[bytes]:
    """Add a comma to each line except the last. JSON lines contain no raw line breaks."""
    held = b""
    for block in blocks:
        if block:
            lines = held + block.replace(b"\n", b",\n")
            yield lines[:-2]
            held = lines[-2:]
    yield held.replace(b",", b"")


def gzip_member() -> Any:
    return zlib.compressobj(GZIP_LEVEL, wbits=31)  # without a timestamp, so that equal rows produce equal files


def zstd_frame() -> Any:
    return zstandard.ZstdCompressor(level=ZSTD_LEVEL).compressobj()


COMPRESSORS = {"gzip": gzip_member, "zstd": zstd_frame}


def compress_blocks(blocks: Iterable[bytes | bytearray], compression: str) -> Iterator[bytes]:
    """Compress the blocks into one gzip member or zstd frame."""
    compressor = COMPRESSORS[compression]()
    for block in blocks:
        if packed := compressor.compress(block):
            yield packed
    yield compressor.flush()


def compress(content: bytes, shape: Shape) -> bytes:
    """Compress bytes as a separate gzip member or zstd frame, if the shape is compressed."""
    return content if shape.compression == "none" else b"".join(compress_blocks([content], shape.compression))


def decompress(content: bytes, shape: Shape) -> bytes:
    """Decompress a single gzip member or zstd frame."""
    if not content or shape.compression == "none":
        return content
    if shape.compression == "gzip":
        return zlib.decompress(content, wbits=31)
    return zstandard.ZstdDecompressor().decompressobj().decompress(content)
