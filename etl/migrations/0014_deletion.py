from django.db import migrations, models

import config.platform.db.clock
from config.platform.db import repeatable


class Migration(repeatable.Migration):

    dependencies = [("etl", "0013_superseded_index")]

    operations = [
        migrations.CreateModel(
            "Deletion",
            [
                ("task_id", models.BigIntegerField(primary_key=True, serialize=False)),
                ("document_key", models.CharField(max_length=200)),
                ("created_at", models.DateTimeField(default=config.platform.db.clock.now, editable=False)),
            ],
            options={"db_table": "etl_deletion"},
        ),
        migrations.AddField(
            "task",
            "expires_at",
            models.DateTimeField(
                blank=True, help_text="When it is deleted, if the client has asked for that", null=True
            ),
        ),
    ]
