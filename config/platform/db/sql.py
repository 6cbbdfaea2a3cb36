"""Raw SQL statements, for queries whose shape matters."""

from collections.abc import Mapping
from typing import Any, Self, cast

import structlog
from django.conf import settings
from django.db import DatabaseError, connection
from django.db.backends.utils import CursorWrapper

from config.platform.db.base import DatabaseWrapper
from config.platform.observability import logs

log = structlog.get_logger(__name__)

Row = dict[str, Any]

# psycopg caches the parsed placeholders of statements up to this length, and parses longer ones at each execution.
CACHED_LENGTH = 4096


class PreparedStatement(str):
    """A statement that runs often: for every chunk or batch of chunks, or for every poll of an export.

    A connection prepares it once, because planning takes longer than execution.

    A statement that runs for every chunk has at most CACHED_LENGTH characters. It finds rows by single values, not by
    joins with lists, because the plan of a join depends on the sizes of the tables.
    """

    __slots__ = ()

    def __new__(cls, text: str) -> Self:
        if "--" in text:
            raise ValueError("a statement on one line cannot have a comment")
        return super().__new__(cls, " ".join(text.split()))


# SQLSTATEs of a prepared statement that cannot be used: a migration changed its result types, or a pooler switched to a
# session where it is missing or already exists. In each case nothing was executed.
STALE = {"0A000", "26000", "42P05"}


def rows(statement: str, **values: Any) -> list[Row]:
    """Return the rows as dictionaries by column name."""
    if isinstance(statement, PreparedStatement) and settings.SLUICE.database_prepare:
        try:
            return fetch(cast("DatabaseWrapper", connection).preparing_cursor(), statement, values)
        except DatabaseError as error:
            if connection.in_atomic_block or not is_stale(error):
                raise
            log.warning("prepared_statement_refused", error=logs.describe(error))
            cast("DatabaseWrapper", connection).discard()
    return fetch(connection.cursor(), statement, values)


def is_stale(error: DatabaseError) -> bool:
    """Return whether the connection must be discarded, because a statement that it prepared cannot be used."""
    return getattr(error.__cause__, "sqlstate", None) in STALE


def fetch(cursor: CursorWrapper, statement: str, values: Mapping[str, Any]) -> list[Row]:
    with cursor:
        cursor.execute(statement, values)
        result = cursor.pgresult  # faster than `description`, which takes as long as reading all rows
        names = [result.fname(n).decode() for n in range(result.nfields)]
        return [dict(zip(names, row, strict=True)) for row in cursor.fetchall()]


def one(statement: str, **values: Any) -> Row | None:
    """Return the first row, or None."""
    return next(iter(rows(statement, **values)), None)


def scalar(statement: str, **values: Any) -> Any:
    """Return the first column of the first row, or None."""
    row: Mapping[str, Any] = one(statement, **values) or {}
    return next(iter(row.values()), None)
