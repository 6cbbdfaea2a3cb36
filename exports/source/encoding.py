"""How rows become the bytes of a file: the COPY that asks for them, and what is added around its lines.

All formatting of values is done by Postgres, inside the COPY: that is exact, and as fast as the server.
"""

import re
import zlib
from collections.abc import Iterable, Iterator
from itertools import chain

import orjson
from psycopg import sql

from exports.core.planning import Dialect, Pair, Shape
from exports.source.database import Column, Stream

CONTENT_TYPES = {"csv": "text/csv; charset=utf-8", "jsonl": "application/x-ndjson", "json": "application/json"}
GZIP_LEVEL = 4
BOM = b"\xef\xbb\xbf"

# A cell that a spreadsheet would take for a formula, and the numbers that are none although they begin like one.
FORMULA = r"^ *[=+@\t\r-]"
NUMBER = r"^[+-]?([0-9]+(\.[0-9]+)?|\.[0-9]+)([eE][+-]?[0-9]+)?$"

# JSON that Postgres writes has no raw control characters, so with these two COPY's CSV mode never quotes a line.
JSON_LINES = sql.SQL(r"(FORMAT csv, QUOTE E'\x01', DELIMITER E'\x02')")


def content_type(shape: Shape) -> str:
    return "application/gzip" if shape.compression == "gzip" else CONTENT_TYPES[shape.format]


def needs_columns(shape: Shape) -> bool:
    """Whether the COPY names columns; the default CSV takes whatever the function gives."""
    return shape.format != "csv" or shape.dialect.formula_policy == "escape"


def copy_statement(function: tuple[str, str], pair: Pair, shape: Shape, columns: list[Column]) -> sql.Composed:
    """Return the one statement that reads a chunk: identifiers quoted as identifiers, values as values."""
    call = sql.SQL("{}({}::text, {}::date)").format(sql.Identifier(*function), pair.key, pair.effective_date)
    if shape.format == "csv":
        cells = csv_cells(shape.dialect, columns)
        options = sql.SQL("(FORMAT csv, HEADER, DELIMITER {})").format(shape.dialect.delimiter)
        return sql.SQL("COPY (SELECT {} FROM {} AS call) TO STDOUT {}").format(cells, call, options)
    cells = sql.SQL(", ").join(json_cell(column) for column in columns)
    rows = sql.SQL("SELECT {} FROM {} AS call").format(cells, call)
    # Values of type json keep their own white space; a raw line end can only be that.
    line = sql.SQL(r"translate(row_to_json(line)::text, E'\n\r', '  ')")
    return sql.SQL("COPY (SELECT {} FROM ({}) AS line) TO STDOUT {}").format(line, rows, JSON_LINES)


def csv_cells(dialect: Dialect, columns: list[Column]) -> sql.Composable:
    if dialect.formula_policy == "none":
        return sql.SQL("*")
    return sql.SQL(", ").join(guarded(column) for column in columns)


def guarded(column: Column) -> sql.Composable:
    name = sql.Identifier(column.name)
    header = sql.Identifier("'" + column.name if re.match(FORMULA, column.name) else column.name)
    if not column.is_text:
        return sql.SQL("{} AS {}").format(name, header)
    return sql.SQL(
        "CASE WHEN {name}::text ~ {formula} AND {name}::text !~ {number} THEN '''' || format('%s', {name}) "
        "WHEN {name} IS NOT NULL THEN format('%s', {name}) END AS {header}"
    ).format(name=name, header=header, formula=FORMULA, number=NUMBER)


# What JSON cannot carry as it is. Integers beyond 2^53 and decimals become strings, so that no reader rounds them.
JSON_AS = {
    "bigint": "{}::text",
    "numeric": "{}::text",
    "money": "{}::text",
    "bytea": "replace(encode({}, 'base64'), E'\\n', '')",
    "timestamp without time zone": "{}::timestamptz",  # the session's time zone is UTC
}
# Dimensions and NULLs must stay. Postgres writes a bytea[] as `["\\x00ff",null]`. Hex has no quotes: split at them,
# every second part is an element.
JSON_ARRAY_AS = {
    "bigint": "{}::text[]",
    "numeric": "{}::text[]",
    "bytea": """(
        SELECT string_agg(
            CASE place % 2
                WHEN 0 THEN replace(encode(decode(substr(part, 4), 'hex'), 'base64'), E'\\n', '')
                ELSE part
            END, '"' ORDER BY place
        )::json
        FROM unnest(string_to_array(to_json({})::text, '"')) WITH ORDINALITY AS parts (part, place)
    )""",
    "timestamp without time zone": "{}::timestamptz[]",
}


def json_cell(column: Column) -> sql.Composable:
    name = sql.Identifier(column.name)
    form = JSON_ARRAY_AS.get(column.element, "{}") if column.element else JSON_AS.get(column.type, "{}")
    return sql.SQL("{} AS {}").format(sql.SQL(form).format(name), name)


class Encoding:
    """The bytes of one file, in blocks: a head, the lines of the stream, a tail, and gzip around them if asked for.

    After the last block `rows` and `header_bytes` are known. The header is a gzip member of its own, so that files
    can be joined later, compressed or not, by leaving out the first `header_bytes` of all but the first.
    """

    def __init__(self, stream: Stream, shape: Shape, *, envelope: tuple[bytes, bytes] = (b"", b"")) -> None:
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
        if self._shape.compression == "gzip":
            header, body = b"".join(gzip([header])) if header else b"", gzip(body)
        self.header_bytes = len(header)
        return chain([header], body)

    def _bom(self) -> bytes:
        return BOM if self._shape.format == "csv" and self._shape.dialect.bom else b""


def envelope(shape: Shape, pair: Pair, columns: list[Column], *, dataset: str, version: int) -> tuple[bytes, bytes]:
    """Return what stands before and behind the rows: nothing, but for the format json."""
    if shape.format != "json":
        return b"", b""
    facts = {
        "schemaVersion": version,
        "dataset": dataset,
        "key": pair.key,
        "effectiveDate": pair.effective_date,
        "columns": [{"name": column.name, "type": column.type} for column in columns],
    }
    return orjson.dumps(facts)[:-1] + b',"rows":[\n', b"]}\n"


def comma_separated(blocks: Iterable[bytes | bytearray]) -> Iterator[bytes]:
    """Put a comma behind every line but the last. JSON lines have no line ends inside."""
    held = b""
    for block in blocks:
        if block:
            lines = held + block.replace(b"\n", b",\n")
            yield lines[:-2]
            held = lines[-2:]
    yield held.replace(b",", b"")


def gzip(blocks: Iterable[bytes | bytearray]) -> Iterator[bytes]:
    """Compress the blocks into one gzip member. It bears no time: equal rows make equal files."""
    member = zlib.compressobj(GZIP_LEVEL, wbits=31)
    for block in blocks:
        if packed := member.compress(block):
            yield packed
    yield member.flush()
