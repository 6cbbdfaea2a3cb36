"""After the database was restored to an earlier point, while object storage goes on from a later one.

Rows claim what is not so any more: leases of workers that have long gone, links that somebody has used since, files
that were replaced or deleted. And objects are there that no row knows. `manage.py reconcile` puts that right before
anything of Sluice's is started again. Each function may be run twice, may be cut short anywhere and run again, and is
right beside workers that run.
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
from exports.delivery import bundles
from exports.maintenance import cleanup
from exports.models import Chunk, Dataset, Delivery, Event, File, Job, Link, Receipt
from exports.worker import transitions

log = structlog.get_logger(__name__)

T = TypeVar("T")
BATCH = 500
LOOKS = 8  # at objects, at the same time
# More events than any job tells of between two backups: clients may have heard numbers that would be given again.
EVENTS = 1_000_000


# ---- The bucket -----------------------------------------------------------------------------------------------------
def bucket_is_another() -> bool:
    """Tell whether of the oldest and newest files that rows know not one is there: then nothing should be judged by
    this bucket. Raises StorageError."""
    files = [*File.objects.order_by("pk")[:LOOKS], *File.objects.order_by("-pk")[:LOOKS]]
    return bool(files) and not any(storage.head(file.path) for file in files)


# ---- Rows -----------------------------------------------------------------------------------------------------------
def take_leases() -> int:
    """Take back every lease: its holder has ended, or works for a time that never was. No attempt is burned: nobody
    failed. Slots stay taken until the reaper has ended the calls that may run under them. Returns how many."""
    return give_back_chunks() + give_back_completions() + give_back_deliveries()


def give_back_chunks() -> int:
    """Those that are held now: what workers that run claim from now on has a later token."""
    given = 0
    now = sql.rows("SELECT nextval('exports_fence_seq') AS token")[0]["token"]
    running = Chunk.objects.filter(status=ChunkStatus.RUNNING, token__lt=now).order_by("pk")
    while held := list(running.values_list("pk", "token")[:BATCH]):
        chunks, tokens = zip(*held, strict=True)
        sql.rows(
            transitions.RELEASE + transitions.SETTLE + transitions.PROGRESS,
            chunks=list(chunks),
            tokens=list(tokens),
            freed=[],
            attempt=1,
        )
        given += len(held)
    return given


def give_back_completions() -> int:
    return (
        Job.objects.active()
        .filter(completion_token__isnull=False)
        .update(
            completion_token=None,
            completion_lease_until=None,
            completion_attempts=Greatest(F("completion_attempts") - 1, 0),
        )
    )


def give_back_deliveries() -> int:
    """What was being sent is sent again, under the same id."""
    return Delivery.objects.filter(token__isnull=False).update(
        token=None, lease_until=None, attempts=Greatest(F("attempts") - 1, 0)
    )


def revoke_links() -> int:
    """Revoke every link that could be used: any of them may have been used since, which no row tells any more. Owners
    make fresh ones. Returns how many."""
    return Link.objects.filter(used_at=None, revoked_at=None, expires_at__gt=Now()).update(revoked_at=Now())


def number_events_anew() -> int:
    """Have the next events of jobs that go on, or can be retried, get numbers that no client has heard. Returns how
    many jobs there are."""
    with transaction.atomic():
        ids = list(Job.objects.active().order_by("pk").select_for_update(no_key=True).values_list("pk", flat=True))
        moved = Job.objects.filter(pk__in=ids).update(event_seq=F("event_seq") + EVENTS)
    return moved + move_events_of_failed()


def move_events_of_failed() -> int:
    """Their events move along: else whoever comes back to such a stream would wait for an end that has been told."""
    with transaction.atomic():
        failed = Job.objects.filter(status=JobStatus.FAILED).order_by("pk").select_for_update(no_key=True)
        ids = list(failed.values_list("pk", flat=True))
        Event.objects.filter(job_id__in=ids).update(seq=F("seq") + EVENTS)
        return Job.objects.filter(pk__in=ids).update(event_seq=F("event_seq") + EVENTS)


# ---- Rows whose object is gone --------------------------------------------------------------------------------------
def end_receipts() -> int:
    """End the receipts whose delivered object is gone. Returns how many."""
    cleanup.delete_expired()  # those that are over would be told as violations of their time by the hourly sweep
    receipts = Receipt.objects.filter(deleted_at=None)
    ended = 0
    for receipt, head in looked_at(receipts, lambda receipt: receipt.object_key):
        if head is None:
            ended += end(receipt)
    return ended


def end(receipt: Receipt) -> int:
    with transaction.atomic():
        # Locked, as where a link is minted: one that comes later finds the receipt over.
        live = Receipt.objects.select_for_update().filter(pk=receipt.pk, deleted_at=None).first()
        if live is None:
            return 0
        live.links.filter(used_at=None, revoked_at=None).update(revoked_at=Now())
        Receipt.objects.filter(pk=live.pk).update(expires_at=Now(), deleted_at=Now())
    log.warning("receipt_without_object", job_id=str(receipt.pk))
    return 1


def forget_files() -> int:
    """Forget files that are not there any more, or are others by now. Returns how many. A job that has not ended reads
    such a chunk again when it comes to its bundle; of one that has ended, the file is told to be superseded."""
    forgotten = 0
    for file, head in looked_at(File.objects.all(), lambda file: file.path):
        if head is None or head.etag != file.etag:
            deleted, _ = File.objects.filter(pk=file.pk, etag=file.etag).delete()
            forgotten += deleted
    return forgotten


Row = TypeVar("Row", Receipt, File)


def looked_at(rows: QuerySet[Row], path: Callable[[Row], str]) -> Iterator[tuple[Row, storage.Head | None]]:
    """Yield each row with what lies at its path now. Raises StorageError."""
    with ThreadPoolExecutor(LOOKS) as pool:
        for batch in batches(rows.order_by("pk").iterator(chunk_size=BATCH)):
            yield from zip(batch, pool.map(storage.head, map(path, batch)), strict=True)


def batches(items: Iterable[T]) -> Iterator[list[T]]:
    rest = iter(items)
    while batch := list(islice(rest, BATCH)):
        yield batch


# ---- Objects that no row knows --------------------------------------------------------------------------------------
def strange_files(*, delete: bool) -> int:
    """Find, and delete, what Sluice wrote into the datasets' folders and no row vouches for: the work of jobs that are
    not there any more. What others put there is left alone. Returns how many."""
    found = 0
    with ThreadPoolExecutor(LOOKS) as pool:
        for path in Dataset.objects.values_list("base_path", flat=True):
            for batch in batches(storage.list_objects(f"{path}/")):
                strange = cleanup.unvouched({item.key: item.etag for item in batch})
                found += sum(pool.map(partial(is_taken_away, delete=delete), strange, strange.values()))
    return found


def is_taken_away(path: str, etag: str, *, delete: bool) -> bool:
    """Whether this object is one of a chunk's, unchanged, and, if that is wanted, is deleted now."""
    head = storage.head(path)
    if head is None or head.etag != etag or not {"job", "chunk", "token"} <= head.metadata.keys():
        return False
    return not delete or cleanup.delete_unchanged(path, etag)


def strange_deliveries(*, delete: bool) -> int:
    """Find, and delete, delivered objects that no receipt names. Returns how many."""
    found = 0
    for batch in batches(item.key for item in storage.list_objects(f"{bundles.PREFIX}/")):
        # In this order: a completion that ends between the two has its receipt then.
        under_way = Job.objects.filter(completion_token__isnull=False).values_list("pk", flat=True)
        live = {f"{bundles.PREFIX}/{job_id}" for job_id in under_way}
        named = set(Receipt.objects.filter(object_key__in=batch).values_list("object_key", flat=True))
        strange = [key for key in batch if key not in named and "/".join(key.split("/")[:2]) not in live]
        found += len(strange)
        if delete:
            storage.delete_many(strange)
    return found
