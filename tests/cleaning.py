"""Restoration of the test database to its state after the migrations, after each test that wrote to it.

Django would truncate every table, and each app would fill its tables again, which takes 0.2 s per test. Here, a single
database function restores the tables from copies of their rows. Its statements are planned only once, and unchanged
tables are not filled again.
"""

from typing import Any

from django.db import connection
from django.test import TransactionTestCase

COPIES = "as_migrated"
# The size of a table in bytes above which TRUNCATE is faster than DELETE. It also frees the space of deleted rows.
LARGE = 2_000_000


def keep_migrated_rows() -> None:
    """Copy the rows of all tables, and make Django restore them after every test that wrote to the database."""
    tables = connection.introspection.django_table_names(only_existing=True, include_views=False)
    if not tables:
        return  # no test of this run uses the database
    filled = [table for table in tables if query_value(f'SELECT 1 FROM "{table}" LIMIT 1')]
    copies = "".join(f'CREATE TABLE {COPIES}."{table}" AS TABLE public."{table}";' for table in filled)
    query_value(f"CREATE SCHEMA {COPIES};{copies}")
    query_value(f"CREATE TABLE {COPIES}.versions (of text PRIMARY KEY, version text)")
    names = ", ".join(f'"{table}"' for table in tables)
    sizes = ", ".join(f"pg_relation_size('{table}')" for table in tables)
    empty = "".join(f'DELETE FROM "{table}";' for table in tables if table not in filled)
    query_value(f"""
        CREATE FUNCTION {COPIES}.restore_rows() RETURNS void LANGUAGE plpgsql AS $$ BEGIN
            SET CONSTRAINTS ALL DEFERRED;
            PERFORM set_config('sluice.trim_audit', 'on', true);
            IF greatest({sizes}) > {LARGE} THEN TRUNCATE {names}; ELSE {empty} END IF;
            {"".join(map(refill, filled))}
        END $$
    """)

    def restore_rows(_test: Any) -> None:
        query_value(f"SELECT {COPIES}.restore_rows()")

    TransactionTestCase._fixture_teardown = restore_rows  # type: ignore[attr-defined]


def refill(table: str) -> str:
    """Return statements that restore a table from its copy, unless its number of rows and its newest row are the same
    as after the last restoration."""
    version = f"""(SELECT count(*) || ' ' || coalesce(max(xmin::text::bigint), 0) FROM "{table}")"""
    return f"""
        IF {version} IS DISTINCT FROM (SELECT version FROM {COPIES}.versions WHERE of = '{table}') THEN
            DELETE FROM "{table}";
            INSERT INTO "{table}" SELECT * FROM {COPIES}."{table}";
            INSERT INTO {COPIES}.versions VALUES ('{table}', {version})
            ON CONFLICT (of) DO UPDATE SET version = excluded.version;
        END IF;
    """


def query_value(statement: str) -> Any:
    """Execute a statement, and return the first column of the first row, or None."""
    with connection.cursor() as cursor:
        cursor.execute(statement)
        row = cursor.fetchone() if cursor.description else None
    return row[0] if row else None
