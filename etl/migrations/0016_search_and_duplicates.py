"""Digests of documents, and indexes for the search by file name, rule, and bytes.

The extension `pg_trgm` is part of PostgreSQL. Roles with CREATE on the database may create it.
"""

from django.contrib.postgres.indexes import GinIndex, OpClass
from django.db import migrations, models
from django.db.models.functions import Upper

from config.platform.db import repeatable

FILENAME = GinIndex(OpClass(Upper("filename"), name="gin_trgm_ops"), name="etl_task_filename")
INDEXES = [
    models.Index(fields=["user", "rule", "-created_at", "-task_id"], name="etl_task_of_rule"),
    models.Index(fields=["user", "sha256", "-task_id"], name="etl_task_same_bytes", condition=~models.Q(sha256="")),
]


class Migration(repeatable.Migration):
    atomic = False  # indexes are created while others write

    dependencies = [("etl", "0015_index_of_expiry")]

    operations = [
        migrations.RunSQL("CREATE EXTENSION IF NOT EXISTS pg_trgm", migrations.RunSQL.noop),
        repeatable.AddField(
            "task",
            "sha256",
            models.CharField(blank=True, db_default="", default="", editable=False, max_length=64),
        ),
        repeatable.AddField(
            "task",
            "duplicate_of",
            models.BigIntegerField(
                blank=True, help_text="The owner's newest earlier task with the same bytes", null=True
            ),
        ),
        *(repeatable.AddIndexConcurrently(model_name="task", index=index) for index in INDEXES),
        # Django writes the operator class of an expression only for projects with `django.contrib.postgres`, whose
        # connections begin with queries for types that are not used here.
        migrations.RunSQL(
            [
                "DROP INDEX CONCURRENTLY IF EXISTS etl_task_filename",  # an invalid one of an interrupted run
                "CREATE INDEX CONCURRENTLY etl_task_filename ON etl_task USING gin (upper(filename) gin_trgm_ops)",
            ],
            "DROP INDEX CONCURRENTLY IF EXISTS etl_task_filename",
            state_operations=[migrations.AddIndex("task", FILENAME)],
        ),
    ]
