"""Repairs after the database was restored to an earlier point than the object storage.

Restored rows contain leases of lost workers, links that may have been used since the backup, and files that were
replaced or deleted since then. The bucket contains objects that no row references. `manage.py reconcile` runs these
repairs before Sluice is started again. Each function can be repeated, can be interrupted anywhere, and is safe while
workers run.
"""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import compress
from typing import TypeVar

import structlog
from django.db import transaction
from django.db.models import F, QuerySet
from django.db.models.functions import Greatest, Now

from config.platform import storage
from config.platform.db import sql
from exports.core.states import ChunkStatus, JobStatus
from exports.delivery import bundles, packs
from exports.maintenance import storage_cleanup
from exports.maintenance.storage_cleanup import BATCH, HEAD_THREADS, batches
from exports.models import Chunk, Dataset, Delivery, Event, File, Job, Link, Receipt
from exports.worker import transitions

log = structlog.get_logger(__name__)

# More events than a job writes between two backups. Without this gap, a restored job would reuse event numbers that
# clients have already received.
EVENT_NUMBER_GAP = 1_000_000


def is_wrong_bucket() -> bool:
    """Return whether the bucket contains none of the database's oldest and newest files. Raises StorageError."""
    files = [*File.objects.order_by("pk")[:HEAD_THREADS], *File.objects.order_by("-pk")[:HEAD_THREADS]]
    return bool(files) and not any(storage.head(file.path) for file in files)


# ---- Rows -----------------------------------------------------------------------------------------------------------
def release_leases() -> int:
    """Release all leases, because their holders are gone. Their attempts are not counted. Return the number of leases.

    Slots stay held until the reaper has ended the calls that may still run under them.
    """
    return release_chunks() + release_completions() + release_deliveries()


def release_chunks() -> int:
    """Release the chunks that are claimed now. Later claims of live workers have larger tokens and are not released."""
    released = 0
    next_token = sql.scalar("SELECT nextval('exports_fence_seq')")
    running = Chunk.objects.filter(status=ChunkStatus.RUNNING, token__lt=next_token).order_by("pk")
    while held := list(running.values_list("pk", "token")[:BATCH]):
        chunks, tokens = zip(*held, strict=True)
        sql.rows(
            transitions.RELEASE + transitions.SETTLE + transitions.PROGRESS,
            chunks=list(chunks),
            tokens=list(tokens),
            attempt=1,
        )
        released += len(held)
    return released


def release_completions() -> int:
    return (
        Job.objects.active()
        .filter(completion_token__isnull=False)
        .update(
            completion_token=None,
            completion_lease_until=None,
            completion_attempts=Greatest(F("completion_attempts") - 1, 0),
        )
    )


def release_deliveries() -> int:
    """Release webhook deliveries that were being sent. They are sent again with the same ID."""
    return Delivery.objects.filter(token__isnull=False).update(
        token=None, lease_until=None, attempts=Greatest(F("attempts") - 1, 0)
    )


def revoke_links() -> int:
    """Revoke all open links, because each may have been used after the backup. Return the number of revoked links.

    Owners can create new links.
    """
    return Link.objects.filter(used_at=None, revoked_at=None, expires_at__gt=Now()).update(revoked_at=Now())


def advance_event_numbers() -> int:
    """Advance the event numbers of active and failed jobs past the numbers that clients may have received.

    Active jobs write more events, and so do failed jobs that are retried. Return the number of jobs.
    """
    with transaction.atomic():
        ids = list(Job.objects.active().order_by("pk").select_for_update(no_key=True).values_list("pk", flat=True))
        advanced = Job.objects.filter(pk__in=ids).update(event_seq=F("event_seq") + EVENT_NUMBER_GAP)
    return advanced + advance_failed_jobs()


def advance_failed_jobs() -> int:
    """Advance the event numbers of failed jobs, and of their existing events.

    Otherwise, a client that reconnects with a number that was issued after the backup would never receive the final
    event.
    """
    with transaction.atomic():
        failed = Job.objects.filter(status=JobStatus.FAILED).order_by("pk").select_for_update(no_key=True)
        ids = list(failed.values_list("pk", flat=True))
        Event.objects.filter(job_id__in=ids).update(seq=F("seq") + EVENT_NUMBER_GAP)
        return Job.objects.filter(pk__in=ids).update(event_seq=F("event_seq") + EVENT_NUMBER_GAP)


# ---- Rows whose object is missing -----------------------------------------------------------------------------------
def end_receipts() -> int:
    """End the receipts whose delivered object is missing. Return the number of ended receipts."""
    # Otherwise, the hourly sweep would report receipts that expired before the restore as TTL violations.
    storage_cleanup.delete_expired()
    receipts = Receipt.objects.filter(deleted_at=None)
    ended = 0
    for receipt, head in with_heads(receipts, lambda receipt: receipt.object_key):
        if head is None:
            ended += end_receipt(receipt)
    return ended


def end_receipt(receipt: Receipt) -> int:
    with transaction.atomic():
        # Creating a link takes the same lock, so a link cannot be created for a receipt that has just ended.
        live = Receipt.objects.select_for_update().filter(pk=receipt.pk, deleted_at=None).first()
        if live is None:
            return 0
        live.links.filter(used_at=None, revoked_at=None).update(revoked_at=Now())
        Receipt.objects.filter(pk=live.pk).update(expires_at=Now(), deleted_at=Now())
    log.warning("receipt_without_object", job_id=str(receipt.pk))
    return 1


def delete_stale_files() -> int:
    """Delete the rows of files whose object is missing or has changed. Return the number of deleted rows.

    An active job that needs such a file takes it from a pack, or exports its chunk again when it builds its bundle.
    Ended jobs do not need them.
    """
    total = 0
    for file, head in with_heads(File.objects.all(), lambda file: file.path):
        if head is None or head.etag != file.etag:
            deleted, _ = File.objects.filter(pk=file.pk, etag=file.etag).delete()
            total += deleted
    return total


Row = TypeVar("Row", Receipt, File)


def with_heads(rows: QuerySet[Row], path_of: Callable[[Row], str]) -> Iterator[tuple[Row, storage.Head | None]]:
    """Yield each row with the HEAD response of the object at its path. Raises StorageError."""
    with ThreadPoolExecutor(HEAD_THREADS) as pool:
        for batch in batches(rows.order_by("pk").iterator(chunk_size=BATCH)):
            yield from zip(batch, pool.map(storage.head, map(path_of, batch)), strict=True)


# ---- Objects that no row references ---------------------------------------------------------------------------------
def find_unreferenced_files(*, delete: bool) -> int:
    """Find unreferenced files that Sluice wrote to the datasets' folders, and delete them if requested.

    The restored database does not contain their jobs. Objects of other programs are kept. Return the number of files.
    """
    found = 0
    with ThreadPoolExecutor(HEAD_THREADS) as pool:
        for path in Dataset.objects.values_list("base_path", flat=True):
            for batch in batches(storage.list_objects(f"{path}/")):
                unreferenced = storage_cleanup.unreferenced({item.key: item.etag for item in batch})
                is_own = pool.map(is_written_by_worker, unreferenced, unreferenced.values())
                files = dict(compress(unreferenced.items(), is_own))
                deleted = pool.map(storage_cleanup.delete_unchanged, files, files.values()) if delete else ()
                found += sum(deleted) if delete else len(files)
    return found


def is_written_by_worker(path: str, etag: str) -> bool:
    """Return whether a worker wrote this object, and it has not changed since it was listed."""
    head = storage.head(path)
    return head is not None and head.etag == etag and {"job", "chunk", "token"} <= head.metadata.keys()


def find_unreferenced_deliveries(*, delete: bool) -> int:
    """Find delivered objects that have no receipt, and delete them if requested. Return the number of objects."""
    found = 0
    for batch in batches(item.key for item in storage.list_objects(f"{packs.PREFIX}/")):
        # Completions are read first: if one ends between the two queries, the second finds its receipt.
        completing = Job.objects.filter(completion_token__isnull=False).values_list("pk", flat=True)
        live = {f"{packs.PREFIX}/{job_id}" for job_id in completing}
        unreferenced = [
            key
            for key in storage_cleanup.undelivered(batch)
            # The sweep deletes old packs of batches.
            if bundles.folder_of_job(key) not in live and not packs.is_of_batch(key)
        ]
        found += len(unreferenced)
        if delete:
            storage.delete_many(unreferenced)
    return found
