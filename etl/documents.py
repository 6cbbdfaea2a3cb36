"""What kinds of document there are, and how to tell one by its first bytes."""

from enum import StrEnum


class Kind(StrEnum):
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
