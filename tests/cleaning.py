"""Restores the test database to the state after the migrations, after each test that wrote to it.

Django truncates every table, and then each app fills its tables again: 0.2 s a test, for thousands of tests. Here, one
database function does it, whose statements stay planned. Copies hold the contents after the migrations, and an
unchanged table is not filled again.
"""

from typing import Any

from django.db import connection
from django.test import TransactionTestCase

COPIES = "as_migrated"
# Deleted rows still take space. For tables above this many bytes, TRUNCATE is faster and frees the space.
LARGE = 2_000_000


def keep_migrated_rows() -> None:
    """Copy the tables that are not empty, and restore them after every test that wrote to the database."""
    tables = connection.introspection.django_table_names(only_existing=True, include_views=False)
    if not tables:
        return  # no test of this run uses them
    filled = [table for table in tables if one(f'SELECT 1 FROM "{table}" LIMIT 1')]
    one(f"CREATE SCHEMA {COPIES};" + "".join(f'CREATE TABLE {COPIES}."{t}" AS TABLE public."{t}";' for t in filled))
    one(f"CREATE TABLE {COPIES}.versions (of text PRIMARY KEY, version text)")
    names = ", ".join(f'"{table}"' for table in tables)
    sizes = ", ".join(f"pg_relation_size('{table}')" for table in tables)
    empty = "".join(f'DELETE FROM "{table}";' for table in tables if table not in filled)
    one(f"""
        CREATE FUNCTION {COPIES}.restore_rows() RETURNS void LANGUAGE plpgsql AS $$ BEGIN
            SET CONSTRAINTS ALL DEFERRED;
            PERFORM set_config('sluice.trim_audit', 'on', true);
            IF greatest({sizes}) > {LARGE} THEN TRUNCATE {names}; ELSE {empty} END IF;
            {"".join(map(refill, filled))}
        END $$
    """)

    def restore_rows(_test: Any) -> None:
        one(f"SELECT {COPIES}.restore_rows()")

    TransactionTestCase._fixture_teardown = restore_rows  # type: ignore[attr-defined]


def refill(table: str) -> str:
    """Return statements that restore a table from its copy, unless it has as many rows, and none is newer."""
    version = f"""(SELECT count(*) || ' ' || coalesce(max(xmin::text::bigint), 0) FROM "{table}")"""
    return f"""
        IF {version} IS DISTINCT FROM (SELECT version FROM {COPIES}.versions WHERE of = '{table}') THEN
            DELETE FROM "{table}";
            INSERT INTO "{table}" SELECT * FROM {COPIES}."{table}";
            INSERT INTO {COPIES}.versions VALUES ('{table}', {version})
            ON CONFLICT (of) DO UPDATE SET version = excluded.version;
        END IF;
    """


def one(statement: str) -> Any:
    """Run a statement. Return the first column of the first row, if there is one."""
    with connection.cursor() as cursor:
        cursor.execute(statement)
        row = cursor.fetchone() if cursor.description else None
    return row[0] if row else None
