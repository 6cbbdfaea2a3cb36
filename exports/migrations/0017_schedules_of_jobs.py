"""The index for finding the exports of a schedule."""

from django.db import models

from config.platform.db import repeatable


class Migration(repeatable.Migration):
    atomic = False  # the index is created concurrently

    dependencies = [("exports", "0016_schedules")]

    operations = [
        repeatable.AddIndexConcurrently(
            model_name="job",
            index=models.Index(
                fields=["schedule_id", "-created_at", "-job_id"],
                name="exports_jobs_of_schedule",
                condition=models.Q(schedule_id__isnull=False),
            ),
        ),
    ]
