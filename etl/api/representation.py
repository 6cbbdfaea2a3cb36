"""How tasks look to clients: one representation for every answer, list and event."""

from typing import Any

from etl.core.states import Status
from etl.ingest.uploads import UploadTarget
from etl.runstate import RunState

PATH = "/api/v1/etl/tasks"


def path_of(task_id: int) -> str:
    return f"{PATH}/{task_id}"


def accepted(task_id: int) -> dict[str, Any]:
    """The answer to a submission or a retry: the same, byte for byte, whenever it is given."""
    return {"task_id": task_id, "status": Status.PENDING, "status_url": path_of(task_id)}


def task(state: RunState) -> dict[str, Any]:
    """A task as `GET /tasks/{id}` shows it."""
    return {
        "task_id": state.task_id,
        "status": state.status,
        "phase": state.phase,
        "progress": state.progress,
        "filename": state.filename,
        "rule_id": state.rule_id,
        "rule_version": state.rule_version,
        "result": state.result if state.status == Status.COMPLETED else None,
        "error": state.error if state.status == Status.FAILED else None,
        "metadata": state.metadata,
        "created_at": state.created_at,
        "updated_at": state.updated_at,
    }


def summary(state: RunState) -> dict[str, Any]:
    """A task as lists show it: without its result."""
    return {name: value for name, value in task(state).items() if name != "result"}


def status(state: RunState) -> dict[str, Any]:
    """The data of the event `status`."""
    return {**progress(state), "error": state.error if state.status == Status.FAILED else None, "at": state.updated_at}


def progress(state: RunState) -> dict[str, Any]:
    """The data of the event `progress`."""
    return {"status": state.status, "phase": state.phase, "progress": state.progress}


def place(place: UploadTarget) -> dict[str, Any]:
    """Where a document may be put."""
    return {
        "file_key": place.file_key,
        "upload_url": place.ticket.url,
        "method": "PUT",
        "headers": place.ticket.headers,
        "expires_at": place.expires_at,
    }
