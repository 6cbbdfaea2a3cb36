"""Wake-up messages for workers that evaluate samples. The rows decide whether there is work."""

from typing import Any

from celery import current_app
from structlog import get_logger

from config.platform.broker import BROKER_ERRORS, countdown
from etl.pipeline.dispatch import MAX_COUNTDOWN, RETRY_ONCE, connection

log = get_logger(__name__)

EVALUATE = "etl.evaluate"


def wake(user_id: int, *, delay: float = 0) -> bool:
    """Send a wake-up message for the user's next sample. Return whether it was sent.

    Messages with a longer delay than MAX_COUNTDOWN are not sent: recovery sends them when they are due.
    """
    if delay > MAX_COUNTDOWN:
        return False
    message = current_app.signature(
        EVALUATE, kwargs={"user_id": user_id}, immutable=True, time_limit=None, soft_time_limit=None
    )
    later: dict[str, Any] = {"countdown": countdown(delay)} if delay else {}
    try:
        with connection() as connected:
            message.apply_async(connection=connected, retry_policy=RETRY_ONCE, **later)
    except BROKER_ERRORS as error:
        log.warning("wakeup_not_sent", reason=type(error).__name__)
        return False
    return True
