"""Locks of the database server."""

from django.db import connection


def waits_for_a_lock() -> bool:
    """Return whether a session of the database server waits for a lock."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT 1 FROM pg_locks WHERE NOT granted")
        return cursor.fetchone() is not None
