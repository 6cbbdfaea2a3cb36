"""Reviews of results, and their history: corrections, approvals, and removed approvals."""

from typing import Any, NamedTuple

from django.conf import settings
from django.db import models

from config.platform.db import clock
from etl.models.exact_fields import ExactJSON


class Review(NamedTuple):
    """The review of a result. `corrections`: number of corrections. `approved_by`: a username."""

    corrections: int = 0
    approved_at: Any = None
    approved_by: str | None = None


NO_REVIEW = Review()


class ReviewEvent(models.Model):
    """A change by a person.

    A correction has one event for each changed value, all with the same `correction` number.
    """

    class Kind(models.TextChoices):
        CORRECTED = "corrected"
        APPROVED = "approved"
        APPROVAL_REMOVED = "approval_removed"

    task = models.ForeignKey("etl.Task", models.CASCADE, related_name="review_events", db_index=False)
    run = models.PositiveIntegerField(help_text="Of the result")
    kind = models.CharField(max_length=16, choices=Kind)
    correction = models.PositiveIntegerField(help_text="The number of the correction, or of the last one")
    pointer = models.TextField(blank=True, default="", help_text="JSON Pointer into data; of a removed value, before")
    change = ExactJSON(null=True, blank=True, help_text='`{"before", "after"}`, without those that do not exist')
    user = models.ForeignKey(settings.AUTH_USER_MODEL, models.PROTECT, related_name="+")
    created_at = models.DateTimeField(default=clock.now, editable=False)

    class Meta:
        db_table = "etl_review_event"
        ordering = ["-id"]
        indexes = [models.Index(fields=["task", "-id"], name="etl_review_event_of_task")]
        constraints = [
            models.CheckConstraint(
                name="etl_review_event_has_change",
                condition=models.Q(kind="corrected", change__isnull=False)
                | (~models.Q(kind="corrected") & models.Q(change__isnull=True)),
            )
        ]

    def __str__(self) -> str:
        return f"{self.kind} {self.pointer}".strip()
