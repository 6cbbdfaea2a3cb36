from django.db import migrations


class Migration(migrations.Migration):
    """Changes only the state: no SQL."""

    dependencies = [("etl", "0002_traceparent")]

    operations = [migrations.AlterModelOptions(name="task", options={"verbose_name": "document"})]
