"""The rules that a user may choose from in a form."""

from django.conf import settings
from django.contrib.auth.models import User

from rules.library import catalog, requirements
from rules.models import Rule

MAX_RULES = 300
Groups = list[tuple[str, list[tuple[str, str]]]]


def rules_for(user: User) -> tuple[str, Groups]:
    """Return the label of the default rule, or "", and the rules that the user may use, in groups.

    Rules that need a language model are included, with a note if none is configured: a retry may follow once one is.
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
    return requirements.marked(rule.name, mode=rule.postprocess_mode)
