"""System checks: a connection pooler in front of the main database (docs/engines.md), and the admin."""

from collections.abc import Collection
from importlib import import_module
from typing import Any

import psycopg
from django.conf import settings
from django.contrib.admin.checks import check_admin_app
from django.core.checks import CheckMessage, Tags, register
from django.core.checks import Warning as CheckWarning

CONNECT_SECONDS = 2


@register(Tags.database)
def check_pooler(databases: Collection[str] | None = None, **_later: Any) -> list[CheckMessage]:
    """Check for a pooler. Run by `check --database default`, and by `migrate` before it starts."""
    env = settings.SLUICE
    is_due = "default" in (databases or ()) and env.database_prepare
    if not is_due or not is_pooled(env.database_url.get_secret_value()):
        return []
    return [
        CheckWarning(
            "DATABASE_URL points to a connection pooler, and DATABASE_PREPARE is on.",
            hint="Set DATABASE_PREPARE=false, unless it pools sessions or supports prepared statements.",
            id="config.W001",
        )
    ]


@register(Tags.admin)
def check_admin(app_configs: Any = None, **_later: Any) -> list[CheckMessage]:
    """Load the admin, then check it.

    Django's own check may run before the URLs are loaded, when no admin class is registered.
    """
    import_module(settings.ROOT_URLCONF)
    return check_admin_app(app_configs)


def is_pooled(url: str) -> bool:
    """Return whether a connection pooler responds, or False if the server cannot be reached.

    A pooler reports a process ID when the client connects, which is not that of the process that runs the statements.
    """
    try:
        with psycopg.connect(url, connect_timeout=CONNECT_SECONDS, autocommit=True) as connection:
            (pid,) = connection.execute("SELECT pg_backend_pid()").fetchone() or (0,)
            return bool(pid != connection.info.backend_pid)
    except psycopg.OperationalError:
        return False
