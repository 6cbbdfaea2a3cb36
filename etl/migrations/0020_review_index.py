from django.db import models

from config.platform.db import repeatable


class Migration(repeatable.Migration):
    atomic = False  # CREATE INDEX CONCURRENTLY cannot run in a transaction

    dependencies = [("etl", "0019_review")]

    operations = [
        repeatable.AddIndexConcurrently(
            model_name="task",
            index=models.Index(
                fields=["user", "-created_at", "-task_id"],
                name="etl_task_reviewed",
                condition=models.Q(reviewed_run__isnull=False),
            ),
        ),
    ]
