"""Makes Markdown of the boxes of a page: the order to read them in, tables, headings, paragraphs.

No text is omitted or invented. Where the positions of words show no structure, lines of text are kept.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from statistics import median

from etl.providers.local.boxes import Box, Row, body_size, glued, is_wide, rows_of
from etl.providers.local.tables import table_at

# How much larger than the text around it type must be to be a heading, of the first level first.
HEADINGS = ((1.5, "#"), (1.2, "##"))
LONGEST_HEADING, HEADING_LINES = 200, 3  # characters
# Lines whose sizes differ by more are not of one paragraph.
ALIKE = (0.83, 1.2)
BULLET = re.compile(r"[•‣◦▪●∙·]\s*(?=\S)")
ITEM = re.compile(r"(?:[-–*]|\d{1,3}[.)]|[a-zA-Z][.)])\s|[•‣◦▪●∙·]")
# A paragraph whose longest line takes this share of the column's width is as wide as it wants to be.
WIDE = 0.85
# Text that takes less than this share of a page's width does not reach its right edge.
NARROW = 0.6
# Columns of text: how many lines each has at least, how many letters the usual one, and how much of the width it fills.
COLUMN_LINES, COLUMN_LETTERS = 6, 24
COLUMN_FILLED = 0.7


def markdown(boxes: list[Box], *, body: float = 0.0, width: float = 0.0) -> str:
    """Return a page's text.

    `body`: the size of its usual text, where that is known from other pages too. `width`: the page's.
    """
    cells = [cell for row in rows_of(boxes) for cell in row]
    body = body or body_size(cells)
    found = columns(cells)
    # A page of short lines has lines that are meant to be short.
    short = len(found) == 1 and max(cell.x1 for cell in cells) < NARROW * width
    right = width if short else 0.0
    return "\n\n".join(block for column in found for block in blocks(rows_of(column), body, right))


# ---- Columns --------------------------------------------------------------------------------------------------------
def columns(cells: list[Box]) -> list[list[Box]]:
    """Return the cells in the order to read them: columns of prose one after the other, and what spans them between."""
    gutter = gutter_of(cells)
    if gutter is None:
        return [cells] if cells else []
    across = sorted((cell for cell in cells if cell.x0 < gutter < cell.x1), key=lambda cell: cell.middle)
    rest = [cell for cell in cells if not cell.x0 < gutter < cell.x1]
    parts: list[list[Box]] = []
    for cell in across:
        above = [other for other in rest if other.middle < cell.middle]
        rest = [other for other in rest if other.middle >= cell.middle]
        parts += side_by_side(above, gutter)
        if above or not parts:
            parts.append([])
        parts[-1].append(cell)
    return parts + side_by_side(rest, gutter)


def side_by_side(cells: list[Box], gutter: float) -> list[list[Box]]:
    left = [cell for cell in cells if cell.x1 <= gutter]
    right = [cell for cell in cells if cell.x0 >= gutter]
    return [*columns(left), *columns(right)]


def gutter_of(cells: list[Box]) -> float | None:
    """Return where a page divides into columns of prose; None where it does not."""
    if len(cells) < 2 * COLUMN_LINES:
        return None
    x0, x1 = min(cell.x0 for cell in cells), max(cell.x1 for cell in cells)
    if median(cell.width for cell in cells) > 0.6 * (x1 - x0):
        return None
    places = [x0 + (x1 - x0) * share / 100 for share in range(20, 81)]
    crossed = [sum(cell.x0 < place < cell.x1 for cell in cells) for place in places]
    fewest = [place for place, count in zip(places, crossed, strict=True) if count == min(crossed)]
    place = fewest[len(fewest) // 2]
    left = [cell for cell in cells if cell.x1 <= place]
    right = [cell for cell in cells if cell.x0 >= place]
    return place if is_prose(left) and is_prose(right) and min(crossed) < len(left) + len(right) else None


def is_prose(cells: list[Box]) -> bool:
    """Whether a column has lines of text that fill it; those of a table are short, or few."""
    if len(cells) < COLUMN_LINES:
        return False
    width = max(cell.x1 for cell in cells) - min(cell.x0 for cell in cells)
    letters = median(sum(1 + is_wide(letter) for letter in cell.text) for cell in cells)
    return letters >= COLUMN_LETTERS and median(cell.width for cell in cells) >= COLUMN_FILLED * width


# ---- Blocks ---------------------------------------------------------------------------------------------------------
@dataclass(slots=True)
class Measure:
    """A column's: its edges, the step from one line of a paragraph to the next, the size of the page's text."""

    left: float
    right: float
    step: float
    body: float


def measured(rows: list[Row], body: float, right: float) -> Measure:
    size = body_size(cell for row in rows for cell in row)
    steps = sorted(below[0].middle - above[0].middle for above, below in pairwise(rows))
    # The usual step between lines is among the small ones: there may be more paragraphs than lines in them.
    usual = [step for step in steps if 0.9 * size < step < 3 * size]
    return Measure(
        left=min(row[0].x0 for row in rows),
        right=max(right, *(row[-1].x1 for row in rows)),
        step=usual[len(usual) // 10] if usual else 1.3 * size,
        body=body,
    )


def blocks(rows: list[Row], body: float, right: float) -> Iterator[str]:
    """Yield tables, headings, and paragraphs from top to bottom.

    `right`: where the column ends, if not where its text does.
    """
    measure = measured(rows, body, right)
    flow: list[Box] = []
    at = 0
    while at < len(rows):
        table = table_at(rows, at)
        if table:
            yield from flowing(flow, measure)
            flow = []
            yield table.markdown()
        else:
            flow.append(line_of(rows[at]))
        at += table.taken if table else 1
    yield from flowing(flow, measure)


def line_of(row: Row) -> Box:
    """Return a row that is in no table as one line."""
    return Box(
        text=" ".join(cell.text for cell in row),
        x0=row[0].x0,
        y0=min(cell.y0 for cell in row),
        x1=row[-1].x1,
        y1=max(cell.y1 for cell in row),
        size=max(cell.size for cell in row),
        bold=all(cell.bold for cell in row),
    )


def flowing(lines: list[Box], measure: Measure) -> Iterator[str]:
    paragraph: list[Box] = []
    for line in lines:
        if paragraph and begins_paragraph(line, paragraph, measure):
            yield block_of(paragraph, measure)
            paragraph = []
        paragraph.append(line)
    if paragraph:
        yield block_of(paragraph, measure)


def begins_paragraph(line: Box, paragraph: list[Box], measure: Measure) -> bool:
    last = paragraph[-1]
    step = line.middle - last.middle
    return (
        step > 1.35 * measure.step
        or not ALIKE[0] < line.size / last.size < ALIKE[1]
        or line.bold != last.bold
        or (line.x0 - last.x0 > 1.5 * line.size and last.x0 - paragraph[0].x0 < line.size)
    )


def block_of(lines: list[Box], measure: Measure) -> str:
    level = heading(lines, measure.body)
    if level:
        return f"{level} {' '.join(line.text for line in lines)}"
    text = ""
    right = max(line.x1 for line in lines)
    if right - measure.left < WIDE * (measure.right - measure.left):
        right = measure.right
    for before, line in zip([None, *lines], lines, strict=False):
        flows = before is not None and is_full(before, line, right) and not ITEM.match(line.text)
        text = glued(text, line.text) if flows else f"{text}\n{BULLET.sub('- ', line.text, count=1)}"
    return text.strip()


def heading(lines: list[Box], body: float) -> str:
    """Return the mark of a heading's level, or "" for a paragraph."""
    text = " ".join(line.text for line in lines)
    if not body or len(text) > LONGEST_HEADING or len(lines) > HEADING_LINES:
        return ""
    ratio = min(line.size for line in lines) / body
    for least, mark in HEADINGS:
        if ratio >= least:
            return mark
    named = len(lines) == 1 and lines[0].bold and text[-1:].isalpha()
    return "###" if named else ""


def is_full(before: Box, line: Box, right: float) -> bool:
    """Whether a line broke because the next word found no more room; otherwise its end was meant."""
    word = line.text.split(" ", 1)[0]
    letters = 2 if is_wide(word[0]) else len(word) + 1  # those scripts break anywhere
    return before.x1 + line.width * letters / len(line.text) > right
