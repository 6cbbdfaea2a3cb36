"""A system check of the configured default rule, run by `manage.py check --database default` and by `migrate`."""

from collections.abc import Iterable
from typing import Any

from django.core.checks import CheckMessage, Tags, register
from django.core.checks import Warning as CheckWarning
from django.db import Error

from rules.library import catalog


@register(Tags.database)
def default_rule(*, databases: Iterable[str] | None = None, **_later: Any) -> list[CheckMessage]:
    """Warn, but raise no error: `migrate` would refuse to create the tables that the rule is stored in."""
    if not databases or (named := catalog.named_default()) is None:
        return []
    try:
        exists = catalog.default() is not None
    except Error:
        return []  # before the first migration
    hint = "Until it exists, requests without a rule_id get status 503."
    message = f"ETL_GLOBAL_RULE_ID: rule {named} does not exist."
    return [] if exists else [CheckWarning(message, hint=hint, id="rules.W001")]
