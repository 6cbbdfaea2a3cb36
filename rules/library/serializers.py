"""Serializers that validate rules, with an error for each invalid field."""

from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

from django.conf import settings
from drf_spectacular.utils import extend_schema_field
from rest_framework import serializers
from rest_framework.exceptions import ErrorDetail, ValidationError

from config.platform.http.problems import BadInput, InputError, input_errors
from config.platform.http.serializers import FilledText, StrictBoolean, StrictSerializer, Text
from rules.library.editing import SCHEMA_REQUIRED
from rules.models import LLM, WITH_SCHEMA
from rules.schema import json_schema

MAX_NAME = 200
MAX_TEXT = 32 * 1024  # characters of a description or a prompt
SET_BY_SERVER = ("rule_id", "version", "is_system", "created_at", "updated_at")


@extend_schema_field({"type": "object", "additionalProperties": True})
class SchemaField(serializers.Field[Any, Any, Any, Any]):
    """A JSON Schema. `RuleSerializer.read` checks it, because its errors need pointers into the schema."""

    default_error_messages: ClassVar = {"invalid": "Must be a JSON Schema, which is an object."}

    def to_internal_value(self, data: Any) -> Any:
        return data

    def to_representation(self, value: Any) -> Any:
        return value


class ModeField(serializers.ChoiceField):
    """One of ETL_POSTPROCESSORS. The setting is read when a serializer is created."""

    def __init__(self, **options: Any) -> None:
        super().__init__(choices=list(settings.ETL_POSTPROCESSORS), **options)


class RuleSerializer(StrictSerializer):
    """The content of a rule in a request."""

    name = FilledText(max_length=MAX_NAME)
    description = Text(max_length=MAX_TEXT, allow_blank=True, default="")
    json_schema = SchemaField(
        allow_null=True,
        default=None,
        help_text="The schema of results. Required when postprocess_mode is llm or einvoice.",
    )
    system_prompt = Text(max_length=MAX_TEXT, allow_blank=True, default="")
    postprocess_mode = ModeField(default=LLM)
    postprocess_strategy = serializers.ChoiceField(
        choices=list(settings.ETL_STRATEGIES),
        allow_null=True,
        allow_blank=True,
        default=None,
        help_text="Null: chosen by the length of the document.",
    )
    require_complete = StrictBoolean(
        default=False,
        help_text="Whether a task fails with `incomplete_document` if pages are missing or uncertain, and with "
        "`schema_validation` if list items do not match the schema.",
    )

    @classmethod
    def read(cls, data: Any, *, partial: bool = False) -> dict[str, Any]:
        """Return the validated values: all fields with defaults filled in or, with `partial`, only those in `data`.

        Raises BadInput with a pointer for each error, also for errors inside the schema.
        """
        serializer = cls(data=data, partial=partial)
        found: list[InputError] = []
        try:
            serializer.is_valid(raise_exception=True)
        except ValidationError as error:
            found += input_errors(error.detail)
        if isinstance(data, Mapping) and data.get("json_schema") is not None:
            found += json_schema.check(data["json_schema"])
        if found:
            raise BadInput(*found)
        values = dict(serializer.validated_data)
        if "postprocess_strategy" in values:
            values["postprocess_strategy"] = values["postprocess_strategy"] or ""
        return values

    def refused(self, data: Mapping[str, Any]) -> Iterator[tuple[str, list[ErrorDetail]]]:
        for name, errors in super().refused(data):
            is_read_only = name in SET_BY_SERVER
            yield name, [ErrorDetail("This field is set by the server.", code="read_only")] if is_read_only else errors
        mode = data.get("postprocess_mode", LLM)
        if not self.partial and mode in WITH_SCHEMA and data.get("json_schema") is None:
            yield "json_schema", [ErrorDetail(SCHEMA_REQUIRED.detail, code=SCHEMA_REQUIRED.code)]
