"""Actions on batches: cancellation of open documents, and retry of failed documents."""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import structlog
from django.db import transaction
from django.db.models.functions import Coalesce

from config.platform.db import clock
from config.platform.http import audit
from config.platform.http.problems import Problem
from config.platform.plurals import counted
from etl import runstate
from etl.core import metrics
from etl.core.states import Stage, Status
from etl.models import DocumentBatch, Task
from etl.pipeline import actions, batch_ends, budgets, completion, dispatch, queue_limit, turns
from etl.pipeline.actions import OcrResultMissing, translate_state_errors
from etl.pipeline.artifacts import StoredOcr
from etl.runstate import RunState
from rules.library import catalog

log = structlog.get_logger(__name__)

READERS = 8  # threads that look for stored OCR results
CANCELLED_AT_ONCE = 200


class NothingToCancel(Problem):
    status = 409
    code = "not_cancellable"
    detail = "No document of this batch can be cancelled."


class NothingToRetry(Problem):
    status = 409
    code = "nothing_to_retry"
    detail = "No document of this batch has failed."


# ---- Cancel ---------------------------------------------------------------------------------------------------------
def cancel(batch: DocumentBatch, *, is_forced: bool = False) -> int:
    """Cancel the documents that no worker has started, or that wait for post-processing. Return their number.

    `is_forced`: also cancel running documents. The batch ends with the last of its documents. If this process is killed
    in between, recovery records the documents that are already cancelled in Redis, and the others continue. Concurrent
    calls that cancel nothing do not change `cancelled_at`. Raises NothingToCancel and RunStateUnavailable.
    """
    now, running = clock.now(), DocumentBatch.objects.running().filter(pk=batch.pk)
    if not running.update(cancelled_at=Coalesce("cancelled_at", now)):
        raise NothingToCancel(f"The batch has ended: {batch.status}.")
    waiting = list(Task.objects.open().filter(batch_id=batch.pk).without_results().order_by("-rank", "-pk"))
    cancelled: list[RunState] = []
    try:
        for start in range(0, len(waiting), CANCELLED_AT_ONCE):
            ended = cancel_some(waiting[start : start + CANCELLED_AT_ONCE], is_forced=is_forced)
            cancelled += ended
            if ended:
                running.update(cancelled_at=now)  # a concurrent call that cancels nothing may have reset it
                completion.record_many(ended)
    finally:
        if not cancelled:
            running.filter(cancelled_at=now).update(cancelled_at=None)
    if not cancelled:
        if is_forced or not waiting:
            raise NothingToCancel
        raise NothingToCancel(
            f"Being processed: {counted(len(waiting), 'document')}. To cancel such documents too, stop all (`force`)."
        )
    log.info("batch_cancelled", batch_id=batch.pk, documents=len(cancelled), forced=is_forced)
    return len(cancelled)


def cancel_some(tasks: Sequence[Task], *, is_forced: bool) -> list[RunState]:
    """Cancel tasks in Redis. Return those that it has cancelled. Their ends are not recorded yet."""
    transition_id = runstate.new_id()
    with translate_state_errors():
        try:
            outcomes = runstate.cancel_many(tasks, is_forced=is_forced, transition_id=transition_id)
        except runstate.Unavailable:  # Redis may have cancelled them although its reply was late
            outcomes = runstate.cancel_many(tasks, is_forced=is_forced, transition_id=transition_id)
    ended = [outcome.state for outcome in outcomes.values() if outcome.moved and outcome.state]
    for _ in ended:
        metrics.count_task_status(Status.CANCELLED)
    return ended


# ---- Retry ----------------------------------------------------------------------------------------------------------
def retry(batch: DocumentBatch) -> int:
    """Retry the failed documents, each from the stage at which it failed. Return their number.

    All become pending in one transaction: otherwise the first one could end the batch again before the last one has
    started. They are charged to the quota like retries of single documents, all or none. Raises NothingToRetry,
    QuotaExceeded, QueueFull, RunStateUnavailable, and StorageUnavailable.
    """
    failed = list(Task.objects.filter(batch_id=batch.pk, status=Status.FAILED).without_results().order_by("pk"))
    if not failed:
        raise NothingToRetry
    queue_limit.check(user_id=batch.user_id, size=0, count=len(failed))
    for rule_id, version in {(task.rule_id, task.rule_version) for task in failed}:
        budgets.require(batch.user_id, catalog.content(rule_id=rule_id, version=version))
    stored = find_stored(failed)
    with transaction.atomic():
        retried = restart(failed, stored)
        if not retried:
            raise NothingToRetry
        batch_ends.reopen(batch.pk)
        audit.record_change(batch_id=batch.pk)
    for _ in retried:
        metrics.count_task_status(Status.PENDING)
    log.info("batch_retried", batch_id=batch.pk, documents=len(retried))
    dispatch.begin_many({task: Stage(task.phase) for task in retried})
    return len(retried)


def restart(failed: Sequence[Task], stored: dict[int, StoredOcr]) -> list[Task]:
    """Reset the rows of failed tasks, unless another request has just retried them. Return the reset tasks."""
    generations = {task.pk: task.generation for task in failed}
    rows = Task.objects.select_for_update().filter(pk__in=generations, status=Status.FAILED).without_results()
    tasks = [task for task in rows.order_by("pk") if task.generation == generations[task.pk]]
    if not tasks:
        return []
    user_id = tasks[0].user_id
    with translate_state_errors():
        runstate.forget_many(tasks)
    queue_limit.enter(user_id=user_id, count=len(tasks))
    for rank, task in enumerate(tasks, turns.next_rank(user_id)):
        result = stored.get(task.pk)
        actions.reset(task, Stage.POSTPROCESS if result else Stage.OCR, None, result)
        task.rank = rank
        task.save()
    return tasks


def find_stored(tasks: Sequence[Task]) -> dict[int, StoredOcr]:
    """Return the stored OCR results of the tasks that failed after OCR, by task ID. Raises StorageUnavailable."""
    after = [task for task in tasks if (task.error or {}).get("stage") == Stage.POSTPROCESS]
    with ThreadPoolExecutor(READERS) as pool:
        found = pool.map(find_or_none, after)
        return {task.pk: stored for task, stored in zip(after, found, strict=True) if stored}


def find_or_none(task: Task) -> StoredOcr | None:
    try:
        return actions.find_ocr(task)
    except OcrResultMissing:
        return None
