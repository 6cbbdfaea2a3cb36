"""Detection of tables and their heads, so that each piece of a table can be shown with the names of its columns.

A table that continues on the next page often has no head there, or its first data row was mistaken for one. Such a
table inherits the head of the table before it if they are separated only by a page marker and running heads.
"""

import re
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import pairwise

from etl.providers.base import PAGE_MARKER

DELIMITER_ROW = re.compile(r"[ \t]*+(?:\|[ \t]*+)?:?-+:?[ \t]*(?:\|[ \t:-]*)*")  # below the head of a Markdown table
RUN = re.compile(r"(?:^[^\n|]*\|[^\n]*(?:\n|\Z))+", re.MULTILINE)  # a line with a `|` counts as a row
HTML_TABLE = re.compile(r"<table\b", re.IGNORECASE)
# Further rows of a head: they have only `th` cells.
HEAD_ROWS = re.compile(r"(?:\s*<tr\b[^>]*>(?:\s*<th\b(?:(?!</?t[rdh]\b).)*</th>)+\s*</tr>)*", re.IGNORECASE | re.DOTALL)
MARKER = re.compile(PAGE_MARKER)
DIGIT = re.compile(r"\d")
MAX_HEAD = 1_000
MAX_BETWEEN = 1_500  # characters of running heads between two pages of a table


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """A table: `content[start:end]`. `head`: its own or inherited head, or "". `body_start`: the start of its body
    rows, which follow its own head, or `end` for a Markdown table without any head."""

    start: int
    end: int
    head: str
    columns: int
    body_start: int
    is_inherited: bool = False


class TableHeads:
    """The tables of a text, in order."""

    def __init__(self, content: str) -> None:
        self.tables: list[Table] = []
        for table in sorted((*markdown_tables(content), *html_tables(content)), key=lambda table: table.start):
            self.tables.append(self.with_head(content, table))

    def with_head(self, content: str, table: Table) -> Table:
        """Return the table with the head of the previous table if it continues that table."""
        above = self.tables[-1] if self.tables else None
        if above is None or above.columns != table.columns or not above.head or len(above.head) > MAX_HEAD:
            return table
        between = content[above.end : table.start]
        is_continued = len(between) <= MAX_BETWEEN and MARKER.search(between) is not None
        is_data = not table.head or (DIGIT.search(table.head) is not None and DIGIT.search(above.head) is None)
        if not (is_continued and is_data):
            return table
        return replace(table, head=above.head, body_start=table.start, is_inherited=True)

    def around(self, place: int) -> list[Table]:
        """Return the table at a position, preceded by the tables that it continues."""
        last = bisect_right(self.tables, place, key=lambda table: table.end)
        first = last
        while first and self.tables[first].is_inherited:
            first -= 1
        return self.tables[first : last + 1]

    def missing_head(self, start: int, end: int) -> tuple[int, str]:
        """Return the start of the rows in `content[start:end]`, and the table head that is missing there, or ""."""
        index = bisect_right(self.tables, start, key=lambda table: table.end)
        table = self.tables[index] if index < len(self.tables) else None
        if table is None or table.start >= end or len(table.head) > MAX_HEAD:
            return start, ""
        if table.body_start <= start:
            return max(start, table.start), table.head
        return (table.start, table.head) if table.is_inherited else (start, "")


def markdown_tables(content: str) -> Iterator[Table]:
    for run in RUN.finditer(content):
        first, _, rest = run.group().partition("\n")
        second = rest.partition("\n")[0]
        has_head = DELIMITER_ROW.fullmatch(second) is not None
        yield Table(
            start=run.start(),
            end=run.end(),
            head=f"{first}\n{second}" if has_head else "",
            columns=len(cells(first)),
            body_start=run.start() + len(first) + len(second) + 2 if has_head else run.end(),
        )


def cells(row: str) -> list[str]:
    return [cell.strip() for cell in row.replace("\\|", "/").strip().removeprefix("|").removesuffix("|").split("|")]


def html_tables(content: str) -> Iterator[Table]:
    """Yield the HTML tables. The head is the first row, because few documents mark heads, and `th` rows after it."""
    folded = ascii_lower(content)
    begins = [match.start() for match in HTML_TABLE.finditer(content)]
    for start, following in pairwise([*begins, len(content)]):
        close = folded.find("</table>", start, following)
        end = close + len("</table>") if close >= 0 else following
        row = folded.find("<tr", start, end)
        row_end = folded.find("</tr>", row, end) if row >= 0 else -1
        if row_end >= 0:
            body_start = row_end + len("</tr>")
            columns = len(re.findall(r"<t[dh]\b", folded[row:body_start])) if body_start - row <= MAX_HEAD else 0
            if columns and (more := HEAD_ROWS.match(content, body_start, min(end, row + MAX_HEAD))):
                body_start = more.end()
            head = content[row:body_start] if columns else ""
            yield Table(start=start, end=end, head=head, columns=columns, body_start=body_start)


def html_rows(content: str) -> Iterator[tuple[int, int]]:
    folded = ascii_lower(content)
    end = 0
    while (start := folded.find("<tr", end)) >= 0 and (close := folded.find("</tr>", start)) >= 0:
        end = close + len("</tr>")
        yield start, end


def ascii_lower(content: str) -> str:
    """Return the text in lower case without changing positions. `str.lower` turns `İ` into two characters."""
    return content.lower() if content.isascii() else content.translate(LOWER)


LOWER = {code: code + 32 for code in range(ord("A"), ord("Z") + 1)}
