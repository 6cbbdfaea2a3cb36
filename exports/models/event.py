from django.db import models
from django.db.models import Q
from django.db.models.functions import Now

from exports.core.states import JOB_ENDED

IS_FINAL = Q(kind="status", status__in=sorted(JOB_ENDED))


class EventQuerySet(models.QuerySet["Event"]):
    def awaiting_fan_out(self) -> "EventQuerySet":
        """Return the final events of jobs whose webhook deliveries have not been created yet."""
        return self.filter(IS_FINAL, told_at=None)


class Event(models.Model):
    """A status change of a job or of one of its chunks. Only its error and its webhook time change.

    The statement that makes the change also inserts the event, so neither exists without the other. Within a job, `seq`
    increases in the order of the commits, because it is assigned under the lock of the job's row. After the events of
    its chunks, a statement skips one number, which event streams use for `progress`.
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
    # The error of a job that failed and was retried later. The job's row has the current error.
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
                condition=IS_FINAL & Q(told_at__isnull=True),
            ),
            # For the sweep, to find exports that ended long ago and still have events.
            models.Index(fields=["at"], name="exports_event_ends", condition=IS_FINAL & Q(told_at__isnull=False)),
        ]

    def __str__(self) -> str:
        return f"{self.kind} {self.status} #{self.seq}"
