"""System check of the configured default rule. `manage.py check --database default` and `migrate` run it."""

from collections.abc import Iterable
from typing import Any

from django.core.checks import CheckMessage, Tags, register
from django.core.checks import Warning as CheckWarning
from django.db import Error

from rules.library import catalog


@register(Tags.database)
def default_rule(*, databases: Iterable[str] | None = None, **_later: Any) -> list[CheckMessage]:
    """Warn if the rule does not exist. With an error, `migrate` could not create the table of rules."""
    if not databases or (rule_id := catalog.configured_default()) is None:
        return []
    try:
        exists = catalog.default() is not None
    except Error:
        return []  # before the first migration
    hint = "Until it exists, requests without a rule_id get status 503."
    message = f"ETL_GLOBAL_RULE_ID: rule {rule_id} does not exist."
    return [] if exists else [CheckWarning(message, hint=hint, id="rules.W001")]
