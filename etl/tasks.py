"""Celery's entrance: translate, one call. Keyword arguments, and room for later ones, so that old and new workers can
run side by side during a deploy."""

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
    """The chain goes on when this returns, and ends here when it raises."""
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
def take_the_room(*, instance: Any, **_later: object) -> None:
    """Say at its start what a worker's documents would fail of, and delete what those before it have left; and at its
    end, when its processes are gone, what they have left. Celery sends no signal at the end that a SIGQUIT brings."""
    if settings.ETL_QUEUES[Phase.OCR] in instance.app.amqp.queues.consume_from:
        workspace.check()
        workspace.clear()
        atexit.register(workspace.clear)


@task_failure.connect
def tell_what_was_lost(*, sender: Any, exception: object, kwargs: Any, **_later: object) -> None:
    """Celery's own line has the id of the message only. What the worker had is sent again when its lease is over."""
    if isinstance(exception, WorkerLostError) and sender.name in {dispatch.OCR, dispatch.POSTPROCESS}:
        log.error("worker_lost", etl_task_id=kwargs.get("task_id"), stage=sender.name.removeprefix("etl."))
