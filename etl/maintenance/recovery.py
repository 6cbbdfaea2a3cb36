"""What goes on when something was lost: run-states, messages, workers, or an end that did not reach its row.

Runs every ETL_RECOVERY_SECONDS and may run any number of times, also beside itself: whatever it does is decided by the
run-state's script, or by a row's fence.
"""

from collections.abc import Iterator
from contextlib import closing
from datetime import timedelta

import structlog
from django.conf import settings
from django.db.models import F
from django.utils import timezone

from config.platform import storage
from config.platform.http.problems import DATABASE_ERRORS
from config.platform.observability import logs
from etl import runstate
from etl.core import metrics
from etl.core.states import ENDED, Phase, Status
from etl.models import Task
from etl.pipeline import artifacts, completion, dispatch
from etl.pipeline.artifacts import StoredOcr
from etl.runstate import RunState, TransitionResult, Verdict

log = structlog.get_logger(__name__)

NAME = "recovery"
BATCH = 500
# What Redis says of tasks that have ended in their rows is looked at every five minutes: `once` lets half of it pass.
REVIEW_SECONDS = 600.0
REVIEW_BATCHES = 1_000  # of BATCH keys each: not more in one look


def recover() -> None:
    """Look at every task that has not ended, unless another beat has just done so."""
    try:
        if runstate.once(NAME, every=settings.SLUICE.etl_recovery_seconds, run=look):
            metrics.ticked("recover")
        runstate.once("review", every=REVIEW_SECONDS, run=review)
    except runstate.Unavailable as error:
        log.warning("run_state_unavailable", reason=str(error))  # nothing can go on before it is back
    except DATABASE_ERRORS as error:
        log.warning("database_unavailable", error=logs.describe(error))


def look() -> None:
    """Raises Unavailable and Django's errors: then the next look does what this one did not."""
    with closing(RecoveryPass()) as this:
        for tasks in batches():
            answers = runstate.look({task.pk: task.fence for task in tasks})
            this.owed.update(task_id for task_id, answer in answers.items() if answer.moved)
            for task in tasks:
                this.mend(task, answers[task.pk])


def review() -> None:
    """Put run-states right that go on while their rows have ended: of a Redis that came back from an older copy, where
    no message wakes a worker that would see it. Raises Unavailable and Django's errors."""
    for task_ids in runstate.scan(size=BATCH, most=REVIEW_BATCHES):
        for task_id in Task.objects.filter(pk__in=task_ids, status__in=ENDED).values_list("pk", flat=True):
            completion.correct(task_id)


def batches() -> Iterator[list[Task]]:
    last = 0
    while batch := list(Task.objects.open().filter(pk__gt=last).order_by("pk")[:BATCH]):
        yield batch
        last = batch[-1].pk


class RecoveryPass:
    """One look at all open tasks. A broker or an object storage that is away is waited for once, not for each task."""

    def __init__(self) -> None:
        self.owed: set[int] = set()  # hints that count as sent
        self.broker = dispatch.connection()
        self.is_without_broker = False
        self.is_without_storage = False

    def mend(self, task: Task, answer: TransitionResult) -> None:
        """Do what a task needs, if it can be done. One that cannot must not keep the others from it."""
        try:
            self.do_what_is_needed(task, answer)
        except storage.StorageError as error:
            self.is_without_storage = True
            log.warning("storage_failed", etl_task_id=task.pk, error=str(error))
        except (runstate.Unavailable, *DATABASE_ERRORS):
            raise
        except Exception:
            log.exception("task_not_mended", etl_task_id=task.pk)

    def do_what_is_needed(self, task: Task, answer: TransitionResult) -> None:
        if answer.verdict in {Verdict.GONE, Verdict.STALE}:
            if is_old_enough(task) and not self.is_without_storage:
                self.take_up(task, is_gone=answer.verdict is Verdict.GONE)
        elif answer.verdict is Verdict.OVER and answer.state:
            write_down(answer.state)
        elif answer.verdict is Verdict.MOVED and answer.state:
            tell(answer.state)
            self.hint(task.pk, answer.state.phase)

    def take_up(self, task: Task, *, is_gone: bool) -> bool:
        """Make a task's run-state anew, from what is stored, and send it on its way. Returns False when somebody else
        was quicker."""
        stored = artifacts.find_ocr(task)
        if is_gone and not step_fence(task):
            return False
        answer = make_anew(task, stored)
        if not (answer.moved and answer.state):
            return False
        log.warning("task_taken_up", etl_task_id=task.pk, stage=str(answer.state.phase), fence=task.fence)
        metrics.recovered("state")
        self.hint(task.pk, answer.state.phase)
        return True

    def hint(self, task_id: int, phase: Phase) -> None:
        self.owed.add(task_id)
        if not self.is_without_broker and dispatch.start(task_id=task_id, phase=phase, broker=self.broker):
            self.owed.discard(task_id)
        else:
            self.is_without_broker = True

    def close(self) -> None:
        """What was not sent is due again, also where the look was cut short."""
        self.broker.release()
        if self.owed:
            runstate.unsent(self.owed)


def tell(state: RunState) -> None:
    """A token that is there still is of a worker that died or stalled: its lease is over."""
    what = "lease" if state.token else "hint"
    log.info("hint_sent_again", etl_task_id=state.task_id, stage=str(state.phase), lost=what)
    metrics.recovered(what)


def is_old_enough(task: Task) -> bool:
    """Whoever has just written the row may be about to make the run-state."""
    return task.updated_at < timezone.now() - timedelta(seconds=settings.SLUICE.etl_recovery_seconds)


def step_fence(task: Task) -> bool:
    """Revisions go on growing, and whoever is about to make the first run-state after all is too late. An older state
    than the row's needs no step: no worker has seen the row's fence yet. Returns whether the row was as it was read."""
    stepped = Task.objects.open().filter(pk=task.pk, fence=task.fence).update(fence=F("fence") + 1)
    task.fence += 1
    return bool(stepped)


def make_anew(task: Task, stored: StoredOcr | None) -> TransitionResult:
    """A worker may be at it, or have been: nobody can promise any more that the document was not read."""
    if stored is None:
        return runstate.create(task, phase=Phase(task.phase), started=True)
    return runstate.create(
        task,
        phase=Phase.POSTPROCESS,
        status=Status.LLM_PROCESSING if task.phase == Phase.OCR else None,
        started=True,
        facts={
            **completion.facts_of(stored),
            "attempts_ocr": str(stored.attempts),
            "progress": str(runstate.HALF),
        },
    )


def write_down(state: RunState) -> None:
    if completion.record(state):
        log.warning("end_recorded", etl_task_id=state.task_id, status=str(state.status))
        metrics.recovered("end")
