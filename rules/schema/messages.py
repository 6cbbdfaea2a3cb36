"""Messages of validation errors. Unlike those of the library, they do not quote values, which may be private.

Language models receive the messages too, to correct a response. So a message describes the correct value.
"""

from collections.abc import Callable, Iterable
from decimal import Decimal
from typing import Any

from jsonschema_rs import ValidationError
from jsonschema_rs import ValidationErrorKind as Kind

from config.platform import exact_json
from config.platform.exact_json import Number
from config.platform.http.pointers import join
from config.platform.plurals import counted

MISSING = "The member "
NOT_ALLOWED = "Must not have these members: "
MAX_NAMES = 10
MAX_MESSAGE = 300
# Messages by keyword. The argument is the `kind` of the library's error.
MESSAGES: dict[str, Callable[[Any], str]] = {
    "type": lambda kind: f"Must be of type {' or '.join(kind.types)}.",
    "required": lambda kind: f"{MISSING}{kind.property!r} is missing.",
    **dict.fromkeys(
        ("additionalProperties", "unevaluatedProperties"),
        lambda kind: f"{NOT_ALLOWED}{join_names(kind.unexpected)}.",
    ),
    **dict.fromkeys(("additionalItems", "unevaluatedItems"), lambda _kind: "Has too many items."),
    "minimum": lambda kind: f"Must be at least {kind.value}.",
    "maximum": lambda kind: f"Must be at most {kind.value}.",
    "exclusiveMinimum": lambda kind: f"Must be more than {kind.value}.",
    "exclusiveMaximum": lambda kind: f"Must be less than {kind.value}.",
    "multipleOf": lambda kind: f"Must be a multiple of {kind.value}.",
    "minLength": lambda kind: f"Must have at least {counted(kind.value, 'character')}.",
    "maxLength": lambda kind: f"Must have at most {counted(kind.value, 'character')}.",
    "minItems": lambda kind: f"Must have at least {counted(kind.value, 'item')}.",
    "maxItems": lambda kind: f"Must have at most {counted(kind.value, 'item')}.",
    "minProperties": lambda kind: f"Must have at least {counted(kind.value, 'member')}.",
    "maxProperties": lambda kind: f"Must have at most {counted(kind.value, 'member')}.",
    "pattern": lambda kind: f"Must match the pattern {kind.value}",
    "format": lambda kind: f"Must be in the format {kind.value}.",
    "const": lambda kind: f"Must be {as_json(kind.value)}.",
    "enum": lambda kind: f"Must be one of: {', '.join(map(as_json, kind.value))}",
    "uniqueItems": lambda _kind: "Must not contain duplicate items.",
    "contains": lambda _kind: "Must have an item that matches the schema in `contains`.",
    "propertyNames": lambda _kind: "Has a member whose name is not allowed.",
    "not": lambda _kind: "Must not match the schema in `not`.",
    **dict.fromkeys(("anyOf", "oneOf"), lambda kind: f"Matches none of the alternatives in `{kind.name}`."),
    "falseSchema": lambda _kind: "Is not allowed here.",
}


def message(error: ValidationError) -> str:
    """Return a sentence such as `Must be of type number.` with at most MAX_MESSAGE characters."""
    kind = error.kind
    if isinstance(kind, Kind.OneOfMultipleValid):
        return "Matches more than one of the alternatives in `oneOf`."
    template = MESSAGES.get(kind.name)
    return (template(kind) if template else f"Violates `{kind.name}`.")[:MAX_MESSAGE]


def as_json(value: Any) -> str:
    return exact_json.dumps(with_exact_numbers(value)).decode()


def with_exact_numbers(value: Any) -> Any:
    """Return a value from the library with its numbers as `Number`, which is serialized without loss."""
    if isinstance(value, dict):
        return {name: with_exact_numbers(inside) for name, inside in value.items()}
    if isinstance(value, list):
        return [with_exact_numbers(inside) for inside in value]
    is_number = isinstance(value, int | Decimal) and not isinstance(value, bool)
    return Number(str(value)) if is_number else value


def join_names(names: Iterable[str]) -> str:
    quoted = [repr(name[:50]) for name in names]
    return ", ".join([*quoted[:MAX_NAMES], *(["…"] if len(quoted) > MAX_NAMES else [])])


def pointer_to(error: ValidationError) -> str:
    pointer = ""
    for token in error.instance_path:
        pointer = join(pointer, token)
    return pointer


def specific_errors(error: ValidationError) -> Iterable[ValidationError]:
    """Return the error, or the errors of the closest alternative if no alternative matches.

    "Matches none of the alternatives" would not help. The closest alternative allows the value's type, and has the
    fewest errors.
    """
    if not isinstance(error.kind, Kind.AnyOf | Kind.OneOfNotValid):
        return [error]
    candidates = [
        branch for branch in error.kind.context if branch and not any(is_other_type(each, error) for each in branch)
    ]
    if not candidates:
        return [error]
    return [inner for each in min(candidates, key=len) for inner in specific_errors(each)]


def is_other_type(inner: ValidationError, outer: ValidationError) -> bool:
    return isinstance(inner.kind, Kind.Type | Kind.Constant) and inner.instance_path == outer.instance_path
