"""What a person may do to a task: cancel it before it starts, take it up again after it has ended."""

from typing import Any

import structlog
from django.contrib.auth.models import User
from django.db import transaction
from django.utils import timezone

from config.platform import storage
from config.platform.http.problems import Problem, StorageUnavailable
from etl import runstate
from etl.core import metrics
from etl.core.states import Phase, Status
from etl.models import Task
from etl.pipeline import artifacts, completion, dispatch, queue_limit
from etl.pipeline.artifacts import StoredOcr
from etl.runstate import Verdict
from rules.library import catalog
from rules.library.content import RuleContent

log = structlog.get_logger(__name__)


class NotCancellable(Problem):
    status = 409
    code = "not_cancellable"
    detail = "This task has already started or ended. Only a task that has not started can be cancelled."


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


# ---- Cancel ---------------------------------------------------------------------------------------------------------
def cancel(*, task: Task) -> None:
    """End a task that no worker has begun with: from then on none will. Raises NotCancellable and RunStateUnavailable.

    Redis decides, in one step, between this and a worker that starts, however old the row is that was read. A task
    without a run-state may have been started, so it is not cancelled: it goes on.
    """
    if task.has_ended:
        raise NotCancellable(f"The task has ended: {task.status}.")
    try:
        answer = runstate.cancel(task.pk, fence=task.fence)
    except runstate.Unavailable:
        raise RunStateUnavailable from None
    if not (answer.moved and answer.state):
        raise NotCancellable(why_not(answer))
    log.info("task_cancelled", etl_task_id=task.pk)
    metrics.task_moved(Status.CANCELLED)
    completion.record(answer.state)


def why_not(answer: runstate.TransitionResult) -> str | None:
    if answer.state is None or answer.verdict in {Verdict.STALE, Verdict.NEWER}:
        return "The task is being taken up again; a worker may have begun with it."
    if answer.verdict is Verdict.OVER:
        return f"The task has ended: {answer.state.status}."
    return f"The task has started: {answer.state.phase}."


# ---- Retry ----------------------------------------------------------------------------------------------------------
def retry(*, task: Task, from_stage: Phase, rule_content: RuleContent | None = None) -> Task:
    """Take a task that has ended up again, from a stage on. Returns its row, which is pending again.

    `rule_content`: None for the rule that it had, in the same version. Called outside of transactions. Raises NotEnded,
    ArtefactMissing, QueueFull, RunStateUnavailable and StorageUnavailable.
    """
    ended = as_ended(task)
    stored = find_ocr(ended) if from_stage == Phase.POSTPROCESS else None
    with transaction.atomic():
        again = Task.objects.select_for_update().get(pk=task.pk)
        # Another retry may have come meanwhile, and gone: then what was found in object storage is an older one's.
        if not again.has_ended or again.fence != ended.fence:
            raise NotEnded
        forget(again)
        queue_limit.enter()
        begin_anew(again, from_stage, rule_content, stored)
        again.save()
    metrics.task_moved(Status.PENDING)
    log.info("task_retried", etl_task_id=again.pk, stage=str(from_stage), run=again.run)
    dispatch.begin(again, phase=from_stage)
    return again


def rule_of(task: Task, rule_id: int | None, *, user: User) -> RuleContent:
    """Return the rule of a retry: the one that is named, as it is now, or the task's own in its version."""
    if rule_id is None:
        return catalog.content(rule_id=task.rule_id, version=task.rule_version)
    return catalog.resolve(user=user, rule_id=rule_id)


def as_ended(task: Task) -> Task:
    """Return the row as it is now, with an end that Redis has decided and nobody has written down yet.

    Also asks whether Redis is there at all.
    """
    try:
        state = runstate.read_many([task.pk]).get(task.pk)
        if state and state.has_ended:
            completion.record(state)
    except runstate.Unavailable:
        raise RunStateUnavailable from None
    except storage.StorageError:
        raise StorageUnavailable from None
    now = Task.objects.get(pk=task.pk)
    if not now.has_ended:
        raise NotEnded
    return now


def forget(task: Task) -> None:
    """Take away what Redis shows of the run before: if Redis were away once the row is pending, nothing could.

    Until then the row is read, which says the same. Raises RunStateUnavailable.
    """
    try:
        runstate.forget(task.pk, fence=task.fence)
    except runstate.Unavailable:
        raise RunStateUnavailable from None


def find_ocr(task: Task) -> StoredOcr:
    try:
        stored = artifacts.find_ocr(task)
        if stored is None or storage.head(stored.markdown_key) is None:
            raise OcrResultMissing
    except storage.StorageError:
        raise StorageUnavailable from None
    return stored


def begin_anew(task: Task, stage: Phase, rule: RuleContent | None, stored: StoredOcr | None) -> None:
    """Change a row that has ended into one that has not begun."""
    rule_before, status_before = (task.rule_id, task.rule_version), task.status
    if rule is not None:
        task.rule_id, task.rule_version = rule.rule_id, rule.version
    task.fence += 1
    task.run = task.fence  # a greater fence than that is of a run-state that was lost meanwhile
    if status_before != Status.FAILED or (task.rule_id, task.rule_version) != rule_before:
        task.journal_run = task.run  # asked anew; a task that failed goes on with the answers that are paid
    if stage == Phase.OCR:
        task.ocr_run = task.run
    task.status, task.phase = Status.PENDING, stage
    task.progress = runstate.HALF if stored else 0
    task.result = task.error = None
    task.metadata = metadata_of(task, stored)
    task.updated_at = timezone.now()


def metadata_of(task: Task, stored: StoredOcr | None) -> dict[str, Any]:
    """Return what stays of a task's metadata: what OCR has found, where it is not done again."""
    if stored is None:
        return runstate.whole_metadata({})
    attempts = runstate.attempts_of(task.metadata)
    return runstate.whole_metadata(
        {
            "attempts": attempts | {Phase.OCR: max(attempts[Phase.OCR], stored.attempts), Phase.POSTPROCESS: 0},
            "artifact_mineru_markdown_key": stored.markdown_key,
            "provider": stored.facts["provider"],
            "provider_task_id": stored.facts["provider_task_id"],
            "ocr": stored.metadata,
            "warnings": stored.warnings,
        }
    )
