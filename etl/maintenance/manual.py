"""What staff do by hand, where recovery would come later. It is as safe as what recovery does."""

from contextlib import closing

from config.platform import storage
from config.platform.http.problems import Problem, StorageUnavailable
from etl import runstate
from etl.core.states import Phase
from etl.maintenance import recovery
from etl.models import Task
from etl.pipeline.actions import RunStateUnavailable
from etl.runstate import TransitionResult, Verdict


class NotOpen(Problem):
    status = 409
    code = "not_open"
    detail = "This task has ended. Only a task that has not ended can be woken up."


class BeingWorkedOn(Problem):
    status = 409
    code = "being_worked_on"
    detail = "A worker is processing this task. If that worker is lost, another one takes over when the lease expires."


class LookAgain(Problem):
    status = 409
    code = "look_again"
    detail = "The task has changed in the meantime. Reload the page and check it again."


class NotDue(Problem):
    status = 409
    code = "not_due"
    detail = "The task is waiting for its next attempt, which starts automatically."


class NotSent(Problem):
    status = 503
    code = "broker_unavailable"
    detail = "The message broker is not available. The wake-up message is sent automatically when it is back."


def wake(task: Task) -> str:
    """Do at once for one task what recovery does for all in time: make its run-state anew where it is lost, write down
    an end, or send its message again, also where one was sent lately. Returns what was done.

    Raises NotOpen, BeingWorkedOn, LookAgain, NotDue, NotSent, RunStateUnavailable and StorageUnavailable.
    """
    row = Task.objects.open().filter(pk=task.pk).first()
    if row is None:
        raise NotOpen
    try:
        return woken(row, runstate.look({row.pk: row.fence})[row.pk])
    except runstate.Unavailable:
        raise RunStateUnavailable from None
    except storage.StorageError:
        raise StorageUnavailable from None


def woken(task: Task, answer: TransitionResult) -> str:
    if answer.verdict is Verdict.HELD:
        raise BeingWorkedOn
    if answer.verdict is Verdict.EARLY:
        raise NotDue(f"The task waits for its next attempt, in {answer.seconds:.0f} s, and is sent by itself then.")
    if answer.verdict is Verdict.OVER:
        if answer.state is None:
            raise LookAgain
        recovery.write_down(answer.state)
        return "Its end is written down."
    with closing(recovery.RecoveryPass()) as this:
        if answer.verdict in {Verdict.GONE, Verdict.STALE}:
            if not this.take_up(task, is_gone=answer.verdict is Verdict.GONE):
                raise LookAgain
            said = "Its lost state is made anew."
        else:
            state = runstate.read(task.pk)
            this.hint(task.pk, state.phase if state else Phase(task.phase))
            said = "Its message is sent again."
    if this.owed:
        raise NotSent
    return said
