"""Document formats, and their detection by the first bytes of a file (magic bytes).

Only the first bytes select the parser, whatever the file's name or its sender claims, and whatever else the file might
be (a polyglot). The name is used only if bytes cannot decide: for Markdown or other text, and for old Office
formats whose distinguishing parts are deep in the file.
"""

import codecs
import re
from collections.abc import Iterator
from enum import StrEnum
from pathlib import PurePath

HEAD_BYTES = 65_536
# Limits for zip files: entries that are examined, and bytes of a name. The distinguishing entries come first.
ENTRIES, NAME_BYTES = 200, 100


class DocumentFormat(StrEnum):
    """A document format. Its value is the file extension for storage and providers."""

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

# ---- First bytes ----------------------------------------------------------------------------------------------------
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
# PDF readers accept up to 1,024 bytes of other data before this.
LATE_PDF = re.compile(rb".{0,1024}?%PDF-\d\.\d", re.DOTALL)
HTML = re.compile(r"<(?:!doctype\s+html|html|head|body)\b", re.IGNORECASE)
BEFORE_HTML = re.compile(r"\s+|<\?xml[^>]*>|<!--.*?-->", re.DOTALL | re.IGNORECASE)
# Bytes that text does not have: control characters except tabs, line ends, form feeds, and ESC.
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
# Typical first bytes of the first stream, after the header of 512 bytes.
FIRST_SECTORS = (
    (b"\xec\xa5", DocumentFormat.DOC),
    (b"\x09\x08\x10\x00", DocumentFormat.XLS),
    (b"\x00\x6e\x1e\xf0", DocumentFormat.PPT),
    (b"\x0f\x00\xe8\x03", DocumentFormat.PPT),
)


def sniff(head: bytes, name: str = "") -> DocumentFormat | None:
    """Return the format of a document by its first bytes, at most HEAD_BYTES. None if it is unknown or empty."""
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
    # In steps: a single expression would backtrack exponentially on a malicious text.
    while skipped := BEFORE_HTML.match(text, at):
        at = skipped.end()
    return HTML.match(text, at) is not None


def extension(name: str) -> str:
    return PurePath(name).suffix.removeprefix(".").lower()


def text_of(head: bytes) -> str | None:
    """Decode UTF-8, or UTF-16 with a byte order mark. None if it is not text.

    The last character may be incomplete, because this is the head of a longer file.
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
    """Identify a zip by its entries: ODF and EPUB start with their type; Office has a folder for each program."""
    for name, content in entries(head):
        if name == "mimetype":
            return next((kind for mimetype, kind in PACKAGES.items() if content.strip() == mimetype), None)
        for folder, kind in PARTS.items():
            if name.startswith(folder):
                return kind
    return None


def entries(head: bytes) -> Iterator[tuple[str, bytes]]:
    """Yield the names and stored bytes of the zip entries that start in the head.

    Headers are searched for, because an entry's header may omit its length. No entry starts within another's header or
    name. The number and the lengths of entries are limited, because the file's author chose them.
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
    """Identify an OLE file by its streams, else by its first sector, else by its file name."""
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
