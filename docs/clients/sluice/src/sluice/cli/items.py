"""Request bodies with the chunks of an export, and the origin of each chunk for error messages.

Each item and its origin are written to temporary files, so that a list of any length needs little memory and can be
sent again.
"""

import csv
import json
import re
import struct
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from io import SEEK_END, TextIOWrapper
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any, BinaryIO, NamedTuple, Self, TextIO

from sluice.cli.errors import CliError, Exit, unreadable

COLUMNS = ("key", "effectiveDate")
ORIGIN = struct.Struct("<QQ")  # the number of the line or argument, and the offset in the body
NOT_UTF8 = re.compile("[\ud800-\udfff]")  # as surrogateescape decodes it
LONGEST_ITEM = 4096
# The options of JSON Pointers into the body.
OPTIONS = {
    "/dataset": "DATASET",
    "/name": "--name",
    "/filters": "--keys, --from, --to",
    "/filters/dateFrom": "--from",
    "/filters/dateTo": "--to",
    "/filters/keys": "--keys",
    "/filters/ruleId": "--rule",
    "/filters/batchId": "--batch",
    "/filters/status": "--status",
    "/format": "--format",
    "/compression": "--compression",
    "/delivery": "--delivery",
    "/columns": "--columns",
    "/csv": "--delimiter, --bom, --formula-policy",
    "/csv/delimiter": "--delimiter",
    "/csv/bom": "--bom",
    "/csv/formulaPolicy": "--formula-policy",
    "/reuse": "--reuse",
    "/allowDegraded": "--allow-degraded",
}


class Item(NamedTuple):
    """One chunk. `origin`: the number of its line or argument."""

    key: str
    day: str
    origin: int


# ---- Sources --------------------------------------------------------------------------------------------------------


def of_arguments(arguments: Iterable[str]) -> Iterator[Item]:
    """Parse `KEY:DATE` arguments. The last colon is the separator, so a key may contain colons."""
    for number, argument in enumerate(arguments, 1):
        key, colon, day = argument.rpartition(":")
        if not colon:
            raise CliError(f"{argument!r} is not KEY:DATE. Example: JFK:2013-02-15", code=Exit.USAGE)
        yield Item(key, day, number)


def of_csv(name: str) -> Iterator[Item]:
    """Yield the items of a CSV file, or of stdin for `-`. Columns are found by name. Other columns are ignored."""
    with opened(name) as file:
        header = file.readline()
        delimiter = next((each for each in ",;\t|" if set(COLUMNS) <= set(names(header, each))), None)
        if delimiter is None:
            raise CliError(f"{name}: the first line must name the columns key and effectiveDate.", code=Exit.USAGE)
        columns = names(header, delimiter)
        at = [columns.index(column) for column in COLUMNS]
        reader = csv.reader(file, delimiter=delimiter, strict=True)
        line = 2
        try:
            for row in reader:
                if row:
                    key, day = (cell(row, column) for column in at)
                    yield Item(key, day, line)
                line = reader.line_num + 2
        except (csv.Error, ValueError) as error:
            raise CliError(f"{name} line {line}: {error}.", code=Exit.USAGE) from None


def names(header: str, delimiter: str) -> list[str]:
    return [name.strip() for name in next(csv.reader([header], delimiter=delimiter), [])]


def cell(row: list[str], column: int) -> str:
    """Return a cell, or "" if the row is too short. Raises ValueError if it is not UTF-8."""
    text = row[column].strip() if column < len(row) else ""
    if NOT_UTF8.search(text):
        raise ValueError("not UTF-8")
    return text


@contextmanager
def opened(name: str) -> Iterator[TextIO]:
    with unreadable(name):
        raw: BinaryIO = sys.stdin.buffer if name == "-" else Path(name).open("rb")  # noqa: SIM115 - closed below
        with TextIOWrapper(raw, encoding="utf-8-sig", errors="surrogateescape", newline="") as file:
            yield file


# ---- The body -------------------------------------------------------------------------------------------------------


class Body:
    """A request body that can be sent repeatedly. `source`: the CSV file, "" for arguments."""

    def __init__(self, options: dict[str, Any], items: Iterable[Item] | None, *, source: str = "") -> None:
        self.source = source
        self.text, self.origins = TemporaryFile(), TemporaryFile()  # noqa: SIM115 - closed by close()
        try:
            self.write(options, items)
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self.text.close()
        self.origins.close()

    def write(self, options: dict[str, Any], items: Iterable[Item] | None) -> None:
        whole = json.dumps(options).encode()
        if items is None:
            self.text.write(whole)
            return
        self.text.write(whole[:-1] + b', "items": [')
        for count, item in enumerate(items):
            self.text.write(b"," if count else b"")
            self.origins.write(ORIGIN.pack(item.origin, self.text.tell()))
            self.text.write(json.dumps({"key": item.key, "effectiveDate": item.day}).encode())
        self.text.write(b"]}")

    def as_request(self) -> dict[str, Any]:
        size = self.text.seek(0, SEEK_END)
        self.text.seek(0)
        return {"content": self.text, "headers": {"Content-Type": "application/json", "Content-Length": str(size)}}

    def place(self, pointer: str) -> str:
        """Convert a JSON Pointer from the server into the option, argument, or line that the user gave."""
        if found := re.fullmatch(r"/items/(\d+)(?:/(.*))?", pointer):
            number, column = int(found[1]), found[2]
            return f"{self.item(number)}{f', {column}' if column else ''}"
        if found := re.fullmatch(r"/filters/keys/(\d+)", pointer):
            return f"--keys, number {int(found[1]) + 1}"
        if pointer == "/items":
            return self.source or "KEY:DATE"
        return OPTIONS.get(pointer, pointer)

    def item(self, number: int) -> str:
        self.origins.seek(number * ORIGIN.size)
        packed = self.origins.read(ORIGIN.size)
        if len(packed) < ORIGIN.size:
            return f"item {number}"
        origin, at = ORIGIN.unpack(packed)
        self.text.seek(at)
        where = f"{self.source} line {origin}" if self.source else f"argument {origin}"
        try:
            found, _ = json.JSONDecoder().raw_decode(self.text.read(LONGEST_ITEM).decode(errors="replace"))
        except ValueError:  # longer than a valid item
            return where
        return f"{where} ({found['key']}, {found['effectiveDate']})"
