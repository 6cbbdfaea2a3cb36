"""Table detection: finds consecutive rows of cells with common columns. Tables are written as GitHub Markdown."""

from dataclasses import dataclass, field

from etl.providers.local.boxes import Row, join_lines

# Minimum size of a table. With only two columns it needs more rows, because it may be a letterhead or signatures.
MIN_COLUMNS, MIN_ROWS, MIN_ROWS_OF_TWO_COLUMNS = 2, 2, 3
# Maximum gap between rows of a table, as a multiple of the type size.
MAX_ROW_GAP = 3.0

Span = tuple[float, float]


@dataclass(slots=True)
class Table:
    lines: list[list[str]]
    row_count: int  # rows of the page, including continuation lines of cells

    def markdown(self) -> str:
        head, *body = [[cell.replace("|", "\\|") for cell in line] for line in self.lines]
        return "\n".join(f"| {' | '.join(line)} |" for line in [head, ["---"] * len(head), *body])


@dataclass(slots=True)
class TableBuilder:
    """A table to which rows are added. `columns`: the horizontal spans of its columns, which do not overlap."""

    columns: list[Span] = field(default_factory=list)
    rows: list[Row] = field(default_factory=list)

    def add(self, row: Row) -> bool:
        """Add a row, and return True, unless it would merge columns, or two of its cells are in one column."""
        cells = [(cell.x0, cell.x1) for cell in row]
        merged = merge_spans([*self.columns, *cells])
        if not (has_distinct_columns(self.columns, merged) and has_distinct_columns(cells, merged)):
            return False
        self.columns = merged
        self.rows.append(row)
        return True

    def build(self) -> Table | None:
        """Return the table, or None if it has too few columns or rows."""
        width, full_rows = len(self.columns), sum(len(row) > 1 for row in self.rows)
        if width < MIN_COLUMNS or full_rows < (MIN_ROWS_OF_TWO_COLUMNS if width == MIN_COLUMNS else MIN_ROWS):
            return None
        return Table(self.lines(), len(self.rows))

    def lines(self) -> list[list[str]]:
        """Return the texts of the cells by row and column. A row with a single cell continues the row above."""
        lines: list[list[str]] = []
        for row in self.rows:
            if len(row) > 1 or not lines:
                lines.append([""] * len(self.columns))
            for cell in row:
                column = column_index((cell.x0, cell.x1), self.columns)
                lines[-1][column] = join_lines(lines[-1][column], cell.text)
        return lines


def find_table(rows: list[Row], start: int) -> Table | None:
    """Return the table that begins at a row, or None."""
    builder = TableBuilder()
    pending: list[Row] = []  # continuation lines of a cell, which belong to the table only if more rows follow
    for row, above in zip(rows[start:], [None, *rows[start:]], strict=False):
        if above is not None and vertical_gap(above, row) > MAX_ROW_GAP * type_size(above):
            break
        if len(row) > 1:
            if not builder.add(row):
                break
            builder.rows[-1:-1] = pending  # inserted before the new row
            pending = []
        elif above is not None and continues_cell(row, above, builder.columns):
            pending.append(row)
        else:
            break
    return builder.build()


def continues_cell(row: Row, above: Row, columns: list[Span]) -> bool:
    """Return whether a single cell continues the one above it: it is close, and within one column."""
    cell = row[0]
    overlapping = [span for span in columns if cell.x0 < span[1] and cell.x1 > span[0]]
    return (
        len(overlapping) == 1
        and cell.x1 <= overlapping[0][1] + cell.size
        and vertical_gap(above, row) < 0.6 * cell.size
    )


def vertical_gap(above: Row, row: Row) -> float:
    return min(cell.y0 for cell in row) - max(cell.y1 for cell in above)


def type_size(row: Row) -> float:
    return max(cell.size for cell in row)


# ---- Columns --------------------------------------------------------------------------------------------------------
def merge_spans(spans: list[Span]) -> list[Span]:
    """Return the union of the spans, from left to right."""
    merged: list[Span] = []
    for x0, x1 in sorted(spans):
        if merged and x0 < merged[-1][1]:
            merged[-1] = (merged[-1][0], max(x1, merged[-1][1]))
        else:
            merged.append((x0, x1))
    return merged


def column_index(span: Span, columns: list[Span]) -> int:
    """Return the index of the column that contains a span."""
    return next(index for index, (x0, x1) in enumerate(columns) if x0 <= span[0] < x1 or span == (x0, x1))


def has_distinct_columns(spans: list[Span], columns: list[Span]) -> bool:
    """Return whether each span is in a different column."""
    return len({column_index(span, columns) for span in spans}) == len(spans)
