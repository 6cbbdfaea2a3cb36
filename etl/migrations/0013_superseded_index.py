from django.db import models

from config.platform.db import repeatable


class Migration(repeatable.Migration):
    atomic = False  # CREATE INDEX CONCURRENTLY cannot run in a transaction

    dependencies = [("etl", "0012_tests_of_rules")]

    operations = [
        repeatable.AddIndexConcurrently(
            model_name="task",
            index=models.Index(
                fields=["updated_at"], name="etl_task_superseded", condition=models.Q(status="completed", run__gt=1)
            ),
        ),
    ]
