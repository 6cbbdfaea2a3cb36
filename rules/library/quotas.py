"""Daily quota of rule versions per user, because all versions are kept. Days are in UTC, by the database's clock."""

from django.conf import settings
from prometheus_client import Counter

from config.platform.db import clock
from config.platform.http import quotas
from config.platform.plurals import counted
from rules.models import RuleUsage

REFUSED = Counter("etl_rule_quota_refused_total", "Rule versions refused because the user's quota is used up.")


class QuotaExceeded(quotas.QuotaExceeded):
    detail = "This request exceeds your daily quota of rule versions. See /api/v1/etl/limits for the quota."


def charge(user_id: int) -> None:
    """Charge a version. Call it in the transaction that stores the version. Raises QuotaExceeded."""
    limit = settings.SLUICE.etl_daily_rule_versions
    if not RuleUsage.objects.charge(user_id, "versions", limit=limit):
        REFUSED.inc()
        reason = f"You have reached your daily limit of {counted(limit, 'rule version')}"
        raise QuotaExceeded.of_day(reason)


def used_today(user_id: int) -> int:
    """Return the number of rule versions that the user has created today."""
    today = RuleUsage.objects.filter(user_id=user_id, day=clock.now().date())
    return today.values_list("versions", flat=True).first() or 0
