"""What staff may do to tasks, by the functions that the API calls too."""

from typing import Any

from config.platform.admin.confirmed_actions import Asking, Verb, each
from etl.core.states import Phase, Status
from etl.maintenance import manual
from etl.models import Task
from etl.pipeline import actions

MODEL_MAY_COST = "A rule that asks a language model is paid for again, but for answers that a failed run has left."


def fence_of(task: Any) -> str:
    """A mark: grows with every retry."""
    return str(task.fence)


def live_of(task: Any) -> Any:
    """Return what Redis said of the task when its row was read, or else the row."""
    return getattr(task, "live", None) or task


def why_not_cancel(task: Any) -> str:
    return "" if live_of(task).status == Status.PENDING else actions.NotCancellable.detail


def why_not_retry(task: Task) -> str:
    return "" if task.has_ended else actions.NotEnded.detail


def why_not_wake(task: Task) -> str:
    return manual.NotOpen.detail if task.has_ended else ""


def cancel(task: Task, _asking: Asking) -> str:
    actions.cancel(task=task)
    return "No worker will begin with it."


def read_again(task: Task, _asking: Asking) -> str:
    actions.retry(task=task, from_stage=Phase.OCR)
    return "It begins with OCR."


def process_again(task: Task, _asking: Asking) -> str:
    actions.retry(task=task, from_stage=Phase.POSTPROCESS)
    return "It begins with post-processing, from the stored result of OCR."


def wake(task: Task, _asking: Asking) -> str:
    return manual.wake(task)


TASKS = (
    Verb(
        name="cancel",
        label="Cancel",
        past="Cancelled",
        icon="cancel",
        permission="etl.change_task",
        explanation="Only tasks that no worker has begun with are cancelled; the others go on to their end.",
        why_not=why_not_cancel,
        do=each(cancel),
        mark=fence_of,
        is_danger=True,
    ),
    Verb(
        name="retry_ocr",
        label="Retry from OCR",
        past="Retried",
        icon="replay",
        permission="etl.change_task",
        explanation="All is done anew, under the same version of the rule. Result and error are gone then. "
        f"{MODEL_MAY_COST}",
        why_not=why_not_retry,
        do=each(read_again),
        mark=fence_of,
    ),
    Verb(
        name="retry_postprocess",
        label="Retry post-processing",
        past="Retried",
        icon="replay",
        permission="etl.change_task",
        explanation="The stored result of OCR is processed anew, under the same version of the rule. Result and "
        f"error are gone then. {MODEL_MAY_COST}",
        why_not=why_not_retry,
        do=each(process_again),
        mark=fence_of,
    ),
    Verb(
        name="wake",
        label="Requeue",
        past="Requeued",
        icon="notifications_active",
        permission="etl.change_task",
        explanation="For tasks that wait although workers are free: the message that wakes a worker is sent "
        "again, and a run-state that is lost is made anew. Recovery does the same in its next rounds."
        " What is worked on is not disturbed.",
        why_not=why_not_wake,
        do=each(wake),
        mark=fence_of,
    ),
)
