"""What `manage.py check --database default`, and with it `migrate`, says of the configured default rule."""

from collections.abc import Iterable
from typing import Any

from django.core.checks import CheckMessage, Tags, register
from django.core.checks import Warning as Concern
from django.db import Error

from rules.library import catalog


@register(Tags.database)
def default_rule(*, databases: Iterable[str] | None = None, **_later: Any) -> list[CheckMessage]:
    """A warning, not an error: `migrate` would refuse to make the tables that the rule is to be in."""
    if not databases or (named := catalog.named_default()) is None:
        return []
    try:
        is_there = catalog.default() is not None
    except Error:
        return []  # before the first migration
    hint = "Requests that name no rule are answered 503 until it does."
    return [] if is_there else [Concern(f"ETL_GLOBAL_RULE_ID: there is no rule {named}.", hint=hint, id="rules.W001")]
