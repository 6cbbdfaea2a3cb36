"""The transitions of run-states, with their conditions and effects."""

import json
import secrets
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple, Protocol

from django.conf import settings

from config.platform import exact_json
from config.platform.db import clock
from etl.core.stage_context import USAGE_FIELDS, Usage
from etl.core.states import Stage, Status
from etl.models import Task
from etl.runstate.script import TransitionResult, Verdict, move, move_many
from etl.runstate.state import HALF, TEXTS, WHOLE, WHOLE_NUMBERS, RunState

# Larger results are only in the row and in object storage, because every read of the state would transfer them.
RESULT_BYTES = 256 * 1024
# The longest pause between wake-up messages for a waiting task, in recovery intervals. Frequent copies of messages
# would fill a long queue.
MAX_PAUSE = 4
MAX_FAILURES = 10  # the newest failed attempts of a run are kept


class TaskIdentity(Protocol):
    """The identity of a task: a Task, or a row of these columns."""

    @property
    def task_id(self) -> int: ...

    @property
    def uuid(self) -> str: ...

    @property
    def generation(self) -> int: ...


class StatusChange(NamedTuple):
    """A transition that changes the status. `docs/lifecycle.md` draws all of them."""

    before: tuple[Status, ...]
    after: Status

    def conditions(self) -> dict[str, Any]:
        return {"before": list(self.before), "after": self.after, "visible": True, "with_state": True}


START_OCR = StatusChange((Status.PENDING, Status.MINERU_PARSING), Status.MINERU_PARSING)
START_POSTPROCESS = StatusChange((Status.PENDING, Status.LLM_PROCESSING), Status.LLM_PROCESSING)
ADVANCE = StatusChange((Status.MINERU_PARSING,), Status.LLM_PROCESSING)
COMPLETE = StatusChange((Status.LLM_PROCESSING,), Status.COMPLETED)
FAIL = StatusChange((Status.MINERU_PARSING, Status.LLM_PROCESSING), Status.FAILED)
CANCEL = StatusChange((Status.PENDING, Status.LLM_PROCESSING), Status.CANCELLED)
CANCEL_RUNNING = StatusChange((Status.PENDING, Status.MINERU_PARSING, Status.LLM_PROCESSING), Status.CANCELLED)
STARTS = {Stage.OCR: START_OCR, Stage.POSTPROCESS: START_POSTPROCESS}


def create(
    task: Task,
    *,
    stage: Stage,
    status: Status | None = None,
    started: bool = False,
    again: bool = False,
    facts: Mapping[str, str] | None = None,
) -> TransitionResult:
    """Create the run-state of a task, and replace one with a smaller generation.

    `started`: a worker may have started already, so the task cannot be cancelled during OCR without `force`. `again`:
    also replace one with the same generation. `facts`: more fields, as strings. The verdict is SAME or NEWER if the
    task has a run-state with this or a greater generation. A run-state of another task with the same ID, whose row was
    lost, is replaced. Raises Unavailable.
    """
    more = {"status": status or task.status, "started": int(started), **(facts or {})}
    return move(task.pk, **creation(task, stage=stage, again=again, more=more))


def create_many(tasks: Mapping[Task, Stage]) -> None:
    """Create the run-states of new or retried tasks at their stages, in one round trip. Raises Unavailable."""
    move_many(
        {
            task.pk: creation(task, stage=stage, again=False, more={"status": task.status, "started": 0})
            for task, stage in tasks.items()
        }
    )


def creation(task: Task, *, stage: Stage, again: bool, more: Mapping[str, Any]) -> dict[str, Any]:
    known = RunState.of_row(task)
    ended = known.has_ended
    fields: dict[str, Any] = {
        **{name: getattr(known, name) for name in WHOLE_NUMBERS},
        **{name: getattr(known, name) for name in TEXTS},
        **{f"attempts_{stage}": count for stage, count in known.attempts.items()},
        **{name: known.metadata["postprocess"]["usage"].get(name, 0) if ended else 0 for name in USAGE_FIELDS},
        "previous_run": known.previous_run,
        "batch_id": known.batch_id or "",
        "duplicate_of": known.duplicate_of or 0,
        "fence": task.generation,
        "phase": stage,
        "ocr": json.dumps(known.metadata["ocr"]),
        "warnings": json.dumps(known.metadata["warnings"]),
        "failed_attempts": json.dumps(known.metadata["failed_attempts"]),
        "earlier_usage": json.dumps(known.metadata["postprocess"]["earlier_usage"]),
        "created_at": task.created_at.timestamp(),
        **(facts_of_end(known) if ended else {}),
        **more,
    }
    return {
        "create": True,
        "again": again,
        "with_state": True,
        "uuid": task.uuid,
        "generation": task.generation,
        "set": {name: str(value) for name, value in fields.items()},
        "ttl": settings.SLUICE.etl_state_terminal_ttl_seconds if ended else None,
    }


def facts_of_end(state: RunState) -> dict[str, Any]:
    """Return the hash fields of an ended task."""
    return {
        "updated_at": state.updated_at.timestamp(),
        "postprocess": json.dumps(state.metadata["postprocess"]),
        "error": json.dumps(state.error),
        **result_facts(state.result),
    }


def forget(task_id: int, *, generation: int) -> bool:
    """Delete the run-state of an ended task, unless its generation is greater. Readers then use the row.

    Return whether the task has no run-state now. Raises Unavailable.
    """
    return move(task_id, forget=True, generation=generation).verdict is Verdict.GONE


def forget_many(tasks: Iterable[TaskIdentity]) -> None:
    """Delete the run-states of several tasks like `forget`, in one round trip. Raises Unavailable."""
    move_many({task.task_id: {"forget": True, "generation": task.generation} for task in tasks})


def record_message(task_id: int, *, job_id: str, delay: float = 0) -> None:
    """Record the ID of a wake-up message and when it is due. Raises Unavailable."""
    move(task_id, set={"job_id": job_id}, woken=delay)


def mark_unsent(task_ids: Iterable[int]) -> None:
    """Mark wake-up messages as not sent, after the broker did not accept them. Raises Unavailable."""
    move_many({task_id: {"set": {"hinted_at": "0", "hints": "0"}} for task_id in task_ids})


def record_messages(job_ids: Mapping[int, str]) -> None:
    """Record the IDs of wake-up messages that are due at once, by task. Raises Unavailable."""
    move_many({task_id: {"set": {"job_id": job_id}, "woken": 0} for task_id, job_id in job_ids.items()})


def start(
    task_id: int,
    *,
    stage: Stage,
    generation: int | None = None,
    uuid: str | None = None,
    job_id: str = "",
    transition_id: str | None = None,
) -> TransitionResult:
    """Start a run of a stage: take a lease under a new token, and use one attempt.

    `generation`, `uuid`: from the row, if known. `job_id`: of the message that runs the stage. `transition_id`, here
    and below: the same for each retry of the same transition.

    The verdict is MOVED with the new state, or SPENT with it if no attempts are left and the task can only fail. After
    any other verdict, the caller must not run the stage. Raises Unavailable.
    """
    return move(
        task_id,
        **STARTS[stage].conditions(),
        id=transition_id,
        uuid=uuid,
        generation=generation,
        phase=stage,
        free=True,
        take=secrets.token_hex(16),
        lease=settings.SLUICE.etl_lease_seconds,
        attempts=f"attempts_{stage}",
        max_attempts=max_attempts(stage),
        set={"job_id": job_id} if job_id else None,
    )


def max_attempts(stage: Stage) -> int:
    """Return the maximum number of runs of a stage, including the first."""
    env = settings.SLUICE
    return int(env.etl_ocr_max_attempts if stage == Stage.OCR else env.etl_postprocess_max_attempts)


def lease_conditions(state: RunState) -> dict[str, Any]:
    """Return the conditions of each transition that requires the lease."""
    return {"generation": state.generation, "token": state.token, "phase": state.phase}


def renew(state: RunState) -> Verdict:
    """Renew the lease for its full length. Raises Unavailable."""
    return move(state.task_id, **lease_conditions(state), lease=settings.SLUICE.etl_lease_seconds).verdict


def record_progress(state: RunState, percent: int, *, step: str = "") -> Verdict:
    """Record progress. `step`: done and total pages or calls, such as `3/10`. Raises Unavailable."""
    return move(
        state.task_id, **lease_conditions(state), lift={"progress": percent}, set={"step": step}, visible=True
    ).verdict


def record_provider_task(state: RunState, provider_task_id: str) -> Verdict:
    """Record the provider's ID of its task. Raises Unavailable."""
    return move(
        state.task_id, **lease_conditions(state), set={"provider_task_id": provider_task_id}, visible=True
    ).verdict


def record_digest(state: RunState, sha256: str, *, duplicate_of: int | None) -> Verdict:
    """Record the document's SHA-256, and the earlier task with the same bytes. Raises Unavailable."""
    facts = {"sha256": sha256, "duplicate_of": str(duplicate_of or 0)}
    return move(state.task_id, **lease_conditions(state), set=facts, visible=True).verdict


def record_usage(state: RunState, usage: Usage) -> None:
    """Add to the model usage of all attempts. Raises Unavailable."""
    move(state.task_id, **lease_conditions(state), increase=usage.as_dict(), visible=True)


def advance(state: RunState, *, markdown_key: str, transition_id: str | None = None, **facts: str) -> TransitionResult:
    """Move from OCR, whose result is stored, to post-processing. Raises Unavailable."""
    return move(
        state.task_id,
        id=transition_id,
        **lease_conditions(state),
        **ADVANCE.conditions(),
        set={"phase": Stage.POSTPROCESS, "markdown_key": markdown_key, "step": "", **facts},
        drop=True,
        delay=0,
        woken=0,  # the Celery chain sends the next message
        lift={"progress": HALF},
    )


def wait(
    state: RunState,
    *,
    delay: float,
    wakes_up: bool,
    refused: bool = False,
    counts: bool = True,
    warnings: str = "",
    failure: Mapping[str, str] | None = None,
    transition_id: str | None = None,
) -> Verdict:
    """Release the lease and schedule the next attempt after `delay` seconds.

    `wakes_up`: the caller sends a wake-up message with that delay. `refused`: the storage refused the output. `counts`:
    whether the attempt counts. `warnings`: the task's new warnings as JSON; "" keeps them. `failure`: the `code` and
    `detail` of the attempt. Raises Unavailable.
    """
    return move(
        state.task_id,
        id=transition_id,
        **lease_conditions(state),
        set=({"warnings": warnings} if warnings else {}) | failures_with(state, failure),
        increase=None if counts else returned_attempt(state),
        refused=refused or None,
        drop=True,
        delay=delay,
        woken=delay if wakes_up else -settings.SLUICE.etl_recovery_seconds,
        visible=True,
    ).verdict


def failures_with(state: RunState, failure: Mapping[str, str] | None) -> dict[str, str]:
    """Return the field of the failed attempts, with the new one. Only the holder of the lease writes this field."""
    if failure is None:
        return {}
    new = {"stage": state.phase, "attempt": state.attempts[state.phase], **failure, "at": clock.now().isoformat()}
    return {"failed_attempts": json.dumps([*state.metadata["failed_attempts"], new][-MAX_FAILURES:])}


def release(state: RunState, *, warnings: str = "") -> Verdict:
    """Release the lease when the worker shuts down, without counting the attempt. Raises Unavailable.

    `warnings`: as in `wait`.
    """
    return move(
        state.task_id,
        **lease_conditions(state),
        set={"warnings": warnings} if warnings else None,
        drop=True,
        delay=0,
        refused=bool(state.refused_at) or None,
        increase=returned_attempt(state),
        visible=True,
    ).verdict


def returned_attempt(state: RunState) -> dict[str, int]:
    return {f"attempts_{state.phase}": -1}


def complete(
    state: RunState, *, result: dict[str, Any], usage: Mapping[str, int], transition_id: str | None = None, **facts: str
) -> TransitionResult:
    """End a task as completed. `usage`: a lower bound. Raises Unavailable."""
    return end(state, COMPLETE, facts | result_facts(result), {**usage, "progress": WHOLE}, transition_id)


def fail(
    state: RunState, *, error: dict[str, Any], usage: Mapping[str, int], transition_id: str | None = None, **facts: str
) -> TransitionResult:
    """End a task as failed, with its progress unchanged. Raises Unavailable."""
    return end(state, FAIL, facts | {"error": json.dumps(error)}, usage, transition_id)


def end(
    state: RunState, change: StatusChange, facts: Mapping[str, str], least: Mapping[str, int], transition_id: str | None
) -> TransitionResult:
    return move(
        state.task_id,
        id=transition_id,
        **lease_conditions(state),
        **change.conditions(),
        set=dict(facts),
        lift=dict(least),
        drop=True,
        ttl=settings.SLUICE.etl_state_terminal_ttl_seconds,
    )


def result_facts(result: Any) -> dict[str, str]:
    text = exact_json.dumps(result)
    fits = len(text) <= RESULT_BYTES
    return {"result": text.decode() if fits else "", "result_is_elsewhere": str(int(not fits))}


def cancel(task_id: int, *, generation: int, uuid: str | None = None, is_forced: bool = False) -> TransitionResult:
    """Cancel a task that no worker has started, or that waits for post-processing. Raises Unavailable.

    `is_forced`: also cancel a running task. Its worker notices that the lease is lost.
    """
    return move(task_id, **cancellation(is_forced=is_forced), uuid=uuid, generation=generation)


def cancel_many(
    tasks: Iterable[TaskIdentity], *, is_forced: bool, transition_id: str | None = None
) -> dict[int, TransitionResult]:
    """Cancel several tasks like `cancel`, in one round trip. Raises Unavailable.

    A repeated call with the same `transition_id` returns the same results.
    """
    conditions = cancellation(is_forced=is_forced) | {"id": transition_id}
    return move_many({task.task_id: identity(task) | conditions for task in tasks})


def cancellation(*, is_forced: bool) -> dict[str, Any]:
    return {
        **(CANCEL_RUNNING if is_forced else CANCEL).conditions(),
        "unstarted": not is_forced or None,
        "drop": True,
        "ttl": settings.SLUICE.etl_state_terminal_ttl_seconds,
    }


def find_due(tasks: Iterable[TaskIdentity]) -> dict[int, TransitionResult]:
    """Find the tasks that need a wake-up message, and postpone the expiry of the run-states of all given open tasks.

    The verdict MOVED means that no worker has the task, that it is due, and that no message was sent recently. The
    caller must send one: it is already recorded as sent. Raises Unavailable.
    """
    every = settings.SLUICE.etl_recovery_seconds
    due = {"free": True, "wake": every, "longest": MAX_PAUSE, "woken": 0, "with_state": "news"}
    return move_many({task.task_id: identity(task) | due for task in tasks})


def find_free(tasks: Iterable[TaskIdentity], *, stage: Stage) -> set[int]:
    """Return the tasks that a worker could start now, without a change. Raises Unavailable."""
    conditions = {"phase": stage, "free": True, "peek": True, "id": False}
    found = move_many({task.task_id: identity(task) | conditions for task in tasks})
    return {task_id for task_id, outcome in found.items() if outcome.moved}


def identity(task: TaskIdentity) -> dict[str, Any]:
    return {"uuid": task.uuid, "generation": task.generation}
