"""The results of a batch in one file: JSON lines, CSV, or Parquet.

Results are read a few at a time, into a temporary file of JSON lines. CSV and Parquet are written from that file: their
columns are known only at its end. So memory does not grow with the batch, no database connection waits for a slow
client, and an error occurs before the response begins.
"""

import io
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from decimal import Decimal
from typing import IO, Any

from django.conf import settings

from config.platform import exact_json, formulas
from config.platform.http.problems import DiskFull, Problem, is_full
from etl.core.states import Status
from etl.models import DocumentBatch, Task

FORMATS = {
    "jsonl": "application/x-ndjson",
    "csv": "text/csv; charset=utf-8",
    "parquet": "application/vnd.apache.parquet",
}
READ_ROWS = 10  # results in memory: each may be megabytes
GROUP_ROWS, GROUP_BYTES = 1_000, 16 * 1024**2  # of a Parquet row group, which is in memory
MAX_COLUMNS = 1_000
MAX_DIGITS = 38  # of a decimal128, the widest one that most readers know
MAX_INTEGER = 2**63
BOM = b"\xef\xbb\xbf"
WHOLE, DECIMAL, BOOLEAN, TEXT, JSON = "whole", "decimal", "boolean", "text", "json"


class TooManyColumns(Problem):
    status = 409
    code = "too_many_columns"
    detail = f"The results have more than {MAX_COLUMNS:,} different fields. Use the format jsonl."


@dataclass(frozen=True, slots=True, kw_only=True)
class ResultLayout:
    """The shape of the file. `rows`: the tokens of the pointer to an array, or None for one row a document."""

    format: str
    rows: tuple[str, ...] | None = None
    escapes_formulas: bool = False
    bom: bool = False


def build(batch: DocumentBatch, layout: ResultLayout) -> IO[bytes]:
    """Return the file, unnamed and at its begin. The caller closes it. Raises TooManyColumns and DiskFull."""
    with temporary() as lines:
        table = ResultTable(lines)
        table.fill(batch, layout)
        lines.seek(0)
        if layout.format == "jsonl":
            return kept(lines)
        with temporary() as file:
            if layout.format == "csv":
                write_csv(table, file, layout)
            else:
                write_parquet(table, file)
            file.seek(0)
            return kept(file)


@contextmanager
def temporary() -> Iterator[IO[bytes]]:
    """Yield an unnamed file, and close it, and so delete it, at the end. `kept` returns another handle of it."""
    try:
        with tempfile.TemporaryFile(dir=settings.FILE_UPLOAD_TEMP_DIR) as file:
            yield file
    except OSError as error:
        if is_full(error):
            raise DiskFull from None
        raise


def kept(file: IO[bytes]) -> IO[bytes]:
    return io.FileIO(os.dup(file.fileno()))


# ---- Rows -----------------------------------------------------------------------------------------------------------
@dataclass
class ResultColumn:
    """The values of a column, as far as its type depends on them."""

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
    if isinstance(value, int) and -MAX_INTEGER <= value < MAX_INTEGER:
        return WHOLE
    if isinstance(value, int | Decimal):
        return DECIMAL
    return TEXT if isinstance(value, str) else JSON


@dataclass
class ResultTable:
    """The rows, in a file of JSON lines, and their columns."""

    lines: IO[bytes]
    columns: dict[str, ResultColumn] = field(default_factory=dict)
    own: tuple[str, ...] = ()

    def fill(self, batch: DocumentBatch, layout: ResultLayout) -> None:
        rows = layout.rows
        self.own = ("task_id", "filename", *(("row",) if rows is not None else ("status", "error")))
        for task in tasks_of(batch):
            for line in rows_of(task, rows):
                self.lines.write(exact_json.dumps(line) + b"\n")
                if layout.format != "jsonl":
                    self.note(line["data"])

    def note(self, data: Any) -> None:
        """Note the columns of a row. Raises TooManyColumns."""
        for name, value in self.fields_of(data).items():
            if name not in self.columns:
                self.columns[name] = ResultColumn()
            self.columns[name].add(value)
        if len(self.columns) > MAX_COLUMNS:
            raise TooManyColumns

    def fields_of(self, data: Any) -> dict[str, Any]:
        """Return the columns of a row's data. Data that is not an object is one column."""
        if data is None:
            return {}
        named = data if isinstance(data, dict) else {"data": data}
        return {self.column_of(name, named): value for name, value in named.items()}

    def column_of(self, name: str, named: dict[str, Any]) -> str:
        if name not in self.own:
            return name
        while name in self.own or name in named:
            name = f"data.{name}"
        return name

    def header(self) -> list[str]:
        return [*self.own, *self.columns]

    def __iter__(self) -> Iterator[list[Any]]:
        """Yield the values of each row, in the order of the header."""
        for text in self.lines:
            line = exact_json.loads(text)
            fields = self.fields_of(line["data"])
            yield [line[name] for name in self.own] + [fields.get(name) for name in self.columns]


def tasks_of(batch: DocumentBatch) -> Iterator[Task]:
    """Yield the documents of a batch. Not by a cursor: through a pooler, that would read all of them at once."""
    wanted = ("task_id", "filename", "status", "error", "run", "result", "last_result", "last_result_run")
    tasks, last = Task.objects.filter(batch_id=batch.pk).order_by("pk").only(*wanted), 0
    while page := list(tasks.filter(pk__gt=last)[:READ_ROWS]):
        yield from page
        last = page[-1].pk


def rows_of(task: Task, rows: tuple[str, ...] | None) -> Iterator[dict[str, Any]]:
    """Yield the rows of a document: one, or one for each item of an array in its data."""
    data = (task.current_result or {}).get("data") if task.status == Status.COMPLETED else None
    about = {"task_id": task.pk, "filename": task.filename}
    if rows is None:
        error = (task.error or {}).get("code") if task.status == Status.FAILED else None
        yield {**about, "status": task.status, "error": error, "data": data}
        return
    items = found_at(data, rows)
    for number, item in enumerate(items if isinstance(items, list) else (), 1):
        yield {**about, "row": number, "data": item}


def found_at(data: Any, tokens: tuple[str, ...]) -> Any:
    """Return the value at a JSON Pointer, or None."""
    for token in tokens:
        if isinstance(data, dict):
            data = data.get(token)
        elif isinstance(data, list) and token.isascii() and token.isdecimal() and int(token) < len(data):
            data = data[int(token)]
        else:
            return None
    return data


# ---- CSV ------------------------------------------------------------------------------------------------------------
def write_csv(table: ResultTable, file: IO[bytes], layout: ResultLayout) -> None:
    """Write CSV as exports have it: NULL is empty, an empty string is `""`, and lines end with LF."""
    guard = formulas.escaped if layout.escapes_formulas else str
    file.write(BOM if layout.bom else b"")
    file.write(csv_line([quoted(guard(name)) for name in table.header()]))
    for row in table:
        file.write(csv_line([cell(value, guard) for value in row]))


def csv_line(cells: list[str]) -> bytes:
    return ",".join(cells).encode() + b"\n"


def cell(value: Any, guard: Any) -> str:
    if value is None:
        return ""
    return quoted(guard(value)) if isinstance(value, str) else quoted(written(value))


def written(value: Any) -> str:
    """Return the text of a value: a string as it is, everything else as JSON, with its digits."""
    return value if isinstance(value, str) else exact_json.dumps(value).decode()


def quoted(text: str) -> str:
    if text and not any(char in text for char in ',"\r\n'):
        return text
    return '"' + text.replace('"', '""') + '"'


# ---- Parquet --------------------------------------------------------------------------------------------------------
def write_parquet(table: ResultTable, file: IO[bytes]) -> None:
    import pyarrow as pa  # 60 MB of libraries, which other requests do not need
    from pyarrow import parquet

    own = {"task_id": pa.int64(), "row": pa.int64()}
    types = [own.get(name, pa.string()) for name in table.own]
    types += [type_of(column) for column in table.columns.values()]
    schema = pa.schema(list(zip(table.header(), types, strict=True)))
    with parquet.ParquetWriter(file, schema, compression="zstd") as writer:
        for group in groups(table):
            columns = zip(zip(*group, strict=True), types, strict=True)
            values = [pa.array(fitted(column, kind), kind) for column, kind in columns]
            writer.write_table(pa.Table.from_arrays(values, schema=schema))


def type_of(column: ResultColumn) -> Any:
    import pyarrow as pa

    if column.kind == DECIMAL:
        return pa.decimal128(column.integer_digits + column.scale, column.scale)
    return {WHOLE: pa.int64(), BOOLEAN: pa.bool_()}.get(column.kind, pa.string())


def fitted(values: tuple[Any, ...], kind: Any) -> list[Any]:
    """Return the values in types that are converted without a loss."""
    import pyarrow as pa

    if pa.types.is_decimal(kind):
        return [None if value is None else Decimal(value) for value in values]
    if pa.types.is_string(kind):
        return [None if value is None else written(value) for value in values]
    return list(values)


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
