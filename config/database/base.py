"""Django's engine for our own database, made to be over an outage as soon as the database is.

With a pool two things hold requests up after the database is back. Connections that died in the pool are found one by
one, with growing pauses in between: three of them cost a request its 5 seconds. And the attempts to connect again pause
longer and longer. After 1 s without a database, with 10 idle connections, requests were refused for another 6 s; after
25 s for 7 s. As it is here: for none.
"""

from typing import Any

import psycopg
from django_prometheus.db.backends.postgresql import base
from psycopg_pool import ConnectionPool

RECONNECT_SECONDS = 2
WAIT_SECONDS = 5


def pool_of(size: int) -> dict[str, Any]:
    """Return Django's `OPTIONS["pool"]`. `min_size` 0 keeps an idle process from holding any connection."""
    return {"min_size": 0, "max_size": size, "timeout": WAIT_SECONDS, "reconnect_timeout": RECONNECT_SECONDS}


class DatabaseWrapper(base.DatabaseWrapper):
    """Checks a connection when it comes out of the pool. CONN_HEALTH_CHECKS would do so too, with the pauses."""

    def get_new_connection(self, conn_params: dict[str, Any]) -> psycopg.Connection[Any]:
        connection: psycopg.Connection[Any] = super().get_new_connection(conn_params)
        try:
            ConnectionPool.check_connection(connection)
        except psycopg.OperationalError:
            self.pool.putconn(connection)
            self.pool.check()  # throws out all that died with it
            connection = super().get_new_connection(conn_params)
        return connection
