from django.db import models
from django.db.models import Q
from django.db.models.functions import Now

from exports.core.states import JOB_ENDED

ENDS = Q(kind="status", status__in=sorted(JOB_ENDED))


class EventQuerySet(models.QuerySet["Event"]):
    def without_deliveries(self) -> "EventQuerySet":
        """Return the ends of jobs whose webhook deliveries are not created yet."""
        return self.filter(ENDS, told_at=None)


class Event(models.Model):
    """A status change of a job or of one of its chunks. Append-only.

    The statement that makes the change inserts the row, so there is no change without its event and no event without
    its change. `seq` grows strictly within a job, in the order of the commits, because it is assigned under the lock of
    the job's row. The number after a statement's last chunk is left free: event streams use it for `progress`.
    """

    class Kind(models.TextChoices):
        CHUNK = "chunk"
        STATUS = "status"

    pk = models.CompositePrimaryKey("job_id", "seq")
    job = models.ForeignKey("exports.Job", models.CASCADE, related_name="events", db_index=False)
    seq = models.BigIntegerField()
    kind = models.CharField(max_length=8, choices=Kind)
    status = models.CharField(max_length=12, help_text="New status of the chunk or the job.")
    chunk_id = models.BigIntegerField(null=True, blank=True)
    # Of a failure that was retried since. The job's row has that of the current one.
    error_code = models.CharField(max_length=40, db_default="", blank=True)
    error_detail = models.CharField(max_length=200, db_default="", blank=True)
    at = models.DateTimeField(db_default=Now())
    told_at = models.DateTimeField(null=True, blank=True, help_text="When its webhook deliveries were created.")

    objects = EventQuerySet.as_manager()

    class Meta:
        db_table = "exports_event"
        indexes = [
            models.Index(
                fields=["at"],
                name="exports_event_untold",
                condition=ENDS & Q(told_at__isnull=True),
            ),
            # For the sweep: an export that ended long ago, and still has its events.
            models.Index(fields=["at"], name="exports_event_ends", condition=ENDS & Q(told_at__isnull=False)),
        ]

    def __str__(self) -> str:
        return f"{self.kind} {self.status} #{self.seq}"
