"""Hints: messages that wake workers. Losing one costs at most a reaper interval; sending one twice costs nothing.

Tasks are named, not imported, so that nothing here depends on the code that runs them.
"""

from contextvars import copy_context
from uuid import UUID

import structlog
from celery import current_app
from django.conf import settings
from kombu.exceptions import OperationalError
from structlog.contextvars import unbind_contextvars

log = structlog.get_logger(__name__)

RUN_CHUNKS = "exports.run_chunks"
REUSE_FILES = "exports.reuse_files"
COMPLETE_JOB = "exports.complete_job"
DELIVER = "exports.deliver"


def chunks(*, waiting: int, delay: float = 0) -> None:
    """Wake as many workers as can run at once for chunks that wait; never one for each of 10,000."""
    _send(RUN_CHUNKS, *[{}] * min(waiting, settings.SLUICE.export_db_slots), countdown=delay)


def reusable(*, waiting: int) -> None:
    """Wake a few workers to look at files that may be there already."""
    _send(REUSE_FILES, *[{}] * min(-(-waiting // 200), 4))


def completion(*job_ids: UUID, delay: float = 0) -> None:
    """Wake a worker for each of these jobs, to put its delivery together."""
    _send(COMPLETE_JOB, *[{"job_id": str(job_id)} for job_id in job_ids], countdown=delay)


def deliveries(*, waiting: int = 1, delay: float = 0) -> None:
    """Wake a worker, or a few, to tell webhooks of jobs that have ended."""
    _send(DELIVER, *[{}] * min(waiting, 4), countdown=delay)


# A broker that accepts connections and stays silent must not hold up a request: about 2 s at the worst, where Celery's
# own settings for workers come to 5 s, and its defaults to more than 25 s.
IN_A_HURRY = {"socket_timeout": 1, "socket_connect_timeout": 1, "max_retries": 1}


def _send(name: str, *hints: dict[str, str], countdown: float = 0) -> None:
    """Send hints, each with its arguments. A broker that does not answer is given up on: the reaper sends them again.

    Messages take the sender's log context along. Ours must not: the worker that wakes works for whatever job is next.
    """
    if hints:
        copy_context().run(_publish, name, hints, countdown)


def _publish(name: str, hints: tuple[dict[str, str], ...], countdown: float) -> None:
    unbind_contextvars("request_id", "job_id", "chunk_id")
    try:
        with current_app.connection_for_write(transport_options=IN_A_HURRY) as broker:
            for kwargs in hints:
                current_app.send_task(
                    name,
                    kwargs=kwargs,
                    countdown=countdown or None,
                    connection=broker,
                    retry_policy={"max_retries": 1, "interval_start": 0},
                )
    except (OperationalError, OSError) as error:
        log.warning("hint_not_sent", task=name, reason=type(error).__name__)
