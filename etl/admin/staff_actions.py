"""Staff actions on documents. They call the same functions as the API."""

from collections.abc import Iterator, Sequence
from typing import Any

from config.platform.admin.confirmed_actions import (
    Confirmation,
    RowResult,
    StaffAction,
    change,
    each,
    naming_owners_quota,
    only_if_status,
)
from config.platform.http.problems import Problem
from etl.core.states import ENDED, Stage, Status
from etl.maintenance import manual
from etl.models import Task
from etl.pipeline import actions, deletion
from etl.runstate import RunState

DELETE = "delete_with_objects"
MODEL_MAY_COST = "Language model calls cost tokens again, except for stored responses of a failed run."
NOT_WAITING = (
    "The document is being processed or has ended. A document can be cancelled while it waits for OCR or "
    "post-processing. To cancel a document that is being processed, use Stop."
)
HAS_ENDED = "The document has ended."


def generation_of(task: Any) -> str:
    """Return the generation, which grows with each retry."""
    return str(task.generation)


def current_state(task: Any) -> Any:
    """Return the task's run-state from Redis, or its row."""
    return getattr(task, "live", None) or task


def cancel_refusal(task: Any) -> str:
    state = current_state(task)
    is_cancellable = state.is_cancellable if isinstance(state, RunState) else state.status == Status.PENDING
    return "" if is_cancellable else NOT_WAITING


def retry(task: Task, stage: Stage) -> None:
    with naming_owners_quota():
        actions.retry(task=task, from_stage=stage)


def delete(tasks: Sequence[Any], by: Confirmation) -> Iterator[RowResult]:
    for task in tasks:
        try:
            deletion.delete(task, user=by.user, message="In the admin: deleted.", is_forced=True)
            yield RowResult(task, done="The document, its text, and its result were deleted.", is_logged=True)
        except Problem as refusal:
            yield RowResult(task, refusal=refusal.detail)


retry_refusal = only_if_status(ENDED, actions.NotEnded.detail)


TASKS = (
    StaffAction(
        name="cancel",
        label="Cancel",
        past="Cancelled",
        icon="cancel",
        permission="etl.change_task",
        explanation="Cancels only documents that have not started or that wait for post-processing. The others "
        "continue.",
        refusal=cancel_refusal,
        do=change(lambda task: actions.cancel(task=task), "The document will not be processed further."),
        revision=generation_of,
        is_danger=True,
    ),
    StaffAction(
        name="stop",
        label="Stop",
        past="Stopped",
        icon="stop_circle",
        permission="etl.change_task",
        explanation="Also cancels documents that are being processed. Their workers stop within five seconds, and the "
        "progress of the stage is lost.",
        refusal=lambda task: HAS_ENDED if current_state(task).has_ended else "",
        do=change(
            lambda task: actions.cancel(task=task, is_forced=True), "The document will not be processed further."
        ),
        revision=generation_of,
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
        do=change(lambda task: retry(task, Stage.OCR), "Queued from OCR."),
        revision=generation_of,
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
        do=change(
            lambda task: retry(task, Stage.POSTPROCESS),
            "Queued from post-processing, with the stored OCR result.",
        ),
        revision=generation_of,
    ),
    StaffAction(
        name="wake",
        label="Requeue",
        past="Requeued",
        icon="notifications_active",
        permission="etl.change_task",
        explanation="For documents that stay pending although workers are idle. Sends the wake-up message again, and "
        "restores a lost run-state. Periodic recovery does the same in its next runs. Documents in progress are not "
        "affected.",
        refusal=only_if_status({Status.PENDING}, manual.TaskNotOpen.detail),
        do=each(manual.wake),
        revision=generation_of,
    ),
    StaffAction(
        name=DELETE,
        label="Delete",
        past="Deleted",
        icon="delete",
        permission="etl.delete_task",
        explanation="Deletes the documents with their texts, images, and results. Waiting and running documents are "
        "cancelled first. This cannot be undone. The audit log and the quota usage are kept.",
        refusal=lambda _task: "",
        do=delete,
        revision=generation_of,
        is_danger=True,
    ),
)
