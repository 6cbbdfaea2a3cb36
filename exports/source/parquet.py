"""Parquet files with typed columns, converted from the CSV output of Postgres' COPY.

This module is imported only when a Parquet file is written or joined, because pyarrow needs much memory.
"""

from __future__ import annotations

from codecs import BOM_UTF8
from collections.abc import Iterable, Iterator
from itertools import chain
from typing import TYPE_CHECKING, Any

import orjson
import pyarrow as pa
from pyarrow import csv, parquet

from exports.core.errors import SourceError, ValueNotRepresentable

if TYPE_CHECKING:
    from exports.source.columns import Column
    from exports.source.copy_stream import CopyStream

PARSED_BYTES = 1024 * 1024  # size of the CSV blocks that are converted at once
GROUP_BYTES = 8 * 1024 * 1024  # size of a row group before encoding and compression
MAX_DIGITS = 38  # the largest precision of a decimal that all readers support

TYPES = {
    "smallint": pa.int16(),
    "integer": pa.int32(),
    "bigint": pa.int64(),
    "real": pa.float32(),
    "double precision": pa.float64(),
    "boolean": pa.bool_(),
    "date": pa.date32(),
    "time without time zone": pa.time64("us"),
    "timestamp without time zone": pa.timestamp("us"),
    "timestamp with time zone": pa.timestamp("us", tz="UTC"),
    "bytea": pa.binary(),
}


def schema_of(columns: list[Column]) -> pa.Schema:
    return pa.schema([pa.field(column.name, type_of(column)) for column in columns])


def type_of(column: Column) -> pa.DataType:
    if column.is_array:
        return pa.list_(scalar(column.element or "", column.modifier))
    return scalar(column.type, column.modifier)


def scalar(name: str, modifier: int) -> pa.DataType:
    """Return the Arrow type for a Postgres type. The modifier contains the precision and scale of a numeric."""
    if name != "numeric" or modifier < 0:
        return TYPES.get(name, pa.string())
    precision, scale = (modifier - 4) >> 16 & 0xFFFF, ((modifier - 4 & 0x7FF) ^ 1024) - 1024
    return pa.decimal128(precision, scale) if 0 <= scale <= precision <= MAX_DIGITS else pa.string()


# ---- From CSV to tables ---------------------------------------------------------------------------------------------


class ParquetContent:
    """The bytes of a Parquet file in blocks. After the last block, `rows` is known.

    `header_bytes` is 0, because Parquet files are not joined by concatenation.
    """

    header_bytes = 0

    def __init__(self, stream: CopyStream, columns: list[Column], compression: str) -> None:
        self._stream = stream
        self._columns = columns
        self._compression = compression
        self.rows = 0

    def __iter__(self) -> Iterator[bytes]:
        return write(self._tables(), schema_of(self._columns), self._compression)

    def _tables(self) -> Iterator[pa.Table]:
        for lines in joined(self._stream):
            table = read(lines, self._columns)
            self.rows += table.num_rows
            yield table
        if self.rows != self._stream.rows:
            raise SourceError(f"{self.rows:,} of {self._stream.rows:,} rows were read")


def joined(blocks: Iterable[bytes | bytearray]) -> Iterator[bytearray]:
    """Join blocks of whole lines into larger ones."""
    held = bytearray()
    for block in blocks:
        held += block
        if len(held) >= PARSED_BYTES:
            yield held
            held = bytearray()
    if held:
        yield held


def read(lines: bytearray, columns: list[Column]) -> pa.Table:
    """Return the rows in lines of CSV without a header. Raises ValueNotRepresentable with the column's name."""
    try:
        parsed = parse(lines, [parsed_type(column) for column in columns])
    except pa.ArrowInvalid:
        raise first_error(lines, columns) from None
    return pa.table([converted(parsed.column(n), each) for n, each in enumerate(columns)], schema=schema_of(columns))


def parse(lines: bytes | bytearray, types: list[pa.DataType], *, only: int | None = None) -> pa.Table:
    """Parse lines of CSV. The columns are named by their position. Only unquoted empty fields are NULL."""
    names = [str(n) for n in range(len(types))]
    text = BOM_UTF8 + lines  # pyarrow removes a leading byte-order mark, which otherwise may be part of a value
    return csv.read_csv(
        pa.BufferReader(text),
        read_options=csv.ReadOptions(use_threads=False, block_size=len(text) + 1, column_names=names),
        parse_options=csv.ParseOptions(newlines_in_values=True, ignore_empty_lines=False),
        convert_options=csv.ConvertOptions(
            column_types=dict(zip(names, types, strict=True)),
            include_columns=names if only is None else [names[only]],
            null_values=[""],
            strings_can_be_null=True,
            quoted_strings_can_be_null=False,
            true_values=["t", "true"],
            false_values=["f", "false"],
        ),
    )


def parsed_type(column: Column) -> pa.DataType:
    """Return the type for parsing a column. Arrays and bytes are parsed as strings and converted afterwards."""
    kind = type_of(column)
    return pa.string() if column.is_array or pa.types.is_binary(kind) else kind


def first_error(lines: bytearray, columns: list[Column]) -> ValueNotRepresentable:
    """Return an error for the first column that cannot be parsed. The library's error message would quote the value."""
    types = [parsed_type(column) for column in columns]
    for n, column in enumerate(columns):
        try:
            parse(lines, types, only=n)
        except pa.ArrowInvalid:
            return error_of(column)
    return ValueNotRepresentable("column unknown: a row could not be read")


def error_of(column: Column) -> ValueNotRepresentable:
    return ValueNotRepresentable(f'column "{column.name}" has a value that {type_of(column)} cannot hold')


def converted(values: pa.ChunkedArray, column: Column) -> pa.ChunkedArray:
    kind = type_of(column)
    try:
        if column.is_array:
            return lists(values, kind)
        return from_hex(values.to_pylist()) if pa.types.is_binary(kind) else values
    except (pa.ArrowInvalid, pa.ArrowTypeError, ValueError):
        raise error_of(column) from None


def from_hex(texts: list[str | None]) -> pa.Array:
    return pa.array([None if text is None else bytes.fromhex(text) for text in texts], pa.binary())


def lists(values: pa.ChunkedArray, kind: pa.ListType) -> pa.Array:
    """Convert arrays from JSON arrays of strings. Raises ArrowTypeError for arrays with several dimensions."""
    offsets: list[int | None] = []
    elements: list[str | None] = []
    for text in values.to_pylist():
        offsets.append(None if text is None else len(elements))
        elements += [] if text is None else orjson.loads(text)
    texts = pa.array(elements, pa.string())
    return pa.ListArray.from_arrays(
        pa.array([*offsets, len(elements)], pa.int32()), elements_of(texts, kind.value_type), type=kind
    )


def elements_of(texts: pa.StringArray, kind: pa.DataType) -> pa.Array:
    if pa.types.is_string(kind):
        return texts
    if not len(texts):
        return pa.array([], kind)
    if pa.types.is_binary(kind):
        return from_hex([None if text is None else hex_digits(text) for text in texts.to_pylist()])
    # Values of the other types contain no commas, quotes, or line breaks, so they are valid CSV.
    lines = "".join(f"{text or ''}\n" for text in texts.to_pylist()).encode()
    return parse(lines, [kind]).column(0).combine_chunks()


HEX_PREFIX = "\\x"


def hex_digits(text: str) -> str:
    """Return the digits of a bytea value. Raises ValueError if it does not have the prefix of the hex format.

    A function can set `bytea_output = escape`, and such an output may look like hex.
    """
    if not text.startswith(HEX_PREFIX):
        raise ValueError(HEX_PREFIX)
    return text.removeprefix(HEX_PREFIX)


# ---- Files ----------------------------------------------------------------------------------------------------------


class Sink:
    """A file object that buffers writes until `take`."""

    closed = False

    def __init__(self) -> None:
        self._blocks: list[bytes] = []

    def write(self, block: bytes) -> int:
        self._blocks.append(bytes(block))
        return len(block)

    def flush(self) -> None:
        pass

    def close(self) -> None:
        pass

    def take(self) -> list[bytes]:
        taken, self._blocks = self._blocks, []
        return taken


def write(tables: Iterable[pa.Table], schema: pa.Schema, compression: str) -> Iterator[bytes]:
    """Yield the blocks of a Parquet file with these tables. The size of the row groups limits the memory."""
    sink: Any = Sink()
    with parquet.ParquetWriter(pa.PythonFile(sink, "w"), schema, compression=compression) as writer:
        for group in groups(tables):
            writer.write_table(group, row_group_size=group.num_rows)
            pa.default_memory_pool().release_unused()  # otherwise, the process needs 10 MB more
            yield from sink.take()
    yield from sink.take()


def groups(tables: Iterable[pa.Table]) -> Iterator[pa.Table]:
    """Join tables into row groups of about GROUP_BYTES."""
    held: list[pa.Table] = []
    size = 0
    for table in tables:
        if table.num_rows:
            held.append(table)
            size += table.nbytes
        if size >= GROUP_BYTES:
            yield pa.concat_tables(held)
            held, size = [], 0
    if held:
        yield pa.concat_tables(held)


def opened(source: Any) -> parquet.ParquetFile:
    """Open a Parquet file from bytes, or from a file that supports seeking. Errors of the file are not translated."""
    readable = pa.BufferReader(source) if isinstance(source, bytes) else pa.PythonFile(source, "r")
    return parquet.ParquetFile(readable, pre_buffer=False)


class SchemasDiffer(Exception):
    """An attempt to join files with different columns."""


def join(files: Iterable[parquet.ParquetFile], compression: str) -> Iterator[bytes]:
    """Yield the blocks of one Parquet file with the rows of all files. Raises SchemasDiffer."""
    rest = iter(files)
    first = next(rest)
    schema = first.schema_arrow

    def tables() -> Iterator[pa.Table]:
        for file in chain([first], rest):
            if not file.schema_arrow.equals(schema):
                raise SchemasDiffer
            for number in range(file.num_row_groups):
                yield file.read_row_group(number, use_threads=False)

    return write(tables(), schema, compression)
