"""Limit of the document queue: the number of waiting and running tasks, of all users together and of each user.

While the queue is full, only users with fewer open tasks than their share are admitted: ETL_QUEUE_SIZE divided by the
number of users with open tasks. So the backlog of one user does not block another. Until the users above their share
are back below it, the queue is longer than ETL_QUEUE_SIZE: with n users, at most 1 + 1/2 + … + 1/n times as long.
"""

from collections.abc import Sequence
from typing import Self

from django.conf import settings

from config.platform.db import sql
from config.platform.http.problems import Problem
from config.platform.plurals import counted
from etl.pipeline import quotas

# The key of the advisory lock: an arbitrary number that is unique in this project.
LOCK = 0x536C_7569_6365


class QueueFull(Problem):
    status = 503
    code = "queue_full"
    retry_after = 30
    detail = "The document queue is full. Try again later."

    @classmethod
    def of(cls, count: int, room: int, *, waiting: int, size: int) -> Self:
        """Return the problem for `count` documents if there is room for fewer. `waiting`: documents in the queue."""
        if room <= 0:
            documents = counted(waiting, "document")
            return cls(f"The document queue is full, with {documents} of at most {size:,}. Try again later.")
        return cls(f"The document queue has room for {counted(room, 'more document')}, and this needs {count:,}.")


OPEN = """
SELECT count(*) AS open, count(*) FILTER (WHERE user_id = %(user)s) AS own,
       count(DISTINCT user_id) FILTER (WHERE user_id <> %(user)s) + 1 AS users
FROM etl_task WHERE status = 'pending'
"""


def lock() -> None:
    """Serialize admissions until the end of the transaction, so that two requests cannot take the last place."""
    sql.scalar("SELECT pg_advisory_xact_lock(%(lock)s)", lock=LOCK)


def enter(*, user_id: int, size: int = 0, uploads: Sequence[str] = (), count: int = 1) -> None:
    """Reserve `count` places in the queue, and charge the documents to the quota.

    `size`: bytes of all documents; 0 for retries, whose bytes are charged already. `uploads`: the keys under which
    documents were uploaded. Call in the transaction that creates or retries the tasks. Raises QuotaExceeded and
    QueueFull.
    """
    lock()
    quotas.charge(user_id, size=size, uploads=uploads, count=count)
    require_room(user_id, count)


def check(*, user_id: int, size: int, uploads: Sequence[str] = (), count: int = 1) -> None:
    """Check a submission without reserving anything, before expensive work. Raises QuotaExceeded and QueueFull."""
    quotas.check(user_id, size=size, uploads=uploads, count=count)
    require_room(user_id, count)


def require_room(user_id: int, count: int) -> None:
    size = settings.SLUICE.etl_queue_size
    now = sql.one(OPEN, user=user_id) or {}
    room = max(size - now["open"], size // now["users"] - now["own"])
    if room < count:
        raise QueueFull.of(count, room, waiting=now["open"], size=size)
