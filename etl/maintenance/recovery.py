"""Recovery from lost run-states, lost wake-up messages, dead workers, and ends that were not written to the row.

Runs every ETL_RECOVERY_SECONDS. Concurrent runs are safe, because each repair is decided by an atomic script in Redis
or by the row's generation.
"""

from collections.abc import Iterator
from contextlib import closing
from datetime import timedelta

import structlog
from django.conf import settings
from django.db import transaction
from django.db.models import Exists, F, OuterRef

from config.platform import storage
from config.platform.broker import BROKER_ERRORS
from config.platform.db import clock
from config.platform.http.problems import DATABASE_ERRORS
from config.platform.observability import logs
from config.platform.observability.metrics import CAUGHT
from config.platform.wakeups import queue_length
from etl import runstate
from etl.core import metrics
from etl.core.states import ENDED, Stage, Status
from etl.maintenance import evaluations
from etl.models import DocumentBatch, Task
from etl.pipeline import artifacts, batch_ends, completion, dispatch, duplicates
from etl.pipeline.artifacts import StoredOcr
from etl.runstate import RunState, TransitionResult, Verdict

log = structlog.get_logger(__name__)

NAME = "recovery"
BATCH = 500
# The review runs every five minutes, because `once` allows a run after half the interval.
REVIEW_SECONDS = 600.0
REVIEW_BATCHES = 1_000  # of BATCH keys each, in one review


def recover() -> None:
    """Recover every open task, unless another process has just done so."""
    try:
        if runstate.once(NAME, every=settings.SLUICE.etl_recovery_seconds, run=recover_all):
            metrics.TICKS.labels("recover").inc()
        runstate.once("review", every=REVIEW_SECONDS, run=review)
    except runstate.Unavailable as error:
        log.warning("run_state_unavailable", reason=str(error))  # the next run retries
    except DATABASE_ERRORS as error:
        log.warning("database_unavailable", error=logs.describe(error))


def recover_all() -> None:
    """Recover all open tasks once. Raises Unavailable and Django's database errors; the next pass does the rest."""
    with closing(RecoveryPass()) as recovery_pass:
        for tasks in batches():
            outcomes = runstate.find_due(tasks)
            recovery_pass.unsent.update(task_id for task_id, outcome in outcomes.items() if outcome.moved)
            for task in tasks:
                recovery_pass.repair(task, outcomes[task.pk])
    settle_batches()
    evaluations.recover()


def settle_batches() -> None:
    """End batches that are still running although all their documents have ended.

    This happens during an upgrade, when workers of an earlier release without batches end the last documents.
    """
    open_tasks = Task.objects.open().filter(batch_id=OuterRef("pk"))
    for batch_id in DocumentBatch.objects.running().exclude(Exists(open_tasks)).values_list("pk", flat=True):
        with transaction.atomic():
            batch_ends.end_if_complete(batch_id)


def review() -> None:
    """Correct open run-states of tasks whose row has ended, and report open run-states without a row.

    After Redis was restored from an older copy, run-states of ended rows can be open. After a database failover that
    lost the last commits, rows are missing. Nothing else would detect these run-states, because they cause no wake-up
    messages. Raises Unavailable and Django's database errors.
    """
    for task_ids in runstate.scan_open(size=BATCH, max_batches=REVIEW_BATCHES):
        statuses = dict(Task.objects.filter(pk__in=task_ids).values_list("pk", "status"))
        for task_id in task_ids:
            if statuses.get(task_id) in ENDED:
                completion.correct(task_id)
        if lost := set(task_ids) - statuses.keys():  # rows are committed before their run-states are created
            log.error("rows_lost", tasks=len(lost))
            metrics.ROWS_LOST.inc(len(lost))


def batches() -> Iterator[list[Task]]:
    last = 0
    tasks = Task.objects.open().defer("last_result", "corrected_result")  # of earlier runs; they may be large
    while batch := list(tasks.filter(pk__gt=last).order_by("pk")[:BATCH]):
        yield batch
        last = batch[-1].pk


class RecoveryPass:
    """One pass over open tasks.

    It waits for an unavailable broker or object storage only once, and not for each task.
    """

    def __init__(self) -> None:
        self.unsent: set[int] = set()  # tasks whose run-state records a message that was not sent
        self.room: dict[Stage, int] = {}  # number of messages that may have been lost, by stage
        self.broker = dispatch.connection()
        self.is_without_broker = False
        self.is_without_storage = False

    def repair(self, task: Task, outcome: TransitionResult) -> None:
        """Recover a task. An unexpected error is logged, so that the other tasks are still recovered."""
        try:
            self.repair_unguarded(task, outcome)
        except storage.StorageError as error:
            self.is_without_storage = True
            log.warning("storage_failed", etl_task_id=task.pk, error=str(error))
        except (runstate.Unavailable, *DATABASE_ERRORS):
            raise
        except Exception:
            log.exception("task_not_recovered", etl_task_id=task.pk)
            CAUGHT.labels("recovery").inc()

    def repair_unguarded(self, task: Task, outcome: TransitionResult) -> None:
        if outcome.verdict in {Verdict.GONE, Verdict.STALE}:
            if is_old_enough(task) and not self.is_without_storage:
                self.recreate(task, is_gone=outcome.verdict is Verdict.GONE)
        elif outcome.verdict is Verdict.OVER and outcome.state:
            record_end(outcome.state)
        elif outcome.verdict is Verdict.MOVED and outcome.state:
            if outcome.state.token or self.has_room(outcome.state.phase):
                log_lost(outcome.state)
                self.wake_worker(task.pk, outcome.state.phase)
            elif not self.is_without_broker:
                self.unsent.discard(task.pk)

    def has_room(self, stage: Stage) -> bool:
        """Return whether the stage's queue has fewer messages than there are open tasks.

        Each message makes a worker run any waiting task, so a queue with a message for each open task has lost none.
        Without this limit, tasks that wait for hours would fill Redis with copies of their messages.
        """
        if stage not in self.room and not self.is_without_broker:
            try:
                length = queue_length(self.broker, settings.ETL_QUEUES[stage])
            except BROKER_ERRORS as error:
                self.is_without_broker = True
                log.warning("queues_not_read", reason=type(error).__name__)
            else:
                self.room[stage] = Task.objects.open().count() - length
        self.room[stage] = self.room.get(stage, 0) - 1
        return self.room[stage] >= 0

    def recreate(self, task: Task, *, is_gone: bool) -> bool:
        """Recreate a run-state from stored artifacts and wake a worker. Return False if another process was faster."""
        stored = artifacts.find_ocr(task)
        if is_gone and not raise_generation(task):
            return False
        outcome = recreate_run_state(task, stored)
        if not (outcome.moved and outcome.state):
            return False
        log.warning("task_recovered", etl_task_id=task.pk, stage=str(outcome.state.phase), generation=task.generation)
        metrics.RECOVERED.labels("state").inc()
        self.wake_worker(task.pk, outcome.state.phase)
        return True

    def wake_worker(self, task_id: int, stage: Stage) -> None:
        self.unsent.add(task_id)
        if not self.is_without_broker and dispatch.wake(task_id=task_id, stage=stage, broker=self.broker):
            self.unsent.discard(task_id)
        else:
            self.is_without_broker = True

    def close(self) -> None:
        """Mark unsent messages as due, also if the pass was interrupted."""
        self.broker.release()
        if self.unsent:
            runstate.mark_unsent(self.unsent)


def log_lost(state: RunState) -> None:
    """Log and count a lost lease or message. If the run-state has a token, a worker died or stalled."""
    kind = "lease" if state.token else "hint"
    log.info("wakeup_sent_again", etl_task_id=state.task_id, stage=str(state.phase), lost=kind)
    metrics.RECOVERED.labels(kind).inc()


def is_old_enough(task: Task) -> bool:
    """Return whether the row is old enough. The process that wrote a newer row may still be creating the run-state."""
    return task.updated_at < clock.now() - timedelta(seconds=settings.SLUICE.etl_recovery_seconds)


def raise_generation(task: Task) -> bool:
    """Raise the row's generation, so that revisions grow and a late creation of the lost run-state fails.

    This isn't needed if the run-state has an older generation than the row: no worker has seen the row's generation.
    Return False if the row has been changed.
    """
    updated = Task.objects.open().filter(pk=task.pk, generation=task.generation).update(generation=F("generation") + 1)
    task.generation += 1
    return bool(updated)


def recreate_run_state(task: Task, stored: StoredOcr | None) -> TransitionResult:
    """Create the run-state as started, because a worker may be reading the document.

    Without `force`, a started task cannot be cancelled during OCR.
    """
    if stored is None:
        return runstate.create(task, stage=Stage(task.phase), started=True)
    facts = completion.facts_of(stored)
    if not task.sha256:
        facts["duplicate_of"] = str(duplicates.find(task, facts.get("sha256", "")) or 0)
    return runstate.create(
        task,
        stage=Stage.POSTPROCESS,
        status=Status.LLM_PROCESSING if task.phase == Stage.OCR else None,
        started=True,
        facts={
            **facts,
            "attempts_ocr": str(stored.attempts),
            "progress": str(runstate.HALF),
        },
    )


def record_end(state: RunState) -> None:
    if completion.record(state):
        log.warning("end_recorded", etl_task_id=state.task_id, status=str(state.status))
        metrics.RECOVERED.labels("end").inc()
