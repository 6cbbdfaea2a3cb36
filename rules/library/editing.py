"""Creation, changes, and deletion of rules. Every state of a rule is stored as a version."""

from typing import Any

from django.contrib.auth.models import User
from django.db import transaction
from django.db.models import QuerySet
from django.utils import timezone

from config.platform.http import audit
from config.platform.http.problems import BadInput, InputError, Problem
from rules.library import quotas
from rules.library.access import NoSuchRule
from rules.models import WITH_SCHEMA, Rule, RuleVersion
from rules.schema import json_schema

FIELDS = (
    "name", "description", "json_schema", "system_prompt", "postprocess_mode", "postprocess_strategy",
    "require_complete",
)  # fmt: skip
SCHEMA_REQUIRED = InputError(
    pointer="/json_schema", code="required", detail="This field is required when postprocess_mode is llm or einvoice."
)


class ChangedMeanwhile(Problem):
    status = 409
    code = "changed_meanwhile"
    detail = "The rule was changed in the meantime. Reload it, then make your changes again."


def create(*, owner: User, values: dict[str, Any]) -> Rule:
    """Create a user's rule and its first version. Raises BadInput and QuotaExceeded.

    `values` contains FIELDS; those with defaults may be missing, except `postprocess_mode` and `json_schema`.
    """
    require_schema(values)
    with transaction.atomic():
        rule = Rule.objects.create(owner=owner, **values)
        save_version(rule)
        audit.record_change(rule_id=rule.pk)
    return rule


def change(rules: QuerySet[Rule], rule_id: int, *, since: int | None = None, **values: Any) -> Rule:
    """Change one of `rules` and return it. Its version is incremented if any value differs.

    The row is locked, so concurrent changes are applied one after another. `since` is the version that the client has
    edited. Raises Rule.DoesNotExist, ChangedMeanwhile if the change would overwrite a later version, BadInput if the
    new values are invalid in combination with the unchanged ones, and QuotaExceeded.
    """
    with transaction.atomic():
        rule = rules.select_for_update().get(pk=rule_id)
        if since not in (None, rule.version) and changed_values(rule, values):
            raise ChangedMeanwhile
        apply(rule, **values)
        audit.record_change(rule_id=rule.pk)
    return rule


def apply(rule: Rule, **values: Any) -> bool:
    """Change a rule whose row is locked. Return whether any value differed."""
    new = changed_values(rule, values)
    if not new:
        return False
    for name, value in new.items():
        setattr(rule, name, value)
    require_schema({name: getattr(rule, name) for name in FIELDS})
    rule.version += 1
    rule.save(update_fields=[*new, "version", "updated_at"])
    save_version(rule)
    return True


def changed_values(rule: Rule, values: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if differs(getattr(rule, name), value)}


def delete(rules: QuerySet[Rule], rule_id: int) -> None:
    """Delete one of `rules`. Its row is only hidden, because tasks refer to its versions. Raises NoSuchRule."""
    if not rules.filter(pk=rule_id).update(deleted_at=timezone.now()):
        raise NoSuchRule


def save_version(rule: Rule) -> None:
    """Store the rule's current content, and charge its owner. Raises QuotaExceeded."""
    if rule.owner_id is not None:
        quotas.charge(rule.owner_id)
    version_of(rule).save(force_insert=True)


def version_of(rule: Rule) -> RuleVersion:
    """Return an unsaved version with the rule's current content."""
    return RuleVersion(rule=rule, version=rule.version, **{name: getattr(rule, name) for name in FIELDS})


def differs(old: Any, new: Any) -> bool:
    """Compare two values as JSON, ignoring the order of members. In Python, 1 would equal true."""
    return json_schema.canonical(old) != json_schema.canonical(new)


def require_schema(values: dict[str, Any]) -> None:
    if values["postprocess_mode"] in WITH_SCHEMA and values["json_schema"] is None:
        raise BadInput(SCHEMA_REQUIRED)
