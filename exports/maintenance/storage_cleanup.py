"""Deletion of expired objects, unreferenced objects, and abandoned uploads."""

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import datetime, timedelta
from itertools import chain, islice
from typing import Any, TypeVar
from uuid import UUID

import structlog
from django.conf import settings
from django.db.models import QuerySet
from django.db.models.functions import Now

from config.platform import storage
from config.platform.db import identity
from config.platform.storage import writability
from exports.core import metrics
from exports.core.states import ChunkStatus, JobStatus
from exports.delivery import bundles, packs
from exports.models import Chunk, Dataset, File, Job, Receipt
from exports.models.dataset import Kind

log = structlog.get_logger(__name__)

T = TypeVar("T")
BATCH = 500
# Unreferenced objects and uploads are kept for this long, because a worker may be about to write the row that
# references them. No chunk or bundle runs longer: Celery's hard time limit is 11 minutes.
GRACE = timedelta(hours=1)
OVERDUE = timedelta(minutes=1)  # an object that exists for longer after its receipt expired is a TTL violation
# Jobs are checked for unreferenced files for this long after they end, because a single check could fail.
SEARCH_PERIOD = timedelta(days=1)
HEAD_THREADS = 8


def batches(items: Iterable[T]) -> Iterator[list[T]]:
    rest = iter(items)
    while batch := list(islice(rest, BATCH)):
        yield batch


# ---- Expired receipts -----------------------------------------------------------------------------------------------


def delete_expired() -> int:
    """Delete delivered objects whose receipts have expired. A row is updated only after its object is deleted."""
    return delete_in_batches(Receipt.objects.due_for_deletion())


def delete_overdue() -> int:
    """Delete objects whose receipts expired more than a minute ago, and report each as a TTL violation."""

    def report(receipts: list[Receipt]) -> None:
        log.error("ttl_violation", receipts=len(receipts))
        metrics.TTL_VIOLATIONS.inc(len(receipts))

    return delete_in_batches(Receipt.objects.filter(deleted_at=None, expires_at__lt=Now() - OVERDUE), report)


def delete_in_batches(receipts: QuerySet[Receipt], before: Callable[[list[Receipt]], None] = lambda _: None) -> int:
    deleted = 0
    while batch := list(receipts.order_by("expires_at")[:BATCH]):
        before(batch)
        deleted += delete_delivered(batch)
    return deleted


def delete_revoked(receipt: Receipt) -> None:
    """Delete the object of a revoked receipt at once, although presigned URLs may still work for some seconds."""
    if revoked := Receipt.objects.filter(pk=receipt.pk, expires_at__lte=Now(), deleted_at=None).first():
        delete_delivered([revoked])


def delete_delivered(receipts: list[Receipt]) -> int:
    """Delete the delivered objects of receipts, and the copies of single files and the packs in the same folders.

    Objects that cannot be deleted do not affect the other receipts. At the end, raises the first error.
    """
    with ThreadPoolExecutor(HEAD_THREADS) as pool:
        errors = list(pool.map(error_of_deletion, receipts))
    deleted = [receipt.pk for receipt, error in zip(receipts, errors, strict=True) if error is None]
    Receipt.objects.filter(pk__in=deleted).update(deleted_at=Now())
    log.info("receipts_expired", receipts=len(deleted))
    for error in filter(None, errors):
        raise error
    return len(deleted)


def error_of_deletion(receipt: Receipt) -> storage.StorageError | None:
    """Delete the objects of a receipt's job. Return the error if some could not be deleted."""
    try:
        bundles.delete_folder(bundles.folder_of_job(receipt.object_key))
    except storage.StorageError as error:
        return error
    return None


# ---- Unreferenced objects -------------------------------------------------------------------------------------------


def delete_orphans() -> int:
    """Delete delivered objects that have no receipt. A worker that crashes before it writes the receipt leaves them.

    Each counts as a TTL violation, because nothing else would have deleted it. Two kinds do not count, because clients
    were never promised that they would be deleted: packs of batches, and the test object of an interrupted
    `manage.py doctor`. Completions use only recent packs, so old ones can be deleted.
    """
    young = storage.now() - GRACE
    old = (item.key for item in storage.list_objects(f"{packs.PREFIX}/") if item.last_modified < young)
    deleted = 0
    for batch in batches(old):
        orphans = of_this_service(undelivered(batch))
        storage.delete_many(orphans)
        deleted += len(orphans)
        if violations := sum(not (key.startswith(writability.PREFIX) or packs.is_of_batch(key)) for key in orphans):
            metrics.TTL_VIOLATIONS.inc(violations)
    log.info("orphans_deleted", objects=deleted)
    return deleted


def undelivered(keys: list[str]) -> list[str]:
    """Return the objects that belong to no delivery. A delivery's folder is named after its job."""
    jobs = set(filter(None, map(job_of, keys)))
    kept = Receipt.objects.filter(job_id__in=jobs, deleted_at=None).values_list("object_key", flat=True)
    folders = {folder for key in kept for folder in (bundles.folder_of(key), packs.folder_of_batches(job_of(key)))}
    return [key for key in keys if bundles.folder_of(key) not in folders]


def of_this_service(keys: list[str]) -> list[str]:
    """Return the delivered objects that this service wrote. Other services may share the bucket.

    This service wrote an object if the object's job is in the database, or if the object's metadata has the service's
    marker. Objects of earlier releases have no marker. If their job is gone, the bucket's lifecycle rule deletes them.
    """
    jobs = set(filter(None, map(job_of, keys)))
    known = set(Job.objects.filter(pk__in=jobs).values_list("pk", flat=True))
    unknown = [key for key in keys if job_of(key) not in known and not key.startswith(writability.PREFIX)]
    with ThreadPoolExecutor(HEAD_THREADS) as pool:
        heads = dict(zip(unknown, pool.map(storage.head, unknown), strict=True))
    marker = identity.marker().items()
    return [key for key in keys if key not in heads or ((head := heads[key]) and marker <= head.metadata.items())]


def job_of(key: str) -> UUID | None:
    """Return the job ID in the key of a delivered object, or None for other keys."""
    with suppress(ValueError):
        return UUID(key.split("/")[1])
    return None


def delete_unreferenced() -> int:
    """Delete files that no row references.

    Such a file exists if a worker was lost after it uploaded the file and before it recorded the outcome, and the
    chunk then failed or was cancelled before another attempt replaced the file. So only the paths of failed and
    cancelled chunks are checked. The number of attempts cannot narrow them down further, because manual retries reset
    it and graceful shutdowns decrement it.

    Files of built-in datasets are not needed once their job has ended: deliveries are copies, no later job reuses the
    files, and a retry exports a missing file again.
    """
    ended = Job.objects.filter(
        started_at__isnull=False, finished_at__range=(Now() - GRACE - SEARCH_PERIOD, Now() - GRACE)
    )
    unsuccessful = ended.filter(status__in=(JobStatus.FAILED, JobStatus.CANCELLED))
    built_in = list(Dataset.objects.exclude(kind=Kind.FUNCTION))
    rows = chain(
        paths_of(Chunk.objects.filter(job__in=unsuccessful, status__in=(ChunkStatus.FAILED, ChunkStatus.CANCELLED))),
        paths_of(Chunk.objects.filter(job__in=ended.filter(dataset__in=built_in))),
    )
    deleted = 0
    with ThreadPoolExecutor(HEAD_THREADS) as pool:
        for batch in batches(rows):
            heads = pool.map(storage.head, [chunk.path for chunk in batch])
            left = unreferenced(dict(written_by(batch, heads, before=storage.now() - GRACE)))
            deleted += sum(pool.map(delete_unchanged, left, left.values()))
    if deleted:
        log.info("unreferenced_deleted", objects=deleted)
    return deleted


def paths_of(chunks: QuerySet[Chunk]) -> Iterator[Any]:
    return chunks.values_list("job_id", "pk", "path", named=True).iterator(chunk_size=BATCH)


def written_by(
    chunks: list[Any], heads: Iterator[storage.Head | None], *, before: datetime
) -> Iterator[tuple[str, str]]:
    """Yield the path and ETag of each object that an attempt of these chunks wrote before this time.

    Other objects at these paths belong to other chunks, or were not written by Sluice.
    """
    for chunk, head in zip(chunks, heads, strict=True):
        own = {"job": str(chunk.job_id), "chunk": str(chunk.pk)}
        if head and head.last_modified < before and own.items() <= head.metadata.items():
            yield chunk.path, head.etag


def unreferenced(files: dict[str, str]) -> dict[str, str]:
    """Return the files (ETags by path) that no row references and that no running chunk is about to replace."""
    # Running chunks are read first: the file of a chunk that ends between the two queries is found by the second.
    busy = set(Chunk.objects.filter(status=ChunkStatus.RUNNING, path__in=files).values_list("path", flat=True))
    referenced = set(File.objects.filter(path__in=files).values_list("path", "etag"))
    return {path: etag for path, etag in files.items() if path not in busy and (path, etag) not in referenced}


def delete_unchanged(path: str, etag: str) -> bool:
    """Delete the file unless its ETag has changed. Return whether it was deleted."""
    with suppress(storage.Changed):
        storage.delete(path, if_match=etag)
        return True
    return False


# ---- Abandoned uploads ----------------------------------------------------------------------------------------------


def abort_abandoned_uploads() -> int:
    """Abort multipart uploads that are older than any chunk can run. The bucket's lifecycle rule is the backstop."""
    return abort_uploads(before=storage.now() - GRACE)


def abort_lost_uploads() -> int:
    """Abort the uploads of lost workers: those that are older than a lease, and that no live worker writes.

    By then, the lease of a lost worker has expired. A live worker's chunk has the status `running` before its
    upload starts. Web processes have no lease, and copy large files of a delivery on request, so uploads of unexpired
    receipts are kept. The reaper runs this step after those that need only the database, because it waits for the
    object storage.
    """
    lease = timedelta(seconds=settings.SLUICE.export_lease_seconds)
    return abort_uploads(before=storage.now() - lease, keep=Receipt.objects.filter(expires_at__gt=Now()))


def abort_uploads(*, before: datetime, keep: QuerySet[Receipt] | None = None) -> int:
    """Abort uploads that began before this time, except those of live workers and of the receipts in `keep`."""
    # A reserved path may contain uploads of documents, so it is skipped. The bucket's lifecycle rule aborts the uploads
    # of exports there.
    paths = Dataset.objects.with_own_path().values_list("base_path", flat=True)
    prefixes = [f"{packs.PREFIX}/", *(f"{path}/" for path in paths)]
    old = [upload for prefix in prefixes for upload in storage.list_uploads(prefix) if upload.initiated < before]
    # Running work is queried after the uploads are listed: a worker that starts later has a newer upload.
    keys = [upload.key for upload in old]
    busy = set(Chunk.objects.filter(status=ChunkStatus.RUNNING, path__in=keys).values_list("path", flat=True))
    lost = without_unknown_jobs([upload for upload in old if upload.key not in busy])
    # Lost attempts of the same jobs have other folders.
    jobs = set(filter(None, [job_of(upload.key) for upload in lost]))
    completing = Job.objects.active().filter(pk__in=jobs, completion_token__isnull=False).only("completion_token")
    kept = {bundles.folder_of_attempt(job, job.completion_token or 0) for job in completing}
    if keep is not None:
        kept |= {bundles.folder_of(key) for key in keep.filter(pk__in=jobs).values_list("object_key", flat=True)}
    lost = [upload for upload in lost if bundles.folder_of(upload.key) not in kept]
    for upload in lost:
        storage.abort_upload(upload.key, upload.upload_id)
    if lost:
        log.info("uploads_aborted", uploads=len(lost))
    return len(lost)


def without_unknown_jobs(uploads: list[storage.OpenUpload]) -> list[storage.OpenUpload]:
    """Exclude uploads of deliveries whose job is not in the database: they may be those of another service.

    Uploads have no metadata that could contain the service's marker.
    """
    jobs = {upload.upload_id: job_of(upload.key) for upload in uploads if upload.key.startswith(f"{packs.PREFIX}/")}
    known = set(Job.objects.filter(pk__in=filter(None, jobs.values())).values_list("pk", flat=True))
    return [upload for upload in uploads if upload.upload_id not in jobs or jobs[upload.upload_id] in known]
