"""Texts of table cells that continue in the next row, if its other cells are empty."""

import re
from collections import defaultdict
from itertools import pairwise

from etl.postprocessors.citations.folding import fold, words_in
from etl.postprocessors.citations.index import Index, Span
from etl.postprocessors.citations.scales import CELL

EMPTY_CELL = re.compile(r"\|[^\S\n]*\||<t[dh]\b[^<>\n]{0,300}>\s*</t[dh]>", re.IGNORECASE)
MIN_CELLS = 3  # including the text after the last cell separator
MAX_BLANK = 2  # blank lines between two rows
MAX_PARTS = 30  # rows over which the text of a cell may continue; a longer one is a column, in which cells are separate
Cells = list[list[Span]]  # for each cell of a row, the spans of its parts


def wrapped_texts(index: Index) -> dict[str, list[Span]]:
    """Return the spans of cells that continue over several rows, by their normalized text."""
    found: defaultdict[str, list[Span]] = defaultdict(list)
    known: dict[int, Cells] = {}
    for row in sorted({index.row_of(match.start()) for match in EMPTY_CELL.finditer(index.content)}):
        cells = cells_of(index, row)
        filled = [column for column, parts in enumerate(cells) if parts]
        above = next((each for each in range(row - 1, row - 2 - MAX_BLANK, -1) if not is_blank(index, each)), -1)
        if len(filled) != 1 or len(cells) < MIN_CELLS or above < 0:
            continue
        [column] = filled
        whole = known.get(above) or cells_of(index, above)
        if len(whole) == len(cells) and whole[column]:
            whole[column] += cells[column]
            known[row] = whole
            parts = whole[column]
            if len(parts) <= MAX_PARTS:
                text = fold("\n".join(index.content[start:end] for start, end in parts))
                found[text].append((parts[0][0], parts[-1][1]))
    return dict(found)


def is_blank(index: Index, row: int) -> bool:
    start, end = index.row_span(row)
    return not index.content[start:end].strip()


def cells_of(index: Index, row: int) -> Cells:
    start, end = index.row_span(row)
    bounds = [start, *(match.start() for match in CELL.finditer(index.content, start, end)), end]
    return [text_span(index, low, high) for low, high in pairwise(bounds)]


def text_span(index: Index, start: int, end: int) -> list[Span]:
    words = list(words_in(index.content[start:end]))
    return [(start + words[0][0], start + words[-1][1])] if words else []
