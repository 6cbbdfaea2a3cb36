"""Running the statements that are written out: those whose shape matters."""

from collections.abc import Mapping
from typing import Any

from django.db import connection

Row = dict[str, Any]


def rows(statement: str, **values: Any) -> list[Row]:
    """Return the rows as dictionaries by column name."""
    with connection.cursor() as cursor:
        cursor.execute(statement, values)
        names = [column.name for column in cursor.description]
        return [dict(zip(names, row, strict=True)) for row in cursor.fetchall()]


def one(statement: str, **values: Any) -> Row | None:
    """Return the first row, or None: for most statements here that is the verdict."""
    return next(iter(rows(statement, **values)), None)


def scalar(statement: str, **values: Any) -> Any:
    """Return the first column of the first row, or None."""
    row: Mapping[str, Any] = one(statement, **values) or {}
    return next(iter(row.values()), None)
