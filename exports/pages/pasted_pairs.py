"""Pairs of key and date as people paste them, a line each, and errors at the very line.

`JFK 2024-02-29`, `JFK,2024-02-29`, and what spreadsheets copy: columns with tabs or semicolons, quoted or not, with a
line of headings above. What does not look like a pair becomes an item all the same: the API's serializer is who says
what is wrong with it.
"""

import csv
import re
from collections.abc import Iterable
from itertools import islice
from typing import NamedTuple

from django.conf import settings

from config.platform.http.problems import InputError

SHOWN = 20  # errors; the others are counted
LONGEST = 60  # characters of a line that an error quotes
NUMBER = re.compile(r"\d")
HEADINGS = {"key", "keys"}
DAY = re.compile(r"\d{4}-\d\d-\d\d")
POINTER = re.compile(r"/items/(\d+)(?:/(.*))?")
KEY, DATE, MORE = "key", "effectiveDate", "a third column"


class Line(NamedTuple):
    """A line that is not empty: its number as editors count, and its cells."""

    number: int
    cells: list[str]


def read(text: str) -> list[Line]:
    """Return the lines that stand for pairs: without empty ones, remarks (#) and headings.

    It stops where the API refuses a list by its length alone: to take a line apart costs more than all else here.
    """
    listed = enumerate(text.lstrip("\ufeff").splitlines(), start=1)
    told = ((number, line) for number, line in listed if line.strip() and not line.lstrip().startswith("#"))
    enough = 10 * settings.SLUICE.export_max_chunks_per_job + 2  # one too many, and headings
    lines = [Line(number, cells(line)) for number, line in islice(told, enough)]
    return lines[1:] if lines and is_heading(lines[0]) else lines


def cells(line: str) -> list[str]:
    delimiter = next((each for each in ("\t", ";", ",") if each in line), None)
    if delimiter is None:
        return line.strip().rsplit(None, 1)
    row = next(csv.reader([line], delimiter=delimiter, skipinitialspace=True), [])
    found = [cell.strip() for cell in row]
    while len(found) > 2 and not found[-1]:  # noqa: PLR2004 - a key and a date; spreadsheets add empty columns
        found.pop()
    return found


def is_heading(line: Line) -> bool:
    """`key,effectiveDate` and the like. A first line that could be a pair is none."""
    return line.cells[0].casefold() in HEADINGS and not any(NUMBER.search(cell) for cell in line.cells[1:])


def items(lines: Iterable[Line]) -> list[dict[str, str]]:
    """Return `items` as the API takes them."""
    return [dict(zip((KEY, DATE, MORE), line.cells, strict=False)) for line in lines]


def text_of(pairs: Iterable[tuple[str, object]]) -> str:
    """Return what would be pasted for these pairs."""
    return "\n".join(f"{key} {day}" for key, day in pairs)


# ---- Errors ---------------------------------------------------------------------------------------------------------


def told(errors: Iterable[InputError], lines: list[Line]) -> list[str]:
    """Return what is wrong, as sentences that begin with the number of the line where they are about one."""
    said = [sentence(error, lines) for error in errors]
    more = len(said) - SHOWN
    return said if more <= 0 else [*said[:SHOWN], f"And {more} more."]


def sentence(error: InputError, lines: list[Line]) -> str:
    place = POINTER.fullmatch(error.pointer)
    if not place or int(place[1]) >= len(lines):
        return error.detail
    line = lines[int(place[1])]
    return f"Line {line.number}: {wrong(place[2], line)}"


def wrong(name: str | None, line: Line) -> str:
    if name == DATE:
        given = quoted(line.cells[1]) if len(line.cells) > 1 else ""
        if not given:
            return "the date is missing; write KEY 2024-02-29."
        if DAY.fullmatch(line.cells[1]):
            return f"the calendar has no {given}."
        return f"{given} is not a date; write it as 2024-02-29."
    if name == KEY:
        return f"{quoted(line.cells[0])} is not a key of this dataset: it does not match the dataset's key pattern."
    return "more than a key and a date; write KEY 2024-02-29."


def quoted(cell: str) -> str:
    return f"“{cell[:LONGEST]}…”" if len(cell) > LONGEST else f"“{cell}”" if cell else ""
