from typing import Any, Self

from django.conf import settings
from django.db import models
from django.db.models import Q

from etl.core.states import ENDED, Phase, Status

STORED = sorted({Status.PENDING, *ENDED})


class TaskQuerySet(models.QuerySet["Task"]):
    def owned_by(self, user: Any) -> Self:
        """Return the tasks that the user may view: their own, or all for staff."""
        return self if user.is_staff else self.filter(user=user)

    def open(self) -> Self:
        """Return the tasks that wait or run. Redis has the exact status."""
        return self.filter(status=Status.PENDING)


class Task(models.Model):
    """A document and its result. The row is written at the submission, at the end, and at a retry. In between, it is
    `pending`, and the run-state is in Redis (`etl/runstate/`).
    """

    task_id = models.BigAutoField(primary_key=True)
    user = models.ForeignKey(settings.AUTH_USER_MODEL, models.PROTECT, related_name="etl_tasks", db_index=False)
    rule = models.ForeignKey("rules.Rule", models.PROTECT, related_name="tasks")
    rule_version = models.PositiveIntegerField(help_text="The rule's at the time of the request")

    filename = models.CharField(max_length=255, blank=True, help_text="The client's name for it; only shown")
    kind = models.CharField(max_length=8, help_text="By its first bytes")
    size = models.BigIntegerField(help_text="Bytes")
    document_key = models.CharField(max_length=200, help_text="Of our own copy in object storage")

    status = models.CharField(max_length=16, choices=Status, default=Status.PENDING)
    phase = models.CharField(max_length=12, choices=Phase, default=Phase.OCR)
    progress = models.PositiveSmallIntegerField(default=0, help_text="Percent")
    result = models.JSONField(null=True, blank=True)
    error = models.JSONField(null=True, blank=True)
    metadata = models.JSONField(default=dict, blank=True)

    # The generation: outcomes are written only with the current one. It grows with every retry, and when the run-state
    # is restored.
    fence = models.BigIntegerField(default=1)
    # Parts of keys of artifacts in object storage: the current run, the run of the valid OCR result, and the run of the
    # stored model responses.
    run = models.PositiveIntegerField(default=1)
    ocr_run = models.PositiveIntegerField(default=1)
    journal_run = models.PositiveIntegerField(default=1)

    request_id = models.CharField(max_length=64, default="", blank=True)
    traceparent = models.CharField(
        max_length=55, default="", db_default="", blank=True, help_text="Of the request, if it was traced"
    )
    idempotency_key = models.CharField(max_length=255, default="", blank=True)
    fingerprint = models.CharField(max_length=64, default="", blank=True, help_text="SHA-256 of what was submitted")
    created_at = models.DateTimeField(auto_now_add=True)
    updated_at = models.DateTimeField(auto_now=True)

    objects = TaskQuerySet.as_manager()

    class Meta:
        db_table = "etl_task"
        verbose_name = "document"  # as pages and the admin's menu call it
        indexes = [
            models.Index(fields=["user", "-created_at", "-task_id"], name="etl_task_of_user"),
            models.Index(fields=["-created_at", "-task_id"], name="etl_task_newest"),
            # For the queue's length and for recovery. Ended tasks, nearly all, are not in it.
            models.Index(fields=["task_id"], name="etl_task_open", condition=Q(status=Status.PENDING)),
        ]
        constraints = [
            models.UniqueConstraint(
                fields=["user", "idempotency_key"], name="etl_task_idempotency", condition=~Q(idempotency_key="")
            ),
            models.CheckConstraint(name="etl_task_passing_states_live_in_redis", condition=Q(status__in=STORED)),
            models.CheckConstraint(
                name="etl_task_completed_has_result",
                condition=~Q(status=Status.COMPLETED) | Q(result__isnull=False, error__isnull=True),
            ),
            models.CheckConstraint(
                name="etl_task_failed_has_error", condition=~Q(status=Status.FAILED) | Q(error__isnull=False)
            ),
        ]

    def __str__(self) -> str:
        return str(self.task_id)

    @property
    def has_ended(self) -> bool:
        return self.status in ENDED
