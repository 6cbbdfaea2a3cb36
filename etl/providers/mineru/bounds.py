"""What is looked at before a document leaves for a server: whether it is within the bounds that hold for all documents.

PDF and images are looked at by the local provider, in its own process, because looking at them means to parse them.
Office files, ODF and EPUB are archives, and what they unpack to is measured by unpacking them: their own figures are
claims. Nothing of it is kept.
"""

from django.conf import settings

from etl.core.errors import FileCorrupt, FileEncrypted, FileTooLarge
from etl.core.formats import DocumentFormat
from etl.core.stage_context import StageContext
from etl.providers.base import Document
from etl.providers.local import LocalProvider
from etl.providers.mineru.archive import Archive, DamagedArchive, UnsafeArchive
from etl.providers.mineru.supported_formats import IMAGES

LOOKED_AT = IMAGES | {DocumentFormat.PDF}
ARCHIVES = frozenset(
    {
        DocumentFormat.DOCX,
        DocumentFormat.PPTX,
        DocumentFormat.XLSX,
        DocumentFormat.ODT,
        DocumentFormat.ODP,
        DocumentFormat.ODS,
        DocumentFormat.EPUB,
    }
)
MAX_PARTS = 10_000
# How much larger than ETL_MAX_FILE_BYTES a document may be when it is unpacked.
UNPACKED = 10


def check(document: Document, *, reader: LocalProvider, context: StageContext) -> int | None:
    """Return how many pages a document has, None where only its reader can tell. Raises BadDocument, and OcrFailed
    when the process that looks dies of it.
    """
    if document.kind in LOOKED_AT:
        return reader.look(document, context=context)
    if document.kind in ARCHIVES:
        measure(document, context=context)
    return None


def measure(document: Document, *, context: StageContext) -> None:
    try:
        with document.path.open("rb") as file, Archive(file, members=MAX_PARTS) as archive:
            if archive.is_encrypted:
                raise FileEncrypted
            archive.measure(most=UNPACKED * settings.SLUICE.etl_max_file_bytes, context=context)
    except DamagedArchive:
        raise FileCorrupt from None
    except UnsafeArchive:
        raise FileTooLarge from None
