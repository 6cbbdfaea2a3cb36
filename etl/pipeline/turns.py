"""Turns between users: the order in which workers take waiting tasks.

Like chunks of exports, tasks are ordered by start-time fair queueing. A user's next task ranks behind the user's
earlier ones, and not before the tasks that workers have already processed. So the n-th waiting task of a user competes
with the n-th of each other user, and neither a large backlog nor a stream of single documents delays other users.

The rank of a row is fixed when its task is submitted or retried. Messages only wake workers: the rows decide which task
a worker runs. A rank is not a lock: two workers may find the same task, and its run-state decides which of them starts
it.
"""

from collections.abc import Iterator

from django.db.models import Q

from config.platform.db import sql
from etl import runstate
from etl.core.states import Stage
from etl.models import Task
from etl.runstate import TaskIdentity

BATCH, BATCHES = 50, 10  # open tasks per read, and reads per message

# Cancelled tasks are in neither maximum. In the first, they would move all other users behind their owner's backlog.
# In the second, they would move their owner back. Tasks that a retry processed without OCR are not in the first: they
# overtake the owner's backlog, but have its rank.
NEXT_RANK = """
SELECT greatest(
    (SELECT max(rank) FROM etl_task WHERE status IN ('completed', 'failed') AND ocr_run = run),
    (SELECT max(rank) + 1 FROM etl_task WHERE user_id = %(user)s AND status <> 'cancelled'),
    0
)
"""
COUNT_BEFORE = """
SELECT count(*) FROM etl_task task JOIN etl_task own ON own.task_id = %(task)s
WHERE task.status = 'pending' AND (task.rank, task.task_id) < (own.rank, own.task_id)
"""


def next_rank(user_id: int) -> int:
    """Return the rank of the user's next task. Call in the transaction that writes it, after `queue_limit.enter`."""
    return int(sql.scalar(NEXT_RANK, user=user_id))


def count_before(task_id: int) -> int:
    """Return the number of open tasks whose turn is before the turn of this task."""
    return int(sql.scalar(COUNT_BEFORE, task=task_id))


def waiting(stage: Stage) -> Iterator[TaskIdentity]:
    """Yield the tasks that wait for this stage and are due, in the order of turns.

    Reads at most the first BATCH * BATCHES open tasks. All of them may be running or waiting for their next attempt.
    Raises Unavailable and Django's errors.
    """
    tasks = Task.objects.open()
    if stage == Stage.OCR:
        tasks = tasks.filter(phase=Stage.OCR)
    rows = tasks.order_by("rank", "task_id").values_list("rank", "task_id", "uuid", "generation", named=True)
    for _ in range(BATCHES):
        batch = list(rows[:BATCH])
        free = runstate.find_free(batch, stage=stage)
        yield from (each for each in batch if each.task_id in free)
        if len(batch) < BATCH:
            return
        last = batch[-1]
        rows = rows.filter(Q(rank=last.rank, task_id__gt=last.task_id) | Q(rank__gt=last.rank), rank__gte=last.rank)
