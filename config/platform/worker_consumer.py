"""Celery's message consumer, protected from messages and broker failures that would stop the worker."""

from collections.abc import Callable
from time import sleep
from typing import Any

import structlog
from celery.exceptions import TaskRevokedError
from celery.worker import heartbeat
from celery.worker.consumer.consumer import Consumer as CeleryConsumer
from kombu import compression

from config.platform import broker
from config.platform.observability.counters import counter
from config.platform.observability.metrics import CAUGHT

log = structlog.get_logger(__name__)

JSON = "application/json"
PAUSE_SECONDS = 3  # between attempts while the broker is full; less than the limit of the health check
DROPPED = counter(
    "sluice_messages_dropped_total",
    "Messages that a worker dropped, because they are not valid calls in JSON.",
    reason=["content_type", "content", "undecodable"],
)


def drop_undecodable(error: Exception) -> None:
    """Count and log a message that could not be decoded."""
    CAUGHT.labels("message").inc()
    DROPPED.labels("undecodable").inc()
    log.error("message_dropped", reason="undecodable", exc_info=error)


def refuse_compressed(_body: Any) -> Any:
    """Refuse to decompress a message. Sluice compresses none, and a small one may expand to gigabytes."""
    raise ValueError("compressed messages are not accepted")


broker.drop_undecodable = drop_undecodable
for _content_type in compression.encoders():
    compression.register(refuse_compressed, refuse_compressed, _content_type)


class Consumer(CeleryConsumer):
    """Consumer that drops invalid messages, and pauses while the broker is full."""

    # Celery's types omit these.
    controller: Any
    connection_errors: Any
    channel_errors: Any

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        # Heartbeats have the content of this dictionary. `manage.py doctor` reads them, as remote control is off.
        heartbeat.SOFTWARE_INFO.update(  # type: ignore[attr-defined]
            queues=sorted(self.app.amqp.queues.consume_from), children=self.controller.concurrency
        )
        self.connection_errors = (*self.connection_errors, *broker.BROKER_FULL_ERRORS)
        self.controller._process_task = self.process_or_drop

    def process_or_drop(self, request: Any) -> None:
        """Pass a request to the process pool, or drop it and free its pool slot.

        Celery calls this immediately, or later when a slot becomes free. Celery itself frees only the slots of revoked
        tasks. A request that cannot be passed to the pool, such as one with an invalid time limit, would occupy its
        slot forever.
        """
        # A pool without an event loop has no slots.
        free_slot = getattr(self.controller, "_quick_release", lambda: None)
        try:
            request.execute_using_pool(self.controller.pool)
        except TaskRevokedError:
            free_slot()
        except Exception:  # noqa: BLE001 - as in `create_task_handler`
            CAUGHT.labels("message").inc()
            free_slot()
            self.drop(request.message, "content", exc_info=True)

    def create_task_handler(self, *args: Any, **kwargs: Any) -> Callable[[Any], None]:
        handle = super().create_task_handler(*args, **kwargs)

        def handle_or_drop(message: Any) -> None:
            if message.content_type != JSON:
                self.drop(message, "content_type")
                return
            try:
                handle(message)
            except (*self.connection_errors, *self.channel_errors):
                raise
            except Exception:  # noqa: BLE001 - Celery does not handle all contents, and the worker would exit
                CAUGHT.labels("message").inc()
                self.drop(message, "content", exc_info=True)

        return handle_or_drop

    def on_decode_error(self, message: Any, exc: Exception) -> None:
        """Drop a message that kombu did not decode, such as a compressed one."""
        drop_undecodable(exc)
        message.reject_log_error(log, self.connection_errors)

    def drop(self, message: Any, reason: str, **details: Any) -> None:
        """Remove a message from the queue. The rows hold the state, so no work is lost."""
        DROPPED.labels(reason).inc()
        log.error("message_dropped", reason=reason, **details)
        message.reject_log_error(log, self.connection_errors)

    def on_connection_error_after_connected(self, exc: Exception) -> None:
        if isinstance(exc, broker.BROKER_FULL_ERRORS):
            log.error("broker_full")
            sleep(PAUSE_SECONDS)
            return
        super().on_connection_error_after_connected(exc)
