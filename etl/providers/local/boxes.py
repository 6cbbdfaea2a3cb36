"""Text boxes: words with their position on a page, from text layers and OCR, for layout analysis."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median
from typing import Protocol
from unicodedata import bidirectional, east_asian_width

# Minimum gaps as multiples of the type size: between the cells of a row, and between words.
CELL_GAP = 0.9
WORD_GAP = 0.12
# Also as multiples of the type size: maximum overlap of words that a space of the text layer separates, and maximum
# offset of an incomplete copy of a word that is printed twice.
SPACE_OVERLAP, OVERPRINT = 0.2, 0.1
# Mark after a hyphen at the end of a line. `hyphens` decides later whether the hyphen stays.
BREAK = "\x02"
# Korean syllables and letters.
HANGUL = (("\uac00", "\ud7a3"), ("\u1100", "\u11ff"), ("\u3131", "\u318e"))


class Area(Protocol):
    """Anything with a bounding box."""

    x0: float
    y0: float
    x1: float
    y1: float


@dataclass(slots=True, kw_only=True)
class Box:
    """Words with their bounding box, in points or pixels; y grows downward. `size`: the type size.

    `order`: the position of the first word in the file, from 0, or -1 for boxes that are not from a text layer.
    `spaced`: whether the text layer has a space before the first word.
    """

    text: str
    x0: float
    y0: float
    x1: float
    y1: float
    size: float
    bold: bool = False
    confidence: float | None = None  # of OCR, 0 to 1
    skew: float = 0.0  # radians, clockwise
    order: int = -1
    spaced: bool = False
    mirrored: bool = False  # left and right are swapped

    @property
    def middle(self) -> float:
        return (self.y0 + self.y1) / 2

    @property
    def width(self) -> float:
        return self.x1 - self.x0


Row = list[Box]
Words = list[Box]


def group_rows(boxes: Iterable[Box]) -> list[Row]:
    """Return the boxes as rows from top to bottom, each a list of cells from left to right."""
    return [[join_words(cell) for cell in cells] for cells in group_words(boxes)]


def group_words(boxes: Iterable[Box]) -> list[list[Words]]:
    """Return the boxes as rows from top to bottom, each a list of cells from left to right, each a list of words."""
    rows: list[Row] = []
    for box in sorted(boxes, key=lambda box: box.middle):
        if rows and is_in_row(box, rows[-1]):
            rows[-1].append(box)
        else:
            rows.append([box])
    return [split_cells(row) for row in rows]


def is_in_row(box: Box, row: Row) -> bool:
    # Compares with the nearest of the last boxes, not with the first one, because rows of a scan may be skewed.
    near = row[-1] if len(row) == 1 else min(row[-3:], key=lambda other: abs(other.x0 - box.x0))
    return abs(box.y0 + box.y1 - near.y0 - near.y1) < min(box.size, near.size)


def split_cells(row: Row) -> list[Words]:
    """Return the words of a row from left to right as cells."""
    cells: list[Row] = []
    right = 0.0
    for box in sorted(row, key=lambda box: box.x0):
        last = cells[-1][-1] if cells else None
        if last and is_overprinted(box, last):
            continue
        if last and is_overprinted(last, box):
            cells[-1][-1] = box
            right = max(right, box.x1)
        elif last and box.x0 - right < CELL_GAP * max(box.size, last.size):
            cells[-1].append(box)
            right = max(right, box.x1)
        else:
            cells.append([box])
            right = box.x1
    return cells


def is_overprinted(box: Box, other: Box) -> bool:
    """Return whether a word is a copy of another word at its position. Some programs print text twice to make it bold.

    PDFium may have omitted some characters of the copy.
    """
    if box.text == other.text:
        return abs(box.x0 - other.x0) < 0.3 * box.size
    offset = OVERPRINT * box.size
    return box.text in other.text and box.x0 > other.x0 - offset and box.x1 < other.x1 + offset


def join_words(words: Words) -> Box:
    """Join adjacent words into one box, in reading order."""
    if len(words) == 1:
        return words[0]
    ordered = logical_order(words[::-1] if words[0].mirrored else words)
    texts = [ordered[0].text]
    for before, after in pairwise(ordered):
        gap = max(before.x0, after.x0) - min(before.x1, after.x1)
        is_after_space = after.spaced and after.order == before.order + 1
        has_gap = gap > (-SPACE_OVERLAP if is_after_space else WORD_GAP) * min(before.size, after.size)
        needs_space = has_gap and not (is_unspaced(before.text[-1]) and is_unspaced(after.text[0]))
        texts += [" ", after.text] if needs_space else [after.text]
    return Box(
        text="".join(texts),
        x0=min([word.x0 for word in words]),
        y0=min([word.y0 for word in words]),
        x1=max([word.x1 for word in words]),
        y1=max([word.y1 for word in words]),
        size=max([word.size for word in words]),
        bold=all(word.bold for word in words),
        confidence=mean_confidence(words),
        order=words[0].order,
        spaced=words[0].spaced,
        mirrored=words[0].mirrored,
    )


def join_lines(first: str, second: str) -> str:
    """Join two lines of text. Mark a break after a hyphen, because the hyphen may be part of the word."""
    if not first or not second:
        return first or second
    if first[-1] == "-" and first[-2:-1].isalpha():
        return f"{first}{BREAK if second[0].islower() else ''}{second}"
    return f"{first}{second}" if is_wide(first[-1]) and is_wide(second[0]) else f"{first} {second}"


def mean_confidence(boxes: Iterable[Box]) -> float | None:
    """Return the mean confidence weighted by characters, or None if no box is from OCR."""
    weighted = [(box.confidence, len(box.text)) for box in boxes if box.confidence is not None]
    total = sum(length for _, length in weighted)
    return sum(confidence * length for confidence, length in weighted) / total if total else None


def is_wide(character: str) -> bool:
    """Return whether a character is wide, as in Chinese, Japanese, and Korean. A line may end after a wide one."""
    return east_asian_width(character) in "WF"


def is_unspaced(character: str) -> bool:
    """Return whether a character is of a script without spaces between words. Korean has them."""
    return is_wide(character) and not any(first <= character <= last for first, last in HANGUL)


def body_size(boxes: Iterable[Box]) -> float:
    """Return the median type size, weighted roughly by characters."""
    sizes = [box.size for box in boxes for _ in range(1 + len(box.text) // 8)]
    return median(sizes) if sizes else 0.0


def bounds(areas: Sequence[Area]) -> tuple[float, float, float, float]:
    """Return the bounding box of all areas: x0, y0, x1, y1."""
    return (
        min(area.x0 for area in areas), min(area.y0 for area in areas),
        max(area.x1 for area in areas), max(area.y1 for area in areas),
    )  # fmt: skip


def overlap(first: Area, second: Area) -> float:
    """Return the area of the intersection of two boxes."""
    width = min(first.x1, second.x1) - max(first.x0, second.x0)
    height = min(first.y1, second.y1) - max(first.y0, second.y0)
    return max(0.0, width) * max(0.0, height)


# ---- Right-to-left scripts ------------------------------------------------------------------------------------------
def direction(text: str) -> int:
    """Return -1 for text in a right-to-left script, 1 for text in another script, and 0 for text without letters."""
    for character in text:
        match bidirectional(character):
            case "R" | "AL":
                return -1
            case "L":
                return 1
    return 0


def is_right_to_left(boxes: Iterable[Box]) -> bool:
    """Return whether most letters are of a right-to-left script."""
    return sum(direction(box.text) * len(box.text) for box in boxes) < 0


def logical_order(words: Words) -> Words:
    """Return words, given from left to right, in reading order.

    In a right-to-left line, only runs of words in left-to-right scripts keep their order. In a left-to-right line, only
    runs of words in right-to-left scripts, with the numbers between them, are reversed.
    """
    directions = [direction(word.text) for word in words]
    if -1 not in directions:
        return words
    if sum(each * len(word.text) for each, word in zip(directions, words, strict=True)) < 0:
        return reverse_runs(words[::-1], [each < 0 for each in directions[::-1]], inner=False)
    return reverse_runs(words, [each > 0 for each in directions], inner=True)


def reverse_runs(words: Words, ends_run: list[bool], *, inner: bool) -> Words:
    """Reverse each run of words for which `ends_run` is false. `inner`: keep numbers at the edges of a run in place."""
    result: Words = []
    run: Words = []
    for word, ends in zip([*words, None], [*ends_run, True], strict=True):
        if word is not None and not ends:
            run.append(word)
            continue
        start = next((i for i, each in enumerate(run) if direction(each.text)), len(run)) if inner else 0
        stop = next((i for i in range(len(run), 0, -1) if direction(run[i - 1].text)), 0) if inner else len(run)
        result += run[:start] + run[start:stop][::-1] + run[max(start, stop) :] if start < stop else run
        run = []
        result += [word] if word is not None else []
    return result


def mirror(boxes: Iterable[Area], width: float) -> None:
    """Swap left and right, so that a right-to-left page can be analyzed like a left-to-right page."""
    for box in boxes:
        box.x0, box.x1 = width - box.x1, width - box.x0
