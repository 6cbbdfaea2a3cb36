from django.db import migrations, models

from config.platform.db import clock, repeatable


class Migration(repeatable.Migration):
    """Change the defaults, which the application computes. Changes no table."""

    dependencies = [("etl", "0010_indexes_of_lists")]

    operations = [
        migrations.AlterField("task", "created_at", models.DateTimeField(default=clock.now, editable=False)),
        migrations.AlterField("task", "updated_at", models.DateTimeField(default=clock.now, editable=False)),
        migrations.AlterField("modelusage", "created_at", models.DateTimeField(default=clock.now, editable=False)),
    ]
