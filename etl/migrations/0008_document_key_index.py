from django.db import models

from config.platform.db import repeatable


class Migration(repeatable.Migration):
    atomic = False  # CREATE INDEX CONCURRENTLY cannot run in a transaction

    dependencies = [("etl", "0007_indexes_of_turns")]

    operations = [
        repeatable.AddIndexConcurrently(
            model_name="task",
            index=models.Index(fields=["document_key"], name="etl_task_document_key"),
        ),
    ]
