"""The context of table rows: the headings above them, the head of their table, and their groups in it.

A group is a row with one filled cell, a cell that spans several rows, or cells at the start of a row that are empty in
the rows after it. Consecutive rows with one filled cell are nested groups.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import takewhile

from etl.postprocessors.tables import HTML_TABLE, MAX_HEAD, Table, TableHeads, cells, html_rows

HEADING = re.compile(r"^(?:(#{1,6})[ \t]+\S[^\n]*|\*\*[^*\n]+\*\*:?[ \t]*$)", re.MULTILINE)
BOLD = 7  # the heading level of a line in bold
CELL = re.compile(r"<t[dh]\b([^>]*)>((?:(?!<t[dh]\b|</tr\b).)*)", re.IGNORECASE | re.DOTALL)
TAG = re.compile(r"<[^>]*>")
ROWSPAN = re.compile(r"\browspan\s*=\s*[\"']?(\d{1,6})", re.IGNORECASE)
MAX_HEADING = 200
MAX_ROWS = 5_000  # rows above a position that are searched for groups


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A table row: the texts of its cells, and the number of rows that each cell spans."""

    start: int
    texts: list[str]
    spans: list[int]

    @property
    def is_group(self) -> bool:
        return len(self.texts) > 1 and bool(self.texts[0]) and not any(self.texts[1:])


NO_GROUP = Row(start=0, texts=[], spans=[])


class HeadingsAndTables:
    """The headings and tables of a text, for lookups by position."""

    def __init__(self, content: str) -> None:
        self.content = content
        self.heads = TableHeads(content)
        self.rows: dict[int, list[Row]] = {}  # by the start of a table
        self.headings = [
            (match.start(), len(match[1] or "") or BOLD, match.group()[:MAX_HEADING])
            for match in HEADING.finditer(content)
        ]

    def headings_of(self, place: int) -> str:
        """Return the headings that apply to a position."""
        chain: list[str] = []
        above = BOLD + 1
        for start, level, line in reversed(self.headings):
            if start == place:
                above = level
            elif start < place and level < above:
                chain.append(line)
                above = level
        return "\n".join(reversed(chain))

    def lead(self, start: int, end: int) -> tuple[int, str]:
        """Return the start of the rows in a span, and the table head and groups that are missing in the span. These are
        "" if nothing is missing."""
        place, head = self.heads.missing_head(start, end)
        lines = [head, *self.groups(place)] if head else []
        return place, "\n".join(lines)

    def groups(self, place: int) -> Iterator[str]:
        """Yield the groups of the row at a position, formatted as rows."""
        tables = self.heads.around(place)
        rows = [row for row in self.rows_of(tables[-1]) if row.start >= place]
        if not rows:
            return
        above = [each for table in reversed(tables) for each in reversed(self.rows_of(table)) if each.start < place]
        above = above[:MAX_ROWS]
        groups = open_groups(above, len(list(takewhile(lambda row: row.is_group, rows))))
        if rows[0].is_group:
            found = groups
        else:
            empty = len(list(takewhile(lambda text: not text, rows[0].texts)))
            columns = [last_filled(above, column) for column in range(empty % len(rows[0].texts))]
            found = [*groups, open_cells(above), columns]
        is_html = is_html_table(self.content, tables[-1])
        for line in dict.fromkeys(format_row(texts, is_html=is_html) for texts in found if any(texts)):
            if len(line) <= MAX_HEAD:
                yield line

    def rows_of(self, table: Table) -> list[Row]:
        """Return the body rows of a table."""
        if table.start not in self.rows:
            read = html_rows_of if is_html_table(self.content, table) else markdown_rows_of
            self.rows[table.start] = list(read(self.content[table.body_start : table.end], table.body_start))
        return self.rows[table.start]


def is_html_table(content: str, table: Table) -> bool:
    return HTML_TABLE.match(content, table.start) is not None


def open_groups(above: list[Row], following: int) -> list[list[str]]:
    """Return the groups that continue below these rows, the outermost first. `above`: the rows in reverse order.
    `following`: the number of groups that start below them. N consecutive group rows are nested and replace the N
    innermost groups."""
    found: list[list[str]] = []
    run: list[list[str]] = []
    for row in [*above, NO_GROUP]:
        if row.is_group:
            run.insert(0, row.texts)
            continue
        found = run[: max(0, len(run) - len(found))] + found
        run = []
    return found[: max(0, len(found) - following)]


def open_cells(above: list[Row]) -> list[str]:
    """Return the cells that span beyond these rows, which are in reverse order."""
    return [
        text
        for distance, row in reversed(list(enumerate(above, 1)))
        for text, span in zip(row.texts, row.spans, strict=True)
        if span > distance
    ]


def last_filled(above: list[Row], column: int) -> str:
    return next((row.texts[column] for row in above if column < len(row.texts) and row.texts[column]), "")


def markdown_rows_of(text: str, offset: int) -> Iterator[Row]:
    for line in text.splitlines(keepends=True):
        texts = [cell.strip("*_ ") for cell in cells(line)]
        if "|" in line:
            yield Row(start=offset, texts=texts, spans=[1] * len(texts))
        offset += len(line)


def html_rows_of(text: str, offset: int) -> Iterator[Row]:
    covered = 0  # the number of following rows that cells above still span
    for start, end in html_rows(text):
        row = CELL.findall(text[start:end])
        texts = [" ".join(TAG.sub(" ", inside).split()) for _, inside in row]
        spans = [span_of(attributes) for attributes, _ in row]
        if len(row) == 1 and not covered:
            texts, spans = [*texts, ""], [*spans, 1]
        if row:
            yield Row(start=offset + start, texts=texts, spans=spans)
        covered = max(covered, *spans, 1) - 1


def span_of(attributes: str) -> int:
    found = ROWSPAN.search(attributes)
    return int(found[1]) if found else 1


def format_row(texts: list[str], *, is_html: bool) -> str:
    if is_html:
        return f"<tr>{''.join(f'<td>{text}</td>' for text in texts if text)}</tr>"
    return f"| {' | '.join(text for text in texts if text)} | |"
