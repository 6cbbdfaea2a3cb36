"""Tables, built from words."""

import re
from dataclasses import dataclass

from etl.providers.local.boxes import Words, bounds, join_lines
from etl.providers.local.rulings import Rulings
from etl.providers.local.tables.cells import Line, split_lines
from etl.providers.local.tables.columns import MIN_COLUMNS, find_cuts
from etl.providers.local.tables.rows import Baseline, band_rows, is_item, split_bands, split_shades

MIN_ROWS = 2
MIN_RULED_BANDS = 3
# Dot leaders, and ruling lines made of dashes.
LEADER = re.compile(r"[.·…]{4,}|[-–—_=]{5,}")
NOTE = re.compile(r"[*†‡§#¹²³]|\(?[a-z\d][)]\s|(?:notes?|sources?|quellen?|anmerkung(?:en)?)\s?:", re.IGNORECASE)


@dataclass(slots=True, kw_only=True)
class Table:
    """A table with its bounding box. `cells`: texts by row and column. `boxes`: the words of the table."""

    cells: list[list[str]]
    x0: float
    y0: float
    x1: float
    y1: float
    boxes: Words


def build(words: Words, rulings: Rulings) -> Table | None:
    """Build a table from words. Return None if they do not form columns and rows."""
    texts_only = [word for word in words if not LEADER.fullmatch(word.text)]
    cuts = find_cuts(texts_only, rulings) if texts_only else []
    if not cuts:
        return None
    lines = split_lines(texts_only, cuts)
    rows: list[list[list[Line]]] = []
    ruled = split_bands(lines, rulings.horizontal)
    is_ruled = len(ruled) >= MIN_RULED_BANDS
    bands = [part for band in ruled for part in split_shades(band, rulings.edges)]
    for index, band in enumerate(bands):
        is_first = index < len(bands) - 1 and all(map(is_across, rows))
        rows += band_rows(band, len(cuts) + 1, is_ruled=is_ruled, is_first=is_first)
    while len(rows) > MIN_ROWS and is_across(rows[0]) and all(y <= top_of(rows[1]) for y in middles(rows[0])):
        del rows[0]
    while (
        len(rows) > MIN_ROWS
        and (is_across(rows[-1]) or is_note(rows[-1]))
        and all(y >= bottom_of(rows[-2]) for y in middles(rows[-1]))
    ):
        del rows[-1]
    top, bottom = top_of(rows[0]), bottom_of(rows[-1])
    words = [word for word in words if top < word.middle < bottom]
    cells = without_empty_columns([texts(row, len(cuts) + 1) for row in rows])
    is_item_alone = len(rows) == 1 and any(is_item(Baseline(baseline)) for baseline in rows[0])
    if (len(cells) < MIN_ROWS and not is_item_alone) or len(cells[0]) < MIN_COLUMNS:
        return None
    x0, y0, x1, y1 = bounds(words)
    return Table(cells=cells, x0=x0, y0=y0, x1=x1, y1=y1, boxes=words)


def top_of(row: list[list[Line]]) -> float:
    return min(line.box.y0 for baseline in row for line in baseline)


def bottom_of(row: list[list[Line]]) -> float:
    return max(line.box.y1 for baseline in row for line in baseline)


def middles(row: list[list[Line]]) -> list[float]:
    return [line.box.middle for baseline in row for line in baseline]


def is_across(row: list[list[Line]]) -> bool:
    """Return whether a row is a title or note of the table: each line is one text that begins in the first column."""
    return all(len(baseline) == 1 and baseline[0].first == 0 for baseline in row) and any(
        baseline[0].last > 0 for baseline in row
    )


def is_note(row: list[list[Line]]) -> bool:
    """Return whether the last row is a note or source in the first column."""
    return all(len(baseline) == 1 and not baseline[0].last for baseline in row) and bool(NOTE.match(row[0][0].box.text))


def texts(row: list[list[Line]], width: int) -> list[str]:
    """Return the texts of the cells of a row, given as baselines. The text of a spanning cell is in all its columns."""
    cells = [""] * width
    for baseline in row:
        for line in sorted(baseline, key=lambda line: line.box.x0):
            for column in range(line.first, line.last + 1):
                cells[column] = join_lines(cells[column], line.box.text)
    return [LEADER.sub("", cell).strip() for cell in cells]


def without_empty_columns(cells: list[list[str]]) -> list[list[str]]:
    kept = [index for index in range(len(cells[0])) if any(row[index] for row in cells)]
    return [[row[index] for index in kept] for row in cells]
