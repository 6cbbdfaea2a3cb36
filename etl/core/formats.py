"""What kinds of document there are, and how to tell one by its first bytes.

The first bytes alone decide: a file is handed to the one parser of the kind found here, whatever its name or its
sender say, and whatever else it might also be. Names are asked only where bytes cannot tell: Markdown from other
text, and among the old Office formats when what tells them apart lies deep in the file.
"""

import codecs
import re
from collections.abc import Iterator
from enum import StrEnum
from pathlib import PurePath

HEAD_BYTES = 65_536
# Of a zip: how many entries are looked at, and how much of a name. What tells it stands at its beginning.
ENTRIES, NAME_BYTES = 200, 100


class DocumentFormat(StrEnum):
    """A kind of document; the value is the extension that it is stored and sent under."""

    PDF = "pdf"
    PNG = "png"
    JPEG = "jpg"
    TIFF = "tiff"
    WEBP = "webp"
    TEXT = "txt"
    MARKDOWN = "md"
    DOCX = "docx"
    PPTX = "pptx"
    XLSX = "xlsx"
    DOC = "doc"
    PPT = "ppt"
    XLS = "xls"
    RTF = "rtf"
    ODT = "odt"
    ODP = "odp"
    ODS = "ods"
    EPUB = "epub"
    HTML = "html"

    @property
    def media_type(self) -> str:
        return MEDIA_TYPES[self]


OOXML = "application/vnd.openxmlformats-officedocument"
ODF = "application/vnd.oasis.opendocument"
MEDIA_TYPES = {
    DocumentFormat.PDF: "application/pdf",
    DocumentFormat.PNG: "image/png",
    DocumentFormat.JPEG: "image/jpeg",
    DocumentFormat.TIFF: "image/tiff",
    DocumentFormat.WEBP: "image/webp",
    DocumentFormat.TEXT: "text/plain",
    DocumentFormat.MARKDOWN: "text/markdown",
    DocumentFormat.DOCX: f"{OOXML}.wordprocessingml.document",
    DocumentFormat.PPTX: f"{OOXML}.presentationml.presentation",
    DocumentFormat.XLSX: f"{OOXML}.spreadsheetml.sheet",
    DocumentFormat.DOC: "application/msword",
    DocumentFormat.PPT: "application/vnd.ms-powerpoint",
    DocumentFormat.XLS: "application/vnd.ms-excel",
    DocumentFormat.RTF: "application/rtf",
    DocumentFormat.ODT: f"{ODF}.text",
    DocumentFormat.ODP: f"{ODF}.presentation",
    DocumentFormat.ODS: f"{ODF}.spreadsheet",
    DocumentFormat.EPUB: "application/epub+zip",
    DocumentFormat.HTML: "text/html",
}

# ---- What files begin with ------------------------------------------------------------------------------------------
ZIP = b"PK\x03\x04"
OLE = b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1"
BEGINNINGS = (
    (re.compile(rb"(?:\xef\xbb\xbf)?\s{0,64}%PDF-\d"), DocumentFormat.PDF),
    (re.compile(rb"\x89PNG\r\n\x1a\n"), DocumentFormat.PNG),
    (re.compile(rb"\xff\xd8\xff"), DocumentFormat.JPEG),
    (re.compile(rb"II[*+]\x00|MM\x00[*+]"), DocumentFormat.TIFF),  # + is BigTIFF
    (re.compile(rb"RIFF.{4}WEBP", re.DOTALL), DocumentFormat.WEBP),
    (re.compile(rb"\{\\rtf"), DocumentFormat.RTF),
)
# Readers of PDF take up to 1,024 bytes of anything before this.
LATE_PDF = re.compile(rb".{0,1024}?%PDF-\d\.\d", re.DOTALL)
HTML = re.compile(r"<(?:!doctype\s+html|html|head|body)\b", re.IGNORECASE)
BEFORE_HTML = re.compile(r"\s+|<\?xml[^>]*>|<!--.*?-->", re.DOTALL | re.IGNORECASE)
# What text does not have: control characters other than tabs, ends of lines and of pages, and ESC.
# https://mimesniff.spec.whatwg.org/#binary-data-byte
BINARY = re.compile("[\x00-\x08\x0b\x0e-\x1a\x1c-\x1f]")

PARTS = {"word/": DocumentFormat.DOCX, "ppt/": DocumentFormat.PPTX, "xl/": DocumentFormat.XLSX}
PACKAGES = {
    MEDIA_TYPES[kind].encode(): kind
    for kind in (DocumentFormat.ODT, DocumentFormat.ODP, DocumentFormat.ODS, DocumentFormat.EPUB)
}
STREAMS = (
    ("WordDocument", DocumentFormat.DOC),
    ("PowerPoint Document", DocumentFormat.PPT),
    ("Workbook", DocumentFormat.XLS),
    ("Book", DocumentFormat.XLS),
)
# How the first stream, after the header of 512 bytes, mostly begins.
FIRST_SECTORS = (
    (b"\xec\xa5", DocumentFormat.DOC),
    (b"\x09\x08\x10\x00", DocumentFormat.XLS),
    (b"\x00\x6e\x1e\xf0", DocumentFormat.PPT),
    (b"\x0f\x00\xe8\x03", DocumentFormat.PPT),
)


def sniff(head: bytes, name: str = "") -> DocumentFormat | None:
    """Return the kind of a document by its first bytes, up to HEAD_BYTES of them; None when it is none that we know.

    No bytes at all are None too: the caller has a better word for that.
    """
    for beginning, kind in BEGINNINGS:
        if beginning.match(head):
            return kind
    if head.startswith(ZIP):
        return package(head)
    if head.startswith(OLE):
        return compound(head, name)
    text = text_of(head)
    if text:
        return kind_of_text(text, name)
    return DocumentFormat.PDF if LATE_PDF.match(head) else None


def kind_of_text(text: str, name: str) -> DocumentFormat:
    if is_html(text):
        return DocumentFormat.HTML
    return DocumentFormat.MARKDOWN if extension(name) in {"md", "markdown"} else DocumentFormat.TEXT


def is_html(text: str) -> bool:
    at = 0
    # One step after the other: as one expression this would try every way to divide a hostile text.
    while skipped := BEFORE_HTML.match(text, at):
        at = skipped.end()
    return HTML.match(text, at) is not None


def extension(name: str) -> str:
    return PurePath(name).suffix.removeprefix(".").lower()


def text_of(head: bytes) -> str | None:
    """Return the text: UTF-8, or UTF-16 that says so at its beginning; None when it is not text.

    The last character may be cut in two, as it is in the head of a longer file.
    """
    try:
        text = codecs.getincrementaldecoder(encoding(head))().decode(head, final=False)
    except UnicodeDecodeError:
        return None
    return None if BINARY.search(text) else text


def encoding(head: bytes) -> str:
    return "utf-16" if head.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)) else "utf-8-sig"


# ---- Containers -----------------------------------------------------------------------------------------------------
def package(head: bytes) -> DocumentFormat | None:
    """Tell a zip by its entries: ODF and EPUB begin with their type; Office has a folder for each program."""
    for name, content in entries(head):
        if name == "mimetype":
            return next((kind for said, kind in PACKAGES.items() if content.strip() == said), None)
        for folder, kind in PARTS.items():
            if name.startswith(folder):
                return kind
    return None


def entries(head: bytes) -> Iterator[tuple[str, bytes]]:
    """Yield the names of a zip's entries that begin in the head, and the bytes that they are stored as.

    Searched for, not walked: an entry's header need not say how long the entry is. But no entry begins within another's
    header or name, and both how many and how long they are is bounded: whoever made the file chose the lengths.
    """
    at = head.find(ZIP)
    for _ in range(ENTRIES):
        if at < 0:
            return
        size = int.from_bytes(head[at + 18 : at + 22], "little")
        name_end = at + 30 + int.from_bytes(head[at + 26 : at + 28], "little")
        start = name_end + int.from_bytes(head[at + 28 : at + 30], "little")
        name = head[at + 30 : min(name_end, at + 30 + NAME_BYTES)]
        yield name.decode("utf-8", "replace"), head[start : start + min(size, 100)]
        at = head.find(ZIP, name_end)


def compound(head: bytes, name: str) -> DocumentFormat | None:
    """Tell an OLE file by the names of its streams, else by how it goes on, else by its own name."""
    streams = [(stream.encode("utf-16-le"), kind) for stream, kind in STREAMS]
    if "EncryptedPackage".encode("utf-16-le") in head:  # a newer format, with a password
        return named(name, DocumentFormat.DOCX, DocumentFormat.PPTX, DocumentFormat.XLSX) or DocumentFormat.DOCX
    return (
        next((kind for stream, kind in streams if stream in head), None)
        or next((kind for start, kind in FIRST_SECTORS if head.startswith(start, 512)), None)
        or named(name, DocumentFormat.DOC, DocumentFormat.PPT, DocumentFormat.XLS)
    )


def named(name: str, *formats: DocumentFormat) -> DocumentFormat | None:
    return next((kind for kind in formats if extension(name) == kind), None)
