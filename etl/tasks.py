"""Celery tasks. Unknown keyword arguments are accepted: old and new workers run side by side during an upgrade."""

import atexit
from typing import Any

import structlog
from celery import shared_task
from celery.exceptions import Ignore, WorkerLostError
from celery.signals import celeryd_after_setup, task_failure
from django.conf import settings

from etl.core import workspace
from etl.core.states import Phase
from etl.maintenance import cleanup, recovery
from etl.pipeline import dispatch, execution

log = structlog.get_logger(__name__)


@shared_task(name=dispatch.OCR)
def ocr(*, task_id: int, **_later: object) -> None:
    """The chain continues when this returns, and ends when it raises."""
    if not execution.run(Phase.OCR, task_id=task_id):
        raise Ignore


@shared_task(name=dispatch.POSTPROCESS)
def postprocess(*, task_id: int, **_later: object) -> None:
    execution.run(Phase.POSTPROCESS, task_id=task_id)


@shared_task(name=dispatch.RECOVER)
def recover(**_later: object) -> None:
    recovery.recover()


@shared_task(name=dispatch.SWEEP)
def sweep(**_later: object) -> None:
    cleanup.sweep()


# ---- Workers --------------------------------------------------------------------------------------------------------
@celeryd_after_setup.connect
def prepare_workspace(*, instance: Any, **_later: object) -> None:
    """Check the workspace when a worker starts, and delete leftovers; delete its own when it ends.

    At exit, because Celery sends no signal when SIGQUIT ends a worker.
    """
    if settings.ETL_QUEUES[Phase.OCR] in instance.app.amqp.queues.consume_from:
        workspace.check()
        workspace.clear()
        atexit.register(workspace.clear)


@task_failure.connect
def log_lost_task(*, sender: Any, exception: object, kwargs: Any, **_later: object) -> None:
    """Log the task, because Celery only logs the message's id. The task is sent again when its lease expires."""
    if isinstance(exception, WorkerLostError) and sender.name in {dispatch.OCR, dispatch.POSTPROCESS}:
        log.error("worker_lost", etl_task_id=kwargs.get("task_id"), stage=sender.name.removeprefix("etl."))
