"""The Celery application. Messages are hints: they wake a worker and decide nothing.

Started plainly, `python -m celery -A config worker -Q exports`; no wrapper is needed.
"""

import os
from typing import Any

import structlog
from celery import Celery
from celery.signals import celeryd_after_setup, setup_logging
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


@celeryd_after_setup.connect
def say_it_in_the_log(**_later: object) -> None:
    """Have Celery's words at the end of a worker be lines like all others. It writes them past the log."""
    from celery.apps import worker

    from config import logs

    worker.safe_say = logs.say  # type: ignore[attr-defined]


@receiver(bind_extra_task_metadata)
def name_task(*, task: Any, **_later: object) -> None:
    """Put the task's name into every line that it logs, `task_succeeded` too."""
    structlog.contextvars.bind_contextvars(task=task.name)
