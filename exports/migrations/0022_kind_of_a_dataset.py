from django.db import migrations, models

from config.platform.db import repeatable


class Migration(repeatable.Migration):
    dependencies = [("exports", "0021_ranks_of_jobs")]

    operations = [
        migrations.AddField(
            "dataset",
            "kind",
            models.CharField(
                choices=[("function", "Function"), ("documents", "Documents")],
                db_default="function",
                default="function",
                max_length=16,
            ),
        ),
    ]
