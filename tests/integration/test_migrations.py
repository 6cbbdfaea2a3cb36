"""Migrations on separate databases. Each migration is interrupted at every statement and repeated."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from itertools import count
from typing import Any

import psycopg
import pytest
from django.db import OperationalError, connection, connections
from django.db.migrations.executor import MigrationExecutor
from django.db.migrations.loader import MigrationLoader
from django.db.migrations.state import ProjectState

from config.platform.db import repeatable

APPS = ("etl", "exports", "platform", "rules")
GRAPH = MigrationLoader(None).graph
OURS = sorted(key for key in GRAPH.nodes if key[0] in APPS)
Node = tuple[str, str]
# All migrations in the order of their dependencies.
ORDER: list[Node] = list(dict.fromkeys(key for leaf in GRAPH.leaf_nodes() for key in GRAPH.forwards_plan(leaf)))

SCHEMA = """
WITH public_class AS (SELECT * FROM pg_class WHERE relnamespace = 'public'::regnamespace)
SELECT format('%s.%s %s %s', c.relname, a.attname, format_type(a.atttypid, a.atttypmod), a.attnotnull)
FROM pg_attribute a JOIN public_class c ON c.oid = a.attrelid WHERE a.attnum > 0 AND NOT a.attisdropped
UNION ALL SELECT format('%s %s %s', relname, relkind, reloptions) FROM public_class
UNION ALL SELECT format('%s %s', o.conname, pg_get_constraintdef(o.oid))
FROM pg_constraint o JOIN public_class c ON c.oid = o.conrelid
UNION ALL SELECT format('%s valid: %s', pg_get_indexdef(i.indexrelid), i.indisvalid)
FROM pg_index i JOIN public_class c ON c.oid = i.indexrelid
UNION ALL SELECT format('%s.%s', app, name) FROM django_migrations
"""


class Killed(BaseException):
    """Simulated death of the process."""


class Databases:
    """Separate databases, and connections to them."""

    def __init__(self) -> None:
        self.server = self.session("postgres")
        self.names: list[str] = []

    def session(self, name: str) -> psycopg.Connection[Any]:
        parameters = {**connection.get_connection_params(), "dbname": name, "cursor_factory": None}
        return psycopg.connect(**parameters, autocommit=True)

    def make(self, template: str = "template0") -> str:
        name = f"{connection.settings_dict['NAME']}_m{len(self.names)}"
        self.names.append(name)
        self.server.execute(f'CREATE DATABASE "{name}" TEMPLATE "{template}" STRATEGY FILE_COPY')
        return name

    def drop(self, name: str) -> None:
        """Delete a database, waiting for autovacuum workers, which FORCE refuses to terminate."""
        self.server.execute(f'DROP DATABASE IF EXISTS "{name}"')

    @contextmanager
    def open(self, name: str) -> Iterator[Any]:
        """Open a Django connection to this database. Its alias is the name, as the migration recorder requires."""
        connections.databases[name] = {**connection.settings_dict, "NAME": name, "OPTIONS": {}}
        try:
            yield connections[name]
        finally:
            connections[name].close()
            del connections[name], connections.databases[name]

    def migrate(
        self, name: str, target: Node, state: ProjectState | None = None, wrap: Callable[..., Any] | None = None
    ) -> ProjectState:
        """Migrate up to a node, and return the project state after it.

        `state`: the project state before the node, which Django builds slowly. With it, only this node runs.
        """
        with self.open(name) as wrapper:
            executor = MigrationExecutor(wrapper)
            if target in executor.loader.applied_migrations:
                return state or ProjectState()  # the interruption was after its commit
            plan = [(executor.loader.graph.nodes[target], False)] if state else executor.migration_plan([target])
            with wrapper.execute_wrapper(wrap) if wrap else nullcontext():
                return executor.migrate([target], plan, state=state and state.clone())

    def schema(self, name: str) -> list[str]:
        with self.open(name) as wrapper, wrapper.cursor() as cursor:
            cursor.execute(SCHEMA)
            return sorted(text for (text,) in cursor.fetchall())


@pytest.fixture
def databases(django_db_setup: None, django_db_blocker: Any) -> Iterator[Databases]:
    with django_db_blocker.unblock():
        created = Databases()
        yield created
        for name in created.names:
            created.drop(name)
        created.server.close()


def counting(numbers: Iterator[int]) -> Callable[..., Any]:
    """Return a wrapper that counts the statements."""

    def execute(run: Any, sql: Any, params: Any, many: Any, context: Any) -> Any:
        next(numbers)
        return run(sql, params, many, context)

    return execute


def kill_at(number: int) -> Callable[..., Any]:
    """Return a wrapper that closes the connection before the statement with this number, and raises Killed."""
    numbers = count()

    def execute(run: Any, sql: Any, params: Any, many: Any, context: Any) -> Any:
        if next(numbers) == number:
            context["connection"].connection.close()
            raise Killed
        return run(sql, params, many, context)

    return execute


def test_every_migration_is_repeatable() -> None:
    assert [key for key in OURS if not isinstance(GRAPH.nodes[key], repeatable.Migration)] == []


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_migration_interrupted_at_any_statement_can_be_repeated(databases: Databases) -> None:
    """Interrupt each migration at its last statement, then at the one before, and so on.

    Stop when an interruption leaves no change, because all earlier statements are in the same transaction.
    """
    before, state = databases.make(), ProjectState()
    for node in ORDER:
        if node[0] not in APPS:
            state = databases.migrate(before, node, state)
            continue
        done, statements = databases.make(before), count()
        after = databases.migrate(done, node, state, counting(statements))
        schemas = databases.schema(before), databases.schema(done)
        for number in reversed(range(next(statements))):
            name = databases.make(before)
            with pytest.raises(Killed):
                databases.migrate(name, node, state, kill_at(number))
            left = databases.schema(name)
            databases.migrate(name, node, state)
            assert databases.schema(name) == schemas[1], f"{node}, interrupted at statement {number}: {left}"
            databases.drop(name)
            if left == schemas[0]:
                break
        databases.drop(before)
        before, state = done, after


@pytest.mark.slow
def test_an_index_is_built_again_after_a_lock_timeout(databases: Databases) -> None:
    """With the lock timeout of docs/upgrade.md, a concurrent dump makes the build fail and leave an invalid index."""
    name, node = databases.make(), ("exports", "0004_reusable_of_job")
    databases.migrate(name, ("exports", "0003_events_quotas_webhooks"))
    with databases.session(name) as dump:
        dump.execute("BEGIN ISOLATION LEVEL REPEATABLE READ")
        dump.execute("SELECT FROM exports_chunk")
        with pytest.raises(OperationalError, match="lock timeout"):
            databases.migrate(name, node, wrap=with_lock_timeout)
    assert len(invalid_indexes(databases.schema(name))) == 1
    databases.migrate(name, node)
    assert invalid_indexes(databases.schema(name)) == []


def invalid_indexes(schema: list[str]) -> list[str]:
    return [text for text in schema if text.endswith("valid: f")]


def with_lock_timeout(run: Any, sql: Any, params: Any, many: Any, context: Any) -> Any:
    if str(sql).startswith("CREATE INDEX CONCURRENTLY"):
        run("SET lock_timeout = '200ms'", None, False, context)
    return run(sql, params, many, context)
