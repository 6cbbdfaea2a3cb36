from django.conf import settings
from django.db import models

from config.platform.db.usage import DailyUsage


class Usage(DailyUsage):
    """A user's quota usage for one day. Written by `exports.jobs.quotas` and `exports.worker.transitions`."""

    jobs = models.PositiveIntegerField(default=0)
    chunks = models.PositiveIntegerField(default=0)

    class Meta(DailyUsage.Meta):
        db_table = "exports_usage"


class Allowance(models.Model):
    """Daily limits that staff set for one user, in place of EXPORT_DAILY_JOBS and EXPORT_DAILY_CHUNKS."""

    user = models.OneToOneField(settings.AUTH_USER_MODEL, models.CASCADE, primary_key=True, related_name="+")
    daily_jobs = models.PositiveIntegerField(null=True, blank=True, help_text="Empty: EXPORT_DAILY_JOBS.")
    daily_chunks = models.PositiveIntegerField(null=True, blank=True, help_text="Empty: EXPORT_DAILY_CHUNKS.")

    class Meta:
        db_table = "exports_allowance"

    def __str__(self) -> str:
        return str(self.user)
