from django.db import models

from config.platform.db.usage import DailyUsage


class RuleUsage(DailyUsage):
    """A user's rule versions of one day. Written by `rules.library.quotas`."""

    versions = models.PositiveIntegerField(default=0)

    class Meta(DailyUsage.Meta):
        db_table = "etl_rule_usage"
