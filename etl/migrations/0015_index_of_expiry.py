from django.db import models

from config.platform.db import repeatable


class Migration(repeatable.Migration):
    atomic = False  # CREATE INDEX CONCURRENTLY cannot run in a transaction

    dependencies = [("etl", "0014_deletion")]

    operations = [
        repeatable.AddIndexConcurrently(
            model_name="task",
            index=models.Index(
                fields=["expires_at"], name="etl_task_expiry", condition=models.Q(expires_at__isnull=False)
            ),
        ),
    ]
