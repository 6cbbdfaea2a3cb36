"""Migrations that can be repeated after an interruption at any point."""

from typing import Any

from django.contrib.postgres import operations
from django.contrib.postgres.indexes import GinIndex, OpClass
from django.db import migrations
from django.db.backends.base.schema import BaseDatabaseSchemaEditor
from django.db.migrations.state import ProjectState
from django.db.models.functions import Upper

IS_VALID = """
SELECT i.indisvalid FROM pg_index i JOIN pg_class c ON c.oid = i.indexrelid
WHERE c.relname = %s AND c.relnamespace = current_schema()::regnamespace
"""


class Migration(migrations.Migration):
    """A migration that is recorded in the transaction of its changes.

    Django records a migration after that transaction if the schema editor has deferred statements, such as those for
    foreign keys. If the process exits in between, the migration can never succeed, because its tables exist.
    """

    def apply(
        self, project_state: ProjectState, schema_editor: BaseDatabaseSchemaEditor, *args: Any, **options: Any
    ) -> ProjectState:
        state = super().apply(project_state, schema_editor, *args, **options)
        for statement in schema_editor.deferred_sql:
            schema_editor.execute(statement, None)
        schema_editor.deferred_sql.clear()
        return state


HAS_COLUMN = """
SELECT 1 FROM information_schema.columns WHERE table_schema = current_schema() AND table_name = %s AND column_name = %s
"""


def has_column(schema_editor: Any, table: str, column: str) -> bool:
    with schema_editor.connection.cursor() as cursor:
        cursor.execute(HAS_COLUMN, [table, column])
        return cursor.fetchone() is not None


class AddField(migrations.AddField):
    """Addition of a column if it does not exist, and removal if it exists, for migrations that are not atomic."""

    def database_forwards(self, app_label: str, schema_editor: Any, from_state: Any, to_state: Any) -> None:
        if not self._exists(app_label, schema_editor, to_state):
            super().database_forwards(app_label, schema_editor, from_state, to_state)

    def database_backwards(self, app_label: str, schema_editor: Any, from_state: Any, to_state: Any) -> None:
        if self._exists(app_label, schema_editor, from_state):
            super().database_backwards(app_label, schema_editor, from_state, to_state)

    def _exists(self, app_label: str, schema_editor: Any, state: Any) -> bool:
        model = state.apps.get_model(app_label, self.model_name)
        return has_column(schema_editor, model._meta.db_table, model._meta.get_field(self.name).column)


class AddIndexConcurrently(operations.AddIndexConcurrently):
    """Addition of an index without blocking writers. Can be repeated, and replaces an invalid index of a failed run.

    CREATE INDEX CONCURRENTLY leaves an invalid index if it waits longer than `lock_timeout`, or is interrupted.
    """

    def database_forwards(self, app_label: str, schema_editor: Any, from_state: Any, to_state: Any) -> None:
        with schema_editor.connection.cursor() as cursor:
            cursor.execute(IS_VALID, [self.index.name])
            found = cursor.fetchone()
        if found == (True,):
            return
        if found is not None:
            name = schema_editor.quote_name(self.index.name)
            schema_editor.execute(f"DROP INDEX CONCURRENTLY IF EXISTS {name}")
        self.create(app_label, schema_editor, from_state, to_state)

    def create(self, app_label: str, schema_editor: Any, from_state: Any, to_state: Any) -> None:
        super().database_forwards(app_label, schema_editor, from_state, to_state)


class AddTrigramIndexConcurrently(AddIndexConcurrently):
    """A trigram index, for substring searches.

    Django writes the operator class of an expression only if its app for PostgreSQL is installed. That app queries
    unused types on each new connection, so this class writes the statement itself.
    """

    def __init__(self, model_name: str, column: str, name: str) -> None:
        super().__init__(model_name, GinIndex(OpClass(Upper(column), name="gin_trgm_ops"), name=name))
        self.column = column

    def create(self, app_label: str, schema_editor: Any, from_state: Any, to_state: Any) -> None:
        table = to_state.apps.get_model(app_label, self.model_name)._meta.db_table
        name, table, column = (schema_editor.quote_name(each) for each in (self.index.name, table, self.column))
        schema_editor.execute(f"CREATE INDEX CONCURRENTLY {name} ON {table} USING gin (upper({column}) gin_trgm_ops)")
