"""Checks based on the workers' heartbeats: every queue has a consumer, and there are enough database connections."""

from collections.abc import Iterator, Mapping
from contextlib import nullcontext
from dataclasses import dataclass

from django.conf import settings

from config.ops.doctor import database
from config.ops.doctor.database import scalar
from config.ops.doctor.findings import Finding, Subject, failure, ok, warning
from config.platform import workers
from config.platform.plurals import counted

LISTEN_SECONDS = 5  # for at least two heartbeats of each worker
CHILD_CONNECTIONS = 2  # the task's and the heartbeat's
OTHER_CONNECTIONS = 5  # readiness, metrics, migrations, and an operator's session


@dataclass(frozen=True, slots=True, kw_only=True)
class Workers:
    """`queues`: names of workers by queue. `children`: the number of child processes of all workers."""

    queues: Mapping[str, list[str]]
    children: int


def inspect_workers() -> Workers:
    found = workers.listen(LISTEN_SECONDS)
    return Workers(queues=workers.by_queue(found), children=sum(worker.children for worker in found))


def check_queues(found: Workers) -> Iterator[Finding]:
    for queue, names in found.queues.items():
        if names:
            yield ok(f"The queue {queue} has {counted(len(names), 'worker')}.")
        else:
            yield failure(
                workers.describe_unserved_queue(queue),
                f"Start one: python -m celery -A config worker -Q {queue} -n {queue}@%h; docs/runbook.md#nothing-runs.",
            )


# `backend_type` is null for sessions of other roles; `usesysid` is not.
AVAILABLE = """
SELECT current_setting('max_connections')::int - current_setting('superuser_reserved_connections')::int
     - (SELECT count(*) FROM pg_stat_activity WHERE usesysid IS NOT NULL AND datname <> current_database())
"""


def check_connections(found: Workers) -> Finding:
    """Compare the connections that Postgres allows with those of one web process and all workers under full load."""
    needed = settings.SLUICE.database_pool_size + CHILD_CONNECTIONS * found.children + OTHER_CONNECTIONS
    with database.open_database() as connection:
        available = int(str(scalar(connection, AVAILABLE)))
    if needed > available:
        return warning(
            f"Postgres has {available} connections available; "
            f"one web process and {found.children} worker processes may need {needed}.",
            "Raise max_connections, lower DATABASE_POOL_SIZE, or use PgBouncer: docs/scaling.md.",
        )
    return ok(f"Postgres has {available} connections available; a web process and the workers need {needed}.")


SUBJECT = Subject(
    name="workers",
    open=lambda: nullcontext(inspect_workers()),
    checks=(check_queues, check_connections),
    remedy_if_unreachable="Heartbeats of workers arrive through the broker: fix the broker first.",
)
