"""Actions on tasks: cancellation of unfinished tasks, and retry of ended tasks."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import structlog
from django.contrib.auth.models import User
from django.db import transaction

from config.platform import storage
from config.platform.db import clock
from config.platform.http import audit, staff
from config.platform.http.problems import NotFound, Problem, StorageUnavailable, require_first
from etl import runstate
from etl.core import metrics
from etl.core.states import Stage, Status
from etl.models import Task
from etl.pipeline import artifacts, batch_ends, budgets, completion, dispatch, queue_limit, turns
from etl.pipeline.artifacts import StoredOcr
from etl.runstate import Verdict
from rules.library import catalog
from rules.library.content import RuleContent

log = structlog.get_logger(__name__)


class NoSuchTask(NotFound):
    detail = "Task not found"


class NotCancellable(Problem):
    status = 409
    code = "not_cancellable"
    detail = (
        "The task is being processed or has ended. A task can be cancelled while it waits for OCR or post-processing. "
        "To cancel a running task, use `force`."
    )


class NotEnded(Problem):
    status = 409
    code = "not_ended"
    detail = "This task has not ended. Only a task that has ended can be retried."


class OcrResultMissing(Problem):
    status = 409
    code = "artifact_missing"
    detail = "This task has no stored OCR result. Retry from OCR."


class RunStateUnavailable(Problem):
    status = 503
    code = "run_state_unavailable"
    detail = "The state of running tasks is not available at the moment. Try again later."


@contextmanager
def translate_state_errors() -> Iterator[None]:
    """Translate failures of Redis and of the object storage into RunStateUnavailable and StorageUnavailable."""
    try:
        yield
    except runstate.Unavailable:
        raise RunStateUnavailable from None
    except storage.StorageError:
        raise StorageUnavailable from None


# ---- Cancel ---------------------------------------------------------------------------------------------------------
def cancel(*, task: Task, is_forced: bool = False) -> None:
    """Cancel a task that no worker has started, or that waits for post-processing.

    `is_forced`: also cancel a running task. Its worker is fenced off, and stops within `execution.RENEW_SECONDS`.
    Raises NotCancellable and RunStateUnavailable.

    Redis decides atomically between a cancellation and a starting worker, so a stale row is harmless. A task without a
    run-state may have been started, so it is not cancelled.
    """
    if task.has_ended:
        raise NotCancellable(f"The task has ended: {task.status}.")
    with translate_state_errors():
        outcome = runstate.cancel(task.pk, generation=task.generation, uuid=task.uuid, is_forced=is_forced)
    if not (outcome.moved and outcome.state):
        raise NotCancellable(refusal_detail(outcome))
    log.info("task_cancelled", etl_task_id=task.pk, forced=is_forced)
    metrics.count_task_status(Status.CANCELLED)
    completion.record(outcome.state)


def refusal_detail(outcome: runstate.TransitionResult) -> str:
    if outcome.state is None or outcome.verdict in {Verdict.STALE, Verdict.NEWER}:
        return "The task is being recovered, and a worker may have started it."
    if outcome.verdict is Verdict.OVER:
        return f"The task has ended: {outcome.state.status}."
    return f"Processing has already started (stage {outcome.state.phase})."


# ---- Retry ----------------------------------------------------------------------------------------------------------
def retry(*, task: Task, from_stage: Stage, rule_content: RuleContent | None = None) -> Task:
    """Retry an ended task from a stage. Return its row, which is pending again.

    `rule_content`: None for the same version of the same rule. Call outside transactions. Raises NoSuchTask,
    NotEnded, OcrResultMissing, QuotaExceeded, QueueFull, RunStateUnavailable, and StorageUnavailable.
    """
    ended = require_ended(task)
    stored = find_ocr(ended) if from_stage == Stage.POSTPROCESS else None
    with transaction.atomic():
        row = require_first(Task.objects.select_for_update().filter(pk=task.pk), NoSuchTask)
        # Another retry may have run meanwhile. The OCR result found above would belong to an older run.
        if not row.has_ended or row.generation != ended.generation:
            raise NotEnded
        # Delete the run-state before the row becomes pending. Later, Redis might be unavailable, and clients would see
        # the end of the previous run. Until the commit, they read the row, which has the same end.
        with translate_state_errors():
            runstate.forget(row.pk, generation=row.generation)
        budgets.require(row.user_id, rule_content or rule_of(row, None, user=row.user))
        queue_limit.enter(user_id=row.user_id)
        row.rank = turns.next_rank(row.user_id)
        reset(row, from_stage, rule_content, stored)
        row.save()
        batch_ends.reopen(row.batch_id)
        audit.record_change(task_id=row.pk)
    metrics.count_task_status(Status.PENDING)
    log.info("task_retried", etl_task_id=row.pk, stage=str(from_stage), run=row.run)
    dispatch.begin(row, stage=from_stage)
    return row


def rule_of(task: Task, rule_id: int | None, *, user: User) -> RuleContent:
    """Return the rule of a retry: the given rule in its current version, or the task's rule in its recorded version.

    Raises NotPermitted if staff who may not open data give a rule: it could reveal the document's text.
    """
    if rule_id is None:
        return catalog.content(rule_id=task.rule_id, version=task.rule_version)
    staff.require_data(user, task.user_id)
    return catalog.resolve(user=user, rule_id=rule_id)


def require_ended(task: Task) -> Task:
    """Return the current row of an ended task. Record the end first if only Redis has it.

    Raises NotEnded, NoSuchTask, RunStateUnavailable, and StorageUnavailable.
    """
    with translate_state_errors():
        state = runstate.read_many([task.pk]).get(task.pk)
        if state and state.has_ended:
            completion.record(state)
    now = require_first(Task.objects.filter(pk=task.pk), NoSuchTask)  # it may have been deleted
    if not now.has_ended:
        raise NotEnded
    return now


def find_ocr(task: Task) -> StoredOcr:
    with translate_state_errors():
        stored = artifacts.find_ocr(task)
        if stored is None or storage.head(stored.markdown_key) is None:
            raise OcrResultMissing
    return stored


def reset(task: Task, stage: Stage, rule: RuleContent | None, stored: StoredOcr | None) -> None:
    """Reset the row of an ended task to a task that has not started."""
    rule_before, status_before = (task.rule_id, task.rule_version), task.status
    if rule is not None:
        task.rule_id, task.rule_version = rule.rule_id, rule.version
    task.generation += 1
    task.run = task.generation  # a generation that is greater than its run shows that a run-state was lost
    if status_before != Status.FAILED or (task.rule_id, task.rule_version) != rule_before:
        task.journal_run = task.run  # only a retry of a failed task reuses its paid responses
    if stage == Stage.OCR:
        task.ocr_run = task.run
    task.status, task.phase = Status.PENDING, stage
    task.progress = runstate.HALF if stored else 0
    task.result = task.error = None
    task.metadata = metadata_of(task, stored)
    task.updated_at = clock.now()


def metadata_of(task: Task, stored: StoredOcr | None) -> dict[str, Any]:
    """Return the metadata of the new run: the usage so far, and the metadata of a reused OCR result."""
    known = runstate.whole_metadata(task.metadata)
    post = known["postprocess"]
    spent = {name: post["earlier_usage"][name] + count for name, count in post["usage"].items()}
    kept = {"postprocess": {"earlier_usage": spent}}
    if stored is None:
        return runstate.whole_metadata(kept)
    attempts = runstate.attempts_of(task.metadata)
    return runstate.whole_metadata(
        {
            **kept,
            "attempts": attempts | {Stage.OCR: max(attempts[Stage.OCR], stored.attempts), Stage.POSTPROCESS: 0},
            "artifact_mineru_markdown_key": stored.markdown_key,
            "provider": stored.facts["provider"],
            "provider_task_id": stored.facts["provider_task_id"],
            "ocr": stored.metadata,
            "warnings": stored.warnings,
            "failed_attempts": [
                each for each in task.metadata.get("failed_attempts", []) if each["stage"] == Stage.OCR
            ],
        }
    )
