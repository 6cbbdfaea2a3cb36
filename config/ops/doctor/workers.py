"""Checks of workers by their heartbeats: consumers of all queues, and database connections."""

import time
from collections.abc import Iterator, Mapping
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from typing import Any

from django.conf import settings

from config.celery import app
from config.ops.doctor import database
from config.ops.doctor.database import scalar
from config.ops.doctor.findings import Finding, Subject, failure, ok, warning

CONNECT_SECONDS = 2
LISTEN_SECONDS = 5  # a worker's main process publishes a heartbeat every 2 s, even if all child processes are busy
CHILD_CONNECTIONS = 2  # the task's and the heartbeat's
OTHER_CONNECTIONS = 5  # readiness, metrics, migrations, and an operator's session


@dataclass(frozen=True, slots=True, kw_only=True)
class Workers:
    """`queues`: names of workers by queue. `children`: the number of child processes of all workers."""

    queues: Mapping[str, list[str]]
    children: int


def heartbeats(seconds: float = LISTEN_SECONDS) -> dict[str, dict[str, Any]]:
    """Return the last heartbeat of each worker within this time, by the worker's name."""
    found: dict[str, dict[str, Any]] = {}
    with app.connection_for_write() as connection:
        connection.ensure_connection(max_retries=1, timeout=CONNECT_SECONDS)
        receiver = app.events.Receiver(
            connection, handlers={"worker-heartbeat": lambda event: found.update({event["hostname"]: event})}
        )
        deadline = time.monotonic() + seconds
        with suppress(TimeoutError):
            for _ in receiver.itercapture(limit=None, timeout=seconds, wakeup=False):
                if time.monotonic() > deadline:
                    break
    return found


def inspect_workers() -> Workers:
    queues: dict[str, list[str]] = {}
    found = heartbeats()
    for worker, event in found.items():
        for queue in event.get("queues", []):  # workers of earlier releases have none
            queues.setdefault(queue, []).append(worker)
    return Workers(queues=queues, children=sum(event.get("children", 0) for event in found.values()))


CONSEQUENCES = {
    "exports": "no chunk is exported",
    "bundles": "no job is completed",
    "webhooks": "no webhook is delivered",
    "maintenance": "work of lost workers is not recovered",
    settings.ETL_QUEUES["ocr"]: "no document is parsed",
    settings.ETL_QUEUES["postprocess"]: "no document is converted to JSON",
}


def check_queues(workers: Workers) -> Iterator[Finding]:
    for queue in settings.CELERY_TASK_QUEUES:
        if found := workers.queues.get(queue.name):
            yield ok(f"The queue {queue.name} has {len(found)} worker{'s' if len(found) > 1 else ''}.")
        else:
            yield failure(
                f"No worker consumes the queue {queue.name}: {CONSEQUENCES.get(queue.name, 'its tasks wait')}.",
                f"Start one: python -m celery -A config worker -Q {queue.name} -n {queue.name}@%h; "
                "docs/runbook.md#nothing-runs.",
            )


AVAILABLE = """
SELECT current_setting('max_connections')::int - current_setting('superuser_reserved_connections')::int
     - (SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'client backend' AND datname <> current_database())
"""


def check_connections(workers: Workers) -> Finding:
    """Compare the connections that Postgres allows with those of one web process and all workers under full load."""
    needed = settings.SLUICE.database_pool_size + CHILD_CONNECTIONS * workers.children + OTHER_CONNECTIONS
    with database.open_database() as connection:
        available = int(str(scalar(connection, AVAILABLE)))
    if needed > available:
        return warning(
            f"Postgres has {available} connections available; "
            f"one web process and {workers.children} worker processes may need {needed}.",
            "Raise max_connections, lower DATABASE_POOL_SIZE, or use PgBouncer: docs/scaling.md.",
        )
    return ok(f"Postgres has {available} connections available; a web process and the workers need {needed}.")


SUBJECT = Subject(
    name="workers",
    open=lambda: nullcontext(inspect_workers()),
    checks=(check_queues, check_connections),
    unreachable="Heartbeats of workers arrive through the broker: fix the broker first.",
)
