from django.db import migrations, models

from config.platform.db import repeatable


class Migration(repeatable.Migration):
    atomic = False  # the index is created concurrently

    dependencies = [("exports", "0003_events_quotas_webhooks")]

    operations = [
        repeatable.AddIndexConcurrently(
            model_name="chunk",
            index=models.Index(
                fields=["job", "seq"],
                name="exports_chunk_reusable_of_job",
                condition=models.Q(status="pending", reusable=True),
            ),
        ),
    ]
