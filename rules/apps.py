from typing import Any

from django.apps import AppConfig
from django.apps import apps as current
from django.db import DEFAULT_DB_ALIAS
from django.db.models.signals import post_migrate


class RulesConfig(AppConfig):
    """The rules of document ETL: JSON Schema, prompt and strategy, in versions."""

    name = "rules"

    def ready(self) -> None:
        from rules.library import checks  # noqa: F401 - registers them

        post_migrate.connect(load_rules, sender=self)


def load_rules(*, using: str, apps: Any = current, **_later: Any) -> None:
    """Give every database its system rules. A bad file is told in the log, and must not keep the service from starting.

    `apps` are the models as the database has them: after a migration backwards it may not be able to take ours. `flush`
    does not give them.
    """
    from rules.loading.system_rules import load_all
    from rules.models import Rule

    try:
        columns = {field.column for field in apps.get_model("rules", "Rule")._meta.local_fields}
    except LookupError:
        return
    if using == DEFAULT_DB_ALIAS and columns == {field.column for field in Rule._meta.local_fields}:
        load_all()
