"""Earlier tasks of the same user with the same bytes."""

import structlog

from config.platform.http.problems import DATABASE_ERRORS
from etl import runstate
from etl.models import Task
from etl.runstate import RunState

log = structlog.get_logger(__name__)


def find(owner: Task | RunState, sha256: str) -> int | None:
    """Return the ID of the newest earlier task with these bytes. Raises Django's errors."""
    return Task.objects.filter(pk__lt=owner.task_id).newest_duplicate(user_id=owner.user_id, sha256=sha256)


def record_digest(state: RunState, sha256: str) -> None:
    """Record the SHA-256 of a document, and the earlier task with the same bytes.

    The SHA-256 of a presigned upload is unknown until a worker reads the document. The end of the task writes both into
    the row. If Redis is unavailable, only the SHA-256 is recorded, by the end of OCR.
    """
    if state.sha256:
        return
    earlier = None
    try:
        earlier = find(state, sha256)
    except DATABASE_ERRORS as error:
        log.warning("duplicate_not_found", etl_task_id=state.task_id, reason=type(error).__name__)
    try:
        runstate.record_digest(state, sha256, duplicate_of=earlier)
    except runstate.Unavailable as error:
        log.warning("digest_not_recorded", etl_task_id=state.task_id, reason=str(error))
