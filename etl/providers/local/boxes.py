"""Text boxes: words with their position on a page, from text layers and recognition, for layout analysis."""

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise
from statistics import median
from unicodedata import east_asian_width

# Gaps as multiples of the type size: from CELL_GAP between cells, from SPACE between words.
CELL_GAP = 0.9
SPACE = 0.12


@dataclass(slots=True, kw_only=True)
class Box:
    """Words in a rectangle. Units are points or pixels, y grows downwards; `size`: the height of the type."""

    text: str
    x0: float
    y0: float
    x1: float
    y1: float
    size: float
    bold: bool = False
    score: float | None = None  # 0 to 1, confidence of the recognition
    tilt: float = 0.0  # radians, clockwise

    @property
    def middle(self) -> float:
        return (self.y0 + self.y1) / 2

    @property
    def width(self) -> float:
        return self.x1 - self.x0


Row = list[Box]


def rows_of(boxes: Iterable[Box]) -> list[Row]:
    """Return the boxes as rows from top to bottom, each a list of cells from left to right."""
    rows: list[Row] = []
    for box in sorted(boxes, key=lambda box: box.middle):
        if rows and in_row(box, rows[-1]):
            rows[-1].append(box)
        else:
            rows.append([box])
    return [cells_of(row) for row in rows]


def in_row(box: Box, row: Row) -> bool:
    # Compared with the nearest of the last boxes, not with the first: rows of a scan may be skewed.
    near = row[-1] if len(row) == 1 else min(row[-3:], key=lambda other: abs(other.x0 - box.x0))
    return abs(box.y0 + box.y1 - near.y0 - near.y1) < min(box.size, near.size)


def cells_of(row: Row) -> Row:
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
    return [joined(cell) for cell in cells]


def joined(words: list[Box]) -> Box:
    if len(words) == 1:
        return words[0]
    texts = [words[0].text]
    for left, right in pairwise(words):
        apart = right.x0 - left.x1 > SPACE * min(left.size, right.size)
        spaced = apart and not (is_wide(left.text[-1]) and is_wide(right.text[0]))
        texts += [" ", right.text] if spaced else [right.text]
    return Box(
        text="".join(texts),
        x0=words[0].x0,
        y0=min([word.y0 for word in words]),
        x1=max([word.x1 for word in words]),
        y1=max([word.y1 for word in words]),
        size=max([word.size for word in words]),
        bold=all(word.bold for word in words),
        score=mean_score(words),
    )


def glued(text: str, more: str) -> str:
    """Join two lines of a text. A hyphen at the end stays, because it may be part of the word."""
    if not text or not more:
        return text or more
    tight = (text[-1] == "-" and text[-2:-1].isalpha()) or (is_wide(text[-1]) and is_wide(more[0]))
    return f"{text}{more}" if tight else f"{text} {more}"


def mean_score(boxes: Iterable[Box]) -> float | None:
    """Return the mean score, weighted by characters. None if no text was recognized."""
    scored = [(box.score, len(box.text)) for box in boxes if box.score is not None]
    total = sum(length for _, length in scored)
    return sum(score * length for score, length in scored) / total if total else None


def is_wide(character: str) -> bool:
    """Return whether a character belongs to a script without spaces, or is its punctuation."""
    return bool(character) and east_asian_width(character) in "WF"


def body_size(boxes: Iterable[Box]) -> float:
    """Return the median type size, weighted by characters."""
    sizes = [box.size for box in boxes for _ in range(1 + len(box.text) // 8)]
    return median(sizes) if sizes else 0.0
