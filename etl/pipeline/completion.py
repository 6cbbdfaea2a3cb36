"""End of a stage: first the transition in Redis, and then the row with the event for webhooks.

The transition is conditional on the lease token, and the row on the generation. If the process is killed between the
two, recovery writes the row from the run-state. If Redis loses the run-state between the two, recovery recreates it
from the latest artifact, and the task ends again in the same way.
"""

from collections.abc import Iterable
from contextlib import suppress
from typing import Any

import structlog
from django.db import transaction

from config.platform import storage
from config.platform.http.problems import DATABASE_ERRORS
from config.platform.webhooks import outbox
from config.platform.webhooks.models import EventType
from etl import runstate
from etl.core import metrics
from etl.core.errors import EtlError, Fenced, explain
from etl.core.stage_context import USAGE_INCOMPLETE, StageContext
from etl.core.states import Stage, Status
from etl.models import ModelUsage, Task
from etl.models.review import NO_REVIEW
from etl.pipeline import artifacts, batch_ends, representation
from etl.pipeline.artifacts import StoredOcr
from etl.runstate import RunState, TransitionResult

log = structlog.get_logger(__name__)

EVENTS = {Status.COMPLETED: EventType.DOCUMENT_COMPLETED, Status.FAILED: EventType.DOCUMENT_FAILED}


def advance(state: RunState, stored: StoredOcr, transition_id: str | None = None) -> None:
    """End OCR. Raises Fenced and Unavailable.

    `transition_id`, here and below: the same for each retry of the same transition.
    """
    outcome = runstate.advance(state, transition_id=transition_id, **facts_of(stored))
    if not outcome.moved:
        raise Fenced


def complete(state: RunState, output: dict[str, Any], transition_id: str | None = None) -> None:
    """End post-processing, and with it the task. Raises Fenced and Unavailable."""
    provenance, result = output["metadata"]["provenance"], result_of(state, output)
    outcome = runstate.complete(
        state,
        result=result,
        usage=provenance["usage"],
        postprocess=text_of({name: provenance[name] for name in ("strategy", "model", "source") if name in provenance}),
        warnings=text_of(provenance["warnings"]),
        transition_id=transition_id,
    )
    record_end(outcome, result=result)


def fail(state: RunState, error: EtlError, context: StageContext, transition_id: str | None = None) -> None:
    """End the task as failed. Raises Fenced and Unavailable."""
    outcome = runstate.fail(
        state,
        error=artifacts.clean(explain(error, stage=state.phase)),
        usage=context.usage.as_dict(),
        postprocess=text_of({"strategy": context.strategy, "model": context.model}),
        warnings=text_of(warnings_of(state, context)),
        transition_id=transition_id,
    )
    record_end(outcome)
    metrics.FAILURES.labels(error.code).inc()


def record_end(outcome: TransitionResult, *, result: dict[str, Any] | None = None) -> None:
    """Write the row after Redis has accepted the end. If the database is unavailable, recovery writes it later.

    Raises Fenced if Redis rejected the end.
    """
    if not (outcome.moved and outcome.state):
        raise Fenced
    metrics.count_task_status(outcome.state.status)
    log.info("task_ended", etl_task_id=outcome.state.task_id, status=str(outcome.state.status))
    try:
        record(outcome.state, result=result)
    except (*DATABASE_ERRORS, storage.StorageError) as error:
        log.warning("end_not_recorded", etl_task_id=outcome.state.task_id, reason=type(error).__name__)


def record(state: RunState, *, result: dict[str, Any] | None = None) -> bool:
    """Write the end of a task into its row. Return False if the row already has an end, or if the task was retried.

    Raises Django's errors, and StorageError if the result has to be fetched.
    """
    if state.result_is_elsewhere and result is None:
        result = result_of(state, artifacts.find(artifacts.output_key(state)) or {})
    if write(state, result or state.result):
        return True
    correct(state.task_id)
    return False


def write(state: RunState, result: dict[str, Any] | None) -> bool:
    """Write the end, the usage of the run, and the event for webhooks in one transaction."""
    with transaction.atomic():
        is_written = update(state, result)
        if is_written:
            ModelUsage.objects.record_run(state)
            publish(state)
            batch_ends.end_if_complete(state.batch_id)
    return is_written


def record_many(states: Iterable[RunState]) -> None:
    """Write the ends of tasks without results, and then the ends of their batches, in one transaction.

    Rows are locked in the order of their IDs, before batches, so that two such transactions cannot deadlock. Tasks
    whose rows already have an end are left to recovery.
    """
    with transaction.atomic():
        written = [state for state in sorted(states, key=lambda each: each.task_id) if update(state, None)]
        for state in written:
            ModelUsage.objects.record_run(state)
            publish(state)
        for batch_id in {state.batch_id for state in written}:
            batch_ends.end_if_complete(batch_id)


def publish(state: RunState) -> None:
    """Add the event of a task's end to the outbox. Each generation ends once, so the event has its number."""
    if event := EVENTS.get(state.status):
        outbox.publish(
            event,
            user_id=state.user_id,
            subject=f"document:{state.task_id}",
            seq=state.generation,
            at=state.updated_at,
            data=representation.summary(state),
        )


def update(state: RunState, result: dict[str, Any] | None) -> bool:
    """Write the end into the row, if it is the row of this document and generation. A failure keeps the last result."""
    kept: dict[str, Any] = {}
    if state.status == Status.COMPLETED:
        kept |= {"last_result": result, "last_result_run": state.run}
    if state.sha256:
        kept |= {"sha256": state.sha256, "duplicate_of": state.duplicate_of}
    return bool(
        Task.objects.open()
        .filter(pk=state.task_id, generation=state.generation, uuid=state.uuid)
        .update(
            status=state.status,
            phase=state.phase,
            progress=state.progress,
            result=result,
            error=state.error,
            metadata=state.metadata,
            updated_at=state.updated_at,
            **kept,
        )
    )


def correct(task_id: int) -> None:
    """Overwrite a run-state that contradicts an ended row. Redis may have been restored from an older copy."""
    row = Task.objects.filter(pk=task_id).first()
    if row is None or not row.has_ended:
        return
    with suppress(runstate.Unavailable):
        state = runstate.read_many([task_id]).get(task_id)
        if (
            state
            and state.generation <= row.generation
            and (row.generation, row.status) != (state.generation, state.status)
        ):
            if row.review == NO_REVIEW:
                runstate.create(row, stage=Stage(row.phase), again=True)
            else:
                runstate.forget(task_id, generation=row.generation)  # only rows have reviews
            log.warning("run_state_corrected", etl_task_id=task_id, status=row.status)


# ---- Shapes ---------------------------------------------------------------------------------------------------------
def facts_of(stored: StoredOcr) -> dict[str, str]:
    """Return the run-state fields of a stored OCR result. Results of earlier releases have no digest."""
    return {
        **({"sha256": digest} if (digest := stored.facts.get("sha256")) else {}),
        "markdown_key": stored.markdown_key,
        "provider": stored.facts["provider"],
        "provider_task_id": stored.facts["provider_task_id"],
        "ocr": text_of(stored.metadata),
        "warnings": text_of(stored.warnings),
    }


def result_of(state: RunState, output: dict[str, Any]) -> dict[str, Any]:
    """Return a task's `result`: the stored output and, if it has data, its key."""
    return output | ({"output_s3_key": artifacts.output_key(state)} if "data" in output else {})


def warnings_of(state: RunState, context: StageContext) -> list[dict[str, Any]]:
    """Return the warnings of earlier stages and of this stage, without duplicates."""
    known: list[dict[str, Any]] = list(state.metadata["warnings"])
    return known + [new for warning in context.warnings if (new := artifacts.clean(warning.as_dict())) not in known]


def lasting_warnings(state: RunState, context: StageContext) -> str:
    """Return the task's warnings as JSON if this attempt adds one that stays valid for later attempts, else "".

    The only such warning is that the usage was not counted completely.
    """
    if not any(warning.code == USAGE_INCOMPLETE for warning in context.warnings):
        return ""
    known = state.metadata["warnings"]
    return text_of([each for each in warnings_of(state, context) if each in known or each["code"] == USAGE_INCOMPLETE])


def text_of(value: Any) -> str:
    return artifacts.dumped(value).decode()
