from django.db import models

from config.platform.db import repeatable


class Migration(repeatable.Migration):
    atomic = False  # CREATE INDEX CONCURRENTLY cannot run in a transaction

    dependencies = [("etl", "0017_batches")]

    operations = [
        repeatable.AddIndexConcurrently(
            model_name="task",
            index=models.Index(
                fields=["batch", "status"], name="etl_task_of_batch", condition=models.Q(batch__isnull=False)
            ),
        ),
    ]
