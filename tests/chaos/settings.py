"""The settings of the processes that these tests start: points to fail at, rehearsed documents, and less patience."""

from datetime import timedelta
from typing import Any

from celery.signals import celeryd_init

from tests.rehearsed_settings import *  # noqa: F403

CELERY_WORKER_SOFT_SHUTDOWN_TIMEOUT = 3


@celeryd_init.connect(weak=False)
def make_it_harmful(**_later: Any) -> None:
    from exports import sweeper
    from tests.chaos import points

    points.install()
    sweeper.GRACE = timedelta(seconds=8)  # no chunk of these tests runs longer
