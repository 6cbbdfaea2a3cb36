"""Base of the models that count the daily usage of users."""

from datetime import timedelta
from typing import Any

from django.conf import settings
from django.db import models
from django.db.models import F
from django.db.models.functions import Now, TruncDate

from config.platform.db import clock

RETENTION = timedelta(days=31)  # minimum, so that staff can review past usage


class DailyUsageQuerySet(models.QuerySet[Any]):
    def delete_old(self, *, kept: timedelta = RETENTION) -> int:
        """Delete the rows of old days. Return their number."""
        return self.filter(day__lt=TruncDate(Now()) - kept).delete()[0]

    def charge(self, user_id: int, name: str, *, limit: int, count: int = 1) -> bool:
        """Add to a count of today, unless it would exceed `limit`. Return whether it was added.

        The row's lock serializes the charges of a user. Before the row exists, the unique index does.
        """
        row, _ = self.get_or_create(user_id=user_id, day=clock.now().date())
        return bool(self.filter(pk=row.pk, **{f"{name}__lte": limit - count}).update(**{name: F(name) + count}))


class DailyUsage(models.Model):
    """One row for each user and day with requests."""

    user = models.ForeignKey(settings.AUTH_USER_MODEL, models.CASCADE, related_name="+", db_index=False)
    day = models.DateField(help_text="In UTC, by the database's clock")

    objects = DailyUsageQuerySet.as_manager()

    class Meta:
        abstract = True
        constraints = [models.UniqueConstraint(fields=["user", "day"], name="%(app_label)s_usage_day")]
        indexes = [models.Index(fields=["-day", "user"], name="%(app_label)s_usage_newest")]
        verbose_name_plural = "usage"

    def __str__(self) -> str:
        return f"{self.user_id} {self.day}"
