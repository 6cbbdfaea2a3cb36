"""Document formats, and their detection by the first bytes of a file (magic bytes).

The first bytes select the parser, regardless of the declared type, and even if the file is valid in another format too
(a polyglot). The file's name is used only where bytes cannot decide: for Markdown, small tables, and other text, and
for old Office formats whose distinguishing parts are deep in the file.
"""

import codecs
import csv
import re
from collections.abc import Callable, Iterable, Iterator
from enum import StrEnum
from io import StringIO
from pathlib import PurePath
from typing import Self

from etl.core import encodings
from etl.core.delimited_text import rows_of_lines

HEAD_BYTES = 65_536
# Limits for zip files: number of examined entries, and bytes of a name. The distinguishing entries come first.
ENTRIES, NAME_BYTES = 200, 100

OOXML = "application/vnd.openxmlformats-officedocument"
ODF = "application/vnd.oasis.opendocument"


class DocumentFormat(StrEnum):
    """A document format. Its value is the file extension for storage and providers."""

    media_type: str

    PDF = "pdf", "application/pdf"
    PNG = "png", "image/png"
    JPEG = "jpg", "image/jpeg"
    TIFF = "tiff", "image/tiff"
    WEBP = "webp", "image/webp"
    TEXT = "txt", "text/plain"
    MARKDOWN = "md", "text/markdown"
    DOCX = "docx", f"{OOXML}.wordprocessingml.document"
    PPTX = "pptx", f"{OOXML}.presentationml.presentation"
    XLSX = "xlsx", f"{OOXML}.spreadsheetml.sheet"
    DOC = "doc", "application/msword"
    PPT = "ppt", "application/vnd.ms-powerpoint"
    XLS = "xls", "application/vnd.ms-excel"
    RTF = "rtf", "application/rtf"
    ODT = "odt", f"{ODF}.text"
    ODP = "odp", f"{ODF}.presentation"
    ODS = "ods", f"{ODF}.spreadsheet"
    EPUB = "epub", "application/epub+zip"
    HTML = "html", "text/html"
    EML = "eml", "message/rfc822"
    CSV = "csv", "text/csv"
    XML = "xml", "application/xml"

    def __new__(cls, extension: str, media_type: str = "") -> Self:
        member = str.__new__(cls, extension)
        member._value_ = extension
        member.media_type = media_type
        return member


# Formats without printed pages. The definition of a page depends on the format.
OFFICE_FORMATS = frozenset({
    DocumentFormat.DOCX, DocumentFormat.PPTX, DocumentFormat.XLSX, DocumentFormat.ODT, DocumentFormat.ODP,
    DocumentFormat.ODS, DocumentFormat.EPUB, DocumentFormat.HTML, DocumentFormat.EML, DocumentFormat.CSV,
})  # fmt: skip
IMAGES = frozenset({DocumentFormat.PNG, DocumentFormat.JPEG, DocumentFormat.TIFF, DocumentFormat.WEBP})
PRINTED = IMAGES | {DocumentFormat.PDF}  # their pages can be drawn

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
# PDF readers accept up to 1,024 bytes of other data before the header.
LATE_PDF = re.compile(rb".{0,1024}?%PDF-\d\.\d", re.DOTALL)
XML = re.compile(
    r"\ufeff?\s{0,64}<\?xml\s|\ufeff?\s{0,64}<(?:\w{1,40}:)?(?:Invoice|CreditNote|CrossIndustry\w{1,40})[\s>]"
)
HTML = re.compile(r"<(?:!doctype\s+html|html|head|body)\b", re.IGNORECASE)
HEADER = re.compile(r"([A-Za-z][A-Za-z0-9-]{0,60}):")
MAIL_HEADERS = frozenset({"date", "message-id", "mime-version", "received", "return-path", "content-type"})
# Number of lines that are examined for mail headers and for rows, and the delimiters of tables. The comma is last,
# because each line of a table with another delimiter may have one: in numbers such as 1,5, or between names.
MAX_HEADERS, MAX_ROWS, DELIMITERS = 200, 50, ("\t", ";", "|", ",")
# The first line of a table that names its delimiter for Excel.
DECLARED_DELIMITER = re.compile(r"""\ufeff?"?sep=([^\w\s"']|\t)"?(?:\r\n|\r|\n)""", re.IGNORECASE)
BEFORE_HTML = re.compile(r"\s+|<\?xml[^>]*>|<!--.*?-->", re.DOTALL | re.IGNORECASE)
PARTS = {"word/": DocumentFormat.DOCX, "ppt/": DocumentFormat.PPTX, "xl/": DocumentFormat.XLSX}
PACKAGES = {
    kind.media_type.encode(): kind
    for kind in (DocumentFormat.ODT, DocumentFormat.ODP, DocumentFormat.ODS, DocumentFormat.EPUB)
}
# Formats that are zip files.
ARCHIVES = frozenset({*PARTS.values(), *PACKAGES.values()})
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
        return zip_format(head)
    if head.startswith(OLE):
        return ole_format(head, name)
    if LATE_PDF.match(head) and not encodings.is_utf_8(head):
        return DocumentFormat.PDF
    text = text_of(head)
    return kind_of_text(text, name) if text else None


def kind_of_text(text: str, name: str) -> DocumentFormat:
    if is_html(text):
        return DocumentFormat.HTML
    if XML.match(text):
        return DocumentFormat.XML
    if is_mail(text):
        return DocumentFormat.EML
    if extension(name) in {"md", "markdown"}:
        return DocumentFormat.MARKDOWN
    return DocumentFormat.CSV if delimiter_of(text, is_named=extension(name) in {"csv", "tsv"}) else DocumentFormat.TEXT


def is_mail(text: str) -> bool:
    """Return whether a text begins with mail headers: `MIME-Version`, or `From` and at least one of MAIL_HEADERS.

    In a mailbox file (RFC 4155), a line that begins with `From` and a space is before the headers.
    """
    names = set()
    lines = text.removeprefix("\ufeff").splitlines()[:MAX_HEADERS]
    for line in lines[1:] if text.startswith("From ") else lines:
        if not line.startswith((" ", "\t")):
            if not (match := HEADER.match(line)):
                break
            names.add(match[1].lower())
    return "mime-version" in names or ("from" in names and not names.isdisjoint(MAIL_HEADERS))


def delimiter_of(text: str, *, is_named: bool) -> str | None:
    """Return the delimiter of a table in a text, or None.

    `is_named`: whether the file has the extension of a table. Otherwise, at least three columns and rows, and rows of
    equal length are required, because each line of prose may have a comma.
    """
    if declared := DECLARED_DELIMITER.match(text):
        return declared[1]
    lines = list(StringIO(text.removeprefix("\ufeff"), newline=""))  # splits at line ends only
    complete = (lines[:-1] if len(lines) > MAX_ROWS else lines)[:MAX_ROWS]  # the last one may be cut off
    if complete and complete[0].startswith("|"):  # a table in Markdown
        return None
    # A stray quotation mark may hide the delimiters of many rows.
    readers = (csv.reader, rows_of_lines) if is_named else (csv.reader,)
    options = ((read, each) for read in readers for each in DELIMITERS)
    return next((each for read, each in options if is_table(read, complete, each, is_named=is_named)), None)


def is_table(read: Callable[..., Iterable[list[str]]], lines: list[str], delimiter: str, *, is_named: bool) -> bool:
    try:
        widths = [len(row) for row in read(lines, delimiter=delimiter) if row]
    except csv.Error:
        return False
    columns, rows = (2, 1) if is_named else (3, 3)
    return len(widths) >= rows and min(widths) >= columns and (is_named or len(set(widths)) == 1)


def is_html(text: str) -> bool:
    at = 0
    # Several matches, because a single expression would backtrack exponentially on a malicious text.
    while skipped := BEFORE_HTML.match(text, at):
        at = skipped.end()
    return HTML.match(text, at) is not None


def extension(name: str) -> str:
    return PurePath(name).suffix.removeprefix(".").lower()


def text_of(head: bytes) -> str | None:
    """Decode the beginning of a file, without control characters, or return None if it is not text.

    The last character may be incomplete.
    """
    encoding = encodings.detect(head)
    if encoding is None:
        return None
    try:
        text = codecs.getincrementaldecoder(encoding)("replace" if encoding.startswith("cp") else "strict").decode(head)
    except UnicodeDecodeError:
        return None
    return None if encodings.is_binary(text) else encodings.without_controls(text)


# ---- Containers -----------------------------------------------------------------------------------------------------
def zip_format(head: bytes) -> DocumentFormat | None:
    """Identify a zip file by its entries.

    ODF and EPUB files start with their media type, and Office files have a folder that is named after the program.
    """
    for name, content in entries(head):
        if name == "mimetype":
            return next((kind for mimetype, kind in PACKAGES.items() if content.strip() == mimetype), None)
        for folder, kind in PARTS.items():
            if name.startswith(folder):
                return kind
    return None


def entries(head: bytes) -> Iterator[tuple[str, bytes]]:
    """Yield the names and stored bytes of the zip entries that start in the head.

    The function searches for headers, because an entry's header may omit its length. It skips the header and the name
    of each entry. The number and the lengths of entries are limited, because the file is untrusted.
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


def ole_format(head: bytes, name: str) -> DocumentFormat | None:
    """Identify an OLE file by its streams, otherwise by its first sector, otherwise by its file name."""
    streams = [(stream.encode("utf-16-le"), kind) for stream, kind in STREAMS]
    if "EncryptedPackage".encode("utf-16-le") in head:  # a newer format, with a password
        return (
            format_by_extension(name, DocumentFormat.DOCX, DocumentFormat.PPTX, DocumentFormat.XLSX)
            or DocumentFormat.DOCX
        )
    return (
        next((kind for stream, kind in streams if stream in head), None)
        or next((kind for start, kind in FIRST_SECTORS if head.startswith(start, 512)), None)
        or format_by_extension(name, DocumentFormat.DOC, DocumentFormat.PPT, DocumentFormat.XLS)
    )


def format_by_extension(name: str, *formats: DocumentFormat) -> DocumentFormat | None:
    return next((kind for kind in formats if extension(name) == kind), None)
