"""Samples of rules, and evaluations of rule versions on these samples."""

from typing import Any, Self

from django.conf import settings
from django.db import models
from django.db.models import Q

from config.platform.db import clock
from etl.core.stage_context import USAGE_FIELDS
from etl.models.exact_fields import ExactJSON
from etl.models.task import RESULTS, Task

MAX_EXPECTED_BYTES = 256 * 1024


class SampleQuerySet(models.QuerySet["Sample"]):
    def with_task(self) -> Self:
        """Load the tasks too, without their results."""
        return self.select_related("task").defer(*(f"task__{name}" for name in RESULTS))


class Sample(models.Model):
    """A document with the data that a rule should extract from it. It is deleted with its document."""

    rule = models.ForeignKey("rules.Rule", models.CASCADE, related_name="samples", db_index=False)
    task = models.ForeignKey(Task, models.CASCADE, related_name="samples", verbose_name="document")
    expected = ExactJSON()
    created_at = models.DateTimeField(default=clock.now, editable=False)

    objects = SampleQuerySet.as_manager()

    class Meta:
        db_table = "etl_sample"
        constraints = [models.UniqueConstraint(fields=["rule", "task"], name="etl_sample_once")]
        indexes = [models.Index(fields=["rule", "-id"], name="etl_sample_of_rule")]

    def __str__(self) -> str:
        return str(self.pk)


class EvaluationStatus(models.TextChoices):
    RUNNING = "running"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"


class Evaluation(models.Model):
    """A run of a version of a rule on the rule's samples. `number`: from 1 for each rule."""

    rule = models.ForeignKey("rules.Rule", models.CASCADE, related_name="evaluations", db_index=False)
    number = models.PositiveIntegerField()
    version = models.PositiveIntegerField()
    user = models.ForeignKey(settings.AUTH_USER_MODEL, models.PROTECT, related_name="+", db_index=False)
    status = models.CharField(max_length=12, choices=EvaluationStatus, default=EvaluationStatus.RUNNING)
    samples = models.PositiveIntegerField(help_text="At the start")
    accuracy = models.FloatField(null=True, blank=True, help_text="Share of correct values, from 0 to 1")
    fields = models.JSONField(default=dict, blank=True, help_text="Accuracy by field")
    error = models.JSONField(null=True, blank=True)
    created_at = models.DateTimeField(default=clock.now, editable=False)
    ended_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        db_table = "etl_evaluation"
        constraints = [
            models.UniqueConstraint(fields=["rule", "number"], name="etl_evaluation_once"),
            models.CheckConstraint(
                name="etl_evaluation_completed_has_accuracy",
                condition=Q(status=EvaluationStatus.COMPLETED, accuracy__isnull=False)
                | ~Q(status=EvaluationStatus.COMPLETED) & Q(accuracy=None),
            ),
            models.CheckConstraint(
                name="etl_evaluation_ended",
                condition=Q(status=EvaluationStatus.RUNNING, ended_at=None)
                | ~Q(status=EvaluationStatus.RUNNING) & Q(ended_at__isnull=False),
            ),
        ]
        indexes = [
            # For claims and recovery. It omits ended evaluations, which are nearly all.
            models.Index(
                fields=["user", "id"], name="etl_evaluation_running", condition=Q(status=EvaluationStatus.RUNNING)
            )
        ]

    def __str__(self) -> str:
        return f"{self.rule_id}/{self.number}"


class SampleStatus(models.TextChoices):
    WAITING = "waiting"
    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"


OPEN = [SampleStatus.WAITING, SampleStatus.RUNNING]


class SampleRun(models.Model):
    """One sample of an evaluation. Its end is written once, protected by the fencing token of its lease.

    `fields`: `{pointer: [credit, values]}`; `misses`: the values that differ.
    """

    evaluation = models.ForeignKey(Evaluation, models.CASCADE, related_name="runs", db_index=False)
    sample = models.ForeignKey(Sample, models.CASCADE, related_name="runs")
    status = models.CharField(max_length=8, choices=SampleStatus, default=SampleStatus.WAITING)
    attempts = models.PositiveSmallIntegerField(default=0)
    token = models.UUIDField(null=True, blank=True)
    leased_until = models.DateTimeField(null=True, blank=True)
    available_at = models.DateTimeField(default=clock.now)
    fields = models.JSONField(default=dict, blank=True)
    misses = ExactJSON(null=True, blank=True)
    error = models.JSONField(null=True, blank=True)
    duration_ms = models.PositiveIntegerField(default=0)
    calls = models.PositiveIntegerField(default=0)
    prompt_tokens = models.PositiveBigIntegerField(default=0)
    completion_tokens = models.PositiveBigIntegerField(default=0)

    class Meta:
        db_table = "etl_sample_run"
        constraints = [
            models.UniqueConstraint(fields=["evaluation", "sample"], name="etl_sample_run_once"),
            models.CheckConstraint(
                name="etl_sample_run_leased",
                condition=Q(status=SampleStatus.RUNNING, token__isnull=False, leased_until__isnull=False)
                | ~Q(status=SampleStatus.RUNNING) & Q(token=None, leased_until=None),
            ),
        ]

    def __str__(self) -> str:
        return f"{self.evaluation_id}/{self.sample_id}"

    @property
    def usage(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in USAGE_FIELDS}
