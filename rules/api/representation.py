"""Response bodies of rules."""

from rules.api import schemas
from rules.library import catalog
from rules.models import Rule


def rule(rule: Rule) -> schemas.Rule:
    return {
        "rule_id": rule.pk,
        "name": rule.name,
        "description": rule.description,
        "json_schema": rule.json_schema,
        "system_prompt": rule.system_prompt,
        "postprocess_mode": rule.postprocess_mode,
        "postprocess_strategy": rule.postprocess_strategy or None,
        "require_complete": rule.require_complete,
        "version": rule.version,
        "is_system": catalog.is_system(rule),
        "created_at": rule.created_at,
        "updated_at": rule.updated_at,
    }
