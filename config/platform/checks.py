"""What `manage.py check` says of engines that are well and do not fit our settings; docs/engines.md."""

from collections.abc import Collection
from typing import Any

import psycopg
from django.conf import settings
from django.core.checks import CheckMessage, Tags, register
from django.core.checks import Warning as Concern

from config.platform import broker
from config.platform.startup import TAG

CONNECT_SECONDS = 2


@register(TAG)
def check_consumer_timeout(**_later: Any) -> list[CheckMessage]:
    """RabbitMQ ends the worker that works on a message for longer than it waits."""
    if not broker.is_rabbitmq(settings.SLUICE.broker_url) or settings.ETL_TIME_LIMIT < broker.RABBITMQ_WAITS:
        return []
    hint = f"Set consumer_timeout in rabbitmq.conf to more than {settings.ETL_TIME_LIMIT * 1000} (milliseconds)."
    return [Concern("ETL_TASK_TIMEOUT is longer than RabbitMQ waits by default.", hint=hint, id="config.W002")]


@register(Tags.database)
def check_pooler(databases: Collection[str] | None = None, **_later: Any) -> list[CheckMessage]:
    """Asked by `check --database default`, and by `migrate` before it begins."""
    if "default" not in (databases or ()) or not settings.SLUICE.database_prepare:
        return []
    if not is_pooled(settings.SLUICE.database_url.get_secret_value()):
        return []
    return [
        Concern(
            "DATABASE_URL leads to a pooler, and DATABASE_PREPARE is on.",
            hint="Set DATABASE_PREPARE=false, unless it lends whole sessions, or takes prepared statements along.",
            id="config.W001",
        )
    ]


def is_pooled(url: str) -> bool:
    """Whether it is not Postgres itself that answers there: the process that we are told of is then another one than
    the one that runs our statements. A server that does not answer is none."""
    try:
        with psycopg.connect(url, connect_timeout=CONNECT_SECONDS, autocommit=True) as connection:
            (pid,) = connection.execute("SELECT pg_backend_pid()").fetchone() or (0,)
            return bool(pid != connection.info.backend_pid)
    except psycopg.OperationalError:
        return False
