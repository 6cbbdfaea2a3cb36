"""Text layer of a PDF page: words with their bounding boxes and style.

A page has several thousand characters. They are read by direct ctypes calls of PDFium: 100 pages take half a second.
"""

import ctypes
import re
import sys
from collections import defaultdict
from dataclasses import dataclass
from math import pi
from typing import Any

import pypdfium2.raw as pdfium

from etl.providers.local.boxes import Box
from etl.providers.local.pages import Part

# PDFium's characters for a hyphen at the end of a line. PDFium joins the word with the first word of the next line.
HYPHEN = re.compile("[\x02\ufffe]")
WORD = re.compile("[^\\s\x02\ufffe]+[\x02\ufffe]?")
# Characters that do not occur in readable text: the replacement character, private use, and control characters.
UNREADABLE = re.compile("[\ufffd\ue000-\uf8ff\x00\x01\x03-\x08\x0e-\x1f]")
SAMPLE_STEP = 11  # every 11th character is checked for a missing Unicode mapping
BOLD = re.compile(rb"bold|black|heavy", re.IGNORECASE)
MIN_BOLD_WEIGHT = 600
INVISIBLE = 3  # text rendering mode 3: neither fill nor stroke text. PDF 32000-1:2008, 9.3.6
MIN_WHITE = 250  # of 255, for red, green, and blue
MIN_VISIBLE_HEIGHT = 2.0  # points
SURROGATES = range(0xD800, 0xE000)

Rectangle = tuple[float, float, float, float]


@dataclass(slots=True, kw_only=True)
class Style:
    """The common properties of the characters of a PDF text object.

    `rotation`: the clockwise rotation of the page, in degrees, that makes the characters upright.
    """

    rotation: int
    size: float
    bold: bool
    white: bool
    hidden: bool


class TextLayer:
    """The text layer of a page.

    `read` sets `hidden`, whether the layer has invisible words, and `garbled`, the share of characters without a
    readable Unicode mapping.
    """

    def __init__(self, page: Any) -> None:
        self.page = page
        self.textpage = page.get_textpage()
        self.raw = self.textpage.raw
        self.page_box = page.get_bbox()
        self.area = pdfium.FS_RECTF()
        self.area_pointer = ctypes.byref(self.area)
        self.styles: dict[int, Style] = {}
        self.painted_areas: list[Rectangle] | None = None
        self.hidden = False
        self.garbled = 0.0

    def read(self) -> list[Part]:
        """Return the words, with one part for each text direction. The direction of the page is first."""
        text = self.characters()
        self.garbled = self.garbled_share(text)
        parts: dict[int, list[Box]] = defaultdict(list)
        for order, word in enumerate(WORD.finditer(text)):
            first, last = word.start(), word.end() - 1
            style = self.style(first)
            box = self.box(word.group(), first, last, style)
            box.order, box.spaced = order, self.has_space_before(first, text)
            parts[style.rotation].append(box)
        upright = self.page.get_rotation()
        turns = {(rotation - upright) % 360: words for rotation, words in parts.items()}
        return [Part(turn=turn, boxes=turns[turn]) for turn in sorted(turns)]

    def characters(self) -> str:
        """Return the text. Indexes of characters are the same as PDFium's."""
        count = pdfium.FPDFText_CountChars(self.raw)
        text: str = self.textpage.get_text_range(errors="replace") if count else ""
        # The text of the whole range may omit characters or contain surrogate pairs, which would shift the indexes.
        if len(text) == count:
            return text
        return "".join([to_character(pdfium.FPDFText_GetUnicode(self.raw, index)) for index in range(count)])

    def has_space_before(self, index: int, text: str) -> bool:
        """Return whether a space of the file is before a character. PDFium adds spaces where it measures a gap."""
        return index > 0 and text[index - 1] == " " and pdfium.FPDFText_IsGenerated(self.raw, index - 1) == 0

    def garbled_share(self, text: str) -> float:
        sample = [index for index in range(0, len(text), SAMPLE_STEP) if not text[index].isspace()]
        unmapped = sum(pdfium.FPDFText_HasUnicodeMapError(self.raw, index) == 1 for index in sample)
        letters = max(1, len(text) - text.count(" "))
        return max(float(unmapped) / max(1, len(sample)), len(UNREADABLE.findall(text)) / letters)

    def box(self, text: str, first: int, last: int, style: Style) -> Box:
        x0, y0, x1, y1 = self.character_box(first, style.rotation)
        height = y1 - y0
        if last != first:
            _, top, x1, bottom = self.character_box(last, style.rotation)
            y0, y1 = min(y0, top), max(y1, bottom)
        is_tiny = height < MIN_VISIBLE_HEIGHT
        self.hidden = self.hidden or style.hidden or is_tiny or (style.white and self.has_blank_background(first))
        # The font size excludes scaling by the transformation matrix. If it differs too much, use the height instead.
        size = style.size if 0.4 * height < style.size < 1.6 * height else max(0.1, 0.8 * height)
        return Box(text=HYPHEN.sub("-", text), x0=x0, y0=y0, x1=max(x0, x1), y1=y1, size=size, bold=style.bold)

    def character_box(self, index: int, rotation: int) -> Rectangle:
        """Return a character's bounding box, measured from the top left of the rotated page."""
        pdfium.FPDFText_GetLooseCharBox(self.raw, index, self.area_pointer)
        return to_page(self.area, self.page_box, rotation)

    # ---- Styles -----------------------------------------------------------------------------------------------------
    def style(self, index: int) -> Style:
        text_object = pdfium.FPDFText_GetTextObject(self.raw, index)
        key = ctypes.addressof(text_object.contents) if text_object else -index - 1
        known = self.styles.get(key)
        if known is None:
            known = self.styles[key] = self.read_style(index, text_object)
        return known

    def read_style(self, index: int, text_object: Any) -> Style:
        red, green, blue, alpha = self.color(index)
        invisible = bool(text_object) and pdfium.FPDFTextObj_GetTextRenderMode(text_object) == INVISIBLE
        return Style(
            rotation=round(-pdfium.FPDFText_GetCharAngle(self.raw, index) / (pi / 2)) % 4 * 90,
            size=float(pdfium.FPDFText_GetFontSize(self.raw, index)),
            bold=self.is_bold(index),
            white=min(red, green, blue) >= MIN_WHITE,
            hidden=invisible or alpha == 0,
        )

    def color(self, index: int) -> list[int]:
        components = [ctypes.c_uint() for _ in "rgba"]
        known = pdfium.FPDFText_GetFillColor(self.raw, index, *map(ctypes.byref, components))
        return [component.value for component in components] if known else [0, 0, 0, 255]

    def is_bold(self, index: int) -> bool:
        name = ctypes.create_string_buffer(64)
        pdfium.FPDFText_GetFontInfo(self.raw, index, name, 64, None)
        return bool(BOLD.search(name.value)) or pdfium.FPDFText_GetFontWeight(self.raw, index) >= MIN_BOLD_WEIGHT

    def has_blank_background(self, index: int) -> bool:
        """Return whether no path or image covers the position of a character."""
        if self.painted_areas is None:
            objects = self.page.get_objects(filter=(pdfium.FPDF_PAGEOBJ_PATH, pdfium.FPDF_PAGEOBJ_IMAGE))
            self.painted_areas = [each.get_bounds() for each in objects]
        pdfium.FPDFText_GetLooseCharBox(self.raw, index, self.area_pointer)
        x = (self.area.left + self.area.right) / 2
        y = (self.area.top + self.area.bottom) / 2
        return not any(x0 <= x <= x1 and y0 <= y <= y1 for x0, y0, x1, y1 in self.painted_areas)


def to_character(code: int) -> str:
    """Return a character, or U+FFFD for the surrogates and invalid values that PDFium may return."""
    return chr(code) if code <= sys.maxunicode and code not in SURROGATES else "\ufffd"


def to_page(area: Any, page_box: Rectangle, rotation: int) -> Rectangle:
    """Convert a rectangle from PDF coordinates to coordinates from the top left of the rotated page.

    The origin of PDF coordinates is at the bottom left. `rotation`: the clockwise rotation of the page, in degrees.
    """
    left, bottom, right, top = page_box
    match rotation:
        case 0:
            return area.left - left, top - area.top, area.right - left, top - area.bottom
        case 90:
            return area.bottom - bottom, area.left - left, area.top - bottom, area.right - left
        case 180:
            return right - area.right, area.bottom - bottom, right - area.left, area.top - bottom
        case _:
            return top - area.top, right - area.right, top - area.bottom, right - area.left
