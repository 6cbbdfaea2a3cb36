from django.db import migrations, models

from config.platform.db import repeatable


class Migration(repeatable.Migration):
    dependencies = [("exports", "0017_schedules_of_jobs")]

    operations = [
        migrations.AddField(
            "job", "resumed_at", models.DateTimeField(null=True, blank=True, help_text="Time of the last retry.")
        ),
        migrations.AddField(
            "job",
            "resumed_ended",
            models.PositiveIntegerField(default=0, db_default=0, help_text="Chunks that had ended at the last retry."),
        ),
    ]
