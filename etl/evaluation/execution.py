"""Evaluation of one sample in a worker: extract data from the stored Markdown with a version of the rule, and score it.

Execution is at least once and takes effect exactly once, as for documents, although a worker can crash at any line. A
message only wakes a worker, which claims the next sample of the message's user, and ends it under the fencing token of
its lease.

The cache of model responses is not used: an evaluation measures the current responses of the model (ADR 39).
"""

import threading
import time
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

import structlog
from django.conf import settings
from django.db import connection
from structlog.contextvars import bound_contextvars

from config.platform import exact_json
from config.platform.db import clock
from config.platform.heartbeat import Heartbeat, LeaseLost
from config.platform.http.problems import DATABASE_ERRORS
from config.platform.observability import logs
from etl import runstate
from etl.core import metrics
from etl.core.errors import ArtifactMissing, EtlError, Fenced, StageLost
from etl.core.json_changes import ABSENT
from etl.core.stage_context import StageContext, Usage
from etl.core.states import Stage
from etl.evaluation import dispatch, queue, scoring
from etl.evaluation.scoring import Score, ValueScore
from etl.models import ModelUsage, SampleRun
from etl.models.evaluation import SampleStatus
from etl.pipeline import budgets, execution
from etl.pipeline.stages import postprocess
from etl.pipeline.stages.definition import STAGES
from rules.library import catalog

log = structlog.get_logger(__name__)

RENEW_SECONDS = 2.0  # a worker notices a cancellation within this time
NOT_READ_SECONDS = 10.0  # delay of the next attempt if OCR of the document has not ended
MAX_MISSES = 50
MAX_SHOWN = 200  # characters of a differing value


def run_next(user_id: int) -> None:
    """Evaluate the next due sample of the user's evaluations, then wake a worker for the one after it."""
    try:
        run = queue.claim(user_id)
        if run is None:
            return
        with bound_contextvars(evaluation_id=run.evaluation_id, sample_id=run.sample_id):
            delay = SampleEvaluation(run).execute()
        dispatch.wake(user_id)
        if delay:
            dispatch.wake(user_id, delay=delay)
    except DATABASE_ERRORS as error:
        log.warning("database_unavailable", error=logs.describe(error))  # recovery wakes a worker later


@dataclass(slots=True)
class Ledger:
    """The recorded model usage of one attempt.

    It is written with each renewal of the lease, so a killed worker loses only the last seconds of it. It is kept when
    the sample is deleted.
    """

    run: SampleRun
    pk: int | None = None
    created_at: datetime = field(default_factory=clock.now)  # identifies the row if the reply to its INSERT is lost

    def record(self, usage: Usage) -> None:
        if not usage.calls:
            return
        evaluation, spent = self.run.evaluation, usage.as_dict()
        if self.pk is None:
            facts = {"user_id": evaluation.user_id, "rule_id": evaluation.rule_id, "created_at": self.created_at}
            self.pk = ModelUsage.objects.get_or_create(task_id=None, **facts, defaults=spent)[0].pk
        ModelUsage.objects.filter(pk=self.pk).update(**spent)


class SampleEvaluation:
    """One attempt to evaluate a sample."""

    def __init__(self, run: SampleRun) -> None:
        self.run = run
        self.earlier = run.usage
        self.ledger = Ledger(run)
        self.started_at = time.monotonic()
        self.heartbeat = Heartbeat(
            self.renew, lease=settings.SLUICE.etl_lease_seconds, unavailable=DATABASE_ERRORS, every=RENEW_SECONDS
        )
        self.context = StageContext(
            seconds=settings.SLUICE.etl_task_timeout,
            on_usage=self.spend,
            lease_lost=self.heartbeat.lost,
            budget=budgets.DailyBudget(user_id=run.evaluation.user_id, rule_id=run.evaluation.rule_id),
        )

    def spend(self, usage: Usage) -> None:
        metrics.count_tokens(usage.prompt_tokens, usage.completion_tokens)
        budgets.spend(self.run.evaluation.user_id, self.run.evaluation.rule_id, usage)

    def renew(self) -> None:
        try:
            self.ledger.record(self.context.usage)
            if not queue.renew(self.run, self.usage()):
                raise LeaseLost
        finally:
            # Each thread has its own connection. Unless it is closed, it never returns to the pool.
            if threading.current_thread() is not threading.main_thread():
                connection.close()

    def usage(self) -> dict[str, int]:
        """Return the usage of this and all earlier attempts."""
        return {name: self.earlier[name] + count for name, count in self.context.usage.as_dict().items()}

    def execute(self) -> float:
        """Evaluate the sample. Return the delay of the next attempt in seconds, or 0 if there is none."""
        try:
            return self.attempt()
        except Fenced:
            log.warning("lease_lost", attempt=self.run.attempts)
            return 0
        finally:
            self.record_usage()

    def record_usage(self) -> None:
        try:
            self.ledger.record(self.context.usage)
        except DATABASE_ERRORS as error:
            log.warning("usage_not_recorded", error=logs.describe(error), **self.context.usage.as_dict())

    def attempt(self) -> float:
        if self.run.attempts > runstate.max_attempts(Stage.POSTPROCESS):  # the last attempt lost its worker
            return self.fail(StageLost(code=STAGES[Stage.POSTPROCESS].code))
        try:
            with self.heartbeat:
                score = scoring.score(self.run.sample.expected, self.extract())
        except Fenced:
            raise
        except Exception as error:  # noqa: BLE001 - processors are third-party code
            return self.handle_failure(execution.as_etl_error(error, STAGES[Stage.POSTPROCESS]))
        except BaseException:
            # The worker is shutting down: return the sample now, before the lease expires, and do not count the
            # attempt.
            with suppress(Fenced, *DATABASE_ERRORS):
                queue.put_back(self.run, self.usage(), counts=False)
            dispatch.wake(self.run.evaluation.user_id)
            raise
        self.finish(SampleStatus.DONE, score)
        log.info("sample_evaluated", attempt=self.run.attempts)
        return 0

    def extract(self) -> Any:
        """Extract data from the stored Markdown with the rule."""
        evaluation = self.run.evaluation
        rule = catalog.content(rule_id=evaluation.rule_id, version=evaluation.version)
        _, done = postprocess.extract(self.run.sample.task, rule, self.context)
        return done.data

    def handle_failure(self, error: EtlError) -> float:
        if isinstance(error, ArtifactMissing) and not self.run.sample.task.has_ended:
            queue.put_back(self.run, self.usage(), delay=NOT_READ_SECONDS, counts=False)
            return NOT_READ_SECONDS
        if error.transient and self.run.attempts < runstate.max_attempts(Stage.POSTPROCESS):
            delay = execution.delay_after(self.run.attempts, error)
            queue.put_back(self.run, self.usage(), delay=delay)
            log.warning("sample_retrying", code=error.code, attempt=self.run.attempts, delay=round(delay, 1))
            return delay
        return self.fail(error)

    def fail(self, error: EtlError) -> float:
        """End a sample as failed, with all expected values counted as missing. Return 0."""
        log.warning("sample_failed", code=error.code, attempt=self.run.attempts)
        self.finish(
            SampleStatus.FAILED,
            scoring.score(self.run.sample.expected, ABSENT),
            error={"code": error.code, "detail": error.detail, "is_operational": error.is_operational},
        )
        return 0

    def finish(self, status: SampleStatus, score: Score, *, error: dict[str, Any] | None = None) -> None:
        evaluation = queue.end(
            self.run,
            status,
            fields={name: [float(each.credit), each.values] for name, each in score.fields.items()},
            misses=[miss_body(each) for each in score.misses[:MAX_MISSES]] if status is SampleStatus.DONE else None,
            error=error,
            duration_ms=int(1000 * (time.monotonic() - self.started_at)),
            **self.usage(),
        )
        if evaluation.ended_at:
            log.info("evaluation_ended", status=str(evaluation.status))


def miss_body(value: ValueScore) -> dict[str, Any]:
    """Return a differing value as it is stored, with long texts truncated."""
    return {"field": value.field, "expected": truncate(value.expected), "found": truncate(value.found)}


def truncate(value: Any) -> Any:
    if value is ABSENT:
        return None
    if isinstance(value, dict | list):
        value = exact_json.dumps(value).decode()
    return f"{value[: MAX_SHOWN - 1]}…" if isinstance(value, str) and len(value) > MAX_SHOWN else value
