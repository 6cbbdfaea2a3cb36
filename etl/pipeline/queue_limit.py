"""Limit of the document queue: the number of tasks that are waiting or running, of all users and of each.

While the queue is full, only users with fewer open tasks than their share are admitted: ETL_QUEUE_SIZE divided by the
number of users with open tasks. So the backlog of one user does not refuse another. Until the users above their share
are back below it, the queue is longer than ETL_QUEUE_SIZE: with n users at most 1 + 1/2 + … + 1/n times as long.
"""

from django.conf import settings

from config.platform.db import sql
from config.platform.http.problems import Problem
from etl.pipeline import quotas

# The key of the advisory lock: arbitrary, but unique in this project.
LOCK = 0x536C_7569_6365


class QueueFull(Problem):
    status = 503
    code = "queue_full"
    retry_after = 30
    detail = "The document queue is full. Try again later."


OPEN = """
SELECT count(*) AS open, count(*) FILTER (WHERE user_id = %(user)s) AS own,
       count(DISTINCT user_id) FILTER (WHERE user_id <> %(user)s) + 1 AS users
FROM etl_task WHERE status = 'pending'
"""


def lock() -> None:
    """Serialize admissions until the end of the transaction, so that two requests cannot take the last place."""
    sql.scalar("SELECT pg_advisory_xact_lock(%(lock)s)", lock=LOCK)


def enter(*, user_id: int, size: int = 0, upload: str = "") -> None:
    """Reserve a place in the queue, and charge a document of `size` bytes; 0 for a retry, whose bytes were charged.

    Call in the transaction that creates or retries the task. `upload`: the key under which the document was uploaded.
    Raises QuotaExceeded and QueueFull.
    """
    lock()
    quotas.charge(user_id, size=size, upload=upload)
    require_room(user_id)


def check(*, user_id: int, size: int, upload: str = "") -> None:
    """Check a submission without reserving anything, before expensive work. Raises QuotaExceeded and QueueFull."""
    quotas.check(user_id, size=size, upload=upload)
    require_room(user_id)


def require_room(user_id: int) -> None:
    size = settings.SLUICE.etl_queue_size
    now = sql.one(OPEN, user=user_id) or {}
    if now["open"] >= size and now["own"] >= size // now["users"]:
        raise QueueFull
