"""Validation of submitted documents by size and format.

`etl.core.errors` has the corresponding errors of tasks, for problems that are found only during processing.
"""

import re
from collections.abc import Iterator
from contextlib import contextmanager

import structlog
from django.conf import settings

from config.platform import storage
from config.platform.http.problems import BadInput, InputError, Problem, StorageUnavailable
from etl.core.formats import DocumentFormat, sniff
from etl.pipeline import engines

log = structlog.get_logger(__name__)

# Other media types that clients use for these formats.
OTHER_NAMES = {
    "image/jpg": DocumentFormat.JPEG,
    "image/tif": DocumentFormat.TIFF,
    "application/x-pdf": DocumentFormat.PDF,
    "text/x-markdown": DocumentFormat.MARKDOWN,
    "text/rtf": DocumentFormat.RTF,
    "application/xhtml+xml": DocumentFormat.HTML,
    "text/xml": DocumentFormat.XML,
}
# The parameters in the first object of a linearized PDF, such as `/Linearized 1 … /N 600`. `/N` is the number of pages.
LINEARIZED = re.compile(
    rb"obj\s*<<[^>]*/Linearized\b[^>]*/N\s+(\d{1,9})\b|obj\s*<<[^>]*/N\s+(\d{1,9})\b[^>]*/Linearized\b"
)
LINEARIZED_WITHIN = 1_024
ANYTHING = "application/octet-stream"


class EmptyFile(BadInput):
    code = "empty_document"
    detail = "The document is empty (0 bytes)."

    def __init__(self, pointer: str) -> None:
        super().__init__(InputError(pointer=pointer, code=self.code, detail=self.detail))


class UploadTooLarge(Problem):
    status = 413
    code = "file_too_large"
    detail = "The file is larger than the limit for documents."

    def __init__(self, size: int = 0) -> None:
        """Create the problem. `size`: 0 if it is unknown, because the body was not read completely."""
        limit = f"{settings.SLUICE.etl_max_file_bytes:,}"
        super().__init__(
            f"The file has {size:,} bytes; the limit is {limit}." if size else f"The file exceeds {limit} bytes."
        )


class BatchTooLarge(Problem):
    status = 413
    code = "batch_too_large"
    detail = "The files of the batch are larger than the limit of a request."

    def __init__(self) -> None:
        super().__init__(
            f"The request exceeds {settings.SLUICE.etl_max_batch_bytes:,} bytes. Send a ZIP file, or upload each file "
            "separately and submit the `file_keys`."
        )


class TooManyPages(Problem):
    status = 413
    code = "too_many_pages"
    detail = "The document has more pages than the limit."

    def __init__(self, count: int) -> None:
        super().__init__(f"The document has {count:,} pages; the limit is {settings.SLUICE.etl_max_pages:,}.")


class FormatNotAccepted(Problem):
    status = 415
    code = "unsupported_format"
    detail = "The configured OCR provider does not support this file type."

    def __init__(self, kind: DocumentFormat | None) -> None:
        supported = ", ".join(format_name(each) for each in engines.formats())
        found = f"The file type is {format_name(kind) if kind else 'unknown'}."
        super().__init__(f"{found} The configured OCR provider supports {supported}.{advice(kind)}")


FORMAT_NAMES = {
    DocumentFormat.MARKDOWN: "Markdown",
    DocumentFormat.TEXT: "plain text",
    DocumentFormat.HTML: "HTML",
    DocumentFormat.EML: "email",
    DocumentFormat.JPEG: "JPEG",
    DocumentFormat.WEBP: "WebP",
}


def format_name(kind: DocumentFormat) -> str:
    return FORMAT_NAMES.get(kind) or kind.value.upper()


def advice(kind: DocumentFormat | None) -> str:
    """Return a sentence that names an installed provider for this format, or ""."""
    for name, provider in engines.providers():
        if kind in provider.formats:
            return f" {provider.title or name} supports such files; the operator can set ETL_OCR_PROVIDER={name}."
    return ""


@contextmanager
def translate_storage_errors() -> Iterator[None]:
    """Translate storage errors into StorageUnavailable."""
    try:
        yield
    except storage.StorageError as error:
        log.warning("storage_unavailable", error=str(error))
        raise StorageUnavailable from None


def accepted_format(head: bytes, *, size: int, name: str, pointer: str) -> DocumentFormat:
    """Detect the format of a document by its first bytes.

    Raises EmptyFile, UploadTooLarge, FormatNotAccepted, and TooManyPages.
    """
    check_size(size, pointer=pointer)
    kind = sniff(head, name)
    if kind is None or kind not in engines.formats():
        raise FormatNotAccepted(kind)
    check_pages(head)
    return kind


def check_pages(head: bytes) -> None:
    """Raise TooManyPages for a linearized PDF, which states its number of pages at the beginning."""
    stated = LINEARIZED.search(head[:LINEARIZED_WITHIN])
    count = next((int(number) for number in stated.groups() if number), 0) if stated else 0
    if count > settings.SLUICE.etl_max_pages:
        raise TooManyPages(count)


def check_size(size: int, *, pointer: str) -> None:
    if size == 0:
        raise EmptyFile(pointer)
    if size > settings.SLUICE.etl_max_file_bytes:
        raise UploadTooLarge(size)


def check_count(count: int, *, pointer: str) -> None:
    """Raise BadInput if a batch has too many documents."""
    limit = settings.SLUICE.etl_max_batch
    if count > limit:
        detail = f"A batch can have {limit:,} documents; this one has {count:,}."
        raise BadInput(InputError(pointer=pointer, code="too_many_documents", detail=detail))


def check_type(content_type: str) -> None:
    """Raise FormatNotAccepted if the provider does not support the declared type. The content is checked later."""
    bare = content_type.partition(";")[0].strip().lower()
    kind = OTHER_NAMES.get(bare) or next((kind for kind in DocumentFormat if kind.media_type == bare), None)
    if bare != ANYTHING and kind not in engines.formats():
        raise FormatNotAccepted(kind)


def is_document(head: bytes, *, name: str) -> bool:
    """Return whether a file is a document, such as DOCX, rather than a ZIP archive of documents."""
    return sniff(head, name) is not None
