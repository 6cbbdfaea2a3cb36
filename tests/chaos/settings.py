"""Settings of the processes that these tests start: fault points, scripted documents, and short timeouts."""

import os
import time
from datetime import timedelta
from select import select
from typing import Any, SupportsIndex

import structlog
from celery.signals import celeryd_init, task_prerun

from tests.scripted_settings import *  # noqa: F403

CELERY_WORKER_SOFT_SHUTDOWN_TIMEOUT = 3
CELERY_WORKER_ENABLE_REMOTE_CONTROL = True  # test_clocks counts the messages that a worker received


def sleep_with_select(seconds: float | SupportsIndex, /) -> None:
    select([], [], [], float(seconds))


if "FAKETIME" in os.environ:
    # time.sleep waits until a time of the monotonic clock, which libfaketime 0.9.10 confuses with the clock that it
    # fakes.
    time.sleep = sleep_with_select


@celeryd_init.connect(weak=False)
def install_fault_points(**_later: Any) -> None:
    from config.platform.storage import parts
    from exports.delivery import packs
    from tests.chaos import points

    points.install()
    parts.PARTS_PER_SIZE = int(os.environ.get("CHAOS_PARTS_OF_A_SIZE", parts.PARTS_PER_SIZE))
    packs.MAX_BATCH_AGE = timedelta(seconds=2)  # longer than any completion in these tests takes


@task_prerun.connect(weak=False)
def set_grace(**_later: Any) -> None:
    from exports.maintenance import storage_cleanup
    from tests.chaos import points

    storage_cleanup.GRACE = points.grace()


@task_prerun.connect(weak=False)
def log_redelivery(task: Any, **_later: Any) -> None:
    """Log redelivered messages, so that a soak can count them. Celery does not log them."""
    if (task.request.delivery_info or {}).get("redelivered"):
        structlog.get_logger("tests.chaos").info("redelivered")
