"""Assignment of text lines to the columns of a table."""

from dataclasses import dataclass
from itertools import pairwise

from etl.providers.local.boxes import Box, Words, group_rows, group_words, join_words
from etl.providers.local.tables.columns import SPACE, are_in_different_cells, space_width


@dataclass(slots=True)
class Line:
    """A line of a cell, in the columns `first` to `last`."""

    first: int
    last: int
    box: Box


def split_lines(words: Words, cuts: list[float]) -> list[Line]:
    """Split words into lines of cells. Text that crosses a column boundary without a gap spans several columns."""
    lines: list[Line] = []
    by_column: list[Words] = [[] for _ in range(len(cuts) + 1)]
    space = space_width(words)
    for row in group_words(words):
        for cell in row:
            for text in split_texts(cell, cuts, space):
                first, last = column_of(text[0], cuts), column_of(text[-1], cuts)
                if len(text) == 1 and text[0].width > 0:
                    first, last = span_of(text[0], cuts)
                if first == last:
                    by_column[first] += text
                else:
                    lines.append(Line(first, last, join_words(text)))
    for column, found in enumerate(by_column):
        lines += [Line(column, column, join_words(row)) for row in group_rows(found)]
    return lines


def split_texts(cell: Words, cuts: list[float], space: float) -> list[Words]:
    """Split the words of a cell at the column boundaries, unless the gap there is only a space between words."""
    parts: list[Words] = [[cell[0]]]
    for before, word in pairwise(cell):
        crosses = column_of(before, cuts) != column_of(word, cuts)
        if crosses and (word.x0 - before.x1 >= max(space, SPACE * word.size) or are_in_different_cells(before, word)):
            parts.append([])
        parts[-1].append(word)
    return parts


def column_of(word: Box, cuts: list[float]) -> int:
    middle = (word.x0 + word.x1) / 2
    return sum(cut <= middle for cut in cuts)


def span_of(word: Box, cuts: list[float]) -> tuple[int, int]:
    """Return the first and last column that a box covers by more than half a character, or the column of its middle."""
    first = sum(cut <= word.x0 + word.size / 2 for cut in cuts)
    last = sum(cut < word.x1 - word.size / 2 for cut in cuts)
    if first > last:  # a box of a narrow character
        first = last = column_of(word, cuts)
    return first, last
