"""Clock of the main database, which decides about leases, links, and receipts, as seen by this process.

The clocks of hosts differ. A page that compared a receipt's end with the clock of its own host would show a receipt as
expired while its link still works.
"""

import time
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg

# The database's time, and the monotonic time at which it was read. It is read again whenever a connection comes out of
# the pool: a suspended host, or a clock that is set, must not date URLs in the past until the connection ends.
reading: list[tuple[datetime, float]] = []

# A role or database may have other defaults: psycopg cannot parse dates in other styles, and statements that compete
# for rows are written for READ COMMITTED.
CONFIGURE = """
SELECT extract(epoch FROM clock_timestamp())::float8,
       set_config('DateStyle', 'ISO, MDY', false), set_config('IntervalStyle', 'postgres', false),
       set_config('default_transaction_isolation', 'read committed', false)
"""


READ = "SELECT extract(epoch FROM clock_timestamp())::float8"


def configure(connection: psycopg.Connection[Any]) -> None:
    """Set what our statements rely on, and read the clock: one statement per connection."""
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
    with psycopg.Cursor(connection) as cursor:  # not counted as one of ours
        (seconds, *_), *_ = cursor.execute(statement).fetchall()
    reading[:] = [(datetime.fromtimestamp(seconds, UTC), (before + time.monotonic()) / 2)]


def now() -> datetime:
    """Return the database's time, or that of this host if the process has not connected yet."""
    if not reading:
        return datetime.now(UTC)
    at, measured = reading[0]
    return at + timedelta(seconds=time.monotonic() - measured)
