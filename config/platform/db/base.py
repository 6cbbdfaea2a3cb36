"""Django's engine for our own database, made to be over an outage as soon as the database is.

With a pool two things hold requests up after the database is back. Connections that died in the pool are found one by
one, with growing pauses in between: three of them cost a request its 5 seconds. And the attempts to connect again pause
longer and longer. After 1 s without a database, with 10 idle connections, requests were refused for another 6 s; after
25 s for 7 s. As it is here: for none.
"""

from functools import cache
from hashlib import sha256
from typing import Any

import psycopg
from django.db.backends.utils import CursorWrapper
from django_prometheus.db.backends.postgresql import base
from django_prometheus.db.common import ExportingCursorWrapper
from psycopg._preparing import Prepare
from psycopg._queries import PostgresQuery
from psycopg.types.numeric import Int8Dumper
from psycopg_pool import ConnectionPool

RECONNECT_SECONDS = 2
WAIT_SECONDS = 5


def pool_of(size: int) -> dict[str, Any]:
    """Return Django's `OPTIONS["pool"]`. `min_size` 0 keeps an idle process from holding any connection."""
    return {"min_size": 0, "max_size": size, "timeout": WAIT_SECONDS, "reconnect_timeout": RECONNECT_SECONDS}


class PreparingCursor(psycopg.Cursor[Any]):
    """Has the server prepare what it runs, once a connection, and bind the values: each run is spared the planning.

    Django's own cursors put values into the text, which is another one each time. All integers are bigint: psycopg
    would take the smallest type that holds each, and prepare a statement once more for every mixture of them.
    """

    def __init__(self, connection: psycopg.Connection[Any]) -> None:
        super().__init__(connection)
        self.adapters.register_dumper(int, Int8Dumper)

    def execute(self, query: Any, params: Any = None, **_options: Any) -> "PreparingCursor":
        threshold, self.connection.prepare_threshold = self.connection.prepare_threshold, 0
        try:
            return super().execute(query, params, prepare=True)
        finally:
            self.connection.prepare_threshold = threshold  # Django's other cursors prepare nothing

    def _get_prepared(self, pgq: PostgresQuery, *prepare: bool | None) -> tuple[Prepare, bytes]:
        """Name a statement after what it is: a session that a pooler gives us has that one, or none of this name."""
        verdict, name = super()._get_prepared(pgq, *prepare)
        if verdict is Prepare.SHOULD:
            name = b"hot_" + sha256(repr((pgq.query, pgq.types)).encode()).hexdigest()[:32].encode()
        return verdict, name

    def _send_query_prepared(self, name: bytes, pgq: PostgresQuery, **options: Any) -> None:
        self._query = pgq  # psycopg keeps it of all others: Django's log of queries asks for it
        super()._send_query_prepared(name, pgq, **options)


@cache
def counted(alias: str, vendor: str) -> Any:
    """Return the cursor as one whose statements are in the metrics."""
    return ExportingCursorWrapper(PreparingCursor, alias, vendor)


class DatabaseWrapper(base.DatabaseWrapper):
    """Checks a connection when it comes out of the pool. CONN_HEALTH_CHECKS would do so too, with the pauses."""

    def preparing_cursor(self) -> CursorWrapper:
        """Return a cursor for statements that run so often that planning them counts."""
        self.ensure_connection()
        with self.wrap_database_errors:
            cursor: CursorWrapper = self._prepare_cursor(counted(self.alias, self.vendor)(self.connection))
        return cursor

    def discard(self) -> None:
        """Close the connection for good, and not back into the pool: what its session holds is of no use any more."""
        if self.connection is not None:
            self.connection.close()
        self.close()

    def get_new_connection(self, conn_params: dict[str, Any]) -> psycopg.Connection[Any]:
        connection: psycopg.Connection[Any] = super().get_new_connection(conn_params)
        try:
            ConnectionPool.check_connection(connection)
        except psycopg.OperationalError:
            self.pool.putconn(connection)
            self.pool.check()  # throws out all that died with it
            connection = super().get_new_connection(conn_params)
        return connection
