"""The janitors. Each has one verb, mends one thing, and may run any number of times, also beside itself."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import datetime, timedelta
from itertools import islice
from typing import Any

import structlog
from django.conf import settings
from django.db import transaction
from django.db.models import Exists, OuterRef
from django.db.models.functions import Now, TruncDate

from config.platform import storage
from config.platform.db import sql
from config.platform.storage import probe
from exports.core import metrics, wakeups
from exports.core.errors import ExportError, WorkerLost
from exports.core.states import ChunkStatus, JobStatus
from exports.delivery import bundles
from exports.maintenance import lost_work
from exports.models import Chunk, Dataset, Event, File, Job, Receipt, Slot, Usage
from exports.source import database
from exports.webhooks import outbox, sender
from exports.worker import completion

log = structlog.get_logger(__name__)

BATCH = 500
# Objects and uploads that nothing names are left alone for so long: what names them may be about to be written. No
# chunk or bundle runs longer, as Celery's hard time limit is 11 minutes.
GRACE = timedelta(hours=1)
EVENTS_KEPT = timedelta(days=1)  # after the end of their job
UNVOUCHED_SOUGHT = timedelta(days=1)  # after the end of their job; one look would do, were no sweep ever missed
LOOKS = 8  # at objects, at the same time


# ---- When they run --------------------------------------------------------------------------------------------------


def reap() -> list[str]:
    """What a lost worker or a lost message can leave behind, and what has expired. Every EXPORT_REAPER_SECONDS.

    Here and below: returns the janitors that failed.
    """
    return run_each(
        provide_slots,
        reclaim_chunks,
        free_slots,
        hint_waiting,
        completion.give_up,
        hint_completions,
        sender.give_up,
        outbox.hint,
        delete_expired,
        abort_lost_uploads,
    )


def sweep() -> list[str]:
    """Once an hour: what expired and is still there after all, orphans, files that nobody vouches for, abandoned
    uploads, and old events."""
    return run_each(force_delete_expired, delete_orphans, delete_unvouched, abort_abandoned_uploads, forget_events)


def purge() -> list[str]:
    """Once a day: old jobs, what webhooks were told a month ago, and what was used of quotas in earlier months."""
    return run_each(purge_jobs, outbox.prune, forget_usage)


def run_each(*verbs: Callable[[], object]) -> list[str]:
    """Run the janitors one after the other. What one cannot do now must not keep the others from their work.

    Returns the names of those that failed.
    """
    failed = []
    for verb in verbs:
        try:
            verb()
        except Exception:
            log.exception("janitor_failed", janitor=verb.__name__)
            failed.append(verb.__name__)
    return failed


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
    is_first = sql.one(TICK, name=name, every=every) is not None
    if is_first:
        run()
    return is_first


# ---- Lost workers ---------------------------------------------------------------------------------------------------


def provide_slots() -> None:
    Slot.objects.provide(count=settings.SLUICE.export_db_slots)


def reclaim_chunks() -> None:
    """Take chunks back whose lease ran out: into the queue, or FAILED when their attempts are used up."""
    while lost := lost_work.reclaim(batch=BATCH):
        metrics.leases_expired(len(lost))
        tell_loss("lease_expired", lost)


def tell_loss(event: str, lost: list[lost_work.Lost]) -> None:
    """Log and count what was taken back: the chunks, and the jobs that moved or ended with them."""
    for chunk in lost:
        ids = {"request_id": chunk.request_id, "job_id": str(chunk.job_id), "chunk_id": chunk.id}
        log.warning(event, **ids, attempt=chunk.attempts, **({"backend": chunk.backend} if chunk.backend else {}))
        if chunk.status == ChunkStatus.FAILED:
            log.error("chunk_failed", **ids, code=WorkerLost.code)
            metrics.chunk_failed(WorkerLost.code)
    for job_id, status in {(chunk.job_id, chunk.job_status) for chunk in lost if chunk.job_status != chunk.job_was}:
        metrics.job_moved(status)
        if status == JobStatus.FAILED:
            log.error("job_failed", job_id=str(job_id), code=WorkerLost.code)


def free_slots() -> None:
    """Free slots whose worker was lost, but first end the query that may still run under them.

    A worker that stands still keeps its query open; only when that is gone may another call begin. While the source
    cannot be asked, or does not let us end the query, the slots stay taken.
    """
    expired = lost_work.expired_slots()
    if not expired:
        return
    try:
        end_calls_and_free(expired)
    except ExportError as error:
        log.warning("slots_not_freed", slots=len(expired), code=error.code, detail=error.detail)


def end_calls_and_free(expired: list[tuple[int, str]]) -> int:
    """Free those of the slots whose call is gone, and return how many are not. Raises ExportError: then none is."""
    still_there = database.end_calls([backend for _, backend in expired])
    lost_work.free([token for token, backend in expired if backend not in still_there])
    log.warning("slots_freed", slots=len(expired) - len(still_there), still_calling=len(still_there))
    return len(still_there)


# ---- Lost messages --------------------------------------------------------------------------------------------------


def hint_waiting() -> None:
    """Wake workers for chunks that can run now."""
    waiting = lost_work.waiting()
    if waiting.ready and waiting.free_slots:
        wakeups.chunks(waiting=min(waiting.ready, waiting.free_slots), again=True)
    if waiting.reusable:
        wakeups.reusable(waiting=waiting.reusable, again=True)


def hint_completions() -> None:
    wakeups.completion(*completion.due(), again=True)


# ---- Expired objects ------------------------------------------------------------------------------------------------


def delete_expired() -> int:
    """Delete delivered objects whose receipt is over. The row says so only after the object is gone."""
    deleted = 0
    while receipts := list(Receipt.objects.due_for_deletion().order_by("expires_at")[:BATCH]):
        deleted += delete_delivered(receipts)
    return deleted


def delete_withdrawn(receipt: Receipt) -> None:
    """Delete the object of a receipt that is over, and not only when presigned URLs of it are over too."""
    if over := Receipt.objects.filter(pk=receipt.pk, expires_at__lte=Now(), deleted_at=None).first():
        delete_delivered([over])


def force_delete_expired() -> int:
    """Delete objects that outlived their receipt by more than a minute: each one is a TTL violation."""
    deleted = 0
    overdue = Receipt.objects.filter(deleted_at=None, expires_at__lt=Now() - timedelta(minutes=1))
    while late := list(overdue.order_by("expires_at")[:BATCH]):
        log.error("ttl_violation", receipts=len(late))
        metrics.ttl_violated(len(late))
        deleted += delete_delivered(late)
    return deleted


def delete_delivered(receipts: list[Receipt]) -> int:
    storage.delete_many([receipt.object_key for receipt in receipts])
    Receipt.objects.filter(pk__in=[receipt.pk for receipt in receipts]).update(deleted_at=Now())
    log.info("receipts_expired", receipts=len(receipts))
    return len(receipts)


# ---- Objects that no row names --------------------------------------------------------------------------------------


def delete_orphans() -> int:
    """Delete delivered objects that no receipt names: a bundle attempt died between its object and its receipt.

    Younger ones are left alone: their receipt may be about to be written. Each is a TTL violation too: nothing else
    would have ended its time. But not the probe of a doctor that was interrupted, which was never promised to anybody.
    """
    young = storage.now() - GRACE
    found = [item.key for item in storage.list_objects(f"{bundles.PREFIX}/") if item.last_modified < young]
    named = set(Receipt.objects.filter(object_key__in=found, deleted_at=None).values_list("object_key", flat=True))
    orphans = [key for key in found if key not in named]
    storage.delete_many(orphans)
    if violations := sum(not key.startswith(probe.PREFIX) for key in orphans):
        metrics.ttl_violated(violations)
    log.info("orphans_deleted", objects=len(orphans))
    return len(orphans)


def delete_unvouched() -> int:
    """Delete files that no row vouches for: their worker was lost between the upload and the outcome, and the chunk
    failed or was cancelled before another attempt replaced them.

    They are looked for where that can have happened. Attempts do not tell where: people's retries and workers that
    were told to leave set them back.
    """
    over = Job.objects.filter(
        started_at__isnull=False, finished_at__range=(Now() - GRACE - UNVOUCHED_SOUGHT, Now() - GRACE)
    )
    chunks = Chunk.objects.filter(job__in=over, status__in=(ChunkStatus.FAILED, ChunkStatus.CANCELLED))
    rows = chunks.values_list("job_id", "pk", "path", named=True).iterator(chunk_size=BATCH)
    before = storage.now() - GRACE
    deleted = 0
    with ThreadPoolExecutor(LOOKS) as pool:
        while batch := list(islice(rows, BATCH)):
            heads = pool.map(storage.head, [chunk.path for chunk in batch])
            own = {
                chunk.path: head.etag
                for chunk, head in zip(batch, heads, strict=True)
                if head and head.last_modified < before and is_of(chunk, head)
            }
            left = unvouched(own)
            deleted += sum(pool.map(delete_unchanged, left, left.values()))
    if deleted:
        log.info("unvouched_deleted", objects=deleted)
    return deleted


def is_of(chunk: Any, head: storage.Head) -> bool:
    """Whether this chunk's workers wrote the object. What others wrote is another chunk's, or not ours at all."""
    return (head.metadata.get("job"), head.metadata.get("chunk")) == (str(chunk.job_id), str(chunk.pk))


def unvouched(files: dict[str, str]) -> dict[str, str]:
    """Return those of the files, ETags by path, that no row vouches for and no running chunk is about to replace."""
    # In this order: a chunk that ends between the two vouches for its file with its end.
    busy = set(Chunk.objects.filter(status=ChunkStatus.RUNNING, path__in=files).values_list("path", flat=True))
    vouched = set(File.objects.filter(path__in=files).values_list("path", "etag"))
    return {path: etag for path, etag in files.items() if path not in busy and (path, etag) not in vouched}


def delete_unchanged(path: str, etag: str) -> bool:
    """Delete the file unless somebody put another one there since it was looked at. Returns whether that was done."""
    with suppress(storage.Changed):
        storage.delete(path, if_match=etag)
        return True
    return False


# ---- Uploads that never ended ---------------------------------------------------------------------------------------


def abort_abandoned_uploads() -> int:
    """Abort multipart uploads that are older than any chunk may run. The bucket's lifecycle rule is the backstop."""
    return abort_uploads(before=storage.now() - GRACE)


def abort_lost_uploads() -> int:
    """Abort what lost workers were uploading: uploads whose path no live chunk works on, older than one lease.

    A worker that was lost has its lease behind it; one that is about to begin has its chunk running before its
    upload. Runs with the reaper, last and apart, since it waits for the object store.
    """
    return abort_uploads(before=storage.now() - timedelta(seconds=settings.SLUICE.export_lease_seconds))


def abort_uploads(*, before: datetime) -> int:
    prefixes = [f"{bundles.PREFIX}/", *(f"{path}/" for path in Dataset.objects.values_list("base_path", flat=True))]
    old = [upload for prefix in prefixes for upload in storage.list_uploads(prefix) if upload.initiated < before]
    # Asked for after the list: whoever began since has a younger upload.
    busy = set(
        Chunk.objects.filter(status=ChunkStatus.RUNNING, path__in=[upload.key for upload in old]).values_list(
            "path", flat=True
        )
    )
    live = {
        str(job_id)
        for job_id in Job.objects.active().filter(completion_token__isnull=False).values_list("pk", flat=True)
    }
    lost = [upload for upload in old if upload.key not in busy and upload.key.split("/")[1] not in live]
    for upload in lost:
        storage.abort_upload(upload.key, upload.upload_id)
    if lost:
        log.info("uploads_aborted", uploads=len(lost))
    return len(lost)


# ---- Old rows -------------------------------------------------------------------------------------------------------


def purge_jobs() -> None:
    """Delete jobs that ended EXPORT_JOB_RETENTION_DAYS ago, and what hangs on them. Files stay: they are the reuse
    cache, not the job's."""
    purged = 0
    while batch := purge_some():
        purged += batch
    log.info("purged", jobs=purged)


def purge_some() -> int:
    """Delete up to 50 jobs. Their rows are locked first: one that is retried at this moment has not ended any more."""
    before = Now() - timedelta(days=settings.SLUICE.export_job_retention_days)
    over = Job.objects.ended().filter(finished_at__lt=before).exclude(receipt__deleted_at=None, receipt__isnull=False)
    with transaction.atomic():
        batch = list(over.select_for_update(of=("self",), skip_locked=True).values_list("pk", flat=True)[:50])
        Job.objects.filter(pk__in=batch).delete()
    return len(batch)


def forget_usage() -> None:
    """Delete the usage of days that no refund can come to any more, but for a month for people to look at."""
    kept = max(timedelta(days=settings.SLUICE.export_job_retention_days), timedelta(days=31))
    Usage.objects.filter(day__lt=TruncDate(Now()) - kept).delete()


def forget_events() -> int:
    """Delete the events of jobs that ended a day ago. Who comes back to their stream then gets a snapshot.

    All events of a job or none, so that what is kept has no gaps; none while webhooks were not told of the end.
    """
    forgotten = 0
    while batch := forget_some():
        forgotten += batch
    if forgotten:
        log.info("events_forgotten", events=forgotten)
    return forgotten


def forget_some() -> int:
    """Delete the events of up to 20 jobs, locked meanwhile: one that is retried at this moment keeps them."""
    events = Event.objects.filter(job=OuterRef("pk"))
    over = Job.objects.ended().filter(
        Exists(events),
        ~Exists(events.untold()),
        finished_at__lt=Now() - EVENTS_KEPT,
    )
    with transaction.atomic():
        batch = list(over.select_for_update(of=("self",), skip_locked=True).values_list("pk", flat=True)[:20])
        deleted, _ = Event.objects.filter(job_id__in=batch).delete()
    return deleted
