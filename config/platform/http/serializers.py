"""Base class of input serializers, and fields without type coercion."""

import re
from collections.abc import Iterator, Mapping
from datetime import date
from itertools import islice
from typing import Any

from drf_spectacular.utils import extend_schema_field
from rest_framework import serializers
from rest_framework.exceptions import ErrorDetail, ValidationError
from rest_framework.settings import api_settings

from config.platform.http.problems import MAX_ERRORS

MAX_NAME = 100
CONTROL = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029]")  # control characters and line separators
DATE = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}")
INVALID_DATE = "Must be a date written YYYY-MM-DD."


class StrictSerializer(serializers.Serializer[Any]):
    """A serializer that rejects unknown and read-only fields.

    An unknown field causes the error `unknown_field` at `/name`, and a field that only the server sets `read_only`.
    Both are returned with the errors of known fields, so that a client can fix all errors at once. Subclasses
    extend `refused` to check combinations of fields; DRF calls `validate` only if all fields are valid.
    """

    @classmethod
    def read(cls, data: Any) -> Any:
        """Return the validated data. Raises ValidationError."""
        serializer = cls(data=data)
        serializer.is_valid(raise_exception=True)
        return serializer.validated_data

    def to_internal_value(self, data: Any) -> Any:
        refused = dict(islice(self.refused(data), MAX_ERRORS)) if isinstance(data, Mapping) else {}
        try:
            value = super().to_internal_value(data)
        except ValidationError as error:
            if isinstance(error.detail, dict):
                raise ValidationError(merge_errors(error.detail, refused)) from None
            raise
        if refused:
            raise ValidationError(refused)
        return value

    def refused(self, data: Mapping[str, Any]) -> Iterator[tuple[str, list[ErrorDetail]]]:
        for name in data:
            field = self.fields.get(name)
            if field is None:
                yield str(name)[:MAX_NAME], [ErrorDetail("Unknown field.", code="unknown_field")]
            elif field.read_only:
                yield name, [ErrorDetail("This field is set by the server.", code="read_only")]


def merge_errors(errors: Mapping[str, Any], refused: Mapping[str, list[ErrorDetail]]) -> dict[str, Any]:
    """Merge errors by field. Errors of a whole field do not replace the errors inside it."""
    whole = api_settings.NON_FIELD_ERRORS_KEY
    together = {**errors, **refused}
    for name in errors.keys() & refused.keys():
        parts = errors[name] if isinstance(errors[name], Mapping) else {whole: errors[name]}
        together[name] = {**parts, whole: [*refused[name], *parts.get(whole, [])]}
    return together


class EmptyBody(StrictSerializer):
    """An empty body, or an object without fields."""


# ---- Fields ---------------------------------------------------------------------------------------------------------


class Text(serializers.CharField):
    """A JSON string. Numbers are not converted, and white space is not trimmed."""

    def __init__(self, **options: Any) -> None:
        super().__init__(trim_whitespace=False, **options)

    def to_internal_value(self, data: Any) -> str:
        if not isinstance(data, str):
            self.fail("invalid")
        return str(super().to_internal_value(data))


class FilledText(Text):
    """A string that contains more than white space."""

    def to_internal_value(self, data: Any) -> str:
        text = super().to_internal_value(data)
        if not text.strip():
            self.fail("blank")
        return text


class StrictBoolean(serializers.BooleanField):
    """A boolean. Unlike DRF's field, it does not accept "yes" or 1."""

    def to_internal_value(self, data: Any) -> bool:
        if not isinstance(data, bool):
            self.fail("invalid", input=data)
        return data


class WholeNumber(serializers.IntegerField):
    """A JSON integer. It does not accept "3", 3.0, or true."""

    def to_internal_value(self, data: Any) -> int:
        if isinstance(data, bool) or not isinstance(data, int):
            self.fail("invalid")
        return super().to_internal_value(data)


@extend_schema_field({"type": "string", "format": "date"})
class DayField(serializers.Field[date, Any, str, Any]):
    """A date in the format YYYY-MM-DD. Python would also accept 20130215 and 2013-W07-5."""

    default_error_messages = {"invalid": INVALID_DATE}

    def to_internal_value(self, data: Any) -> date:
        day = as_day(data)
        if day is None:
            self.fail("invalid")
        return day


def check_order(data: Mapping[str, Any]) -> Iterator[tuple[str, list[ErrorDetail]]]:
    """Yield the error of a `dateTo` that is before `dateFrom`, for `refused` of filters."""
    first, last = as_day(data.get("dateFrom")), as_day(data.get("dateTo"))
    if first and last and last < first:
        yield "dateTo", [ErrorDetail("Must not be before dateFrom.", code="invalid")]


def as_day(data: Any) -> date | None:
    if not isinstance(data, str) or not DATE.fullmatch(data):
        return None
    try:
        return date.fromisoformat(data)
    except ValueError:
        return None
