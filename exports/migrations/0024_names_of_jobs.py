"""Names of jobs, with an index for searching for a part of a name, and the workers of chunks.

The extension `pg_trgm` is part of PostgreSQL. Roles with the privilege CREATE on the database can create it.
"""

from django.db import migrations, models

from config.platform.db import repeatable


class Migration(repeatable.Migration):
    atomic = False  # the index is created concurrently

    dependencies = [("exports", "0023_since_last_success")]

    operations = [
        migrations.AlterModelOptions("slot", {"verbose_name": "source call"}),
        migrations.AlterModelOptions("tick", {"verbose_name": "periodic task"}),
        migrations.RunSQL("CREATE EXTENSION IF NOT EXISTS pg_trgm", migrations.RunSQL.noop),
        repeatable.AddField(
            "job",
            "name",
            models.CharField(blank=True, db_default="", default="", max_length=200),
        ),
        repeatable.AddField(
            "chunk",
            "backend",
            models.CharField(
                blank=True,
                db_default="",
                default="",
                help_text="The slot's, of the latest call for the chunk.",
                max_length=63,
            ),
        ),
        repeatable.AddTrigramIndexConcurrently("job", "name", "exports_jobs_name"),
    ]
