"""One document's job at a server: begun or taken up, waited for, fetched; begun again when the server has lost it."""

import time
from contextlib import suppress
from dataclasses import dataclass
from tempfile import TemporaryFile

import structlog

from etl.core.errors import EtlError, OcrFailed, OutOfTime, ProviderUnavailable
from etl.core.stage_context import StageContext
from etl.providers.base import Document
from etl.providers.mineru import results
from etl.providers.mineru.client import Door
from etl.providers.mineru.protocol import Failed, Gone, Protocol, Standing
from etl.providers.mineru.results import Found

log = structlog.get_logger(__name__)

FIRST_PAUSE, LONGEST_PAUSE, GROWTH = 0.2, 5.0, 1.5
# How long a server may fail to say how a job stands before the stage gives its worker back. The job goes on meanwhile,
# and is taken up by the next attempt.
PATIENCE_SECONDS = 60.0
SUBMISSIONS = 3  # of one run, when the server loses what it was given
FAREWELL_SECONDS = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Done:
    job: str
    standing: Standing
    found: Found


def run(server: Protocol, document: Document, *, context: StageContext) -> Done:
    """Have a document converted. Raises an EtlError, and what `context.check()` raises.

    A job that an earlier run began is taken up, so that nothing is paid twice. One that failed then, for a reason that
    may pass, was left behind by that run; it is begun anew.
    """
    job = context.provider_task_id
    log.info("mineru_started", protocol=server.name, resumed=bool(job))
    for _ in range(SUBMISSIONS):
        resumed = bool(job)
        if not job:
            job = server.submit(document)
            context.record_provider_task(job)
        try:
            return finish(server, job, document, context=context)
        except Gone:
            log.info("mineru_job_gone", protocol=server.name)
        except Failed as failed:
            if not resumed or not failed.error.transient:
                raise failed.error from None
        job = ""
    raise OcrFailed("The OCR provider loses what it is given.")


def finish(server: Protocol, job: str, document: Document, *, context: StageContext) -> Done:
    """Wait for a job and read its result. Raises Gone and Failed, too.

    At the deadline the job is cancelled: a document that takes too long must not keep others waiting at the server.
    When only the lease is lost it is not: another worker has taken the same job up by then.
    """
    try:
        standing = wait(server, job, context=context)
        with TemporaryFile(dir=document.path.parent) as file:
            server.fetch(job, standing, into=file)
            found = results.read(file)
    except OutOfTime:
        cancel(server, job)
        raise
    if standing.is_partial:
        context.warn("page_failed", "The OCR provider calls its result partial.")
    return Done(job=job, standing=standing, found=found)


def wait(server: Protocol, job: str, *, context: StageContext) -> Standing:
    pause = FIRST_PAUSE
    answered = time.monotonic()
    while True:
        wish = 0.0
        try:
            standing = server.look(job)
        except ProviderUnavailable as error:
            wish = error.retry_after or 0
            if not error.transient or time.monotonic() + wish > answered + PATIENCE_SECONDS:
                raise
        else:
            answered = time.monotonic()
            if standing.is_over:
                return standing
            if standing.total:
                context.progress(min(standing.done, standing.total), standing.total)
        context.pause(max(pause, wish))
        pause = min(pause * GROWTH, LONGEST_PAUSE)


def cancel(server: Protocol, job: str) -> None:
    """Tell the server that nobody waits any more. It may be out of reach, which is why we are late perhaps."""
    if not server.can_cancel:
        return
    with Door(StageContext(seconds=FAREWELL_SECONDS)) as door, suppress(EtlError, OutOfTime):
        type(server)(door).cancel(job)
        log.info("mineru_cancelled", protocol=server.name)
