"""The broker, as tests look at it and harm it."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from django.conf import settings
from redis import Redis

from config.celery import app


def valkey() -> Redis:
    return Redis.from_url(settings.SLUICE.broker_url)


def lose_messages() -> None:
    valkey().flushdb()


def queued(queue: str) -> int:
    return int(valkey().llen(queue))


@contextmanager
def broker_at(url: str) -> Iterator[None]:
    """Have Celery publish to another broker for a while."""
    conf: Any = app.conf
    before = conf.broker_url
    conf.broker_url = conf.broker_write_url = url
    try:
        yield
    finally:
        conf.broker_url = conf.broker_write_url = before
