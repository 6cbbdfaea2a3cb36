from uuid import uuid4

from django.db import models
from django.db.models.functions import Now


class Watermark(models.Model):
    """A number that grows while Sluice runs, with a copy in the bucket. A restored database is behind the copy."""

    id = models.PositiveSmallIntegerField(primary_key=True, default=1)  # the only row
    database = models.UUIDField(default=uuid4, help_text="In the key of the copy: databases may share a bucket")
    number = models.BigIntegerField(default=0)
    reached_at = models.DateTimeField(db_default=Now())
    # The number and time of the copy, set while the copy is ahead: the database was restored to an earlier point, or
    # lost commits.
    bucket_number = models.BigIntegerField(null=True, blank=True)
    bucket_reached_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        db_table = "exports_watermark"

    def __str__(self) -> str:
        return str(self.number)
