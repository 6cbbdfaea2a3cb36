"""Consistent reads: several queries on one snapshot of the database."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import cast

from django.db import DatabaseError, connection, transaction

from config.platform.db import sql
from config.platform.db.base import DatabaseWrapper


@contextmanager
def one_snapshot() -> Iterator[None]:
    """Run the queries of the block, which may only read, on one snapshot. Has no effect inside a transaction."""
    if connection.in_atomic_block:
        yield
        return
    try:
        with transaction.atomic():
            with connection.cursor() as cursor:
                cursor.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY")
            yield
    except DatabaseError as error:
        if sql.is_stale(error):
            cast("DatabaseWrapper", connection).discard()
        raise
