"""The subschemas of a JSON Schema, their references, and an upper bound on the evaluations of a value.

A validator evaluates every path through a schema that an instance allows. For example, twenty definitions that each
refer twice to the next one are only a kilobyte, but have a million paths. For the instance `5`, that is seconds of work
and gigabytes of errors, in a library that cannot be interrupted. So the evaluations are counted before the schema is
compiled.
"""

import re
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from graphlib import CycleError, TopologicalSorter
from typing import Any
from urllib.parse import unquote

from config.platform.http.pointers import join, tokens
from config.platform.http.problems import MAX_POINTER, InputError

# Limits of the analysis: the sum of evaluations over all parts, and the steps between parts.
MAX_TOTAL = 50_000
MAX_STEPS = 100_000
# For each `unevaluatedProperties`, the library copies the names in all schemas that apply to the same value, once per
# reference to them. Each copy takes 70 bytes.
MAX_COPIES = 100_000
# Maximum levels of an instance, and so the depth to which recursive schemas are followed.
MAX_LEVELS = 64

INDEX = re.compile(r"0|[1-9][0-9]{0,8}")
REFERENCES = ("$ref", "$dynamicRef", "$recursiveRef")
ANCHORS = ("$anchor", "$dynamicAnchor")
DATA = frozenset({"const", "enum", "default", "examples"})
ROOT_ONLY = ("$id", "id", "$schema")  # in a subschema, they would change the base of references or the dialect
SAME, ITEM, MEMBER, NAME, DEFINITION = "same", "item", "member", "name", "definition"
# The values that the schemas of each keyword apply to: the same value, or values inside it.
SINGLE = {
    **dict.fromkeys(("not", "if", "then", "else"), SAME),
    **dict.fromkeys(("items", "additionalItems", "unevaluatedItems", "contains"), ITEM),
    **dict.fromkeys(("additionalProperties", "unevaluatedProperties", "contentSchema"), MEMBER),
    "propertyNames": NAME,
}
LISTS = {**dict.fromkeys(("allOf", "anyOf", "oneOf"), SAME), "prefixItems": ITEM, "items": ITEM}
MAPS = {
    **dict.fromkeys(("dependentSchemas", "dependencies"), SAME),
    **dict.fromkeys(("properties", "patternProperties"), MEMBER),
    **dict.fromkeys(("$defs", "definitions"), DEFINITION),
}
UNEVALUATED = ("unevaluatedProperties", "unevaluatedItems")
# Keywords that apply to all members or items for which another keyword has no schemas.
REST = {"additionalProperties": "properties", "items": "prefixItems", "additionalItems": "items"}


@dataclass(frozen=True, slots=True)
class Step:
    """A step from a schema to a subschema. It applies only to the member or item `only`, or to all except `others`."""

    kind: str
    target: str
    only: str | int | None = None
    others: frozenset[str | int] = frozenset()

    def applies_to(self, kind: str, key: str | int | None) -> bool:
        """Return whether the step applies to a member or item. `key` is None for one that no schema names."""
        return self.kind == kind and (self.only == key if self.only is not None else key not in self.others)


@dataclass(slots=True)
class Part:
    schema: dict[str, Any]
    steps: list[Step] = field(default_factory=list)

    @property
    def applied(self) -> list[str]:
        """The parts that also apply to the value of this part."""
        return [step.target for step in self.steps if step.kind == SAME]

    @property
    def inner(self) -> list[Step]:
        return [step for step in self.steps if step.kind not in (SAME, DEFINITION)]


class TooManyEvaluations(Exception):
    """A value could need too many evaluations, or the analysis of the schema takes too many steps."""


class Parts:
    """The parts of a schema by JSON Pointer, and the errors of their references. The nesting must be limited.

    Raises TooManyEvaluations for more than MAX_STEPS steps.
    """

    def __init__(self, schema: dict[str, Any]) -> None:
        self.root = schema
        self.parts: dict[str, Part] = {}
        self.anchors: dict[str, str] = {}
        self.problems: list[InputError] = []
        self.remaining_steps = MAX_STEPS
        self.add(schema, "")
        for pointer in iter_growing(self.parts):
            self.resolve_references(pointer)

    def count_steps(self, steps: int) -> None:
        """Count the next steps. Raises TooManyEvaluations if they exceed MAX_STEPS."""
        self.remaining_steps -= steps
        if self.remaining_steps < 0:
            raise TooManyEvaluations

    def add(self, schema: dict[str, Any], pointer: str) -> None:
        """Add a schema and its subschemas."""
        if pointer in self.parts:
            return
        part = self.parts[pointer] = Part(schema)
        self.collect_anchors(schema, pointer)
        for kind, relative, inside, rest in subschemas_in(schema):
            if isinstance(inside, dict):  # true and false have no subschemas
                self.count_steps(1)
                target = pointer + relative
                part.steps.append(Step(kind, target, **rest))
                self.add(inside, target)

    def collect_anchors(self, schema: dict[str, Any], pointer: str) -> None:
        for name in (*ANCHORS, *ROOT_ONLY):
            text = schema.get(name)
            if not isinstance(text, str):
                continue
            if name in ANCHORS or text.startswith("#"):  # an anchor in the syntax of draft 7 and earlier
                self.add_anchor(text.removeprefix("#"), pointer, name)
            elif pointer and (name != "id" or "draft-04" in str(self.root.get("$schema"))):
                where = join(pointer, name)
                self.problems.append(refusal(where, "misplaced", f"{name} is only allowed at the root of the schema."))

    def add_anchor(self, anchor: str, pointer: str, name: str) -> None:
        if self.anchors.setdefault(anchor, pointer) != pointer:
            detail = "Another part of the schema has this anchor."
            self.problems.append(refusal(join(pointer, name), "duplicate_anchor", detail))

    def resolve_references(self, pointer: str) -> None:
        """Resolve the references of a part, and add their targets to the parts."""
        part = self.parts[pointer]
        for name in REFERENCES:
            reference = part.schema.get(name)
            if not isinstance(reference, str) or not reference.startswith("#"):
                continue  # `remote_references` reports other references
            target, schema = self.resolve(reference)
            if isinstance(schema, dict):
                self.count_steps(1)
                part.steps.append(Step(SAME, target))
                self.add(schema, target)
            elif not isinstance(schema, bool):
                where = join(pointer, name)
                self.problems.append(refusal(where, "unresolved", "The reference does not point to a schema."))

    def resolve(self, reference: str) -> tuple[str, Any]:
        """Return the pointer to the target of a reference, and the target's schema, or None if it does not exist."""
        name = unquote(reference[1:])
        if name and not name.startswith("/"):
            target = self.anchors.get(name, "")
            return target, self.parts[target].schema if name in self.anchors else None
        pointer, schema = "", self.root
        for token in tokens(name):
            schema = member_at(schema, token)
            if schema is None:
                break
            pointer = join(pointer, token)
        return pointer, schema


def refusal(pointer: str, code: str, detail: str) -> InputError:
    return InputError(pointer=pointer[:MAX_POINTER], code=code, detail=detail)


def subschemas_in(schema: dict[str, Any]) -> Iterator[tuple[str, str, Any, dict[str, Any]]]:
    """Yield the possible subschemas: kind, pointer, value, and keyword arguments for the Step."""
    for name, kind in SINGLE.items():
        if name in schema:
            yield kind, f"/{name}", schema[name], {"others": named_by(schema, REST.get(name))}
    for name, kind in LISTS.items():
        for index, inside in enumerate(schema[name] if isinstance(schema.get(name), list) else ()):
            yield kind, f"/{name}/{index}", inside, {"only": index} if kind == ITEM else {}
    for name, kind in MAPS.items():
        for key, inside in schema[name].items() if isinstance(schema.get(name), dict) else ():
            yield kind, join(f"/{name}", key), inside, {"only": key} if name == "properties" else {}


def named_by(schema: dict[str, Any], name: str | None) -> frozenset[str | int]:
    """Return the members or items for which a keyword has schemas."""
    schemas = schema.get(name or "")
    if isinstance(schemas, dict):
        return frozenset(schemas)
    return frozenset(range(len(schemas))) if isinstance(schemas, list) else frozenset()


def member_at(value: Any, token: str) -> Any:
    """Return the member or item at a token of a JSON Pointer, or None.

    RFC 6901 does not allow leading zeros. With them, a part could have any number of pointers.
    """
    if isinstance(value, dict):
        return value.get(token)
    if isinstance(value, list) and INDEX.fullmatch(token) and int(token) < len(value):
        return value[int(token)]
    return None


def iter_growing(parts: dict[str, Part]) -> Iterator[str]:
    """Yield the pointers to all parts, including those that are added during the iteration."""
    seen = 0
    while seen < len(parts):
        batch = list(parts)[seen:]
        seen += len(batch)
        yield from batch


# ---- Evaluations ----------------------------------------------------------------------------------------------------


class InfiniteRecursion(Exception):
    """A part applies itself to the same value again, such as `{"$ref": "#"}`."""

    def __init__(self, pointer: str) -> None:
        self.pointer = pointer
        super().__init__(pointer)


def evaluations(parts: Parts, *, limit: int) -> int:
    """Return an upper bound on the evaluations of any value in an instance of at most MAX_LEVELS levels.

    Raises InfiniteRecursion, and TooManyEvaluations if it exceeds `limit` or the analysis takes too long.
    """
    applied = expanded(parts)
    if copies(parts, applied) > MAX_COPIES:
        raise TooManyEvaluations
    roots = {"", *(step.target for part in parts.parts.values() for step in part.inner)}
    branches_of: dict[str, list[list[tuple[str, int]]]] = {}
    remaining = MAX_STEPS
    for pointer in roots:
        branches_of[pointer] = branches(parts, applied[pointer], limit=remaining)
        remaining -= sum(map(len, branches_of[pointer]))
    # The bound of each root for instances of one level, and then of one more level in each round.
    costs = {pointer: applied[pointer].total() for pointer in roots}
    for _ in range(MAX_LEVELS):
        deeper = {
            pointer: max(
                [
                    costs[pointer],
                    *(sum(count * costs[target] for target, count in branch) for branch in branches_of[pointer]),
                ]
            )
            for pointer in roots
        }
        if max(deeper.values()) > limit:
            raise TooManyEvaluations
        if deeper == costs:
            break
        costs = deeper
    return max(costs.values())


def expanded(parts: Parts) -> dict[str, Counter[str]]:
    """Return, for each part, the parts that apply to the same value, with their counts."""
    try:
        order = list(TopologicalSorter({pointer: part.applied for pointer, part in parts.parts.items()}).static_order())
    except CycleError as error:
        raise InfiniteRecursion(error.args[1][0]) from None
    sizes: dict[str, int] = {}
    for pointer in order:
        sizes[pointer] = 1 + sum(sizes[target] for target in parts.parts[pointer].applied)
    if sum(sizes.values()) > MAX_TOTAL:
        raise TooManyEvaluations
    applied: dict[str, Counter[str]] = {}
    for pointer in order:
        applied[pointer] = Counter([pointer])
        for target in parts.parts[pointer].applied:
            applied[pointer].update(applied[target])
    return applied


def copies(parts: Parts, applied: dict[str, Counter[str]]) -> int:
    """Return the number of copies for `unevaluatedProperties` and `unevaluatedItems`, counting one for each step."""
    unevaluated = (pointer for pointer, part in parts.parts.items() if not part.schema.keys().isdisjoint(UNEVALUATED))
    return sum(
        count * len(parts.parts[each].steps) for pointer in unevaluated for each, count in applied[pointer].items()
    )


def branches(parts: Parts, applied: Counter[str], *, limit: int) -> list[list[tuple[str, int]]]:
    """Return, for each member or item that the schemas distinguish, the parts that apply to it, with their counts."""
    steps = [(step, count) for pointer, count in applied.items() for step in parts.parts[pointer].inner]
    unnamed = [(step, count) for step, count in steps if step.only is None]
    named: defaultdict[tuple[str, str | int | None], list[tuple[str, int]]] = defaultdict(list)
    for step, count in steps:
        named[step.kind, step.only].append((step.target, count))
    if len(steps) + len(named) * len(unnamed) > limit:
        raise TooManyEvaluations
    for (kind, key), found in named.items():
        if key is not None:
            found += [(step.target, count) for step, count in unnamed if step.applies_to(kind, key)]
    return list(named.values())
