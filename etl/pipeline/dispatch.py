"""Wake-up messages: the Celery chain `etl.ocr | etl.postprocess`, or only its second part.

A message only wakes a worker; the run-state decides whether there is work. Recovery resends lost messages, and
duplicates have no effect. Celery tasks are named, not imported: this module must not depend on the code that they run.
"""

from collections.abc import Mapping
from contextlib import nullcontext
from itertools import takewhile
from operator import itemgetter
from typing import Any

from celery import Signature, chain, current_app
from kombu import Connection
from structlog import get_logger

from config.platform.broker import BROKER_ERRORS, countdown, timeouts
from etl import runstate
from etl.core.states import Stage
from etl.models import Task

log = get_logger(__name__)

OCR = "etl.ocr"
POSTPROCESS = "etl.postprocess"
DRAW = "etl.draw_pages"
RECOVER = "etl.recover"
SWEEP = "etl.sweep"

# A broker that accepts connections but never replies must not block a request for more than about 2 s.
SHORT_TIMEOUTS = timeouts(1, connect=1, retries=1)
RETRY_ONCE = {"max_retries": 1, "interval_start": 0}
# Workers keep messages with a countdown in memory, and the broker redelivers those that wait too long. Recovery sends
# the messages of tasks that wait longer than this.
MAX_COUNTDOWN = 60.0


def begin(task: Task, *, stage: Stage) -> None:
    """Create the run-state of a new or retried task and wake a worker, in about 3 s. Recovery repeats what fails."""
    try:
        runstate.create(task, stage=stage)
    except runstate.Unavailable as reason:
        # Without a run-state a worker finds no work, so do not send a message.
        log.warning("task_left_to_recovery", etl_task_id=task.pk, reason=str(reason))
    else:
        wake(task_id=task.pk, stage=stage)


def begin_many(tasks: Mapping[Task, Stage]) -> None:
    """Create run-states and wake workers for several tasks, in a few round trips. Recovery repeats what fails."""
    try:
        runstate.create_many(tasks)
        with connection() as broker:
            messages = ((task.pk, publish(task.pk, stage, 0, broker)) for task, stage in tasks.items())
            sent = takewhile(itemgetter(1), messages)  # an unavailable broker costs seconds only once
            runstate.record_messages(dict(sent))
    except runstate.Unavailable as reason:
        log.warning("tasks_left_to_recovery", tasks=len(tasks), reason=str(reason))


def connection() -> Connection:
    """Return a connection to the broker, which opens with the first message. The caller must release it."""
    return current_app.connection_for_write(transport_options=SHORT_TIMEOUTS)


def wake(*, task_id: int, stage: Stage, delay: float = 0, broker: Connection | None = None) -> str:
    """Send the chain from this stage on, and record the message in the run-state.

    Return the ID of the first message, or "" if the broker did not accept it in time. Recovery then resends it.
    `delay`: in seconds. `broker`: a connection to share between many messages.
    """
    with nullcontext(broker) if broker else connection() as connected:
        job_id = publish(task_id, stage, delay, connected)
    if job_id:
        try:
            runstate.record_message(task_id, job_id=job_id, delay=delay)
        except runstate.Unavailable:
            log.warning("wakeup_not_recorded", etl_task_id=task_id)
    return job_id


def publish(task_id: int, stage: Stage, delay: float, broker: Connection) -> str:
    links = [signature(OCR, task_id), signature(POSTPROCESS, task_id)]
    message = chain(*links) if stage == Stage.OCR else links[1]
    options: dict[str, Any] = {"countdown": countdown(delay)} if delay else {}
    try:
        sent: Any = message.apply_async(connection=broker, retry_policy=RETRY_ONCE, **options)
    except BROKER_ERRORS as error:
        log.warning("wakeup_not_sent", etl_task_id=task_id, stage=str(stage), reason=type(error).__name__)
        return ""
    return str((sent.parent or sent).id)


def signature(name: str, task_id: int) -> Signature:
    """Return the message of a stage. Celery's routes select the queue. The result of the previous stage is not passed.

    The message has no time limits, so that those of the worker apply. By default, Celery would send the time limits of
    the task in the sender's registry.
    """
    return current_app.signature(
        name, kwargs={"task_id": task_id}, immutable=True, time_limit=None, soft_time_limit=None
    )


def draw(*, task_id: int, page: int, width: int, pixels: int = 0) -> None:
    """Request the image of a page from a worker.

    `width`: of an image for people, in pixels. `pixels`: the maximum number of pixels of an image for models; if it is
    set, `width` is ignored. If the message is lost, the next request sends it again.
    """
    facts = {"task_id": task_id, "page": page, "width": width, "pixels": pixels}
    message = current_app.signature(DRAW, kwargs=facts, immutable=True)
    try:
        with connection() as connected:
            message.apply_async(connection=connected, retry_policy=RETRY_ONCE)
    except BROKER_ERRORS as error:
        log.warning("image_not_requested", etl_task_id=task_id, reason=type(error).__name__)
