"""Running the statements that are written out: those whose shape matters."""

from collections.abc import Mapping
from typing import Any, Self, cast

import structlog
from django.conf import settings
from django.db import DatabaseError, connection
from django.db.backends.utils import CursorWrapper
from psycopg._queries import MAX_CACHED_STATEMENT_LENGTH

from config.platform.db.base import DatabaseWrapper
from config.platform.observability import logs

log = structlog.get_logger(__name__)

Row = dict[str, Any]


class Hot(str):
    """A statement that runs for every chunk. A connection prepares it once: to plan it takes longer than to run it.

    Rows are found by constants rather than by joins with lists, whose plan depends on how large the tables are.
    """

    __slots__ = ()

    def __new__(cls, text: str) -> Self:
        if "--" in text:
            raise ValueError("in one line a comment would have no end")
        statement = super().__new__(cls, " ".join(text.split()))
        if len(statement) > MAX_CACHED_STATEMENT_LENGTH:
            raise ValueError("psycopg would look for its placeholders each time")
        return statement


# A prepared statement that is no use any more: its result has other types since a migration, or a pooler has given us
# another session, where it is not there or is there already. Whichever it is, nothing was run.
STALE = {"0A000", "26000", "42P05"}


def rows(statement: str, **values: Any) -> list[Row]:
    """Return the rows as dictionaries by column name."""
    if isinstance(statement, Hot) and settings.SLUICE.database_prepare:
        try:
            return fetch(cast("DatabaseWrapper", connection).preparing_cursor(), statement, values)
        except DatabaseError as error:
            if connection.in_atomic_block or getattr(error.__cause__, "sqlstate", None) not in STALE:
                raise
            log.warning("prepared_statement_refused", error=logs.describe(error))
            cast("DatabaseWrapper", connection).discard()
    return fetch(connection.cursor(), statement, values)


def fetch(cursor: CursorWrapper, statement: str, values: Mapping[str, Any]) -> list[Row]:
    with cursor:
        cursor.execute(statement, values)
        result = cursor.pgresult  # `description` makes an object of each column, which takes as long as all rows
        names = [result.fname(n).decode() for n in range(result.nfields)]
        return [dict(zip(names, row, strict=True)) for row in cursor.fetchall()]


def one(statement: str, **values: Any) -> Row | None:
    """Return the first row, or None: for most statements here that is the verdict."""
    return next(iter(rows(statement, **values)), None)


def scalar(statement: str, **values: Any) -> Any:
    """Return the first column of the first row, or None."""
    row: Mapping[str, Any] = one(statement, **values) or {}
    return next(iter(row.values()), None)
