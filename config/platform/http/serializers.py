"""The base of every serializer that reads input, and fields that take nothing for what it is not."""

from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Any

from rest_framework import serializers
from rest_framework.exceptions import ErrorDetail, ValidationError
from rest_framework.settings import api_settings

from config.platform.http.problems import MAX_ERRORS

MAX_NAME = 100


class StrictSerializer(serializers.Serializer[Any]):
    """A serializer that refuses what it would otherwise ignore.

    A field it does not know is an error, `unknown_field` at `/name`; one that only the server sets is `read_only`.
    They are told together with the errors of the known fields, so that a client mends a request in one round. So is
    what a subclass's `refused` finds wrong between fields; `validate` would only be asked once all of them are good.
    """

    def to_internal_value(self, data: Any) -> Any:
        refused = dict(islice(self.refused(data), MAX_ERRORS)) if isinstance(data, Mapping) else {}
        try:
            value = super().to_internal_value(data)
        except ValidationError as error:
            if isinstance(error.detail, dict):
                raise ValidationError(merged(error.detail, refused)) from None
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


def merged(inside: Mapping[str, Any], refused: Mapping[str, list[ErrorDetail]]) -> dict[str, Any]:
    """Put errors by field together. What is wrong with a whole field hides nothing of what is wrong inside it."""
    whole = api_settings.NON_FIELD_ERRORS_KEY
    together = {**inside, **refused}
    for name in inside.keys() & refused.keys():
        parts = inside[name] if isinstance(inside[name], Mapping) else {whole: inside[name]}
        together[name] = {**parts, whole: [*refused[name], *parts.get(whole, [])]}
    return together


class Nothing(StrictSerializer):
    """The body of actions that take none: an empty one, or an object without fields."""

    @classmethod
    def read(cls, data: Any) -> None:
        cls(data=data).is_valid(raise_exception=True)


# ---- Fields ---------------------------------------------------------------------------------------------------------


class Text(serializers.CharField):
    """A string as it is: no number is taken for one, and no white space is cut off."""

    def __init__(self, **options: Any) -> None:
        super().__init__(trim_whitespace=False, **options)

    def to_internal_value(self, data: Any) -> str:
        if not isinstance(data, str):
            self.fail("invalid")
        return str(super().to_internal_value(data))


class FilledText(Text):
    """One that is not just white space."""

    def to_internal_value(self, data: Any) -> str:
        text = super().to_internal_value(data)
        if not text.strip():
            self.fail("blank")
        return text


class WholeNumber(serializers.IntegerField):
    """An integer in JSON: neither "3" nor 3.0 nor true."""

    def to_internal_value(self, data: Any) -> int:
        if isinstance(data, bool) or not isinstance(data, int):
            self.fail("invalid")
        return super().to_internal_value(data)
