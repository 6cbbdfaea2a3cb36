"""Form values and free-text annotations of a PDF page, which are not part of its text layer."""

import ctypes
from collections.abc import Callable, Iterator
from typing import Any

import pypdfium2.raw as pdfium

from etl.providers.local.boxes import Box

CHECKED, UNCHECKED = "[x]", "[ ]"
BUTTONS = frozenset({pdfium.FPDF_FORMFIELD_CHECKBOX, pdfium.FPDF_FORMFIELD_RADIOBUTTON})
VALUES = frozenset({pdfium.FPDF_FORMFIELD_TEXTFIELD, pdfium.FPDF_FORMFIELD_COMBOBOX, pdfium.FPDF_FORMFIELD_LISTBOX})
# The assumed type size in a field: this share of the line height, but at most this number of points.
SIZE_RATIO, MAX_SIZE = 0.75, 12.0

ToPage = Callable[[Any], tuple[float, float, float, float]]


def form_entries(page: Any, form: Any, to_page: ToPage) -> Iterator[Box]:
    """Yield the lines of form values and free-text annotations.

    `form`: PDFium's form environment, or None if the document has no form. `to_page`: converts a rectangle to page
    coordinates, see `words.to_page`.
    """
    for index in range(pdfium.FPDFPage_GetAnnotCount(page.raw)):
        annotation = pdfium.FPDFPage_GetAnnot(page.raw, index)
        try:
            text = annotation_text(annotation, form)
            area = pdfium.FS_RECTF()
            if text and pdfium.FPDFAnnot_GetRect(annotation, ctypes.byref(area)):
                yield from split_lines(text, *to_page(area))
        finally:
            pdfium.FPDFPage_CloseAnnot(annotation)


def annotation_text(annotation: Any, form: Any) -> str:
    kind = pdfium.FPDFAnnot_GetSubtype(annotation)
    if kind == pdfium.FPDF_ANNOT_FREETEXT:
        return read_string(lambda *buffer: pdfium.FPDFAnnot_GetStringValue(annotation, b"Contents", *buffer))
    if kind != pdfium.FPDF_ANNOT_WIDGET or form is None:
        return ""
    field = pdfium.FPDFAnnot_GetFormFieldType(form, annotation)
    if field in BUTTONS:
        return CHECKED if pdfium.FPDFAnnot_IsChecked(form, annotation) else UNCHECKED
    if field in VALUES:
        return read_string(lambda *buffer: pdfium.FPDFAnnot_GetFormFieldValue(form, annotation, *buffer))
    return ""


def read_string(get: Callable[..., int]) -> str:
    """Return a string that PDFium writes to a buffer as null-terminated UTF-16."""
    size = get(None, 0)
    buffer = (pdfium.FPDF_WCHAR * max(1, size // 2))()
    get(buffer, size)
    return bytes(buffer).decode("utf-16-le", "replace").rstrip("\0").strip()


def split_lines(text: str, x0: float, y0: float, x1: float, y1: float) -> Iterator[Box]:
    """Yield the lines of a text as boxes, distributed evenly over the height of a rectangle."""
    lines = [" ".join(line.split()) for line in text.splitlines() if line.strip()]
    height = (y1 - y0) / max(1, len(lines))
    size = max(1.0, min(SIZE_RATIO * height, MAX_SIZE))
    for index, line in enumerate(lines):
        top = y0 + index * height
        width = min(x1 - x0, len(line) * size / 2)
        yield Box(text=line, x0=x0, y0=top, x1=x0 + width, y1=top + height, size=size)
