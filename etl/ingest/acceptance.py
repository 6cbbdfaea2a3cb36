"""Validation of submitted documents: size and format.

`etl.core.errors` has the corresponding errors of tasks, for problems that only parsing reveals.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import structlog
from django.conf import settings

from config.platform import storage
from config.platform.http.problems import BadInput, InputError, Problem, StorageUnavailable
from etl.core.formats import MEDIA_TYPES, DocumentFormat, sniff
from etl.pipeline import engines

log = structlog.get_logger(__name__)

# Unregistered names that clients use.
OTHER_NAMES = {
    "image/jpg": DocumentFormat.JPEG,
    "image/tif": DocumentFormat.TIFF,
    "application/x-pdf": DocumentFormat.PDF,
    "text/x-markdown": DocumentFormat.MARKDOWN,
    "text/rtf": DocumentFormat.RTF,
    "application/xhtml+xml": DocumentFormat.HTML,
}
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

    def __init__(self) -> None:
        super().__init__(f"The file is larger than the limit of {settings.SLUICE.etl_max_file_bytes} bytes.")


class FormatNotAccepted(Problem):
    status = 415
    code = "unsupported_format"
    detail = "The configured OCR provider does not support this file type."

    def __init__(self, kind: DocumentFormat | None) -> None:
        takes = ", ".join(word(each) for each in engines.formats())
        found = f"This is a {word(kind)} file." if kind else "The file type is unknown."
        super().__init__(f"{found} The configured OCR provider supports {takes}.{advice(kind)}")


WORDS = {
    DocumentFormat.MARKDOWN: "Markdown",
    DocumentFormat.TEXT: "plain text",
    DocumentFormat.HTML: "HTML",
    DocumentFormat.JPEG: "JPEG",
    DocumentFormat.WEBP: "WebP",
}


def word(kind: DocumentFormat) -> str:
    return WORDS.get(kind) or kind.value.upper()


def advice(kind: DocumentFormat | None) -> str:
    """Return a sentence that names another provider for this format, or ""."""
    for name, provider in engines.providers():
        if kind in provider.formats:
            return f" {provider.title or name} supports such files; the operator can set ETL_OCR_PROVIDER={name}."
    return ""


@contextmanager
def storing() -> Iterator[None]:
    """Translate storage errors into StorageUnavailable."""
    try:
        yield
    except storage.StorageError as error:
        log.warning("storage_unavailable", error=str(error))
        raise StorageUnavailable from None


def checked(head: bytes, *, size: int, name: str, pointer: str) -> DocumentFormat:
    """Return the format of an acceptable document, by its first bytes. Raises the problems above."""
    check_size(size, pointer=pointer)
    kind = sniff(head, name)
    if kind is None or kind not in engines.provider().formats:
        raise FormatNotAccepted(kind)
    return kind


def check_size(size: int, *, pointer: str) -> None:
    if size == 0:
        raise EmptyFile(pointer)
    if size > settings.SLUICE.etl_max_file_bytes:
        raise UploadTooLarge


def check_type(content_type: str) -> None:
    """Raise FormatNotAccepted for a declared type that the provider does not support. The content is checked later."""
    bare = content_type.partition(";")[0].strip().lower()
    kind = OTHER_NAMES.get(bare) or next((kind for kind, name in MEDIA_TYPES.items() if name == bare), None)
    if bare != ANYTHING and kind not in engines.provider().formats:
        raise FormatNotAccepted(kind)
