"""Manual recovery of a task by staff. It is as safe as periodic recovery."""

from contextlib import closing

from config.platform.durations import duration
from config.platform.http.problems import Problem, require_first
from etl import runstate
from etl.core.states import Stage
from etl.maintenance import recovery
from etl.models import Task
from etl.pipeline.actions import translate_state_errors
from etl.runstate import TransitionResult, Verdict


class TaskNotOpen(Problem):
    status = 409
    code = "not_open"
    detail = "This task has ended. Only a task that has not ended can be woken up."


class TaskHeld(Problem):
    status = 409
    code = "being_worked_on"
    detail = "A worker is processing this task. If that worker is lost, another one takes over when the lease expires."


class TaskChanged(Problem):
    status = 409
    code = "task_changed"
    detail = "The task has changed in the meantime. Reload the page and check it again."


class TaskNotDue(Problem):
    status = 409
    code = "not_due"
    detail = "The task is waiting for its next attempt, which starts automatically."


class WakeUpNotSent(Problem):
    status = 503
    code = "broker_unavailable"
    detail = "The message broker is not available. The wake-up message will be sent automatically when it is available."


def wake(task: Task) -> str:
    """Recover one task now: recreate a lost run-state, record the end, or resend the wake-up message.

    Unlike periodic recovery, this resends a message even if the last one is recent. Return a description of the result.

    Raises TaskNotOpen, TaskHeld, TaskChanged, TaskNotDue, WakeUpNotSent, RunStateUnavailable, and StorageUnavailable.
    """
    row = require_first(Task.objects.open().filter(pk=task.pk), TaskNotOpen)
    with translate_state_errors():
        return recover(row, runstate.find_due([row])[row.pk])


def recover(task: Task, outcome: TransitionResult) -> str:
    if outcome.verdict is Verdict.HELD:
        raise TaskHeld
    if outcome.verdict is Verdict.EARLY:
        raise TaskNotDue(
            f"The task is waiting for its next attempt, which starts automatically in {duration(outcome.seconds)}."
        )
    if outcome.verdict is Verdict.OVER:
        if outcome.state is None:
            raise TaskChanged
        recovery.record_end(outcome.state)
        return "The end of the task was recorded."
    with closing(recovery.RecoveryPass()) as recovery_pass:
        if outcome.verdict in {Verdict.GONE, Verdict.STALE}:
            if not recovery_pass.recreate(task, is_gone=outcome.verdict is Verdict.GONE):
                raise TaskChanged
            done = "The lost state was recreated."
        else:
            state = runstate.read(task.pk)
            recovery_pass.wake_worker(task.pk, state.phase if state else Stage(task.phase))
            done = "The wake-up message was sent again."
    if recovery_pass.unsent:
        raise WakeUpNotSent
    return done
