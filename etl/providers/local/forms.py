"""What was filled in: a PDF keeps the values of forms, and notes typed onto a page, apart from the page's text."""

import ctypes
from collections.abc import Callable, Iterator
from typing import Any

import pypdfium2.raw as pdfium

from etl.providers.local.boxes import Box

TICKED, EMPTY = "[x]", "[ ]"
BUTTONS = frozenset({pdfium.FPDF_FORMFIELD_CHECKBOX, pdfium.FPDF_FORMFIELD_RADIOBUTTON})
VALUES = frozenset({pdfium.FPDF_FORMFIELD_TEXTFIELD, pdfium.FPDF_FORMFIELD_COMBOBOX, pdfium.FPDF_FORMFIELD_LISTBOX})
# Type in a field is no larger than this share of the field's height, and seldom larger than so many points.
SHARE, LARGEST = 0.75, 12.0

Place = Callable[[Any], tuple[float, float, float, float]]


def entries(page: Any, form: Any, place: Place) -> Iterator[Box]:
    """Yield what was filled into a page. `form`: PDFium's, None where a document has none; `place`: see `TextLayer`."""
    for number in range(pdfium.FPDFPage_GetAnnotCount(page.raw)):
        note = pdfium.FPDFPage_GetAnnot(page.raw, number)
        try:
            text = note_text(note, form)
            area = pdfium.FS_RECTF()
            if text and pdfium.FPDFAnnot_GetRect(note, ctypes.byref(area)):
                yield from lines(text, *place(area))
        finally:
            pdfium.FPDFPage_CloseAnnot(note)


def note_text(note: Any, form: Any) -> str:
    kind = pdfium.FPDFAnnot_GetSubtype(note)
    if kind == pdfium.FPDF_ANNOT_FREETEXT:
        return string(lambda *buffer: pdfium.FPDFAnnot_GetStringValue(note, b"Contents", *buffer))
    if kind != pdfium.FPDF_ANNOT_WIDGET or form is None:
        return ""
    field = pdfium.FPDFAnnot_GetFormFieldType(form, note)
    if field in BUTTONS:
        return TICKED if pdfium.FPDFAnnot_IsChecked(form, note) else EMPTY
    if field in VALUES:
        return string(lambda *buffer: pdfium.FPDFAnnot_GetFormFieldValue(form, note, *buffer))
    return ""


def string(get: Callable[..., int]) -> str:
    """Return a text that PDFium writes into a buffer as zero-terminated UTF-16."""
    size = get(None, 0)
    buffer = (pdfium.FPDF_WCHAR * max(1, size // 2))()
    get(buffer, size)
    return bytes(buffer).decode("utf-16-le", "replace").rstrip("\0").strip()


def lines(text: str, x0: float, y0: float, x1: float, y1: float) -> Iterator[Box]:
    texts = [" ".join(line.split()) for line in text.splitlines() if line.strip()]
    high = (y1 - y0) / max(1, len(texts))
    size = max(1.0, min(SHARE * high, LARGEST))
    for number, line in enumerate(texts):
        top = y0 + number * high
        wide = min(x1 - x0, len(line) * size / 2)
        yield Box(text=line, x0=x0, y0=top, x1=x0 + wide, y1=top + high, size=size)
