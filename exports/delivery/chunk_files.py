"""Downloads of single files of a successful job, as its manifest links them."""

from datetime import date

import structlog
from django.conf import settings
from django.utils import timezone

from config.platform import storage
from config.platform.http.problems import NotFound, Problem, StorageUnavailable
from exports.core.states import JobStatus
from exports.delivery.links import ReceiptExpired
from exports.models import Chunk, File, Job
from exports.source import encoding

log = structlog.get_logger(__name__)


class NoSuchFile(NotFound):
    detail = "File not found."


class FileSuperseded(Problem):
    status = 410
    code = "file_superseded"
    detail = "A later export replaced this file with newer data. Export again to get a receipt for the new file."


def presign(job: Job, *, key: str, effective_date: date) -> str:
    """Return a URL of the file that lives for EXPORT_PRESIGN_SECONDS.

    Raises NoSuchFile, ReceiptExpired, FileSuperseded when other bytes lie at its path by now, and StorageUnavailable.
    """
    chunk = job.chunks.filter(key=key, effective_date=effective_date).first()
    if chunk is None or job.status != JobStatus.SUCCESS:
        raise NoSuchFile
    if job.receipt.expires_at <= timezone.now():
        raise ReceiptExpired
    if not is_unchanged(chunk):
        raise FileSuperseded
    return storage.presign_download(
        chunk.path,
        seconds=settings.SLUICE.export_presign_seconds,
        content_type=encoding.content_type(job.shape),
        file_name=chunk.path.rpartition("/")[2],
    )


def is_unchanged(chunk: Chunk) -> bool:
    """Return whether the object at the path still has the chunk's bytes. Another ETag may still mean the same bytes."""
    try:
        head = storage.head(chunk.path)
    except storage.StorageError as error:
        log.warning("storage_unavailable", error=str(error))
        raise StorageUnavailable from None
    if head is None or head.etag == chunk.etag:
        return head is not None
    return File.objects.filter(path=chunk.path, etag=head.etag, sha256=chunk.sha256).exists()
