"""Celery application. Messages only wake workers up; the database decides what to do.

Start a worker with `python -m celery -A config worker -Q exports`, without a wrapper.
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
# Celery would run all system checks, which load every URL, page, and admin class: 18 MB in each process.
# `check_settings` runs the checks that a worker needs.
os.environ.setdefault("CELERY_SKIP_CHECKS", "1")

PR_SET_DUMPABLE = 4  # of prctl(2)
M_ARENA_MAX = -8  # of mallopt(3)

broker.patch_transports()

app = Celery("sluice")
app.config_from_object("django.conf:settings", namespace="CELERY")
app.autodiscover_tasks()
app.steps["worker"].add(DjangoStructLogInitStep)


@setup_logging.connect
def keep_django_logging(**_later: object) -> None:
    """Keep Celery from replacing the log configuration of the settings."""


@celeryd_init.connect
def check_settings(**_later: object) -> None:
    """Stop a worker with invalid settings before it takes a message. Django is set up at this point."""
    from config.platform import startup

    startup.require_valid_settings()


@celeryd_init.connect
def start_worker_reporting(**_later: object) -> None:
    """Start tracing and error reports before the fork, so that children share the loaded modules."""
    from config.platform.observability import error_reports, tracing

    error_reports.start()
    tracing.start("worker")


@beat_init.connect
def start_beat_reporting(**_later: object) -> None:
    from config.platform.observability import error_reports

    error_reports.start()


@worker_process_shutdown.connect
def flush_reports(**_later: object) -> None:
    """Flush traces and error reports. A child process exits without running Python's exit handlers."""
    from config.platform.observability import error_reports, tracing

    tracing.flush()
    error_reports.flush()


@celeryd_init.connect
@worker_process_init.connect
@beat_init.connect
def hide_secrets(**_later: object) -> None:
    """Protect the environment and memory from other processes of the same user.

    The sandboxed document reader (ADR 13) runs as that user. Debuggers then need root, and there are no core dumps.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_DUMPABLE, 0, 0, 0, 0)


@celeryd_init.connect
def limit_arenas(**_later: object) -> None:
    """Let the threads of each process share two heaps. glibc creates up to eight per core, and each retains memory."""
    if mallopt := getattr(ctypes.CDLL(None), "mallopt", None):  # not in musl
        mallopt(M_ARENA_MAX, 2)


@celeryd_init.connect
def write_unbuffered(**_later: object) -> None:
    """Drop output that cannot be written, instead of keeping it in a buffer.

    Both streams are flushed before each fork. If the disk with the log is full, flushing a non-empty buffer fails, and
    the worker cannot start or replace any child process.
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
def log_exit_messages(**_later: object) -> None:
    """Send Celery's messages at worker shutdown to the log. By default, it writes them to the terminal directly."""
    from celery.apps import worker

    from config.platform.observability import logs

    worker.safe_say = logs.write_unlocked  # type: ignore[attr-defined]


@receiver(bind_extra_task_metadata)
def bind_task_name(*, task: Any, **_later: object) -> None:
    """Add the task's name to each of its log lines, including `task_succeeded`."""
    structlog.contextvars.bind_contextvars(task=task.name)
