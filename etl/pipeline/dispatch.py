"""Sending a task on its way: the chain `etl.ocr | etl.postprocess`, or what is left of it.

A message only wakes a worker; the run-state decides what it finds. One that is lost is sent again by recovery, one that
comes twice finds nothing to do. Tasks are named, not imported, so that nothing here depends on the code that runs them.
"""

from contextlib import nullcontext
from typing import Any

from celery import Signature, chain, current_app
from kombu import Connection
from structlog import get_logger

from config.platform.broker import BROKER_ERRORS, countdown, timeouts
from etl import runstate
from etl.core.states import Phase
from etl.models import Task

log = get_logger(__name__)

OCR = "etl.ocr"
POSTPROCESS = "etl.postprocess"
RECOVER = "etl.recover"
SWEEP = "etl.sweep"

# A broker that accepts connections but does not respond must not block a request: about 2 s at worst.
SHORT_TIMEOUTS = timeouts(1, connect=1, retries=1)
ONCE_MORE = {"max_retries": 1, "interval_start": 0}
# Workers keep messages with a countdown in memory, and the broker takes those that wait too long for lost. What waits
# longer than this is sent by recovery when its time has come.
LONGEST_COUNTDOWN = 60.0


def begin(task: Task, *, phase: Phase) -> None:
    """Make the run-state of a new task, or of one that is taken up again, and wake a worker; or leave both to recovery,
    in bounded time: about 3 s at the worst."""
    try:
        runstate.create(task, phase=phase)
    except runstate.Unavailable as reason:
        # Without a run-state a worker finds nothing to do: the message would be for nothing.
        log.warning("task_left_to_recovery", etl_task_id=task.pk, reason=str(reason))
    else:
        start(task_id=task.pk, phase=phase)


def connection() -> Connection:
    """Return a connection to the broker, to be released; it connects when the first message is sent."""
    return current_app.connection_for_write(transport_options=SHORT_TIMEOUTS)


def start(*, task_id: int, phase: Phase, delay: float = 0, broker: Connection | None = None) -> str:
    """Send the chain from this stage on, and note in the run-state that it was sent. Returns the id of its first
    message, or "" where the broker did not take it in bounded time: recovery sends it again.

    `broker`: the connection to send it by, for those who send many; else one of its own.
    """
    with nullcontext(broker) if broker else connection() as this:
        job_id = publish(task_id, phase, delay, this)
    if job_id:
        try:
            runstate.enqueued(task_id, job_id=job_id, delay=delay)
        except runstate.Unavailable:
            log.warning("job_not_noted", etl_task_id=task_id)
    return job_id


def publish(task_id: int, phase: Phase, delay: float, broker: Connection) -> str:
    links = [signature(OCR, task_id), signature(POSTPROCESS, task_id)]
    whole = chain(*links) if phase == Phase.OCR else links[1]
    later: dict[str, Any] = {"countdown": countdown(delay)} if delay else {}
    try:
        sent: Any = whole.apply_async(connection=broker, retry_policy=ONCE_MORE, **later)
    except BROKER_ERRORS as error:
        log.warning("wakeup_not_sent", etl_task_id=task_id, phase=str(phase), reason=type(error).__name__)
        return ""
    return str((sent.parent or sent).id)


def signature(name: str, task_id: int) -> Signature:
    """Return the message; the queue is in the settings' routes. What the stage before returns is not handed on.

    Without limits of time, so that those of the worker hold: Celery sends the sender's, if it happens to know the task.
    """
    return current_app.signature(
        name, kwargs={"task_id": task_id}, immutable=True, time_limit=None, soft_time_limit=None
    )
