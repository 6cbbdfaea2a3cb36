"""Layout analysis: from the text boxes of a page to blocks of Markdown in reading order.

A layout model finds regions. Ruling lines and aligned words indicate tables. No text is omitted or invented. Text
without a recognized structure stays as lines.
"""

from dataclasses import dataclass, field, replace
from itertools import accumulate
from statistics import median

from etl.providers.local.boxes import (
    Area,
    Box,
    Words,
    body_size,
    bounds,
    group_words,
    is_right_to_left,
    join_words,
    mirror,
    overlap,
)
from etl.providers.local.layout_model import Region
from etl.providers.local.office.markdown import full_table
from etl.providers.local.order import reading_order
from etl.providers.local.prose import paragraphs
from etl.providers.local.rulings import Rulings
from etl.providers.local.tables.alignment import aligned_tables
from etl.providers.local.tables.table import Table, build

# Lines that end before this share of the page's width do not reach the right margin.
NARROW_WIDTH = 0.6
# Minimum score of a text region, and the score from which aligned words in it are not a table. Regions of tables have
# only the model's own minimum score.
MIN_TEXT_SCORE, CERTAIN_TEXT_SCORE = 0.5, 0.9
# Minimum share of a cell or area inside a region.
MIN_INSIDE = 0.6
# One-column prose: minimum share of rows with a single cell, and their minimum median width as a share of the widest.
PLAIN_ROWS, PLAIN_WIDTH = 0.95, 0.6
MIN_PLAIN_ROWS = 4
MAX_LINE_GAP = 0.9  # between lines of a text, in type sizes


@dataclass(slots=True, kw_only=True)
class PageGeometry:
    """The size, regions, and ruling lines of a page. `body`: the type size of body text, or 0 if it is unknown."""

    width: float = 0.0
    height: float = 0.0
    body: float = 0.0
    regions: list[Region] = field(default_factory=list)
    rulings: Rulings = field(default_factory=Rulings)


@dataclass(slots=True, kw_only=True)
class Block:
    """A part of a page. `kind`: one of BLOCK_KINDS. `text`: Markdown. `lines`: the number of printed lines."""

    kind: str
    text: str
    x0: float
    y0: float
    x1: float
    y1: float
    lines: int = 1
    left_out: bool = False  # omitted from the running text


def is_plain_prose(boxes: list[Box]) -> bool:
    """Return whether a page is prose in one column, so that layout analysis does not need its picture."""
    rows = group_words(boxes)
    if len(rows) < MIN_PLAIN_ROWS:
        return len(rows) == 0
    single = [row[0] for row in rows if len(row) == 1]
    if len(single) < PLAIN_ROWS * len(rows):
        return False
    widths = [words[-1].x1 - words[0].x0 for words in single]
    return median(widths) >= PLAIN_WIDTH * max(widths)


def analyze(boxes: list[Box], geometry: PageGeometry) -> list[Block]:
    """Return the blocks of a page in reading order."""
    if not is_right_to_left(boxes):
        return find_blocks(boxes, geometry)
    width = geometry.width or max(box.x1 for box in boxes)
    boxes = [replace(box, mirrored=True) for box in boxes]  # copies: the lines of the page share the boxes
    rulings = geometry.rulings
    for areas in (boxes, geometry.regions, rulings.horizontal, rulings.vertical, rulings.edges):
        mirror(areas, width)
    blocks = find_blocks(boxes, geometry)
    mirror(blocks, width)
    return blocks


def find_blocks(boxes: list[Box], geometry: PageGeometry) -> list[Block]:
    rows = group_words(boxes)
    geometry.body = geometry.body or body_size(join_words(cell) for row in rows for cell in row)
    found, rest = find_tables(rows, geometry)
    units = [*(Unit.of([block]) for block in found), *find_texts(rest, geometry)]
    return [block for unit in reading_order(units) for block in unit.blocks]


@dataclass(slots=True, kw_only=True)
class Unit:
    """Blocks that are read together, such as the blocks of a region."""

    blocks: list[Block]
    x0: float
    y0: float
    x1: float
    y1: float

    @classmethod
    def of(cls, blocks: list[Block]) -> "Unit":
        x0, y0, x1, y1 = bounds(blocks)
        return cls(blocks=blocks, x0=x0, y0=y0, x1=x1, y1=y1)


# ---- Tables ---------------------------------------------------------------------------------------------------------
def find_tables(rows: list[list[Words]], geometry: PageGeometry) -> tuple[list[Block], list[list[Words]]]:
    """Return the tables, and the rows of cells outside of tables."""
    blocks = []
    for area in table_areas(rows, geometry):
        inside = [word for row in rows for cell in row for word in cell if is_inside(word, area)]
        table = build(inside, geometry.rulings.inside(area)) if inside else None
        if table is None or is_frame(table):
            continue
        blocks.append(
            Block(
                kind="table", text=full_table(table.cells), x0=table.x0, y0=table.y0, x1=table.x1, y1=table.y1,
                lines=len(table.cells),
            )
        )  # fmt: skip
        taken = set(map(id, table.boxes))
        rows = [[[word for word in cell if id(word) not in taken] for cell in row] for row in rows]
        rows = [[cell for cell in row if cell] for row in rows]
    return blocks, [row for row in rows if row]


def table_areas(rows: list[list[Words]], geometry: PageGeometry) -> list[Region]:
    """Return the areas that may be tables, according to the model, ruling lines, and aligned rows."""
    joined = [[join_words(cell) for cell in row] for row in rows]
    areas = [region for region in geometry.regions if region.kind == "table"]
    areas += [rectangle(grid) for grid in geometry.rulings.grids()]
    prose = [region for region in geometry.regions if region.kind == "text" and region.score > CERTAIN_TEXT_SCORE]
    for table in aligned_tables(joined):
        area = rectangle(table.area())
        if table.has_amounts() or not (
            is_beside_prose(area, areas, prose)
            or sum(overlap(area, region) for region in prose) >= MIN_INSIDE * area.area
        ):
            areas.append(area)
    return merge_areas(areas)


def is_beside_prose(area: Region, known: list[Region], prose: list[Region]) -> bool:
    """Return whether aligned rows only combine a known table with a column of prose beside it."""
    inside = [table for table in known if overlap(table, area) > MIN_INSIDE * table.area]
    texts = [text for text in prose if min(text.x1, area.x1) - max(text.x0, area.x0) > MIN_INSIDE * (text.x1 - text.x0)]
    return any(
        (text.x1 < table.x0 or table.x1 < text.x0)
        and min(text.y1, table.y1) - max(text.y0, table.y0) > MIN_INSIDE * min(text.y1 - text.y0, table.y1 - table.y0)
        for text in texts for table in inside
    )  # fmt: skip


def rectangle(area: tuple[float, float, float, float]) -> Region:
    return Region(kind="table", score=1.0, x0=area[0], y0=area[1], x1=area[2], y1=area[3])


def merge_areas(areas: list[Region]) -> list[Region]:
    """Merge areas that overlap by more than half of the smaller one."""
    merged: list[Region] = []
    for area in areas:
        near = [other for other in merged if overlap(area, other) > 0.5 * min(area.area, other.area)]
        merged = [other for other in merged if other not in near]
        merged.append(rectangle(bounds([area, *near])))
    return merged


def is_inside(word: Area, area: Area) -> bool:
    x, y = (word.x0 + word.x1) / 2, (word.y0 + word.y1) / 2
    return area.x0 - 2 <= x <= area.x1 + 2 and area.y0 - 2 <= y <= area.y1 + 2


def is_frame(table: Table) -> bool:
    """Return whether most of the text is in one cell, so that the ruling lines are only a frame around it."""
    lengths = [len(cell) for row in table.cells for cell in row]
    return max(lengths) > 0.6 * sum(lengths) and max(lengths) > 100  # noqa: PLR2004 - a long cell of a small table


# ---- Texts ----------------------------------------------------------------------------------------------------------
def find_texts(rows: list[list[Words]], geometry: PageGeometry) -> list[Unit]:
    """Return the paragraphs inside and outside of regions."""
    regions = [region for region in geometry.regions if region.kind != "table" and region.score >= MIN_TEXT_SCORE]
    inside: dict[int, Words] = {}
    outside: Words = []
    for row in rows:
        for cell in join_labels(row):
            for part, region in assign(cell, regions):
                if region is None:
                    outside += part
                else:
                    inside.setdefault(region, []).extend(part)
    units = [to_unit(words, geometry, regions[index].kind) for index, words in inside.items()]
    return units + [to_unit(words, geometry, "") for words in cluster_words(outside)]


def join_labels(row: list[Words]) -> list[Words]:
    """Join labels that end with a colon with their values in a row of cells."""
    joined: list[Words] = []
    for cell in row:
        if joined and (joined[-1][-1].text.endswith(":") or cell[0].text.startswith(":")):
            joined[-1] = [*joined[-1], *cell]
        else:
            joined.append(cell)
    return joined


def assign(cell: Words, regions: list[Region]) -> list[tuple[Words, int | None]]:
    """Return the words of a cell, with the index of the region that contains most of them, or None.

    A cell that touches several regions is split between them, because their columns are close together.
    """
    whole = rectangle(bounds(cell))
    shares = [overlap(whole, region) for region in regions]
    touched = [index for index, share in enumerate(shares) if share > 0.1 * whole.area]
    if len(touched) <= 1:
        index = touched[0] if touched and shares[touched[0]] > MIN_INSIDE * whole.area else None
        return [(cell, index)]
    parts: list[tuple[Words, int | None]] = []
    for word in cell:
        index = max(touched, key=lambda each: (overlap(word, regions[each]), -distance(word, regions[each])))
        if parts and parts[-1][1] == index:
            parts[-1][0].append(word)
        else:
            parts.append(([word], index))
    return parts


def distance(word: Area, region: Area) -> float:
    middle = (word.x0 + word.x1) / 2
    return max(0.0, region.x0 - middle, middle - region.x1)


def cluster_words(words: Words) -> list[Words]:
    """Group words outside of regions: consecutive lines, with their neighbors in the same row."""
    groups: list[list[tuple[Words, Box]]] = []
    near: list[list[tuple[Words, Box]]] = []  # groups that the next lines may continue
    lines = [(cell, join_words(cell)) for row in group_words(words) for cell in row]
    tops = list(accumulate((line.y0 for _, line in reversed(lines)), min))[::-1]  # of a line and all after it
    reach = MAX_LINE_GAP * max((line.size for _, line in lines), default=0.0)
    for (cell, line), top in zip(lines, tops, strict=True):
        near = [group for group in near if top < reach + max(other.y1 for _, other in group[-3:])]
        found = next((group for group in near if any(is_below(line, other) for _, other in group[-3:])), None)
        if found is None:
            groups.append(found := [])
            near.append(found)
        found.append((cell, line))
    cells = [[cell for cell, _ in group] for group in groups]
    return [[word for cell in group for word in cell] for group in join_single_rows(cells)]


def is_below(line: Box, above: Box) -> bool:
    size = max(line.size, above.size)
    shared = min(line.x1, above.x1) - max(line.x0, above.x0)
    return (
        -0.5 * size < line.y0 - above.y1 < MAX_LINE_GAP * size
        and shared > 0.3 * min(line.width, above.width)
        and abs(line.middle - above.middle) > 0.5 * size
    )


def join_single_rows(groups: list[list[Words]]) -> list[list[Words]]:
    """Join single-line groups in the same row, such as a label and its value."""
    joined: list[list[Words]] = []
    for group in groups:
        last = joined[-1] if joined else None
        if last and len(group) == 1 and all(is_beside(group[0], cell) for cell in last):
            last += group
        else:
            joined.append(list(group))
    return joined


def is_beside(cell: Words, other: Words) -> bool:
    return abs(cell[0].middle - other[0].middle) < 0.5 * min(cell[0].size, other[0].size)


def to_unit(words: Words, geometry: PageGeometry, kind: str) -> Unit:
    rows = group_words(words)
    lines = [join_words([word for cell in row for word in cell]) for row in rows]
    right = 0.0
    if not kind and geometry.width and max(line.x1 for line in lines) < NARROW_WIDTH * geometry.width:
        right = geometry.width  # if all lines are short, their line breaks are intended
    blocks = []
    for paragraph in paragraphs(lines, body=geometry.body, right=right, is_title=kind == "title"):
        x0, y0, x1, y1 = bounds(paragraph.lines)
        own = kind if kind in {"header", "footer", "caption", "figure"} else paragraph.kind
        blocks.append(Block(kind=own, text=paragraph.text, x0=x0, y0=y0, x1=x1, y1=y1, lines=len(paragraph.lines)))
    return Unit.of(blocks)
