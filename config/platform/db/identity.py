"""The identity of this database, which marks the objects of this installation in a shared bucket."""

from django.db import connection

from config.platform.db import sql

# The watermark's row, which the reaper also creates. It is read by SQL, because documents must not import exports.
READ = sql.PreparedStatement("SELECT database::text FROM exports_watermark")
CREATE = """
INSERT INTO exports_watermark (id, database, number) VALUES (1, gen_random_uuid(), 0) ON CONFLICT (id) DO NOTHING
"""
NAME = "database"  # in the metadata of objects


def marker() -> dict[str, str]:
    """Return the metadata of objects that this installation creates."""
    if (known := sql.one(READ)) is None:
        with connection.cursor() as cursor:
            cursor.execute(CREATE)
        known = sql.one(READ) or {}
    return {NAME: str(known["database"])}
