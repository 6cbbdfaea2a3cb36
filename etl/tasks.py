"""Celery tasks. Unknown keyword arguments are accepted: old and new workers run side by side during an upgrade."""

import atexit
from typing import Any

import structlog
from celery import shared_task
from celery.exceptions import Ignore, WorkerLostError
from celery.signals import celeryd_after_setup, task_failure
from django.conf import settings

from etl import runstate
from etl.core import workspace
from etl.core.states import Stage
from etl.evaluation import dispatch as evaluation_dispatch
from etl.evaluation import execution as evaluation
from etl.maintenance import cleanup, recovery
from etl.pipeline import dispatch, execution, page_images

log = structlog.get_logger(__name__)


@shared_task(name=dispatch.OCR, bind=True)
def ocr(self: Any, /, *, task_id: int, **_later: object) -> None:
    """Run OCR. Post-processing, the next Celery task of the chain, starts only if this one raises no exception."""
    if not execution.run_next(Stage.OCR, task_id=task_id, job_id=self.request.id or ""):
        raise Ignore


@shared_task(name=dispatch.POSTPROCESS, bind=True)
def postprocess(self: Any, /, *, task_id: int, **_later: object) -> None:
    execution.run_next(Stage.POSTPROCESS, task_id=task_id, job_id=self.request.id or "")


@shared_task(name=dispatch.DRAW)
def draw_pages(*, task_id: int, page: int, width: int, pixels: int = 0, **_later: object) -> None:
    if pixels:
        page_images.draw_for_models(task_id, page=page, pixels=pixels)
    else:
        page_images.draw(task_id, page=page, width=width)


@shared_task(name=evaluation_dispatch.EVALUATE)
def evaluate(*, user_id: int, **_later: object) -> None:
    evaluation.run_next(user_id)


@shared_task(name=dispatch.RECOVER)
def recover(**_later: object) -> None:
    recovery.recover()


@shared_task(name=dispatch.SWEEP)
def sweep(**_later: object) -> None:
    cleanup.sweep()


# ---- Workers --------------------------------------------------------------------------------------------------------
@celeryd_after_setup.connect
def prepare_workspace(*, instance: Any, **_later: object) -> None:
    """When a worker starts, check the workspace and delete leftover files.

    Delete this worker's files in an atexit handler, because Celery sends no signal when SIGQUIT ends a worker.
    """
    if settings.ETL_QUEUES[Stage.OCR] in instance.app.amqp.queues.consume_from:
        workspace.check()
        workspace.clear()
        atexit.register(workspace.clear)


@task_failure.connect
def log_lost_task(*, sender: Any, task_id: str, exception: object, kwargs: Any, **_later: object) -> None:
    """Log the document task that a lost worker was running. Celery logs only the ID of the message.

    Recovery sends the task again when its lease expires. If Redis is unavailable, the ID comes from the arguments of
    the Celery message.
    """
    if not (isinstance(exception, WorkerLostError) and sender.name in {dispatch.OCR, dispatch.POSTPROCESS}):
        return
    try:
        lost = runstate.find_running(task_id)
    except runstate.Unavailable:
        lost = None
    log.error("worker_lost", etl_task_id=lost or kwargs.get("task_id"), stage=sender.name.removeprefix("etl."))
