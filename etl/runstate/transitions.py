"""The moves of run-states: who may ask for what, and what changes."""

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

# A larger result is in the row and in object storage alone: every read of a state, and every event, would carry it.
RESULT_BYTES = 256 * 1024
# How far apart hints for a task that waits may come, in intervals of recovery: a long queue must not fill with copies.
LONGEST_PAUSE = 4


class Arrow(NamedTuple):
    """A move that changes the status. `docs/lifecycle.md` draws them all."""

    before: tuple[Status, ...]
    after: Status

    def conditions(self) -> dict[str, Any]:
        return {"before": list(self.before), "after": self.after, "visible": True, "tell": True}


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
    """Make the run-state of a task, in the place of one with a smaller fence.

    `started`: a worker may have begun with it already, so that nobody can cancel it. `again`: also in the place of one
    with the same fence. `facts`: more fields, as strings.
    The verdict is SAME or NEWER where there is one of this fence, or a greater one. Raises Unavailable.
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
        tell=True,
        fence=task.fence,
        set={name: str(value) for name, value in fields.items()},
        ttl=settings.SLUICE.etl_state_terminal_ttl_seconds if ended else None,
    )


def facts_of_end(state: RunState) -> dict[str, Any]:
    """Return the fields of the hash that only a task that has ended has."""
    return {
        "updated_at": state.updated_at.timestamp(),
        "postprocess": json.dumps(state.metadata["postprocess"]),
        "error": json.dumps(state.error),
        **result_facts(state.result),
    }


def forget(task_id: int, *, fence: int) -> bool:
    """Take the run-state of a task away that has ended in its row, under this fence: who looks then reads the row.

    Returns whether there is none now: one of a greater fence stays. Raises Unavailable.
    """
    return move(task_id, forget=True, fence=fence).verdict is Verdict.GONE


def enqueued(task_id: int, *, job_id: str, delay: float = 0) -> None:
    """Note the id of the message that was sent for a task, and when it is due. Raises Unavailable."""
    move(task_id, set={"job_id": job_id}, hinted=delay)


def unsent(task_ids: Iterable[int]) -> None:
    """Take back that hints were sent: the broker did not take them. Raises Unavailable."""
    move_many({task_id: {"set": {"hinted_at": "0", "hints": "0"}} for task_id in task_ids})


def start(task_id: int, *, phase: Phase, fence: int | None = None, move_id: str | None = None) -> TransitionResult:
    """Begin a run of a stage: a new token, a lease, one attempt more.

    `fence`: the row's, where it is known. `move_id`, here and below: the same for each try of the same move.
    MOVED, with the state that has the token; SPENT, with it too, when the task can only be ended; anything else: not
    now, or not this. Raises Unavailable.
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
    """Return how many runs of a stage there may be, the first included."""
    env = settings.SLUICE
    return int(env.etl_ocr_max_attempts if phase == Phase.OCR else env.etl_postprocess_max_attempts)


def held(state: RunState) -> dict[str, Any]:
    """What must hold for every move of whoever holds the lease."""
    return {"fence": state.fence, "token": state.token, "phase": state.phase}


def renew(state: RunState) -> Verdict:
    """Lengthen the lease to its whole length. Raises Unavailable."""
    return move(state.task_id, **held(state), lease=settings.SLUICE.etl_lease_seconds).verdict


def note_progress(state: RunState, percent: int, *, step: str = "") -> Verdict:
    """`step`: what the percent comes from, `3/10`. Raises Unavailable."""
    return move(state.task_id, **held(state), lift={"progress": percent}, set={"step": step}, visible=True).verdict


def note_provider_task(state: RunState, provider_task_id: str) -> Verdict:
    """Raises Unavailable."""
    return move(state.task_id, **held(state), set={"provider_task_id": provider_task_id}, visible=True).verdict


def note_usage(state: RunState, usage: Usage) -> None:
    """Add to what models were asked and have answered, over all attempts. Raises Unavailable."""
    move(state.task_id, **held(state), increase=usage.as_dict(), visible=True)


def advance(state: RunState, *, markdown_key: str, move_id: str | None = None, **facts: str) -> TransitionResult:
    """OCR is done, its result stored: post-processing may begin. Raises Unavailable."""
    return move(
        state.task_id,
        id=move_id,
        **held(state),
        **ADVANCE.conditions(),
        set={"phase": Phase.POSTPROCESS, "markdown_key": markdown_key, "step": "", **facts},
        drop=True,
        delay=0,
        hinted=0,  # the chain sends what comes next
        lift={"progress": HALF},
    )


def wait(state: RunState, *, delay: float, is_hinted: bool, move_id: str | None = None) -> Verdict:
    """Give the lease back, and be tried again after some seconds. `is_hinted`: a message is sent for then.

    Raises Unavailable.
    """
    return move(
        state.task_id,
        id=move_id,
        **held(state),
        drop=True,
        delay=delay,
        hinted=delay if is_hinted else -settings.SLUICE.etl_recovery_seconds,
        visible=True,
    ).verdict


def release(state: RunState) -> Verdict:
    """Give the lease back as if it had never been taken, for a worker that is told to leave. Raises Unavailable."""
    burned = {f"attempts_{state.phase}": -1}
    return move(state.task_id, **held(state), drop=True, delay=0, increase=burned, visible=True).verdict


def complete(
    state: RunState, *, result: dict[str, Any], usage: Mapping[str, int], move_id: str | None = None, **facts: str
) -> TransitionResult:
    """The end of a task that succeeded. `usage`: at least this much was used. Raises Unavailable."""
    return end(state, COMPLETE, facts | result_facts(result), {**usage, "progress": WHOLE}, move_id)


def fail(
    state: RunState, *, error: dict[str, Any], usage: Mapping[str, int], move_id: str | None = None, **facts: str
) -> TransitionResult:
    """The end of a task that failed. Its progress stays. Raises Unavailable."""
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
    """End a task that no worker has begun with. Raises Unavailable."""
    return move(
        task_id,
        **CANCEL.conditions(),
        fence=fence,
        unstarted=True,
        ttl=settings.SLUICE.etl_state_terminal_ttl_seconds,
    )


def look(fences: Mapping[int, int]) -> dict[int, TransitionResult]:
    """Look at open tasks, for recovery: `{task_id: the row's fence}`. Keeps the states of those that go on alive.

    MOVED: nobody works on it, it is due, and no hint was sent lately; one should be, and counts as sent. Raises
    Unavailable.
    """
    every = settings.SLUICE.etl_recovery_seconds
    due = {"free": True, "hint": every, "longest": LONGEST_PAUSE, "hinted": 0, "tell": "news"}
    return move_many({task_id: {"fence": fence, **due} for task_id, fence in fences.items()})
