"""How rules come to be and change, with a version for all that they ever said."""

from typing import Any

from django.contrib.auth.models import User
from django.db import transaction
from django.db.models import QuerySet
from django.utils import timezone

from config.platform.http.problems import BadInput, InputError, Problem
from rules.models import LLM, Rule, RuleVersion
from rules.schema import json_schema

SAYS = ("name", "description", "json_schema", "system_prompt", "postprocess_mode", "postprocess_strategy")
SCHEMA_REQUIRED = InputError(
    pointer="/json_schema", code="required", detail="This field is required when postprocess_mode is llm."
)


class ChangedMeanwhile(Problem):
    status = 409
    code = "changed_meanwhile"
    detail = "The rule was changed in the meantime. Reload it, then make your changes again."


def create(*, owner: User | None, slug: str | None = None, says: dict[str, Any]) -> Rule:
    """Make a rule, in its first version. `says` is complete: a value for each of SAYS."""
    require_schema(says)
    with transaction.atomic():
        rule = Rule.objects.create(owner=owner, slug=slug, **says)
        keep(rule)
    return rule


def change(rules: QuerySet[Rule], rule_id: int, *, since: int | None = None, **says: Any) -> Rule:
    """Change a rule of those, and return it as it is then. Its version grows by one if it says anything new.

    The row's lock puts changes in an order: each sees what the one before it made. `since` is the version that whoever
    changes it has seen. Raises Rule.DoesNotExist, ChangedMeanwhile where anything new would go over what came after
    `since`, and BadInput where the new and the old do not go together.
    """
    with transaction.atomic():
        rule = rules.select_for_update().get(pk=rule_id)
        if since not in (None, rule.version) and news(rule, says):
            raise ChangedMeanwhile
        apply(rule, **says)
    return rule


def apply(rule: Rule, **says: Any) -> bool:
    """Change a rule whose row is locked, and tell whether it says anything new."""
    new = news(rule, says)
    if not new:
        return False
    for name, value in new.items():
        setattr(rule, name, value)
    require_schema({name: getattr(rule, name) for name in SAYS})
    rule.version += 1
    rule.save(update_fields=[*new, "version", "updated_at"])
    keep(rule)
    return True


def news(rule: Rule, says: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in says.items() if differs(getattr(rule, name), value)}


def delete(rules: QuerySet[Rule], rule_id: int) -> bool:
    """Hide a rule of those, and tell whether it was there. Tasks keep their version of it."""
    return bool(rules.filter(pk=rule_id).update(deleted_at=timezone.now()))


def keep(rule: Rule) -> None:
    version_of(rule).save(force_insert=True)


def version_of(rule: Rule) -> RuleVersion:
    """Return what a rule says now, to be kept."""
    return RuleVersion(rule=rule, version=rule.version, **{name: getattr(rule, name) for name in SAYS})


def differs(old: Any, new: Any) -> bool:
    """Compare as JSON: to Python 1 equals true. A change of members' order alone is none."""
    return json_schema.canonical(old) != json_schema.canonical(new)


def require_schema(says: dict[str, Any]) -> None:
    if says["postprocess_mode"] == LLM and says["json_schema"] is None:
        raise BadInput(SCHEMA_REQUIRED)
