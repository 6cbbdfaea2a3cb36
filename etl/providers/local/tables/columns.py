"""Detection of the columns of a table, from vertical lines and from vertical gaps that run through the rows."""

import re
from itertools import pairwise
from statistics import median

import numpy as np

from etl.providers.local.boxes import CELL_GAP, Box, Row, Words, bounds, group_words
from etl.providers.local.rulings import Rulings, merge_lines

MIN_COLUMNS = 2
# Minimum width of a gap between columns, in type sizes. It is lower for tables with many rows.
MANY_ROWS, GAP_OF_MANY_ROWS, GAP_OF_FEW_ROWS = 4, 0.5, CELL_GAP
# Minimum width of a gap that is known to be between cells, in type sizes, and number of rows that must have it.
GAP_BETWEEN_CELLS, MIN_ROWS_WITH_GAP = 0.1, 2
SPACE = 0.4  # words with a smaller gap, in type sizes, are part of one text
# Monospaced fonts: minimum number of words, minimum share of words with the same letter width, and its tolerance.
MIN_MONOSPACED_WORDS, MIN_MONOSPACED, SAME_WIDTH = 8, 0.9, 0.05
MAX_SPACE = 1.2  # maximum width of a space in a monospaced font, in letters
MAX_CROSSING = 0.1  # maximum share of rows whose text may cross the gap between columns
OVERLAP = 0.2  # minimum vertical overlap of lines in cells beside each other, in type sizes
MIN_ITEM_NUMBERS = 2  # minimum numbers in a row of an item
FRAMED = 0.8  # minimum height of the lines at the sides of a framed table, as a share of its height
NEAR_LINE = 20  # maximum points between a gap and the vertical line in it
FILLED = 0.5  # share of rows that a gap must divide, to separate columns of a framed table without a line
# A complete number, which cannot continue after a space, unlike the 12 in `12 000`.
GROUPED = re.compile(r"[(+−–-]?\d{1,3}(?:,\d{3})+(?:\.\d+)?[)%]?|[(+−–-]?\d+[.,]\d{1,2}[)%]?")
NUMBER = re.compile(
    r"[(\[<>~≈±+−–-]{0,2}\s?[€$£¥]?\s?\d[\d.,'’:/ ]*\s?(?:%|[A-Za-z€$£¥]{1,3})?[)\]]?[*†‡]{0,2}|[-–—]|n/?a",
    re.IGNORECASE,
)


def find_cuts(words: Words, rulings: Rulings) -> list[float]:
    """Return the x-coordinates between columns, from left to right."""
    ruled = ruled_cuts(words, rulings)
    aligned = aligned_cuts(words)
    if ruled and is_framed(words, rulings):
        lines = [line.x0 for line in rulings.vertical]
        return sorted([*ruled, *(cut for cut in aligned if divides(cut, words, ruled, lines))])
    return ruled if ruled and len(ruled) >= len(aligned) else aligned


def ruled_cuts(words: Words, rulings: Rulings) -> list[float]:
    """Return the x-coordinates of vertical lines that pass between words, and have more than half of their height."""
    left, top, right, bottom = bounds(words)
    lines = sorted(rulings.vertical, key=lambda line: line.x0)
    positions = merge_lines(((line.x0 + line.x1) / 2, line.y1 - line.y0) for line in lines)
    cuts = [x for x, length in positions if length > 0.5 * (bottom - top) and left < x < right]
    return [x for x in cuts if sum(word.x0 + 1 < x < word.x1 - 1 for word in words) <= 0.02 * len(words)]


def is_framed(words: Words, rulings: Rulings) -> bool:
    """Return whether vertical lines are on both sides of the words, over most of their height."""
    left, top, right, bottom = bounds(words)
    before = sum(line.y1 - line.y0 for line in rulings.vertical if line.x0 < left)
    after = sum(line.y1 - line.y0 for line in rulings.vertical if line.x1 > right)
    return min(before, after) > FRAMED * (bottom - top)


def divides(cut: float, words: Words, ruled: list[float], lines: list[float]) -> bool:
    """Return whether a gap in a framed table separates columns, instead of being a wide space in a few lines.

    It does if a vertical line is near it, or if it divides enough rows. `ruled`: the lines between columns. `lines`:
    all vertical lines, including short ones.
    """
    if any(abs(x - cut) < NEAR_LINE for x in ruled):
        return False  # the same column
    if any(abs(x - cut) < NEAR_LINE for x in lines):
        return True
    left = max((x for x in ruled if x <= cut), default=float("-inf"))
    right = min((x for x in ruled if x > cut), default=float("inf"))
    rows = [
        [word.x0 < cut for cell in row for word in cell if left < (word.x0 + word.x1) / 2 < right]
        for row in group_words(words)
    ]
    filled = [row for row in rows if row]
    divided = sum(any(row) and not all(row) for row in filled)
    return divided > 1 and divided >= FILLED * len(filled)


def aligned_cuts(words: Words) -> list[float]:
    """Return the x-coordinates of the gaps that run through the rows with the most cells."""
    rows = group_words(words)
    widest = max(map(len, rows))
    if widest < MIN_COLUMNS:
        return []
    full = [[word for cell in row for word in cell] for row in rows if len(row) > widest / 2]
    size = median(word.size for word in words)
    left = min(word.x0 for word in words)
    space = space_width(words)
    cell_gaps: list[tuple[float, float]] = []
    crossing = np.zeros(int(max(word.x1 for word in words) - left) + 3, dtype=np.int32)
    heads = np.zeros_like(crossing)  # words of the table head, which may be wider than the cells below
    for word in above_numbers(words, full):
        heads[int(word.x0 - left + 0.5) : int(word.x1 - left + 0.5) + 1] += 1
    for row in full:
        for x0, x1 in intervals(row, space):
            crossing[int(x0 - left + 0.5) : int(x1 - left + 0.5) + 1] += 1
        cell_gaps += [
            (one.x1, other.x0)
            for one, other in pairwise(sorted(row, key=lambda word: word.x0))
            if are_in_different_cells(one, other)
        ]
    allowed = int(MAX_CROSSING * len(full)) if len(full) >= 2 * MANY_ROWS else 0
    gap = max(space, (GAP_OF_MANY_ROWS if len(full) >= MANY_ROWS else GAP_OF_FEW_ROWS) * size)
    is_free = np.concatenate(([False], crossing <= allowed, [False]))
    edges = np.flatnonzero(np.diff(is_free.astype(np.int8)))
    cuts = []
    for start, end in zip(edges[::2].tolist(), edges[1::2].tolist(), strict=True):
        if start == 0 or end >= len(crossing) - 1:
            continue
        middle = left + (start + end) / 2
        rows_with_gap = sum(x0 < middle < x1 for x0, x1 in cell_gaps)
        if end - start >= (gap if rows_with_gap < MIN_ROWS_WITH_GAP else GAP_BETWEEN_CELLS * size):
            clear = start + np.flatnonzero(heads[start:end] == heads[start:end].min())
            cuts.append(left + float(clear[np.abs(clear + 0.5 - (start + end) / 2).argmin()]) + 0.5)
    return cuts


def above_numbers(words: Words, full: list[Words]) -> Words:
    """Return the words above the first row of numbers."""
    rows = [row for row in full if sum(bool(NUMBER.fullmatch(word.text)) for word in row) >= MIN_ITEM_NUMBERS]
    top = min((word.y0 for row in rows for word in row), default=0.0)
    return [word for word in words if word.y1 <= top + OVERLAP * word.size]


def are_in_different_cells(word: Box, after: Box) -> bool:
    """Return whether two neighbors in a row belong to different cells.

    They do if there is a gap between them, and they are not neighbors in the file or both are complete numbers.
    """
    is_apart = word.order >= 0 and after.order != word.order + 1
    is_apart = is_apart or bool(GROUPED.fullmatch(word.text) and GROUPED.fullmatch(after.text))
    return is_apart and after.x0 - word.x1 > GAP_BETWEEN_CELLS * word.size


def space_width(words: Words) -> float:
    """Return the maximum width of a space in a monospaced font, or 0 for other fonts."""
    widths = [word.width / len(word.text) for word in words if any(map(str.isalpha, word.text))]
    letter = median(widths) if len(widths) >= MIN_MONOSPACED_WORDS else 0.0
    same = sum(abs(width - letter) < SAME_WIDTH * letter for width in widths)
    return MAX_SPACE * letter if same >= MIN_MONOSPACED * len(widths) else 0.0


def intervals(row: Row, space: float) -> list[tuple[float, float]]:
    """Return the horizontal spans of the texts in a row. `space`: the result of `space_width`."""
    spans: list[tuple[float, float]] = []
    before: Box | None = None
    for word in sorted(row, key=lambda word: word.x0):
        is_near = spans and word.x0 - spans[-1][1] < max(space, SPACE * word.size)
        if is_near and not (before and are_in_different_cells(before, word)):
            spans[-1] = (spans[-1][0], max(spans[-1][1], word.x1))
        else:
            spans.append((word.x0, word.x1))
        before = word
    return spans
