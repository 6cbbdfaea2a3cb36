"""What is wrong with a value, in words of our own: the library's quote the value, and some of it is nobody's business.

Language models are told these, too, when they are asked again: they must say what would be right.
"""

import json
from collections.abc import Callable, Iterable
from typing import Any

from jsonschema_rs import ValidationError
from jsonschema_rs import ValidationErrorKind as Kind

from config.platform.http.pointers import join

MAX_NAMES = 10
MAX_WORDS = 300
# By what the schema asks for, from what the library says of the error.
WORDS: dict[str, Callable[[Any], str]] = {
    "type": lambda kind: f"Must be of type {' or '.join(kind.types)}.",
    "required": lambda kind: f"The member {kind.property!r} is missing.",
    **dict.fromkeys(
        ("additionalProperties", "unevaluatedProperties"),
        lambda kind: f"There may be no {listed(kind.unexpected)} here.",
    ),
    **dict.fromkeys(("additionalItems", "unevaluatedItems"), lambda _kind: "Has more items than there may be."),
    "minimum": lambda kind: f"Must be at least {kind.value}.",
    "maximum": lambda kind: f"Must be at most {kind.value}.",
    "exclusiveMinimum": lambda kind: f"Must be more than {kind.value}.",
    "exclusiveMaximum": lambda kind: f"Must be less than {kind.value}.",
    "multipleOf": lambda kind: f"Must be a multiple of {kind.value}.",
    "minLength": lambda kind: f"Must have at least {kind.value} characters.",
    "maxLength": lambda kind: f"Must have at most {kind.value} characters.",
    "minItems": lambda kind: f"Must have at least {kind.value} items.",
    "maxItems": lambda kind: f"Must have at most {kind.value} items.",
    "minProperties": lambda kind: f"Must have at least {kind.value} members.",
    "maxProperties": lambda kind: f"Must have at most {kind.value} members.",
    "pattern": lambda kind: f"Must match the pattern {kind.value}",
    "format": lambda kind: f"Must be in the format {kind.value}.",
    "const": lambda kind: f"Must be {written(kind.value)}.",
    "enum": lambda kind: f"Must be one of: {', '.join(map(written, kind.value))}",
    "uniqueItems": lambda _kind: "Must not have an item twice.",
    "contains": lambda _kind: "Must have an item of the kind in `contains`.",
    "propertyNames": lambda _kind: "Has a member whose name is not allowed.",
    "not": lambda _kind: "Must not fit the schema in `not`.",
    **dict.fromkeys(("anyOf", "oneOf"), lambda kind: f"Fits none of the alternatives in `{kind.name}`."),
    "falseSchema": lambda _kind: "Must not be there.",
}


def message(error: ValidationError) -> str:
    """Return a sentence such as `Must be of type number.`, at most MAX_WORDS characters."""
    kind = error.kind
    if isinstance(kind, Kind.OneOfMultipleValid):
        return "Fits more than one of the alternatives in `oneOf`."
    words = WORDS.get(kind.name)
    return (words(kind) if words else f"Does not fit `{kind.name}`.")[:MAX_WORDS]


def written(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def listed(names: Iterable[str]) -> str:
    first, *more = [repr(name[:50]) for name in names][: MAX_NAMES + 1]
    return ", ".join([first, *more[: MAX_NAMES - 1], *(["…"] if len(more) >= MAX_NAMES else [])])


def pointer_to(error: ValidationError) -> str:
    pointer = ""
    for token in error.instance_path:
        pointer = join(pointer, token)
    return pointer


def nearest(error: ValidationError) -> Iterable[ValidationError]:
    """Return the errors of the alternative that fits best, where none does: "fits none" is of no use to anybody.

    That is one that wants a value of this type, and of those the one with the fewest errors.
    """
    if not isinstance(error.kind, Kind.AnyOf | Kind.OneOfNotValid):
        return [error]
    wanted = [
        branch for branch in error.kind.context if branch and not any(is_other_kind(each, error) for each in branch)
    ]
    return [inner for each in min(wanted, key=len) for inner in nearest(each)] if wanted else [error]


def is_other_kind(inner: ValidationError, outer: ValidationError) -> bool:
    return isinstance(inner.kind, Kind.Type | Kind.Constant) and inner.instance_path == outer.instance_path
