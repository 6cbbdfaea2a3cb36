"""Tasks whose row was deleted, and whose objects may still exist."""

from django.db import models

from config.platform.db import clock


class Deletion(models.Model):
    """A deleted task. Its objects are deleted immediately, and again by the sweep, because a worker may have written
    some in between."""

    task_id = models.BigIntegerField(primary_key=True)
    document_key = models.CharField(max_length=200)
    # The possible runs of the task, whose numbers are in the keys of artifacts. If another service shares the bucket,
    # its task with the same ID has other run numbers. Empty for rows that an earlier release wrote.
    first_run = models.BigIntegerField(null=True)
    last_run = models.BigIntegerField(null=True)
    created_at = models.DateTimeField(default=clock.now, editable=False)

    class Meta:
        db_table = "etl_deletion"

    def __str__(self) -> str:
        return str(self.task_id)
