"""JSON fields that keep all digits of numbers."""

from typing import Any

from django.db import models
from django.db.backends.base.base import BaseDatabaseWrapper
from psycopg.types.json import Jsonb

from config.platform import exact_json
from rules.models.ordered import OrderedJSON


class ExactJSON(OrderedJSON):
    """A `json` column, which keeps the JSON text as it was stored."""


class ExactJSONB(models.JSONField):
    """A `jsonb` column, which sorts members.

    It keeps the digits of numbers, but not their notation: 1e22 is expanded.
    """

    def get_db_prep_value(self, value: Any, connection: BaseDatabaseWrapper, prepared: bool = False) -> Any:  # noqa: FBT001, FBT002 - Django's signature
        return value if value is None or hasattr(value, "resolve_expression") else Jsonb(value, dumps=exact_json.dumps)

    def from_db_value(self, value: Any, *_how: Any) -> Any:
        return exact_json.loads(value) if isinstance(value, str) else value
