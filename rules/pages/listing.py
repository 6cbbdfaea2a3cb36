"""Page with the list of rules."""

from collections import Counter
from typing import Any

from django.contrib.auth.models import User

from config.platform.http.audit import CHANGES
from config.platform.ui.base import Listing
from rules.library import catalog, requirements
from rules.models import Rule
from rules.models.rule import RuleQuerySet
from rules.pages import explanations
from rules.pages.base import RulesPage

ORDER = ("-created_at", "-rule_id")
MAX_COUNTED = 1_000  # only the newest documents of a user are counted
FILTERS = {"": "All", "mine": "Mine", "system": "System"}


class RuleListPage(RulesPage):
    audited = CHANGES
    template_name = "rules/list.html"
    title = "Rules"

    def get_context_data(self, **context: Any) -> dict[str, Any]:
        whose = self.request.GET.get("whose", "")
        listing = Listing(
            self.request,
            rules_of(self.user, whose).select_related("owner").defer("json_schema", "system_prompt"),
            ordering=ORDER,
        )
        default, used = catalog.default(), uses_by(self.user)
        rows = [row(rule, self.user, used=used[rule.pk]) for rule in listing.rows]
        return super().get_context_data(
            rows=rows, listing=listing, whose=whose, filters=FILTERS, default=default.pk if default else None,
            counted=used.total(), is_part=used.total() == MAX_COUNTED, **context,
        )  # fmt: skip


def rules_of(user: User, whose: str) -> RuleQuerySet:
    rules = catalog.visible_to(user)
    if whose == "mine":
        return rules.filter(owner=user)
    return rules.filter(catalog.is_shared()) if whose == "system" else rules


def uses_by(user: User) -> Counter[int]:
    """Count a user's newest documents by rule, with one index scan."""
    newest = user.etl_tasks.order_by("-created_at", "-task_id").values_list("rule_id", flat=True)[:MAX_COUNTED]
    return Counter(newest)


def row(rule: Rule, user: User, *, used: int) -> dict[str, Any]:
    is_mine = rule.owner_id == user.pk
    return {
        "rule": rule,
        "owner": "You" if is_mine else str(rule.owner) if rule.owner else "System",
        "mode": explanations.mode(rule.postprocess_mode),
        "strategy": explanations.strategy(rule.postprocess_strategy),
        "lacks_model": requirements.lacks_model(rule.postprocess_mode),
        "used": used,
    }
