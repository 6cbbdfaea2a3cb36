"""Execution of chunks: claim, check for a reusable file, call the source, stream, upload, and record the outcome.

Chunks run at least once, and their outcome is recorded exactly once. A worker may crash at any line, and any line may
run twice.
"""

import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import ExitStack, contextmanager
from contextvars import copy_context
from dataclasses import asdict, replace
from functools import partial

import structlog
from celery.exceptions import SoftTimeLimitExceeded
from django.db import OperationalError
from structlog.contextvars import bound_contextvars

from config.platform import storage
from config.platform.heartbeat import LeaseLost
from config.platform.observability import logs, tracing
from config.platform.observability.metrics import CAUGHT
from config.platform.webhooks.wakeups import wake_senders
from exports.core import metrics, wakeups
from exports.core.errors import (
    ChunkUploadFailed,
    ExportError,
    SourceConnectionsExhausted,
    SourceFailed,
    StorageRefused,
    UploadDiscarded,
    WorkerFailed,
)
from exports.core.states import JobStatus, Source
from exports.delivery import packs
from exports.models import Job
from exports.models.dataset import Kind
from exports.source import built_in, database, encoding
from exports.worker import leases, transitions
from exports.worker.adoption import commit_or_adopt, recorded_file, upload_number
from exports.worker.batches import Batch, ChunkDurations, Ended
from exports.worker.heartbeat import heartbeat
from exports.worker.leases import Claim, KnownFile
from exports.worker.pauses import DatasetPauses
from exports.worker.slot import WorkerSlot
from exports.worker.stops import shutdown_first, stop_without_servers
from exports.worker.transitions import ChunkResult, JobProgress

log = structlog.get_logger(__name__)

# Time that a worker spends on one message. Celery needs about 4 ms per message, as long as a small chunk takes, but it
# can shut down or run another task only between messages.
DRAIN_SECONDS = 5
# Time for exporting chunks before the next batch is checked for reuse, so that neither kind of work blocks the other.
TURN_SECONDS = 0.25
REUSE_BATCH = 200
REUSE_THREADS = 8
DURATIONS = ChunkDurations()  # of this process
PAUSES = DatasetPauses()


def drain() -> None:
    """Check chunks for reuse and export chunks alternately, until no chunks are left or DRAIN_SECONDS have passed."""
    deadline = time.monotonic() + DRAIN_SECONDS
    with (
        stop_without_servers(),
        ThreadPoolExecutor(REUSE_THREADS) as pool,
        database.SourceSession() as session,
        WorkerSlot(session) as slot,
    ):
        while reuse_batch(pool, slot) | export_chunks(slot):  # not `or`, because both must run
            if time.monotonic() > deadline:
                slot.free()
                wakeups.chunks(waiting=1)
                return


def export_chunks(slot: WorkerSlot) -> bool:
    """Export chunks until none are ready or TURN_SECONDS have passed. Return whether there may be more work."""
    until = time.monotonic() + TURN_SECONDS
    has_exported = False
    while time.monotonic() < until:
        storage.require_writable()  # otherwise, the source would be called for rows that cannot be stored
        since = time.monotonic()
        claims = slot.claim(sizes=DURATIONS.sizes(), paused=PAUSES.datasets())
        if not claims:
            has_exported |= slot.free()
            break
        has_exported = True
        if claims[0].started_job:
            metrics.count_job_status(JobStatus.RUNNING)
        try:
            run_batch(claims, slot, since)
        except StorageRefused:
            storage.require_writable()  # raises StorageError if the storage refuses all writes
            PAUSES.begin(claims[0].dataset)
    return has_exported


@shutdown_first()
def run_batch(claims: list[Claim], slot: WorkerSlot, since: float) -> None:
    """Run claimed chunks of one job. Each chunk calls the source while the file of the previous chunk is uploaded.

    `since` is the value of `time.monotonic()` before the claim.
    """
    session = slot.session
    session.may_still_run = False
    with Batch(claims, session, record_successes) as batch, ExitStack() as unfinished:
        slot.free_previous()
        finish_last: Callable[[], None] = no_op
        for claim in batch:
            advance = stepper(run_chunk(claim, session, batch, since))
            unfinished.callback(advance)  # finishes the chunk after an error, and does nothing if the chunk has ended
            advance()
            finish_last()
            finish_last = advance


def no_op() -> None: ...


def stepper(steps: Iterator[None]) -> Callable[[], None]:
    """Return a function that runs the next step, if there is one. The steps have separate log fields and spans."""
    context = copy_context()
    return lambda: context.run(next, steps, None)


def ids_of(claim: Claim) -> dict[str, str | int]:
    return {"job_id": str(claim.job_id), "chunk_id": claim.chunk_id}


def run_chunk(claim: Claim, session: database.SourceSession, batch: Batch, since: float) -> Iterator[None]:
    """Process a claimed chunk. Record a failure under the fencing token, and add a success to the batch.

    Yields when the call has ended, so that another chunk can call the source while this chunk's file is uploaded.
    """
    ids = ids_of(claim)
    started_at = time.monotonic()
    with (
        tracing.span("chunk", parent=claim.traceparent, attempt=claim.attempts, **ids),
        bound_contextvars(request_id=claim.request_id, **ids),
    ):
        try:
            yield from produce(claim, session, batch, since)
        except LeaseLost:
            record_loss(claim)
            batch.discard(claim)  # another worker owns the chunk, or it was cancelled
        except SourceConnectionsExhausted:
            # No attempt is counted, because the chunk did not cause this. No wake-up message is sent: workers that have
            # a connection claim the chunk, and the reaper wakes more workers later.
            batch.discard(claim)
            transitions.release([claim])
            raise
        except OperationalError:
            raise
        except Exception as error:
            DURATIONS.add(claim.dataset, time.monotonic() - started_at)
            batch.discard(claim)
            record_failure(claim, as_export_error(error))
            if isinstance(error, StorageRefused | SoftTimeLimitExceeded):
                raise
        except BaseException:
            # Shutdown: release the chunk now, so that it need not wait until the lease expires, and count no attempt.
            batch.discard(claim)
            transitions.release([claim])
            raise


def as_export_error(error: Exception) -> ExportError:
    """Translate an unexpected exception. The detail names errors of the host, such as a full disk or lack of memory."""
    if isinstance(error, ExportError):
        return error
    if isinstance(error, SoftTimeLimitExceeded):
        return WorkerFailed("over the worker's time limit")
    log.error("unexpected_error", exc_info=error)
    CAUGHT.labels("chunk").inc()
    is_of_host = isinstance(error, OSError | MemoryError)
    return WorkerFailed(f"the worker could not continue: {logs.describe(error)}" if is_of_host else "unexpected error")


def as_upload_error(error: storage.StorageError) -> ChunkUploadFailed:
    if error.is_outage:
        storage.suspect()
        return StorageRefused(str(error))
    return UploadDiscarded(str(error)) if error.retryable else ChunkUploadFailed(str(error))


def produce(claim: Claim, session: database.SourceSession, batch: Batch, since: float) -> Iterator[None]:
    """Add the chunk's file to the batch: the existing file if it may be reused, otherwise a new one from the source."""
    started_at = time.monotonic()
    beat = heartbeat(partial(leases.renew, claim), since=since, on_loss=partial(session.cancel, claim.chunk_id))

    def end(result: ChunkResult) -> None:
        seconds = time.monotonic() - started_at
        DURATIONS.add(claim.dataset, seconds)
        tracing.annotate(outcome=str(result.source), rows=result.rows, bytes=result.bytes)
        batch.end(claim, result, seconds)

    with batch.renewing(beat):
        try:
            if known := reuse(claim):
                end(known)
            else:
                yield from export(claim, session, batch, since=since, checkpoint=beat.check, end=end)
        except storage.StorageError as error:
            raise as_upload_error(error) from error


def reuse(claim: Claim, *, for_pack: bool = False) -> ChunkResult | None:
    """Return the file at the chunk's path if it may be reused and its ETag is the recorded one.

    With `for_pack`, the result also contains the file's bytes. This needs no additional request.
    """
    known, content = claim.known_file, None
    if not claim.may_reuse or known is None:
        return None
    if for_pack:
        try:
            content = storage.read_small(claim.path, size=known.bytes, if_match=known.etag)
        except (storage.Missing, storage.Changed):
            return None
    elif storage.etag_of(claim.path) != known.etag:
        return None
    return ChunkResult(source=Source.REUSED, content=content, **asdict(known))


def export(
    claim: Claim,
    session: database.SourceSession,
    batch: Batch,
    *,
    since: float,
    checkpoint: Callable[[], None],
    end: Callable[[ChunkResult], None],
) -> Iterator[None]:
    """Read the rows once and stream them into the object. An upload that is not committed leaves no object.

    If the batch has more chunks, another thread sends the last request, which is the only one for a small object.
    """
    with storage.Upload(
        claim.path,
        content_type=encoding.content_type(claim.shape),
        metadata={"job": str(claim.job_id), "chunk": str(claim.chunk_id), "token": str(claim.token)},
        if_match=claim.known_file.etag if claim.known_file else None,
        checkpoint=checkpoint,
    ) as upload:
        checkpoint()  # a worker that was suspended and has lost its lease must not connect
        with session.calling(claim.chunk_id), content_of(claim, session) as content:
            checkpoint()  # nor must it start a call
            for block in content:
                upload.write(block)
        checkpoint()  # after a long call, this also replaces a lost connection to the database
        number = upload_number(claim, since)  # not in the other thread, which would have to open a database connection

        def commit() -> None:
            end(commit_upload(claim, upload, content, number))

        if sending := batch.upload(commit):
            try:
                yield
            finally:
                wait([sending])  # even during a shutdown, because the thread uses the upload
            sending.result()
        else:
            commit()


def commit_upload(claim: Claim, upload: storage.Upload, content: encoding.Content, number: int) -> ChunkResult:
    """Commit the upload, or adopt the file that another job has stored at the same path."""
    committed = commit_or_adopt(claim, upload, number)
    if isinstance(committed, KnownFile):
        return ChunkResult(source=Source.REUSED, **asdict(committed))
    stored = committed.stored
    return ChunkResult(
        source=Source.LIVE,
        upload_number=committed.number,
        etag=stored.etag,
        sha256=stored.sha256,
        rows=content.rows,
        bytes=stored.size,
        header_bytes=content.header_bytes,
        data_as_of=claim.claimed_at,
        content=upload.content(packs.PACKED_BYTES),
    )


@contextmanager
def content_of(claim: Claim, session: database.SourceSession) -> Iterator[encoding.Content]:
    """Prepare the content of a chunk's file, from the source or from a built-in dataset."""
    if claim.kind == Kind.FUNCTION:
        yield prepare_call(claim, session)
        return
    job = Job.objects.values("user_id", "filters").get(pk=claim.job_id)
    with built_in.opened(
        claim.kind,
        job["filters"] or {},
        claim.shape,
        user_id=job["user_id"],
        timeout=claim.statement_timeout,
        checkpoint=session.require_not_cancelled,
    ) as content:
        yield content


def prepare_call(claim: Claim, session: database.SourceSession) -> encoding.Content:
    """Prepare the call of the function. It starts when the first block is read."""
    session.begin(timeout=claim.statement_timeout, allow_writes=claim.allow_writes)
    columns = (
        encoding.selected_columns(session.columns(claim.function), claim.shape)
        if encoding.needs_columns(claim.shape)
        else []
    )
    statement = encoding.copy_statement(claim.function, claim.pair, claim.shape, columns, session.encoding)
    envelope = encoding.envelope(claim.shape, claim.pair, columns, dataset=claim.dataset, version=claim.schema_version)
    return encoding.content_of(session.stream(statement), claim.shape, columns, envelope=envelope)


def record_successes(ended: list[Ended]) -> None:
    if any(each.result.source == Source.LIVE for each in ended):
        PAUSES.end(ended[0].claim.dataset)
    progress = transitions.finish(store_in_pack([(each.claim, each.result) for each in ended]))
    finished = progress.chunk_ids if progress else ()
    for claim, result, seconds in ended:
        with bound_contextvars(request_id=claim.request_id, **ids_of(claim)):
            if claim.chunk_id in finished:
                log.info("chunk_done", source=str(result.source), rows=result.rows, bytes=result.bytes)
                metrics.count_done(result.source, result.rows, result.bytes, seconds)
            else:
                record_loss(claim)
    if progress:
        follow_up(progress)


def store_in_pack(results: list[tuple[Claim, ChunkResult]]) -> list[tuple[Claim, ChunkResult]]:
    """Store small files of a job's chunks in a pack. Return the results with the positions of the files in the pack."""
    if len(results) == 1:
        return results
    first = results[0][0]
    offsets = packs.store_batch(first.job_id, first.token, [result.content for _, result in results])
    return [
        (claim, result if offset is None else replace(result, pack=first.token, pack_offset=offset))
        for (claim, result), offset in zip(results, offsets, strict=True)
    ]


def record_failure(claim: Claim, error: ExportError) -> None:
    """Record that an attempt failed. After the last attempt, an older file may replace the chunk."""
    delay, result = transitions.delay_after(claim, error), None
    if delay is None:
        try:
            result = snapshot(claim, error)
        except ChunkUploadFailed as refusal:
            if transitions.waits_for_storage(claim, refusal):
                error, delay = refusal, transitions.delay_after(claim, refusal)
    if result and (progress := transitions.finish([(claim, result)])):
        log.warning("chunk_degraded", code=error.code, detail=error.detail, data_as_of=result.data_as_of.isoformat())
        tracing.annotate(outcome=str(result.source), rows=result.rows, bytes=result.bytes, failed=error.code)
        metrics.count_done(result.source, result.rows, result.bytes)
        follow_up(progress)
        return
    progress = transitions.fail(claim, error, delay=delay)
    facts = {"code": error.code, "detail": error.detail, "attempt": claim.attempts}
    if progress is None:
        record_loss(claim)
    elif delay is not None:
        log.warning("chunk_retrying", **facts, delay=round(delay, 1))
        tracing.annotate(outcome="retried", failed=error.code)
        metrics.count_retry(error.code)
        follow_up(progress)
        wakeups.chunks(waiting=1, delay=delay)
    else:
        log.error("chunk_failed", **facts)
        tracing.annotate(outcome="failed", failed=error.code)
        metrics.count_failure(error.code)
        follow_up(progress)


def snapshot(claim: Claim, error: ExportError) -> ChunkResult | None:
    """Return the older file at the chunk's path if the source failed and the job accepts older files.

    Raises ChunkUploadFailed if the storage fails.
    """
    if not (isinstance(error, SourceFailed) and claim.may_degrade):
        return None
    try:
        # The heartbeat of the attempt has ended, and a storage that hangs may respond after the lease has expired.
        with heartbeat(partial(leases.renew, claim)):
            file = recorded_file(claim)
    except storage.StorageError as failure:
        raise as_upload_error(failure) from failure
    if file is None:
        return None
    return ChunkResult(
        source=Source.SNAPSHOT,
        error_code=error.code,
        error_detail=transitions.truncated(error.detail),
        source_message=error.message,
        **asdict(file),
    )


# ---- Logs, metrics, and wake-ups -------------------------------------------------------------------------------------


def record_loss(claim: Claim) -> None:
    log.warning("lease_lost", attempt=claim.attempts)
    tracing.annotate(outcome="lost")
    metrics.LEASES_LOST.inc()


def follow_up(progress: JobProgress) -> None:
    """Count a change of the job's status. Start the completion of a job that is done, or webhooks if it failed."""
    if progress.status != progress.was:
        metrics.count_job_status(progress.status)
    if progress.all_done:
        wakeups.completion(progress.job_id)
    elif progress.status == JobStatus.FAILED:
        log.error("job_failed", done=progress.done, failed=progress.failed)
        wake_senders()


# ---- Reuse of existing files ----------------------------------------------------------------------------------------


def reuse_batch(pool: ThreadPoolExecutor, slot: WorkerSlot) -> bool:
    """Check a batch of chunks for reusable files. Each needs one request to the storage, but no slot.

    Return whether there were chunks to check.
    """
    claims = leases.claim_reusable(batch=REUSE_BATCH)
    if not claims:
        return False
    if claims[0].started_job:
        metrics.count_job_status(JobStatus.RUNNING)
    with tracing.span("reuse", parent=claims[0].traceparent, job_id=str(claims[0].job_id), chunks=len(claims)):
        check_files(claims, pool, slot)
    return True


def check_files(claims: list[Claim], pool: ThreadPoolExecutor, slot: WorkerSlot) -> None:
    """Finish the chunks that have a reusable file, and queue the others for export."""
    try:
        slot.free()  # so that other workers can use it in the meantime
        found = list(zip(claims, pool.map(tracing.in_context(try_reuse), claims, for_packs(claims)), strict=True))
        finish_reused([(claim, result) for claim, result in found if result])
        queue_missing([claim for claim, result in found if not result])
    except BaseException:
        pool.shutdown(wait=False, cancel_futures=True)
        queue_missing(claims)  # except those that have ended
        raise


def for_packs(claims: list[Claim]) -> Iterator[bool]:
    """Yield for each chunk whether its file fits into the batch's pack, whose size is limited to save memory.

    A file that is alone is not packed, and none is while an outage of the storage is suspected.
    """
    size, is_packed = 0, len(claims) > 1 and not storage.is_suspected()
    for claim in claims:
        more = claim.known_file.bytes if claim.known_file else 0
        fits = is_packed and 0 < more <= min(packs.PACKED_BYTES, packs.BATCH_BYTES - size)
        size += more if fits else 0
        yield fits


def try_reuse(claim: Claim, for_pack: bool) -> ChunkResult | None:  # noqa: FBT001 - `map` passes it by position
    """Return the reusable file, or None to export the chunk. Errors of the storage also return None."""
    try:
        return reuse(claim, for_pack=for_pack)
    except storage.StorageError as error:
        log.warning("file_not_checked", **ids_of(claim), error=str(error))
        if error.is_outage:
            storage.suspect()  # before the source is called for these chunks
        return None


def finish_reused(results: list[tuple[Claim, ChunkResult]]) -> None:
    if results and (progress := transitions.finish(store_in_pack(results))):
        log.info("files_reused", job_id=str(progress.job_id), chunks=progress.chunks)
        metrics.count_done(Source.REUSED, progress.new_rows, progress.new_bytes, count=progress.chunks)
        follow_up(progress)


def queue_missing(claims: list[Claim]) -> None:
    """Queue chunks for export whose file is missing or has changed."""
    if claims:
        transitions.release(claims, attempt=0)
        wakeups.chunks(waiting=len(claims))
