"""Rows of delimited text, such as CSV, even if its quotation marks are unbalanced."""

import csv
from collections.abc import Iterator


def has_open_quote(lines: list[str], delimiter: str) -> bool:
    """Return whether an opening quotation mark lacks its closing one, so that its cell would contain other cells.

    Valid cells may contain line breaks. A cell that a stray mark opens ends at the end of the text, or within a later
    cell, which is invalid. Text after a closing mark in the same line is tolerated. Raises csv.Error for a cell above
    the size limit.
    """
    remaining, done, is_complete = iter(lines), 0, False
    while not is_complete:
        reader, last = csv.reader(remaining, delimiter=delimiter, strict=True), 0
        try:
            for _ in reader:
                last = reader.line_num
            is_complete = True
        except csv.Error as error:
            if "field limit" in str(error):
                raise
            done += reader.line_num
            if reader.line_num > last + 1 or lines[done - 1].count('"') % 2:
                return True
    return False


def rows_of_lines(lines: list[str], delimiter: str) -> Iterator[list[str]]:
    """Yield a row for each line. In a line with an odd number of quotation marks, they are part of the text."""
    for line in lines:
        if line.count('"') % 2:
            yield from csv.reader([line], delimiter=delimiter, quoting=csv.QUOTE_NONE)
        else:
            yield from csv.reader([line], delimiter=delimiter)
