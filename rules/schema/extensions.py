"""Extension keywords of schemas. They control checks of results, and how the pieces of a long document are merged.

Validators ignore these keywords, so this module reports invalid uses, which would otherwise have no effect.
"""

from collections.abc import Iterator
from typing import Any

from config.platform.http.pointers import join, tokens
from config.platform.http.problems import InputError
from rules.schema.subschemas import ITEM, MEMBER, Parts, refusal

CODE = "invalid_extension"
REQUIRE_COMPLETE = "x-require-complete"
# The values of `x-merge`, and the types that each value supports. Schemas without a type support all values.
LISTS, TEXTS = frozenset({"array"}), frozenset({"string"})
NUMBERS = frozenset({"number", "integer"})
ONE_VALUE = NUMBERS | TEXTS | {"boolean", "object"}
MERGES = {
    "concat": LISTS | TEXTS,
    "unique": LISTS,
    "first": ONE_VALUE,
    "last": ONE_VALUE,
    "max": NUMBERS | TEXTS,
    "error": ONE_VALUE,
}


def extension_errors(parts: Parts) -> Iterator[InputError]:
    """Yield the errors of extension keywords. Raises TooManyEvaluations if following paths takes too many steps."""
    for pointer, part in parts.parts.items():
        for name, check in CHECKS.items():
            if name in part.schema and (detail := check(parts, pointer, part.schema[name])):
                yield refusal(join(pointer, name), CODE, detail)


def merge_error(parts: Parts, pointer: str, value: Any) -> str:
    if not isinstance(value, str) or value not in MERGES:
        return f"Must be one of: {', '.join(MERGES)}."
    kinds = kinds_of(parts, pointer)
    if kinds - MERGES[value]:
        supported = ", ".join(name for name, allowed in MERGES.items() if not kinds - allowed)
        return f"The type supports: {supported or 'no value'}."
    if value == "max" and "string" in kinds and parts.parts[pointer].schema.get("format") not in ("date", "date-time"):
        return "Only numbers and strings with the format date or date-time have a maximum."
    return ""


def key_error(parts: Parts, pointer: str, value: Any) -> str:
    names = value if isinstance(value, list) else [value]
    if not names or not all(isinstance(name, str) and name for name in names):
        return "Must be the name of a member of the items, or a list of names."
    items = reached(parts, [pointer], ITEM) if "array" in kinds_of(parts, pointer) else [pointer]
    known = {name for each in applied(parts, items) for name in parts.parts[each].schema.get("properties") or ()}
    missing = [name for name in names if known and name not in known]
    return f"The items have no member {missing[0]!r}." if missing else ""


def sum_error(parts: Parts, pointer: str, value: Any) -> str:
    if not isinstance(value, str) or not value.startswith("/"):
        return "Must be a JSON Pointer from the root of the result, with * for all items: /items/*/amount."
    if kinds_of(parts, pointer) - NUMBERS - TEXTS:
        return "Only numbers, and strings that are numbers, can be sums."
    places = [""]
    for token in tokens(value):
        places = reached(parts, places, ITEM) if token == "*" else reached(parts, places, MEMBER, token)
    if not places:
        return "Does not lead to a member of the schema."
    if any(kinds_of(parts, place) - NUMBERS - TEXTS for place in places):
        return "Must lead to numbers."
    return ""


def complete_error(_parts: Parts, pointer: str, value: Any) -> str:
    return "" if isinstance(value, bool) and not pointer else "Must be true or false, at the root of the schema."


CHECKS = {
    "x-merge": merge_error,
    "x-merge-key": key_error,
    "x-sum-of": sum_error,
    REQUIRE_COMPLETE: complete_error,
}


# ---- Paths through a schema -----------------------------------------------------------------------------------------
def applied(parts: Parts, pointers: list[str]) -> list[str]:
    """Return these parts and all parts that apply to the same value, by references too. Raises TooManyEvaluations."""
    found = dict.fromkeys(pointers)
    waiting = list(found)
    while waiting:
        parts.count_steps(len(parts.parts[waiting[-1]].steps))
        new = [target for target in parts.parts[waiting.pop()].applied if target not in found]
        found |= dict.fromkeys(new)
        waiting += new
    return list(found)


def reached(parts: Parts, pointers: list[str], kind: str, name: str | None = None) -> list[str]:
    """Return the parts that apply to the items, or to the member with this name."""
    steps = [step for pointer in applied(parts, pointers) for step in parts.parts[pointer].inner]
    return [step.target for step in steps if step.applies_to(kind, name)]


def kinds_of(parts: Parts, pointer: str) -> frozenset[str]:
    """Return the types that a part allows, except null, or an empty set if it does not restrict the type."""
    kinds = (parts.parts[each].schema.get("type") for each in applied(parts, [pointer]))
    named = next((kind for kind in kinds if kind is not None), ())
    return frozenset([named] if isinstance(named, str) else named) - {"null"}
