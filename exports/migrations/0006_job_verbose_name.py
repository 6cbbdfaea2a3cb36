from django.db import migrations

from config.platform.db import repeatable


class Migration(repeatable.Migration):
    """A change of Django's model state only, without SQL."""

    dependencies = [("exports", "0005_traceparent")]

    operations = [migrations.AlterModelOptions(name="job", options={"verbose_name": "export"})]
