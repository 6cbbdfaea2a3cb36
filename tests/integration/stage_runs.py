"""Stages of tasks, run in the test process."""

import threading
from collections.abc import Callable
from datetime import timedelta

from django.db import connection
from django.utils import timezone

from etl import runstate
from etl.core.states import Stage
from etl.models import Task
from etl.pipeline import execution
from etl.runstate import RunState
from tests.broker import valkey

ConfigureStages = Callable[..., None]  # the value of the fixture `configure_stages`


def seen(task: Task) -> RunState:
    state = runstate.read(task.pk)
    assert state
    return state


def run(task: Task, *stages: Stage) -> list[bool]:
    return [execution.run(stage, task_id=task.pk) for stage in stages or Stage]


def run_beside(task: Task, stage: Stage, done: list[bool] | None = None) -> threading.Thread:
    """Run a stage in a thread, which returns its database connection to the pool at the end."""

    def work() -> None:
        try:
            (done if done is not None else []).extend(run(task, stage))
        finally:
            connection.close()

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    return thread


def run_when_due(task: Task, stage: Stage) -> bool:
    valkey().hset(runstate.key_of(task.pk), mapping={"available_at": 0, "lease_until": 0})
    return execution.run(stage, task_id=task.pk)


def row_of(task: Task) -> Task:
    return Task.objects.get(pk=task.pk)


def age(task: Task, *, seconds: float = 3600) -> None:
    """Backdate a row, so that recovery considers it."""
    Task.objects.filter(pk=task.pk).update(updated_at=timezone.now() - timedelta(seconds=seconds))
