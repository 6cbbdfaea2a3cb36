"""Limits and pages, which the readers of PDFs and images share."""

from collections.abc import Callable
from dataclasses import dataclass, field
from math import sqrt
from typing import Any

from etl.providers.local.boxes import Box

# Maximum size of a page for recognition, in pixels. Larger images need time and memory without better results.
LONG_SIDE, SHORT_SIDE = 1600, 1132
# A strip, such as a receipt, is recognized in pieces, and may be longer.
STRIP, LONGEST_STRIP = 2.2, 12_000


@dataclass(frozen=True, slots=True, kw_only=True)
class DocumentLimits:
    """`pages` of a document, `pixels` of an image or page, `text`: bytes of all the text together."""

    pages: int
    pixels: int
    text: int


@dataclass(slots=True, kw_only=True)
class LocalPage:
    """A page before recognition. `draw` returns its pixels as an array of rows of BGR.

    `parts`: the words of the text layer, one list for each text direction. `scan`: whether the page needs recognition;
    `hidden`: whether it contains invisible words; `body`: the type size of body text.
    """

    draw: Callable[[], Any]
    scan: bool
    parts: list[list[Box]] = field(default_factory=list)
    body: float = 0.0
    width: float = 0.0
    hidden: bool = False


def clamped(wide: float, high: float, pixels: int) -> float:
    """Return the scale, at most 1, for a page before recognition."""
    long, short = max(wide, high, 1), max(min(wide, high), 1)
    strip = min(SHORT_SIDE / short, LONGEST_STRIP / long)
    bound = strip if long > STRIP * short else LONG_SIDE / long
    return min(1.0, bound, sqrt(pixels / (long * short)))
