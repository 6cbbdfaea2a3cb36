from django.db import models

from config.platform.db import repeatable


class Migration(repeatable.Migration):
    atomic = False  # CREATE INDEX CONCURRENTLY cannot run in a transaction

    dependencies = [("etl", "0009_uuid")]

    operations = [
        repeatable.AddIndexConcurrently(
            model_name="task",
            index=models.Index(fields=["user", "status", "-created_at", "-task_id"], name="etl_task_of_status"),
        ),
        repeatable.AddIndexConcurrently(
            model_name="task",
            index=models.Index(
                fields=["status", "-created_at", "-task_id"],
                name="etl_task_not_completed",
                condition=models.Q(status__in=["cancelled", "failed"]),
            ),
        ),
        repeatable.AddIndexConcurrently(
            model_name="usage", index=models.Index(fields=["-day", "user"], name="etl_usage_newest")
        ),
    ]
