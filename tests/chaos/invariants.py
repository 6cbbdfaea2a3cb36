"""The invariants I1 to I8, which hold after every fault.

They are checked in Postgres, object storage, Valkey, and the source, never with Sluice's metrics. Every test in this
folder ends with `check(site)`, which the fixture `site` calls.
"""

import time
from collections import Counter
from collections.abc import Callable
from datetime import date

from django.db import connection

from config.platform import storage
from exports import tasks
from exports.core.states import JOB_ENDED, ChunkStatus, JobStatus, Source
from exports.delivery import bundles, packs
from exports.maintenance import storage_cleanup
from exports.models import Chunk, Dataset, Delivery, Event, File, Job, Receipt, Slot, Tick, Usage
from tests.chaos import document_invariants, file_invariants, webhook_invariants
from tests.chaos.changes import check_recorded, moves
from tests.chaos.site import DeliberateChanges, Site
from tests.chaos.watch import Monitor
from tests.waiting import wait_until

CHUNK_ENDED = {ChunkStatus.DONE, ChunkStatus.FAILED, ChunkStatus.CANCELLED}
# Limit of a worker's memory in MB for any number of rows: after it has written a Parquet file (P13), and before (P3).
MAX_MEMORY = {True: 300, False: 200}


def check(site: Site, watch: Monitor) -> None:
    allowed = site.allowed
    settle_all(site)
    check_all_ended()
    check_ends_of_chunks(allowed)
    check_ends_of_jobs(allowed)
    check_sums()
    file_invariants.check(site)
    check_receipts()
    webhook_invariants.check(site.receivers, allowed)
    check_unreferenced_objects()
    document_invariants.check(site)
    assert watch.samples > 0, "the monitor took no samples"
    assert watch.thread.is_alive(), "the monitor failed"
    assert watch.most_calls <= site.slots, f"I3: {watch.most_calls} concurrent calls, {site.slots} slots"
    for has_pyarrow, most in MAX_MEMORY.items():
        assert watch.most_memory[has_pyarrow] < most, f"I8: {watch.most_memory} MB: {watch.whose[has_pyarrow]}"


def settle_all(site: Site) -> None:
    """I5, I6: without faults and with running workers, all work ends."""
    for proxy in site.proxies:
        proxy.remove_faults()
    connection.close()  # this may be one of the connections that a test terminated
    if not any(worker.alive for worker in site.workers):
        site.start_worker()
    if not any(beat.alive for beat in site.beats):
        site.start_beat()
    wait_until(lambda: not Job.objects.exclude(status__in=JOB_ENDED).exists(), limit=90, every=0.2)
    for is_idle in IDLE_CONDITIONS:
        wait_until(is_idle, limit=60, every=0.2)


def nothing_is_leased() -> bool:
    return not (
        Slot.objects.held().exists()
        or Chunk.objects.filter(token__isnull=False).exists()
        or Job.objects.filter(completion_token__isnull=False).exists()
        or Delivery.objects.filter(token__isnull=False).exists()
    )


def all_deliveries_ended() -> bool:
    return not (Delivery.objects.filter(status="pending").exists() or Event.objects.awaiting_fan_out().exists())


def no_upload_is_open() -> bool:
    return not list(storage.list_uploads(""))


IDLE_CONDITIONS: tuple[Callable[[], bool], ...] = (nothing_is_leased, all_deliveries_ended, no_upload_is_open)


def check_all_ended() -> None:
    """I6: all chunks have ended, and the counters of jobs match their chunks."""
    assert not Chunk.objects.exclude(status__in=CHUNK_ENDED).exists()
    for job in Job.objects.all():
        counts = Counter(job.chunks.values_list("status", flat=True))
        counted = {"done": job.done, "failed": job.failed, "cancelled": job.cancelled}
        assert {status: number for status, number in counted.items() if number} == counts, (
            f"job {job.pk} has wrong counters"
        )
        assert job.retrying == 0


def check_ends_of_chunks(allowed: DeliberateChanges) -> None:
    """I1, I7: each end was written with the token of the preceding claim, and stayed unchanged.

    Exceptions, if the test allows them: a manual retry of a failed chunk, and a done chunk whose file was missing
    before its job ended.
    """
    jobs = {str(pk): str(job) for pk, job in Chunk.objects.values_list("pk", "job_id")}
    check_recorded("chunk", jobs)
    moves_of_jobs = moves("job")
    for pk, its in moves("chunk").items():
        job, held, again = jobs.get(pk, ""), None, 0
        for move in its:
            if move.was in CHUNK_ENDED:
                is_retry = move.was == ChunkStatus.FAILED and job in allowed.retried
                before = [each.became for each in moves_of_jobs.get(job, ()) if each.nr < move.nr]
                is_redo = move.was == ChunkStatus.DONE and allowed.redone and before[-1] not in JOB_ENDED
                assert move.became == ChunkStatus.PENDING, f"I7: chunk {pk} left {move.was} for {move.became}"
                assert is_retry or is_redo, f"I7: chunk {pk} left {move.was} for {move.became}"
                again += 1
            if move.became == ChunkStatus.RUNNING:
                held = move.token
            elif move.was == ChunkStatus.RUNNING:
                assert move.old_token == held, f"I1: chunk {pk} became {move.became} with a token of another claim"
        ends = sum(move.became in CHUNK_ENDED for move in its)
        assert ends == 1 + again, f"I1: chunk {pk} ended {ends} times, and was exported again {again} times"


def check_ends_of_jobs(allowed: DeliberateChanges) -> None:
    """I4, I7: each job ended once, unless a user retried it."""
    check_recorded("job", Job.objects.values_list("pk", flat=True))
    for pk, its in moves("job").items():
        again = [move for move in its if move.was in JOB_ENDED]
        is_retried = pk in allowed.retried and all(move.was == JobStatus.FAILED for move in again)
        assert is_retried or not again, f"I7: job {pk} changed after its end"
        assert sum(move.became in JOB_ENDED for move in its) == 1 + len(again), f"I4: job {pk} ended more than once"


def check_sums() -> None:
    """I1: the counters of a job are the sums of its chunks, and its user was charged for the created files by day."""
    costs: Counter[tuple[int, date | None]] = Counter()
    for job in Job.objects.all():
        done = [chunk for chunk in job.chunks.all() if chunk.status == ChunkStatus.DONE]
        sources = Counter(chunk.source for chunk in done)
        expected = (
            sum(chunk.rows or 0 for chunk in done),
            sum(chunk.bytes or 0 for chunk in done),
            sources[Source.REUSED],
            sources[Source.SNAPSHOT],
        )
        found = (job.rows, job.bytes, job.reused, job.degraded)
        assert found == expected, f"I1: job {job.pk} has {found}, its chunks {expected}"
        for chunk in done:
            costs[job.user_id, chunk.charged_on] += chunk.charged and chunk.source != Source.REUSED
    used = Counter({(row.user_id, row.day): row.chunks for row in Usage.objects.all()})
    assert costs <= used, f"users were charged {used} chunks for {costs}"
    if moves("job").keys() <= set(map(str, Job.objects.values_list("pk", flat=True))):  # none was purged
        assert costs == used, f"users were charged {used} chunks for {costs}"


def check_receipts() -> None:
    """I4: each successful job has one receipt, and other jobs have none."""
    succeeded = set(Job.objects.filter(status=JobStatus.SUCCESS).values_list("pk", flat=True))
    assert set(Receipt.objects.values_list("pk", flat=True)) == succeeded, "I4: receipts and successes differ"


def check_unreferenced_objects() -> None:
    """I5: every object is referenced after a sweep."""
    receipts = set(Receipt.objects.filter(deleted_at=None).values_list("object_key", flat=True))
    assert receipts <= delivered(), "I5: a delivered object was deleted before it expired"
    folders = {bundles.folder_of(key) for key in receipts}  # including copies of single files
    folders |= {packs.folder_of_batches(storage_cleanup.job_of(key)) for key in receipts}

    def unreferenced() -> set[str]:
        return {key for key in delivered() if bundles.folder_of(key) not in folders} | {
            f"{key} {etag}" for key, etag in unreferenced_files()
        }

    # A sweep lists all objects, which takes longer after a long soak test.
    deadline = time.monotonic() + 45 + len(folders) / 20
    while found := sweep() and unreferenced():
        assert time.monotonic() < deadline, f"I5: {len(found)} objects are not referenced, such as {sorted(found)[:3]}"
        time.sleep(1)


def unreferenced_files() -> set[tuple[str, str]]:
    """Return the paths and ETags of objects under a dataset's path that no row references."""
    prefixes = [f"{path}/" for path in Dataset.objects.values_list("base_path", flat=True)]
    found = {(item.key, item.etag) for prefix in prefixes for item in storage.list_objects(prefix)}
    return found - set(File.objects.values_list("path", "etag"))


def delivered() -> set[str]:
    return {item.key for item in storage.list_objects(f"{packs.PREFIX}/")}


def sweep() -> bool:
    """Let a worker run beat's hourly cleanup."""
    Tick.objects.filter(name="sweep").delete()
    tasks.sweep.delay()
    return True
