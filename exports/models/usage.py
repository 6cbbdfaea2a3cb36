from django.conf import settings
from django.db import models


class Usage(models.Model):
    """A user's quota usage for one day. Written by `exports.jobs.quotas` and `exports.worker.transitions`."""

    user = models.ForeignKey(settings.AUTH_USER_MODEL, models.CASCADE, related_name="+", db_index=False)
    day = models.DateField(help_text="In UTC, by the database's clock")
    jobs = models.PositiveIntegerField(default=0)
    chunks = models.PositiveIntegerField(default=0)

    class Meta:
        db_table = "exports_usage"
        constraints = [models.UniqueConstraint(fields=["user", "day"], name="exports_usage_day")]
        verbose_name_plural = "usage"

    def __str__(self) -> str:
        return f"{self.user_id} {self.day}"


class Allowance(models.Model):
    """A user's own daily limits, set by staff instead of EXPORT_DAILY_JOBS and EXPORT_DAILY_CHUNKS."""

    user = models.OneToOneField(settings.AUTH_USER_MODEL, models.CASCADE, primary_key=True, related_name="+")
    daily_jobs = models.PositiveIntegerField(null=True, blank=True, help_text="Empty: EXPORT_DAILY_JOBS.")
    daily_chunks = models.PositiveIntegerField(null=True, blank=True, help_text="Empty: EXPORT_DAILY_CHUNKS.")

    class Meta:
        db_table = "exports_allowance"

    def __str__(self) -> str:
        return str(self.user)
