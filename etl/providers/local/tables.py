"""Finds tables among rows of cells, by the columns that rows share, and writes them as GitHub's Markdown has them."""

from dataclasses import dataclass, field

from etl.providers.local.boxes import Row, glued

# How many columns and rows a table has at least; with two columns more, since it might be a letterhead, or signatures.
PAIR, ROWS, ROWS_OF_A_PAIR = 2, 2, 3
# Rows further apart than this many times their size are not of one table.
FAR = 3.0

Span = tuple[float, float]


@dataclass(slots=True)
class Table:
    rows: list[list[str]]
    taken: int  # rows of the page

    def markdown(self) -> str:
        head, *body = [[cell.replace("|", "\\|") for cell in row] for row in self.rows]
        return "\n".join(f"| {' | '.join(row)} |" for row in [head, ["---"] * len(head), *body])


@dataclass(slots=True)
class Growing:
    """A table while its rows are found. `columns`: what its cells take of the page's width, apart from each other."""

    columns: list[Span] = field(default_factory=list)
    rows: list[Row] = field(default_factory=list)

    def take(self, row: Row) -> bool:
        """Take a row in, unless columns or cells would run into each other."""
        cells = [(cell.x0, cell.x1) for cell in row]
        merged = union([*self.columns, *cells])
        if not (apart(self.columns, merged) and apart(cells, merged)):
            return False
        self.columns = merged
        self.rows.append(row)
        return True

    def places(self, row: Row) -> list[int]:
        return [place_of((cell.x0, cell.x1), self.columns) for cell in row]

    def lines(self) -> list[list[str]]:
        lines: list[list[str]] = []
        for row in self.rows:
            if len(row) > 1 or not lines:
                lines.append([""] * len(self.columns))
            for cell, place in zip(row, self.places(row), strict=True):
                lines[-1][place] = glued(lines[-1][place], cell.text)
        return lines


def table_at(rows: list[Row], start: int) -> Table | None:
    """Return the table that begins with a row, if one does."""
    growing = Growing()
    waiting: list[Row] = []  # second lines of a cell, if the table goes on after them
    for row, above in zip(rows[start:], [None, *rows[start:]], strict=False):
        if above is not None and distance(above, row) > FAR * size_of(above):
            break
        if len(row) > 1:
            if not growing.take(row):
                break
            growing.rows[-1:-1] = waiting
            waiting = []
        elif above is not None and is_second_line(row, above, growing.columns):
            waiting.append(row)
        else:
            break
    return finished(growing)


def finished(growing: Growing) -> Table | None:
    full = sum(len(row) > 1 for row in growing.rows)
    wide = len(growing.columns)
    if wide < PAIR or full < (ROWS_OF_A_PAIR if wide == PAIR else ROWS):
        return None
    return Table(growing.lines(), len(growing.rows))


def is_second_line(row: Row, above: Row, columns: list[Span]) -> bool:
    """Whether a single cell goes on with the one above it: close, and within one column."""
    cell = row[0]
    inside = [span for span in columns if cell.x0 < span[1] and cell.x1 > span[0]]
    return len(inside) == 1 and cell.x1 <= inside[0][1] + cell.size and distance(above, row) < 0.6 * cell.size


def distance(above: Row, row: Row) -> float:
    return min(cell.y0 for cell in row) - max(cell.y1 for cell in above)


def size_of(row: Row) -> float:
    return max(cell.size for cell in row)


# ---- Columns --------------------------------------------------------------------------------------------------------
def union(spans: list[Span]) -> list[Span]:
    merged: list[Span] = []
    for x0, x1 in sorted(spans):
        if merged and x0 < merged[-1][1]:
            merged[-1] = (merged[-1][0], max(x1, merged[-1][1]))
        else:
            merged.append((x0, x1))
    return merged


def place_of(span: Span, columns: list[Span]) -> int:
    """Return the number of the column that a part of it lies in."""
    return next(n for n, (x0, x1) in enumerate(columns) if x0 <= span[0] < x1 or span == (x0, x1))


def apart(spans: list[Span], columns: list[Span]) -> bool:
    """Whether each has a column of its own."""
    return len({place_of(span, columns) for span in spans}) == len(spans)
