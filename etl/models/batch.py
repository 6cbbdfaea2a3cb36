"""Batches: documents that were submitted together."""

from typing import Any, Self

from django.conf import settings
from django.db import models
from django.db.models import Count, F, IntegerField, OuterRef, Q, Subquery
from django.db.models.functions import Coalesce

from config.platform.db import clock
from config.platform.http import staff
from etl.core.states import BatchStatus, Status
from etl.models.task import Task

COUNTED = {"completed": Status.COMPLETED, "failed": Status.FAILED, "cancelled": Status.CANCELLED}


class DocumentBatchQuerySet(models.QuerySet["DocumentBatch"]):
    def visible_to(self, user: Any) -> Self:
        """Return the batches that the user may view: their own, or all for staff with the permission to view them."""
        return self if staff.may(user, DocumentBatch) else self.filter(user=user)

    def running(self) -> Self:
        return self.filter(status=BatchStatus.RUNNING)

    def with_counts(self) -> Self:
        """Annotate the numbers of documents: by status, and of deleted ones.

        All are from one snapshot of the database.
        """
        counts = {name: documents(Q(status=status)) for name, status in COUNTED.items()}
        return self.annotate(**counts, deleted=F("total") - documents(Q()))


def documents(condition: Q) -> Coalesce:
    """Return the number of a batch's documents that meet a condition, as a subquery.

    Unlike a join with GROUP BY, it runs only for the rows of the page.
    """
    matching = Task.objects.filter(condition, batch_id=OuterRef("pk")).order_by().values("batch_id")
    return Coalesce(Subquery(matching.annotate(n=Count("pk")).values("n")), 0, output_field=IntegerField())


class DocumentBatch(models.Model):
    """Documents that were submitted together. The numbers of its documents are counted from their rows.

    `status` changes in the same transaction as the status of a document: when the last open document ends, and when the
    first ended one is retried.
    """

    batch_id = models.BigAutoField(primary_key=True)
    user = models.ForeignKey(settings.AUTH_USER_MODEL, models.PROTECT, related_name="+", db_index=False)
    rule = models.ForeignKey("rules.Rule", models.PROTECT, related_name="+", db_index=False)
    rule_version = models.PositiveIntegerField(help_text="The rule's at the time of the request")

    name = models.CharField(max_length=200, blank=True)
    status = models.CharField(max_length=24, choices=BatchStatus, default=BatchStatus.RUNNING)
    total = models.PositiveIntegerField(help_text="Accepted documents, also those that were deleted")
    refused = models.JSONField(default=list, blank=True, help_text="Files of the request that were not accepted")
    cancelled_at = models.DateTimeField(null=True, blank=True)
    completions = models.PositiveIntegerField(default=0, help_text="How often all documents have ended")

    request_id = models.CharField(max_length=64, default="", blank=True)
    idempotency_key = models.CharField(max_length=255, default="", blank=True)
    fingerprint = models.CharField(max_length=64, default="", blank=True, help_text="SHA-256 of what was submitted")
    created_at = models.DateTimeField(default=clock.now, editable=False)
    updated_at = models.DateTimeField(default=clock.now, editable=False)  # time of creation, retry, or end

    objects = DocumentBatchQuerySet.as_manager()

    class Meta:
        db_table = "etl_batch"
        verbose_name = "batch"
        verbose_name_plural = "batches"
        indexes = [
            models.Index(fields=["user", "-created_at", "-batch_id"], name="etl_batch_of_user"),
            models.Index(fields=["-created_at", "-batch_id"], name="etl_batch_newest"),
            # For recovery. It omits ended batches, which are nearly all.
            models.Index(fields=["batch_id"], name="etl_batch_running", condition=Q(status=BatchStatus.RUNNING)),
        ]
        constraints = [
            models.UniqueConstraint(
                fields=["user", "idempotency_key"], name="etl_batch_idempotency", condition=~Q(idempotency_key="")
            ),
        ]

    def __str__(self) -> str:
        return str(self.batch_id)

    @property
    def has_ended(self) -> bool:
        return self.status != BatchStatus.RUNNING

    @property
    def title(self) -> str:
        return self.name or f"Batch {self.batch_id}"
