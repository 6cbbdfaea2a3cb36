from django.db import migrations

from config.platform.db import repeatable


class Migration(repeatable.Migration):
    """Change only the migration state. Runs no SQL."""

    dependencies = [("etl", "0002_traceparent")]

    operations = [migrations.AlterModelOptions(name="task", options={"verbose_name": "document"})]
