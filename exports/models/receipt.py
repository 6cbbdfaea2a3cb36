from datetime import datetime, timedelta
from typing import TYPE_CHECKING
from uuid import UUID

from django.db import models
from django.db.models.functions import Now

if TYPE_CHECKING:
    from exports.models.link import Link

# A link that is used just before the receipt expires redirects to a presigned URL that is valid a little longer, so the
# object is kept a little longer. Even with the reaper's interval, it is deleted within the promised minute.
DELETION_DELAY = timedelta(seconds=30)


class ReceiptQuerySet(models.QuerySet["Receipt"]):
    def due_for_deletion(self) -> "ReceiptQuerySet":
        """Return the expired receipts whose delivered object still exists."""
        return self.filter(expires_at__lte=Now() - DELETION_DELAY, deleted_at=None)

    def lock_live(self, pk: UUID) -> "Receipt | None":
        """Lock a receipt and return it with the database's time as `now`, or return None if it has expired.

        A separate statement checks the expiry: Now() is the time at which a statement started, and the receipt may be
        revoked while the statement waits for the lock.
        """
        list(self.select_for_update().filter(pk=pk).values_list("pk"))
        return self.filter(pk=pk, expires_at__gt=Now()).annotate(now=Now()).first()


class Receipt(models.Model):
    """The description of a job's delivery: one immutable object, which is deleted after the receipt expires."""

    job = models.OneToOneField("exports.Job", models.CASCADE, primary_key=True, related_name="receipt")
    object_key = models.CharField(max_length=1024)
    etag = models.CharField(max_length=80)
    checksum = models.CharField(max_length=64, help_text="SHA-256 of the delivered bytes, hex")
    size_bytes = models.BigIntegerField()
    rows = models.BigIntegerField()
    files = models.PositiveIntegerField()
    degraded = models.BooleanField(default=False)
    content_type = models.CharField(max_length=80)
    file_name = models.CharField(max_length=255)
    issued_at = models.DateTimeField(db_default=Now())
    expires_at = models.DateTimeField()
    deleted_at = models.DateTimeField(null=True, blank=True, help_text="When the delivered object was deleted")

    objects = ReceiptQuerySet.as_manager()

    now: datetime  # annotated by `lock_live`
    newest_first: "list[Link]"  # all links or only the newest one, prefetched by `exports.jobs.representation`

    class Meta:
        db_table = "exports_receipt"
        indexes = [
            models.Index(
                fields=["expires_at"], name="exports_receipt_due", condition=models.Q(deleted_at__isnull=True)
            ),
            models.Index(fields=["-issued_at"], name="exports_receipt_newest"),
        ]

    def __str__(self) -> str:
        return f"receipt of {self.job_id}"
