"""Limit of the document queue: the number of tasks that are waiting or running."""

from django.conf import settings
from django.db import connection

from config.platform.http.problems import Problem
from etl.models import Task

# The key of the advisory lock: arbitrary, but unique in this project.
LOCK = 0x536C_7569_6365


class QueueFull(Problem):
    status = 503
    code = "queue_full"
    retry_after = 30
    detail = "The document queue is full. Try again later."


def enter() -> None:
    """Reserve a place in the queue. Raises QueueFull.

    Call in the transaction that creates or retries the task: the advisory lock lasts until the commit, so that two
    transactions cannot take the last place.
    """
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_advisory_xact_lock(%s)", [LOCK])
    check()


def check() -> None:
    """Check for a free place without reserving it, before expensive work. Raises QueueFull."""
    size = settings.SLUICE.etl_queue_size
    if Task.objects.open().order_by()[:size].count() >= size:
        raise QueueFull
