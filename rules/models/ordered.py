"""A JSON field that keeps the order of members, for people and language models. `jsonb` sorts them."""

import json
from typing import Any

from django.db import models
from django.db.backends.base.base import BaseDatabaseWrapper
from psycopg.types.json import Json


class OrderedJSON(models.JSONField):
    def db_type(self, connection: BaseDatabaseWrapper) -> str:
        return "json"

    def get_db_prep_value(self, value: Any, connection: BaseDatabaseWrapper, prepared: bool = False) -> Any:  # noqa: FBT001, FBT002 - Django's signature
        return value if value is None or hasattr(value, "resolve_expression") else Json(value)

    def from_db_value(self, value: Any, *_how: Any) -> Any:
        return json.loads(value) if isinstance(value, str) else value
