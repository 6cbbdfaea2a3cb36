"""Reconciliation after the database was restored to an earlier point than Redis and object storage.

A restore resets the task IDs, generations, and runs in the rows, but Redis and object storage still have state under
the numbers that were used since the backup. `manage.py reconcile` repairs that before Sluice starts again. Each
function can be interrupted and run again, and is safe while workers run.
"""

import sys
from collections.abc import Iterable, Iterator
from itertools import groupby, islice

from django.db.models import F

from config.platform import storage
from etl import runstate
from etl.models import Task
from etl.pipeline import artifacts

BATCH = 500
# Greater than the number of retries of any task between two backups.
GENERATION_STEP = 1_000


def raise_generations() -> int:
    """Give every task an unused generation. Return the number of tasks.

    All existing run-states are then older than their rows, and recovery recreates them from the artifact of the latest
    stage. Runs are numbered by generations, so a retry cannot find artifacts of a retry that is missing in the restored
    database.
    """
    return Task.objects.update(generation=F("generation") + GENERATION_STEP)


def forget_unknown_tasks() -> int:
    """Delete the run-states of tasks without a row. Return their number. Raises Unavailable."""
    forgotten = 0
    for task_ids in runstate.scan_all(size=BATCH):
        for task_id in without_row(task_ids):
            forgotten += runstate.forget(task_id, generation=sys.maxsize)
    return forgotten


def unknown_artifacts(*, delete: bool) -> int:
    """Count the artifacts of runs without a row, and delete them if `delete` is set. Raises StorageError.

    The hourly sweep deletes the documents of lost tasks.
    """
    found = 0
    by_run = groupby((item.key for item in storage.list_objects(artifacts.TASKS)), key=artifacts.run_folder)
    while batch := [(run, list(keys)) for run, keys in islice(by_run, BATCH)]:
        runs = runs_of({run.task_id for run, _ in batch if run})
        for run, keys in batch:
            if run and run.run not in runs.get(run.task_id, ()):
                found += len(keys)
                if delete:
                    storage.delete_many(keys)
    return found


def runs_of(task_ids: set[int]) -> dict[int, range]:
    """Return the possible run numbers of these tasks, by task ID. A lost task with the same ID had other numbers."""
    tasks = Task.objects.filter(pk__in=task_ids).only("task_id", "uuid", "generation")
    return {task.pk: range(task.first_run, task.generation + 1) for task in tasks}


def without_row(task_ids: Iterable[int]) -> Iterator[int]:
    """Yield the IDs without a row. The row of a task is created before all other data of the task."""
    ids = set(task_ids)
    yield from sorted(ids - set(Task.objects.filter(pk__in=ids).values_list("pk", flat=True)))
