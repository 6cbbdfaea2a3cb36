"""Escaping of cells and column names in CSV files that a spreadsheet would run as a formula."""

import re
from collections import defaultdict
from collections.abc import Iterable
from itertools import chain

from psycopg import sql

from config.platform.formulas import FORMULA, IGNORABLE, LINE_BREAKS, NUMBER, SIGNS
from exports.core.errors import PermanentSourceError
from exports.source.columns import Column

MAX_NAME_BYTES = 63  # Postgres truncates longer names without an error


def cells(columns: list[Column], encoding: str) -> sql.Composed:
    """Return the expressions of the columns for a source database of this encoding.

    Raises PermanentSourceError if two columns have the same escaped name, or if an escaped name is too long.
    """
    if len({escaped(column.name) for column in columns}) < len({column.name for column in columns}):
        raise PermanentSourceError("two columns have the same escaped name")
    return sql.SQL(", ").join(cell(column, encoding) for column in columns)


def escaped(name: str) -> str:
    """Return the escaped name of a column. Numbers are escaped too, because names are text."""
    return f"'{name}" if re.match(FORMULA, name) else name


def cell(column: Column, encoding: str) -> sql.Composed:
    name, header = sql.Identifier(column.name), escaped(column.name)
    if header != column.name and len(header.encode()) > MAX_NAME_BYTES:
        raise PermanentSourceError(f"an escaped column name is longer than {MAX_NAME_BYTES} bytes")
    if not column.is_text:
        return sql.SQL("{} AS {}").format(name, sql.Identifier(header))
    text = sql.SQL("format('%s', {})").format(name)  # as COPY writes it; a cast to text may differ
    return sql.SQL(
        "CASE WHEN {is_formula} AND {text} !~ {number} THEN '''' || {text} WHEN {name} IS NOT NULL THEN {text} END"
        " AS {header}"
    ).format(is_formula=is_formula(text, encoding), text=text, number=NUMBER, name=name, header=sql.Identifier(header))


def is_formula(text: sql.Composable, encoding: str) -> sql.Composed:
    """Return the condition that a text is a formula.

    Only in a UTF-8 database do regular expressions match Unicode characters. In other databases, the hex digits of the
    text in UTF-8, the encoding of the file, are compared. This is slow, so cells that start with an ASCII letter or
    digit, which all encodings share, are skipped.
    """
    if encoding == "UTF8":
        return sql.SQL("{} ~ {}").format(text, FORMULA)
    return sql.SQL("{text} ~ '^[^0-9A-Za-z]' AND encode(convert_to({text}, 'UTF8'), 'hex') ~ {formula}").format(
        text=text, formula=FORMULA_IN_HEX
    )


def alternatives(characters: Iterable[str]) -> str:
    """Return a pattern of the hex digits of one of these characters in UTF-8.

    It is a thirtieth as long as a list of all characters, because characters that differ only in the last byte share
    the other bytes.
    """
    last_bytes: dict[str, list[str]] = defaultdict(list)
    for digits in (character.encode().hex() for character in characters):
        last_bytes[digits[:-2]].append(digits[-2:])
    starts: dict[str, list[str]] = defaultdict(list)
    for start, ends in last_bytes.items():
        starts["|".join(ends)].append(start)
    return "|".join(f"({'|'.join(each)})({ends})" for ends, each in starts.items())


ignorable = chain.from_iterable(range(first, last + 1) for first, last in IGNORABLE)
FORMULA_IN_HEX = f"^({alternatives(map(chr, ignorable))})*({alternatives(SIGNS + LINE_BREAKS)})"
