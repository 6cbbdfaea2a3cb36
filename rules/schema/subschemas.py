"""The subschemas of a JSON Schema, their references, and a bound on the evaluations of a value.

A validator evaluates every path through a schema that an instance allows. Twenty definitions that each refer twice to
the next one are a kilobyte of schema and a million paths: seconds of work, and gigabytes of errors for an instance `5`,
in a library that cannot be interrupted. So evaluations are counted before the schema is compiled.
"""

from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from graphlib import CycleError, TopologicalSorter
from typing import Any
from urllib.parse import unquote

from config.platform.http.pointers import join, tokens
from config.platform.http.problems import InputError

# Limits of the analysis: the sum of evaluations over all parts, and the steps between parts.
MAX_TOTAL = 50_000
MAX_STEPS = 100_000
# Levels of an instance. Recursive schemas are followed to this depth.
MAX_LEVELS = 64

REFERENCES = ("$ref", "$dynamicRef", "$recursiveRef")
ANCHORS = ("$anchor", "$dynamicAnchor")
DATA = frozenset({"const", "enum", "default", "examples"})
ROOT_ONLY = ("$id", "id", "$schema")  # in subschemas they would change the meaning of references, or the dialect
HERE, ITEM, MEMBER, NAME, HOME = "here", "item", "member", "name", "home"
# The values that each keyword's schemas apply to: the same value, or values inside it.
SINGLE = {
    **dict.fromkeys(("not", "if", "then", "else"), HERE),
    **dict.fromkeys(("items", "additionalItems", "unevaluatedItems", "contains"), ITEM),
    **dict.fromkeys(("additionalProperties", "unevaluatedProperties", "contentSchema"), MEMBER),
    "propertyNames": NAME,
}
LISTS = {**dict.fromkeys(("allOf", "anyOf", "oneOf"), HERE), "prefixItems": ITEM, "items": ITEM}
MAPS = {
    **dict.fromkeys(("dependentSchemas", "dependencies"), HERE),
    **dict.fromkeys(("properties", "patternProperties"), MEMBER),
    **dict.fromkeys(("$defs", "definitions"), HOME),
}
# Keywords for the members or items that another keyword does not name.
REST = {"additionalProperties": "properties", "items": "prefixItems", "additionalItems": "items"}


@dataclass(frozen=True, slots=True)
class Step:
    """A step from a schema to a subschema. `only`: applies to this member or item; `others`: to all except these."""

    kind: str
    target: str
    only: str | int | None = None
    others: frozenset[str | int] = frozenset()

    def takes(self, kind: str, key: str | int | None) -> bool:
        """Return whether the step applies to a member or item. None stands for one that no schema names."""
        return self.kind == kind and (self.only == key if self.only is not None else key not in self.others)


@dataclass(slots=True)
class Part:
    schema: dict[str, Any]
    steps: list[Step] = field(default_factory=list)

    @property
    def here(self) -> list[str]:
        """The parts that are applied to the same value."""
        return [step.target for step in self.steps if step.kind == HERE]

    @property
    def below(self) -> list[Step]:
        return [step for step in self.steps if step.kind not in (HERE, HOME)]


class Parts:
    """The parts of a schema by JSON Pointer, and the errors of their references. The nesting must be bounded."""

    def __init__(self, schema: dict[str, Any]) -> None:
        self.root = schema
        self.parts: dict[str, Part] = {}
        self.anchors: defaultdict[str, list[str]] = defaultdict(list)
        self.problems: list[InputError] = []
        self.add(schema, "")
        for pointer in iter_growing(self.parts):
            self.refer(pointer)

    def add(self, schema: dict[str, Any], pointer: str) -> None:
        """Add a schema and its subschemas."""
        if pointer in self.parts:
            return
        part = self.parts[pointer] = Part(schema)
        self.note_names(schema, pointer)
        for kind, where, inside, rest in found_in(schema):
            if isinstance(inside, dict):  # true and false lead nowhere
                target = pointer + where
                part.steps.append(Step(kind, target, **rest))
                self.add(inside, target)

    def note_names(self, schema: dict[str, Any], pointer: str) -> None:
        for name in (*ANCHORS, *ROOT_ONLY):
            text = schema.get(name)
            if not isinstance(text, str):
                continue
            if name in ANCHORS or text.startswith("#"):  # an anchor, as it was written up to draft 7
                self.anchors[text.removeprefix("#")].append(pointer)
            elif pointer and (name != "id" or "draft-04" in str(self.root.get("$schema"))):
                where = join(pointer, name)
                self.problems.append(refusal(where, "misplaced", f"{name} is only allowed at the root of the schema."))

    def refer(self, pointer: str) -> None:
        """Resolve a part's references, and add parts that are not known yet."""
        part = self.parts[pointer]
        for name in REFERENCES:
            reference = part.schema.get(name)
            if not isinstance(reference, str) or not reference.startswith("#"):
                continue  # `remote_references` reports these
            targets = self.resolve(reference)
            if not targets:
                where = join(pointer, name)
                self.problems.append(refusal(where, "unresolved", "The reference does not point to a schema."))
            for target, schema in targets:
                if isinstance(schema, dict):
                    part.steps.append(Step(HERE, target))
                    self.add(schema, target)

    def resolve(self, reference: str) -> list[tuple[str, Any]]:
        """Return the possible targets of a reference: for `$dynamicRef`, every part with that anchor."""
        name = unquote(reference[1:])
        if name and not name.startswith("/"):
            return [(pointer, self.parts[pointer].schema) for pointer in self.anchors[name]]
        pointer, schema = "", self.root
        for token in tokens(name):
            pointer, schema = join(pointer, token), inside_of(schema, token)
        return [(pointer, schema)] if isinstance(schema, dict | bool) else []


def refusal(pointer: str, code: str, detail: str) -> InputError:
    return InputError(pointer=pointer, code=code, detail=detail)


def found_in(schema: dict[str, Any]) -> Iterator[tuple[str, str, Any, dict[str, Any]]]:
    """Yield the possible subschemas: kind, pointer, value, and the keyword arguments of its Step."""
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
    by = schema.get(name or "")
    if isinstance(by, dict):
        return frozenset(by)
    return frozenset(range(len(by))) if isinstance(by, list) else frozenset()


def inside_of(value: Any, token: str) -> Any:
    """Return the member or item at a token of a JSON Pointer, or None."""
    if isinstance(value, dict):
        return value.get(token)
    if isinstance(value, list) and token.isascii() and token.isdecimal() and int(token) < len(value):
        return value[int(token)]
    return None


def iter_growing(parts: dict[str, Part]) -> Iterator[str]:
    """Yield the names, also those that are added during the iteration."""
    seen = 0
    while seen < len(parts):
        batch = list(parts)[seen:]
        seen += len(batch)
        yield from batch


# ---- Evaluations ----------------------------------------------------------------------------------------------------


class InfiniteRecursion(Exception):
    """A part applies itself to the same value again: `{"$ref": "#"}`."""

    def __init__(self, pointer: str) -> None:
        self.pointer = pointer
        super().__init__(pointer)


class TooManyEvaluations(Exception):
    """A value could be evaluated too often."""


def evaluations(parts: Parts, *, limit: int) -> int:
    """Return an upper bound on the evaluations of any value in an instance of at most MAX_LEVELS levels.

    Raises InfiniteRecursion, and TooManyEvaluations if it exceeds `limit` or the analysis takes too long.
    """
    applied = at_once(parts)
    begins = {"", *(step.target for part in parts.parts.values() for step in part.below)}
    onward: dict[str, list[list[tuple[str, int]]]] = {}
    left = MAX_STEPS
    for pointer in begins:
        onward[pointer] = onwards(parts, applied[pointer], most=left)
        left -= sum(map(len, onward[pointer]))
    most = {pointer: applied[pointer].total() for pointer in begins}
    for _ in range(MAX_LEVELS):
        further = {
            pointer: max([most[pointer], *(sum(count * most[to] for to, count in way) for way in onward[pointer])])
            for pointer in begins
        }
        if max(further.values()) > limit:
            raise TooManyEvaluations
        if further == most:
            break
        most = further
    return max(most.values())


def at_once(parts: Parts) -> dict[str, Counter[str]]:
    """Return, for each part, the parts that are applied to the same value, with counts."""
    try:
        order = list(TopologicalSorter({pointer: part.here for pointer, part in parts.parts.items()}).static_order())
    except CycleError as error:
        raise InfiniteRecursion(error.args[1][0]) from None
    sizes: dict[str, int] = {}
    for pointer in order:
        sizes[pointer] = 1 + sum(sizes[target] for target in parts.parts[pointer].here)
    if sum(sizes.values()) > MAX_TOTAL:
        raise TooManyEvaluations
    applied: dict[str, Counter[str]] = {}
    for pointer in order:
        applied[pointer] = Counter([pointer])
        for target in parts.parts[pointer].here:
            applied[pointer].update(applied[target])
    return applied


def onwards(parts: Parts, applied: Counter[str], *, most: int) -> list[list[tuple[str, int]]]:
    """Return, for each member or item that the schemas distinguish, the parts that evaluate it, with counts."""
    steps = [(step, count) for pointer, count in applied.items() for step in parts.parts[pointer].below]
    loose = [(step, count) for step, count in steps if step.only is None]
    named: defaultdict[tuple[str, str | int | None], list[tuple[str, int]]] = defaultdict(list)
    for step, count in steps:
        named[step.kind, step.only].append((step.target, count))
    if len(steps) + len(named) * len(loose) > most:
        raise TooManyEvaluations
    for (kind, key), found in named.items():
        if key is not None:
            found += [(step.target, count) for step, count in loose if step.takes(kind, key)]
    return list(named.values())
