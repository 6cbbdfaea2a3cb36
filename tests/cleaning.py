"""Restores the test database to the state after the migrations, after each test that wrote to it.

Django's own way truncates every table and then has every app fill its own again: 0.2 s a test, and there are thousands.
Here what the migrations left is kept in copies, and one round trip brings it back.
"""

from typing import Any

from django.db import connection
from django.test import TransactionTestCase

COPIES = "as_migrated"
# Deleted rows still take space. For tables above this many bytes, TRUNCATE is faster and frees the space.
LARGE = 2_000_000


def keep_what_is_there() -> None:
    """Copy the tables that are not empty, and restore them after every test that wrote."""
    tables = connection.introspection.django_table_names(only_existing=True, include_views=False)
    filled = [table for table in tables if one(f'SELECT 1 FROM "{table}" LIMIT 1')]
    one(f"CREATE SCHEMA {COPIES};" + "".join(f'CREATE TABLE {COPIES}."{t}" AS TABLE public."{t}";' for t in filled))
    names = ", ".join(f'"{table}"' for table in tables)
    sizes = ", ".join(f"pg_relation_size('{table}')" for table in tables)
    truncate = f"TRUNCATE {names};"
    delete = "".join(f'DELETE FROM "{table}";' for table in tables)
    fill = "".join(f'INSERT INTO "{table}" SELECT * FROM {COPIES}."{table}";' for table in filled)

    def bring_back(_test: Any) -> None:
        empty = truncate if one(f"SELECT greatest({sizes}) > {LARGE}") else delete
        one(f"BEGIN; SET CONSTRAINTS ALL DEFERRED; SET LOCAL sluice.trim_audit = 'on'; {empty} {fill} COMMIT")

    TransactionTestCase._fixture_teardown = bring_back  # type: ignore[attr-defined]


def one(statement: str) -> Any:
    """Run a statement. Return the first column of the first row, if there is one."""
    with connection.cursor() as cursor:
        cursor.execute(statement)
        row = cursor.fetchone() if cursor.description else None
    return row[0] if row else None
