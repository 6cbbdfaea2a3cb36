"""Early ends of a worker's message: a shutdown, or a server that is unavailable."""

from collections.abc import Iterator
from contextlib import contextmanager

import structlog
from django.db import OperationalError

from config.platform import storage
from config.platform.observability import logs
from exports.core.errors import ExportError, SourceConnectionsExhausted

log = structlog.get_logger(__name__)


@contextmanager
def stop_without_servers() -> Iterator[None]:
    """Stop early if the database is unavailable, the source refuses connections, or the storage refuses writes.

    The reaper wakes a worker later.
    """
    try:
        with shutdown_first():
            yield
    except SourceConnectionsExhausted:
        log.warning("source_full")
    except OperationalError as error:
        log.warning("database_unavailable", error=logs.describe(error))
    except storage.StorageError as error:
        log.warning("storage_unavailable", error=str(error))


@contextmanager
def shutdown_first() -> Iterator[None]:
    """Raise the SystemExit of a shutdown instead of an error that was raised while the worker was stopping."""
    try:
        yield
    except (ExportError, OperationalError, storage.StorageError) as error:
        cause = error.__context__
        while cause is not None and not isinstance(cause, SystemExit):
            cause = cause.__context__
        if cause is not None:
            raise cause from None
        raise
