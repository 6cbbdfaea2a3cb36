"""The results of documents in one file: JSON lines, CSV, or Parquet.

A database cursor reads a few results at a time into a temporary file of JSON lines. CSV and Parquet are written from
that file, because their columns are known only after the last result. So memory does not grow with the number of
documents, no database connection waits for a slow client or storage, and errors occur before the response begins.
"""

import io
import os
import re
import tempfile
from codecs import BOM_UTF8
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from decimal import Decimal
from typing import IO, Any

from django.conf import settings
from django.db.models.query import ModelIterable

from config.platform import exact_json, formulas
from config.platform.built_in_datasets import BuiltFile, FileLayout
from config.platform.db.snapshots import one_snapshot
from config.platform.http.problems import DiskFull, Problem, is_full
from etl.core.states import Status
from etl.models import Task
from etl.models.task import TaskQuerySet

FORMATS = {
    "jsonl": "application/x-ndjson",
    "csv": "text/csv; charset=utf-8",
    "parquet": "application/vnd.apache.parquet",
}
INDEX = re.compile(r"0|[1-9][0-9]{0,9}")  # of an item in a JSON Pointer
READ_ROWS = 10  # results in memory: each may be megabytes
GROUP_ROWS, GROUP_BYTES = 10_000, 8 * 1024**2  # of a Parquet row group, which is in memory
MAX_COLUMNS = 1_000
MAX_DIGITS = 38  # of a decimal128, the widest decimal type that most readers support
PREFIX = "data."  # added to the column of a data field whose name is also that of a document column
WHOLE, DECIMAL, BOOLEAN, TEXT, JSON = "whole", "decimal", "boolean", "text", "json"
# Columns of the document, and their types in Postgres.
OWN_COLUMNS = {
    "task_id": "bigint",
    "filename": "text",
    "rule_id": "bigint",
    "rule_version": "integer",
    "batch_id": "bigint",
    "created_at": "timestamp with time zone",
    "row": "bigint",
    "status": "text",
    "error": "text",
}


class TooManyColumns(Problem):
    status = 409
    code = "too_many_columns"
    detail = f"The results have more than {MAX_COLUMNS:,} different fields. Use the format jsonl."


@dataclass(frozen=True, slots=True, kw_only=True)
class ResultLayout(FileLayout):
    """The layout of the file. `rows`: the pointer to an array, as tokens, or None for one row per document."""

    compression: str = "zstd"
    about: tuple[str, ...] = ("task_id", "filename")  # columns of the document, before its status
    rows: tuple[str, ...] | None = None


def build(tasks: TaskQuerySet, layout: ResultLayout, *, checkpoint: Callable[[], None] = lambda: None) -> BuiltFile:
    """Return the file of these documents, from one database snapshot, in the order of the query.

    `checkpoint` is called for each document, and again for each row of CSV or Parquet. It must not write to the
    database. Raises TooManyColumns and DiskFull.
    """
    with temporary() as lines:
        table = ResultTable(lines, layout, checkpoint)
        with one_snapshot():
            table.fill(tasks)
        lines.seek(0)
        if layout.format == "jsonl":
            return BuiltFile(content=reopened(lines), rows=table.count)
        with temporary() as file:
            if layout.format == "csv":
                write_csv(table, file, layout)
            else:
                write_parquet(table, file, layout.compression)
            file.seek(0)
            return BuiltFile(content=reopened(file), rows=table.count)


@contextmanager
def temporary() -> Iterator[IO[bytes]]:
    """Yield an unnamed file, which is deleted when its last handle is closed. `reopened` returns another handle."""
    try:
        with tempfile.TemporaryFile(dir=settings.FILE_UPLOAD_TEMP_DIR) as file:
            yield file
    except OSError as error:
        if is_full(error):
            raise DiskFull from None
        raise


def reopened(file: IO[bytes]) -> IO[bytes]:
    return io.FileIO(os.dup(file.fileno()))


# ---- Rows -----------------------------------------------------------------------------------------------------------
@dataclass
class ResultColumn:
    """The facts about the values of a column that determine its type."""

    kinds: set[str] = field(default_factory=set)
    integer_digits: int = 1
    scale: int = 0

    def add(self, value: Any) -> None:
        kind = kind_of(value)
        if kind in (WHOLE, DECIMAL):
            _, digits, exponent = Decimal(value).as_tuple()
            self.scale = max(self.scale, -int(exponent))
            self.integer_digits = max(self.integer_digits, len(digits) + int(exponent))
        if kind:
            self.kinds.add(kind)

    @property
    def kind(self) -> str:
        if self.kinds in ({BOOLEAN}, {WHOLE}):
            return next(iter(self.kinds))
        is_decimal = self.kinds and self.kinds <= {WHOLE, DECIMAL} and self.integer_digits + self.scale <= MAX_DIGITS
        return DECIMAL if is_decimal else TEXT


def kind_of(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return BOOLEAN
    if isinstance(value, int):  # `exact_json` parses integers that may not fit into 64 bits as Decimals
        return WHOLE
    if isinstance(value, Decimal):
        return DECIMAL
    return TEXT if isinstance(value, str) else JSON


@dataclass
class ResultTable:
    """The rows, in a file of JSON lines, and their columns."""

    lines: IO[bytes]
    layout: ResultLayout
    checkpoint: Callable[[], None]
    columns: dict[str, ResultColumn] = field(default_factory=dict)
    count: int = 0

    def __post_init__(self) -> None:
        self.own = (*self.layout.about, *(("status", "error") if self.layout.rows is None else ("row",)))

    def fill(self, tasks: TaskQuerySet) -> None:
        for task in streamed(tasks.with_data().only(*self.layout.about, "status", "error")):
            self.checkpoint()
            for line in self.rows_of(task):
                self.lines.write(exact_json.dumps(line) + b"\n")
                self.count += 1
                if self.layout.format != "jsonl":
                    self.add_columns(line["data"])

    def rows_of(self, task: Any) -> Iterator[dict[str, Any]]:
        """Yield the rows of a document, read `with_data`: one, or one for each item of the array `layout.rows`."""
        about = {name: as_json(getattr(task, name)) for name in self.layout.about}
        if self.layout.rows is None:
            error = (task.error or {}).get("code") if task.status == Status.FAILED else None
            yield {**about, "status": task.status, "error": error, "data": task.data}
            return
        items = found_at(task.data, self.layout.rows)
        for number, item in enumerate(items if isinstance(items, list) else (), 1):
            yield {**about, "row": number, "data": item}

    def add_columns(self, data: Any) -> None:
        """Add the columns of a row's data. Raises TooManyColumns."""
        for name, value in self.fields_of(data).items():
            if name not in self.columns:
                self.columns[name] = ResultColumn()
            self.columns[name].add(value)
        if len(self.columns) > MAX_COLUMNS:
            raise TooManyColumns

    def fields_of(self, data: Any) -> dict[str, Any]:
        """Return the values of a row's data by column. Data that is not an object is one column."""
        if data is None:
            return {}
        named = data if isinstance(data, dict) else {"data": data}
        return {self.column_of(name): value for name, value in named.items()}

    def column_of(self, name: str) -> str:
        """Return the column of a field. It depends only on the name of the field, and no two fields share a column."""
        last = name
        while last.startswith(PREFIX):
            last = last.removeprefix(PREFIX)
        return PREFIX + name if last in self.own else name

    def header(self) -> list[str]:
        return [*self.own, *self.columns]

    def __iter__(self) -> Iterator[list[Any]]:
        """Yield the values of each row, in the order of the header."""
        for text in self.lines:
            self.checkpoint()
            line = exact_json.loads(text)
            fields = self.fields_of(line["data"])
            yield [line[name] for name in self.own] + [fields.get(name) for name in self.columns]


def as_json(value: Any) -> Any:
    return value.astimezone(UTC).isoformat().replace("+00:00", "Z") if isinstance(value, datetime) else value


def streamed(tasks: TaskQuerySet) -> Iterator[Task]:
    """Yield rows from a server-side cursor, which a transaction keeps open.

    With DISABLE_SERVER_SIDE_CURSORS, as behind a transaction pooler, `QuerySet.iterator` would read all rows at once.
    Within a transaction, a cursor is safe, because the pooler keeps the same server connection.
    """
    yield from ModelIterable(tasks, chunked_fetch=True, chunk_size=READ_ROWS)


def found_at(data: Any, tokens: tuple[str, ...]) -> Any:
    """Return the value at a JSON Pointer, or None."""
    for token in tokens:
        if isinstance(data, dict):
            data = data.get(token)
        elif isinstance(data, list) and INDEX.fullmatch(token) and int(token) < len(data):
            data = data[int(token)]
        else:
            return None
    return data


# ---- CSV ------------------------------------------------------------------------------------------------------------
def write_csv(table: ResultTable, file: IO[bytes], layout: ResultLayout) -> None:
    """Write CSV in the format of exports: NULL is empty, an empty string is `""`, and lines end with LF."""
    guard = formulas.escaped if layout.escapes_formulas else str
    name_guard = escaped_name if layout.escapes_formulas else str

    def cell(value: Any) -> str:
        if value is None:
            return ""
        return quoted(guard(value) if isinstance(value, str) else written(value), layout.delimiter)

    def line(values: list[Any]) -> bytes:
        return layout.delimiter.join(map(cell, values)).encode() + b"\n"

    file.write(BOM_UTF8 if layout.bom else b"")
    file.write(line([name_guard(name) for name in table.header()]))
    for row in table:
        file.write(line(row))


def escaped_name(name: str) -> str:
    """Return the header of a column. A field may have another field's escaped name, so such a name is escaped too."""
    text = name.lstrip("'")
    return name if formulas.escaped(text) == text else f"'{name}"


def written(value: Any) -> str:
    """Return a string unchanged, and any other value as JSON, with the exact digits of numbers."""
    return value if isinstance(value, str) else exact_json.dumps(value).decode()


def quoted(text: str, delimiter: str) -> str:
    if text and not any(char in text for char in f'{delimiter}"\r\n'):
        return text
    return '"' + text.replace('"', '""') + '"'


# ---- Parquet --------------------------------------------------------------------------------------------------------
def write_parquet(table: ResultTable, file: IO[bytes], compression: str) -> None:
    import pyarrow as pa  # 60 MB of libraries, which other requests do not need
    from pyarrow import parquet

    types = [own_type(name) for name in table.own] + [type_of(column) for column in table.columns.values()]
    schema = pa.schema(list(zip(table.header(), types, strict=True)))
    with parquet.ParquetWriter(file, schema, compression=compression) as writer:
        for group in groups(table):
            columns = zip(zip(*group, strict=True), types, strict=True)
            values = [pa.array(fitted(column, kind), kind) for column, kind in columns]
            writer.write_table(pa.Table.from_arrays(values, schema=schema))


def own_type(name: str) -> Any:
    import pyarrow as pa

    types = {
        "bigint": pa.int64(),
        "integer": pa.int32(),
        "text": pa.string(),
        "timestamp with time zone": pa.timestamp("us", tz="UTC"),
    }
    return types[OWN_COLUMNS[name]]


def type_of(column: ResultColumn) -> Any:
    import pyarrow as pa

    if column.kind == DECIMAL:
        return pa.decimal128(column.integer_digits + column.scale, column.scale)
    return {WHOLE: pa.int64(), BOOLEAN: pa.bool_()}.get(column.kind, pa.string())


def fitted(values: tuple[Any, ...], kind: Any) -> list[Any]:
    """Return the values in types that pyarrow converts without loss."""
    import pyarrow as pa

    convert: Callable[[Any], Any] | None = None
    if pa.types.is_decimal(kind):
        convert = Decimal
    elif pa.types.is_string(kind):
        convert = written
    elif pa.types.is_timestamp(kind):
        convert = datetime.fromisoformat
    return [None if value is None else convert(value) for value in values] if convert else list(values)


def groups(table: ResultTable) -> Iterator[list[list[Any]]]:
    """Yield rows in groups that fit into memory."""
    group: list[list[Any]] = []
    begin = 0
    for row in table:
        group.append(row)
        if len(group) >= GROUP_ROWS or table.lines.tell() - begin > GROUP_BYTES:
            yield group
            group, begin = [], table.lines.tell()
    if group:
        yield group
