"""Detection of tables from aligned cells, without ruling lines or the layout model."""

import re
from bisect import bisect_right, insort
from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import median

from etl.providers.local.boxes import Area, Box, Row, bounds
from etl.providers.local.tables.columns import MIN_COLUMNS, MIN_ITEM_NUMBERS, NUMBER
from etl.providers.local.tables.rows import MIN_ITEM_COLUMNS, TIGHT
from etl.providers.local.tables.table import MIN_ROWS

Span = tuple[float, float]
# With only two columns, a table needs more rows, because it may be a letterhead or signatures.
MIN_ROWS_OF_TWO_COLUMNS = 3
# Maximum gap between rows of a table, as a multiple of the type size, and maximum consecutive rows that do not fit.
MAX_ROW_GAP, MAX_PENDING = 3.0, 4
MAX_HEAD_GAP = 1.0  # maximum gap above a table to a row of column heads, in type sizes
MIN_PROSE_LENGTH = 28  # minimum median length of the cells in a column of prose, in characters
AMOUNT = re.compile(r"[-–−]?\s?(?:[€$£¥]|[A-Z]{3})?\s?\d[\d.,'’ ]*[.,]\d{2}\s?(?:[€$£¥]|[A-Z]{3})?")
LIST_MARK = re.compile(r"(?:\(?\w{1,3}[.)]|[•‣◦▪●∙·–-])")


@dataclass(slots=True)
class AlignedRows:
    """Consecutive rows whose cells align. `columns`: the horizontal spans of the columns, which do not overlap."""

    columns: list[Span]
    rows: list[list[Box]]
    gaps: list[float] = field(default_factory=list)  # between the rows added by `add`, sorted

    def add(self, row: list[Box]) -> None:
        """Add a row at the bottom."""
        if self.rows:
            insort(self.gaps, vertical_gap(self.rows[-1], row))
        self.rows.append(row)

    def area(self) -> tuple[float, float, float, float]:
        return bounds([box for row in self.rows for box in row])

    def max_inner_gap(self) -> float:
        """Return the maximum gap before a row with one cell, which otherwise is the heading of another table."""
        if len(self.gaps) <= 1:
            return float("inf")
        return 1.5 * max(0.0, median(self.gaps)) + 0.5 * type_size(self.rows[-1])

    def has_amounts(self) -> bool:
        """Return whether each row with several cells ends with an amount in the last column, unlike prose."""
        full = [row for row in self.rows if len(row) > 1]
        return len(full) >= MIN_ROWS_OF_TWO_COLUMNS and all(
            is_in(row[-1], self.columns[-1]) and AMOUNT.fullmatch(row[-1].text) for row in full
        )

    def is_table(self) -> bool:
        full = [row for row in self.rows if len(row) > 1]
        column_count = len(self.columns)
        if len(full) == 1:
            return is_item(full[0])
        if column_count < MIN_COLUMNS or len(full) < (
            MIN_ROWS_OF_TWO_COLUMNS if column_count == MIN_COLUMNS else MIN_ROWS
        ):
            return False
        cells = [[box.text for row in full for box in row if is_in(box, span)] for span in self.columns]
        prose = sum(bool(column) and median(map(len, column)) >= MIN_PROSE_LENGTH for column in cells)
        if prose > 1 or (prose == column_count - 1 and not has_numbers(cells)):
            return False
        if column_count > MIN_COLUMNS:
            return True
        if all(LIST_MARK.fullmatch(text) for text in cells[0]):
            return False
        return has_numbers(cells[1:]) or sum(text.endswith(":") for text in cells[0]) >= 0.5 * len(cells[0])


def is_item(row: Row) -> bool:
    """Return whether a row is an item of an invoice: text, several numbers, and an amount at the end."""
    numbers = sum(bool(NUMBER.fullmatch(cell.text)) for cell in row)
    return (
        len(row) >= MIN_ITEM_COLUMNS and MIN_ITEM_NUMBERS <= numbers < len(row) and bool(AMOUNT.fullmatch(row[-1].text))
    )


def has_numbers(columns: Sequence[list[str]]) -> bool:
    return any(
        sum(bool(NUMBER.fullmatch(text)) for text in column) >= 0.4 * len(column) for column in columns if column
    )


def is_in(box: Area, span: Span) -> bool:
    return span[0] <= (box.x0 + box.x1) / 2 <= span[1]


def aligned_tables(rows: list[Row]) -> list[AlignedRows]:
    """Return the tables of aligned rows, from top to bottom."""
    tables = []
    index = bottom = 0  # `bottom`: the first row below the last table
    while index < len(rows):
        found, end = align_from(rows, index)
        if found.is_table():
            last = extend(found, rows[end:], step=1)
            extend(found, rows[bottom:index][::-1], step=-1)
            tables.append(found)
            index = bottom = end + last
        else:
            index += 1
    return tables


def align_from(rows: list[Row], start: int) -> tuple[AlignedRows, int]:
    """Return the aligned rows that begin at row `start`, and the index of the row after them."""
    found, end = AlignedRows([], []), start + 1
    pending: list[Row] = []
    above = rows[start]
    if len(above) <= 1:
        return found, end
    for index in range(start, len(rows)):
        row = rows[index]
        gap = vertical_gap(above, row)
        if gap > MAX_ROW_GAP * type_size(above) or (len(row) == 1 and found.rows and gap > found.max_inner_gap()):
            break
        above = row
        cells = [(box.x0, box.x1) for box in row]
        merged = merge_spans([*found.columns, *cells])
        if len(row) > 1 and are_distinct(found.columns, merged) and are_distinct(cells, merged):
            found.columns = merged
            for each in (*pending, row):
                found.add(each)
            pending, end = [], index + 1
        elif len(pending) < MAX_PENDING:
            pending.append(row)
        else:
            break
    return found, end


def extend(found: AlignedRows, rows: list[Row], *, step: int) -> int:
    """Add the adjacent rows that fit the width of a table: continued cells, and column heads. Return their number.

    `step`: 1 for rows below the table, -1 for rows above it. `rows`: the nearest first.
    """
    count = 0
    for row in rows:
        edge = found.rows[-1 if step > 0 else 0]
        gap = vertical_gap(edge, row) if step > 0 else vertical_gap(row, edge)
        size = type_size(row)
        if not -size < gap < (MAX_HEAD_GAP if len(row) > 1 and step < 0 else TIGHT) * size or not fits(
            row, found.columns, size
        ):
            break
        found.rows.insert(len(found.rows) if step > 0 else 0, row)
        count += 1
    return count


def fits(row: Row, columns: list[Span], size: float) -> bool:
    """Return whether a row fits into the width of a table. A single cell must be in one column, and narrow."""
    left, right = columns[0][0] - 2 * size, columns[-1][1] + 2 * size
    if row[0].x0 < left or row[-1].x1 > right:
        return False
    touched = [[span for span in columns if box.x0 < span[1] and box.x1 > span[0]] for box in row]
    return len(row) > 1 or (len(touched[0]) == 1 and row[0].x1 - row[0].x0 < 0.5 * (right - left))


def vertical_gap(above: Row, row: Row) -> float:
    return min(cell.y0 for cell in row) - max(cell.y1 for cell in above)


def type_size(row: Row) -> float:
    return max(cell.size for cell in row)


def merge_spans(spans: list[Span]) -> list[Span]:
    """Return the union of the spans, from left to right."""
    merged: list[Span] = []
    for x0, x1 in sorted(spans):
        if merged and x0 < merged[-1][1]:
            merged[-1] = (merged[-1][0], max(x1, merged[-1][1]))
        else:
            merged.append((x0, x1))
    return merged


def are_distinct(spans: list[Span], columns: list[Span]) -> bool:
    """Return whether each span is in a different column. `columns`: from left to right. Each span must be in one."""
    starts = [x0 for x0, _ in columns]
    return len({bisect_right(starts, x0) for x0, _ in spans}) == len(spans)
