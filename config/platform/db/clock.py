"""Clock of the main database, which decides about leases, links, and receipts, as seen by this process.

The clocks of hosts differ. A page that compared a receipt's end with the clock of its own host would show a receipt as
expired while its link still works.
"""

import time
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg

# The database's time, and the monotonic time at which it was read. Read again with each new connection.
reading: list[tuple[datetime, float]] = []

# A role or database may have other defaults: psycopg cannot parse dates in other styles, and statements that compete
# for rows are written for READ COMMITTED.
CONFIGURE = """
SELECT extract(epoch FROM clock_timestamp())::float8,
       set_config('DateStyle', 'ISO, MDY', false), set_config('IntervalStyle', 'postgres', false),
       set_config('default_transaction_isolation', 'read committed', false)
"""


def configure(connection: psycopg.Connection[Any]) -> None:
    """Set what our statements rely on, and read the clock: one statement per connection."""
    before = time.monotonic()
    with psycopg.Cursor(connection) as cursor:  # not counted as one of ours
        (seconds, *_), *_ = cursor.execute(CONFIGURE).fetchall()
    reading[:] = [(datetime.fromtimestamp(seconds, UTC), (before + time.monotonic()) / 2)]


def now() -> datetime:
    """Return the database's time, or that of this host if the process has not connected yet."""
    if not reading:
        return datetime.now(UTC)
    at, measured = reading[0]
    return at + timedelta(seconds=time.monotonic() - measured)
