"""Inspection of the Celery broker, and injection of faults."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

from django.conf import settings
from redis import Redis

from config.celery import app
from config.platform import wakeups
from etl.pipeline import dispatch as etl_dispatch

# As in production. The fixture `long_timeouts` of the integration tests raises them later.
SHORT_TIMEOUTS = (wakeups.SHORT_TIMEOUTS, etl_dispatch.SHORT_TIMEOUTS)


def valkey() -> Redis:
    return Redis.from_url(settings.SLUICE.broker_url)


def lose_messages() -> None:
    valkey().flushdb()


def queued(queue: str) -> int:
    return int(valkey().llen(queue))


@contextmanager
def broker_at(url: str) -> Iterator[None]:
    """Make Celery publish to another broker, with the production timeouts."""
    conf: Any = app.conf
    before = conf.broker_url
    conf.broker_url = conf.broker_write_url = url
    try:
        with (
            patch.object(wakeups, "SHORT_TIMEOUTS", SHORT_TIMEOUTS[0]),
            patch.object(etl_dispatch, "SHORT_TIMEOUTS", SHORT_TIMEOUTS[1]),
        ):
            yield
    finally:
        conf.broker_url = conf.broker_write_url = before
