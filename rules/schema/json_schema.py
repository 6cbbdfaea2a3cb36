"""Validation of users' JSON Schemas when a rule is saved, and of language models' responses against them.

The schemas are untrusted input to a library that could fetch remote references and cannot be interrupted. So remote
references are refused, patterns match in linear time (no look-around, no back-references), and a schema that would take
too much time or memory is refused before it is compiled (`rules/schema/subschemas.py`).

`format` is enforced: a schema with `"format": "date"` accepts only dates.
"""

import json
import threading
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from decimal import Decimal
from functools import lru_cache
from itertools import islice
from typing import Any

import jsonschema_rs
from jsonschema_rs import ValidationError

from config.platform import exact_json
from config.platform.exact_json import Number
from config.platform.http.pointers import join
from config.platform.http.problems import MAX_ERRORS, MAX_POINTER, InputError
from rules.schema import subschemas
from rules.schema.extensions import extension_errors
from rules.schema.messages import message, pointer_to, specific_errors
from rules.schema.subschemas import MAX_LEVELS, Part, Parts, refusal

SCHEMA_POINTER = "/json_schema"  # of the schema in the body of a request or in a rule file
MAX_PATTERNS = 50
MAX_DIGITS, MAX_EXPONENT = 100, 500  # of a number
MAX_PLAIN = 50  # digits of a number without an exponent
# Maximum number of evaluations (15 µs and 400 bytes each) to list all errors. Above it, only the first one is reported.
MAX_WORK = 100_000
METASCHEMA_EVALUATIONS = 50
# A pattern that exceeds these limits, such as `(\w{9}){999}`, is refused. Compiling a pattern can take milliseconds.
PATTERNS = jsonschema_rs.RegexOptions(size_limit=1024 * 1024, dfa_size_limit=1024 * 1024)
DRAFTS = {
    uri.rstrip("#"): uri
    for uri in (
        "https://json-schema.org/draft/2020-12/schema",
        "https://json-schema.org/draft/2019-09/schema",
        "http://json-schema.org/draft-07/schema#",
        "http://json-schema.org/draft-06/schema#",
        "http://json-schema.org/draft-04/schema#",
    )
}
# A check holds the GIL for up to half a second. The lock prevents checks in all threads from blocking the process.
check_lock = threading.RLock()
LATEST = "https://json-schema.org/draft/2020-12/schema"
TYPES = ("array", "boolean", "integer", "null", "number", "object", "string")


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """Limits of a schema.

    `size`: bytes of compact JSON. `depth`: levels of JSON. `evaluations`: of a single value; typical schemas need tens
    or hundreds. `pointers`: characters of the JSON Pointers to all values, which checks and the library store for each
    part. Under a name of 30,000 characters, ten thousand parts would take gigabytes.
    """

    size: int
    depth: int
    evaluations: int
    pointers: int


SAVED = Bounds(size=64 * 1024, depth=32, evaluations=5_000, pointers=2_000_000)
# Strategies derive larger schemas from saved ones, for example for a piece of a document.
APPLIED = Bounds(size=256 * 1024, depth=96, evaluations=20_000, pointers=16_000_000)


class SchemaRefused(ValueError):
    """The schema has errors, which `check` returns."""


# ---- Interface ------------------------------------------------------------------------------------------------------


def check(schema: Any, *, bounds: Bounds = SAVED) -> list[InputError]:
    """Return the errors of a schema, at most MAX_ERRORS. Pointers start at the rule, such as `/json_schema/type`."""
    try:
        with check_lock:
            found = next((errors for errors in map(list, check_results(schema, bounds)) if errors), [])
    except subschemas.TooManyEvaluations:
        detail = f"The schema is too complex: validating one value could take more than {bounds.evaluations:,} steps."
        found = [refusal("", "too_complex", detail)]
    except (RecursionError, ValueError):  # raised by the library in cases that the bounds do not cover
        found = [refusal("", "invalid", "This JSON Schema cannot be used.")]
    return [
        InputError(pointer=(SCHEMA_POINTER + error.pointer)[:MAX_POINTER], code=error.code, detail=error.detail)
        for error in found[:MAX_ERRORS]
    ]


def errors(schema: dict[str, Any], instance: Any, limit: int = 20) -> list[tuple[str, str]]:
    """Return the errors of an instance, such as `[("/items/0/total", "Must be of type number.")]`.

    The messages quote the schema and the names of the instance's members, but not its values. Raises SchemaRefused for
    a schema that does not pass `check`.
    """
    if exact_json.nested_deeper(instance, MAX_LEVELS):
        return [("", f"Must not be nested deeper than {MAX_LEVELS} levels.")]
    compiled = compiled_from(canonical(schema))
    found = all_errors(compiled.validator, as_decimals(instance), evaluations=compiled.evaluations)
    messages = ((pointer_to(error), message(error)) for each in found for error in specific_errors(each))
    return list(islice(dict.fromkeys(messages), limit))


def canonical(schema: Any) -> str:
    """Return a schema as canonical JSON: equal schemas have equal texts. 1 equals 1.0, but not true."""
    return exact_json.dumps(with_canonical_numbers(schema), is_sorted=True).decode()


# ---- Checking -------------------------------------------------------------------------------------------------------


def check_results(schema: Any, bounds: Bounds) -> Iterator[Iterable[InputError]]:
    """Yield the errors of each check. Each check needs a schema that has passed the previous ones."""
    yield size_errors(schema, bounds)
    yield remote_references(schema, "")
    yield draft_errors(schema)
    parts = Parts(schema)
    yield [*parts.problems, *pattern_errors(parts)]
    yield complexity_errors(parts, bounds)
    yield extension_errors(parts) if bounds is SAVED else ()  # not for rules that were saved before these checks
    yield compile_errors(schema)


def size_errors(schema: Any, bounds: Bounds) -> Iterator[InputError]:
    if not isinstance(schema, dict):
        yield refusal("", "invalid", "Must be a JSON Schema, which is an object.")
    elif exact_json.nested_deeper(schema, bounds.depth):
        yield refusal("", "too_deep", f"Must not be nested deeper than {bounds.depth} levels.")
    elif pointer := next(long_numbers(schema), None):
        detail = f"Numbers must not have more than {MAX_DIGITS} digits, or an exponent beyond ±{MAX_EXPONENT}."
        yield refusal(pointer, "too_large", detail)
    elif (size := compact_size(schema)) > bounds.size:
        yield refusal("", "too_large", f"Has {size:,} bytes as compact JSON; the limit is {bounds.size:,}.")
    elif pointers_size(schema, 0) > bounds.pointers:
        yield refusal("", "too_complex", "The schema is too complex: too many parts are nested under long names.")
    elif "$schema" in schema and draft_of(schema) is None:
        yield refusal("/$schema", "unknown_draft", f"Must be one of: {', '.join(DRAFTS)}.")


def long_numbers(value: Any, pointer: str = "") -> Iterator[str]:
    """Yield the pointers to numbers that are too long for fast comparisons by the library."""
    if isinstance(value, dict | list):
        for name, inside in value.items() if isinstance(value, dict) else enumerate(value):
            yield from long_numbers(inside, join(pointer, name))
    elif isinstance(value, Decimal):
        _, digits, exponent = value.as_tuple()
        if len(digits) > MAX_DIGITS or abs(int(exponent)) > MAX_EXPONENT:
            yield pointer


def compact_size(schema: Any) -> int:
    """Return the size of a schema as compact JSON, in bytes. Decimals count as strings."""
    return len(json.dumps(schema, separators=(",", ":"), ensure_ascii=False, default=str).encode(errors="replace"))


def pointers_size(value: Any, length: int) -> int:
    """Return the total length of the pointers to all values in a value, whose own pointer has this length."""
    if isinstance(value, dict):
        return length + sum(pointers_size(inside, length + 1 + len(name)) for name, inside in value.items())
    if isinstance(value, list):
        return length + sum(pointers_size(inside, length + 1 + len(str(n))) for n, inside in enumerate(value))
    return length


def remote_references(value: Any, pointer: str, *, names: bool = False) -> Iterator[InputError]:
    """Yield the errors of references to other schemas.

    Also checks places that validators ignore, because servers of language models receive the schema too. Data such as
    `enum` is not checked. `names`: the members are names, such as those of properties, instead of keywords.
    """
    if isinstance(value, list):
        for index, inside in enumerate(value):
            yield from remote_references(inside, join(pointer, index))
    if not isinstance(value, dict):
        return
    for name, inside in value.items():
        place = join(pointer, name)
        if name in subschemas.REFERENCES and isinstance(inside, str) and not inside.startswith("#"):
            yield refusal(place, "remote_reference", "Must begin with #. Remote schemas are not fetched.")
        elif names or name not in subschemas.DATA:
            yield from remote_references(inside, place, names=not names and name in subschemas.MAPS)


def draft_errors(schema: dict[str, Any]) -> Iterator[InputError]:
    """Yield the violations of the draft's metaschema, one per position."""
    broken = all_errors(dialect(draft_of(schema) or LATEST), as_decimals(schema), evaluations=METASCHEMA_EVALUATIONS)
    found = {pointer_to(error): error for error in reversed(list(broken))}
    for pointer, error in sorted(found.items()):
        is_type = error.schema_path[-3:] == ["properties", "type", "anyOf"]  # the keyword, not a property of this name
        detail = f"Must be one of {', '.join(TYPES)}, or a list of different ones." if is_type else message(error)
        yield refusal(pointer, "invalid_schema", detail)


def pattern_errors(parts: Parts) -> Iterator[InputError]:
    patterns = [(pointer, text) for start, part in parts.parts.items() for pointer, text in patterns_in(part, start)]
    if len(patterns) > MAX_PATTERNS:
        yield refusal("", "too_many_patterns", f"Must not have more than {MAX_PATTERNS} patterns.")
        return
    for pointer, pattern in patterns:
        try:
            jsonschema_rs.Draft202012Validator({"pattern": pattern}, pattern_options=PATTERNS, offline=True)
        except ValueError:
            detail = "Must be a regular expression of moderate size, without look-around or back-references."
            yield refusal(pointer, "invalid_pattern", detail)


def patterns_in(part: Part, pointer: str) -> Iterator[tuple[str, str]]:
    if isinstance(pattern := part.schema.get("pattern"), str):
        yield f"{pointer}/pattern", pattern
    if isinstance(members := part.schema.get("patternProperties"), dict):
        yield from ((join(f"{pointer}/patternProperties", pattern), pattern) for pattern in members)


def complexity_errors(parts: Parts, bounds: Bounds) -> Iterator[InputError]:
    try:
        subschemas.evaluations(parts, limit=bounds.evaluations)
    except subschemas.InfiniteRecursion as recursion:
        yield refusal(recursion.pointer, "endless", "This reference leads back to itself for the same value.")


def compile_errors(schema: dict[str, Any]) -> Iterator[InputError]:
    try:
        compile_schema(schema)
    except ValidationError as error:
        yield refusal(pointer_to(error), "invalid_schema", "This part of the schema cannot be used.")


# ---- Compiling ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Compiled:
    """A compiled schema. `evaluations`: the maximum number of evaluations of a single value."""

    validator: jsonschema_rs.Validator
    evaluations: int


@lru_cache(maxsize=128)  # schemas of at most 256 KB, see APPLIED
def compiled_from(text: str) -> Compiled:
    schema = exact_json.loads(text)
    if check(schema, bounds=APPLIED):
        raise SchemaRefused("The schema does not pass the check.")
    return Compiled(
        validator=compile_schema(schema), evaluations=subschemas.evaluations(Parts(schema), limit=APPLIED.evaluations)
    )


def compile_schema(schema: dict[str, Any]) -> jsonschema_rs.Validator:
    """Compile a schema without the root's `$id`, by which the library may know another schema."""
    nameless = {name: inside for name, inside in schema.items() if name not in ("$id", "id")}
    return jsonschema_rs.validator_for(
        as_decimals(nameless), offline=True, validate_formats=True, pattern_options=PATTERNS
    )


@lru_cache
def dialect(uri: str) -> jsonschema_rs.Validator:
    """Return the validator of a draft's metaschema, which the library includes."""
    return jsonschema_rs.validator_for({"$schema": uri, "$ref": uri}, offline=True)


def draft_of(schema: dict[str, Any]) -> str | None:
    """Return the URI of a schema's draft, by default the latest, or None if the draft is unknown."""
    named = schema.get("$schema", LATEST)
    return DRAFTS.get(named.removesuffix("#")) if isinstance(named, str) else None


# ---- Values ---------------------------------------------------------------------------------------------------------


def levels_of(value: Any) -> int:
    """Return the number of nested levels of objects and lists, or one more than the limit if there are more."""
    too_many = SAVED.depth + 1
    return next((levels for levels in range(too_many) if not exact_json.nested_deeper(value, levels)), too_many)


def size_of(value: Any) -> int:
    """Return the number of values in a value, including itself. The nesting must be limited: see `nested_deeper`."""
    if isinstance(value, dict):
        return 1 + sum(map(size_of, value.values()))
    return 1 + sum(map(size_of, value)) if isinstance(value, list) else 1


def with_canonical_numbers(value: Any) -> Any:
    """Return a value whose equal numbers, such as 1 and 1.0, have the same text."""
    if isinstance(value, dict):
        return {name: with_canonical_numbers(inside) for name, inside in value.items()}
    if isinstance(value, list):
        return [with_canonical_numbers(inside) for inside in value]
    if isinstance(value, bool) or not isinstance(value, int | float | Decimal):
        return value
    number = Decimal(str(value))
    is_small = number == number.to_integral_value() and number.adjusted() < exact_json.MAX_INTEGER_LENGTH
    if is_small:
        return int(number)
    short = exact_json.comparable(number)
    return Number(format(Decimal(short), "f") if abs(number.adjusted()) < MAX_PLAIN else short)


def as_decimals(value: Any) -> Any:
    """Return a value with exact Decimals instead of subclasses, which the library does not accept."""
    if isinstance(value, dict):
        return {name: as_decimals(inside) for name, inside in value.items()}
    if isinstance(value, list):
        return [as_decimals(inside) for inside in value]
    return Decimal(value) if isinstance(value, Decimal) else value


def all_errors(validator: jsonschema_rs.Validator, instance: Any, *, evaluations: int) -> Iterator[ValidationError]:
    """Yield the errors, or only the first one if the complete list could take too long.

    The library collects all errors before it returns the first one.
    """
    if validator.is_valid(instance):
        return
    if evaluations * size_of(instance) <= MAX_WORK:
        yield from validator.iter_errors(instance)
        return
    try:
        validator.validate(instance)
    except ValidationError as error:
        yield error
