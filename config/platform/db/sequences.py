"""The database's sequences, moved on past what they gave out before the database was restored to an earlier point."""

from django.db import connection

# More than any service gives out between two backups, and a small part of what each type has room for.
LEAPS = {"bigint": 1_000_000_000, "integer": 1_000_000}

# `last_value` is null where none was given out. setval() is no part of a transaction: a number is never given again.
LEAP = """
SELECT setval(format('%%I.%%I', schemaname, sequencename)::regclass, coalesce(last_value, start_value) + %(leap)s)
FROM pg_sequences WHERE schemaname = current_schema() AND data_type = %(type)s::regtype
"""


def leap() -> int:
    """Move every sequence far on. Returns how many there are. To do it again does no harm."""
    moved = 0
    with connection.cursor() as cursor:
        for data_type, length in LEAPS.items():
            cursor.execute(LEAP, {"type": data_type, "leap": length})
            moved += cursor.rowcount
    return moved
