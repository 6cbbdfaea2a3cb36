"""Hints: messages that wake workers. Losing one costs at most a reaper interval; sending one twice costs nothing.

The reaper sends hints `again`: what lies in the queue counts, or they would pile up while workers are away or busy.

Tasks are named, not imported, so that nothing here depends on the code that runs them.
"""

from contextvars import copy_context
from typing import Any
from uuid import UUID

import structlog
from celery import current_app
from django.conf import settings
from kombu import Connection
from kombu.exceptions import OperationalError
from structlog.contextvars import unbind_contextvars

from config.platform import broker

log = structlog.get_logger(__name__)

RUN_CHUNKS = "exports.run_chunks"
REUSE_FILES = "exports.reuse_files"
COMPLETE_JOB = "exports.complete_job"
DELIVER = "exports.deliver"
# Jobs whose completion is hinted again: each hint names its job, and one that was lost must not wait for others.
MOST_JOBS = 1_000
# Workers that are woken at once for what takes no slot: each goes on for a while.
FEW = 4


def chunks(*, waiting: int, delay: float = 0, again: bool = False) -> None:
    """Wake as many workers as can run at once for chunks that wait; never one for each of 10,000."""
    workers = min(waiting, settings.SLUICE.export_db_slots)
    send(RUN_CHUNKS, *[{}] * workers, countdown=delay, fill_to=workers if again else None)


def reusable(*, waiting: int, again: bool = False) -> None:
    """Wake a few workers to look at files that may be there already."""
    workers = min(-(-waiting // 200), FEW)
    send(REUSE_FILES, *[{}] * workers, fill_to=workers if again else None)


def completion(*job_ids: UUID, delay: float = 0, again: bool = False) -> None:
    """Wake a worker for each of these jobs, to put its delivery together."""
    hints = [{"job_id": str(job_id)} for job_id in job_ids]
    send(COMPLETE_JOB, *hints, countdown=delay, fill_to=MOST_JOBS if again else None)


def deliveries(*, waiting: int = 1, delay: float = 0, again: bool = False) -> None:
    """Wake a worker, or a few, to tell webhooks of jobs that have ended."""
    workers = min(waiting, FEW)
    send(DELIVER, *[{}] * workers, countdown=delay, fill_to=workers if again else None)


# A broker that accepts connections and stays silent must not hold up a request: about 2 s at the worst, where Celery's
# own settings for workers come to 5 s, and its defaults to more than 25 s.
IN_A_HURRY = broker.patience(1, connect=1, retries=1)


def send(name: str, *hints: dict[str, str], countdown: float = 0, fill_to: int | None = None) -> None:
    """Send hints, each with its arguments, or as many as fill the queue `fill_to` so many messages.

    A broker that does not answer is given up on: the reaper sends them again. Messages take the sender's log context
    along. Ours must not: the worker that wakes works for whatever job is next.
    """
    if hints:
        copy_context().run(publish, name, hints, countdown=countdown, fill_to=fill_to)


def publish(name: str, hints: tuple[dict[str, str], ...], *, countdown: float, fill_to: int | None) -> None:
    unbind_contextvars("request_id", "job_id", "chunk_id")
    try:
        with current_app.connection_for_write(transport_options=IN_A_HURRY) as connection:
            room = None if fill_to is None else max(0, fill_to - in_queue(connection, name))
            for kwargs in hints[:room]:
                current_app.send_task(
                    name,
                    kwargs=kwargs,
                    countdown=broker.countdown(countdown),
                    connection=connection,
                    retry_policy={"max_retries": 1, "interval_start": 0},
                )
    except broker.TROUBLE as error:
        log.warning("hint_not_sent", task=name, reason=type(error).__name__)


def in_queue(connection: Connection, name: str) -> int:
    """Return how many messages wait in the queue of this task. Raises OperationalError."""
    queue = settings.CELERY_TASK_ROUTES[name]["queue"]
    channel: Any
    try:
        with connection.channel() as channel:
            return int(channel.queue_declare(queue, passive=True).message_count)
    except connection.channel_errors:
        return 0  # no such queue: nothing was ever sent, or all was taken
    except connection.connection_errors as error:
        raise OperationalError(str(error)) from error
