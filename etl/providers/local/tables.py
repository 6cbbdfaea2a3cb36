"""The structure of a table: columns and rows from ruling lines or from aligned words. Written as GitHub Markdown.

Columns are the vertical gaps that run through the rows. Rows come from the column with the most single lines, usually
amounts, because other cells may have several lines.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise, takewhile, zip_longest
from statistics import median

import numpy as np

from etl.providers.local.boxes import CELL_GAP, Box, Row, Words, group_rows, group_words, join_lines, join_words
from etl.providers.local.prose import is_full
from etl.providers.local.rulings import Ruling, Rulings

# Minimum size of a table. With only two columns it needs more rows, because it may be a letterhead or signatures.
MIN_COLUMNS, MIN_ROWS, MIN_ROWS_OF_TWO_COLUMNS = 2, 2, 3
# Minimum width of the gap between columns in type sizes: where many rows have it, and where few have it.
MANY_ROWS, GAP_OF_MANY, GAP_OF_FEW = 4, 0.5, CELL_GAP
# The same where words on both sides are not neighbors in the file, and number of rows that must show it.
GAP_OF_JUMP, MIN_WITNESSES = 0.1, 2
SPACE = 0.4  # words with a smaller gap, in type sizes, are one text
# Words of a type whose letters are equally wide: how many there must be, their share, and the tolerance of widths.
MIN_TYPEWRITTEN, TYPEWRITTEN, SAME_WIDTH = 8, 0.9, 0.05
MAX_SPACE = 1.2  # width of a space of this type, in letters
MAX_CROSSING = 0.1  # share of rows whose text may cross the gap between columns
OVERLAP = 0.2  # type sizes by which lines of cells that are beside each other overlap
TIGHT = 0.7  # gap between lines of a cell, at most, in type sizes
MIN_RULED_BANDS = 3
MAX_HEAD_LINES = 5
SAME_LINE = 3  # points between ruling lines that are one
MORE_SPACE = 1.2  # gap above a row, at least, relative to the gaps between its lines
MAX_LEADING = 1.5  # of the lines of a single row, in type sizes
MIN_ITEM, MIN_ITEM_NUMBERS = 4, 2  # columns, and numbers among them
FULL_ITEM = 0.7  # share of the columns that items have, at least
FIRST_COLUMN_FILLED = 0.7  # share of rows whose first cell has text, from which a line without one continues a row
FRAMED = 0.8  # share of the height of a table that lines at its sides have
NEAR_LINE = 20  # points between a gap and the vertical line in it
FILLED = 0.5  # share of rows whose text a gap must divide, to be a column of a framed table without a line
# Leaders and lines of dashes are ruling lines made of letters.
LEADER = re.compile(r"[.·…]{4,}|[-–—_=]{5,}")
NOTE = re.compile(r"[*†‡§#¹²³]|\(?[a-z\d][)]\s|(?:notes?|sources?|quellen?|anmerkung(?:en)?)\s?:", re.IGNORECASE)
# A number that no further digits may follow after a space, as in 12 000.
GROUPED = re.compile(r"[(+−–-]?\d{1,3}(?:,\d{3})+(?:\.\d+)?[)%]?|[(+−–-]?\d+[.,]\d{1,2}[)%]?")
NUMBER = re.compile(
    r"[(\[<>~≈±+−–-]{0,2}\s?[€$£¥]?\s?\d[\d.,'’:/ ]*\s?(?:%|[A-Za-z€$£¥]{1,3})?[)\]]?[*†‡]{0,2}|[-–—]|n/?a",
    re.IGNORECASE,
)


@dataclass(slots=True)
class Line:
    """A line of a cell, in the columns `first` to `last`."""

    first: int
    last: int
    box: Box


@dataclass(slots=True)
class BaseRow:
    """Lines on one baseline."""

    lines: list[Line]

    @property
    def y(self) -> float:
        return median(line.box.middle for line in self.lines)

    @property
    def y0(self) -> float:
        return min(line.box.y0 for line in self.lines)

    @property
    def y1(self) -> float:
        return max(line.box.y1 for line in self.lines)

    @property
    def columns(self) -> set[int]:
        return {line.first for line in self.lines}


@dataclass(slots=True, kw_only=True)
class Table:
    """The texts of the cells by row and column, with the bounding box."""

    cells: list[list[str]]
    x0: float
    y0: float
    x1: float
    y1: float
    boxes: list[Box] = field(default_factory=list)

    def markdown(self) -> str:
        head, *body = [[cell.replace("|", "\\|") for cell in line] for line in self.cells]
        return "\n".join(f"| {' | '.join(line)} |" for line in [head, ["---"] * len(head), *body])


def build(words: Words, rulings: Rulings | None = None) -> Table | None:
    """Return the table that words form, or None if they have no columns or rows."""
    texts_only = [word for word in words if not LEADER.fullmatch(word.text)]
    cuts = find_cuts(texts_only, rulings) if texts_only else []
    if not cuts:
        return None
    lines = split_lines(texts_only, cuts)
    rows: list[list[list[Line]]] = []
    rulings = rulings or Rulings()
    ruled = split_bands(lines, rulings.horizontal)
    is_ruled = len(ruled) >= MIN_RULED_BANDS
    bands = [part for band in ruled for part in split_shades(band, rulings.edges)]
    for index, band in enumerate(bands):
        is_first = index < len(bands) - 1 and all(map(is_across, rows))
        rows += band_rows(band, len(cuts) + 1, is_ruled=is_ruled, is_first=is_first)
    while len(rows) > MIN_ROWS and is_across(rows[0]):
        del rows[0]
    while len(rows) > MIN_ROWS and (is_across(rows[-1]) or is_note(rows[-1])):
        del rows[-1]
    top = min(line.box.y0 for base in rows[0] for line in base)
    bottom = max(line.box.y1 for base in rows[-1] for line in base)
    words = [word for word in words if top < word.middle < bottom]
    cells = [texts(row, len(cuts) + 1) for row in rows]
    cells = without_empty_columns(cells)
    is_item_alone = len(rows) == 1 and any(is_item(BaseRow(base)) for base in rows[0])
    if (len(cells) < MIN_ROWS and not is_item_alone) or len(cells[0]) < MIN_COLUMNS:
        return None
    return Table(
        cells=cells,
        x0=min(word.x0 for word in words),
        y0=min(word.y0 for word in words),
        x1=max(word.x1 for word in words),
        y1=max(word.y1 for word in words),
        boxes=words,
    )


def is_across(row: list[list[Line]]) -> bool:
    """Return whether a row is a title or note of the table: lines of one text each, from the first column to others."""
    return all(len(base) == 1 and base[0].first == 0 for base in row) and any(base[0].last > 0 for base in row)


def is_note(row: list[list[Line]]) -> bool:
    """Return whether a last row is a note or source in the first column."""
    return all(len(base) == 1 and not base[0].last for base in row) and bool(NOTE.match(row[0][0].box.text))


def texts(row: list[list[Line]], width: int) -> list[str]:
    """Return the texts of the cells of a row. `row`: its baselines. A cell that spans columns is in all of them."""
    cells = [""] * width
    for base in row:
        for line in sorted(base, key=lambda line: line.box.x0):
            for column in range(line.first, line.last + 1):
                cells[column] = join_lines(cells[column], line.box.text)
    return [LEADER.sub("", cell).strip() for cell in cells]


def without_empty_columns(cells: list[list[str]]) -> list[list[str]]:
    kept = [index for index in range(len(cells[0])) if any(row[index] for row in cells)] if cells else []
    return [[row[index] for index in kept] for row in cells]


# ---- Columns --------------------------------------------------------------------------------------------------------
def find_cuts(words: Words, rulings: Rulings | None) -> list[float]:
    """Return the x-coordinates between columns, from left to right."""
    ruled = ruled_cuts(words, rulings) if rulings else []
    aligned = aligned_cuts(words)
    if ruled and rulings and is_framed(words, rulings):
        lines = [line.x0 for line in rulings.vertical]
        return sorted([*ruled, *(cut for cut in aligned if divides(cut, words, ruled, lines))])
    return ruled if ruled and len(ruled) >= len(aligned) else aligned


def ruled_cuts(words: Words, rulings: Rulings) -> list[float]:
    """Return the vertical lines with words on both sides that together are as high as half of the words."""
    height = max(word.y1 for word in words) - min(word.y0 for word in words)
    left, right = min(word.x0 for word in words), max(word.x1 for word in words)
    positions: list[list[float]] = []
    for line in sorted(rulings.vertical, key=lambda line: line.x0):
        x = (line.x0 + line.x1) / 2
        if positions and x - positions[-1][0] < SAME_LINE:
            positions[-1][1] += line.y1 - line.y0
        else:
            positions.append([x, line.y1 - line.y0])
    cuts = [x for x, length in positions if length > 0.5 * height and left < x < right]
    return [x for x in cuts if sum(word.x0 + 1 < x < word.x1 - 1 for word in words) <= 0.02 * len(words)]


def is_framed(words: Words, rulings: Rulings) -> bool:
    """Return whether vertical lines are on both sides of the words, along most of their height."""
    height = max(word.y1 for word in words) - min(word.y0 for word in words)
    left, right = min(word.x0 for word in words), max(word.x1 for word in words)
    before = sum(line.y1 - line.y0 for line in rulings.vertical if line.x0 < left)
    after = sum(line.y1 - line.y0 for line in rulings.vertical if line.x1 > right)
    return min(before, after) > FRAMED * height


def divides(cut: float, words: Words, ruled: list[float], lines: list[float]) -> bool:
    """Return whether a gap in a framed table is one between columns, and not a wide space in a few lines.

    `ruled`: the columns' lines; `lines`: all vertical lines. A part of one shows a column, as do most rows.
    """
    near = min((abs(x - cut) for x in ruled), default=float("inf"))
    if near < NEAR_LINE:
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
    """Return the middles of the gaps that run through the rows with the most cells."""
    rows = group_words(words)
    most = max((len(row) for row in rows), default=0)
    if most < MIN_COLUMNS:
        return []
    full = [[word for cell in row for word in cell] for row in rows if len(row) > most / 2]
    size = median(word.size for word in words)
    left = min(word.x0 for word in words)
    space = space_width(words)
    jumps: list[tuple[float, float]] = []
    crossing = np.zeros(int(max(word.x1 for word in words) - left) + 3, dtype=np.int32)
    heads = np.zeros_like(crossing)  # words of the head, which may be wider than the cells below
    for word in above_numbers(words, full):
        heads[int(word.x0 - left + 0.5) : int(word.x1 - left + 0.5) + 1] += 1
    for row in full:
        for x0, x1 in intervals(row, space):
            crossing[int(x0 - left + 0.5) : int(x1 - left + 0.5) + 1] += 1
        jumps += [
            (one.x1, other.x0) for one, other in pairwise(sorted(row, key=lambda word: word.x0)) if is_jump(one, other)
        ]
    allowed = int(MAX_CROSSING * len(full)) if len(full) >= 2 * MANY_ROWS else 0
    gap = max(space, (GAP_OF_MANY if len(full) >= MANY_ROWS else GAP_OF_FEW) * size)
    is_free = np.concatenate(([False], crossing <= allowed, [False]))
    edges = np.flatnonzero(np.diff(is_free.astype(np.int8)))
    cuts = []
    for start, end in zip(edges[::2].tolist(), edges[1::2].tolist(), strict=True):
        if start == 0 or end >= len(crossing) - 1:
            continue
        middle = left + (start + end) / 2
        witnesses = sum(x0 < middle < x1 for x0, x1 in jumps)
        if end - start >= (gap if witnesses < MIN_WITNESSES else GAP_OF_JUMP * size):
            clear = start + np.flatnonzero(heads[start:end] == heads[start:end].min())
            cuts.append(left + float(clear[np.abs(clear + 0.5 - (start + end) / 2).argmin()]) + 0.5)
    return cuts


def above_numbers(words: Words, full: list[Words]) -> Words:
    """Return the words above the first row of numbers."""
    rows = [row for row in full if sum(bool(NUMBER.fullmatch(word.text)) for word in row) >= MIN_ITEM_NUMBERS]
    top = min((word.y0 for row in rows for word in row), default=0.0)
    return [word for word in words if word.y1 <= top + OVERLAP * word.size]


def is_jump(word: Box, after: Box) -> bool:
    """Return whether two neighbors in a row are of different cells: not neighbors in the file, or two whole numbers."""
    is_apart = word.order >= 0 and after.order != word.order + 1
    is_apart = is_apart or bool(GROUPED.fullmatch(word.text) and GROUPED.fullmatch(after.text))
    return is_apart and after.x0 - word.x1 > GAP_OF_JUMP * word.size


def space_width(words: Words) -> float:
    """Return the width of spaces in a typewriter's type, in which one is as wide as a letter, or 0 for other types."""
    widths = [word.width / len(word.text) for word in words if any(map(str.isalpha, word.text))]
    letter = median(widths) if len(widths) >= MIN_TYPEWRITTEN else 0.0
    same = sum(abs(width - letter) < SAME_WIDTH * letter for width in widths)
    return MAX_SPACE * letter if same >= TYPEWRITTEN * len(widths) else 0.0


def intervals(row: Row, space: float) -> list[tuple[float, float]]:
    """Return the horizontal spans of the texts of a row. `space`: as of `space_width`."""
    spans: list[tuple[float, float]] = []
    before: Box | None = None
    for word in sorted(row, key=lambda word: word.x0):
        is_near = spans and word.x0 - spans[-1][1] < max(space, SPACE * word.size)
        if is_near and not (before and is_jump(before, word)):
            spans[-1] = (spans[-1][0], max(spans[-1][1], word.x1))
        else:
            spans.append((word.x0, word.x1))
        before = word
    return spans


# ---- Lines of cells -------------------------------------------------------------------------------------------------
def split_lines(words: Words, cuts: list[float]) -> list[Line]:
    """Return the lines of the cells. Texts that cross a cut without a gap span columns."""
    lines: list[Line] = []
    by_column: list[Words] = [[] for _ in range(len(cuts) + 1)]
    space = space_width(words)
    for row in group_words(words):
        for cell in row:
            for text in split_texts(cell, cuts, space):
                first, last = column_of(text[0], cuts), column_of(text[-1], cuts)
                if len(text) == 1 and (text[0].x1 - text[0].x0) > 0:
                    first, last = span_of(text[0], cuts)
                if first == last:
                    by_column[first] += text
                else:
                    lines.append(Line(first, last, join_words(text)))
    for column, found in enumerate(by_column):
        lines += [Line(column, column, join_words(row)) for row in group_rows(found)]
    return lines


def split_texts(cell: Words, cuts: list[float], space: float) -> list[Words]:
    """Split the words of a cell at the cuts, unless the gap there is that between words."""
    parts: list[Words] = [[cell[0]]]
    for before, word in pairwise(cell):
        crosses = column_of(before, cuts) != column_of(word, cuts)
        if crosses and (word.x0 - before.x1 >= max(space, SPACE * word.size) or is_jump(before, word)):
            parts.append([])
        parts[-1].append(word)
    return parts


def column_of(word: Box, cuts: list[float]) -> int:
    middle = (word.x0 + word.x1) / 2
    return sum(cut <= middle for cut in cuts)


def span_of(word: Box, cuts: list[float]) -> tuple[int, int]:
    """Return the columns that a box covers by more than half of a letter."""
    return sum(cut <= word.x0 + word.size / 2 for cut in cuts), sum(cut < word.x1 - word.size / 2 for cut in cuts)


# ---- Rows -----------------------------------------------------------------------------------------------------------
def split_bands(lines: list[Line], rulings: Sequence[Ruling]) -> list[list[Line]]:
    """Return the lines between consecutive horizontal ruling lines that are as wide as most of the table."""
    left, right = min(line.box.x0 for line in lines), max(line.box.x1 for line in lines)
    positions: list[list[float]] = []
    for ruling in sorted(rulings, key=lambda ruling: ruling.y0):
        y = (ruling.y0 + ruling.y1) / 2
        length = min(ruling.x1, right) - max(ruling.x0, left)
        if positions and y - positions[-1][0] < SAME_LINE:
            positions[-1][1] += length
        else:
            positions.append([y, length])
    cuts = [y for y, length in positions if length > 0.6 * (right - left)]
    bands: list[list[Line]] = [[] for _ in range(len(cuts) + 1)]
    for line in lines:
        bands[sum(cut <= line.box.middle for cut in cuts)].append(line)
    return [band for band in bands if band]


def split_shades(band: list[Line], edges: Sequence[Ruling]) -> list[list[Line]]:
    """Return the parts of a band that differ in their shading. Each begins in the first column."""
    parts: list[list[Line]] = []
    for part in split_bands(band, edges):
        if parts and all(line.first > 0 for line in part):
            parts[-1] += part
        else:
            parts.append(part)
    return parts


def band_rows(lines: list[Line], width: int, *, is_ruled: bool, is_first: bool) -> list[list[list[Line]]]:
    """Return the rows between two ruling lines, each as a list of its baselines. `is_first`: others are below."""
    bases = baselines(lines)
    is_head = is_first and len(bases) <= MAX_HEAD_LINES and not any(map(number_columns, bases))
    if (is_ruled and is_one_row(bases)) or is_head:
        return head_rows(bases) if is_first else [[base.lines for base in bases]]
    anchors = find_anchors(bases, width)
    return attach(bases, anchors)


def head_rows(bases: list[BaseRow]) -> list[list[list[Line]]]:
    """Return the rows of a head: texts over several columns are rows of their own, the rest is one."""
    spanning = list(takewhile(lambda base: any(line.first < line.last for line in base.lines), bases[:-1]))
    return [*([base.lines] for base in spanning), [base.lines for base in bases[len(spanning) :]]]


def is_one_row(bases: list[BaseRow]) -> bool:
    """Return whether the lines between two rulings are one row: no two baselines have several numbers each."""
    numbers = [sum(bool(NUMBER.fullmatch(line.box.text)) for line in base.lines) for base in bases]
    full = [base for base in bases if len(base.columns) > 1]
    return sum(number > 0 for number in numbers) <= 1 or len(full) <= 1


def baselines(lines: list[Line]) -> list[BaseRow]:
    bases: list[BaseRow] = []
    for line in sorted(lines, key=lambda line: line.box.middle):
        if bases and line.box.middle - bases[-1].y < 0.5 * line.box.size and not conflicts(line, bases[-1]):
            bases[-1].lines.append(line)
        else:
            bases.append(BaseRow([line]))
    return bases


def conflicts(line: Line, base: BaseRow) -> bool:
    return any(line.first <= other.last and other.first <= line.last for other in base.lines)


def find_anchors(bases: list[BaseRow], width: int) -> set[int]:
    """Return the indexes of the baselines that each begin or carry a row."""
    full = [index for index, base in enumerate(bases) if len(base.columns) > 1]
    numeric = numeric_columns(bases, width)
    anchors = {
        index for index in full
        if any(line.first in numeric and NUMBER.fullmatch(line.box.text) for line in bases[index].lines)
    }  # fmt: skip
    items = find_items(bases)
    if items or len(anchors) >= 0.4 * len(full):
        return items or anchors
    gaps = [below.y - above.y for above, below in pairwise(bases)]
    if len(gaps) > 1:
        small = sorted(gaps)[len(gaps) // 4]
        large = [index + 1 for index, gap in enumerate(gaps) if gap > 1.3 * small]
        if len(large) >= max(1, 0.2 * len(gaps)):
            return {0, *large}
    first = [
        index for index in full if 0 in bases[index].columns and not (index and is_rest(bases[index - 1], bases[index]))
    ]
    return set(first) if len(first) > 1 else set(full)


def is_rest(above: BaseRow, base: BaseRow) -> bool:
    """Return whether the lines of a baseline are the rest of the cells right above, because none begins a text."""
    return (
        is_tight(above, base)
        and base.columns <= above.columns
        and all(line.box.text[0].islower() for line in base.lines)
    )


def find_items(bases: list[BaseRow]) -> set[int]:
    """Return the baselines of items, which have most of the columns and several numbers, if others are parts of them.

    Others have fewer columns and no amount, or are the head.
    """
    most = max(len(base.columns) for base in bases)
    items = [index for index, base in enumerate(bases) if len(base.columns) > FULL_ITEM * most and is_item(base)]
    if not items:
        return set()
    amount = max(line.last for line in bases[items[0]].lines)
    parts = all(
        amount not in number_columns(base) and is_part(base, most, amount)
        if index > items[0]
        else not number_columns(base)
        for index, base in enumerate(bases) if index not in items
    )  # fmt: skip
    return set(items) if parts else set()


def is_part(base: BaseRow, most: int, amount: int) -> bool:
    """Return whether a baseline has few columns, or not many and none of amounts, such as a price and its discounts."""
    return len(base.columns) <= most / 2 or (len(base.columns) <= FULL_ITEM * most and amount not in base.columns)


def number_columns(base: BaseRow) -> set[int]:
    return {line.last for line in base.lines if NUMBER.fullmatch(line.box.text)}


def is_item(base: BaseRow) -> bool:
    return len(base.columns) >= MIN_ITEM and len(number_columns(base)) >= MIN_ITEM_NUMBERS


def numeric_columns(bases: list[BaseRow], width: int) -> set[int]:
    found = set()
    for column in range(width):
        cells = [line.box.text for base in bases for line in base.lines if line.first == line.last == column]
        numbers = sum(bool(NUMBER.fullmatch(cell)) for cell in cells)
        if numbers > 1 and numbers >= 0.5 * len(cells):
            found.add(column)
    return found


def attach(bases: list[BaseRow], anchors: set[int]) -> list[list[list[Line]]]:
    """Return rows: each anchor with the baselines that continue its cells."""
    rows: list[list[list[Line]]] = []
    pending: list[list[Line]] = []  # of the next anchor
    rights = right_edges(bases)
    owned = spaced(bases, anchors)
    has_first = sum(0 in bases[index].columns for index in anchors) > FIRST_COLUMN_FILLED * len(anchors)
    for index, base in enumerate(bases):
        above = bases[index - 1] if index else None
        below = bases[index + 1] if index + 1 < len(bases) else None
        if index in anchors:
            is_joined = above and (is_staggered(above, base) or continues(above, base, rights))
            rows += filter(None, [[*pending, base.lines]] if is_joined else [pending, [base.lines]])
            pending = []
        elif below and index + 1 in anchors and index not in owned and is_staggered(base, below):
            pending.append(base.lines)
        elif rows and above and (index in owned or (index - 1 in anchors and is_staggered(above, base))):
            rows[-1].append(base.lines)
        elif above and continues(above, base, rights):
            (pending or (rows[-1] if rows else pending)).append(base.lines)
        elif below and continues(base, below, rights):
            rows += [[each] for each in pending]
            pending = [base.lines]
        elif has_first and rows and above and not pending and 0 not in base.columns and is_tight(above, base):
            rows[-1].append(base.lines)  # a row begins in the first column
        else:
            rows += [[each] for each in [*pending, base.lines]]
            pending = []
    return rows + [[each] for each in pending]


def spaced(bases: list[BaseRow], anchors: set[int]) -> set[int]:
    """Return the baselines that belong to the anchor above them, because a larger gap is between them and the next."""
    found: set[int] = set()
    limit = 0.0  # the largest gap within a row so far
    starts = sorted(anchors)
    for start, end in zip_longest(starts, starts[1:], fillvalue=len(bases)):
        gaps = [below.y - above.y for above, below in pairwise(bases[start:end])]
        width = len(bases[start].columns)
        if not gaps or any(len(base.columns) >= width for base in bases[start + 1 : end]):
            continue
        if end < len(bases):
            gaps.append(bases[end].y - bases[end - 1].y)
            near = gaps.index(max(gaps))  # lines before the largest gap
            if near and MORE_SPACE * max(gaps[:near]) < gaps[near]:
                limit = max(limit, *gaps[:near])
                found.update(range(start + 1, start + 1 + near))
            continue
        if len(starts) == 1 and is_item(bases[start]):
            limit = MAX_LEADING * max(line.box.size for line in bases[start].lines)
        near = next((index for index, gap in enumerate(gaps) if gap > limit), len(gaps))
        found.update(range(start + 1, start + 1 + near))
    return found


def right_edges(bases: list[BaseRow]) -> dict[int, float]:
    """Return the right edge of the text of each column."""
    rights: dict[int, float] = {}
    for base in bases:
        for line in base.lines:
            rights[line.last] = max(rights.get(line.last, 0.0), line.box.x1)
    return rights


def is_staggered(above: BaseRow, below: BaseRow) -> bool:
    """Return whether lines of different columns overlap vertically: a cell is higher than the one beside it."""
    return (
        below.y0 < above.y1 - OVERLAP * max(line.box.size for line in below.lines) and not above.columns & below.columns
    )


def is_tight(above: BaseRow, below: BaseRow) -> bool:
    return below.y0 - above.y1 < TIGHT * max(line.box.size for line in below.lines)


def continues(above: BaseRow, below: BaseRow, rights: dict[int, float]) -> bool:
    """Return whether each line of a baseline continues a cell above, whose line was full or ends within a text."""
    if not is_tight(above, below):
        return False
    lesser = min(above.lines, below.lines, key=len)
    pairs = [
        (upper, lower) for upper in above.lines for lower in below.lines
        if upper.first <= lower.last and lower.first <= upper.last
    ]  # fmt: skip
    return len(pairs) >= len(lesser) and all(
        not NUMBER.fullmatch(lower.box.text)
        and upper.box.bold == lower.box.bold
        and upper.box.text[-1] != ":"
        and (
            is_full(upper.box, lower.box, rights[lower.last])
            or lower.box.text[0].islower()
            or upper.box.text[-1] in "-,/&("
            or lower.box.text[0] in "(["
        )
        for upper, lower in pairs
    )
