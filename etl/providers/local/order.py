"""Reading order of the blocks of a page, by recursive cuts (XY-cut).

A page is cut first at a gutter, which is a vertical gap between columns. Blocks that span the gutter, such as titles,
divide the columns into parts from top to bottom.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from typing import TypeVar

from etl.providers.local.boxes import Area

Block = TypeVar("Block", bound=Area)

# Maximum share of blocks that may span a gutter, and minimum height that the columns must have in common, as a share of
# the height of the shorter one.
MAX_SPANNING, MIN_BESIDE = 0.5, 0.3
TOLERANCE = 2.0  # points by which blocks may overlap a cut


def reading_order(blocks: Sequence[Block]) -> list[Block]:
    """Return blocks in reading order."""
    if len(blocks) <= 1:
        return list(blocks)
    gutter = find_gutter(blocks)
    if gutter is None:
        return order_bands(blocks)
    spanning = sorted((block for block in blocks if is_spanning(block, gutter)), key=lambda block: block.y0)
    rest = [block for block in blocks if not is_spanning(block, gutter)]
    if not spanning and len({is_left(block, gutter) for block in rest}) == 1:
        return order_bands(blocks)  # all blocks are on one side of the gutter: a cut there would recurse endlessly
    ordered: list[Block] = []
    for divider in spanning:
        middle = (divider.y0 + divider.y1) / 2
        above = [block for block in rest if (block.y0 + block.y1) / 2 < middle]
        rest = [block for block in rest if (block.y0 + block.y1) / 2 >= middle]
        ordered += [*order_columns(above, gutter), divider]
    return ordered + order_columns(rest, gutter)


def order_columns(blocks: Sequence[Block], gutter: float) -> list[Block]:
    left = [block for block in blocks if is_left(block, gutter)]
    right = [block for block in blocks if not is_left(block, gutter)]
    return reading_order(left) + reading_order(right)


def is_left(block: Area, x: float) -> bool:
    return (block.x0 + block.x1) / 2 < x


def is_spanning(block: Area, x: float) -> bool:
    return block.x0 + TOLERANCE < x < block.x1 - TOLERANCE


def find_gutter(blocks: Sequence[Area]) -> float | None:
    """Return the x-coordinate of the vertical gap that the fewest blocks span, or None.

    Blocks on the two sides of the gap must be beside each other.
    """
    edges = sorted({block.x1 for block in blocks})
    starts = sorted(block.x0 for block in blocks)
    # Sorted edges of the blocks that may span a gutter, for binary search: a page may have thousands of blocks.
    wide = [block for block in blocks if block.x1 - block.x0 > 2 * TOLERANCE]
    begins, ends = sorted(block.x0 + TOLERANCE for block in wide), sorted(block.x1 - TOLERANCE for block in wide)
    best: tuple[int, float, float] | None = None
    for edge in edges[:-1]:
        after = bisect_left(starts, edge - TOLERANCE)
        if after == len(starts):
            continue
        x = (edge + starts[after]) / 2  # the middle of the gap that begins at the edge
        spanning = bisect_left(begins, x) - bisect_right(ends, x)
        if spanning > MAX_SPANNING * len(blocks) or (best is not None and spanning > best[0]):
            continue
        beside = height_beside(blocks, x)
        if beside > 0 and (best is None or (spanning, -beside) < best[:2]):
            best = (spanning, -beside, x)
    return best[2] if best else None


def height_beside(blocks: Sequence[Area], x: float) -> float:
    """Return the height that blocks on both sides of a gutter have in common, or 0 if it is small."""
    left = [block for block in blocks if block.x1 <= x + TOLERANCE and not is_spanning(block, x)]
    right = [block for block in blocks if block.x0 >= x - TOLERANCE and not is_spanning(block, x)]
    shared = shared_height(left, right)
    heights = [sum(block.y1 - block.y0 for block in side) for side in (left, right)]
    return shared if shared > MIN_BESIDE * min(heights) else 0.0


def shared_height(left: Sequence[Area], right: Sequence[Area]) -> float:
    """Return the sum of the heights that all pairs of left and right blocks have in common.

    Sweeps from top to bottom and multiplies the numbers of blocks on both sides, because a page may have thousands of
    blocks.
    """
    edges = [(y, change, 0) for block in left for y, change in ((block.y0, 1), (block.y1, -1))]
    edges += [(y, 0, change) for block in right for y, change in ((block.y0, 1), (block.y1, -1))]
    shared, lefts, rights, above = 0.0, 0, 0, 0.0
    for y, left_change, right_change in sorted(edges):
        shared += lefts * rights * (y - above)
        lefts, rights, above = lefts + left_change, rights + right_change, y
    return shared


def order_bands(blocks: Sequence[Block]) -> list[Block]:
    """Return blocks from top to bottom. Each band of blocks beside each other is ordered separately."""
    bands: list[list[Block]] = []
    bottom = float("-inf")
    for block in sorted(blocks, key=lambda block: block.y0):
        if block.y0 >= bottom - TOLERANCE:
            bands.append([])
        bands[-1].append(block)
        bottom = max(bottom, block.y1)
    if len(bands) == 1:
        return sorted(blocks, key=lambda block: (block.y0, block.x0))
    return [block for band in bands for block in reading_order(band)]
