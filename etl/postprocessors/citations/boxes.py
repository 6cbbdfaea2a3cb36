"""Bounding boxes of citations: the page lines from which a row of the text was read.

In the Markdown text, multi-line cells are joined, and columns may be in a different order than on the page. So each
line of a page is assigned to the row that contains most of its words. Each word of a row can be assigned to one
line only, so if rows are equal, the first line belongs to the first row.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from itertools import islice

from etl.postprocessors.citations.folding import fold
from etl.postprocessors.citations.index import Index, Span
from etl.providers.base import Cell, Lines

MIN_SHARE = 0.6  # the share of a cell's words that must be in the row
# A row with more lines is a paragraph. Its box only includes the lines with words of the value.
MAX_LINES = 3
MAX_OPTIONS = 50  # rows that a cell is compared with


class Boxes:
    """The boxes of the rows of a text. `lines`: the lines by page number; empty if the provider reports none."""

    def __init__(self, lines: Mapping[int, Lines], index: Index) -> None:
        self.lines, self.index = lines, index
        self.pages: dict[int, dict[int, list[Cell]]] = {}

    def find(self, place: Span, page: int) -> list[float] | None:
        """Return the box of the row of a value or quote, or None."""
        if page not in self.pages:
            self.pages[page] = self.assign(page)
        cells = self.pages[page].get(self.index.row_of(place[0]), [])
        if len({y0 for _, y0, *_ in cells}) > MAX_LINES:
            words = set(fold(self.index.content[slice(*place)]).split())
            cells = [cell for cell in cells if words & set(fold(cell[-1]).split())] or cells
        return union(cells)

    def assign(self, page: int) -> dict[int, list[Cell]]:
        """Return the cells of a page's lines, by the row to which they are assigned."""
        rows = UnassignedWords(self.words_of_rows(page))
        found: defaultdict[int, list[Cell]] = defaultdict(list)
        for line in self.lines.get(page, []):
            cells = [(cell, Counter(fold(cell[-1]).split())) for cell in line]
            while (best := rows.best([words for _, words in cells])) is not None:
                others = []
                for cell, words in cells:
                    if rows.assign_words(best, words):
                        found[best].append(cell)
                    else:
                        others.append((cell, words))
                cells = others
        return found

    def words_of_rows(self, page: int) -> dict[int, Counter[str]]:
        start, end = bounds = self.index.bounds((page, page))
        rows = self.index.rows_in(bounds) if end > start else range(0)
        return {row: Counter(fold(self.index.content[slice(*self.index.row_span(row))]).split()) for row in rows}


class UnassignedWords:
    """The words of rows that are not yet assigned to a line."""

    def __init__(self, rows: dict[int, Counter[str]]) -> None:
        self.remaining = rows
        self.rows_with: defaultdict[str, dict[int, None]] = defaultdict(dict)  # by word, in text order
        for row, words in rows.items():
            for word in words:
                self.rows_with[word][row] = None

    def best(self, cells: list[Counter[str]]) -> int | None:
        """Return the row that contains the cells with the most words, or None. Of equal rows, return the first."""
        options = {row for words in cells for row in self.candidate_rows(words)}
        scores = Counter[int]()
        for words in cells:
            # A wide page has too many cells and rows to compare all of them.
            for row in options & {row for word in words for row in self.rows_with.get(word, ())}:
                if self.has(row, words):
                    scores[row] += words.total()
        return min(scores, key=lambda row: (-scores[row], row), default=None)

    def candidate_rows(self, words: Counter[str]) -> Iterable[int]:
        """Return the first rows that contain the rarest of the words."""
        options = sorted((rows for word in words if (rows := self.rows_with.get(word))), key=len)
        return islice(options[0], MAX_OPTIONS) if options else ()

    def has(self, row: int, words: Counter[str]) -> bool:
        return (words & self.remaining[row]).total() >= MIN_SHARE * max(1, words.total())

    def assign_words(self, row: int, words: Counter[str]) -> bool:
        """Mark words of a row as assigned. Return False, without changes, if the row does not have them."""
        if not self.has(row, words):
            return False
        self.remaining[row] -= words
        for word in words:
            if word not in self.remaining[row]:
                self.rows_with[word].pop(row, None)
        return True


def union(cells: Iterable[Cell]) -> list[float] | None:
    boxes = [cell[:4] for cell in cells]
    if not boxes:
        return None
    x0, y0, x1, y1 = zip(*boxes, strict=True)
    return [min(x0), min(y0), max(x1), max(y1)]
