"""Workers, as they answer through the broker: that every queue has one, and that the database has room for all."""

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

from django.conf import settings

from config.celery import app
from config.ops.doctor import database
from config.ops.doctor.database import scalar
from config.ops.doctor.findings import Finding, Subject, failure, ok, warning

ANSWER_SECONDS = 2  # a worker's main process answers at once, however busy its children are
CHILD_CONNECTIONS = 2  # its own, and that of its heartbeat
OTHERS = 5  # readiness, metrics, migrations, and a person who looks


@dataclass(frozen=True, slots=True, kw_only=True)
class Workers:
    """`queues`: names of workers by queue. `children`: processes that work, of all workers together."""

    queues: Mapping[str, list[str]]
    children: int


def ask() -> Workers:
    with app.connection_for_write() as connection:
        connection.ensure_connection(max_retries=1, timeout=ANSWER_SECONDS)
        inspect = app.control.inspect(timeout=ANSWER_SECONDS, connection=connection)
        listening = inspect.active_queues() or {}
        stats: Mapping[str, Any] = (inspect.stats() or {}) if listening else {}
    queues: dict[str, list[str]] = {}
    for worker, taken in listening.items():
        for queue in taken:
            queues.setdefault(queue["name"], []).append(worker)
    children = sum(len(each.get("pool", {}).get("processes", [])) for each in stats.values())
    return Workers(queues=queues, children=children)


def check_queues(workers: Workers) -> Iterator[Finding]:
    for queue in settings.CELERY_TASK_QUEUES:
        if found := workers.queues.get(queue.name):
            yield ok(f"The queue {queue.name} has {len(found)} worker{'s' if len(found) > 1 else ''}.")
        else:
            yield failure(
                f"No worker takes from the queue {queue.name}: {what_waits(queue.name)}.",
                f"Start one: python -m celery -A config worker -Q {queue.name} -n {queue.name}@%h; "
                "docs/runbook.md#nothing-runs.",
            )


def what_waits(queue: str) -> str:
    known = {
        "exports": "no chunk is exported",
        "bundles": "no job is completed",
        "webhooks": "nobody is told of ends",
        "maintenance": "what workers lose is not brought back",
        settings.ETL_QUEUES["ocr"]: "no document is read",
        settings.ETL_QUEUES["postprocess"]: "no document becomes JSON",
    }
    return known.get(queue, "what is sent there waits")


ROOM = """
SELECT current_setting('max_connections')::int - current_setting('superuser_reserved_connections')::int
     - (SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'client backend' AND datname <> current_database())
"""


def check_connections(workers: Workers) -> Iterator[Finding]:
    """Whether the main database has room for all processes at their busiest; one web process is counted."""
    needed = settings.SLUICE.database_pool_size + CHILD_CONNECTIONS * workers.children + OTHERS
    with database.open_database() as connection:
        room = int(str(scalar(connection, ROOM)))
    if needed > room:
        yield warning(
            f"Postgres has room for {room} connections; "
            f"one web process and {workers.children} worker processes may want {needed}.",
            "Raise max_connections, lower DATABASE_POOL_SIZE, or put PgBouncer in between: docs/scaling.md.",
        )
    else:
        yield ok(f"Postgres has room for {room} connections; a web process and the workers want {needed} at most.")


def open_workers() -> AbstractContextManager[Workers]:
    return nullcontext(ask())


SUBJECT = Subject(
    name="workers",
    open=open_workers,
    checks=(check_queues, check_connections),
    away="Workers are asked through the broker: mend that first.",
)
