"""The context of a stage's run: progress and usage reports to the run-state, the budget, and the response cache."""

import time
from contextlib import suppress

from django.conf import settings
from django.utils.crypto import salted_hmac

from config.platform.heartbeat import LeaseLostEvent
from etl import runstate
from etl.core import metrics
from etl.core.errors import Fenced
from etl.core.stage_context import StageContext, Usage
from etl.core.states import Stage
from etl.pipeline import artifacts, budgets
from etl.pipeline.response_cache import StoredResponseCache
from etl.runstate import RunState, Verdict

PROGRESS_SECONDS = 0.5  # minimum time between two writes of progress
UNAVAILABLE_SECONDS = 5.0  # pause after a failed write


def build_context(state: RunState, lost: LeaseLostEvent, span: tuple[int, int]) -> StageContext:
    return StageContext(
        seconds=settings.SLUICE.etl_task_timeout,
        provider_task_id=state.provider_task_id if state.phase == Stage.OCR else "",
        # Derived from `journal_run`, not `run`: prompts contain it, and cached responses are found by their prompts.
        secret=salted_hmac(
            "etl.core.stage_context", f"{state.task_id}/{state.journal_run}", algorithm="sha256"
        ).digest(),
        response_cache=StoredResponseCache(state),
        budget=budgets.DailyBudget(user_id=state.user_id, rule_id=state.rule_id),
        on_progress=ProgressReporter(state, span),
        on_provider_task=lambda provider_task_id: record_provider_task(state, provider_task_id),
        on_usage=lambda usage: spend(state, usage),
        lease_lost=lost,
    )


class ProgressReporter:
    """Writes progress to the run-state, at most twice a second. After a failed write, the next one catches up."""

    def __init__(self, state: RunState, span: tuple[int, int]) -> None:
        self.state = state
        self.begin, self.end = span
        self.not_before = 0.0
        self.reported = state.progress

    def __call__(self, done: int, total: int) -> None:
        # Never report the final percent of the stage: its end sets that.
        share = (self.end - self.begin) * min(max(done, 0), total) // max(total, 1)
        percent = min(self.begin + share, self.end - 1)
        now = time.monotonic()
        if percent <= self.reported or now < self.not_before:
            return
        self.not_before = now + PROGRESS_SECONDS
        try:
            verdict = runstate.record_progress(self.state, percent, step=f"{done}/{total}")
        except runstate.Unavailable:
            self.not_before = now + UNAVAILABLE_SECONDS
            return
        if verdict is not Verdict.MOVED:
            raise Fenced
        self.reported = percent


def record_provider_task(state: RunState, provider_task_id: str) -> None:
    """Record the provider's job immediately. Raises Fenced if the lease is lost."""
    with suppress(runstate.Unavailable):  # the next attempt starts a new job
        if runstate.record_provider_task(state, artifacts.clean(provider_task_id)) is not Verdict.MOVED:
            raise Fenced


def spend(state: RunState, usage: Usage) -> None:
    metrics.count_tokens(usage.prompt_tokens, usage.completion_tokens)
    budgets.spend(state.user_id, state.rule_id, usage)
    with suppress(runstate.Unavailable):
        runstate.record_usage(state, usage)
