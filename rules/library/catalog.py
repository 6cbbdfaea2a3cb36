"""Which rules there are, for whom, and what they say: all that the stages and the API ask."""

from django.conf import settings
from django.contrib.auth.models import User
from django.db.models import Q

from config.platform.http.problems import BadInput, InputError, Problem
from rules.library.content import RuleContent
from rules.models import Rule, RuleVersion
from rules.models.rule import RuleQuerySet

DEFAULT_SLUG = "default"


class UnknownRule(BadInput):
    detail = "The rule does not exist or is not available to you."

    def __init__(self, *, code: str = "unknown_rule", detail: str = "Rule not found.") -> None:
        super().__init__(InputError(pointer="/rule_id", code=code, detail=detail))


class NoDefaultRule(Problem):
    status = 503
    code = "default_rule_missing"
    retry_after = 60
    detail = "The configured default rule does not exist. Send a rule_id, or contact the operator."


def visible_to(user: User) -> RuleQuerySet:
    """Return the rules that a user may see and use: their own, and the system's; staff, all.

    The default rule is everybody's, whoever made it; and nobody's when there is to be none.
    """
    rules: RuleQuerySet = Rule.objects.listed()
    if not settings.SLUICE.etl_global_rule_enabled:
        rules = rules.exclude(slug=DEFAULT_SLUG)
    return rules if user.is_staff else rules.filter(Q(owner=user) | Q(owner=None) | is_default())


def changeable_by(user: User) -> RuleQuerySet:
    """Return the rules that a user may change: their own, as long as they are not the default of everybody."""
    rules: RuleQuerySet = Rule.objects.listed().filter(owner=user)
    return rules.exclude(is_default()) if named_default() else rules


def is_system(rule: Rule) -> bool:
    """Tell whether it is everybody's: loaded from a file, or named as the default by the operator."""
    return rule.is_system or rule.pk == named_default()


def named_default() -> int | None:
    """Return the rule that ETL_GLOBAL_RULE_ID names, unless there is to be no default at all."""
    named: int | None = settings.SLUICE.etl_global_rule_id
    return named if settings.SLUICE.etl_global_rule_enabled else None


def is_default() -> Q:
    named = named_default()
    return Q(slug=DEFAULT_SLUG) if named is None else Q(pk=named)


def default() -> Rule | None:
    """Return the rule of tasks that name none; None where the configured one is not there."""
    return Rule.objects.listed().filter(is_default()).first()


def resolve(*, user: User, rule_id: int | None) -> RuleContent:
    """Return what a rule says now; None is the default rule. Raises UnknownRule, which the API answers as 400 at
    `/rule_id`, and NoDefaultRule."""
    if rule_id is not None:
        rule = visible_to(user).filter(pk=rule_id).first()
        if rule is None:
            raise UnknownRule
        return as_content(rule)
    if not settings.SLUICE.etl_global_rule_enabled:
        raise UnknownRule(code="required", detail="This field is required: there is no default rule here.")
    if (rule := default()) is None:
        raise NoDefaultRule
    return as_content(rule)


def content(*, rule_id: int, version: int) -> RuleContent:
    """Return what a rule said in a version, also when it is deleted. Raises UnknownRule."""
    kept = RuleVersion.objects.filter(rule_id=rule_id, version=version).first()
    if kept is None:
        raise UnknownRule
    return as_content(kept)


def as_content(said: Rule | RuleVersion) -> RuleContent:
    return RuleContent(
        rule_id=said.rule_id,
        version=said.version,
        name=said.name,
        mode=said.postprocess_mode,
        strategy=said.postprocess_strategy,
        json_schema=said.json_schema,
        system_prompt=said.system_prompt,
    )
