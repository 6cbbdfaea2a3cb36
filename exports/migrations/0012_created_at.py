from django.db import migrations, models

from config.platform.db import clock, repeatable


class Migration(repeatable.Migration):
    """A change without SQL: the application computes the default."""

    dependencies = [("exports", "0011_indexes_of_lists")]

    operations = [
        migrations.AlterField("job", "created_at", models.DateTimeField(default=clock.now, editable=False)),
    ]
