from django.db import migrations, models

from config.platform.db import repeatable


class Migration(repeatable.Migration):
    dependencies = [("exports", "0022_kind_of_a_dataset")]

    operations = [
        migrations.AddField(
            "schedule",
            "since_last_success",
            models.BooleanField(
                db_default=False,
                default=False,
                help_text="Runs begin with the day after the last exported one, if that is earlier.",
            ),
        ),
    ]
