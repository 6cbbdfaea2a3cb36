from typing import Any

from django.apps import AppConfig
from django.apps import apps as current
from django.db import DEFAULT_DB_ALIAS
from django.db.models.signals import post_migrate


class RulesConfig(AppConfig):
    """The Django app of rules for documents: a JSON Schema, a prompt, and a strategy, with versions."""

    name = "rules"

    def ready(self) -> None:
        from rules.library import checks  # noqa: F401 - the import registers the checks

        post_migrate.connect(load_rules, sender=self)


def load_rules(*, using: str, apps: Any = current, **_later: Any) -> None:
    """Load the system rules into the database. An invalid file is logged, and does not stop the migration.

    `apps` has the models of the migrated state. After a backward migration, their columns may differ from those of the
    current models, and the rules cannot be loaded. `flush` does not pass `apps`.
    """
    from rules.loading.system_rules import load_all
    from rules.models import Rule

    try:
        columns = {field.column for field in apps.get_model("rules", "Rule")._meta.local_fields}
    except LookupError:
        return
    if using == DEFAULT_DB_ALIAS and columns == {field.column for field in Rule._meta.local_fields}:
        load_all()
