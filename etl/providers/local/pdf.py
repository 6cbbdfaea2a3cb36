"""PDF: the words of its text layer with their places, and pictures of pages that have none worth reading.

All by PDFium. Runs only in the process that reads documents.
"""

import re
from collections import Counter
from typing import Any, BinaryIO

import pypdfium2
import pypdfium2.raw as pdfium

from etl.core.errors import FileCorrupt, FileEncrypted, TooManyPixels
from etl.providers.local.boxes import Box
from etl.providers.local.forms import entries
from etl.providers.local.pages import DocumentLimits, LocalPage, clamped
from etl.providers.local.words import TextLayer, placed

# Pages are drawn for recognition at this many dots an inch, unless that makes them too large.
DPI = 150
# A page with fewer letters than this, under an image that covers this much of it, is taken for a scan with a stamp.
FEW_LETTERS, COVERED = 100, 0.5
# A text layer with this share of letters that stand for nothing is not worth reading.
GARBLED = 0.15
# What a PDF ends with, and how many bytes from its end at most.
END, TAIL = b"%%EOF", 2048
# The catalog, how its object begins, how far before its name at most, and how often that name is looked for.
CATALOG, OBJECT, REACH, TRIES = b"/Catalog", re.compile(rb"(\d{1,9}) \d{1,5} obj\b"), 2048, 50
ENCRYPTED = re.compile(rb"/Encrypt\b|/Filter\s{0,9}/Standard\b")


class Pdf:
    """A PDF, page by page, from the first to the last."""

    def __init__(self, file: BinaryIO, limits: DocumentLimits) -> None:
        self.limits = limits
        content = file.read()
        self.is_cut_off = END not in content[-TAIL:]
        if self.is_cut_off and not has_its_table(content):
            raise FileCorrupt
        self.document = repaired(content) if self.is_cut_off else opened(content)
        # How much text there is of each size, in half points, up to the page that was read last.
        self.sizes: Counter[int] = Counter()

    def __len__(self) -> int:
        return len(self.document)

    def page(self, number: int) -> LocalPage:
        """Return the page's text layer, and a way to draw the page if that is not enough. `number` from 0."""
        page = self.document[number]
        layer = TextLayer(page)
        parts = layer.read()
        filled = self.filled(page)
        parts[:1] = [[*parts[0], *filled]] if parts else [filled]
        self.sizes.update(sizes_of(parts))
        letters = sum(len(word.text) for part in parts for word in part)
        return LocalPage(
            parts=parts,
            body=self.sizes.most_common(1)[0][0] / 2 if self.sizes else 0.0,
            width=page.get_width(),
            hidden=layer.hidden,
            scan=layer.garbled > GARBLED or is_scan(page, letters),
            draw=lambda: self.drawn(page),
        )

    def filled(self, page: Any) -> list[Box]:
        form = self.document.formenv
        frame, turn = page.get_bbox(), page.get_rotation()
        return list(entries(page, form and form.raw, lambda area: placed(area, frame, turn)))

    def drawn(self, page: Any) -> Any:
        for image in images_of(page):
            wide, high = image.get_px_size()
            if wide * high > self.limits.pixels:
                raise TooManyPixels
        wide, high = (side * DPI / 72 for side in page.get_size())
        scale = clamped(wide, high, self.limits.pixels) * DPI / 72
        return page.render(scale=scale, maybe_alpha=False).to_numpy()

    def check(self) -> None:
        """Nothing: how large a page is drawn is up to who draws it."""

    def close(self) -> None:
        self.document.close()


def opened(content: bytes) -> pypdfium2.PdfDocument:
    forget_reasons()
    try:
        document = pypdfium2.PdfDocument(content)
    except pypdfium2.PdfiumError as error:
        locked = error.err_code in {pdfium.FPDF_ERR_PASSWORD, pdfium.FPDF_ERR_SECURITY}
        raise (FileEncrypted if locked else FileCorrupt) from None
    if not len(document):
        raise FileCorrupt
    if document.get_formtype() != pdfium.FORMTYPE_NONE:
        document.init_forms()
    return document


def forget_reasons() -> None:
    """PDFium gives no reason for some files, and keeps the one of the last file that could not be opened: encrypted,
    though another one was. What is no PDF at all leaves a harmless one."""
    pdfium.FPDF_LoadMemDocument64(b"", 0, None)


# ---- Files without an end -------------------------------------------------------------------------------------------
def has_its_table(content: bytes) -> bool:
    """Whether a file that was cut off goes so far as its table of where things are, before which all things come."""
    end = content.rfind(b"endobj") + len(b"endobj")
    last = content.rfind(b" obj")  # which may be the table, and cut off or not
    return content[end : end + TAIL].lstrip().startswith(b"xref") or b"/XRef" in content[last : last + TAIL]


def repaired(content: bytes) -> pypdfium2.PdfDocument:
    """Open a file that was cut off. Raises what `opened` does."""
    root = None if ENCRYPTED.search(content) else catalog(content)
    if root is None:
        return opened(content)
    try:
        return opened(with_an_end(content, root))
    except FileCorrupt:
        # The cut may have gone through a string of the trailer, which then swallows ours. The table is not needed.
        return opened(with_an_end(content[: content.rfind(b"endobj") + len(b"endobj")], root))


def with_an_end(content: bytes, root: bytes) -> bytes:
    """Return the file with a new trailer, from which PDFium finds everything that is there."""
    return content + b"\ntrailer\n<< /Root %s 0 R >>\n%%%%EOF\n" % root


def catalog(content: bytes) -> bytes | None:
    """Return the number of the last catalog.

    Searched for from the end, since one expression for a whole object takes minutes on a file that is made for it.
    """
    end = len(content)
    for _ in range(TRIES):
        end = content.rfind(CATALOG, 0, end)
        if end < 0:
            break
        numbers = OBJECT.findall(content, max(0, end - REACH), end)
        if numbers:
            return bytes(numbers[-1])
    return None


# ---- What is on a page ----------------------------------------------------------------------------------------------
def sizes_of(parts: list[list[Any]]) -> Counter[int]:
    sizes: Counter[int] = Counter()
    for part in parts:
        for word in part:
            sizes[round(2 * word.size)] += len(word.text)
    return sizes


def images_of(page: Any) -> Any:
    return page.get_objects(filter=(pdfium.FPDF_PAGEOBJ_IMAGE,))


def is_scan(page: Any, letters: int) -> bool:
    """Whether what is on the page is not, or hardly, in its text layer."""
    if not letters:
        return any(True for _ in page.get_objects(max_depth=1))
    return letters < FEW_LETTERS and covered(page) > COVERED


def covered(page: Any) -> float:
    """Return how much of the page its largest image covers, 0 to 1."""
    left, bottom, right, top = page.get_bbox()
    area = max(1.0, (right - left) * (top - bottom))
    bounds = (image.get_bounds() for image in images_of(page))
    return max(((x1 - x0) * (y1 - y0) / area for x0, y0, x1, y1 in bounds), default=0.0)
