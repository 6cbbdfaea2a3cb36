"""Life cycle of a document's job at a server: submit or resume, poll, fetch. A lost job is submitted again."""

import time
from contextlib import suppress
from dataclasses import dataclass
from tempfile import TemporaryFile

import structlog

from etl.core.errors import EtlError, OcrFailed, OutOfTime, ProviderUnavailable
from etl.core.stage_context import StageContext
from etl.providers.base import Document
from etl.providers.mineru import results
from etl.providers.mineru.client import MinerUClient
from etl.providers.mineru.protocol import JobFailed, JobLost, JobState, Protocol
from etl.providers.mineru.results import ParsedResult

log = structlog.get_logger(__name__)

FIRST_PAUSE, MAX_PAUSE, PAUSE_GROWTH = 0.2, 5.0, 1.5
# If polling fails for this long, the stage fails, which frees its worker. The job continues at the server, and the next
# attempt resumes it.
POLL_FAILURE_SECONDS = 60.0
MAX_SUBMISSIONS = 3  # in one run, if the server loses the job
CANCEL_SECONDS = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class FinishedJob:
    job: str
    state: JobState
    result: ParsedResult


def run(server: Protocol, document: Document, *, context: StageContext) -> FinishedJob:
    """Convert a document. Raises EtlError and the errors of `context.check()`.

    A job of an earlier run is resumed, so that its cost is paid only once. If it failed for a transient reason, the
    document is submitted again.
    """
    job = context.provider_task_id
    log.info("mineru_started", protocol=server.name, resumed=bool(job))
    for _ in range(MAX_SUBMISSIONS):
        resumed = bool(job)
        if not job:
            job = server.submit(document)
            context.record_provider_task(job)
        try:
            return finish(server, job, document, context=context)
        except JobLost:
            log.info("mineru_job_gone", protocol=server.name)
        except JobFailed as failed:
            if not resumed or not failed.error.transient:
                raise failed.error from None
        job = ""
    raise OcrFailed("The OCR provider lost the job repeatedly.")


def finish(server: Protocol, job: str, document: Document, *, context: StageContext) -> FinishedJob:
    """Wait for a job and read its result. Raises JobLost and JobFailed in addition to the errors of `run`.

    At the deadline, the job is cancelled, because a document that takes too long must not block others at the server.
    If the lease is lost, the job is not cancelled, because another worker may have resumed it.
    """
    try:
        state = wait(server, job, context=context)
        with TemporaryFile(dir=document.path.parent) as file:
            server.fetch(job, state, into=file)
            result = results.read(file)
    except OutOfTime:
        cancel(server, job)
        raise
    if state.is_partial:
        context.warn("page_failed", "The OCR provider reports a partial result.")
    return FinishedJob(job=job, state=state, result=result)


def wait(server: Protocol, job: str, *, context: StageContext) -> JobState:
    pause = FIRST_PAUSE
    last_response = time.monotonic()
    while True:
        delay = 0.0
        try:
            state = server.poll(job)
        except ProviderUnavailable as error:
            delay = error.retry_after or 0
            if not error.transient or time.monotonic() + delay > last_response + POLL_FAILURE_SECONDS:
                raise
        else:
            last_response = time.monotonic()
            if state.is_over:
                return state
            if state.total:
                context.progress(min(state.done, state.total), state.total)
        context.pause(max(pause, delay))
        pause = min(pause * PAUSE_GROWTH, MAX_PAUSE)


def cancel(server: Protocol, job: str) -> None:
    """Cancel the job if the server is reachable. The server itself may have caused the timeout."""
    if not server.can_cancel:
        return
    with MinerUClient(StageContext(seconds=CANCEL_SECONDS)) as client, suppress(EtlError, OutOfTime):
        type(server)(client).cancel(job)
        log.info("mineru_cancelled", protocol=server.name)
