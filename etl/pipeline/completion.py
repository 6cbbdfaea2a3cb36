"""How a stage ends. Redis decides, under the holder's token; then the row is written, under the fence.

A process may die between the two: recovery writes the row from the run-state then. Or Redis may lose the state
between the two: then recovery takes the task up from its furthest artefact, and it ends again, in the same way.
"""

from contextlib import suppress
from typing import Any

import structlog

from config.platform import storage
from config.platform.http.problems import DATABASE_ERRORS
from etl import runstate
from etl.core import metrics
from etl.core.errors import EtlError, Fenced, explain
from etl.core.stage_context import StageContext
from etl.core.states import Phase
from etl.models import Task
from etl.pipeline import artifacts
from etl.pipeline.artifacts import StoredOcr
from etl.runstate import RunState, TransitionResult

log = structlog.get_logger(__name__)


def advance(state: RunState, stored: StoredOcr, move_id: str | None = None) -> None:
    """OCR is done. `move_id`, here and below: the same for each try of the same end. Raises Fenced and Unavailable."""
    answer = runstate.advance(state, move_id=move_id, **facts_of(stored))
    if not answer.moved:
        raise Fenced


def complete(state: RunState, output: dict[str, Any], move_id: str | None = None) -> None:
    """Post-processing is done, and the task. Raises Fenced and Unavailable."""
    provenance, result = output["metadata"]["provenance"], result_of(state, output)
    answer = runstate.complete(
        state,
        result=result,
        usage=provenance["usage"],
        postprocess=text_of({name: provenance[name] for name in ("strategy", "model")}),
        warnings=text_of(provenance["warnings"]),
        move_id=move_id,
    )
    settle(answer, result=result)


def fail(state: RunState, error: EtlError, context: StageContext, move_id: str | None = None) -> None:
    """The task has failed. Raises Fenced and Unavailable."""
    answer = runstate.fail(
        state,
        error=artifacts.clean(explain(error, stage=state.phase)),
        usage=context.usage.as_dict(),
        postprocess=text_of({"strategy": context.strategy, "model": context.model}),
        warnings=text_of(warnings_of(state, context)),
        move_id=move_id,
    )
    settle(answer)
    metrics.task_failed(error.code)


def settle(answer: TransitionResult, *, result: dict[str, Any] | None = None) -> None:
    """After Redis has decided an end: write the row, or leave that to recovery where the database is away.

    Raises Fenced where Redis has decided otherwise.
    """
    if not (answer.moved and answer.state):
        raise Fenced
    metrics.task_moved(answer.state.status)
    log.info("task_ended", etl_task_id=answer.state.task_id, status=str(answer.state.status))
    try:
        record(answer.state, result=result)
    except (*DATABASE_ERRORS, storage.StorageError) as error:
        log.warning("end_not_recorded", etl_task_id=answer.state.task_id, reason=type(error).__name__)


def record(state: RunState, *, result: dict[str, Any] | None = None) -> bool:
    """Write the end of a task into its row. Returns whether the row took it: it does not when it has one already, or
    when the task was taken up again. Raises Django's errors, and StorageError where the result has to be fetched.
    """
    if state.result_is_elsewhere and result is None:
        result = result_of(state, artifacts.find(artifacts.output_key(state)) or {})
    if write(state, result or state.result):
        return True
    correct(state.task_id)
    return False


def write(state: RunState, result: dict[str, Any] | None) -> bool:
    return bool(
        Task.objects.open()
        .filter(pk=state.task_id, fence=state.fence)
        .update(
            status=state.status,
            phase=state.phase,
            progress=state.progress,
            result=result,
            error=state.error,
            metadata=state.metadata,
            updated_at=state.updated_at,
        )
    )


def correct(task_id: int) -> None:
    """Where a row has ended otherwise than Redis says, Redis is put right. It may have come back from an older copy."""
    row = Task.objects.filter(pk=task_id).first()
    if row is None or not row.has_ended:
        return
    with suppress(runstate.Unavailable):
        state = runstate.read_many([task_id]).get(task_id)
        if state and state.fence <= row.fence and (row.fence, row.status) != (state.fence, state.status):
            runstate.create(row, phase=Phase(row.phase), again=True)
            log.warning("run_state_corrected", etl_task_id=task_id, status=row.status)


# ---- Shapes ---------------------------------------------------------------------------------------------------------
def facts_of(stored: StoredOcr) -> dict[str, str]:
    """Return the fields of a run-state that a stored result of OCR gives."""
    return {
        "markdown_key": stored.markdown_key,
        "provider": stored.facts["provider"],
        "provider_task_id": stored.facts["provider_task_id"],
        "ocr": text_of(stored.metadata),
        "warnings": text_of(stored.warnings),
    }


def result_of(state: RunState, output: dict[str, Any]) -> dict[str, Any]:
    """Return a task's `result`: what is stored and, where it has data, its key."""
    return output | ({"output_s3_key": artifacts.output_key(state)} if "data" in output else {})


def warnings_of(state: RunState, context: StageContext) -> list[dict[str, Any]]:
    """Return the warnings of the stages before, and of this one."""
    known: list[dict[str, Any]] = list(state.metadata["warnings"])
    return known + [new for warning in context.warnings if (new := artifacts.clean(warning.as_dict())) not in known]


def text_of(value: Any) -> str:
    return artifacts.dumped(value).decode()
