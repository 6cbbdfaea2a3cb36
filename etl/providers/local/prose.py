"""Paragraphs, headings, and lists from lines of text."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import reduce
from itertools import pairwise

from etl.providers.local.boxes import Box, body_size, is_wide, join_lines

# Minimum type size of headings, as a multiple of the size of body text, and the Markdown prefix of their level.
HEADINGS = ((1.5, "#"), (1.2, "##"))
MAX_HEADING_LENGTH, MAX_HEADING_LINES = 200, 3  # length in characters
# Range of the ratio of type sizes between consecutive lines of a paragraph.
SIZE_RATIO = (0.83, 1.2)
BULLET = re.compile(r"[•‣◦▪●∙·]\s*(?=\S)")
LIST_ITEM = re.compile(r"(?:[-–*]|\d{1,3}[.)]|[a-zA-Z][.)])\s|[•‣◦▪●∙·]")
# If the longest line of a paragraph fills this share of the column, its end is the right margin of the paragraph.
FULL_WIDTH = 0.85


@dataclass(slots=True)
class Metrics:
    """Measurements of a column. `step`: the line spacing in a paragraph; `body`: the type size of body text."""

    left: float
    right: float
    step: float
    body: float


@dataclass(slots=True, kw_only=True)
class Paragraph:
    """A paragraph, heading, or list item, with its lines. `kind`: `text`, `title`, or `list`."""

    kind: str
    text: str
    lines: list[Box]


def measure(lines: list[Box], body: float, right: float) -> Metrics:
    size = body_size(lines)
    steps = sorted(below.middle - above.middle for above, below in pairwise(lines))
    # A low percentile instead of the median, because most steps may be between paragraphs.
    plausible = [step for step in steps if 0.9 * size < step < 3 * size]
    return Metrics(
        left=min(line.x0 for line in lines),
        right=max(right, *(line.x1 for line in lines)),
        step=plausible[len(plausible) // 10] if plausible else 1.3 * size,
        body=body,
    )


def paragraphs(lines: list[Box], *, body: float, right: float, is_title: bool) -> Iterator[Paragraph]:
    """Yield the paragraphs of a column, from its lines in order from top to bottom.

    `right`: the right edge of the column, if it is beyond the text. `is_title`: whether the lines are known headings.
    """
    metrics = measure(lines, body, right)
    paragraph: list[Box] = []
    for line in lines:
        if paragraph and starts_paragraph(line, paragraph, metrics):
            yield render(paragraph, metrics, is_title=is_title)
            paragraph = []
        paragraph.append(line)
    yield render(paragraph, metrics, is_title=is_title)


def starts_paragraph(line: Box, paragraph: list[Box], metrics: Metrics) -> bool:
    last = paragraph[-1]
    step = line.middle - last.middle
    return (
        step > 1.35 * metrics.step
        or not SIZE_RATIO[0] < line.size / last.size < SIZE_RATIO[1]
        or line.bold != last.bold
        or (line.x0 - last.x0 > 1.5 * line.size and last.x0 - paragraph[0].x0 < line.size)
    )


def render(lines: list[Box], metrics: Metrics, *, is_title: bool) -> Paragraph:
    """Return a heading, or a paragraph with its lines joined where they wrap."""
    prefix = heading_prefix(lines, metrics.body, is_title=is_title)
    if prefix:
        text = reduce(join_lines, [line.text for line in lines])
        return Paragraph(kind="title", text=f"{prefix} {text}", lines=lines)
    text = ""
    right = max(line.x1 for line in lines)
    if right - metrics.left < FULL_WIDTH * (metrics.right - metrics.left):
        right = metrics.right
    for before, line in zip([None, *lines], lines, strict=False):
        wraps = before is not None and is_full(before, line, right) and not LIST_ITEM.match(line.text)
        text = join_lines(text, line.text) if wraps else f"{text}\n{BULLET.sub('- ', line.text, count=1)}"
    text = text.strip()
    is_list = bool(LIST_ITEM.match(text))
    return Paragraph(kind="list" if is_list else "text", text=text, lines=lines)


def heading_prefix(lines: list[Box], body: float, *, is_title: bool) -> str:
    """Return the Markdown prefix of a heading, or "" for a paragraph."""
    text = " ".join(line.text for line in lines)
    if not body or len(text) > MAX_HEADING_LENGTH or len(lines) > MAX_HEADING_LINES or not text.strip("0123456789.,- "):
        return ""
    ratio = min(line.size for line in lines) / body
    for min_ratio, prefix in HEADINGS:
        if ratio >= min_ratio:
            return prefix
    is_bold_title = len(lines) == 1 and lines[0].bold and text[-1:].isalpha()
    return "###" if is_bold_title or (is_title and text[-1:] not in ",;") else ""


def is_full(before: Box, line: Box, right: float) -> bool:
    """Return whether the line `before` wrapped because the next word did not fit. Otherwise, its break is intended."""
    word = line.text.split(" ", 1)[0]
    letters = 2 if is_wide(word[0]) else len(word) + 1  # wide scripts can break after any character
    return before.x1 + line.width * letters / len(line.text) > right
