"""Queries of the rules that a user can see, the default rule, and the content of rule versions."""

from django.conf import settings
from django.contrib.auth.models import User
from django.db.models import Q

from config.platform.http import staff
from config.platform.http.problems import BadInput, InputError, Problem, require_first
from rules.library.content import RuleContent
from rules.models import Rule, RuleVersion
from rules.models.rule import RuleQuerySet
from rules.schema.extensions import REQUIRE_COMPLETE

DEFAULT_SLUG = "default"


class UnknownRule(BadInput):
    detail = "The rule does not exist or is not available to you."

    def __init__(self) -> None:
        super().__init__(InputError(pointer="/rule_id", code="unknown_rule", detail="Rule not found."))


class NoDefaultRule(Problem):
    status = 503
    code = "default_rule_missing"
    retry_after = 60
    detail = "The configured default rule does not exist. Send a rule_id, or contact the operator."


def visible_to(user: User) -> RuleQuerySet:
    """Return the rules that a user may view and use: their own, and system rules.

    Staff with the permission to view rules may view and use all rules.
    All users may use the default rule, even if another user owns it. If default rules are disabled, no user may use the
    system rule `default`.
    """
    rules: RuleQuerySet = Rule.objects.listed()
    if not settings.SLUICE.etl_global_rule_enabled:
        rules = rules.exclude(slug=DEFAULT_SLUG)
    return rules if staff.may(user, Rule) else rules.filter(Q(owner=user) | Q(owner=None) | is_default())


def changeable_by(user: User) -> RuleQuerySet:
    """Return the rules that a user may change: their own, except the default rule."""
    rules: RuleQuerySet = Rule.objects.listed().filter(owner=user)
    return rules.exclude(is_default()) if configured_default() else rules


def is_system(rule: Rule) -> bool:
    """Return whether all users share the rule: it was loaded from a file or is configured as the default."""
    return rule.is_system or rule.pk == configured_default()


def is_shared() -> Q:
    """Return the filter of the rules for which `is_system` holds."""
    return Q(owner=None) if configured_default() is None else Q(owner=None) | is_default()


def configured_default() -> int | None:
    """Return ETL_GLOBAL_RULE_ID, or None if it is not set or default rules are disabled."""
    rule_id: int | None = settings.SLUICE.etl_global_rule_id
    return rule_id if settings.SLUICE.etl_global_rule_enabled else None


def is_default() -> Q:
    rule_id = configured_default()
    return Q(slug=DEFAULT_SLUG) if rule_id is None else Q(pk=rule_id)


def default() -> Rule | None:
    """Return the default rule, even if default rules are disabled, or None if it does not exist."""
    return Rule.objects.listed().filter(is_default()).first()


def resolve(*, user: User, rule_id: int | None) -> RuleContent:
    """Return the current content of a rule, or of the default rule if `rule_id` is None.

    Raises BadInput and NoDefaultRule.
    """
    if rule_id is not None:
        return as_content(require_first(visible_to(user).filter(pk=rule_id), UnknownRule))
    if not settings.SLUICE.etl_global_rule_enabled:
        detail = "This field is required, because no default rule is configured."
        raise BadInput(InputError(pointer="/rule_id", code="required", detail=detail))
    if (rule := default()) is None:
        raise NoDefaultRule
    return as_content(rule)


def content(*, rule_id: int, version: int) -> RuleContent:
    """Return the content of a version, even if the rule was deleted. Raises UnknownRule."""
    return as_content(require_first(RuleVersion.objects.filter(rule_id=rule_id, version=version), UnknownRule))


def as_content(rule: Rule | RuleVersion) -> RuleContent:
    return RuleContent(
        rule_id=rule.rule_id,
        version=rule.version,
        name=rule.name,
        mode=rule.postprocess_mode,
        strategy=rule.postprocess_strategy,
        json_schema=rule.json_schema,
        system_prompt=rule.system_prompt,
        require_complete=rule.require_complete or bool((rule.json_schema or {}).get(REQUIRE_COMPLETE)),
    )
