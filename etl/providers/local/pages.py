"""What the readers of the kinds of documents have in common: bounds, and a page that is half read."""

from collections.abc import Callable
from dataclasses import dataclass, field
from math import sqrt
from typing import Any

from etl.providers.local.boxes import Box

# A page is recognised at most so large, in pixels. More costs time and memory, and reads no better.
LONG_SIDE, SHORT_SIDE = 1600, 1132
# A strip, such as a receipt, is recognised in pieces, and may be longer.
STRIP, LONGEST_STRIP = 2.2, 12_000


@dataclass(frozen=True, slots=True, kw_only=True)
class DocumentLimits:
    """`pages` of a document, `pixels` of an image or page, `text`: bytes of all the text together."""

    pages: int
    pixels: int
    text: int


@dataclass(slots=True, kw_only=True)
class LocalPage:
    """A page as its file has it. `draw` gives its pixels, as an array of rows of BGR, for recognition.

    `parts`: the words of the text layer, apart for each direction that they run in. `scan`: whether to recognise it;
    `hidden`: whether there are words on it that people do not see; `body`: the size of the usual text.
    """

    draw: Callable[[], Any]
    scan: bool
    parts: list[list[Box]] = field(default_factory=list)
    body: float = 0.0
    width: float = 0.0
    hidden: bool = False


def clamped(wide: float, high: float, pixels: int) -> float:
    """Return the factor, at most 1, by which to shrink a page before it is recognised."""
    long, short = max(wide, high, 1), max(min(wide, high), 1)
    strip = min(SHORT_SIDE / short, LONGEST_STRIP / long)
    bound = strip if long > STRIP * short else LONG_SIDE / long
    return min(1.0, bound, sqrt(pixels / (long * short)))
