"""Advancement of database sequences after a restore, so that no number is issued twice."""

from django.db import connection

# More numbers than an installation issues between two backups, and a small part of each type's range.
STEPS = {"bigint": 1_000_000_000, "integer": 1_000_000}

# `last_value` is null for an unused sequence. setval() is not undone by a rollback.
ADVANCE = """
SELECT setval(format('%%I.%%I', schemaname, sequencename)::regclass, coalesce(last_value, start_value) + %(step)s)
FROM pg_sequences WHERE schemaname = current_schema() AND data_type = %(type)s::regtype
"""


def advance() -> int:
    """Advance all sequences, and return the number of sequences. It is safe to repeat."""
    advanced = 0
    with connection.cursor() as cursor:
        for data_type, step in STEPS.items():
            cursor.execute(ADVANCE, {"type": data_type, "step": step})
            advanced += cursor.rowcount
    return advanced
