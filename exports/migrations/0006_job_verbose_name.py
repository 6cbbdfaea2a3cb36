from django.db import migrations


class Migration(migrations.Migration):
    """Changes only the state: no SQL."""

    dependencies = [("exports", "0005_traceparent")]

    operations = [migrations.AlterModelOptions(name="job", options={"verbose_name": "export"})]
