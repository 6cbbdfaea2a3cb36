"""How a stage is run: begin, work under a lease, write down how it ended. The same for both.

At-least-once execution, exactly-once effect: any line here may be the last one that a worker runs, and any of it may
run twice. Only who holds the token in the run-state changes anything; what is stored, is stored once.
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
AWAY_SECONDS = 5.0  # and after one that Redis did not take
AGAIN_SECONDS = 0.5
BEGIN_SECONDS = 3.0  # for which a message waits for Redis
NEARLY_SECONDS = 5.0  # by which clocks may differ: a message that comes so much too early comes again


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """What is different between the two. `find`: what was stored already; `warn`: what to say of an end without that.
    `end` takes the id of its move. `span`: the percent that it begins and ends with."""

    run: Callable[[RunState, StageContext], Any]
    find: Callable[[RunState], Any]
    warn: Callable[[RunState, StageContext], None]
    end: Callable[[RunState, Any, str], None]
    timeout: type[EtlError]
    code: str  # for what is nobody's fault but ours
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
    """Run a stage, if there is anything to run. Returns whether the next link of the chain may begin."""
    try:
        fence = fence_of(task_id)
        since = time.monotonic()
        answer = begin(phase, task_id=task_id, fence=fence) if fence else TransitionResult(Verdict.OVER)
    except runstate.Unavailable as error:
        log.warning("run_state_unavailable", etl_task_id=task_id, reason=str(error))
        return False
    except DATABASE_ERRORS as error:
        log.warning("database_unavailable", etl_task_id=task_id, error=logs.describe(error))
        return False  # no attempt is burned: recovery sends it again
    if answer.verdict is Verdict.PASSED:
        return True  # a message that came twice, or whose worker died right after the work
    if answer.verdict is Verdict.EARLY and answer.seconds < NEARLY_SECONDS:
        dispatch.start(task_id=task_id, phase=phase, delay=answer.seconds)
    if answer.state is None or answer.verdict not in {Verdict.MOVED, Verdict.SPENT}:
        log.info("nothing_to_do", etl_task_id=task_id, stage=str(phase), verdict=str(answer.verdict))
        return False
    ids: dict[str, str | int] = {"etl_task_id": task_id, "stage": str(phase)}
    attempt = answer.state.attempts[phase]
    with (
        tracing.span(f"stage {phase}", parent=answer.state.traceparent, attempt=attempt, **ids),
        bound_contextvars(request_id=answer.state.request_id, **ids),
    ):
        return StageRun(answer.state, since=since).do(is_spent=answer.verdict is Verdict.SPENT)


def fence_of(task_id: int) -> int | None:
    """Return the fence of a task whose row is open; None of another, and then Redis is put right.

    Redis may have come back from an older copy, in which a task that was cancelled still waits. Raises Django's errors.
    """
    fence = Task.objects.open().filter(pk=task_id).values_list("fence", flat=True).first()
    if fence is None:
        completion.correct(task_id)
    return fence


def begin(phase: Phase, *, task_id: int, fence: int) -> TransitionResult:
    """Start; try again for a moment, as the same move: Redis may have made it, and have been late to say so.

    Raises Unavailable.
    """
    move_id = runstate.new_id()
    until = time.monotonic() + min(BEGIN_SECONDS, settings.SLUICE.etl_lease_seconds / 3)
    while True:
        try:
            return runstate.start(task_id, phase=phase, fence=fence, move_id=move_id)
        except runstate.Unavailable:
            if time.monotonic() + AGAIN_SECONDS >= until:
                raise
            time.sleep(AGAIN_SECONDS)


class StageRun:
    """One run of a stage: the state that it began with, which has the token, and the work."""

    def __init__(self, state: RunState, *, since: float) -> None:
        self.state = state
        self.stage = STAGES[state.phase]
        self.since = since
        self.heartbeat = Heartbeat(
            self.renew, lease=settings.SLUICE.etl_lease_seconds, unavailable=(runstate.Unavailable,), since=since
        )
        self.context = context_of(state, self.heartbeat.lost, self.stage.span)

    def renew(self) -> None:
        if runstate.renew(self.state) is not Verdict.MOVED:
            raise LeaseLost

    def do(self, *, is_spent: bool) -> bool:
        """Bring the stage to an outcome. Returns whether it was a success."""
        how = "released"  # whatever is raised from here was told to the worker, not to the stage
        try:
            with self.heartbeat:
                how = self.bury() if is_spent else self.attempt()
        finally:
            metrics.stage_ended(self.state.phase, how, time.monotonic() - self.since)
            tracing.tell(outcome=how)
        return how == "done"

    def attempt(self) -> str:
        """Return how it ended, as the metrics call it."""
        if self.state.attempts[self.state.phase] == 1:
            metrics.task_moved(self.state.status)
        try:
            return self.succeed()
        except Fenced:
            return self.tell_loss()
        except runstate.Unavailable as error:
            log.warning("run_state_unavailable", reason=str(error))
            return self.tell_loss()
        except Exception as error:  # noqa: BLE001 - providers and processors are anybody's code
            return self.end_badly(meaning(error, self.stage))
        except BaseException:
            # The worker is told to leave: hand the stage on at once, not after the lease, and burn no attempt.
            self.hand_on()
            raise

    def succeed(self) -> str:
        return self.finish(self.stage.run(self.state, self.context))

    def finish(self, done: Any) -> str:
        self.insist(lambda move_id: self.stage.end(self.state, done, move_id))
        log.info("stage_done", attempt=self.state.attempts[self.state.phase])
        return "done"

    def end_badly(self, error: EtlError, *, may_wait: bool = False) -> str:
        """An attempt failed: another one later, or the end of the task. `may_wait`: also after the last attempt."""
        attempt = self.state.attempts[self.state.phase]
        facts = {"code": error.code, "attempt": attempt}
        tracing.tell(failed=error.code)
        try:
            if error.transient and (may_wait or attempt < runstate.most_attempts(self.state.phase)):
                delay = delay_after(attempt, error)
                self.wait(delay)
                log.warning("stage_retrying", **facts, delay=round(delay, 1))
                return "retried"
            self.insist(lambda move_id: completion.fail(self.state, error, self.context, move_id))
        except (Fenced, runstate.Unavailable):
            return self.tell_loss()
        log.warning("stage_failed", **facts)
        return "failed"

    def bury(self) -> str:
        """Every attempt is used up, and the last one left no outcome. It may have left a result all the same."""
        try:
            done = self.stage.find(self.state)
            if done is not None:
                return self.finish(done)
            with suppress(*DATABASE_ERRORS):
                self.stage.warn(self.state, self.context)
        except (Fenced, runstate.Unavailable):
            return self.tell_loss()
        except storage.StorageError as error:
            # Not to know what there is is no reason to throw it away.
            return self.end_badly(meaning(error, self.stage), may_wait=True)
        except Exception as error:  # noqa: BLE001 - what is stored may be anything
            return self.end_badly(meaning(error, self.stage))
        return self.end_badly(StageLost(code=self.stage.code))

    def wait(self, delay: float) -> None:
        is_hinted = delay <= dispatch.LONGEST_COUNTDOWN
        verdict = self.insist(
            lambda move_id: runstate.wait(self.state, delay=delay, is_hinted=is_hinted, move_id=move_id)
        )
        if verdict is not Verdict.MOVED:
            raise Fenced
        if is_hinted:
            dispatch.start(task_id=self.state.task_id, phase=self.state.phase, delay=delay)

    def hand_on(self) -> None:
        with suppress(runstate.Unavailable):
            if runstate.release(self.state) is Verdict.MOVED:
                dispatch.start(task_id=self.state.task_id, phase=self.state.phase)
                log.info("stage_released")

    def tell_loss(self) -> str:
        log.warning("lease_lost", attempt=self.state.attempts[self.state.phase])
        return "lost"

    def insist(self, call: Callable[[str], T]) -> T:
        """Return what `call` returns, given the id of its move; while Redis is away, try again for as long as the lease
        is ours, and once more: a move that was made without our hearing of it took the lease, too."""
        move_id = runstate.new_id()
        is_last = False
        while True:
            try:
                return call(move_id)
            except runstate.Unavailable:
                if is_last:
                    raise
                is_last = self.heartbeat.lost.wait(AGAIN_SECONDS) or self.heartbeat.lost.is_set()


def meaning(error: Exception, stage: Stage) -> EtlError:
    """Return what an exception means for the task. Others' words stay out of it: they may quote the document."""
    if isinstance(error, EtlError):
        return error
    if isinstance(error, OutOfTime | SoftTimeLimitExceeded):
        return stage.timeout()
    if isinstance(error, storage.StorageError):
        log.warning("storage_failed", error=str(error))
        return StorageUnavailable(code=stage.code)
    if isinstance(error, DATABASE_ERRORS):
        log.warning("database_unavailable", error=logs.describe(error))
        return DatabaseUnavailable(code=stage.code)
    log.error("unexpected_error", exc_info=error)
    return UnexpectedError(code=stage.code)


# ---- Attempts -------------------------------------------------------------------------------------------------------
def delay_after(attempt: int, error: EtlError) -> float:
    """Return the seconds until the next attempt: what the peer asked for, or twice as many each time, with jitter."""
    env = settings.SLUICE
    longest: float = env.etl_retry_backoff_max_seconds
    if error.retry_after is not None:
        return min(max(error.retry_after, 0), longest)
    return backoff.exponential(attempt, base=env.etl_retry_backoff_base_seconds, maximum=longest)


# ---- What is lent to the stage --------------------------------------------------------------------------------------
def context_of(state: RunState, lost: LeaseLostEvent, span: tuple[int, int]) -> StageContext:
    return StageContext(
        seconds=settings.SLUICE.etl_task_timeout,
        provider_task_id=state.provider_task_id if state.phase == Phase.OCR else "",
        # Of the journal's run, not of this one: questions that hold it must be found there again.
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
    """Writes how far a stage is, a few times a second at most. What Redis does not take is told with the next news."""

    def __init__(self, state: RunState, span: tuple[int, int]) -> None:
        self.state = state
        self.begin, self.end = span
        self.not_before = 0.0
        self.told = state.progress

    def __call__(self, done: int, total: int) -> None:
        # Never the percent that the stage ends with: that one comes with its outcome.
        share = (self.end - self.begin) * min(max(done, 0), total) // max(total, 1)
        percent = min(self.begin + share, self.end - 1)
        now = time.monotonic()
        if percent <= self.told or now < self.not_before:
            return
        self.not_before = now + PROGRESS_SECONDS
        try:
            verdict = runstate.note_progress(self.state, percent, step=f"{done}/{total}")
        except runstate.Unavailable:
            self.not_before = now + AWAY_SECONDS
            return
        if verdict is not Verdict.MOVED:
            raise Fenced
        self.told = percent


def remember(state: RunState, provider_task_id: str) -> None:
    """Note the provider's job at once. Raises Fenced: who has lost the lease has begun a job for nothing."""
    with suppress(runstate.Unavailable):  # a job that is forgotten is begun anew by the next attempt
        if runstate.note_provider_task(state, artifacts.clean(provider_task_id)) is not Verdict.MOVED:
            raise Fenced


def spend(state: RunState, usage: Usage) -> None:
    metrics.tokens_spent(usage.prompt_tokens, usage.completion_tokens)
    with suppress(runstate.Unavailable):
        runstate.note_usage(state, usage)
