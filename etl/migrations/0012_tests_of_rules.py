from django.db import migrations, models

from config.platform.db import repeatable


class Migration(repeatable.Migration):

    dependencies = [("etl", "0011_times")]

    operations = [
        migrations.AddField(
            "usage",
            "tests",
            models.PositiveIntegerField(db_default=0, default=0, help_text="Of rules, with a language model"),
        ),
    ]
