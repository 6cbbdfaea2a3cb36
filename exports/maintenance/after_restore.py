"""Repairs after the database was restored to an earlier point, while object storage is at a later one.

Restored rows contain leases of workers that are gone, links that may have been used since, and files that were replaced
or deleted; and there are objects that no row references. `manage.py reconcile` repairs that before Sluice is started
again. Each function is idempotent, may be interrupted anywhere, and is safe while workers run.
"""

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import islice
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
from exports.maintenance.storage_cleanup import BATCH, HEAD_THREADS
from exports.models import Chunk, Dataset, Delivery, Event, File, Job, Link, Receipt
from exports.worker import transitions

log = structlog.get_logger(__name__)

T = TypeVar("T")
# More events than a job writes between two backups. Clients may have received numbers that the restored sequence would
# use a second time.
EVENTS = 1_000_000


def is_wrong_bucket() -> bool:
    """Return whether the bucket contains none of the oldest and newest files of the database. Raises StorageError."""
    files = [*File.objects.order_by("pk")[:HEAD_THREADS], *File.objects.order_by("-pk")[:HEAD_THREADS]]
    return bool(files) and not any(storage.head(file.path) for file in files)


# ---- Rows -----------------------------------------------------------------------------------------------------------
def release_leases() -> int:
    """Release every lease, without counting an attempt: its holder is gone. Return their number.

    Slots stay held until the reaper has ended the calls that may still run under them.
    """
    return release_chunks() + release_completions() + release_deliveries()


def release_chunks() -> int:
    """Release the chunks that are held now. Live workers claim later ones, which have larger tokens."""
    released = 0
    now = sql.rows("SELECT nextval('exports_fence_seq') AS token")[0]["token"]
    running = Chunk.objects.filter(status=ChunkStatus.RUNNING, token__lt=now).order_by("pk")
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
    """Release webhook deliveries that were being sent. They are sent again under the same id."""
    return Delivery.objects.filter(token__isnull=False).update(
        token=None, lease_until=None, attempts=Greatest(F("attempts") - 1, 0)
    )


def revoke_links() -> int:
    """Revoke every link that could be used, since any of them may have been used after the backup. Return their
    number.

    Owners create new ones.
    """
    return Link.objects.filter(used_at=None, revoked_at=None, expires_at__gt=Now()).update(revoked_at=Now())


def advance_event_numbers() -> int:
    """Give the next events of jobs that continue, or can be retried, numbers that no client has received.

    Returns the number of jobs.
    """
    with transaction.atomic():
        ids = list(Job.objects.active().order_by("pk").select_for_update(no_key=True).values_list("pk", flat=True))
        moved = Job.objects.filter(pk__in=ids).update(event_seq=F("event_seq") + EVENTS)
    return moved + advance_events_of_failed()


def advance_events_of_failed() -> int:
    """Advance failed jobs together with their events: a client that reconnects would otherwise never get the end."""
    with transaction.atomic():
        failed = Job.objects.filter(status=JobStatus.FAILED).order_by("pk").select_for_update(no_key=True)
        ids = list(failed.values_list("pk", flat=True))
        Event.objects.filter(job_id__in=ids).update(seq=F("seq") + EVENTS)
        return Job.objects.filter(pk__in=ids).update(event_seq=F("event_seq") + EVENTS)


# ---- Rows whose object is gone --------------------------------------------------------------------------------------
def end_receipts() -> int:
    """End the receipts whose delivered object is gone. Return their number."""
    storage_cleanup.delete_expired()  # or the hourly sweep would report these as TTL violations
    receipts = Receipt.objects.filter(deleted_at=None)
    ended = 0
    for receipt, head in with_heads(receipts, lambda receipt: receipt.object_key):
        if head is None:
            ended += end_receipt(receipt)
    return ended


def end_receipt(receipt: Receipt) -> int:
    with transaction.atomic():
        # The same lock as for creating a link: a later link finds the receipt expired.
        live = Receipt.objects.select_for_update().filter(pk=receipt.pk, deleted_at=None).first()
        if live is None:
            return 0
        live.links.filter(used_at=None, revoked_at=None).update(revoked_at=Now())
        Receipt.objects.filter(pk=live.pk).update(expires_at=Now(), deleted_at=Now())
    log.warning("receipt_without_object", job_id=str(receipt.pk))
    return 1


def delete_stale_files() -> int:
    """Delete the rows of files whose object is gone or has changed. Return their number.

    An active job exports such a chunk again when it makes its bundle. For an ended job the file is superseded.
    """
    total = 0
    for file, head in with_heads(File.objects.all(), lambda file: file.path):
        if head is None or head.etag != file.etag:
            deleted, _ = File.objects.filter(pk=file.pk, etag=file.etag).delete()
            total += deleted
    return total


Row = TypeVar("Row", Receipt, File)


def with_heads(rows: QuerySet[Row], path: Callable[[Row], str]) -> Iterator[tuple[Row, storage.Head | None]]:
    """Yield each row with the HEAD of the object at its path. Raises StorageError."""
    with ThreadPoolExecutor(HEAD_THREADS) as pool:
        for batch in batches(rows.order_by("pk").iterator(chunk_size=BATCH)):
            yield from zip(batch, pool.map(storage.head, map(path, batch)), strict=True)


def batches(items: Iterable[T]) -> Iterator[list[T]]:
    rest = iter(items)
    while batch := list(islice(rest, BATCH)):
        yield batch


# ---- Objects that no row references ---------------------------------------------------------------------------------
def unknown_files(*, delete: bool) -> int:
    """Find, and delete, unreferenced files that Sluice wrote into the datasets' folders. Return their number.

    They belong to jobs that the restored database does not have. Objects of other programs are not deleted.
    """
    found = 0
    with ThreadPoolExecutor(HEAD_THREADS) as pool:
        for path in Dataset.objects.values_list("base_path", flat=True):
            for batch in batches(storage.list_objects(f"{path}/")):
                unknown = storage_cleanup.unreferenced({item.key: item.etag for item in batch})
                found += sum(pool.map(partial(count_unknown, delete=delete), unknown, unknown.values()))
    return found


def count_unknown(path: str, etag: str, *, delete: bool) -> bool:
    """Return whether a worker wrote this object, and it is unchanged and, if requested, deleted now."""
    head = storage.head(path)
    if head is None or head.etag != etag or not {"job", "chunk", "token"} <= head.metadata.keys():
        return False
    return not delete or storage_cleanup.delete_unchanged(path, etag)


def unknown_deliveries(*, delete: bool) -> int:
    """Find, and delete, delivered objects that no receipt names. Return their number."""
    found = 0
    for batch in batches(item.key for item in storage.list_objects(f"{bundles.PREFIX}/")):
        # In this order: a completion that ends between the two queries has its receipt by the second.
        under_way = Job.objects.filter(completion_token__isnull=False).values_list("pk", flat=True)
        live = {f"{bundles.PREFIX}/{job_id}" for job_id in under_way}
        unknown = [
            key
            for key in storage_cleanup.undelivered(batch)
            if bundles.folder_of_job(key) not in live and not packs.is_of_batch(key)  # the sweep deletes old ones
        ]
        found += len(unknown)
        if delete:
            storage.delete_many(unknown)
    return found
