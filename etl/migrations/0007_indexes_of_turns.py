from django.db import models

from config.platform.db import repeatable


class Migration(repeatable.Migration):
    atomic = False  # CREATE INDEX CONCURRENTLY cannot run in a transaction

    dependencies = [("etl", "0006_quotas_and_turns")]

    operations = [
        repeatable.AddIndexConcurrently(
            model_name="task",
            index=models.Index(
                fields=["rank", "task_id"], name="etl_task_turn", condition=models.Q(("status", "pending"))
            ),
        ),
        repeatable.AddIndexConcurrently(
            model_name="task",
            index=models.Index(
                fields=["user", "rank"],
                name="etl_task_last_turn",
                condition=models.Q(("status", "cancelled"), _negated=True),
            ),
        ),
        repeatable.AddIndexConcurrently(
            model_name="task",
            index=models.Index(
                fields=["rank"], name="etl_task_past_turn", condition=models.Q(("ocr_run", models.F("run")), ("status__in", ["completed", "failed"])),
            ),
        ),
    ]
