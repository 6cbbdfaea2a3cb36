"""Digests of documents, and indexes for searches by file name, rule, and digest.

The extension `pg_trgm` is part of PostgreSQL. A role with the privilege CREATE on the database can create it.
"""

from django.db import migrations, models

from config.platform.db import repeatable

INDEXES = [
    models.Index(fields=["user", "rule", "-created_at", "-task_id"], name="etl_task_of_rule"),
    models.Index(fields=["user", "sha256", "-task_id"], name="etl_task_same_bytes", condition=~models.Q(sha256="")),
]


class Migration(repeatable.Migration):
    atomic = False  # CREATE INDEX CONCURRENTLY cannot run in a transaction

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
        repeatable.AddTrigramIndexConcurrently("task", "filename", "etl_task_filename"),
    ]
