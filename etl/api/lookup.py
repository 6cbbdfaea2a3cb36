"""States of tasks: from the run-state, or from the row if Redis has none or is unavailable.

Both are returned as a RunState. A row is `pending` until its task has ended, so it is less precise.
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
from etl.core.errors import SchemaInvalid
from etl.core.states import ENDED, Status
from etl.models import Task
from etl.models.task import TaskQuerySet
from etl.pipeline import representation
from etl.runstate import RunState

POLL_SECONDS = 0.25
CHECK_SECONDS = 5  # between checks that a waiting user still has access
# A waiting request occupies a thread of this process. Requests above these limits do not wait.
MAX_WAITING = 64
MAX_WAITING_PER_USER = 16


# ---- One task -------------------------------------------------------------------------------------------------------
def find(task_id: int, *, user: User) -> RunState | None:
    """Return a task that the user may see, or None. Query the database only if Redis has no run-state."""
    state = known([task_id]).get(task_id)
    return state if state and (state.user_id == user.pk or staff.may(user, Task)) else None


def known(task_ids: Iterable[int]) -> dict[int, RunState]:
    """Return the states of tasks: one round trip, and one query for those without a usable run-state."""
    ids = list(task_ids)
    states = run_states(ids)
    missing = [task_id for task_id in ids if task_id not in states or states[task_id].result_is_elsewhere]
    rows = Task.objects.in_bulk(missing) if missing else {}
    return {task_id: seen for task_id in ids if (seen := merged(rows.get(task_id), states.get(task_id))) is not None}


def merged(row: Task | None, state: RunState | None) -> RunState | None:
    """Return the newer of the two.

    A task ends in Redis first and then in its row, and a retry starts in the row. So the row is newer if it has ended
    or has a greater generation. A run-state may also be that of another document, whose row was lost.
    """
    if row is None:
        return state and as_shown(state)
    if state is None or state.uuid != row.uuid or is_outdated(state, row):
        return RunState.of_row(row)
    return as_shown(state)


def is_outdated(state: RunState, row: Task) -> bool:
    return row.generation > state.generation or (row.has_ended and row.generation == state.generation)


def as_shown(state: RunState) -> RunState:
    """Return the state, as not ended if its result is not in the row yet."""
    return replace(state, status=Status.LLM_PROCESSING) if state.result_is_elsewhere else state


def previous_result(state: RunState) -> dict[str, Any] | None:
    """Return the last result of a task that was retried and has not completed since, or None."""
    if not state.previous_run or state.status == Status.COMPLETED:
        return None
    rows = Task.objects.filter(pk=state.task_id, last_result_run=state.previous_run)
    row = rows.only("last_result", "reviewed_run", "corrected_result").first()
    return row.corrected(row.last_result, run=state.previous_run) if row else None


def record_access(state: RunState, *, user: User, message: str) -> None:
    """Record that staff open the content of another user's document, before it is sent."""
    staff.record_access(user, Task(pk=state.task_id, user_id=state.user_id), message)


def open_result(state: RunState, *, user: User) -> RunState:
    """Return a state whose result may be sent to the user, and record it; for staff who may not open data, the state
    without content of the document."""
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
    if error and error["code"] == SchemaInvalid.code:
        error = error | {"detail": SchemaInvalid.detail}  # names of the result's members may be words of the document
    return replace(state, result=None, previous_run=0, markdown_key="", metadata=metadata, error=error)


def has_result(state: RunState) -> bool:
    """Return whether the task as the API shows it contains a result."""
    return state.status == Status.COMPLETED or bool(state.previous_run)


# ---- Lists ----------------------------------------------------------------------------------------------------------
def with_status(tasks: TaskQuerySet, status: str) -> TaskQuerySet:
    """Filter tasks by status.

    The status of open tasks is in their run-states only. There are at most ETL_QUEUE_SIZE open tasks.
    """
    generations = dict(tasks.open().order_by().values_list("task_id", "generation"))
    states = {
        task_id: as_shown(state)
        for task_id, state in run_states(generations).items()
        if state.generation >= generations[task_id]
    }
    fitting = [task_id for task_id in generations if status_of(states.get(task_id)) == status]
    return tasks.filter(Q(status=status) | Q(task_id__in=fitting) if status in ENDED else Q(task_id__in=fitting))


def status_of(state: RunState | None) -> str:
    return Status.PENDING if state is None else state.status


def shown(rows: Collection[Task]) -> list[RunState]:
    """Return the states of rows that were just read, without results. One round trip for the open ones."""
    for row in rows:
        row.result = row.last_result = row.corrected_result = None  # deferred: the results of a page may be too large
    states = run_states(row.pk for row in rows if not row.has_ended)
    return [seen for row in rows if (seen := merged(row, states.get(row.pk))) is not None]


# ---- Redis ----------------------------------------------------------------------------------------------------------
class RunStates(CircuitBreaker):
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
    """Return the existing run-states; none while the circuit breaker for Redis is open."""
    return breaker().read(list(task_ids))


# ---- Waiting --------------------------------------------------------------------------------------------------------
class WaitingRequests:
    """Counter of waiting requests in this process, in total and per user."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.by_user: Counter[int] = Counter()

    def enter(self, user_id: int) -> bool:
        with self.lock:
            has_room = self.by_user.total() < MAX_WAITING and self.by_user[user_id] < MAX_WAITING_PER_USER
            self.by_user[user_id] += has_room
            return has_room

    def leave(self, user_id: int) -> None:
        with self.lock:
            self.by_user -= Counter({user_id: 1})


waiting = WaitingRequests()


def wait_for_change(state: RunState, *, user: User, credential: Credential, seconds: float) -> RunState:
    """Wait until the task has changed, and return its state. Hold no database connection meanwhile.

    Raises NotAuthenticated when the credential is no longer valid. Return earlier, with the state unchanged, if too
    many requests wait, Redis is unavailable, or the process shuts down.
    """
    if state.has_ended or not seconds or not waiting.enter(user.pk):
        return state
    now = state
    try:
        metrics.WAITS_BEGUN.inc()
        connection.close()
        now = changed(state, credential, until=time.monotonic() + seconds)
    finally:
        waiting.leave(user.pk)
        metrics.WAITS_ENDED.labels("unchanged" if now is state else "changed").inc()
    return now


def changed(state: RunState, credential: Credential, *, until: float) -> RunState:
    check_at = time.monotonic() + CHECK_SECONDS
    while (left := until - time.monotonic()) > 0 and not graceful_shutdown.has_begun.wait(min(POLL_SECONDS, left)):
        if breaker().is_open:
            break
        try:
            now = known([state.task_id]).get(state.task_id)
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
