from django.db import models

from config.platform.db.usage import DailyUsage


class RuleUsage(DailyUsage):
    """The number of rule versions that a user has created on a day. `rules.library.quotas` writes it."""

    versions = models.PositiveIntegerField(default=0)

    class Meta(DailyUsage.Meta):
        db_table = "etl_rule_usage"
