"""How chunks are worked on: claim, look for a file, call, stream, upload, write down. One step after the other.

At-least-once execution, exactly-once effect: any line here may be the last one that a worker runs, and any of it
may run twice.
"""

import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict
from functools import partial

import structlog
from celery.exceptions import SoftTimeLimitExceeded
from django.db import OperationalError
from structlog.contextvars import bound_contextvars

from config.platform import storage
from config.platform.heartbeat import LeaseLost
from config.platform.observability import logs, tracing
from exports.core import metrics, wakeups
from exports.core.errors import (
    ExportError,
    SourceConnectionsExhausted,
    SourceFailed,
    UploadConflict,
    UploadFailed,
    WorkerFailed,
)
from exports.core.states import JobStatus, Source
from exports.models import File
from exports.source import database, encoding
from exports.webhooks.wakeups import wake_senders
from exports.worker import leases, transitions
from exports.worker.heartbeat import heartbeat
from exports.worker.leases import Claim, KnownFile
from exports.worker.transitions import Progress, Result

log = structlog.get_logger(__name__)

# How long a woken worker goes on claiming before it lets Celery speak. A message costs Celery some 4 ms, as much as
# a small chunk; between two messages it can shut down, or run another task.
DRAIN_SECONDS = 5
# How long it keeps to chunks before it looks at a batch of files again: neither kind waits for the other's end.
TURN_SECONDS = 0.25
REUSE_BATCH = 200
REUSE_THREADS = 8


class Doubt:
    """Whether the object store took the last file. While it does not answer nothing is claimed: the one retry of an
    upload is made at once, and an outage of a minute would fail every chunk that came to its turn in it."""

    is_there = False


def insist_on_storage() -> None:
    """Raises StorageError while the store, which did not take the last file, does not answer."""
    if Doubt.is_there:
        storage.ping()
        Doubt.is_there = False


def drain() -> None:
    """Work on files that may be there already and on chunks, in turns, until there are none or the time is over."""
    deadline = time.monotonic() + DRAIN_SECONDS
    with database.Session() as session, ThreadPoolExecutor(REUSE_THREADS) as pool, quiet_without_servers():
        while reuse_some(pool) | export_some(session):
            if time.monotonic() > deadline:
                wakeups.chunks(waiting=1)
                return


def export_some(session: database.Session) -> bool:
    """Work on chunks, one after the other, until none is ready or the turn is over. Returns whether there were any."""
    until = time.monotonic() + TURN_SECONDS
    some = False
    while time.monotonic() < until:
        insist_on_storage()
        claim = leases.claim(backend=session.backend)
        if claim is None:
            break
        some = True
        tell_begin(claim)
        ids: dict[str, str | int] = {"job_id": str(claim.job_id), "chunk_id": claim.chunk_id}
        with (
            tracing.span("chunk", parent=claim.traceparent, attempt=claim.attempts, **ids),
            bound_contextvars(request_id=claim.request_id, **ids),
        ):
            run_chunk(claim, session)
        session.cancelled = False
    return some


@contextmanager
def quiet_without_servers() -> Iterator[None]:
    """Stop for now when our own database or the object store is away, or the source has no room: the reaper wakes us
    again."""
    try:
        yield
    except SourceConnectionsExhausted:
        log.warning("source_full")
    except OperationalError as error:
        log.warning("database_unavailable", error=logs.describe(error))
    except storage.StorageError as error:
        log.warning("storage_unavailable", error=str(error))


def run_chunk(claim: Claim, session: database.Session) -> None:
    """Bring one claimed chunk to an outcome, and write that down under its token."""
    started_at = time.monotonic()
    try:
        result = produce(claim, session)
        write_down(claim, result, seconds=time.monotonic() - started_at)
    except LeaseLost:
        tell_loss(claim)
        # The chunk is not ours any more: taken over, or cancelled; this frees the slot.
        transitions.release([claim], keep_slot=session.may_run_on)
    except SourceConnectionsExhausted:
        # Not the chunk's fault, so no attempt is burned. No hint either: who has a connection goes on with the chunk,
        # and the reaper wakes the others.
        transitions.release([claim])
        raise
    except ExportError as error:
        write_down_failure(claim, error, keep_slot=session.may_run_on)
    except OperationalError:
        raise
    except SoftTimeLimitExceeded:
        write_down_failure(claim, WorkerFailed("over the worker's time limit"), keep_slot=session.may_run_on)
        raise
    except Exception as error:
        log.exception("unexpected_error")
        write_down_failure(claim, WorkerFailed(in_words(error)), keep_slot=session.may_run_on)
    except BaseException:
        # The worker is told to leave: hand the chunk on at once, not after the lease, and burn no attempt.
        transitions.release([claim], keep_slot=session.may_run_on)
        wakeups.chunks(waiting=1)
        raise


def in_words(error: Exception) -> str:
    """Return what people are told of an error that nobody thought of: that its host is out of disk or memory, if so."""
    lacks_means = isinstance(error, OSError | MemoryError)
    return f"the worker could not go on: {logs.describe(error)}" if lacks_means else "unexpected error"


def produce(claim: Claim, session: database.Session) -> Result:
    """Return the chunk's file: the one that is there, or a new one from the source."""
    with heartbeat(partial(leases.renew, claim), on_loss=session.cancel) as beat:
        try:
            with session.ending_calls():
                return reuse(claim) or export(claim, session, beat.check)
        except storage.Conflict:
            raise UploadConflict from None
        except storage.StorageError as error:
            raise UploadFailed(str(error)) from error
        except ExportError:
            if session.cancelled:  # by the heartbeat
                raise LeaseLost from None
            raise


def reuse(claim: Claim) -> Result | None:
    """Return the file that lies at the chunk's path already, if it is the one that the cache vouches for."""
    if not claim.may_reuse or claim.known_file is None:
        return None
    head = storage.head(claim.path)
    return adopt(claim.known_file) if head and head.etag == claim.known_file.etag else None


def adopt(file: KnownFile) -> Result:
    return Result(source=Source.REUSED, **asdict(file))


def export(claim: Claim, session: database.Session, checkpoint: Callable[[], None]) -> Result:
    """Call the function once and stream its rows into the object. What is not committed leaves no trace."""
    content = encoded(claim, session)
    checkpoint()  # a worker that was stopped until now must not start a call
    with storage.Upload(
        claim.path,
        content_type=encoding.content_type(claim.shape),
        metadata={"job": str(claim.job_id), "chunk": str(claim.chunk_id), "token": str(claim.token)},
        if_match=claim.known_file.etag if claim.known_file else None,
        checkpoint=checkpoint,
    ) as upload:
        for block in content:
            upload.write(block)
        try:
            stored = upload.commit()
        except storage.Conflict as conflict:
            if file := fresh_enough(claim, conflict):
                return adopt(file)
            stored = upload.replace(conflict)
    return Result(
        source=Source.LIVE,
        etag=stored.etag,
        sha256=stored.sha256,
        rows=content.rows,
        bytes=stored.size,
        header_bytes=content.header_bytes,
        data_as_of=claim.claimed_at,
    )


def encoded(claim: Claim, session: database.Session) -> encoding.Encoding:
    columns = session.columns(claim.function) if encoding.needs_columns(claim.shape) else []
    statement = encoding.copy_statement(claim.function, claim.pair, claim.shape, columns)
    return encoding.Encoding(
        session.stream(statement, timeout=claim.statement_timeout),
        claim.shape,
        envelope=encoding.envelope(
            claim.shape, claim.pair, columns, dataset=claim.dataset, version=claim.schema_version
        ),
    )


def fresh_enough(claim: Claim, conflict: storage.Conflict) -> KnownFile | None:
    """Return the file that another job put at our path meanwhile, if the cache vouches for it and it will do.

    For a job that asks for fresh files it will do when its source was read after our claim. What nobody vouches
    for, the upload of a worker that died or was fenced off, is replaced.
    """
    if conflict.head is None:
        return None
    file = File.objects.filter(path=claim.path, etag=conflict.head.etag, schema_version=claim.schema_version).first()
    if file is None or (not claim.may_adopt and file.data_as_of < claim.claimed_at):
        return None
    return KnownFile(**{field: getattr(file, field) for field in leases.FILE_FIELDS})


def write_down(claim: Claim, result: Result, *, seconds: float) -> None:
    progress = transitions.finish([(claim, result)])
    if progress is None:
        raise LeaseLost
    log.info("chunk_done", source=str(result.source), rows=result.rows, bytes=result.bytes)
    tracing.tell(outcome=str(result.source), rows=result.rows, bytes=result.bytes)
    metrics.chunk_done(result.source, result.rows, result.bytes, seconds)
    tell_end(progress)


def write_down_failure(claim: Claim, error: ExportError, *, keep_slot: bool) -> None:
    """Write down that an attempt failed. Where it was the last, an older file may stand in."""
    Doubt.is_there = isinstance(error, UploadFailed)
    delay = transitions.delay_after(claim, error)
    if (
        delay is None
        and (result := snapshot(claim, error))
        and (progress := transitions.finish([(claim, result)], keep_slots=keep_slot))
    ):
        log.warning("chunk_degraded", code=error.code, detail=error.detail, data_as_of=result.data_as_of.isoformat())
        tracing.tell(outcome=str(result.source), rows=result.rows, bytes=result.bytes, failed=error.code)
        metrics.chunk_done(result.source, result.rows, result.bytes)
        tell_end(progress)
        return
    progress = transitions.fail(claim, error, delay=delay, keep_slot=keep_slot)
    facts = {"code": error.code, "detail": error.detail, "attempt": claim.attempts}
    if progress is None:
        tell_loss(claim)
    elif delay is not None:
        log.warning("chunk_retrying", **facts, delay=round(delay, 1))
        tracing.tell(outcome="retried", failed=error.code)
        metrics.chunk_retrying(error.code)
        tell_move(progress)
        wakeups.chunks(waiting=1, delay=delay)
    else:
        log.error("chunk_failed", **facts)
        tracing.tell(outcome="failed", failed=error.code)
        metrics.chunk_failed(error.code)
        tell_end(progress)


def snapshot(claim: Claim, error: ExportError) -> Result | None:
    """Return the older file at the chunk's path, if the source is what failed and the job takes such a file."""
    if not (isinstance(error, SourceFailed) and claim.may_degrade and claim.known_file):
        return None
    try:
        head = storage.head(claim.path)
    except storage.StorageError:
        return None
    if head is None or head.etag != claim.known_file.etag:
        return None
    return Result(
        source=Source.SNAPSHOT,
        error_code=error.code,
        error_detail=transitions.shortened(error.detail),
        **asdict(claim.known_file),
    )


# ---- What others hear of it -----------------------------------------------------------------------------------------


def tell_begin(claim: Claim) -> None:
    if claim.began:
        metrics.job_moved(JobStatus.RUNNING)


def tell_loss(claim: Claim) -> None:
    log.warning("lease_lost", attempt=claim.attempts)
    tracing.tell(outcome="lost")
    metrics.lease_lost()


def tell_move(progress: Progress) -> None:
    if progress.status != progress.was:
        metrics.job_moved(progress.status)


def tell_end(progress: Progress) -> None:
    """What the outcome that ends a job's last chunk leads to."""
    tell_move(progress)
    if progress.all_done:
        wakeups.completion(progress.job_id)
    elif progress.status == JobStatus.FAILED:
        log.error("job_failed", done=progress.done, failed=progress.failed)
        wake_senders()


# ---- Files that are there already -----------------------------------------------------------------------------------


def reuse_some(pool: ThreadPoolExecutor) -> bool:
    """Look at the objects of chunks that may be reused, many at once: no slot, no call, one HEAD each.

    Returns whether there were any.
    """
    claims = leases.claim_reusable(batch=REUSE_BATCH)
    if not claims:
        return False
    tell_begin(claims[0])
    with tracing.span("reuse", parent=claims[0].traceparent, job_id=str(claims[0].job_id), chunks=len(claims)):
        look_for(claims, pool)
    return True


def look_for(claims: list[Claim], pool: ThreadPoolExecutor) -> None:
    """Write down the files that are there, and put the chunks of the others into the queue for a call."""
    try:
        found = list(zip(claims, pool.map(tracing.carried(look), claims), strict=True))
    except BaseException:
        pool.shutdown(wait=False, cancel_futures=True)
        export_missing(claims)
        raise
    reuse_found([(claim, result) for claim, result in found if result])
    export_missing([claim for claim, result in found if not result])


def look(claim: Claim) -> Result | None:
    """Like `reuse`, but an object store that does not answer counts as nothing found: the call decides then."""
    try:
        return reuse(claim)
    except storage.StorageError:
        return None


def reuse_found(results: list[tuple[Claim, Result]]) -> None:
    if results and (progress := transitions.finish(results)):
        log.info("files_reused", job_id=str(progress.job_id), chunks=progress.chunks)
        metrics.chunk_done(Source.REUSED, progress.new_rows, progress.new_bytes, count=progress.chunks)
        tell_end(progress)


def export_missing(claims: list[Claim]) -> None:
    """Put chunks whose file is gone or changed into the queue for a call."""
    if claims:
        transitions.release(claims, attempt=0)
        wakeups.chunks(waiting=len(claims))
