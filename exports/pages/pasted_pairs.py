"""Parser for pasted pairs of key and date, one per line, and errors with line numbers.

Accepts `JFK 2024-02-29`, `JFK,2024-02-29`, and columns from spreadsheets, which are separated by tabs or semicolons and
may have quotes and a heading. Other lines also become items, so that the API's serializer reports their errors.
"""

import csv
import re
from collections.abc import Iterable
from itertools import islice
from typing import NamedTuple

from django.conf import settings

from config.platform.http import problems
from config.platform.http.problems import InputError
from config.platform.plurals import counted

MAX_ERRORS = 20  # further errors are only counted
MAX_QUOTED = 60  # characters of a line that an error quotes
NUMBER = re.compile(r"\d")
HEADINGS = {"key", "keys"}
# A key that `read` would take for a comment, or would split.
AMBIGUOUS = re.compile(r"\s*#|[^,;]*[,;]")
DAY = re.compile(r"\d{4}-\d\d-\d\d")
POINTER = re.compile(r"/items/(\d+)(?:/(.*))?")
KEY, DATE, EXTRA = "key", "effectiveDate", "a third column"


class PastedLine(NamedTuple):
    """A non-empty line: its number, from 1, and its cells."""

    number: int
    cells: list[str]


def read(text: str) -> list[PastedLine]:
    """Return the lines with pairs, without empty lines, comments (#), and the heading.

    Parsing is slow, so it stops once there are so many lines that the API refuses the list because of its length.
    """
    numbered = enumerate(text.lstrip("\ufeff").splitlines(), start=1)
    pairs = ((number, line) for number, line in numbered if line.strip() and not line.lstrip().startswith("#"))
    max_lines = 10 * settings.SLUICE.export_max_chunks_per_job + 2  # one more than allowed, and the heading
    lines = [PastedLine(number, cells(line)) for number, line in islice(pairs, max_lines)]
    return lines[1:] if lines and is_heading(lines[0]) else lines


def cells(line: str) -> list[str]:
    delimiter = next((each for each in ("\t", ";", ",") if each in line), None)
    if delimiter is None:
        return line.strip().rsplit(None, 1)
    found = csv_cells(line, delimiter=delimiter)
    while len(found) > 2 and not found[-1]:  # noqa: PLR2004 - a key and a date; spreadsheets add empty columns
        found.pop()
    return found


def csv_cells(line: str, *, delimiter: str = ",") -> list[str]:
    """Return the cells of a line of CSV, or the whole line if it is not CSV."""
    try:
        row = next(csv.reader([line], delimiter=delimiter, skipinitialspace=True), [])
    except csv.Error:  # a line break, or a cell of more than 131,072 characters
        row = [line]
    return [cell.strip() for cell in row]


def is_heading(line: PastedLine) -> bool:
    """Return whether a first line is a heading such as `key,effectiveDate`, and not a pair."""
    return line.cells[0].casefold() in HEADINGS and not any(NUMBER.search(cell) for cell in line.cells[1:])


def items(lines: Iterable[PastedLine]) -> list[dict[str, str]]:
    """Return `items` for the body of the API request."""
    return [dict(zip((KEY, DATE, EXTRA), line.cells, strict=False)) for line in lines]


def text_of(pairs: Iterable[tuple[str, object]]) -> str:
    """Return the pairs as text for the form, one pair per line. `read` returns the same pairs."""
    return "\n".join(line_of(key, day) for key, day in pairs)


def line_of(key: str, day: object) -> str:
    if not AMBIGUOUS.match(key):
        return f"{key} {day}"
    quoted_key = key.replace('"', '""')
    return f'"{quoted_key}"\t{day}'


# ---- Errors ---------------------------------------------------------------------------------------------------------


def sentences(errors: Iterable[InputError], lines: list[PastedLine]) -> list[str]:
    """Return the errors as sentences that start with their line number."""
    found = [sentence(error, lines) for error in errors]
    more = len(found) - MAX_ERRORS
    if more <= 0:
        return found
    at_least = "At least " if len(found) >= problems.MAX_ERRORS else ""  # the API stops after so many invalid items
    return [*found[:MAX_ERRORS], f"{at_least}{counted(more, 'more error')}."]


def sentence(error: InputError, lines: list[PastedLine]) -> str:
    place = POINTER.fullmatch(error.pointer)
    if not place or int(place[1]) >= len(lines):
        return error.detail
    line = lines[int(place[1])]
    return f"Line {line.number}: {explanation(place[2], line)}"


def explanation(name: str | None, line: PastedLine) -> str:
    if name == DATE:
        given = quoted(line.cells[1]) if len(line.cells) > 1 else ""
        if not given:
            return "the date is missing. Write KEY 2024-02-29."
        if DAY.fullmatch(line.cells[1]):
            return f"{given} is not a calendar date."
        return f"{given} is not a date. Write it as 2024-02-29."
    if name == KEY:
        if not line.cells[0]:
            return "the key is missing. Write KEY 2024-02-29."
        return f"{quoted(line.cells[0])} is not a key of this dataset."
    return "too many columns. Write KEY 2024-02-29."


def quoted(cell: str) -> str:
    return f"“{cell[:MAX_QUOTED]}…”" if len(cell) > MAX_QUOTED else f"“{cell}”" if cell else ""
