"""The transitions of run-states, with their conditions and effects."""

import json
import secrets
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from django.conf import settings

from etl.core.stage_context import Usage
from etl.core.states import Phase, Status
from etl.models import Task
from etl.runstate.script import TransitionResult, Verdict, move, move_many
from etl.runstate.state import HALF, TEXTS, USAGE, WHOLE, WHOLE_NUMBERS, RunState

# Larger results are only in the row and in object storage: every read of a state and every event would carry them.
RESULT_BYTES = 256 * 1024
# The longest pause between wake-up messages of a waiting task, in recovery intervals: copies would fill a long queue.
LONGEST_PAUSE = 4


class Arrow(NamedTuple):
    """A transition that changes the status. `docs/lifecycle.md` draws all of them."""

    before: tuple[Status, ...]
    after: Status

    def conditions(self) -> dict[str, Any]:
        return {"before": list(self.before), "after": self.after, "visible": True, "with_state": True}


START_OCR = Arrow((Status.PENDING, Status.MINERU_PARSING), Status.MINERU_PARSING)
START_POSTPROCESS = Arrow((Status.PENDING, Status.LLM_PROCESSING), Status.LLM_PROCESSING)
ADVANCE = Arrow((Status.MINERU_PARSING,), Status.LLM_PROCESSING)
COMPLETE = Arrow((Status.LLM_PROCESSING,), Status.COMPLETED)
FAIL = Arrow((Status.MINERU_PARSING, Status.LLM_PROCESSING), Status.FAILED)
CANCEL = Arrow((Status.PENDING,), Status.CANCELLED)
STARTS = {Phase.OCR: START_OCR, Phase.POSTPROCESS: START_POSTPROCESS}


def create(
    task: Task,
    *,
    phase: Phase,
    status: Status | None = None,
    started: bool = False,
    again: bool = False,
    facts: Mapping[str, str] | None = None,
) -> TransitionResult:
    """Create the run-state of a task, and replace one with a smaller fence.

    `started`: a worker may have started already, so the task cannot be cancelled. `again`: also replace one with the
    same fence. `facts`: more fields, as strings. The verdict is SAME or NEWER if a run-state with this or a greater
    fence exists. Raises Unavailable.
    """
    known = RunState.of_row(task)
    ended = known.has_ended
    fields: dict[str, Any] = {
        **{name: getattr(known, name) for name in WHOLE_NUMBERS},
        **{name: getattr(known, name) for name in TEXTS},
        **{f"attempts_{stage}": count for stage, count in known.attempts.items()},
        **{name: known.metadata["postprocess"].get("usage", {}).get(name, 0) if ended else 0 for name in USAGE},
        "status": status or task.status,
        "phase": phase,
        "ocr": json.dumps(known.metadata["ocr"]),
        "warnings": json.dumps(known.metadata["warnings"]),
        "started": int(started),
        "created_at": task.created_at.timestamp(),
        **(facts_of_end(known) if ended else {}),
        **(facts or {}),
    }
    return move(
        task.pk,
        create=True,
        again=again,
        with_state=True,
        fence=task.fence,
        set={name: str(value) for name, value in fields.items()},
        ttl=settings.SLUICE.etl_state_terminal_ttl_seconds if ended else None,
    )


def facts_of_end(state: RunState) -> dict[str, Any]:
    """Return the hash fields of an ended task."""
    return {
        "updated_at": state.updated_at.timestamp(),
        "postprocess": json.dumps(state.metadata["postprocess"]),
        "error": json.dumps(state.error),
        **result_facts(state.result),
    }


def forget(task_id: int, *, fence: int) -> bool:
    """Delete the run-state of a task whose row has ended, unless its fence is greater. Readers use the row then.

    Return whether there is none now. Raises Unavailable.
    """
    return move(task_id, forget=True, fence=fence).verdict is Verdict.GONE


def enqueued(task_id: int, *, job_id: str, delay: float = 0) -> None:
    """Record the id of a wake-up message and when it is due. Raises Unavailable."""
    move(task_id, set={"job_id": job_id}, hinted=delay)


def mark_unsent(task_ids: Iterable[int]) -> None:
    """Mark wake-up messages as not sent, after the broker did not accept them. Raises Unavailable."""
    move_many({task_id: {"set": {"hinted_at": "0", "hints": "0"}} for task_id in task_ids})


def start(task_id: int, *, phase: Phase, fence: int | None = None, move_id: str | None = None) -> TransitionResult:
    """Start a run of a stage: take a lease under a new token, and use one attempt.

    `fence`: the row's, if known. `move_id`, here and below: the same for each retry of the same transition. The verdict
    is MOVED with the new state, or SPENT with it when no attempts are left and the task can only fail. After any other
    verdict the caller must not run the stage. Raises Unavailable.
    """
    return move(
        task_id,
        **STARTS[phase].conditions(),
        id=move_id,
        fence=fence,
        phase=phase,
        free=True,
        take=secrets.token_hex(16),
        lease=settings.SLUICE.etl_lease_seconds,
        attempts=f"attempts_{phase}",
        most=most_attempts(phase),
    )


def most_attempts(phase: Phase) -> int:
    """Return the maximum number of runs of a stage, including the first."""
    env = settings.SLUICE
    return int(env.etl_ocr_max_attempts if phase == Phase.OCR else env.etl_postprocess_max_attempts)


def held(state: RunState) -> dict[str, Any]:
    """Return the conditions of every transition by the lease's holder."""
    return {"fence": state.fence, "token": state.token, "phase": state.phase}


def renew(state: RunState) -> Verdict:
    """Renew the lease for its full length. Raises Unavailable."""
    return move(state.task_id, **held(state), lease=settings.SLUICE.etl_lease_seconds).verdict


def note_progress(state: RunState, percent: int, *, step: str = "") -> Verdict:
    """Record progress. `step`: done and total, as in `3/10`. Raises Unavailable."""
    return move(state.task_id, **held(state), lift={"progress": percent}, set={"step": step}, visible=True).verdict


def note_provider_task(state: RunState, provider_task_id: str) -> Verdict:
    """Record the provider's job id. Raises Unavailable."""
    return move(state.task_id, **held(state), set={"provider_task_id": provider_task_id}, visible=True).verdict


def note_usage(state: RunState, usage: Usage) -> None:
    """Add to the model usage of all attempts. Raises Unavailable."""
    move(state.task_id, **held(state), increase=usage.as_dict(), visible=True)


def advance(state: RunState, *, markdown_key: str, move_id: str | None = None, **facts: str) -> TransitionResult:
    """Move from OCR, whose result is stored, to post-processing. Raises Unavailable."""
    return move(
        state.task_id,
        id=move_id,
        **held(state),
        **ADVANCE.conditions(),
        set={"phase": Phase.POSTPROCESS, "markdown_key": markdown_key, "step": "", "refused_at": "0", **facts},
        drop=True,
        delay=0,
        hinted=0,  # the chain sends the next message
        lift={"progress": HALF},
    )


def wait(
    state: RunState, *, delay: float, wakes_up: bool, refused_at: float = 0, move_id: str | None = None
) -> Verdict:
    """Return the lease and schedule the next attempt after `delay` seconds.

    `wakes_up`: the caller sends a wake-up message with that delay. `refused_at`: when the storage first refused the
    stage; then the attempt is returned too. Raises Unavailable.
    """
    refused = {"increase": returned(state), "set": {"refused_at": str(refused_at)}} if refused_at else {}
    return move(
        state.task_id,
        id=move_id,
        **held(state),
        **refused,
        drop=True,
        delay=delay,
        hinted=delay if wakes_up else -settings.SLUICE.etl_recovery_seconds,
        visible=True,
    ).verdict


def release(state: RunState) -> Verdict:
    """Return the lease and the attempt, for a worker that shuts down. Raises Unavailable."""
    return move(state.task_id, **held(state), drop=True, delay=0, increase=returned(state), visible=True).verdict


def returned(state: RunState) -> dict[str, int]:
    return {f"attempts_{state.phase}": -1}


def complete(
    state: RunState, *, result: dict[str, Any], usage: Mapping[str, int], move_id: str | None = None, **facts: str
) -> TransitionResult:
    """End a task as completed. `usage`: a lower bound. Raises Unavailable."""
    return end(state, COMPLETE, facts | result_facts(result), {**usage, "progress": WHOLE}, move_id)


def fail(
    state: RunState, *, error: dict[str, Any], usage: Mapping[str, int], move_id: str | None = None, **facts: str
) -> TransitionResult:
    """End a task as failed, with its progress unchanged. Raises Unavailable."""
    return end(state, FAIL, facts | {"error": json.dumps(error)}, usage, move_id)


def end(
    state: RunState, arrow: Arrow, facts: Mapping[str, str], least: Mapping[str, int], move_id: str | None
) -> TransitionResult:
    return move(
        state.task_id,
        id=move_id,
        **held(state),
        **arrow.conditions(),
        set=dict(facts),
        lift=dict(least),
        drop=True,
        ttl=settings.SLUICE.etl_state_terminal_ttl_seconds,
    )


def result_facts(result: Any) -> dict[str, str]:
    text = json.dumps(result)
    fits = len(text) <= RESULT_BYTES
    return {"result": text if fits else "", "result_is_elsewhere": str(int(not fits))}


def cancel(task_id: int, *, fence: int) -> TransitionResult:
    """Cancel a task that no worker has started. Raises Unavailable."""
    return move(
        task_id,
        **CANCEL.conditions(),
        fence=fence,
        unstarted=True,
        ttl=settings.SLUICE.etl_state_terminal_ttl_seconds,
    )


def find_due(fences: Mapping[int, int]) -> dict[int, TransitionResult]:
    """Find the open tasks that need a wake-up message, and keep the states of all from expiring.

    `fences`: `{task_id: the row's fence}`. The verdict MOVED means: no worker has the task, it is due, and no message
    was sent recently; the caller must send one, which already counts as sent. Raises Unavailable.
    """
    every = settings.SLUICE.etl_recovery_seconds
    due = {"free": True, "hint": every, "longest": LONGEST_PAUSE, "hinted": 0, "with_state": "news"}
    return move_many({task_id: {"fence": fence, **due} for task_id, fence in fences.items()})
