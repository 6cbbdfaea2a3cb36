"""The words of a PDF's page, with their places, as PDFium knows them.

PDFium is asked about each character of a page, some thousands, hence plainly through ctypes: 100 pages take half
a second.
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

# PDFium's words for a hyphen at the end of a line, of which it makes one word with the next line's beginning.
HYPHEN = re.compile("[\x02\ufffe]")
WORD = re.compile("[^\\s\x02\ufffe]+[\x02\ufffe]?")
# Not in text that means something: the replacement character, private characters, controls.
MEANINGLESS = re.compile("[\ufffd\ue000-\uf8ff\x00\x01\x03-\x08\x0e-\x1f]")
SAMPLE = 11  # only every 11th character is examined, where a few are enough
BOLD = re.compile(rb"bold|black|heavy", re.IGNORECASE)
BOLD_WEIGHT = 600
INVISIBLE = 3  # a way to draw text: not at all. PDF 32000-1:2008, 9.3.6
WHITE = 250
TINY = 2.0  # points
SURROGATES = range(0xD800, 0xE000)


@dataclass(slots=True, kw_only=True)
class Style:
    """What the characters of one piece of text have in common.

    `turn`: by how many degrees, clockwise, the page must be turned for them to stand upright.
    """

    turn: int
    size: float
    bold: bool
    white: bool
    hidden: bool


class TextLayer:
    """`hidden`: whether some words are not for people's eyes; `garbled`: the share of letters without a meaning."""

    def __init__(self, page: Any) -> None:
        self.page = page
        self.textpage = page.get_textpage()
        self.raw = self.textpage.raw
        self.frame = page.get_bbox()
        self.area = pdfium.FS_RECTF()
        self.area_pointer = ctypes.byref(self.area)
        self.styles: dict[int, Style] = {}
        self.marks: list[tuple[float, float, float, float]] | None = None
        self.hidden = False
        self.garbled = 0.0

    def read(self) -> list[list[Box]]:
        """Return the words, in a list for each direction that text runs in; the page's own direction first."""
        text = self.characters()
        self.garbled = self.share_garbled(text)
        parts: dict[int, list[Box]] = defaultdict(list)
        for word in WORD.finditer(text):
            first, last = word.start(), word.end() - 1
            style = self.style(first)
            parts[style.turn].append(self.box(word.group(), first, last, style))
        straight = self.page.get_rotation()
        return [parts[turn] for turn in sorted(parts, key=lambda turn: (turn - straight) % 360)]

    def characters(self) -> str:
        """Return the text, with each of PDFium's characters where it has it."""
        count = pdfium.FPDFText_CountChars(self.raw)
        text: str = self.textpage.get_text_range(errors="replace") if count else ""
        # What PDFium leaves out of a whole text, or writes as two, would put all that comes after out of place.
        if len(text) == count:
            return text
        return "".join([character(pdfium.FPDFText_GetUnicode(self.raw, index)) for index in range(count)])

    def share_garbled(self, text: str) -> float:
        asked = [index for index in range(0, len(text), SAMPLE) if not text[index].isspace()]
        lost = sum(pdfium.FPDFText_HasUnicodeMapError(self.raw, index) == 1 for index in asked)
        letters = max(1, len(text) - text.count(" "))
        return max(float(lost) / max(1, len(asked)), len(MEANINGLESS.findall(text)) / letters)

    def box(self, text: str, first: int, last: int, style: Style) -> Box:
        x0, y0, x1, y1 = self.place(first, style.turn)
        high = y1 - y0
        if last != first:
            _, top, x1, bottom = self.place(last, style.turn)
            y0, y1 = min(y0, top), max(y1, bottom)
        self.hidden = self.hidden or style.hidden or high < TINY or (style.white and self.is_on_paper(first))
        # The declared size may be wrong, because text can be scaled as a whole.
        size = style.size if 0.4 * high < style.size < 1.6 * high else max(0.1, 0.8 * high)
        return Box(text=HYPHEN.sub("-", text), x0=x0, y0=y0, x1=max(x0, x1), y1=y1, size=size, bold=style.bold)

    def place(self, index: int, turn: int) -> tuple[float, float, float, float]:
        """Return a character's rectangle from the top left, of the page turned so that its text is upright."""
        pdfium.FPDFText_GetLooseCharBox(self.raw, index, self.area_pointer)
        return placed(self.area, self.frame, turn)

    # ---- Styles -----------------------------------------------------------------------------------------------------
    def style(self, index: int) -> Style:
        piece = pdfium.FPDFText_GetTextObject(self.raw, index)
        key = ctypes.addressof(piece.contents) if piece else -index - 1
        known = self.styles.get(key)
        if known is None:
            known = self.styles[key] = self.styled(index, piece)
        return known

    def styled(self, index: int, piece: Any) -> Style:
        red, green, blue, alpha = self.color(index)
        invisible = bool(piece) and pdfium.FPDFTextObj_GetTextRenderMode(piece) == INVISIBLE
        return Style(
            turn=round(-pdfium.FPDFText_GetCharAngle(self.raw, index) / (pi / 2)) % 4 * 90,
            size=float(pdfium.FPDFText_GetFontSize(self.raw, index)),
            bold=self.is_bold(index),
            white=min(red, green, blue) >= WHITE,
            hidden=invisible or alpha == 0,
        )

    def color(self, index: int) -> list[int]:
        parts = [ctypes.c_uint() for _ in "rgba"]
        known = pdfium.FPDFText_GetFillColor(self.raw, index, *map(ctypes.byref, parts))
        return [part.value for part in parts] if known else [0, 0, 0, 255]

    def is_bold(self, index: int) -> bool:
        name = ctypes.create_string_buffer(64)
        pdfium.FPDFText_GetFontInfo(self.raw, index, name, 64, None)
        return bool(BOLD.search(name.value)) or pdfium.FPDFText_GetFontWeight(self.raw, index) >= BOLD_WEIGHT

    def is_on_paper(self, index: int) -> bool:
        """Whether nothing but the white of the page is behind a character."""
        if self.marks is None:
            others = self.page.get_objects(filter=(pdfium.FPDF_PAGEOBJ_PATH, pdfium.FPDF_PAGEOBJ_IMAGE))
            self.marks = [mark.get_bounds() for mark in others]
        pdfium.FPDFText_GetLooseCharBox(self.raw, index, self.area_pointer)
        x = (self.area.left + self.area.right) / 2
        y = (self.area.top + self.area.bottom) / 2
        return not any(x0 <= x <= x1 and y0 <= y <= y1 for x0, y0, x1, y1 in self.marks)


def character(code: int) -> str:
    """Return a character, or a replacement for the surrogates and invalid values that PDFium returns."""
    return chr(code) if code <= sys.maxunicode and code not in SURROGATES else "\ufffd"


def placed(area: Any, frame: tuple[float, float, float, float], turn: int) -> tuple[float, float, float, float]:
    """Return a rectangle from the top left of a page that is turned clockwise, given as PDF has it, from below."""
    left, bottom, right, top = frame
    match turn:
        case 0:
            return area.left - left, top - area.top, area.right - left, top - area.bottom
        case 90:
            return area.bottom - bottom, area.left - left, area.top - bottom, area.right - left
        case 180:
            return right - area.right, area.bottom - bottom, right - area.left, area.top - bottom
        case _:
            return top - area.top, right - area.right, top - area.bottom, right - area.left
