"""Lookup of the state of tasks: from the run-state, or from the row if Redis has no run-state or is unavailable.

Either is returned as a RunState. A state from a row is less exact, because a row is `pending` until its task has ended.
"""

import os
import threading
import time
from collections import Counter
from collections.abc import Collection, Iterable
from dataclasses import replace
from functools import lru_cache
from typing import Any

from django.conf import settings
from django.contrib.auth.models import User
from django.db import connection
from django.db.models import Q

from config.platform.http import graceful_shutdown, staff
from config.platform.http.auth import Credential, valid_credentials
from config.platform.http.circuit_breaker import CircuitBreaker
from config.platform.http.problems import NotAuthenticated
from etl import runstate
from etl.core import metrics
from etl.core.errors import NumberUnrepresentable, SchemaInvalid
from etl.core.states import ENDED, Status
from etl.models import Task
from etl.models.task import TaskQuerySet
from etl.pipeline import representation
from etl.runstate import RunState

POLL_SECONDS = 0.25
CHECK_SECONDS = 5  # interval at which the credential of a waiting request is checked
# Errors whose details contain names of members of the result, which can be words of the document.
REDACTED_DETAILS = {error.code: error.detail for error in (SchemaInvalid, NumberUnrepresentable)}
# A waiting request occupies a thread of this process. Requests above these limits do not wait.
MAX_WAITING = 64
MAX_WAITING_PER_USER = 16


# ---- One task -------------------------------------------------------------------------------------------------------
def find(task_id: int, *, user: User) -> RunState | None:
    """Return the state of a task that the user may view, or None. Reads the row only without a usable run-state."""
    state = states_of([task_id]).get(task_id)
    return state if state and (state.user_id == user.pk or staff.may(user, Task)) else None


def states_of(task_ids: Iterable[int]) -> dict[int, RunState]:
    """Return the states of tasks, with one round trip to Redis, and one query for tasks without a usable run-state."""
    ids = list(task_ids)
    states = run_states(ids)
    missing = [task_id for task_id in ids if task_id not in states or states[task_id].result_is_elsewhere]
    rows = Task.objects.in_bulk(missing) if missing else {}
    return {
        task_id: newer(rows[task_id], states.get(task_id)) if task_id in rows else as_shown(states[task_id])
        for task_id in ids
        if task_id in rows or task_id in states
    }


def newer(row: Task, state: RunState | None) -> RunState:
    """Return the newer of a row and a run-state, as a RunState.

    A task ends in Redis first and then in its row. A retry starts in the row. So the row is newer if it has ended or
    has a higher generation. The run-state can also belong to a different document, whose row was lost.
    """
    current = usable(state, row)
    return RunState.of_row(row) if current is None else as_shown(current)


def usable(state: RunState | None, row: Task) -> RunState | None:
    """Return the run-state if it belongs to the row and is not older, or None."""
    if state is None or state.uuid != row.uuid or row.generation > state.generation:
        return None
    return None if row.has_ended and row.generation == state.generation else state


def as_shown(state: RunState) -> RunState:
    """Return the state as the API shows it: still processing if the result is not in the row yet."""
    return replace(state, status=Status.LLM_PROCESSING) if state.result_is_elsewhere else state


def previous_result(state: RunState) -> dict[str, Any] | None:
    """Return the last result of a task that was retried and has not completed since, or None."""
    if not state.previous_run or state.status == Status.COMPLETED:
        return None
    rows = Task.objects.filter(pk=state.task_id, last_result_run=state.previous_run)
    row = rows.only("last_result", "reviewed_run", "corrected_result").first()
    return row.corrected(row.last_result, run=state.previous_run) if row else None


def record_access(state: RunState, *, user: User, message: str) -> None:
    """Record that staff open the content of another user's document. Call this before the content is sent."""
    staff.record_access(user, Task(pk=state.task_id, user_id=state.user_id), message)


def open_result(state: RunState, *, user: User) -> RunState:
    """Return the state with its result, and record that the user opens it.

    For staff without permission to open data, return the state without content of the document.
    """
    if not staff.may_open(user, state.user_id):
        return without_data(state)
    if has_result(state):
        record_access(state, user=user, message="Over the API: opened the result.")
    return state


def without_data(state: RunState) -> RunState:
    """Return a state without content of the document: no result, no e-invoice, and only the codes of warnings."""
    ocr = {name: value for name, value in state.metadata["ocr"].items() if name != representation.EINVOICE}
    warnings = [warning | {"detail": ""} for warning in state.metadata["warnings"]]
    metadata = state.metadata | {"ocr": ocr, "warnings": warnings}
    error = state.error
    if error and error["code"] in REDACTED_DETAILS:
        error = error | {"detail": REDACTED_DETAILS[error["code"]]}
    return replace(state, result=None, previous_run=0, markdown_key="", metadata=metadata, error=error)


def has_result(state: RunState) -> bool:
    """Return whether the API response of the task contains a result."""
    return state.status == Status.COMPLETED or bool(state.previous_run)


# ---- Lists ----------------------------------------------------------------------------------------------------------
def with_status(tasks: TaskQuerySet, status: str) -> TaskQuerySet:
    """Filter tasks by status. The exact status of open tasks, at most ETL_QUEUE_SIZE, is read from Redis."""
    rows = (
        tasks.open()
        .order_by()
        .select_related(None)
        .prefetch_related(None)
        .only("uuid", "generation", "status")
        .in_bulk()
    )
    states = run_states(rows)
    matching = [task_id for task_id, row in rows.items() if status_of(usable(states.get(task_id), row)) == status]
    return tasks.filter(Q(status=status) | Q(task_id__in=matching) if status in ENDED else Q(task_id__in=matching))


def status_of(state: RunState | None) -> str:
    return Status.PENDING if state is None else as_shown(state).status


def states_of_rows(rows: Collection[Task]) -> list[RunState]:
    """Return the states of rows, without their results. The run-states of open tasks are read in one round trip."""
    for row in rows:
        row.result = row.last_result = row.corrected_result = None  # prevents loading the deferred results
    states = run_states(row.pk for row in rows if not row.has_ended)
    return [newer(row, states.get(row.pk)) for row in rows]


# ---- Redis ----------------------------------------------------------------------------------------------------------
class RunStates(CircuitBreaker):
    """Reads of run-states, with a circuit breaker for Redis."""

    opened, closed = "run_states_not_read", "run_states_read_again"

    def read(self, ids: list[int]) -> dict[int, RunState]:
        if not ids or not self.allows_request():
            return {}
        try:
            found = runstate.read_many(ids)
        except runstate.Unavailable as error:
            self.record_failure(str(error))
            return {}
        self.record_success()
        return found


@lru_cache(maxsize=1)
def breaker_of(_url: str, _pid: int) -> RunStates:
    return RunStates()


def breaker() -> RunStates:
    return breaker_of(settings.SLUICE.run_state_url, os.getpid())


def run_states(task_ids: Iterable[int]) -> dict[int, RunState]:
    """Return the existing run-states by task ID. Empty while the circuit breaker for Redis is open."""
    return breaker().read(list(task_ids))


# ---- Waiting --------------------------------------------------------------------------------------------------------
class WaitingRequests:
    """Limit of waiting requests in this process, in total and for each user."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.by_user: Counter[int] = Counter()

    def enter(self, user_id: int) -> bool:
        """Count a request. Return False, without counting it, if a limit is reached."""
        with self.lock:
            has_room = self.by_user.total() < MAX_WAITING and self.by_user[user_id] < MAX_WAITING_PER_USER
            self.by_user[user_id] += has_room
            return has_room

    def leave(self, user_id: int) -> None:
        with self.lock:
            self.by_user -= Counter({user_id: 1})


waiting_requests = WaitingRequests()


def wait_for_change(state: RunState, *, user: User, credential: Credential, seconds: float) -> RunState:
    """Wait up to `seconds` for a change of the task, without holding a database connection. Return its state.

    Returns early with the unchanged state if too many requests are waiting, Redis is unavailable, or the process shuts
    down. Raises NotAuthenticated when the credential is no longer valid.
    """
    if state.has_ended or not seconds or not waiting_requests.enter(user.pk):
        return state
    now = state
    try:
        metrics.WAITS_BEGUN.inc()
        connection.close()
        now = poll_for_change(state, credential, until=time.monotonic() + seconds)
    finally:
        waiting_requests.leave(user.pk)
        metrics.WAITS_ENDED.labels("unchanged" if now is state else "changed").inc()
    return now


def poll_for_change(state: RunState, credential: Credential, *, until: float) -> RunState:
    check_at = time.monotonic() + CHECK_SECONDS
    while (left := until - time.monotonic()) > 0 and not graceful_shutdown.has_begun.wait(min(POLL_SECONDS, left)):
        if breaker().is_open:
            break
        try:
            now = states_of([state.task_id]).get(state.task_id)
            if time.monotonic() > check_at:
                require_valid(credential)
                check_at = time.monotonic() + CHECK_SECONDS
        finally:
            connection.close()
        if now is None or now.number != state.number:
            return now or state
    return state


def require_valid(credential: Credential) -> None:
    """Raise NotAuthenticated if the token or session was revoked, or its user was deactivated."""
    if credential not in valid_credentials([credential]):
        raise NotAuthenticated
