"""Choices of rules for forms."""

from django.conf import settings
from django.contrib.auth.models import User

from rules.library import catalog, requirements
from rules.models import Rule

MAX_RULES = 300
Groups = list[tuple[str, list[tuple[str, str]]]]


def rules_for(user: User) -> tuple[str, Groups]:
    """Return the label of the default rule, or "", and the rules that the user may use, in groups.

    If no language model is configured, the rules that need one have a note. They can still be chosen, because a task
    can be retried after a model is configured.
    """
    rules = (
        catalog.visible_to(user)
        .only("rule_id", "name", "owner_id", "slug", "postprocess_mode")
        .order_by("name", "rule_id")
    )
    groups: dict[str, list[tuple[str, str]]] = {"Mine": [], "System": [], "Other users": []}
    default = catalog.default() if settings.SLUICE.etl_global_rule_enabled else None
    for rule in rules[:MAX_RULES]:
        group = "System" if catalog.is_system(rule) else "Mine" if rule.owner_id == user.pk else "Other users"
        groups[group].append((str(rule.pk), label(rule)))
    return label(default) if default else "", [(name, choices) for name, choices in groups.items() if choices]


def label(rule: Rule) -> str:
    """Return a rule's name, with a note if it needs a language model and none is configured."""
    return f"{rule.name} ({requirements.NO_MODEL})" if requirements.lacks_model(rule.postprocess_mode) else rule.name
