"""OpenAPI schemas of response bodies, derived from the TypedDicts that views return.

A body is declared once. mypy checks the function that builds it, and drf-spectacular uses a serializer that is
generated from the same class. Nothing here runs during a request.

    class Chunk(TypedDict):
        key: str
        status: Annotated[str, choices(ChunkStatus)]
        rows: Annotated[int | None, "Null until the chunk is done."]
        checksum: Annotated[str, ChecksumField] | None

In `Annotated`, a string is the description, and a callable creates the serializer field.
"""

from collections.abc import Callable
from datetime import date, datetime
from functools import cache, partial
from types import UnionType
from typing import Annotated, Any, NotRequired, Union, get_args, get_origin, get_type_hints, is_typeddict

from drf_spectacular.utils import OpenApiResponse, extend_schema_field
from rest_framework import serializers


@extend_schema_field({"type": "string", "format": "uri-reference"})
class PathField(serializers.CharField):
    """A path on this server."""


Path = Annotated[str, PathField]
Url = Annotated[str, serializers.URLField]
Uuid = Annotated[str, serializers.UUIDField]
FIELDS: dict[Any, Callable[..., serializers.Field]] = {
    bool: serializers.BooleanField,
    date: serializers.DateField,
    datetime: serializers.DateTimeField,
    float: serializers.FloatField,
    int: serializers.IntegerField,
    str: serializers.CharField,
}


def choices(values: Any) -> Callable[..., serializers.Field]:
    """Return an annotation for a string with a fixed set of values: Django's `Choices`, or a list."""
    return partial(serializers.ChoiceField, choices=getattr(values, "choices", values))


def as_serializer(body: Any) -> Any:
    """Convert a TypedDict, or a list of one, to its serializer, also inside an OpenApiResponse."""
    if isinstance(body, OpenApiResponse):
        return OpenApiResponse(as_serializer(body.response), body.description, body.examples)
    if get_origin(body) is list:
        return serializer_of(get_args(body)[0])(many=True)
    return serializer_of(body) if is_typeddict(body) else body


@cache  # drf-spectacular identifies a component by its class
def serializer_of(shape: type) -> type[serializers.Serializer]:
    fields = {name: field_of(hint) for name, hint in get_type_hints(shape, include_extras=True).items()}
    return type(shape.__name__, (serializers.Serializer,), {**fields, "__doc__": shape.__doc__})


def field_of(hint: Any) -> serializers.Field:
    hint, notes, options = unwrap(hint)
    for note in notes:
        if isinstance(note, str):
            options["help_text"] = note
    make: Any = next(filter(callable, notes), None) or maker_of(hint)
    field: serializers.Field = make(**options)
    return field


def unwrap(hint: Any) -> tuple[Any, list[Any], dict[str, Any]]:
    """Return the type inside `Annotated`, `NotRequired` and `| None`, with its annotations and field options."""
    notes: list[Any] = []
    options: dict[str, Any] = {}
    while (origin := get_origin(hint)) in (Annotated, NotRequired, Union, UnionType):
        first, *rest = get_args(hint)
        if origin is Annotated:
            notes = [*rest, *notes]
        elif origin is NotRequired:
            options["required"] = False
        else:
            options["allow_null"] = True
        hint = first  # `None` is last
    return hint, notes, options


def maker_of(hint: Any) -> Callable[..., serializers.Field]:
    inside = get_args(hint)
    if is_typeddict(hint):
        return serializer_of(hint)
    if get_origin(hint) is dict:
        return serializers.DictField if inside[1] is Any else partial(serializers.DictField, child=field_of(inside[1]))
    if get_origin(hint) is list and is_typeddict(inside[0]):
        return partial(serializer_of(inside[0]), many=True)
    if get_origin(hint) is list:
        return partial(serializers.ListField, child=field_of(inside[0]))
    return FIELDS[hint]
