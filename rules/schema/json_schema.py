"""JSON Schemas that users write: checked when a rule is saved, and applied to what a language model answers.

They are a stranger's input to a library that would fetch what they refer to, and that nothing can interrupt. So nothing
is ever fetched, patterns match in linear time (no look-around, no back-references), and a schema that would take
too long, or too much memory, is refused before it is compiled (`rules/schema/subschemas.py`).

`format` is checked, not just noted: who writes `"format": "date"` wants dates.
"""

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from decimal import Decimal
from functools import lru_cache
from itertools import islice
from typing import Any

import jsonschema_rs
from jsonschema_rs import ValidationError

from config.platform.http.pointers import join
from config.platform.http.problems import MAX_ERRORS, InputError
from rules.schema import subschemas
from rules.schema.messages import message, nearest, pointer_to
from rules.schema.subschemas import MAX_LEVELS, Part, Parts, refusal

PLACE = "/json_schema"  # in the body of a request, or in a rule's file
MAX_PATTERNS = 50
MAX_MESSAGE = 300
# What telling all errors may cost, in evaluations; each error costs 15 µs and 400 bytes. Beyond it the first is told.
MAX_WORK = 100_000
METASCHEMA_WAYS = 50
# A pattern that needs more, such as `(\w{9}){999}`, is refused; one may take milliseconds to compile.
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
LATEST = "https://json-schema.org/draft/2020-12/schema"
TYPES = ("array", "boolean", "integer", "null", "number", "object", "string")


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """`size` in bytes of compact JSON; `depth` in levels of JSON; `ways` in evaluations of one value at most, where
    schemas that people write have tens and hundreds."""

    size: int
    depth: int
    ways: int


SAVED = Bounds(size=64 * 1024, depth=32, ways=5_000)
# Those that strategies make of saved ones, for a piece of a document say, are larger.
APPLIED = Bounds(size=256 * 1024, depth=96, ways=20_000)


class SchemaRefused(ValueError):
    """The schema is one that `check` finds errors in."""


# ---- What the rest of the code uses ---------------------------------------------------------------------------------


def check(schema: Any, *, bounds: Bounds = SAVED) -> list[InputError]:
    """Return what is wrong with a schema, at most MAX_ERRORS; pointers begin at the rule: `/json_schema/type`."""
    try:
        found = next((errors for errors in map(list, findings(schema, bounds)) if errors), [])
    except (RecursionError, ValueError):  # of the library; the bounds before should leave nothing for it
        found = [refusal("", "invalid", "This is not a usable JSON Schema.")]
    return [
        InputError(pointer=(PLACE + error.pointer)[:MAX_MESSAGE], code=error.code, detail=error.detail)
        for error in found[:MAX_ERRORS]
    ]


def errors(schema: dict[str, Any], instance: Any, limit: int = 20) -> list[tuple[str, str]]:
    """Return what is wrong with an instance, `[("/items/0/total", "Must be of type number.")]`; [] if it fits.

    The words quote the schema, and names of the instance's members, but not its values. Raises SchemaRefused for a
    schema that was never checked.
    """
    if nested_deeper(instance, MAX_LEVELS):
        return [("", f"Must not be nested deeper than {MAX_LEVELS} levels.")]
    compiled = compiled_from(canonical(schema))
    found = all_errors(compiled.validator, instance, ways=compiled.ways)
    told = ((pointer_to(error), message(error)) for each in found for error in nearest(each))
    return list(islice(dict.fromkeys(told), limit))


def canonical(schema: Any) -> str:
    """Return a schema as JSON in which equal ones are the same text. To JSON Schema 1 and 1.0 are equal; to Python
    1 and true are, too."""
    return json.dumps(plain(schema), sort_keys=True, separators=(",", ":"), ensure_ascii=False)


# ---- Checking -------------------------------------------------------------------------------------------------------


def findings(schema: Any, bounds: Bounds) -> Iterator[Iterable[InputError]]:
    """Yield what is wrong, from what must hold before the next look is possible, or affordable."""
    yield unfit(schema, bounds)
    yield foreign(schema, "")
    yield unlike_a_schema(schema)
    parts = Parts(schema)
    yield [*parts.problems, *bad_patterns(parts)]
    yield too_many_ways(parts, bounds)
    yield uncompilable(schema)


def unfit(schema: Any, bounds: Bounds) -> Iterator[InputError]:
    if not isinstance(schema, dict):
        yield refusal("", "invalid", "Must be a JSON Schema: an object.")
    elif nested_deeper(schema, bounds.depth):
        yield refusal("", "too_deep", f"Must not be nested deeper than {bounds.depth} levels.")
    elif compact_size(schema) > bounds.size:
        yield refusal("", "too_large", f"Must not be larger than {bounds.size} bytes as compact JSON.")
    elif "$schema" in schema and draft_of(schema) is None:
        yield refusal("/$schema", "unknown_draft", f"Must be one of: {', '.join(DRAFTS)}.")


def compact_size(schema: Any) -> int:
    """Return how many bytes it has as compact JSON."""
    return len(json.dumps(schema, separators=(",", ":"), ensure_ascii=False).encode(errors="replace"))


def foreign(value: Any, pointer: str, *, names: bool = False) -> Iterator[InputError]:
    """Yield the references that lead out of the schema, also where no validator would look: servers of language models
    get the schema, too. What is data, not schema, may hold anything. `names`: the members are properties, say, and
    not keywords."""
    if isinstance(value, list):
        for index, inside in enumerate(value):
            yield from foreign(inside, join(pointer, index))
    if not isinstance(value, dict):
        return
    for name, inside in value.items():
        where = join(pointer, name)
        if name in subschemas.REFERENCES and isinstance(inside, str) and not inside.startswith("#"):
            yield refusal(where, "remote_reference", "Must begin with #: schemas are not fetched from elsewhere.")
        elif names or name not in subschemas.DATA:
            yield from foreign(inside, where, names=not names and name in subschemas.MAPS)


def unlike_a_schema(schema: dict[str, Any]) -> Iterator[InputError]:
    """Yield where the schema breaks the rules of its draft, one error for a place."""
    broken = all_errors(dialect(draft_of(schema) or LATEST), schema, ways=METASCHEMA_WAYS)
    found = {pointer_to(error): error for error in reversed(list(broken))}
    for pointer, error in sorted(found.items()):
        last = error.instance_path[-1] if error.instance_path else ""
        inside_type = last == "type" or error.instance_path[-2:-1] == ["type"]
        detail = f"Must be one of {', '.join(TYPES)}, or a list of different ones." if inside_type else message(error)
        yield refusal(pointer, "invalid_schema", detail)


def bad_patterns(parts: Parts) -> Iterator[InputError]:
    patterns = [(pointer, text) for where, part in parts.parts.items() for pointer, text in patterns_in(part, where)]
    if len(patterns) > MAX_PATTERNS:
        yield refusal("", "too_many_patterns", f"Must not have more than {MAX_PATTERNS} patterns.")
        return
    for pointer, pattern in patterns:
        try:
            jsonschema_rs.Draft202012Validator({"pattern": pattern}, pattern_options=PATTERNS, offline=True)
        except ValueError:
            detail = "Must be a regular expression, of moderate size, without look-around and back-references."
            yield refusal(pointer, "invalid_pattern", detail)


def patterns_in(part: Part, where: str) -> Iterator[tuple[str, str]]:
    if isinstance(pattern := part.schema.get("pattern"), str):
        yield f"{where}/pattern", pattern
    if isinstance(members := part.schema.get("patternProperties"), dict):
        yield from ((join(f"{where}/patternProperties", pattern), pattern) for pattern in members)


def too_many_ways(parts: Parts, bounds: Bounds) -> Iterator[InputError]:
    try:
        subschemas.ways(parts, most_ways=bounds.ways)
    except subschemas.Endless as endless:
        yield refusal(endless.pointer, "endless", "This refers, by way of others, to itself without going inside.")
    except subschemas.TooManyWays:
        detail = "Its parts and references multiply: applying it would take too long."
        yield refusal("", "too_complex", detail)


def uncompilable(schema: dict[str, Any]) -> Iterator[InputError]:
    try:
        compile_schema(schema)
    except ValidationError as error:
        yield refusal(pointer_to(error), "invalid_schema", "This cannot be applied.")


# ---- Compiling ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Compiled:
    """`ways`: how often a value can be evaluated at most."""

    validator: jsonschema_rs.Validator
    ways: int


@lru_cache(maxsize=128)  # of at most 64 KB of text each
def compiled_from(text: str) -> Compiled:
    schema = json.loads(text)
    if check(schema, bounds=APPLIED):
        raise SchemaRefused("This schema was not checked when it was saved.")
    return Compiled(validator=compile_schema(schema), ways=subschemas.ways(Parts(schema), most_ways=APPLIED.ways))


def compile_schema(schema: dict[str, Any]) -> jsonschema_rs.Validator:
    """Leave out the root's own name: all references are inside, and it might be that of a schema the library knows."""
    nameless = {name: inside for name, inside in schema.items() if name not in ("$id", "id")}
    return jsonschema_rs.validator_for(nameless, offline=True, validate_formats=True, pattern_options=PATTERNS)


@lru_cache
def dialect(uri: str) -> jsonschema_rs.Validator:
    """Return the validator of schemas themselves. The library has the metaschemas with it."""
    return jsonschema_rs.validator_for({"$schema": uri, "$ref": uri}, offline=True)


def draft_of(schema: dict[str, Any]) -> str | None:
    """Return the URI of the draft that a schema names, the latest if it names none, or None if it is not known."""
    named = schema.get("$schema", LATEST)
    return DRAFTS.get(named.removesuffix("#")) if isinstance(named, str) else None


# ---- Looking at values, not recursively -----------------------------------------------------------------------------


def nested_deeper(value: Any, levels: int) -> bool:
    """Tell whether objects and lists are nested in more levels than these; `{}` is one."""
    level = [value]
    for _ in range(levels + 1):
        level = [each for each in level if isinstance(each, dict | list)]
        if not level:
            return False
        level = [inside for each in level for inside in (each.values() if isinstance(each, dict) else each)]
    return True


def levels_of(value: Any, *, most: int) -> int:
    """Return in how many levels objects and lists are nested; `most` + 1 for any that are nested deeper."""
    return next((levels for levels in range(most + 1) if not nested_deeper(value, levels)), most + 1)


def size_of(value: Any) -> int:
    """Return how many values there are in a value that is not nested too deeply, itself included."""
    if isinstance(value, dict):
        return 1 + sum(map(size_of, value.values()))
    return 1 + sum(map(size_of, value)) if isinstance(value, list) else 1


def plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: plain(inside) for name, inside in value.items()}
    if isinstance(value, list):
        return [plain(inside) for inside in value]
    # Its shortest digits, as jsonb gives it back: 1e300 is 10**300 there, and int(1e300) is not.
    return int(Decimal(repr(value))) if isinstance(value, float) and value.is_integer() else value


def all_errors(validator: jsonschema_rs.Validator, instance: Any, *, ways: int) -> Iterator[ValidationError]:
    """Yield what is wrong; only the first thing where all of it might take long. The library makes all errors before
    it hands out one."""
    if validator.is_valid(instance):
        return
    if ways * size_of(instance) <= MAX_WORK:
        yield from validator.iter_errors(instance)
        return
    try:
        validator.validate(instance)
    except ValidationError as error:
        yield error
