"""Limits that are checked before a document is sent to a server.

The local provider checks PDFs and images in its sandboxed process, because that requires parsing. Office files, ODF,
and EPUB are archives. They are decompressed only to measure their size, because a decompression bomb declares a false
one.
"""

from django.conf import settings

from etl.core.errors import FileCorrupt, FileEncrypted, FileTooLarge, TooManyParts
from etl.core.formats import ARCHIVES, PRINTED
from etl.core.stage_context import StageContext
from etl.providers.base import Document
from etl.providers.local import LocalProvider
from etl.providers.mineru.archive import Archive, DamagedArchive, TooManyMembers, UnsafeArchive

MAX_PARTS = 10_000
# Maximum decompressed size of a document, as a multiple of ETL_MAX_FILE_BYTES.
MAX_EXPANSION = 10


def check(document: Document, *, reader: LocalProvider, context: StageContext) -> int | None:
    """Return the number of pages, or None if only the server can count them.

    Raises BadDocument, and OcrFailed if the reader process crashes.
    """
    if document.kind in PRINTED:
        return reader.count_pages(document, context=context)
    if document.kind in ARCHIVES:
        measure(document, context=context)
    return None


def measure(document: Document, *, context: StageContext) -> None:
    try:
        with document.path.open("rb") as file, Archive(file, max_members=MAX_PARTS) as archive:
            if archive.is_encrypted:
                raise FileEncrypted
            archive.measure(limit=MAX_EXPANSION * settings.SLUICE.etl_max_file_bytes, context=context)
    except DamagedArchive:
        raise FileCorrupt from None
    except TooManyMembers as error:
        raise TooManyParts.of(error.found, MAX_PARTS) from None
    except UnsafeArchive:
        raise FileTooLarge from None
