"""Text boxes: words with their position on a page, from text layers and OCR, for layout analysis."""

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise
from statistics import median
from unicodedata import east_asian_width

# Minimum gaps as multiples of the type size: between the cells of a row, and between words.
CELL_GAP = 0.9
WORD_GAP = 0.12


@dataclass(slots=True, kw_only=True)
class Box:
    """Words with their bounding box, in points or pixels; y grows downwards. `size`: the type size."""

    text: str
    x0: float
    y0: float
    x1: float
    y1: float
    size: float
    bold: bool = False
    confidence: float | None = None  # of OCR, 0 to 1
    skew: float = 0.0  # radians, clockwise

    @property
    def middle(self) -> float:
        return (self.y0 + self.y1) / 2

    @property
    def width(self) -> float:
        return self.x1 - self.x0


Row = list[Box]


def group_rows(boxes: Iterable[Box]) -> list[Row]:
    """Return the boxes as rows from top to bottom, each a list of cells from left to right."""
    rows: list[Row] = []
    for box in sorted(boxes, key=lambda box: box.middle):
        if rows and is_in_row(box, rows[-1]):
            rows[-1].append(box)
        else:
            rows.append([box])
    return [group_cells(row) for row in rows]


def is_in_row(box: Box, row: Row) -> bool:
    # Compared with the nearest of the last boxes, not with the first: rows of a scan may be skewed.
    near = row[-1] if len(row) == 1 else min(row[-3:], key=lambda other: abs(other.x0 - box.x0))
    return abs(box.y0 + box.y1 - near.y0 - near.y1) < min(box.size, near.size)


def group_cells(row: Row) -> Row:
    """Join adjacent words into cells."""
    cells: list[Row] = []
    right = 0.0
    for box in sorted(row, key=lambda box: box.x0):
        last = cells[-1][-1] if cells else None
        if last and box.text == last.text and abs(box.x0 - last.x0) < 0.3 * box.size:
            continue  # some programs print text twice to make it bold
        if last and box.x0 - right < CELL_GAP * max(box.size, last.size):
            cells[-1].append(box)
            right = max(right, box.x1)
        else:
            cells.append([box])
            right = box.x1
    return [join_words(cell) for cell in cells]


def join_words(words: list[Box]) -> Box:
    if len(words) == 1:
        return words[0]
    texts = [words[0].text]
    for left, right in pairwise(words):
        has_gap = right.x0 - left.x1 > WORD_GAP * min(left.size, right.size)
        needs_space = has_gap and not (is_wide(left.text[-1]) and is_wide(right.text[0]))
        texts += [" ", right.text] if needs_space else [right.text]
    return Box(
        text="".join(texts),
        x0=words[0].x0,
        y0=min([word.y0 for word in words]),
        x1=max([word.x1 for word in words]),
        y1=max([word.y1 for word in words]),
        size=max([word.size for word in words]),
        bold=all(word.bold for word in words),
        confidence=mean_confidence(words),
    )


def join_lines(first: str, second: str) -> str:
    """Join two lines of text. A hyphen at the end of a line is kept, because it may be part of the word."""
    if not first or not second:
        return first or second
    no_space = (first[-1] == "-" and first[-2:-1].isalpha()) or (is_wide(first[-1]) and is_wide(second[0]))
    return f"{first}{second}" if no_space else f"{first} {second}"


def mean_confidence(boxes: Iterable[Box]) -> float | None:
    """Return the mean confidence weighted by characters, or None if no box is from OCR."""
    weighted = [(box.confidence, len(box.text)) for box in boxes if box.confidence is not None]
    total = sum(length for _, length in weighted)
    return sum(confidence * length for confidence, length in weighted) / total if total else None


def is_wide(character: str) -> bool:
    """Return whether a character is wide, as in Chinese and Japanese. Those scripts have no spaces between words."""
    return bool(character) and east_asian_width(character) in "WF"


def body_size(boxes: Iterable[Box]) -> float:
    """Return the median type size, weighted by characters."""
    sizes = [box.size for box in boxes for _ in range(1 + len(box.text) // 8)]
    return median(sizes) if sizes else 0.0
