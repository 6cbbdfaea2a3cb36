"""The one door to the queue: how many tasks may be accepted and not ended, waiting or running."""

from django.conf import settings
from django.db import connection

from config.platform.http.problems import Problem
from etl.models import Task

# Any number that nothing else takes as an advisory lock.
LOCK = 0x536C_7569_6365


class QueueFull(Problem):
    status = 503
    code = "queue_full"
    retry_after = 30
    detail = "The document queue is full. Try again later."


def enter() -> None:
    """Return if one more task may be accepted. Raises QueueFull.

    Called in the transaction that makes the task or takes it up again: the lock keeps others from counting until that
    is committed, so that no two take the last place.
    """
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_advisory_xact_lock(%s)", [LOCK])
    check()


def check() -> None:
    """Return if one more task might be accepted at this moment, for those who want to know before they do work for it.

    Raises QueueFull.
    """
    size = settings.SLUICE.etl_queue_size
    if Task.objects.open().order_by()[:size].count() >= size:
        raise QueueFull
