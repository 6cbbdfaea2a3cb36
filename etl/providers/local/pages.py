"""Limits and page types that the readers of PDFs and images share."""

from collections.abc import Callable
from dataclasses import dataclass, field
from math import sqrt
from typing import Any

from etl.providers.local.boxes import Box

# Maximum size of a page for OCR, in pixels. Larger images need time and memory without better results.
MAX_LONG_SIDE, MAX_SHORT_SIDE = 1600, 1132
# A strip, such as a receipt, has more than this ratio of sides. It may be longer, because it is recognized in parts.
STRIP_RATIO, MAX_STRIP_LENGTH = 2.2, 12_000


@dataclass(frozen=True, slots=True, kw_only=True)
class DocumentLimits:
    """The maximum pages of a document, pixels of an image or page, and bytes of a document's text."""

    pages: int
    pixels: int
    text: int


@dataclass(slots=True, kw_only=True)
class Part:
    """The words of a page in one text direction, upright after the page is turned clockwise by `turn` degrees."""

    turn: int = 0
    boxes: list[Box]


@dataclass(slots=True, kw_only=True)
class LocalPage:
    """A page before OCR.

    - `render` returns an array of rows of BGR pixels for OCR. `picture`, which image files do not have, returns one for
      layout analysis.
    - `parts`: the words of the text layer by text direction.
    - `needs_ocr`: whether the text layer is missing or unusable.
    - `hidden`: whether the text layer contains invisible words.
    - `body`: the type size of body text, or 0 if it is unknown.
    - `width` and `height`: in points, or 0 if they are unknown.
    """

    render: Callable[[], Any]
    needs_ocr: bool
    picture: Callable[[], Any] | None = None
    parts: list[Part] = field(default_factory=list)
    body: float = 0.0
    width: float = 0.0
    height: float = 0.0
    hidden: bool = False
    # Large images without words of the text layer on them, in points from the top left: x0, y0, x1, y1.
    images: list[tuple[float, float, float, float]] = field(default_factory=list)


def scale_for_ocr(width: float, height: float, max_pixels: int) -> float:
    """Return the factor, at most 1, by which a page is scaled before OCR. Sizes are in pixels."""
    long, short = max(width, height, 1), max(min(width, height), 1)
    strip_scale = min(MAX_SHORT_SIDE / short, MAX_STRIP_LENGTH / long)
    scale = strip_scale if long > STRIP_RATIO * short else MAX_LONG_SIDE / long
    return min(1.0, scale, sqrt(max_pixels / (long * short)))
