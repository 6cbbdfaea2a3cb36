"""The main database's clock, which decides when leases, links, and receipts expire.

The clocks of hosts differ. If a page compared a receipt's expiry with its host's clock, it could show a receipt as
expired while its link still works.
"""

import time
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg

# The database's time, and the monotonic time at which it was read. It is read again whenever a connection is taken
# from the pool. Otherwise, after this host is suspended or the database's clock is set forward, URLs would be dated in
# the past.
reading: list[tuple[datetime, float]] = []

# The defaults of a role or database may differ. psycopg cannot parse dates in other styles, and our locking statements
# require READ COMMITTED.
CONFIGURE = """
SELECT extract(epoch FROM clock_timestamp())::float8,
       set_config('DateStyle', 'ISO, MDY', false), set_config('IntervalStyle', 'postgres', false),
       set_config('default_transaction_isolation', 'read committed', false)
"""


READ = "SELECT extract(epoch FROM clock_timestamp())::float8"


def configure(connection: psycopg.Connection[Any]) -> None:
    """Set the session parameters that our statements need, and read the clock, in one statement."""
    read(connection, CONFIGURE)


def check(connection: psycopg.Connection[Any]) -> None:
    """Read the clock with an idle connection, outside of a transaction. Raises OperationalError if it is dead."""
    autocommit = connection.autocommit
    connection.autocommit = True
    try:
        read(connection, READ)
    finally:
        if not connection.closed:
            connection.autocommit = autocommit


def read(connection: psycopg.Connection[Any], statement: str) -> None:
    """Run a statement whose first column is the time in seconds, and keep that time."""
    before = time.monotonic()
    with psycopg.Cursor(connection) as cursor:  # Django's cursor would count the statement in the metrics
        (seconds, *_), *_ = cursor.execute(statement).fetchall()
    reading[:] = [(datetime.fromtimestamp(seconds, UTC), (before + time.monotonic()) / 2)]


def now() -> datetime:
    """Return the database's time, or the host's time if this process has not connected yet."""
    if not reading:
        return datetime.now(UTC)
    at, measured = reading[0]
    return at + timedelta(seconds=time.monotonic() - measured)
