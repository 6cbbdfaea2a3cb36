"""Actions on the pages of rules: delete a rule, and restore a version."""

from django.urls import reverse

from config.platform.ui.base import Action
from rules.api import rates
from rules.library import access, editing
from rules.library.access import NoSuchRule
from rules.library.editing import FIELDS
from rules.library.serializers import RuleSerializer
from rules.models import Rule


class Delete(Action):
    throttle = rates.EtlThrottle

    def act(self, *, rule_id: int) -> str:
        rule = access.visible(self.user, rule_id)
        editing.delete(access.changeable(self.user, rule_id), rule_id)
        return f"Rule “{rule.name}” deleted. Existing documents keep their version of it and can be retried."

    def next_url(self, *, rule_id: int) -> str:
        return "rules"


class Restore(Action):
    """Restore an old version of a rule as a new version."""

    throttle = rates.EtlThrottle

    def act(self, *, rule_id: int, version: int) -> str:
        rule = access.visible(self.user, rule_id)
        rules = access.changeable(self.user, rule_id)
        old = access.version_of(rule, version)
        # Validate again, because the configured modes may have changed since then.
        values = RuleSerializer.read({name: getattr(old, name) for name in FIELDS})
        try:
            changed = editing.change(rules, rule_id, **values)
        except Rule.DoesNotExist:  # deleted in the meantime
            raise NoSuchRule from None
        if changed.version == rule.version:
            return f"The rule already matches version {version}. Nothing changed."
        return f"Version {version} restored as version {changed.version}."

    def next_url(self, *, rule_id: int, version: int) -> str:
        return reverse("rule-versions", args=[rule_id])
