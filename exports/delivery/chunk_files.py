"""Downloads of single files of a successful job, by the URLs in its manifest."""

from contextlib import suppress
from datetime import date

import structlog
from django.conf import settings
from django.db.models.functions import Now

from config.platform import storage
from config.platform.db import identity
from config.platform.http.problems import NotFound, Problem, StorageUnavailable
from exports.core.errors import FileGone
from exports.core.states import JobStatus
from exports.delivery import access, bundles, packs
from exports.delivery.links import ReceiptExpired
from exports.models import Chunk, File, Job, Receipt
from exports.models.job import DeliveryKind
from exports.source import encoding

log = structlog.get_logger(__name__)


class NoSuchFile(NotFound):
    detail = "File not found."


class FileSuperseded(Problem):
    status = 410
    code = "file_superseded"
    detail = "A later export replaced this file with newer data. Export again to get a receipt for the new file."


FILE_DELETED = "This file was deleted after the export. Download the whole delivery instead."


def presign(job: Job, *, key: str, effective_date: date) -> str:
    """Return a presigned URL of the file, valid for EXPORT_PRESIGN_SECONDS.

    It is the URL of a copy that no later export replaces. The large files of a manifest were copied with the delivery.
    The first request for another file makes its copy, from a pack if possible.

    Raises NoSuchFile, AccessRemoved, ReceiptExpired, StorageUnavailable, and FileSuperseded if the file was replaced
    and the delivery has no copy.
    """
    chunk = job.chunks.filter(key=key, effective_date=effective_date).first()
    if chunk is None or job.status != JobStatus.SUCCESS:
        raise NoSuchFile
    access.require_key(job, key)
    if (receipt := live_receipt(job)) is None:
        raise ReceiptExpired
    try:
        delivered = receipt.object_key if receipt.checksum == chunk.sha256 else delivered_file(job, chunk, receipt)
    except storage.StorageError as error:
        log.warning("storage_unavailable", error=str(error))
        raise StorageUnavailable from None
    return storage.presign_download(
        delivered,
        seconds=settings.SLUICE.export_presign_seconds,
        content_type=encoding.content_type(job.shape),
        file_name=chunk.path.rpartition("/")[2],
    )


def delivered_file(job: Job, chunk: Chunk, receipt: Receipt) -> str:
    """Return the object key of the delivery's copy of a file. Make the copy if it does not exist."""
    folder = bundles.folder_of(receipt.object_key)
    key = bundles.key_of_file(folder, job, chunk)
    if storage.head(key) is None:
        if not unpack(job, chunk, folder, key):
            copy(job, chunk, key)
        if live_receipt(job) is None:  # the delivery may have been deleted before the copy was made
            storage.delete(key)
            raise ReceiptExpired
    return key


def live_receipt(job: Job) -> Receipt | None:
    """Return the receipt, or None if it has expired. The database's clock decides, as for links."""
    return Receipt.objects.filter(pk=job.pk, expires_at__gt=Now()).first()


def unpack(job: Job, chunk: Chunk, folder: str, key: str) -> bool:
    """Extract the file from its pack, unless a concurrent request did. Return whether it is in a pack."""
    if chunk.pack is None and job.delivery != DeliveryKind.MANIFEST:
        return False
    if (content := packs.read(folder, chunk)) is None:
        return False
    with suppress(storage.Conflict):
        storage.put(key, content, content_type=encoding.content_type(job.shape), metadata=metadata_of(job))
    return True


def copy(job: Job, chunk: Chunk, key: str) -> None:
    """Copy the file, unless a concurrent request did. Raises FileSuperseded and StorageError."""
    # The object may have another ETag although it has the same bytes.
    same = File.objects.filter(path=chunk.path, sha256=chunk.sha256).exclude(etag=chunk.etag)
    for etag in (chunk.etag, *same.values_list("etag", flat=True)):
        chunk.etag = etag
        with suppress(FileGone):
            with suppress(storage.Conflict):
                bundles.copy_file(chunk, key, encoding.content_type(job.shape), metadata_of(job))
            return
    raise FileSuperseded(FILE_DELETED if job.dataset.built_in else None)


def metadata_of(job: Job) -> dict[str, str]:
    return {"job": str(job.job_id), **identity.marker()}
