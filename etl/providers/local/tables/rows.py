"""The rows of a table. They come from the column with the most single lines, usually amounts, because other cells may
have several lines."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise, takewhile, zip_longest
from statistics import median

from etl.providers.local.prose import is_full
from etl.providers.local.rulings import Ruling, merge_lines
from etl.providers.local.tables.cells import Line
from etl.providers.local.tables.columns import MIN_ITEM_NUMBERS, NUMBER, OVERLAP

TIGHT = 0.7  # gap between lines of a cell, at most, in type sizes
MAX_HEAD_LINES = 5
MORE_SPACE = 1.2  # gap above a row, at least, relative to the gaps between its lines
MAX_LEADING = 1.5  # of the lines of a single row, in type sizes
MIN_ITEM = 4  # columns of an item
FULL_ITEM = 0.7  # share of the columns that items have, at least
FIRST_COLUMN_FILLED = 0.7  # share of rows whose first cell has text, from which a line without one continues a row


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


def split_bands(lines: list[Line], rulings: Sequence[Ruling]) -> list[list[Line]]:
    """Return the lines between consecutive horizontal ruling lines that are as wide as most of the table."""
    left, right = min(line.box.x0 for line in lines), max(line.box.x1 for line in lines)
    positions = merge_lines(
        ((ruling.y0 + ruling.y1) / 2, min(ruling.x1, right) - max(ruling.x0, left))
        for ruling in sorted(rulings, key=lambda ruling: ruling.y0)
    )
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
    """Return the rows between two ruling lines, each as a list of its baselines. `is_first`: more rows are below."""
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
        index
        for index in full
        if 0 in bases[index].columns and not (index and is_remainder(bases[index - 1], bases[index]))
    ]
    return set(first) if len(first) > 1 else set(full)


def is_remainder(above: BaseRow, base: BaseRow) -> bool:
    """Return whether the lines of a baseline continue the cells right above, because none of them begins a text."""
    return (
        is_tight(above, base)
        and base.columns <= above.columns
        and all(line.box.text[0].islower() for line in base.lines)
    )


def find_items(bases: list[BaseRow]) -> set[int]:
    """Return the baselines of items, which have most of the columns and several numbers, if others are parts of them.

    Others have fewer columns and no amount, or are the head.
    """
    widest = max(len(base.columns) for base in bases)
    items = [index for index, base in enumerate(bases) if len(base.columns) > FULL_ITEM * widest and is_item(base)]
    if not items:
        return set()
    amount = max(line.last for line in bases[items[0]].lines)
    parts = all(
        amount not in number_columns(base) and is_part(base, widest, amount)
        if index > items[0]
        else not number_columns(base)
        for index, base in enumerate(bases) if index not in items
    )  # fmt: skip
    return set(items) if parts else set()


def is_part(base: BaseRow, widest: int, amount: int) -> bool:
    """Return whether a baseline may be part of an item: few columns, or not many and no amount, such as discounts."""
    return len(base.columns) <= widest / 2 or (len(base.columns) <= FULL_ITEM * widest and amount not in base.columns)


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
    attached = attached_by_spacing(bases, anchors)
    has_first = sum(0 in bases[index].columns for index in anchors) > FIRST_COLUMN_FILLED * len(anchors)
    for index, base in enumerate(bases):
        above = bases[index - 1] if index else None
        below = bases[index + 1] if index + 1 < len(bases) else None
        if index in anchors:
            is_joined = above and (is_staggered(above, base) or continues(above, base, rights))
            rows += filter(None, [[*pending, base.lines]] if is_joined else [pending, [base.lines]])
            pending = []
        elif below and index + 1 in anchors and index not in attached and is_staggered(base, below):
            pending.append(base.lines)
        elif rows and above and (index in attached or (index - 1 in anchors and is_staggered(above, base))):
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


def attached_by_spacing(bases: list[BaseRow], anchors: set[int]) -> set[int]:
    """Return the baselines that belong to the anchor above them, because a larger gap separates them from the next."""
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
