"""Ledger of model calls. Unlike the usage of a task, it is not reset by a retry."""

from datetime import UTC, date, datetime, time, timedelta
from typing import Any, Protocol, Self

from django.conf import settings
from django.db import models
from django.db.models import Q, Sum
from django.db.models.functions import Coalesce, TruncDate

from config.platform.db import clock

COUNTS = ("calls", "prompt_tokens", "completion_tokens")


class Run(Protocol):
    """An ended run of a task."""

    @property
    def task_id(self) -> int: ...
    @property
    def user_id(self) -> int: ...
    @property
    def rule_id(self) -> int: ...
    @property
    def run(self) -> int: ...
    @property
    def metadata(self) -> dict[str, Any]: ...


class ModelUsageQuerySet(models.QuerySet["ModelUsage"]):
    def record_run(self, run: Run) -> None:
        """Record the usage of a task's run. Has no effect if the run is already recorded."""
        spent = run.metadata["postprocess"]["usage"]
        if spent.get("calls"):
            facts = {"user_id": run.user_id, "rule_id": run.rule_id, **{name: spent[name] for name in COUNTS}}
            self.get_or_create(task_id=run.task_id, run=run.run, defaults=facts)

    def between(self, first: date, last: date) -> Self:
        """Filter by days in UTC, both inclusive. Compares times rather than dates, so that the index can be used."""
        begin, end = (datetime.combine(day, time(), UTC) for day in (first, last + timedelta(days=1)))
        return self.filter(created_at__gte=begin, created_at__lt=end)

    def totals(self) -> dict[str, int]:
        return self.aggregate(**{name: Coalesce(Sum(name), 0) for name in COUNTS})

    def by_day(self) -> list[dict[str, Any]]:
        """Return the sums of each day with calls, newest first."""
        days = self.annotate(date=TruncDate("created_at", tzinfo=UTC)).values("date").order_by("-date")
        sums = days.annotate(*[Sum(name) for name in COUNTS]).values_list("date", *[f"{name}__sum" for name in COUNTS])
        return [dict(zip(("date", *COUNTS), row, strict=True)) for row in sums]


class ModelUsage(models.Model):
    """The cost of one run of a task, or of one test of a rule. Written when it ends."""

    user = models.ForeignKey(settings.AUTH_USER_MODEL, models.PROTECT, related_name="model_usage", db_index=False)
    rule_id = models.BigIntegerField(help_text="0 for a rule that was tested before it was saved")
    # No foreign key, because the usage is kept when a task is deleted.
    task_id = models.BigIntegerField(null=True, blank=True, help_text="Empty for the test of a rule")
    run = models.PositiveIntegerField(default=0)
    calls = models.BigIntegerField()
    prompt_tokens = models.BigIntegerField()
    completion_tokens = models.BigIntegerField()
    created_at = models.DateTimeField(default=clock.now, editable=False)

    objects = ModelUsageQuerySet.as_manager()

    class Meta:
        db_table = "etl_model_usage"
        verbose_name_plural = "model usage"
        indexes = [models.Index(fields=["user", "created_at"], name="etl_model_usage_of_user")]
        constraints = [
            models.UniqueConstraint(
                fields=["task_id", "run"], name="etl_model_usage_of_run", condition=Q(task_id__isnull=False)
            )
        ]

    def __str__(self) -> str:
        return f"{self.calls} calls"
