"""JSON field that keeps the order of members and all digits of numbers. `jsonb` would sort the members."""

from typing import Any

from django.db import models
from django.db.backends.base.base import BaseDatabaseWrapper
from psycopg.types.json import Json

from config.platform import exact_json


class OrderedJSON(models.JSONField):
    def db_type(self, connection: BaseDatabaseWrapper) -> str:
        return "json"

    def select_format(self, compiler: Any, sql: str, params: Any) -> tuple[str, Any]:
        return f"{sql}::text", params  # as text: psycopg would parse JSON and lose digits

    def get_db_prep_value(self, value: Any, connection: BaseDatabaseWrapper, prepared: bool = False) -> Any:  # noqa: FBT001, FBT002 - Django's signature
        return value if value is None or hasattr(value, "resolve_expression") else Json(value, dumps=exact_json.dumps)

    def from_db_value(self, value: Any, *_args: Any) -> Any:
        return exact_json.loads(value) if isinstance(value, str) else value
