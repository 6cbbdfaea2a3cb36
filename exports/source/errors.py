"""Errors of the source database, translated to the errors of exports."""

import re
import time
from collections.abc import Iterator
from contextlib import contextmanager

import psycopg

from exports.core.errors import (
    PERMANENT,
    ExportError,
    PermanentSourceError,
    SourceCancelled,
    SourceConflict,
    SourceError,
    SourceTimeout,
    SourceUnavailable,
)

QUERY_CANCELED = "57014"
CONFLICTS = {"40001", "40P01"}  # serialization failures, conflicts with recovery on a replica, and deadlocks
# Connection exceptions, too many connections, and a server that shuts down or starts up.
UNREACHABLE = ("08", "53300", "57P")


@contextmanager
def translated(*, timeout: float = 0) -> Iterator[None]:
    """Translate psycopg's errors. Messages, details, and hints may quote data, and are stored only in the chunk's row.

    `timeout` is the statement timeout in seconds. A cancellation by an administrator has the same SQLSTATE, but happens
    before the timeout.
    """
    started = time.monotonic()
    try:
        yield
    except psycopg.Error as error:
        code = error.sqlstate
        if code == QUERY_CANCELED and time.monotonic() - started < timeout - 1:
            raise SourceCancelled(f"SQLSTATE {code}") from None
        raise as_export_error(code, message_of(error.diag)) from None


def as_export_error(code: str | None, message: str = "") -> ExportError:
    return class_of(code)(f"SQLSTATE {code}" if code else "", message=message)


def class_of(code: str | None) -> type[ExportError]:
    """Return the error class for an SQLSTATE, which is None if the connection failed or broke."""
    if code is None or code.startswith(UNREACHABLE):
        return SourceUnavailable
    if code == QUERY_CANCELED:
        return SourceTimeout
    if code in CONFLICTS:
        return SourceConflict
    return PermanentSourceError if code.startswith(PERMANENT) else SourceError


MAX_MESSAGE = 1_000  # characters
CONTROL = re.compile(r"[\x00-\x09\x0b-\x1f\x7f-\x9f]")


def message_of(diagnostic: psycopg.errors.Diagnostic) -> str:
    """Return the message, detail, and hint of an error, without control characters."""
    parts = (diagnostic.message_primary, diagnostic.message_detail, diagnostic.message_hint)
    return CONTROL.sub(" ", "\n".join(part[:MAX_MESSAGE] for part in parts if part))[:MAX_MESSAGE]
