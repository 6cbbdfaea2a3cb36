"""Execution of both stages: start, run under a lease, record the outcome.

At-least-once execution, exactly-once effect: a worker may die at any line, and any line may run twice. Only the holder
of the lease token changes the run-state, and each artifact is stored once.
"""

import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, TypeVar

import structlog
from celery.exceptions import SoftTimeLimitExceeded
from django.conf import settings
from django.utils.crypto import salted_hmac
from structlog.contextvars import bound_contextvars

from config.platform import backoff, storage
from config.platform.heartbeat import Heartbeat, LeaseLost, LeaseLostEvent
from config.platform.http.problems import DATABASE_ERRORS
from config.platform.observability import logs, tracing
from config.platform.observability.metrics import CAUGHT
from etl import runstate
from etl.core import metrics
from etl.core.errors import (
    DatabaseUnavailable,
    EtlError,
    Fenced,
    OcrTimeout,
    OutOfTime,
    StageLost,
    StageTimeout,
    StorageRefused,
    StorageUnavailable,
    UnexpectedError,
)
from etl.core.stage_context import StageContext, Usage, ignore
from etl.core.states import Phase
from etl.models import Task
from etl.pipeline import artifacts, completion, dispatch
from etl.pipeline.response_cache import StoredResponseCache
from etl.pipeline.stages import ocr, postprocess
from etl.runstate import RunState, TransitionResult, Verdict

log = structlog.get_logger(__name__)

T = TypeVar("T")
PROGRESS_SECONDS = 0.5  # between two writes of progress
UNAVAILABLE_SECONDS = 5.0  # after a write that failed
RETRY_SECONDS = 0.5
BEGIN_SECONDS = 3.0  # that a message waits for Redis
CLOCK_SKEW_SECONDS = 5.0  # a message that is early by less than this is sent again


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """The differences between the two stages.

    `find`: returns the stored output, if any. `warn`: adds warnings to a failure without output. `end`: takes the id of
    its transition. `span`: the percent of progress at the start and at the end.
    """

    run: Callable[[RunState, StageContext], Any]
    find: Callable[[RunState], Any]
    warn: Callable[[RunState, StageContext], None]
    end: Callable[[RunState, Any, str], None]
    timeout: type[EtlError]
    code: str  # of internal errors
    span: tuple[int, int]


STAGES = {
    Phase.OCR: Stage(
        run=ocr.run,
        find=artifacts.find_ocr,
        warn=ignore,
        end=completion.advance,
        timeout=OcrTimeout,
        code="ocr_failed",
        span=(0, 50),
    ),
    Phase.POSTPROCESS: Stage(
        run=postprocess.run,
        find=postprocess.find,
        warn=postprocess.warn_of_loss,
        end=completion.complete,
        timeout=StageTimeout,
        code="timeout",
        span=(50, 100),
    ),
}


def run(phase: Phase, *, task_id: int) -> bool:
    """Run a stage if it is due. Return whether the next stage may start."""
    try:
        fence = fence_of(task_id)
        since = time.monotonic()
        outcome = begin(phase, task_id=task_id, fence=fence) if fence else TransitionResult(Verdict.OVER)
    except runstate.Unavailable as error:
        log.warning("run_state_unavailable", etl_task_id=task_id, reason=str(error))
        return False
    except DATABASE_ERRORS as error:
        log.warning("database_unavailable", etl_task_id=task_id, error=logs.describe(error))
        return False  # no attempt is used: recovery sends the message again
    if outcome.verdict is Verdict.PASSED:
        return True  # a duplicate message, or the worker died right after the stage ended
    if outcome.verdict is Verdict.EARLY and outcome.seconds < CLOCK_SKEW_SECONDS:
        dispatch.start(task_id=task_id, phase=phase, delay=outcome.seconds)
    if outcome.state is None or outcome.verdict not in {Verdict.MOVED, Verdict.SPENT}:
        log.info("nothing_to_do", etl_task_id=task_id, stage=str(phase), verdict=str(outcome.verdict))
        return False
    ids: dict[str, str | int] = {"etl_task_id": task_id, "stage": str(phase)}
    attempt = outcome.state.attempts[phase]
    with (
        tracing.span(f"stage {phase}", parent=outcome.state.traceparent, attempt=attempt, **ids),
        bound_contextvars(request_id=outcome.state.request_id, **ids),
    ):
        return StageRun(outcome.state, since=since).do(is_spent=outcome.verdict is Verdict.SPENT)


def fence_of(task_id: int) -> int | None:
    """Return the fence of an open task. Otherwise correct its run-state and return None.

    Redis may have been restored from an older copy in which a cancelled task is still pending. Raises Django's errors.
    """
    fence = Task.objects.open().filter(pk=task_id).values_list("fence", flat=True).first()
    if fence is None:
        completion.correct(task_id)
    return fence


def begin(phase: Phase, *, task_id: int, fence: int) -> TransitionResult:
    """Start the stage; while Redis is unavailable, retry briefly with the same transition id.

    Redis may have made the transition although its reply was late. Raises Unavailable.
    """
    move_id = runstate.new_id()
    until = time.monotonic() + min(BEGIN_SECONDS, settings.SLUICE.etl_lease_seconds / 3)
    while True:
        try:
            return runstate.start(task_id, phase=phase, fence=fence, move_id=move_id)
        except runstate.Unavailable:
            if time.monotonic() + RETRY_SECONDS >= until:
                raise
            time.sleep(RETRY_SECONDS)


class StageRun:
    """One run of a stage. `state`: as of the start, with the lease token."""

    def __init__(self, state: RunState, *, since: float) -> None:
        self.state = state
        self.stage = STAGES[state.phase]
        self.since = since
        self.heartbeat = Heartbeat(
            self.renew, lease=settings.SLUICE.etl_lease_seconds, unavailable=(runstate.Unavailable,), since=since
        )
        self.context = build_context(state, self.heartbeat.lost, self.stage.span)

    def renew(self) -> None:
        if runstate.renew(self.state) is not Verdict.MOVED:
            raise LeaseLost

    def do(self, *, is_spent: bool) -> bool:
        """Run the stage to an outcome. Return whether it succeeded."""
        how = "released"  # an exception that leaves this block stops the worker, not the stage
        try:
            with self.heartbeat:
                how = self.fail_exhausted() if is_spent else self.attempt()
        finally:
            metrics.stage_ended(self.state.phase, how, time.monotonic() - self.since)
            tracing.annotate(outcome=how)
        return how == "done"

    def attempt(self) -> str:
        """Return the outcome, as the metrics label it."""
        if self.state.attempts[self.state.phase] == 1 and not self.state.refused_at:
            metrics.task_moved(self.state.status)
        try:
            return self.succeed()
        except Fenced:
            return self.report_lease_loss()
        except runstate.Unavailable as error:
            log.warning("run_state_unavailable", reason=str(error))
            return self.report_lease_loss()
        except Exception as error:  # noqa: BLE001 - providers and processors are third-party code
            return self.handle_failure(as_etl_error(error, self.stage))
        except BaseException:
            # The worker is shutting down: release the stage now, not when the lease expires, and use no attempt.
            self.release()
            raise

    def succeed(self) -> str:
        storage.require_writable()  # nothing is computed that cannot be stored
        return self.finish(self.stage.run(self.state, self.context))

    def finish(self, done: Any) -> str:
        self.retry_while_leased(lambda move_id: self.stage.end(self.state, done, move_id))
        log.info("stage_done", attempt=self.state.attempts[self.state.phase])
        return "done"

    def handle_failure(self, error: EtlError, *, may_wait: bool = False) -> str:
        """Schedule the next attempt, or fail the task. `may_wait`: wait even after the last attempt."""
        attempt = self.state.attempts[self.state.phase]
        facts = {"code": error.code, "attempt": attempt}
        tracing.annotate(failed=error.code)
        try:
            if isinstance(error, StorageRefused) and (refused_at := self.refused_at()):
                delay = delay_after(attempt, error)
                self.wait(delay, refused_at=refused_at)
                log.warning("stage_waits_for_storage", **facts, delay=round(delay, 1))
                return "retried"
            if error.transient and (may_wait or attempt < runstate.most_attempts(self.state.phase)):
                delay = delay_after(attempt, error)
                self.wait(delay)
                log.warning("stage_retrying", **facts, delay=round(delay, 1))
                return "retried"
            self.retry_while_leased(lambda move_id: completion.fail(self.state, error, self.context, move_id))
        except (Fenced, runstate.Unavailable):
            return self.report_lease_loss()
        log.warning("stage_failed", **facts)
        return "failed"

    def refused_at(self) -> float:
        """Return when the storage first refused this stage. 0: for too long, so that the attempt counts."""
        now = time.time()
        since = self.state.refused_at or now
        return since if now - since < settings.SLUICE.export_storage_patience_seconds else 0

    def fail_exhausted(self) -> str:
        """End a stage that has no attempts left. The last one may have stored its output before it died."""
        try:
            done = self.stage.find(self.state)
            if done is not None:
                return self.finish(done)
            with suppress(*DATABASE_ERRORS):
                self.stage.warn(self.state, self.context)
        except (Fenced, runstate.Unavailable):
            return self.report_lease_loss()
        except storage.StorageError as error:
            # The output may be there: do not fail the task because it cannot be read now.
            return self.handle_failure(as_etl_error(error, self.stage), may_wait=True)
        except Exception as error:  # noqa: BLE001 - stored data may have any shape
            return self.handle_failure(as_etl_error(error, self.stage))
        return self.handle_failure(StageLost(code=self.stage.code))

    def wait(self, delay: float, *, refused_at: float = 0) -> None:
        wakes_up = delay <= dispatch.LONGEST_COUNTDOWN
        verdict = self.retry_while_leased(
            lambda move_id: runstate.wait(
                self.state, delay=delay, wakes_up=wakes_up, refused_at=refused_at, move_id=move_id
            )
        )
        if verdict is not Verdict.MOVED:
            raise Fenced
        if wakes_up:
            dispatch.start(task_id=self.state.task_id, phase=self.state.phase, delay=delay)

    def release(self) -> None:
        with suppress(runstate.Unavailable):
            if runstate.release(self.state) is Verdict.MOVED:
                dispatch.start(task_id=self.state.task_id, phase=self.state.phase)
                log.info("stage_released")

    def report_lease_loss(self) -> str:
        log.warning("lease_lost", attempt=self.state.attempts[self.state.phase])
        return "lost"

    def retry_while_leased(self, call: Callable[[str], T]) -> T:
        """Call with a transition id, and retry while Redis is unavailable and the lease holds, and once after that.

        The last try is needed because a transition whose reply was lost has already taken the lease back.
        """
        move_id = runstate.new_id()
        is_last = False
        while True:
            try:
                return call(move_id)
            except runstate.Unavailable:
                if is_last:
                    raise
                is_last = self.heartbeat.lost.wait(RETRY_SECONDS) or self.heartbeat.lost.is_set()


def as_etl_error(error: Exception, stage: Stage) -> EtlError:
    """Translate an exception into an EtlError. Drop its message, which may quote the document."""
    if isinstance(error, EtlError):
        return error
    if isinstance(error, OutOfTime | SoftTimeLimitExceeded):
        return stage.timeout()
    if isinstance(error, storage.StorageError):
        log.warning("storage_failed", error=str(error))
        if error.is_outage:
            storage.doubt()
            return StorageRefused(code=stage.code)
        return StorageUnavailable(code=stage.code)
    if isinstance(error, DATABASE_ERRORS):
        log.warning("database_unavailable", error=logs.describe(error))
        return DatabaseUnavailable(code=stage.code)
    log.error("unexpected_error", exc_info=error)
    CAUGHT.labels("stage").inc()
    return UnexpectedError(code=stage.code)


# ---- Attempts -------------------------------------------------------------------------------------------------------
def delay_after(attempt: int, error: EtlError) -> float:
    """Return the seconds until the next attempt: the peer's Retry-After, or exponential backoff with jitter."""
    env = settings.SLUICE
    longest: float = env.etl_retry_backoff_max_seconds
    if error.retry_after is not None:
        return min(max(error.retry_after, 0), longest)
    return backoff.exponential(attempt, base=env.etl_retry_backoff_base_seconds, maximum=longest)


# ---- The context ----------------------------------------------------------------------------------------------------
def build_context(state: RunState, lost: LeaseLostEvent, span: tuple[int, int]) -> StageContext:
    return StageContext(
        seconds=settings.SLUICE.etl_task_timeout,
        provider_task_id=state.provider_task_id if state.phase == Phase.OCR else "",
        # From `journal_run`, not `run`: prompts contain it, and their cached responses must be found again.
        secret=salted_hmac(
            "etl.core.stage_context", f"{state.task_id}/{state.journal_run}", algorithm="sha256"
        ).digest(),
        response_cache=StoredResponseCache(state),
        on_progress=ProgressReporter(state, span),
        on_provider_task=lambda provider_task_id: remember(state, provider_task_id),
        on_usage=lambda usage: spend(state, usage),
        lease_lost=lost,
    )


class ProgressReporter:
    """Writes progress to the run-state, at most twice a second. A failed write is made up by the next one."""

    def __init__(self, state: RunState, span: tuple[int, int]) -> None:
        self.state = state
        self.begin, self.end = span
        self.not_before = 0.0
        self.reported = state.progress

    def __call__(self, done: int, total: int) -> None:
        # Never the final percent: the stage's outcome sets that.
        share = (self.end - self.begin) * min(max(done, 0), total) // max(total, 1)
        percent = min(self.begin + share, self.end - 1)
        now = time.monotonic()
        if percent <= self.reported or now < self.not_before:
            return
        self.not_before = now + PROGRESS_SECONDS
        try:
            verdict = runstate.note_progress(self.state, percent, step=f"{done}/{total}")
        except runstate.Unavailable:
            self.not_before = now + UNAVAILABLE_SECONDS
            return
        if verdict is not Verdict.MOVED:
            raise Fenced
        self.reported = percent


def remember(state: RunState, provider_task_id: str) -> None:
    """Record the provider's job at once. Raises Fenced if the lease is lost."""
    with suppress(runstate.Unavailable):  # the next attempt starts a new job
        if runstate.note_provider_task(state, artifacts.clean(provider_task_id)) is not Verdict.MOVED:
            raise Fenced


def spend(state: RunState, usage: Usage) -> None:
    metrics.tokens_spent(usage.prompt_tokens, usage.completion_tokens)
    with suppress(runstate.Unavailable):
        runstate.note_usage(state, usage)
