"""Wake-up messages, which make a worker look for work in the database.

A lost message delays work by at most a reaper interval; a duplicate has no effect. The reaper only fills a queue up to
a limit, so that messages do not accumulate while workers are down or busy.

Celery tasks are sent by name, so that senders do not import the code that runs them.
"""

from contextvars import copy_context
from typing import Any

import structlog
from celery import current_app
from django.conf import settings
from kombu import Connection
from kombu.exceptions import OperationalError
from structlog.contextvars import clear_contextvars

from config.platform import broker

log = structlog.get_logger(__name__)

# An unresponsive broker must not block a request for long. With these timeouts, it blocks for about 2 s; with those of
# CELERY_BROKER_TRANSPORT_OPTIONS, for 5 s; with Celery's defaults, for more than 25 s.
SHORT_TIMEOUTS = broker.timeouts(1, connect=1, retries=1)


def send(name: str, *messages: dict[str, str], countdown: float = 0, fill_to: int | None = None) -> None:
    """Send a message with each of these arguments, until the queue holds `fill_to` messages.

    An unavailable broker is not an error, because the reaper sends the messages again. Celery messages normally carry
    the log context of their sender. These do not, because the worker may process another job.
    """
    if messages:
        copy_context().run(publish, name, messages, countdown=countdown, fill_to=fill_to)


def publish(name: str, messages: tuple[dict[str, str], ...], *, countdown: float, fill_to: int | None) -> None:
    clear_contextvars()  # of the copy: the sender keeps its own
    try:
        with current_app.connection_for_write(transport_options=SHORT_TIMEOUTS) as connection:
            queue = settings.CELERY_TASK_ROUTES[name]["queue"]
            room = None if fill_to is None else max(0, fill_to - queue_length(connection, queue))
            for kwargs in messages[:room]:
                current_app.send_task(
                    name,
                    kwargs=kwargs,
                    countdown=broker.countdown(countdown),
                    connection=connection,
                    retry_policy={"max_retries": 1, "interval_start": 0},
                )
    except broker.BROKER_ERRORS as error:
        log.warning("wakeup_not_sent", task=name, reason=type(error).__name__)


def queue_lengths() -> dict[str, int] | None:
    """Return the number of messages in each queue, or None if the broker does not respond."""
    try:
        with current_app.connection_for_write(transport_options=SHORT_TIMEOUTS) as connection:
            return {queue.name: queue_length(connection, queue.name) for queue in settings.CELERY_TASK_QUEUES}
    except broker.BROKER_ERRORS as error:
        log.warning("queues_not_read", reason=type(error).__name__)
        return None


def queue_length(connection: Connection, queue: str) -> int:
    """Return the number of messages in a queue. Raises OperationalError."""
    channel: Any
    try:
        with connection.channel() as channel:
            return int(channel.queue_declare(queue, passive=True).message_count)
    except connection.channel_errors:
        return 0  # the queue does not exist: nothing was sent to it yet
    except connection.connection_errors as error:
        raise OperationalError(str(error)) from error
