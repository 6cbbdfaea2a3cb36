"""Migrations that can be repeated from any point at which they may have ended."""

from typing import Any

from django.contrib.postgres import operations
from django.db import migrations
from django.db.backends.base.schema import BaseDatabaseSchemaEditor
from django.db.migrations.state import ProjectState

IS_VALID = """
SELECT i.indisvalid FROM pg_index i JOIN pg_class c ON c.oid = i.indexrelid
WHERE c.relname = %s AND c.relnamespace = current_schema()::regnamespace
"""


class Migration(migrations.Migration):
    """A migration that is recorded in the transaction of its changes.

    Django records a migration after that transaction if the schema editor has deferred statements, such as those for
    foreign keys. A process that ended in between left a migration that failed forever: its tables existed.
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


class AddField(migrations.AddField):
    """A column that is added if it does not exist, for migrations that are not atomic."""

    def database_forwards(self, app_label: str, schema_editor: Any, from_state: Any, to_state: Any) -> None:
        model = to_state.apps.get_model(app_label, self.model_name)
        column = model._meta.get_field(self.name).column
        with schema_editor.connection.cursor() as cursor:
            cursor.execute(HAS_COLUMN, [model._meta.db_table, column])
            found = cursor.fetchone()
        if found is None:
            super().database_forwards(app_label, schema_editor, from_state, to_state)


class AddIndexConcurrently(operations.AddIndexConcurrently):
    """An index that is added beside writers. It can be repeated, and an invalid one of a failed run is replaced.

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
        super().database_forwards(app_label, schema_editor, from_state, to_state)
