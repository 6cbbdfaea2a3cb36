"""Layout analysis: converts the text boxes of a page to Markdown with columns, tables, headings, and paragraphs.

No text is omitted or invented. Where the positions of words show no structure, lines of text are kept.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from statistics import median

from etl.providers.local.boxes import Box, Row, body_size, group_rows, is_wide, join_lines
from etl.providers.local.tables import find_table

# Minimum type size of headings, as a multiple of the size of body text, with the Markdown prefix of their level.
HEADINGS = ((1.5, "#"), (1.2, "##"))
MAX_HEADING_LENGTH, MAX_HEADING_LINES = 200, 3  # length in characters
# Range of the ratio of type sizes between consecutive lines of a paragraph.
SIZE_RATIO = (0.83, 1.2)
BULLET = re.compile(r"[•‣◦▪●∙·]\s*(?=\S)")
LIST_ITEM = re.compile(r"(?:[-–*]|\d{1,3}[.)]|[a-zA-Z][.)])\s|[•‣◦▪●∙·]")
# If the longest line of a paragraph fills this share of the column, its lines are taken to wrap at that line's end.
FULL_WIDTH = 0.85
# Text that ends before this share of the page's width does not extend to the right margin.
NARROW_WIDTH = 0.6
# Columns of prose: minimum lines, median letters of a line, and median share of the column's width that a line fills.
MIN_COLUMN_LINES, MIN_COLUMN_LETTERS, MIN_COLUMN_FILL = 6, 24, 0.7


def to_markdown(boxes: list[Box], *, body: float = 0.0, width: float = 0.0) -> str:
    """Return the text of a page as Markdown.

    `body`: the type size of body text, if it is known from other pages; `width`: the page's.
    """
    cells = [cell for row in group_rows(boxes) for cell in row]
    body = body or body_size(cells)
    columns = split_columns(cells)
    # On a page where all lines are short, their line breaks are intended.
    is_narrow = len(columns) == 1 and max(cell.x1 for cell in cells) < NARROW_WIDTH * width
    right = width if is_narrow else 0.0
    return "\n\n".join(block for column in columns for block in blocks(group_rows(column), body, right))


# ---- Columns --------------------------------------------------------------------------------------------------------
def split_columns(cells: list[Box]) -> list[list[Box]]:
    """Return the cells in reading order: columns of prose one after the other, with cells that span them between."""
    gutter = find_gutter(cells)
    if gutter is None:
        return [cells] if cells else []
    spanning = sorted((cell for cell in cells if cell.x0 < gutter < cell.x1), key=lambda cell: cell.middle)
    rest = [cell for cell in cells if not cell.x0 < gutter < cell.x1]
    parts: list[list[Box]] = []
    for cell in spanning:
        above = [other for other in rest if other.middle < cell.middle]
        rest = [other for other in rest if other.middle >= cell.middle]
        parts += split_at(gutter, above)
        if above or not parts:
            parts.append([])
        parts[-1].append(cell)
    return parts + split_at(gutter, rest)


def split_at(gutter: float, cells: list[Box]) -> list[list[Box]]:
    left = [cell for cell in cells if cell.x1 <= gutter]
    right = [cell for cell in cells if cell.x0 >= gutter]
    return [*split_columns(left), *split_columns(right)]


def find_gutter(cells: list[Box]) -> float | None:
    """Return the x-coordinate between two columns of prose, or None if there is one column."""
    if len(cells) < 2 * MIN_COLUMN_LINES:
        return None
    x0, x1 = min(cell.x0 for cell in cells), max(cell.x1 for cell in cells)
    if median(cell.width for cell in cells) > 0.6 * (x1 - x0):
        return None
    candidates = [x0 + (x1 - x0) * percent / 100 for percent in range(20, 81)]
    crossings = [sum(cell.x0 < x < cell.x1 for cell in cells) for x in candidates]
    best = [x for x, count in zip(candidates, crossings, strict=True) if count == min(crossings)]
    gutter = best[len(best) // 2]
    left = [cell for cell in cells if cell.x1 <= gutter]
    right = [cell for cell in cells if cell.x0 >= gutter]
    return gutter if is_prose(left) and is_prose(right) and min(crossings) < len(left) + len(right) else None


def is_prose(cells: list[Box]) -> bool:
    """Return whether the lines of a column are many and fill it. Those of a table are few or short."""
    if len(cells) < MIN_COLUMN_LINES:
        return False
    width = max(cell.x1 for cell in cells) - min(cell.x0 for cell in cells)
    letters = median(sum(1 + is_wide(letter) for letter in cell.text) for cell in cells)
    return letters >= MIN_COLUMN_LETTERS and median(cell.width for cell in cells) >= MIN_COLUMN_FILL * width


# ---- Blocks ---------------------------------------------------------------------------------------------------------
@dataclass(slots=True)
class Metrics:
    """Measurements of a column. `step`: the line spacing in a paragraph; `body`: the type size of body text."""

    left: float
    right: float
    step: float
    body: float


def measure(rows: list[Row], body: float, right: float) -> Metrics:
    size = body_size(cell for row in rows for cell in row)
    steps = sorted(below[0].middle - above[0].middle for above, below in pairwise(rows))
    # A low percentile, not the median: most steps may be between paragraphs.
    plausible = [step for step in steps if 0.9 * size < step < 3 * size]
    return Metrics(
        left=min(row[0].x0 for row in rows),
        right=max(right, *(row[-1].x1 for row in rows)),
        step=plausible[len(plausible) // 10] if plausible else 1.3 * size,
        body=body,
    )


def blocks(rows: list[Row], body: float, right: float) -> Iterator[str]:
    """Yield tables, headings, and paragraphs from top to bottom.

    `right`: the right edge of the column, if it is beyond its text.
    """
    metrics = measure(rows, body, right)
    lines: list[Box] = []
    index = 0
    while index < len(rows):
        table = find_table(rows, index)
        if table:
            yield from paragraphs(lines, metrics)
            lines = []
            yield table.markdown()
        else:
            lines.append(join_cells(rows[index]))
        index += table.row_count if table else 1
    yield from paragraphs(lines, metrics)


def join_cells(row: Row) -> Box:
    """Return a row outside tables as one line."""
    return Box(
        text=" ".join(cell.text for cell in row),
        x0=row[0].x0,
        y0=min(cell.y0 for cell in row),
        x1=row[-1].x1,
        y1=max(cell.y1 for cell in row),
        size=max(cell.size for cell in row),
        bold=all(cell.bold for cell in row),
    )


def paragraphs(lines: list[Box], metrics: Metrics) -> Iterator[str]:
    paragraph: list[Box] = []
    for line in lines:
        if paragraph and starts_paragraph(line, paragraph, metrics):
            yield render_paragraph(paragraph, metrics)
            paragraph = []
        paragraph.append(line)
    if paragraph:
        yield render_paragraph(paragraph, metrics)


def starts_paragraph(line: Box, paragraph: list[Box], metrics: Metrics) -> bool:
    last = paragraph[-1]
    step = line.middle - last.middle
    return (
        step > 1.35 * metrics.step
        or not SIZE_RATIO[0] < line.size / last.size < SIZE_RATIO[1]
        or line.bold != last.bold
        or (line.x0 - last.x0 > 1.5 * line.size and last.x0 - paragraph[0].x0 < line.size)
    )


def render_paragraph(lines: list[Box], metrics: Metrics) -> str:
    """Return a heading, or a paragraph with its lines joined where they wrap."""
    prefix = heading_prefix(lines, metrics.body)
    if prefix:
        return f"{prefix} {' '.join(line.text for line in lines)}"
    text = ""
    right = max(line.x1 for line in lines)
    if right - metrics.left < FULL_WIDTH * (metrics.right - metrics.left):
        right = metrics.right
    for before, line in zip([None, *lines], lines, strict=False):
        wraps = before is not None and is_full(before, line, right) and not LIST_ITEM.match(line.text)
        text = join_lines(text, line.text) if wraps else f"{text}\n{BULLET.sub('- ', line.text, count=1)}"
    return text.strip()


def heading_prefix(lines: list[Box], body: float) -> str:
    """Return the Markdown prefix of a heading, or "" for a paragraph."""
    text = " ".join(line.text for line in lines)
    if not body or len(text) > MAX_HEADING_LENGTH or len(lines) > MAX_HEADING_LINES:
        return ""
    ratio = min(line.size for line in lines) / body
    for min_ratio, prefix in HEADINGS:
        if ratio >= min_ratio:
            return prefix
    is_bold_title = len(lines) == 1 and lines[0].bold and text[-1:].isalpha()
    return "###" if is_bold_title else ""


def is_full(before: Box, line: Box, right: float) -> bool:
    """Return whether a line wrapped because the next word did not fit. Otherwise, its line break is intended."""
    word = line.text.split(" ", 1)[0]
    letters = 2 if is_wide(word[0]) else len(word) + 1  # wide scripts can break after any character
    return before.x1 + line.width * letters / len(line.text) > right
