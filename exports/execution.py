"""How chunks are worked on: claim, look for a file, call, stream, upload, write down. One step after the other.

At-least-once execution, exactly-once effect: any line here may be the last one that a worker runs, and any of it
may run twice.
"""

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict
from functools import partial

import structlog
from celery.exceptions import SoftTimeLimitExceeded
from django.db import OperationalError
from structlog.contextvars import bound_contextvars

from config import logs, storage
from exports import dispatch, encoding, leases, source
from exports.errors import ExportError, LeaseLost, UploadFailed, UploadOvertaken, WorkerFailed
from exports.heartbeat import Heartbeat
from exports.leases import Claim, KnownFile, Progress, Result
from exports.models import File
from exports.states import JobStatus, Source

log = structlog.get_logger(__name__)

# How long a woken worker goes on claiming before it lets Celery speak. A message costs Celery some 4 ms, as much as
# a small chunk; between two messages it can shut down, or run another task.
DRAIN_SECONDS = 5
REUSE_BATCH = 200
REUSE_THREADS = 8


def drain() -> None:
    """Work on chunks, one after the other, until none is ready or the time is over."""
    deadline = time.monotonic() + DRAIN_SECONDS
    with source.Session() as session, quiet_without_database():
        while claim := leases.claim(backend=session.backend):
            with bound_contextvars(request_id=claim.request_id, job_id=str(claim.job_id), chunk_id=claim.chunk_id):
                run_chunk(claim, session)
            session.cancelled = False
            if time.monotonic() > deadline:
                dispatch.chunks(waiting=1)
                return


@contextmanager
def quiet_without_database() -> Iterator[None]:
    """Stop for now when our own database is away: leases run out, and the reaper wakes us when it is back."""
    try:
        yield
    except OperationalError as error:
        log.warning("database_unavailable", error=logs.describe(error))


def run_chunk(claim: Claim, session: source.Session) -> None:
    """Bring one claimed chunk to an outcome, and write that down under its token."""
    try:
        write_down(claim, produce(claim, session))
    except LeaseLost:
        log.warning("lease_lost", attempt=claim.attempts)
        leases.release([claim])  # the chunk is not ours any more; this frees the slot
    except ExportError as error:
        write_down_failure(claim, error)
    except OperationalError:
        raise
    except SoftTimeLimitExceeded:
        write_down_failure(claim, WorkerFailed("over the worker's time limit"))
        raise
    except Exception:
        log.exception("unexpected_error")
        write_down_failure(claim, WorkerFailed("unexpected error"))
    except BaseException:
        # The worker is told to leave: hand the chunk on at once, not after the lease, and burn no attempt.
        leases.release([claim])
        dispatch.chunks(waiting=1)
        raise


def produce(claim: Claim, session: source.Session) -> Result:
    """Return the chunk's file: the one that is there, or a new one from the source."""
    with Heartbeat(partial(leases.renew, claim), on_loss=session.cancel) as heartbeat:
        try:
            return reuse(claim) or export(claim, session, heartbeat)
        except storage.Conflict:
            raise UploadOvertaken from None
        except storage.StorageError as error:
            raise UploadFailed(str(error)) from error
        except ExportError:
            if heartbeat.lost:
                raise LeaseLost from None  # the call was cancelled by us
            raise


def reuse(claim: Claim) -> Result | None:
    """Return the file that lies at the chunk's path already, if it is the one that the cache vouches for."""
    if not claim.may_reuse or claim.known_file is None:
        return None
    head = storage.head(claim.path)
    return adopt(claim.known_file) if head and head.etag == claim.known_file.etag else None


def adopt(file: KnownFile) -> Result:
    return Result(source=Source.REUSED, **asdict(file))


def export(claim: Claim, session: source.Session, heartbeat: Heartbeat) -> Result:
    """Call the function once and stream its rows into the object. What is not committed leaves no trace."""
    content = encoded(claim, session)
    heartbeat.check()  # whoever stood still until here must not begin a call
    with storage.Upload(
        claim.path,
        content_type=encoding.content_type(claim.shape),
        metadata={"job": str(claim.job_id), "chunk": str(claim.chunk_id), "token": str(claim.token)},
        if_match=claim.known_file.etag if claim.known_file else None,
        checkpoint=heartbeat.check,
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


def encoded(claim: Claim, session: source.Session) -> encoding.Encoding:
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


def write_down(claim: Claim, result: Result) -> None:
    progress = leases.finish([(claim, result)])
    if progress is None:
        raise LeaseLost
    log.info("chunk_done", source=str(result.source), rows=result.rows, bytes=result.bytes)
    tell_end(progress)


def write_down_failure(claim: Claim, error: ExportError) -> None:
    failure = leases.fail(claim, error)
    facts = {"code": error.code, "detail": error.detail, "attempt": claim.attempts}
    if failure.progress is None:
        log.warning("lease_lost", attempt=claim.attempts)
    elif failure.delay is not None:
        log.warning("chunk_retrying", **facts, delay=round(failure.delay, 1))
        dispatch.chunks(waiting=1, delay=failure.delay)
    else:
        log.error("chunk_failed", **facts)
        tell_end(failure.progress)


def tell_end(progress: Progress) -> None:
    """What the outcome that ends a job's last chunk leads to."""
    if progress.all_done:
        dispatch.completion(progress.job_id)
    elif progress.status == JobStatus.FAILED:
        log.error("job_failed", done=progress.done, failed=progress.failed)


# ---- Files that are there already -----------------------------------------------------------------------------------


def drain_reusable() -> None:
    """Look at the objects of chunks that may be reused, many at once: no slot, no call, one HEAD each."""
    deadline = time.monotonic() + DRAIN_SECONDS
    with ThreadPoolExecutor(REUSE_THREADS) as pool, quiet_without_database():
        while claims := leases.claim_reusable(batch=REUSE_BATCH):
            try:
                found = list(zip(claims, pool.map(look, claims), strict=True))
            except BaseException:
                pool.shutdown(wait=False, cancel_futures=True)
                export_missing(claims)
                raise
            reuse_found([(claim, result) for claim, result in found if result])
            export_missing([claim for claim, result in found if not result])
            if time.monotonic() > deadline:
                dispatch.reusable(waiting=1)
                return


def look(claim: Claim) -> Result | None:
    """Like `reuse`, but an object store that does not answer counts as nothing found: the call decides then."""
    try:
        return reuse(claim)
    except storage.StorageError:
        return None


def reuse_found(results: list[tuple[Claim, Result]]) -> None:
    if results and (progress := leases.finish(results)):
        log.info("files_reused", job_id=str(progress.job_id), chunks=len(results))
        tell_end(progress)


def export_missing(claims: list[Claim]) -> None:
    """Put chunks whose file is gone or changed into the queue for a call."""
    if claims:
        leases.release(claims, attempt=0)
        dispatch.chunks(waiting=len(claims))
