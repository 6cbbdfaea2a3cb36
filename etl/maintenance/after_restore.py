"""After the database was restored to an earlier point, while Redis and object storage go on from a later one.

The numbers of tasks, fences and runs go back with the rows; what lies in Redis and in object storage under those that
were given out since belongs to a time that never was. `manage.py reconcile` puts that right before anything of Sluice's
is started again. Each function may be run twice, may be cut short anywhere and run again, and is right beside workers
that run.
"""

import sys
from collections.abc import Iterable, Iterator
from itertools import groupby, islice

import structlog
from django.db.models import F

from config.platform import storage
from etl import runstate
from etl.models import Task
from etl.pipeline import artifacts

log = structlog.get_logger(__name__)

BATCH = 500
# More retries than anybody makes of one task between two backups.
FENCES = 1_000


def raise_fences() -> int:
    """Give every task a fence that nobody has seen. Returns how many there are.

    Run-states of before are older than their rows then: recovery makes them anew, from the furthest artefact. Runs are
    named by fences: a retry finds nothing that another retry, which nobody remembers, has left under its name.
    """
    return Task.objects.update(fence=F("fence") + FENCES)


def forget_strangers() -> int:
    """Forget the run-states of tasks that have no row any more. Returns how many. Raises Unavailable."""
    forgotten = 0
    for task_ids in runstate.all_of_them(size=BATCH):
        for task_id in without_row(task_ids):
            forgotten += runstate.forget(task_id, fence=sys.maxsize)
    return forgotten


def strange_artefacts(*, delete: bool) -> int:
    """Find, and delete, what was stored for tasks that have no row any more. Returns how many objects. Their documents
    are deleted by the hourly sweep. Raises StorageError."""
    found = 0
    by_task = groupby((item.key for item in storage.list_objects(artifacts.TASKS)), key=task_of)
    while batch := {task_id: list(keys) for task_id, keys in islice(by_task, BATCH)}:
        for task_id in without_row(task_id for task_id in batch if task_id):
            found += len(batch[task_id])
            if delete:
                storage.delete_many(batch[task_id])
    return found


def task_of(key: str) -> int:
    """Return the id of the task that an artefact is of; 0 for what is none."""
    number = key.removeprefix(artifacts.TASKS).partition("/")[0]
    return int(number) if number.isdecimal() else 0


def without_row(task_ids: Iterable[int]) -> Iterator[int]:
    """Yield those of the ids that no row has. A row is there before anything else of its task."""
    ids = set(task_ids)
    yield from sorted(ids - set(Task.objects.filter(pk__in=ids).values_list("pk", flat=True)))
