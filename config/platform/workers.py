"""Running workers, discovered by their heartbeats because Celery's remote control is off.

A worker's main process publishes a heartbeat every two seconds, even if all child processes are busy.
`worker_consumer` adds the worker's queues and its number of child processes.
"""

import threading
import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Self

import structlog
from celery import current_app
from django.conf import settings

from config.platform import broker, wakeups

log = structlog.get_logger(__name__)

CONNECT_SECONDS = 2
PERIOD_SECONDS = 2  # between two heartbeats of a worker
FRESH_SECONDS = 5
CONSEQUENCES = {
    "exports": "no chunk is exported",
    "bundles": "no job is completed",
    "webhooks": "no webhook is delivered",
    "maintenance": "work of lost workers is not recovered",
    settings.ETL_QUEUES["ocr"]: "no document is parsed",
    settings.ETL_QUEUES["postprocess"]: "no document is converted to JSON",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Worker:
    """A worker. `busy`: child processes that run a Celery task. `tasks`: Celery tasks that it has started."""

    name: str
    queues: list[str]
    children: int
    busy: int
    tasks: int

    @classmethod
    def of(cls, event: Mapping[str, Any]) -> Self:
        """Convert a heartbeat. Heartbeats of earlier releases have no queues."""
        return cls(
            name=event["hostname"],
            queues=list(event.get("queues", [])),
            children=event.get("children", 0),
            busy=event.get("active", 0),
            tasks=event.get("processed", 0),
        )


def listen(seconds: float, **options: Any) -> list[Worker]:
    """Return the workers whose heartbeats arrive within this time, by name. Raises the broker's errors."""
    found: dict[str, Worker] = {}

    def keep(event: Mapping[str, Any]) -> None:
        worker = Worker.of(event)
        found[worker.name] = worker

    with current_app.connection_for_write(**options) as connection:
        connection.ensure_connection(max_retries=1, timeout=CONNECT_SECONDS)
        receiver = current_app.events.Receiver(connection, handlers={"worker-heartbeat": keep})
        deadline = time.monotonic() + seconds
        with suppress(TimeoutError):
            for _ in receiver.itercapture(limit=None, timeout=seconds, wakeup=False):
                if time.monotonic() > deadline:
                    break
    return [found[name] for name in sorted(found)]


def by_queue(workers: Iterable[Worker]) -> dict[str, list[str]]:
    """Return the names of the workers of each queue, including queues without a worker."""
    found: dict[str, list[str]] = {queue.name: [] for queue in settings.CELERY_TASK_QUEUES}
    for worker in workers:
        for queue in worker.queues:
            found.setdefault(queue, []).append(worker.name)
    return found


def describe_unserved_queue(queue: str) -> str:
    return f"No worker consumes the queue {queue}: {CONSEQUENCES.get(queue, 'its tasks wait')}."


class Snapshot:
    """The workers, at most FRESH_SECONDS old. Concurrent requests share one wait for heartbeats."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.workers: list[Worker] | None = None
        self.read_at = float("-inf")

    def read(self) -> list[Worker] | None:
        """Return the workers, or None if the broker does not respond."""
        with self.lock:
            if time.monotonic() - self.read_at > FRESH_SECONDS:
                self.workers = read_heartbeats()
                self.read_at = time.monotonic()
            return self.workers


def read_heartbeats() -> list[Worker] | None:
    try:
        return listen(1.2 * PERIOD_SECONDS, transport_options=wakeups.SHORT_TIMEOUTS)
    except broker.BROKER_ERRORS as error:
        log.warning("heartbeats_not_read", reason=type(error).__name__)
        return None


snapshot = Snapshot()
