"""What is known of a task: its run-state, and its row where Redis has none or does not answer.

Everything comes as a RunState. A row is `pending` as long as the task is open, so it says less; but it is never wrong.
"""

import os
import threading
import time
from collections import Counter
from collections.abc import Collection, Iterable
from dataclasses import replace
from functools import lru_cache

from django.conf import settings
from django.contrib.auth.models import User
from django.db import connection
from django.db.models import Q

from config.platform.http import graceful_shutdown
from config.platform.http.circuit_breaker import Breaker
from etl import runstate
from etl.core import metrics
from etl.core.states import ENDED, Status
from etl.models import Task
from etl.models.task import TaskQuerySet
from etl.runstate import RunState

LOOK_SECONDS = 0.25
# A request that waits holds a thread of this process. Who is one too many is answered at once.
MOST_WAITING = 64
MOST_WAITING_OF_A_USER = 16


# ---- One task -------------------------------------------------------------------------------------------------------
def find(task_id: int, *, user: User) -> RunState | None:
    """Return a task that the user may see, or None. Asks the database only when Redis has nothing."""
    state = known([task_id]).get(task_id)
    return state if state and (user.is_staff or state.user_id == user.pk) else None


def known(task_ids: Iterable[int]) -> dict[int, RunState]:
    """Return what is known of these tasks, in one round trip, and one query if Redis does not have them all."""
    ids = list(task_ids)
    states = run_states(ids)
    unsaid = [task_id for task_id in ids if task_id not in states or states[task_id].result_is_elsewhere]
    rows = Task.objects.in_bulk(unsaid) if unsaid else {}
    return {task_id: seen for task_id in ids if (seen := merged(rows.get(task_id), states.get(task_id))) is not None}


def merged(row: Task | None, state: RunState | None) -> RunState | None:
    """Return which of the two is right.

    The end falls in Redis and is then written into the row, and a retry begins in the row: so the row is right when it
    has ended, or when its fence is greater. Without a row that was read, the state is.
    """
    if state is None or (row is not None and (row.has_ended or row.fence > state.fence) and row.fence >= state.fence):
        return RunState.of_row(row) if row is not None else None
    return as_shown(state)


def as_shown(state: RunState) -> RunState:
    """Return the state, but one whose result is not in the row yet not as ended: it would have to be shown without."""
    return replace(state, status=Status.LLM_PROCESSING) if state.result_is_elsewhere else state


# ---- Lists ----------------------------------------------------------------------------------------------------------
def with_status(tasks: TaskQuerySet, status: str) -> TaskQuerySet:
    """Return those of the tasks that would be shown with this status.

    Of open ones only the run-states know. They are no more than ETL_QUEUE_SIZE, for all users together.
    """
    fences = dict(tasks.open().order_by().values_list("task_id", "fence"))
    states = {
        task_id: as_shown(state) for task_id, state in run_states(fences).items() if state.fence >= fences[task_id]
    }
    fitting = [task_id for task_id in fences if status_of(states.get(task_id)) == status]
    return tasks.filter(Q(status=status) | Q(task_id__in=fitting) if status in ENDED else Q(task_id__in=fitting))


def status_of(state: RunState | None) -> str:
    return Status.PENDING if state is None else state.status


def shown(rows: Collection[Task]) -> list[RunState]:
    """Return what is known of rows that were read just now, without results: one round trip for those that are open."""
    for row in rows:
        row.result = None  # not read, and not to be: two hundred of them are too much for a list
    states = run_states(row.pk for row in rows if not row.has_ended)
    return [seen for row in rows if (seen := merged(row, states.get(row.pk))) is not None]


# ---- Redis ----------------------------------------------------------------------------------------------------------
class RunStates(Breaker):
    away, back = "run_states_not_read", "run_states_read_again"

    def read(self, ids: list[int]) -> dict[int, RunState]:
        if not ids or not self.may_ask():
            return {}
        try:
            found = runstate.read_many(ids)
        except runstate.Unavailable as error:
            self.note_silence(str(error))
            return {}
        self.note_answer()
        return found


@lru_cache(maxsize=1)
def breaker_of(_url: str, _pid: int) -> RunStates:
    return RunStates()


def breaker() -> RunStates:
    return breaker_of(settings.SLUICE.run_state_url, os.getpid())


def run_states(task_ids: Iterable[int]) -> dict[int, RunState]:
    """Return the run-states that there are; none while Redis is away, which is waited for once in a while only."""
    return breaker().read(list(task_ids))


# ---- Waiting --------------------------------------------------------------------------------------------------------
class Seats:
    """How many requests wait in this process, in all and of each user."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.taken: Counter[int] = Counter()

    def take(self, user_id: int) -> bool:
        with self.lock:
            has_room = self.taken.total() < MOST_WAITING and self.taken[user_id] < MOST_WAITING_OF_A_USER
            self.taken[user_id] += has_room
            return has_room

    def leave(self, user_id: int) -> None:
        with self.lock:
            self.taken -= Counter({user_id: 1})


seats = Seats()


def wait_for_change(state: RunState, *, user: User, seconds: float) -> RunState:
    """Return the task as soon as it is another than this, and at the latest after so many seconds.

    Sooner, and unchanged, where too many wait already, Redis is away, or the process is told to stop. Holds no
    connection to the database meanwhile.
    """
    if state.has_ended or not seconds or not seats.take(user.pk):
        return state
    now = state
    try:
        metrics.wait_begun()
        connection.close()
        now = changed(state, until=time.monotonic() + seconds)
    finally:
        seats.leave(user.pk)
        metrics.wait_ended(changed=now is not state)
    return now


def changed(state: RunState, *, until: float) -> RunState:
    while (left := until - time.monotonic()) > 0 and not graceful_shutdown.has_begun.wait(min(LOOK_SECONDS, left)):
        if breaker().is_away:
            break
        try:
            now = known([state.task_id]).get(state.task_id)
        finally:
            connection.close()
        if now is None or now.number != state.number:
            return now or state
    return state
