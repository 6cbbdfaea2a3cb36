"""Detection of the rows of a table.

Cells may have several lines. Rows are therefore derived from lines with numbers, such as amounts, which rarely wrap.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise, takewhile, zip_longest
from statistics import median

from etl.providers.local.prose import is_full
from etl.providers.local.rulings import Ruling, merge_lines
from etl.providers.local.tables.cells import Line
from etl.providers.local.tables.columns import MIN_ITEM_NUMBERS, NUMBER, OVERLAP

TIGHT = 0.7  # maximum gap between lines of a cell, in type sizes
MAX_HEAD_LINES = 5
MORE_SPACE = 1.2  # minimum gap above a row, as a multiple of the gaps between its lines
MAX_LEADING = 1.5  # maximum line spacing in a table with a single row, in type sizes
MIN_ITEM_COLUMNS = 4  # minimum columns of an item
FULL_ITEM = 0.7  # minimum share of the columns that an item fills
# If more than this share of rows has text in the first column, a line without it continues the row above.
FIRST_COLUMN_FILLED = 0.7


@dataclass(slots=True)
class Baseline:
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
    """Split lines at horizontal ruling lines that are as wide as most of the table."""
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
    """Split a band where its shading changes. Each part begins in the first column."""
    parts: list[list[Line]] = []
    for part in split_bands(band, edges):
        if parts and all(line.first > 0 for line in part):
            parts[-1] += part
        else:
            parts.append(part)
    return parts


def band_rows(lines: list[Line], width: int, *, is_ruled: bool, is_first: bool) -> list[list[list[Line]]]:
    """Return the rows between two ruling lines, each as a list of baselines. `is_first`: they may be the table head."""
    baselines = find_baselines(lines)
    is_head = is_first and len(baselines) <= MAX_HEAD_LINES and not any(map(columns_with_numbers, baselines))
    if (is_ruled and is_one_row(baselines)) or is_head:
        return head_rows(baselines) if is_first else [[baseline.lines for baseline in baselines]]
    return build_rows(baselines, find_anchors(baselines, width))


def head_rows(baselines: list[Baseline]) -> list[list[list[Line]]]:
    """Return the rows of a table head: one for each text that spans columns, and one for the remaining lines."""
    spanning = list(takewhile(lambda baseline: any(line.first < line.last for line in baseline.lines), baselines[:-1]))
    return [*([baseline.lines] for baseline in spanning), [baseline.lines for baseline in baselines[len(spanning) :]]]


def is_one_row(baselines: list[Baseline]) -> bool:
    """Return whether the lines between two ruling lines are one row.

    At most one baseline has numbers, or at most one has several columns.
    """
    numeric = [baseline for baseline in baselines if columns_with_numbers(baseline)]
    full = [baseline for baseline in baselines if len(baseline.columns) > 1]
    return len(numeric) <= 1 or len(full) <= 1


def find_baselines(lines: list[Line]) -> list[Baseline]:
    baselines: list[Baseline] = []
    for line in sorted(lines, key=lambda line: line.box.middle):
        if baselines and line.box.middle - baselines[-1].y < 0.5 * line.box.size and not conflicts(line, baselines[-1]):
            baselines[-1].lines.append(line)
        else:
            baselines.append(Baseline([line]))
    return baselines


def conflicts(line: Line, baseline: Baseline) -> bool:
    return any(line.first <= other.last and other.first <= line.last for other in baseline.lines)


def find_anchors(baselines: list[Baseline], width: int) -> set[int]:
    """Return the indexes of anchors: the baselines that each define a row."""
    full = [index for index, baseline in enumerate(baselines) if len(baseline.columns) > 1]
    numeric = numeric_columns(baselines, width)
    anchors = {
        index for index in full
        if any(line.first in numeric and NUMBER.fullmatch(line.box.text) for line in baselines[index].lines)
    }  # fmt: skip
    items = find_items(baselines)
    if items or len(anchors) >= 0.4 * len(full):
        return items or anchors
    gaps = [below.y - above.y for above, below in pairwise(baselines)]
    if len(gaps) > 1:
        small = sorted(gaps)[len(gaps) // 4]
        large = [index + 1 for index, gap in enumerate(gaps) if gap > 1.3 * small]
        if len(large) >= max(1, 0.2 * len(gaps)):
            return {0, *large}
    first = [
        index
        for index in full
        if 0 in baselines[index].columns and not (index and is_remainder(baselines[index - 1], baselines[index]))
    ]
    return set(first) if len(first) > 1 else set(full)


def is_remainder(above: Baseline, baseline: Baseline) -> bool:
    """Return whether the lines of a baseline continue the cells above, because all of them begin in lower case."""
    return (
        is_tight(above, baseline)
        and baseline.columns <= above.columns
        and all(line.box.text[0].islower() for line in baseline.lines)
    )


def find_items(baselines: list[Baseline]) -> set[int]:
    """Return the indexes of baselines that are items: they fill most columns and have several numbers.

    Return an empty set if other baselines are neither parts of items nor the table head.
    """
    widest = max(len(baseline.columns) for baseline in baselines)
    items = [
        index
        for index, baseline in enumerate(baselines)
        if len(baseline.columns) > FULL_ITEM * widest and is_item(baseline)
    ]
    if not items:
        return set()
    amount = max(line.last for line in baselines[items[0]].lines)
    parts = all(
        amount not in columns_with_numbers(baseline) and is_part(baseline, widest, amount)
        if index > items[0]
        else not columns_with_numbers(baseline)
        for index, baseline in enumerate(baselines) if index not in items
    )  # fmt: skip
    return set(items) if parts else set()


def is_part(baseline: Baseline, widest: int, amount: int) -> bool:
    """Return whether a baseline may be part of an item, such as a discount."""
    return len(baseline.columns) <= widest / 2 or (
        len(baseline.columns) <= FULL_ITEM * widest and amount not in baseline.columns
    )


def columns_with_numbers(baseline: Baseline) -> set[int]:
    return {line.last for line in baseline.lines if NUMBER.fullmatch(line.box.text)}


def is_item(baseline: Baseline) -> bool:
    return len(baseline.columns) >= MIN_ITEM_COLUMNS and len(columns_with_numbers(baseline)) >= MIN_ITEM_NUMBERS


def numeric_columns(baselines: list[Baseline], width: int) -> set[int]:
    found = set()
    for column in range(width):
        cells = [
            line.box.text for baseline in baselines for line in baseline.lines if line.first == line.last == column
        ]
        numbers = sum(bool(NUMBER.fullmatch(cell)) for cell in cells)
        if numbers > 1 and numbers >= 0.5 * len(cells):
            found.add(column)
    return found


def build_rows(baselines: list[Baseline], anchors: set[int]) -> list[list[list[Line]]]:
    """Return rows, each with an anchor and the baselines that continue its cells."""
    rows: list[list[list[Line]]] = []
    pending: list[list[Line]] = []  # baselines of the next anchor
    rights = right_edges(baselines)
    attached = attached_by_spacing(baselines, anchors)
    has_first = sum(0 in baselines[index].columns for index in anchors) > FIRST_COLUMN_FILLED * len(anchors)
    for index, baseline in enumerate(baselines):
        above = baselines[index - 1] if index else None
        below = baselines[index + 1] if index + 1 < len(baselines) else None
        if index in anchors:
            is_joined = above and (is_staggered(above, baseline) or continues(above, baseline, rights))
            rows += filter(None, [[*pending, baseline.lines]] if is_joined else [pending, [baseline.lines]])
            pending = []
        elif below and index + 1 in anchors and index not in attached and is_staggered(baseline, below):
            pending.append(baseline.lines)
        elif rows and above and (index in attached or (index - 1 in anchors and is_staggered(above, baseline))):
            rows[-1].append(baseline.lines)
        elif above and continues(above, baseline, rights):
            (pending or (rows[-1] if rows else pending)).append(baseline.lines)
        elif below and continues(baseline, below, rights):
            rows += [[each] for each in pending]
            pending = [baseline.lines]
        elif has_first and rows and above and not pending and 0 not in baseline.columns and is_tight(above, baseline):
            rows[-1].append(baseline.lines)  # a row begins in the first column
        else:
            rows += [[each] for each in [*pending, baseline.lines]]
            pending = []
    return rows + [[each] for each in pending]


def attached_by_spacing(baselines: list[Baseline], anchors: set[int]) -> set[int]:
    """Return the indexes of baselines that belong to the anchor above, because a larger gap precedes the next one."""
    found: set[int] = set()
    limit = 0.0  # the largest gap within a row so far
    starts = sorted(anchors)
    for start, end in zip_longest(starts, starts[1:], fillvalue=len(baselines)):
        gaps = [below.y - above.y for above, below in pairwise(baselines[start:end])]
        width = len(baselines[start].columns)
        if not gaps or any(len(baseline.columns) >= width for baseline in baselines[start + 1 : end]):
            continue
        if end < len(baselines):
            gaps.append(baselines[end].y - baselines[end - 1].y)
            near = gaps.index(max(gaps))  # number of lines before the largest gap
            if near and MORE_SPACE * max(gaps[:near]) < gaps[near]:
                limit = max(limit, *gaps[:near])
                found.update(range(start + 1, start + 1 + near))
            continue
        if len(starts) == 1 and is_item(baselines[start]):
            limit = MAX_LEADING * max(line.box.size for line in baselines[start].lines)
        near = next((index for index, gap in enumerate(gaps) if gap > limit), len(gaps))
        found.update(range(start + 1, start + 1 + near))
    return found


def right_edges(baselines: list[Baseline]) -> dict[int, float]:
    """Return the right edge of the text of each column."""
    rights: dict[int, float] = {}
    for baseline in baselines:
        for line in baseline.lines:
            rights[line.last] = max(rights.get(line.last, 0.0), line.box.x1)
    return rights


def is_staggered(above: Baseline, below: Baseline) -> bool:
    """Return whether baselines in different columns overlap vertically, because their cells are not aligned."""
    return (
        below.y0 < above.y1 - OVERLAP * max(line.box.size for line in below.lines) and not above.columns & below.columns
    )


def is_tight(above: Baseline, below: Baseline) -> bool:
    return below.y0 - above.y1 < TIGHT * max(line.box.size for line in below.lines)


def continues(above: Baseline, below: Baseline, rights: dict[int, float]) -> bool:
    """Return whether each line of a baseline continues a cell above, whose last line is full or incomplete."""
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
