"""The Celery application. Messages are hints: they wake a worker and decide nothing.

Started plainly, `python -m celery -A config worker -Q exports`; no wrapper is needed.
"""

import ctypes
import logging
import os
import sys
from contextlib import suppress
from io import FileIO, TextIOWrapper
from typing import Any, TextIO

import structlog
from celery import Celery
from celery.signals import (
    beat_init,
    celeryd_after_setup,
    celeryd_init,
    setup_logging,
    worker_process_init,
    worker_process_shutdown,
)
from django.dispatch import receiver
from django_structlog.celery.signals import bind_extra_task_metadata
from django_structlog.celery.steps import DjangoStructLogInitStep

from config.platform import broker

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "config.settings")

PR_SET_DUMPABLE = 4  # of prctl(2)

broker.mend()

app = Celery("sluice")
app.config_from_object("django.conf:settings", namespace="CELERY")
app.autodiscover_tasks()
app.steps["worker"].add(DjangoStructLogInitStep)


@setup_logging.connect
def leave_logging_to_django(**_later: object) -> None:
    """Keep Celery from replacing the log configuration that the settings made."""


@celeryd_init.connect
def refuse_bad_settings(**_later: object) -> None:
    """Have a worker end before it takes a message that it could only fail. Django is set up by now."""
    from config.platform import startup

    startup.insist_on_settings()


@celeryd_init.connect
def watch_worker(**_later: object) -> None:
    """Before its children are forked: what tracing and reports load is then shared with them."""
    from config.platform.observability import error_reports, tracing

    error_reports.begin()
    tracing.begin("worker")


@beat_init.connect
def watch_beat(**_later: object) -> None:
    from config.platform.observability import error_reports

    error_reports.begin()


@worker_process_shutdown.connect
def send_the_rest(**_later: object) -> None:
    """A child ends without what Python does at the end of a process."""
    from config.platform.observability import error_reports, tracing

    tracing.end()
    error_reports.end()


@celeryd_init.connect
@worker_process_init.connect
@beat_init.connect
def hide_secrets(**_later: object) -> None:
    """Have the kernel keep our environment and memory from all other processes of our user.

    One of them is the process that reads documents (ADR 13). A debugger then needs root, and there are no core dumps.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_DUMPABLE, 0, 0, 0, 0)


@celeryd_init.connect
def write_at_once(**_later: object) -> None:
    """Have what cannot be written be lost, and not be kept in a buffer.

    A child is forked after both streams were flushed: with a rest in one of them, a worker whose log has no room could
    start none, neither its first ones nor those that replace them.
    """
    sys.stdout, sys.stderr = unbuffered(sys.stdout), unbuffered(sys.stderr)
    for handler in logging.root.handlers:
        if isinstance(handler, logging.StreamHandler):
            handler.setStream(sys.stderr)


def unbuffered(stream: TextIO) -> TextIO:
    with suppress(OSError):
        stream.flush()
    raw = FileIO(stream.fileno(), "w", closefd=False)
    return TextIOWrapper(raw, encoding=stream.encoding, errors=stream.errors, write_through=True)


@celeryd_after_setup.connect
def say_it_in_the_log(**_later: object) -> None:
    """Have Celery's words at the end of a worker be lines like all others. It writes them past the log."""
    from celery.apps import worker

    from config.platform.observability import logs

    worker.safe_say = logs.say  # type: ignore[attr-defined]


@receiver(bind_extra_task_metadata)
def name_task(*, task: Any, **_later: object) -> None:
    """Put the task's name into every line that it logs, `task_succeeded` too."""
    structlog.contextvars.bind_contextvars(task=task.name)
