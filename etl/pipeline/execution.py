"""Execution of both stages: start, run under a lease, record the outcome.

At-least-once execution, exactly-once effect: a worker may die at any line, and any line may run twice. Only the holder
of the lease token changes the run-state, and each artifact is stored once.
"""

import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any, NamedTuple, TypeVar

import structlog
from celery.exceptions import SoftTimeLimitExceeded
from django.conf import settings
from structlog.contextvars import bound_contextvars

from config.platform import backoff, storage
from config.platform.durations import duration
from config.platform.heartbeat import Heartbeat, LeaseLost
from config.platform.http.problems import DATABASE_ERRORS
from config.platform.observability import logs, tracing
from config.platform.observability.metrics import CAUGHT
from etl import runstate
from etl.core import metrics
from etl.core.errors import (
    DatabaseUnavailable,
    EtlError,
    Fenced,
    OutOfTime,
    StageLost,
    StorageRefused,
    StorageUnavailable,
    UnexpectedError,
)
from etl.core.states import Stage
from etl.models import Task
from etl.pipeline import artifacts, completion, dispatch, turns
from etl.pipeline.run_context import build_context
from etl.pipeline.stages.definition import STAGES, StageDefinition
from etl.runstate import RunState, TaskIdentity, TransitionResult, Verdict

log = structlog.get_logger(__name__)

T = TypeVar("T")
RETRY_SECONDS = 0.5
RENEW_SECONDS = 2.0  # until a running stage detects that its task was cancelled
BEGIN_SECONDS = 3.0  # for which a message waits for Redis
CLOCK_SKEW_SECONDS = 5.0  # a message that is early by less than this is sent again


def run_next(stage: Stage, *, task_id: int, job_id: str = "") -> bool:
    """Run a stage of the waiting task whose turn it is. Return whether the next stage may start.

    `task_id`, `job_id`: of the message, which only wakes the worker. If no waiting task is found, the task of the
    message is tried: it may be behind many tasks that wait for their next attempts.
    """
    found = start_or_log(partial(start_next, stage, job_id), task_id=task_id)
    if found is None:
        return False
    return found.run() if found.has_started else run(stage, task_id=task_id, job_id=job_id)


def run(stage: Stage, *, task_id: int, job_id: str = "") -> bool:
    """Run a stage of this task if it is due. Return whether the next stage may start."""
    found = start_or_log(partial(start_own, stage, task_id, job_id), task_id=task_id)
    if found is None:
        return False
    outcome = found.outcome
    if outcome.verdict is Verdict.PASSED:
        return True  # a duplicate message, or the worker died right after the stage ended
    if outcome.verdict is Verdict.EARLY and outcome.seconds < CLOCK_SKEW_SECONDS:
        dispatch.wake(task_id=task_id, stage=stage, delay=outcome.seconds)
    if not found.has_started:
        log.info("nothing_to_do", etl_task_id=task_id, stage=str(stage), verdict=str(outcome.verdict))
        return False
    return found.run()


class StartOutcome(NamedTuple):
    """The outcome of a start. `since`: the monotonic time before the start, from which the lease is counted."""

    outcome: TransitionResult
    since: float

    @property
    def has_started(self) -> bool:
        return self.outcome.state is not None and self.outcome.verdict in {Verdict.MOVED, Verdict.SPENT}

    def run(self) -> bool:
        """Run the stage that has started. Return whether the next stage may start."""
        state = self.outcome.state
        assert state is not None  # noqa: S101 - `has_started`
        ids: dict[str, str | int] = {"etl_task_id": state.task_id, "stage": str(state.phase)}
        attempt = state.attempts[state.phase]
        with (
            tracing.span(f"stage {state.phase}", parent=state.traceparent, attempt=attempt, **ids),
            bound_contextvars(request_id=state.request_id, **ids),
        ):
            return StageRun(state, since=self.since).execute(is_spent=self.outcome.verdict is Verdict.SPENT)


def start_or_log(start: Callable[[], StartOutcome], *, task_id: int) -> StartOutcome | None:
    """Start a stage. Return None if Redis or the database is unavailable; recovery then sends a message."""
    try:
        return start()
    except runstate.Unavailable as error:
        log.warning("run_state_unavailable", etl_task_id=task_id, reason=str(error))
    except DATABASE_ERRORS as error:
        log.warning("database_unavailable", etl_task_id=task_id, error=logs.describe(error))
    return None


def start_next(stage: Stage, job_id: str) -> StartOutcome:
    """Start the first waiting task that no other worker has started. Raises Unavailable and Django's errors."""
    for turn in turns.waiting(stage):
        since = time.monotonic()
        found = StartOutcome(begin(stage, turn, job_id=job_id), since)
        if found.has_started:
            return found
    return StartOutcome(TransitionResult(Verdict.OVER), 0)


def start_own(stage: Stage, task_id: int, job_id: str) -> StartOutcome:
    """Start a stage of this task if it is due. Raises Unavailable and Django's errors."""
    task = find_open(task_id)
    since = time.monotonic()
    if task is None:
        return StartOutcome(TransitionResult(Verdict.OVER), since)
    return StartOutcome(begin(stage, task, job_id=job_id), since)


def find_open(task_id: int) -> TaskIdentity | None:
    """Return an open task. If the task has ended, correct its run-state and return None.

    Redis may have been restored from an older copy, in which a cancelled task is still pending. Raises Django's errors.
    """
    task = Task.objects.open().filter(pk=task_id).values_list("task_id", "uuid", "generation", named=True).first()
    if task is None:
        completion.correct(task_id)
    return task


def begin(stage: Stage, task: TaskIdentity, *, job_id: str) -> TransitionResult:
    """Start the stage. While Redis is unavailable, retry briefly with the same transition ID.

    The ID makes the retry safe: Redis may have made the transition although its reply was late. Raises Unavailable.
    """
    transition_id = runstate.new_id()
    until = time.monotonic() + min(BEGIN_SECONDS, settings.SLUICE.etl_lease_seconds / 3)
    while True:
        try:
            return runstate.start(
                task.task_id,
                stage=stage,
                generation=task.generation,
                uuid=task.uuid,
                job_id=job_id,
                transition_id=transition_id,
            )
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
            self.renew,
            lease=settings.SLUICE.etl_lease_seconds,
            unavailable=(runstate.Unavailable,),
            since=since,
            every=RENEW_SECONDS,
        )
        self.context = build_context(state, self.heartbeat.lost, self.stage.span)

    def renew(self) -> None:
        if runstate.renew(self.state) is not Verdict.MOVED:
            raise LeaseLost

    def execute(self, *, is_spent: bool) -> bool:
        """Run the stage, and record its outcome in the metrics. Return whether it succeeded."""
        outcome = "released"  # an exception that leaves this block stops the worker, not the stage
        try:
            with self.heartbeat:
                outcome = self.fail_exhausted() if is_spent else self.attempt()
        finally:
            metrics.count_stage_run(self.state.phase, outcome, time.monotonic() - self.since)
            tracing.annotate(outcome=outcome)
        return outcome == "done"

    def attempt(self) -> str:
        """Run the stage. Return the outcome, as a label of the metrics."""
        if self.state.attempts[self.state.phase] == 1 and not self.state.refused_at:
            metrics.count_task_status(self.state.status)
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
        storage.require_writable()  # do not compute results that cannot be stored
        return self.finish(self.stage.run(self.state, self.context))

    def finish(self, done: Any) -> str:
        self.retry_while_leased(lambda transition_id: self.stage.end(self.state, done, transition_id))
        log.info("stage_done", attempt=self.state.attempts[self.state.phase])
        return "done"

    def handle_failure(self, error: EtlError, *, may_wait: bool = False) -> str:
        """Schedule the next attempt, or fail the task. `may_wait`: wait even after the last attempt.

        While the storage refuses the stage's output, for at most EXPORT_STORAGE_PATIENCE_SECONDS, attempts do not count
        and the pauses grow. Attempts that stored paid responses do not count either. Their number is limited, because
        each one gets further.
        """
        attempt = self.state.attempts[self.state.phase]
        has_advanced = self.context.advanced.is_set()
        facts = {"code": error.code, "attempt": attempt}
        tracing.annotate(failed=error.code)
        try:
            is_refused = isinstance(error, StorageRefused)
            waits = is_refused and self.refused_for < settings.SLUICE.export_storage_patience_seconds
            has_attempts = may_wait or has_advanced or attempt < runstate.max_attempts(self.state.phase)
            if waits or (error.transient and has_attempts):
                delay = delay_after(attempt, error, refused_for=self.refused_for if waits else 0)
                self.wait(error, delay, refused=is_refused, counts=may_wait or not (waits or has_advanced))
                action = "stage_waits_for_storage" if waits else "stage_retrying"
                log.warning(action, **facts, delay=round(delay, 1), advanced=has_advanced)
                return "retried"
            self.retry_while_leased(
                lambda transition_id: completion.fail(self.state, error, self.context, transition_id)
            )
        except (Fenced, runstate.Unavailable):
            return self.report_lease_loss()
        log.warning("stage_failed", **facts)
        return "failed"

    @property
    def refused_for(self) -> float:
        return self.state.refused_for(lease=settings.SLUICE.etl_lease_seconds)

    def fail_exhausted(self) -> str:
        """End a stage that has no attempts left. The last attempt may have stored its output before it crashed."""
        try:
            done = self.stage.find(self.state)
            if done is not None:
                return self.finish(done)
            with suppress(*DATABASE_ERRORS):
                self.stage.warn(self.state, self.context)
        except (Fenced, runstate.Unavailable):
            return self.report_lease_loss()
        except storage.StorageError as error:
            # The output may exist: do not fail the task because the storage is unavailable now.
            return self.handle_failure(as_etl_error(error, self.stage), may_wait=True)
        except Exception as error:  # noqa: BLE001 - stored data may have any shape
            return self.handle_failure(as_etl_error(error, self.stage))
        return self.handle_failure(StageLost(code=self.stage.code))

    def wait(self, error: EtlError, delay: float, *, refused: bool, counts: bool) -> None:
        wakes_up = delay <= dispatch.MAX_COUNTDOWN
        verdict = self.retry_while_leased(
            lambda transition_id: runstate.wait(
                self.state,
                delay=delay,
                wakes_up=wakes_up,
                refused=refused,
                counts=counts,
                warnings=completion.lasting_warnings(self.state, self.context),
                failure=artifacts.clean({"code": error.code, "detail": error.detail}),
                transition_id=transition_id,
            )
        )
        if verdict is not Verdict.MOVED:
            raise Fenced
        if wakes_up:
            dispatch.wake(task_id=self.state.task_id, stage=self.state.phase, delay=delay)

    def release(self) -> None:
        with suppress(runstate.Unavailable):
            warnings = completion.lasting_warnings(self.state, self.context)
            if runstate.release(self.state, warnings=warnings) is Verdict.MOVED:
                dispatch.wake(task_id=self.state.task_id, stage=self.state.phase)
                log.info("stage_released")

    def report_lease_loss(self) -> str:
        log.warning("lease_lost", attempt=self.state.attempts[self.state.phase])
        return "lost"

    def retry_while_leased(self, call: Callable[[str], T]) -> T:
        """Call with a transition ID. While Redis is unavailable, retry until the lease is lost, and once after that.

        The last try is needed because a transition whose reply was lost has already released the lease.
        """
        transition_id = runstate.new_id()
        is_last = False
        while True:
            try:
                return call(transition_id)
            except runstate.Unavailable:
                if is_last:
                    raise
                is_last = self.heartbeat.lost.wait(RETRY_SECONDS) or self.heartbeat.lost.is_set()


def as_etl_error(error: Exception, stage: StageDefinition) -> EtlError:
    """Translate an exception into an EtlError. Drop its message, which may quote the document."""
    if isinstance(error, EtlError):
        return error
    if isinstance(error, OutOfTime | SoftTimeLimitExceeded):
        return stage.timeout.after(duration(settings.SLUICE.etl_task_timeout))
    if isinstance(error, storage.StorageError):
        log.warning("storage_failed", error=str(error))
        if error.is_outage:
            storage.suspect()
            return StorageRefused(code=stage.code)
        return StorageUnavailable(code=stage.code)
    if isinstance(error, DATABASE_ERRORS):
        log.warning("database_unavailable", error=logs.describe(error))
        return DatabaseUnavailable(code=stage.code)
    log.error("unexpected_error", exc_info=error)
    CAUGHT.labels("stage").inc()
    return UnexpectedError(code=stage.code)


# ---- Attempts -------------------------------------------------------------------------------------------------------
def delay_after(attempt: int, error: EtlError, *, refused_for: float = 0) -> float:
    """Return the seconds until the next attempt: the peer's Retry-After, or exponential backoff with jitter.

    Without Retry-After, it is at least a quarter of the time for which the storage has refused the output. It is never
    more than ETL_RETRY_BACKOFF_MAX_SECONDS.
    """
    env = settings.SLUICE
    longest: float = env.etl_retry_backoff_max_seconds
    if error.retry_after is not None:
        return min(max(error.retry_after, 0), longest)
    usual = backoff.exponential(attempt, base=env.etl_retry_backoff_base_seconds, maximum=longest)
    return max(usual, min(refused_for / 4, longest))
