"""Reading order of the blocks of a page, by recursive cuts (XY-cut).

A gutter, a vertical gap between columns, is cut first. Blocks that span it, such as titles, divide the columns into
parts from top to bottom.
"""

from collections.abc import Sequence
from typing import TypeVar

from etl.providers.local.boxes import Area

Block = TypeVar("Block", bound=Area)

# Share of a node's blocks that may span a gutter, and minimum share of heights that columns have beside each other.
MAX_SPANNING, MIN_BESIDE = 0.5, 0.3
TOLERANCE = 2.0  # points by which blocks may overlap a cut


def reading_order(blocks: Sequence[Block]) -> list[Block]:
    """Return blocks in the order in which they are read."""
    if len(blocks) <= 1:
        return list(blocks)
    gutter = find_gutter(blocks)
    if gutter is None:
        return by_bands(blocks)
    spanning = sorted((block for block in blocks if is_spanning(block, gutter)), key=lambda block: block.y0)
    rest = [block for block in blocks if not is_spanning(block, gutter)]
    ordered: list[Block] = []
    for divider in spanning:
        middle = (divider.y0 + divider.y1) / 2
        above = [block for block in rest if (block.y0 + block.y1) / 2 < middle]
        rest = [block for block in rest if (block.y0 + block.y1) / 2 >= middle]
        ordered += [*columns(above, gutter), divider]
    return ordered + columns(rest, gutter)


def columns(blocks: Sequence[Block], gutter: float) -> list[Block]:
    left = [block for block in blocks if (block.x0 + block.x1) / 2 < gutter]
    right = [block for block in blocks if (block.x0 + block.x1) / 2 >= gutter]
    return reading_order(left) + reading_order(right)


def is_spanning(block: Area, x: float) -> bool:
    return block.x0 + TOLERANCE < x < block.x1 - TOLERANCE


def find_gutter(blocks: Sequence[Area]) -> float | None:
    """Return the x-coordinate of the vertical gap that the fewest blocks span, or None.

    Blocks on its two sides must be beside each other.
    """
    edges = sorted({block.x1 for block in blocks})
    best: tuple[int, float, float] | None = None
    for edge in edges[:-1]:
        x = next_gap(blocks, edge)
        if x is None:
            continue
        spanning = sum(is_spanning(block, x) for block in blocks)
        if spanning > MAX_SPANNING * len(blocks) or (spanning and not are_columns(blocks, x)):
            continue
        beside = height_beside(blocks, x)
        if beside > 0 and (best is None or (spanning, -beside) < best[:2]):
            best = (spanning, -beside, x)
    return best[2] if best else None


def next_gap(blocks: Sequence[Area], edge: float) -> float | None:
    """Return the middle of the gap that begins at the right edge of a block, or None."""
    starts = [block.x0 for block in blocks if block.x0 >= edge - TOLERANCE]
    return (edge + min(starts)) / 2 if starts else None


def are_columns(blocks: Sequence[Area], x: float) -> bool:
    """Return whether there is at least one block on each side that is as high as several lines or has others below."""
    left = [block for block in blocks if block.x1 <= x + TOLERANCE]
    right = [block for block in blocks if block.x0 >= x - TOLERANCE]
    return bool(left and right)


def height_beside(blocks: Sequence[Area], x: float) -> float:
    """Return the height that blocks on both sides of a gutter share, or 0 if it is small."""
    left = [block for block in blocks if block.x1 <= x + TOLERANCE and not is_spanning(block, x)]
    right = [block for block in blocks if block.x0 >= x - TOLERANCE and not is_spanning(block, x)]
    shared = sum(max(0.0, min(one.y1, other.y1) - max(one.y0, other.y0)) for one in left for other in right)
    heights = [sum(block.y1 - block.y0 for block in side) for side in (left, right)]
    return shared if shared > MIN_BESIDE * min(heights) else 0.0


def by_bands(blocks: Sequence[Block]) -> list[Block]:
    """Return blocks from top to bottom. Blocks beside each other are ordered on their own."""
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
