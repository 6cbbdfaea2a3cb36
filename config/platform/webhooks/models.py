"""Models of webhooks, their deliveries, and attempts."""

import uuid

from django.conf import settings
from django.contrib.postgres.fields import ArrayField
from django.db import models
from django.db.models import Q
from django.db.models.functions import Now


class EventType(models.TextChoices):
    """Types of events that users can subscribe to. Producers pass them to `outbox`."""

    SUCCEEDED = "export.succeeded"
    FAILED = "export.failed"
    CANCELLED = "export.cancelled"
    DOCUMENT_COMPLETED = "document.completed"
    DOCUMENT_FAILED = "document.failed"
    BATCH_COMPLETED = "batch.completed"


TEST = "webhook.test"  # type of test deliveries; not an EventType, since users cannot subscribe to it


class Webhook(models.Model):
    """The subscription of a user's endpoint to events.

    Secrets are stored in plain text because signing needs them. They are shown once, when they are created.
    """

    id = models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False)
    user = models.ForeignKey(settings.AUTH_USER_MODEL, models.CASCADE, related_name="export_webhooks")
    url = models.CharField(max_length=2000)
    events = ArrayField(models.CharField(max_length=32, choices=EventType))
    secret = models.CharField(max_length=100)
    old_secret = models.CharField(
        max_length=100, default="", blank=True, help_text="Previous secret, which also signs until it expires."
    )
    old_secret_until = models.DateTimeField(null=True, blank=True)
    enabled = models.BooleanField(default=True)
    disabled_reason = models.CharField(max_length=200, default="", blank=True)
    failures = models.PositiveIntegerField(default=0, help_text="Consecutive failed attempts.")
    failing_since = models.DateTimeField(null=True, blank=True)
    created_at = models.DateTimeField(db_default=Now())
    updated_at = models.DateTimeField(auto_now=True)

    class Meta:
        app_label = "exports"
        db_table = "exports_webhook"

    def __str__(self) -> str:
        return str(self.id)


class Delivery(models.Model):
    """One event for one webhook. Its ID is the `webhook-id` header."""

    class Status(models.TextChoices):
        PENDING = "pending"  # waits for its next attempt or, with a token, is being sent
        DELIVERED = "delivered"
        FAILED = "failed"

    id = models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False)
    webhook = models.ForeignKey(Webhook, models.CASCADE, related_name="deliveries")
    job = models.ForeignKey("exports.Job", models.SET_NULL, null=True, blank=True, related_name="+")
    # For events of objects other than jobs, and of purged jobs. Not a foreign key: the log outlives its objects.
    subject = models.CharField(max_length=64, default="", db_default="", blank=True, help_text="Such as document:17")
    seq = models.BigIntegerField(null=True, blank=True, help_text="Grows with each event of a subject. Null for a test")
    type = models.CharField(max_length=32)
    body = models.TextField(help_text="Body of the request, the same for every attempt.")
    status = models.CharField(max_length=10, choices=Status, default=Status.PENDING)
    attempts = models.PositiveSmallIntegerField(default=0)
    available_at = models.DateTimeField(db_default=Now(), help_text="When the next attempt may start")
    token = models.BigIntegerField(null=True, blank=True)
    lease_until = models.DateTimeField(null=True, blank=True)
    created_at = models.DateTimeField(db_default=Now())
    finished_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        app_label = "exports"
        db_table = "exports_delivery"
        indexes = [
            models.Index(fields=["available_at"], name="exports_delivery_due", condition=Q(status="pending")),
            models.Index(fields=["webhook", "-created_at", "-id"], name="exports_delivery_newest"),
            models.Index(
                fields=["webhook", "-created_at", "-id"], name="exports_delivery_failed", condition=Q(status="failed")
            ),
            # For staff, and for the deletion of old deliveries.
            models.Index(fields=["-created_at", "-id"], name="exports_delivery_of_all"),
        ]
        constraints = [
            models.UniqueConstraint(fields=["webhook", "job", "seq"], name="exports_delivery_once"),
            models.UniqueConstraint(
                fields=["webhook", "subject", "seq"], name="exports_delivery_of_subject", condition=~Q(subject="")
            ),
            models.CheckConstraint(
                name="exports_delivery_sent_under_lease",
                condition=Q(token__isnull=True, lease_until__isnull=True)
                | Q(status="pending", token__isnull=False, lease_until__isnull=False),
            ),
        ]
        verbose_name = "webhook delivery"
        verbose_name_plural = "webhook deliveries"

    def __str__(self) -> str:
        return f"{self.type} {self.id}"


class Attempt(models.Model):
    """One request for a delivery, shown in its log."""

    delivery = models.ForeignKey(Delivery, models.CASCADE, related_name="log")
    at = models.DateTimeField(db_default=Now())
    status_code = models.PositiveSmallIntegerField(null=True, blank=True)
    error = models.CharField(max_length=200, default="", blank=True, help_text="Why there was no response.")
    duration_ms = models.PositiveIntegerField()

    class Meta:
        app_label = "exports"
        db_table = "exports_attempt"

    def __str__(self) -> str:
        return str(self.status_code or self.error)
