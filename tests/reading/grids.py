"""Parser of Markdown and HTML tables into grids of cells."""

import re
from dataclasses import dataclass, field
from html.parser import HTMLParser
from typing import Self

from tests.reading.text import plain

CELL_BREAK = re.compile(r"(?<!\\)\|")
RULE = re.compile(r"[ \t:|-]+")
MAX_SPAN = 1000  # the limit of HTML for columns


@dataclass(slots=True, eq=False)
class Cell:
    text: str
    rows: int = 1
    columns: int = 1
    is_heading: bool = False
    row: int = 0
    column: int = 0


@dataclass(slots=True, eq=False)
class Grid:
    """A table. `lines`: the cells that begin in each row. `places`: the cell at each row and column."""

    lines: list[list[Cell]]
    places: dict[tuple[int, int], Cell] = field(default_factory=dict)

    @classmethod
    def of(cls, lines: list[list[Cell]]) -> Self:
        grid = cls(lines)
        for row, cells in enumerate(lines):
            column = 0
            for cell in cells:
                while (row, column) in grid.places:
                    column += 1
                cell.row, cell.column = row, column
                for spanned in range(cell.rows * cell.columns):
                    grid.places[row + spanned // cell.columns, column + spanned % cell.columns] = cell
                column += cell.columns
        if not any(cell.is_heading for cell in grid.cells):
            for cell in grid.cells:
                cell.is_heading = not cell.row or not cell.column
        return grid

    @property
    def cells(self) -> list[Cell]:
        return [cell for line in self.lines for cell in line]

    def text(self) -> str:
        return " ".join(cell.text for cell in self.cells)

    def neighbors(self, cell: Cell, side: str) -> list[Cell]:
        """Return the adjacent cells on a side (`up`, `down`, `left`, `right`). A spanning cell may have several."""
        if side in {"up", "down"}:
            edge = cell.row - 1 if side == "up" else cell.row + cell.rows
            found = [self.places.get((edge, cell.column + index)) for index in range(cell.columns)]
        else:
            edge = cell.column - 1 if side == "left" else cell.column + cell.columns
            found = [self.places.get((cell.row + index, edge)) for index in range(cell.rows)]
        return list(dict.fromkeys(each for each in found if each))

    def headings(self, cell: Cell, side: str) -> list[Cell]:
        """Return the headings in the direction `up` or `left`, or the outermost cells if there are no headings."""
        seen: dict[Cell, None] = {}
        outermost: list[Cell] = []
        pending = [cell]
        while pending:
            current = pending.pop()
            following = self.neighbors(current, side)
            if not following and current is not cell:
                outermost.append(current)
            pending += [each for each in following if each not in seen]
            seen |= dict.fromkeys(following)
        return [each for each in seen if each.is_heading] or outermost


def grids(markdown: str) -> list[Grid]:
    """Return the tables of a text: Markdown tables, then HTML tables."""
    parser = Tables()
    parser.feed(markdown)
    parser.close()
    return [*markdown_grids(markdown), *(Grid.of(lines) for lines in parser.found if any(lines))]


def markdown_grids(markdown: str) -> list[Grid]:
    found: list[Grid] = []
    run: list[str] = []
    for line in [*markdown.splitlines(), ""]:
        if "|" in line:
            run.append(line)
            continue
        if len(run) > 1 and (rows := [cells_of(each) for each in run if not RULE.fullmatch(each)]):
            found.append(Grid.of(rows))
        run = []
    return found


def cells_of(line: str) -> list[Cell]:
    parts = [part.strip() for part in CELL_BREAK.split(line.strip())]
    parts = parts[1:] if parts[0] == "" else parts
    parts = parts[:-1] if parts and parts[-1] == "" else parts
    return [Cell(plain(part)) for part in parts]


class Tables(HTMLParser):
    """Parser of HTML tables, also inside Markdown. The text of a nested table belongs to the outer cell."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[list[list[Cell]]] = []
        self.depth = 0
        self.cell: Cell | None = None
        self.in_head = False

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag == "table":
            self.depth += 1
            if self.depth == 1:
                self.found.append([])
        elif self.depth == 1 and tag == "tr":
            self.found[-1].append([])
            self.cell = None
        elif self.depth == 1 and tag in {"td", "th"}:
            self.open_cell(dict(attrs), is_heading=tag == "th" or self.in_head)
        elif tag == "thead":
            self.in_head = True
        elif self.cell is not None:
            self.cell.text += " "

    def open_cell(self, attributes: dict[str, str | None], *, is_heading: bool) -> None:
        rows, columns = (span(attributes.get(name)) for name in ("rowspan", "colspan"))
        self.cell = Cell("", rows=rows, columns=columns, is_heading=is_heading)
        if not self.found[-1]:
            self.found[-1].append([])
        self.found[-1][-1].append(self.cell)

    def handle_endtag(self, tag: str) -> None:
        if tag == "table":
            self.depth = max(0, self.depth - 1)
        if tag == "thead":
            self.in_head = False
        if self.depth <= 1 and tag in {"td", "th", "tr", "table"} and self.cell is not None:
            self.cell.text = plain(self.cell.text)
            self.cell = None

    def handle_data(self, data: str) -> None:
        if self.cell is not None:
            self.cell.text += data


def span(value: str | None) -> int:
    return min(max(int(value), 1), MAX_SPAN) if value and value.isdecimal() else 1
