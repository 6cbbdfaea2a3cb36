"""PDF reader: words of text layers, and pixels of pages that need OCR. Uses PDFium. Runs only in the reader process."""

import re
from collections import Counter
from collections.abc import Iterator
from typing import Any, BinaryIO

import pypdfium2
import pypdfium2.raw as pdfium

from etl.core.errors import FileCorrupt, FileEncrypted, TooManyPixels
from etl.providers.local.boxes import Box
from etl.providers.local.forms import form_entries
from etl.providers.local.page_images import ImageSize
from etl.providers.local.pages import DocumentLimits, LocalPage, Part, scale_for_ocr
from etl.providers.local.words import Rectangle, TextLayer, to_page

# Resolutions at which pages are rendered for OCR and for layout analysis, unless they are too large.
DPI, LAYOUT_DPI = 150, 100
# A page with fewer letters, and with an image that covers more than this share, is a scan. Its letters are usually a
# stamp or page number.
MIN_LETTERS, MAX_IMAGE_COVER = 100, 0.5
# An image that covers at least this share of the page, with fewer words of the text layer on it, may contain text.
MIN_IMAGE_COVER, MIN_IMAGE_WORDS = 0.1, 5
# Maximum share of unreadable characters in a usable text layer.
MAX_GARBLED = 0.15
# The end-of-file marker, and the number of bytes at the end of the file that are searched for it.
EOF_MARKER, TAIL = b"%%EOF", 2048
# The catalog's name, the start of an object, the maximum bytes between them, and the maximum occurrences to try.
CATALOG, OBJECT, MAX_DISTANCE, MAX_TRIES = b"/Catalog", re.compile(rb"(\d{1,9}) \d{1,5} obj\b"), 2048, 50
ENCRYPTED = re.compile(rb"/Encrypt\b|/Filter\s{0,9}/Standard\b")


class Pdf:
    """A PDF. Read its pages in order, because the size of body text is determined from the pages read so far."""

    def __init__(self, file: BinaryIO, limits: DocumentLimits) -> None:
        self.limits = limits
        content = file.read()
        self.is_truncated = EOF_MARKER not in content[-TAIL:]
        if self.is_truncated and not has_xref_table(content):
            raise FileCorrupt
        self.document = open_truncated(content) if self.is_truncated else open_pdf(content)
        # Number of characters by type size, in half points, on the pages read so far.
        self.sizes: Counter[int] = Counter()

    def __len__(self) -> int:
        return len(self.document)

    def page(self, index: int) -> LocalPage:
        page = self.open_page(index)
        layer = TextLayer(page)
        parts = layer.read()
        entries = self.form_entries(page)
        if entries:
            parts = parts or [Part(boxes=[])]
            parts[0].boxes += entries
        self.sizes.update(count_sizes(parts))
        letters = sum(len(word.text) for part in parts for word in part.boxes)
        return LocalPage(
            parts=parts,
            body=self.sizes.most_common(1)[0][0] / 2 if self.sizes else 0.0,
            width=page.get_width(),
            height=page.get_height(),
            hidden=layer.hidden,
            images=list(unread_images(page, parts)),
            needs_ocr=layer.garbled > MAX_GARBLED or is_scan(page, letters),
            render=lambda: self.render(page, DPI),
            picture=lambda: self.render(page, LAYOUT_DPI),
        )

    def open_page(self, index: int) -> Any:
        """Return a page. If its crop box is outside of its media box, use the whole media box, as PDF viewers do.

        Otherwise, PDFium's page would be empty.
        """
        page = self.document[index]
        if not all(page.get_size()):
            page.set_cropbox(*page.get_mediabox())
        return page

    def form_entries(self, page: Any) -> list[Box]:
        form = self.document.formenv
        page_box, rotation = page.get_bbox(), page.get_rotation()
        return list(form_entries(page, form and form.raw, lambda area: to_page(area, page_box, rotation)))

    def draw(self, index: int, size: ImageSize) -> Any:
        """Return the pixels of a page as BGR, for previews and language models."""
        page = self.open_page(index)
        self.check_images(page)
        return page.render(scale=size.scale(page.get_size()), maybe_alpha=False).to_numpy()

    def render(self, page: Any, dpi: int) -> Any:
        self.check_images(page)
        width, height = (side * dpi / 72 for side in page.get_size())
        scale = scale_for_ocr(width, height, self.limits.pixels) * dpi / 72
        return page.render(scale=scale, maybe_alpha=False).to_numpy()

    def check_images(self, page: Any) -> None:
        """Raise TooManyPixels if an image of the page is above the limit."""
        for image in find_images(page):
            width, height = image.get_px_size()
            if width * height > self.limits.pixels:
                raise TooManyPixels

    def check_sizes(self) -> None:
        """Do nothing: pages have no size in pixels, and `render` limits their resolution."""

    def close(self) -> None:
        self.document.close()


def open_pdf(content: bytes) -> pypdfium2.PdfDocument:
    """Open a PDF. Raises FileEncrypted or FileCorrupt."""
    reset_last_error()
    try:
        document = pypdfium2.PdfDocument(content)
    except pypdfium2.PdfiumError as error:
        is_encrypted = error.err_code in {pdfium.FPDF_ERR_PASSWORD, pdfium.FPDF_ERR_SECURITY}
        raise (FileEncrypted if is_encrypted else FileCorrupt) from None
    if not len(document):
        raise FileCorrupt
    if document.get_formtype() != pdfium.FORMTYPE_NONE:
        document.init_forms()
    return document


def reset_last_error() -> None:
    """Reset PDFium's last error by opening an empty file.

    PDFium sets no error for some damaged files. Without a reset, the error of the previous file would be reported
    instead, such as a missing password.
    """
    pdfium.FPDF_LoadMemDocument64(b"", 0, None)


# ---- Truncated files ------------------------------------------------------------------------------------------------
def has_xref_table(content: bytes) -> bool:
    """Return whether a truncated file includes the start of its cross-reference table or stream.

    All objects are before it, so no page is missing.
    """
    end = content.rfind(b"endobj") + len(b"endobj")
    last = content.rfind(b" obj")  # may be the cross-reference stream, complete or truncated
    return content[end : end + TAIL].lstrip().startswith(b"xref") or b"/XRef" in content[last : last + TAIL]


def open_truncated(content: bytes) -> pypdfium2.PdfDocument:
    """Open a truncated file. Raises the errors of `open_pdf`."""
    root = None if ENCRYPTED.search(content) else find_catalog(content)
    if root is None:
        return open_pdf(content)
    try:
        return open_pdf(with_trailer(content, root))
    except FileCorrupt:
        # The file may end within a string of its trailer, which then includes the new trailer. Without the
        # cross-reference table, PDFium searches for the objects.
        return open_pdf(with_trailer(content[: content.rfind(b"endobj") + len(b"endobj")], root))


def with_trailer(content: bytes, root: bytes) -> bytes:
    """Append a trailer, from which PDFium can rebuild the cross-reference table."""
    return content + b"\ntrailer\n<< /Root %s 0 R >>\n%%%%EOF\n" % root


def find_catalog(content: bytes) -> bytes | None:
    """Return the object number of the last catalog, or None.

    Searches backwards for the name, because a regular expression for a whole object takes minutes on a malicious file.
    """
    end = len(content)
    for _ in range(MAX_TRIES):
        end = content.rfind(CATALOG, 0, end)
        if end < 0:
            break
        numbers = OBJECT.findall(content, max(0, end - MAX_DISTANCE), end)
        if numbers:
            return bytes(numbers[-1])
    return None


# ---- Page content ---------------------------------------------------------------------------------------------------
def count_sizes(parts: list[Part]) -> Counter[int]:
    """Return the number of characters of each type size, in half points."""
    sizes: Counter[int] = Counter()
    for part in parts:
        for word in part.boxes:
            sizes[round(2 * word.size)] += len(word.text)
    return sizes


def find_images(page: Any) -> Any:
    return page.get_objects(filter=(pdfium.FPDF_PAGEOBJ_IMAGE,))


def is_scan(page: Any, letters: int) -> bool:
    """Return whether most of the page's content is missing from its text layer."""
    if not letters:
        return any(True for _ in page.get_objects(max_depth=1))
    return letters < MIN_LETTERS and image_cover(page) > MAX_IMAGE_COVER


def unread_images(page: Any, parts: list[Part]) -> Iterator[Rectangle]:
    """Yield the rectangles of large images that may contain text, measured from the top left of the page."""
    page_box, rotation = page.get_bbox(), page.get_rotation()
    words = [word for part in parts if not part.turn for word in part.boxes]
    for image in find_images(page):
        area = pdfium.FS_RECTF()
        area.left, area.bottom, area.right, area.top = image.get_bounds()
        x0, y0, x1, y1 = to_page(area, page_box, rotation)
        x0, y0, x1, y1 = max(0.0, x0), max(0.0, y0), min(page.get_width(), x1), min(page.get_height(), y1)
        if x1 <= x0 or y1 <= y0 or (x1 - x0) * (y1 - y0) < MIN_IMAGE_COVER * page.get_width() * page.get_height():
            continue
        inside = sum(x0 <= (word.x0 + word.x1) / 2 <= x1 and y0 <= word.middle <= y1 for word in words)
        if inside < MIN_IMAGE_WORDS:
            yield x0, y0, x1, y1


def image_cover(page: Any) -> float:
    """Return the area of the largest image relative to the page. It is above 1 if the image extends beyond the page."""
    left, bottom, right, top = page.get_bbox()
    area = max(1.0, (right - left) * (top - bottom))
    bounds = (image.get_bounds() for image in find_images(page))
    return max(((x1 - x0) * (y1 - y0) / area for x0, y0, x1, y1 in bounds), default=0.0)
