"""The settings of the processes that these tests start: points to fail at, rehearsed documents, and less patience."""

import os
import time
from datetime import timedelta
from select import select
from typing import Any, SupportsIndex

import structlog
from celery.signals import celeryd_init, task_prerun

from tests.rehearsed_settings import *  # noqa: F403

CELERY_WORKER_SOFT_SHUTDOWN_TIMEOUT = 3


def nap(seconds: float | SupportsIndex, /) -> None:
    select([], [], [], float(seconds))


if "FAKETIME" in os.environ:
    # Python sleeps until a moment of the monotonic clock, which libfaketime 0.9.10 takes for one of the clock it fakes.
    time.sleep = nap


@celeryd_init.connect(weak=False)
def make_it_harmful(**_later: Any) -> None:
    from config.platform.storage import parts
    from exports.maintenance import storage_cleanup
    from tests.chaos import points

    points.install()
    parts.PARTS_OF_A_SIZE = int(os.environ.get("CHAOS_PARTS_OF_A_SIZE", parts.PARTS_OF_A_SIZE))
    storage_cleanup.GRACE = timedelta(seconds=8)  # no chunk of these tests runs longer


@task_prerun.connect(weak=False)
def tell_of_a_redelivery(task: Any, **_later: Any) -> None:
    """Celery does not; a soak counts them."""
    if (task.request.delivery_info or {}).get("redelivered"):
        structlog.get_logger("tests.chaos").info("redelivered")
