"""The janitors. Each has one verb, mends one thing, and may run any number of times, also beside itself."""

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import structlog
from django.conf import settings
from django.db import connection
from django.db.models.functions import Now

from config import storage
from exports import completion, dispatch, leases, source
from exports.errors import SourceUnavailable
from exports.models import Chunk, Dataset, Job, Receipt, Slot
from exports.states import ChunkStatus

log = structlog.get_logger(__name__)

BATCH = 500
# Objects and uploads that nothing names are left alone for so long: what names them may be about to be written. No
# chunk or bundle runs longer, as Celery's hard time limit is 11 minutes.
GRACE = timedelta(hours=1)


def reap() -> None:
    """Everything that a lost worker or a lost message can leave behind. Runs every EXPORT_REAPER_SECONDS."""
    provide_slots()
    reclaim_chunks()
    free_slots()
    hint_waiting()
    hint_completions()
    delete_expired()


def provide_slots() -> None:
    Slot.objects.provide(count=settings.SLUICE.export_db_slots)


# ---- Lost workers ---------------------------------------------------------------------------------------------------


def reclaim_chunks() -> None:
    """Take chunks back whose lease ran out: into the queue, or FAILED when their attempts are used up."""
    while lost := leases.reclaim(batch=BATCH):
        for chunk in lost:
            log.warning("lease_expired", chunk_id=chunk.chunk_id, job_id=str(chunk.job_id))
        abort_uploads_of(lost)


def abort_uploads_of(lost: list[leases.Lost]) -> None:
    """Abort what the lost workers were uploading, unless a live one uploads to the same path."""
    busy = set(
        Chunk.objects.filter(status=ChunkStatus.RUNNING, path__in=[chunk.path for chunk in lost]).values_list(
            "path", flat=True
        )
    )
    for path in {chunk.path for chunk in lost} - busy:
        for upload in storage.list_uploads(path):
            if upload.key == path:
                storage.abort_upload(upload.key, upload.upload_id)


def free_slots() -> None:
    """Free slots whose worker was lost, but first end the query that may still run under them.

    A worker that stands still keeps its query open; only when that is gone may another call begin. While the source
    cannot be asked the slots stay taken.
    """
    expired = list(leases.expired_slots())
    if not expired:
        return
    try:
        source.end_calls([backend for _, backend in expired])
    except SourceUnavailable:
        log.warning("slots_not_freed", slots=len(expired))
        return
    leases.free([token for token, _ in expired])
    log.warning("slots_freed", slots=len(expired))


# ---- Lost messages --------------------------------------------------------------------------------------------------


def hint_waiting() -> None:
    """Wake workers for chunks that can run now."""
    waiting = leases.waiting()
    if waiting.ready and waiting.free_slots:
        dispatch.chunks(waiting=min(waiting.ready, waiting.free_slots))
    if waiting.reusable:
        dispatch.reusable(waiting=waiting.reusable)


def hint_completions() -> None:
    for job_id in completion.due():
        dispatch.completion(job_id)


# ---- Expired objects ------------------------------------------------------------------------------------------------


def delete_expired() -> int:
    """Delete delivered objects whose receipt is over. The row says so only after the object is gone."""
    receipts = list(Receipt.objects.due_for_deletion().order_by("expires_at")[:BATCH])
    if receipts:
        storage.delete_many([receipt.object_key for receipt in receipts])
        Receipt.objects.filter(pk__in=[receipt.pk for receipt in receipts]).update(deleted_at=Now())
        log.info("receipts_expired", receipts=len(receipts))
    return len(receipts)


def sweep() -> None:
    """Once an hour: what expired and is still there after all, orphans, and abandoned uploads."""
    late = force_delete_expired()
    orphans = delete_orphans()
    uploads = abort_abandoned_uploads()
    log.info("swept", ttl_violations=late + orphans, orphans=orphans, uploads=uploads)


def force_delete_expired() -> int:
    """Delete objects that outlived their receipt by a minute: each one is a TTL violation."""
    late = list(Receipt.objects.filter(deleted_at=None, expires_at__lt=Now() - timedelta(minutes=1)))
    storage.delete_many([receipt.object_key for receipt in late])
    Receipt.objects.filter(pk__in=[receipt.pk for receipt in late]).update(deleted_at=Now())
    return len(late)


def delete_orphans() -> int:
    """Delete delivered objects that no receipt names: a bundle attempt died between its object and its receipt.

    Younger ones are left alone: their receipt may be about to be written.
    """
    young = storage.now() - GRACE
    found = [item.key for item in storage.list_objects(f"{completion.PREFIX}/") if item.last_modified < young]
    named = set(Receipt.objects.filter(object_key__in=found, deleted_at=None).values_list("object_key", flat=True))
    orphans = [key for key in found if key not in named]
    storage.delete_many(orphans)
    return len(orphans)


def abort_abandoned_uploads() -> int:
    """Abort multipart uploads that are older than any chunk may run. The bucket's lifecycle rule is the backstop."""
    old = storage.now() - GRACE
    abandoned = [
        upload
        for prefix in [completion.PREFIX, *Dataset.objects.values_list("base_path", flat=True)]
        for upload in storage.list_uploads(f"{prefix}/")
        if upload.initiated < old
    ]
    for upload in abandoned:
        storage.abort_upload(upload.key, upload.upload_id)
    return len(abandoned)


# ---- Old rows -------------------------------------------------------------------------------------------------------


def purge() -> None:
    """Once a day: delete jobs that ended EXPORT_JOB_RETENTION_DAYS ago, and what hangs on them. Files stay: they are
    the reuse cache, not the job's."""
    before = Now() - timedelta(days=settings.SLUICE.export_job_retention_days)
    purged = 0
    while batch := list(
        Job.objects.ended()
        .filter(finished_at__lt=before)
        .exclude(receipt__deleted_at=None, receipt__isnull=False)
        .values_list("pk", flat=True)[:50]
    ):
        Job.objects.filter(pk__in=batch).delete()
        purged += len(batch)
    log.info("purged", jobs=purged)


# ---- Two beats ------------------------------------------------------------------------------------------------------

# The row decides: of any number of beats and repeated messages, one gets to run within half an interval. Half, because
# a message that came late must not make the next one, which comes on time, look like a repetition.
TICK = """
INSERT INTO exports_tick (name, ran_at) VALUES (%(name)s, clock_timestamp())
ON CONFLICT (name) DO UPDATE SET ran_at = clock_timestamp()
WHERE exports_tick.ran_at < clock_timestamp() - %(every)s * interval '0.5 second'
RETURNING name
"""


def once(name: str, *, every: float, run: Callable[[], Any]) -> bool:
    """Run periodic work unless it just ran. Returns whether it was run."""
    with connection.cursor() as cursor:
        cursor.execute(TICK, {"name": name, "every": every})
        is_first = cursor.fetchone() is not None
    if is_first:
        run()
    return is_first
