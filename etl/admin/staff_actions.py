"""Staff actions on tasks. They call the same functions as the API."""

from typing import Any

from config.platform.admin.confirmed_actions import Confirmation, StaffAction, each
from etl.core.states import Phase, Status
from etl.maintenance import manual
from etl.models import Task
from etl.pipeline import actions

MODEL_MAY_COST = "Language model calls are paid again, except for responses stored by a failed run."


def fencing_token_of(task: Any) -> str:
    """Return a revision, which grows with each retry."""
    return str(task.fence)


def current_state(task: Any) -> Any:
    """Return the task's run-state from Redis, or its row."""
    return getattr(task, "live", None) or task


def cancel_refusal(task: Any) -> str:
    return "" if current_state(task).status == Status.PENDING else actions.NotCancellable.detail


def retry_refusal(task: Task) -> str:
    return "" if task.has_ended else actions.NotEnded.detail


def wake_refusal(task: Task) -> str:
    return manual.NotOpen.detail if task.has_ended else ""


def cancel(task: Task, _confirmation: Confirmation) -> str:
    actions.cancel(task=task)
    return "The task will not be processed."


def read_again(task: Task, _confirmation: Confirmation) -> str:
    actions.retry(task=task, from_stage=Phase.OCR)
    return "Queued from OCR."


def process_again(task: Task, _confirmation: Confirmation) -> str:
    actions.retry(task=task, from_stage=Phase.POSTPROCESS)
    return "Queued from post-processing, with the stored OCR result."


def wake(task: Task, _confirmation: Confirmation) -> str:
    return manual.wake(task)


TASKS = (
    StaffAction(
        name="cancel",
        label="Cancel",
        past="Cancelled",
        icon="cancel",
        permission="etl.change_task",
        explanation="Only tasks that have not started are cancelled. The others continue.",
        refusal=cancel_refusal,
        do=each(cancel),
        revision=fencing_token_of,
        is_danger=True,
    ),
    StaffAction(
        name="retry_ocr",
        label="Retry from OCR",
        past="Retried",
        icon="replay",
        permission="etl.change_task",
        explanation="Repeats all stages with the same version of the rule. The current result or error is deleted. "
        f"{MODEL_MAY_COST}",
        refusal=retry_refusal,
        do=each(read_again),
        revision=fencing_token_of,
    ),
    StaffAction(
        name="retry_postprocess",
        label="Retry post-processing",
        past="Retried",
        icon="replay",
        permission="etl.change_task",
        explanation="Repeats post-processing of the stored OCR result with the same version of the rule. The current "
        f"result or error is deleted. {MODEL_MAY_COST}",
        refusal=retry_refusal,
        do=each(process_again),
        revision=fencing_token_of,
    ),
    StaffAction(
        name="wake",
        label="Requeue",
        past="Requeued",
        icon="notifications_active",
        permission="etl.change_task",
        explanation="For tasks that stay pending although workers are free: sends the wake-up message again and "
        "restores a lost run-state. Periodic recovery does the same in its next runs. Tasks in progress are not "
        "affected.",
        refusal=wake_refusal,
        do=each(wake),
        revision=fencing_token_of,
    ),
)
