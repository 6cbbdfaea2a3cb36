"""A real web process with the test database, and API tokens."""

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from django.contrib.auth.models import User
from django.db import connection
from knox.models import AuthToken
from psycopg.conninfo import make_conninfo

from config.dev.stack.kept_settings import KeptSettings
from config.dev.stack.processes import Web
from config.platform.http.tokens import record_use


def variables(root: Path, **changes: str) -> dict[str, str]:
    """Return the environment for a child process that uses the test database.

    Temporary files, which remain if the child is killed, are in `root`.
    """
    database = make_conninfo(os.environ["DATABASE_URL"], dbname=connection.settings_dict["NAME"])
    return {**os.environ, "DATABASE_URL": database, "TMPDIR": str(root), **changes}


@contextmanager
def serving(root: Path, environment: Mapping[str, str]) -> Iterator[Web]:
    running = Web(root, KeptSettings(root), environment)
    running.start()
    try:
        yield running
    finally:
        running.stop()


def token_of(user: User) -> str:
    """Return a new API token of a user. Its use has just been recorded, as it is for most requests."""
    row, token = AuthToken.objects.create(user)
    record_use(row)
    return str(token)
