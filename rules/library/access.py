"""Access to rules, for the API and the pages. Another user's rule is reported as not found."""

from django.contrib.auth.models import User
from django.db.models import QuerySet

from config.platform.http.problems import NotFound, Problem, require_first
from rules.library import catalog
from rules.models import Rule, RuleVersion


class NoSuchRule(NotFound):
    detail = "Rule not found."


class ReadOnlyRule(Problem):
    status = 403
    code = "system_rule"
    detail = (
        "System rules are shared by all users and cannot be changed. Create your own rule with the same content "
        "instead."
    )


class NotYourRule(Problem):
    status = 403
    code = "not_your_rule"
    detail = "This rule belongs to another user. Staff can view it but not change it."


def visible(user: User, rule_id: int) -> Rule:
    """Return the rule if the user may see it. Raises NoSuchRule."""
    return require_first(catalog.visible_to(user).filter(pk=rule_id), NoSuchRule)


def is_changeable(user: User, rule: Rule) -> bool:
    return rule.owner_id == user.pk and not catalog.is_system(rule)


def changeable(user: User, rule_id: int) -> QuerySet[Rule]:
    """Return a query of the rules that the user may change, after checking that this rule is one of them.

    Raises NoSuchRule, ReadOnlyRule, and NotYourRule.
    """
    rule = visible(user, rule_id)
    if catalog.is_system(rule):
        raise ReadOnlyRule
    if not is_changeable(user, rule):
        raise NotYourRule
    return catalog.changeable_by(user)


def deleted(user: User, rule_id: int) -> Rule | None:
    """Return a deleted rule of the user, if it exists."""
    return Rule.objects.filter(pk=rule_id, owner=user, deleted_at__isnull=False).first()


def version_of(rule: Rule, number: int) -> RuleVersion:
    """Return the version of the rule. Raises NoSuchRule."""
    return require_first(rule.versions.filter(version=number), NoSuchRule("This rule has no such version."))
