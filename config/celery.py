"""The Celery application. Messages are hints: they wake a worker and decide nothing.

Started plainly, `python -m celery -A config worker -Q exports`; no wrapper is needed.
"""

import os
from typing import Any

import structlog
from celery import Celery
from celery.signals import setup_logging, worker_process_shutdown
from django.dispatch import receiver
from django_structlog.celery.signals import bind_extra_task_metadata
from django_structlog.celery.steps import DjangoStructLogInitStep

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "config.settings")

app = Celery("sluice")
app.config_from_object("django.conf:settings", namespace="CELERY")
app.autodiscover_tasks()
app.steps["worker"].add(DjangoStructLogInitStep)


@setup_logging.connect
def leave_logging_to_django(**_later: object) -> None:
    """Keep Celery from replacing the log configuration that the settings made."""


@receiver(bind_extra_task_metadata)
def name_task(*, task: Any, **_later: object) -> None:
    """Put the task's name into every line that it logs, `task_succeeded` too."""
    structlog.contextvars.bind_contextvars(task=task.name)


@worker_process_shutdown.connect
def forget_gauges(*, pid: int, **_later: object) -> None:
    """Drop a dead pool process from the gauges that count the living; its counters stay in the sums."""
    if "PROMETHEUS_MULTIPROC_DIR" in os.environ:
        # Not at the top: prometheus_client looks at the variable when it is imported, and this module comes very early.
        from prometheus_client import multiprocess

        multiprocess.mark_process_dead(pid)  # type: ignore[no-untyped-call]
