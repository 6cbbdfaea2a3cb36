"""Repair of responses that do not fit the schema, part by part.

What fits is kept as it is. Only the parts that do not fit are requested again, and a repair never loses an item: one
with fewer items than before is a failure of that call. Items that still do not fit are rejected, the others are kept.
"""

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, TypeVar

from config.platform.http.pointers import join, tokens, unescaped
from etl.postprocessors.merge import exact_key, loose_key
from etl.postprocessors.responses import Evidence, ParsedResponse, scalars
from etl.postprocessors.schemas import Guide, Schema, as_map
from rules.schema import json_schema

MAX_ERRORS = 100  # that are searched for at once
SLICE = 50  # items
NOT_ALLOWED = "Must not have the members "
WORD = re.compile(r"[^\W_]+")

V = TypeVar("V")
Mismatch = tuple[str, str]  # a pointer and a message


class ItemsLost(Exception):
    """A repair has fewer items than before. `args[0]`: the reason, in words that the model may read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Mismatches:
    """The parts of data that do not fit. `items`: by list and index, the first mismatch of an item; `others`: those
    outside of items."""

    items: dict[tuple[str, int], Mismatch] = field(default_factory=dict)
    others: list[Mismatch] = field(default_factory=list)

    def __bool__(self) -> bool:
        return bool(self.items or self.others)

    @property
    def listed(self) -> list[Mismatch]:
        return [*self.others, *self.items.values()]

    def is_wrong(self, pointer: str) -> bool:
        """Return whether a list as a whole does not fit."""
        return any(path == pointer for path, _ in self.others)

    def has_item(self, pointer: str) -> bool:
        """Return whether a pointer is inside of an item that does not fit."""
        return any((path, index_in(pointer, path)) in self.items for path in {path for path, _ in self.items})

    def bad(self, pointer: str) -> list[int]:
        return [at for path, at in self.items if path == pointer]


# ---- Finding --------------------------------------------------------------------------------------------------------
def mismatches(schema: Schema, data: Any) -> Mismatches:
    """Return all parts that do not fit. Of much data the library reports only the first, so items are checked a few at
    a time. Raises SchemaRefused."""
    guide = Guide.of(schema)
    bare, found = data, list(lists(guide, data))
    for pointer, _ in found:
        bare = replaced(bare, pointer, [])
    bad: dict[tuple[str, int], Mismatch] = {}
    for pointer, items in found:
        for start in range(0, len(items), SLICE):
            indexes = range(start, min(start + SLICE, len(items)))
            bad |= bad_items(schema, bare, pointer, {at: items[at] for at in indexes})
    rest, _ = rejected(guide, data, {}, Mismatches(items=bad))
    touched = {pointer for pointer, _ in bad}  # without their bad items, these may be too short
    others = [each for each in json_schema.errors(schema, rest, MAX_ERRORS) if each[0] not in touched]
    return Mismatches(items=bad, others=others)


def bad_items(schema: Schema, bare: Any, pointer: str, items: dict[int, Any]) -> dict[tuple[str, int], Mismatch]:
    """Return the first mismatch of each item that does not fit. `bare`: the data without items."""
    bad: dict[tuple[str, int], Mismatch] = {}
    while True:
        left = [at for at in items if (pointer, at) not in bad]
        errors = json_schema.errors(schema, replaced(bare, pointer, [items[at] for at in left]), MAX_ERRORS)
        inside = [(nth, path, words) for path, words in errors if (nth := index_in(path, pointer)) is not None]
        if not inside:
            return dict(sorted(bad.items()))
        for nth, path, words in reversed(inside):
            place = join(pointer, left[nth]) + path[len(join(pointer, nth)) :]
            bad[pointer, left[nth]] = (place, words)


def index_in(path: str, pointer: str) -> int | None:
    """Return the index of the item that a pointer leads into, or None."""
    token = path[len(pointer) + 1 :].partition("/")[0] if path.startswith(f"{pointer}/") else ""
    return int(token) if token.isdecimal() else None


def lists(guide: Guide, data: Any, pointer: str = "") -> Iterator[tuple[str, list[Any]]]:
    """Yield the outermost lists. Lists whose items have a meaning by position are single values."""
    kinds = guide.keyword("type")
    if isinstance(data, list) and not guide.is_tuple:
        if kinds is None or "array" in kinds:
            yield pointer, data
    elif isinstance(data, dict):
        for name, inside in data.items():
            yield from lists(guide.member(name), inside, join(pointer, name))


def value_at(data: Any, pointer: str) -> Any:
    """Return the value at a pointer, or None."""
    for token in tokens(pointer):
        data = data.get(token) if isinstance(data, dict) else None
    return data


def replaced(data: Any, pointer: str, value: Any, *, creates: bool = False) -> Any:
    """Return a copy with another value at a pointer. `creates`: also missing parents. Raises ItemsLost otherwise."""
    if not pointer:
        return value
    if not isinstance(data, dict) and not creates:
        raise ItemsLost("A part of the answer is missing, with its items.")
    name, rest = first_and_rest(pointer)
    known = data if isinstance(data, dict) else {}
    return {**known, name: replaced(known.get(name), rest, value, creates=creates)}


def removed(data: Any, pointer: str) -> Any:
    """Return a copy without the member at a pointer."""
    if not pointer or not isinstance(data, dict):
        return None
    name, rest = first_and_rest(pointer)
    if not rest:
        return {other: inside for other, inside in data.items() if other != name}
    return {**data, name: removed(data.get(name), rest)}


def first_and_rest(pointer: str) -> tuple[str, str]:
    first, slash, rest = pointer[1:].partition("/")
    return unescaped(first), slash + rest


# ---- Repairing ------------------------------------------------------------------------------------------------------
def reduced(guide: Guide, data: Any, found: Mismatches) -> Any:
    """Return the parts that do not fit: of lists only the items that do not, and the rest if it has mismatches."""
    bare = data if found.others else None
    for pointer, items in lists(guide, data):
        if bad := found.bad(pointer):
            bare = replaced(bare, pointer, [items[at] for at in bad], creates=True)
        elif found.others and not found.is_wrong(pointer):
            bare = removed(bare, pointer)
    return bare


def complaints(found: Mismatches) -> list[str]:
    """Return the mismatches in words for the model, with the pointers into what `reduced` returns."""
    order = {
        item: nth
        for pointer in {path for path, _ in found.items}
        for nth, item in enumerate((pointer, at) for at in found.bad(pointer))
    }
    inside = [
        (join(pointer, order[pointer, at]) + path[len(join(pointer, at)) :], words)
        for (pointer, at), (path, words) in found.items.items()
    ]
    return [f"{pointer or 'the whole'}: {words}" for pointer, words in [*found.others, *inside]]


def patched(schema: Schema, standing: ParsedResponse, found: Mismatches, given: ParsedResponse) -> ParsedResponse:
    """Return the standing response with the parts that did not fit from another one. A corrected item that lacks values
    that fitted is another item, and is not used. Raises ItemsLost."""
    guide = Guide.of(schema)
    standing, given = plain_evidence(standing), plain_evidence(given)
    data, evidence = standing.data, dict(standing.evidence)
    for mismatch in found.others:
        data, changed = with_corrected(data, given.data, mismatch)
        for pointer in changed:
            evidence = {name: each for name, each in evidence.items() if not f"{name}/".startswith(f"{pointer}/")}
            evidence |= moved(given.evidence, pointer, pointer)
    for pointer, items in lists(guide, standing.data):
        evidence = {name: each for name, each in evidence.items() if not name.startswith(f"{pointer}/")}
        evidence |= {name: each for name, each in standing.evidence.items() if name.startswith(f"{pointer}/")}
        got = value_at(given.data, pointer) if pointer else given.data
        new, origins = merged_items(schema, pointer, items, found, got)
        data = replaced(data, pointer, new)
        for at, origin in origins.items():
            evidence |= moved(given.evidence, join(pointer, origin), join(pointer, at))
    return ParsedResponse(data=data, evidence=evidence)


def with_corrected(data: Any, given: Any, mismatch: Mismatch) -> tuple[Any, list[str]]:
    """Return the data with one part from a correction, and the pointers of what changed. What fits is kept: a
    correction of another value may have lost it."""
    pointer, words = mismatch
    own, new = value_at(data, pointer), as_map(value_at(given, pointer))
    if words.startswith("The member ") and isinstance(own, dict):
        names = [name for name in new if words == f"The member {name!r} is missing."]
        if not names:
            return data, []
        pointer = join(pointer, names[0])
    elif words.startswith(NOT_ALLOWED) and isinstance(own, dict):
        kept = {name: inside for name, inside in own.items() if not is_unwanted(name, words)}
        added = {name: inside for name, inside in new.items() if name not in own}
        changed = [join(pointer, name) for name in {**own, **added} if name not in kept]
        return replaced(data, pointer, kept | added), changed
    while pointer and not isinstance(value_at(data, pointer.rpartition("/")[0]), dict):
        pointer = pointer.rpartition("/")[0]  # of a list whose items have a meaning by position
    parent, _, name = pointer.rpartition("/")
    if not pointer or unescaped(name) in as_map(value_at(given, parent)):
        return replaced(data, pointer, value_at(given, pointer)), [pointer]
    return removed(data, pointer), [pointer]


def merged_items(
    schema: Schema, pointer: str, items: list[Any], found: Mismatches, got: Any
) -> tuple[list[Any], dict[int, int]]:
    """Return the items of a list, and where the replaced ones come from."""
    bad = found.bad(pointer)
    is_wrong = found.is_wrong(pointer)
    if not bad and not is_wrong:
        return items, {}
    given = got if isinstance(got, list) else []
    if is_wrong or len(given) > len(items):
        kept = {exact_key(item) for at, item in enumerate(items) if at not in bad}
        minimum = len({exact_key(item) for item in items}) if is_wrong else len(items)
        if len(given) < minimum or not kept <= {exact_key(item) for item in given}:
            raise ItemsLost(f"{pointer or 'The list'} had {len(items)} items, and now lacks some of them.")
        return given, {at: at for at in range(len(given))}
    if len(given) not in (len(items), len(bad)):
        raise ItemsLost(f"{pointer or 'The list'} needs {len(bad)} corrected items, and has {len(given)}.")
    origins = {at: at if len(given) == len(items) else nth for nth, at in enumerate(bad)}
    origins = {at: nth for at, nth in origins.items() if is_corrected(schema, pointer, items[at], given[nth])}
    return [given[origins[at]] if at in origins else item for at, item in enumerate(items)], origins


def is_corrected(schema: Schema, pointer: str, item: Any, given: Any) -> bool:
    """Return whether a corrected item has all values of the wrong one that fitted, and at least half of the words in
    parts of the wrong form. They may be in other members."""
    errors = json_schema.errors(schema, replaced(None, pointer, [item], creates=True), MAX_ERRORS)
    kept, words = Counter[str](), set[str]()
    for path, value in scalars(item, join(pointer, 0)):
        if value in (None, "", [], {}) or any(each[0] == path or is_not_allowed(each, path) for each in errors):
            continue
        is_inside = any(concerns(each, path) for each in errors)
        (words if is_inside else kept).update(words_of(value) if is_inside else [loose_key(value)])
    values = [value for _, value in scalars(given)]
    found = {word for value in values for word in words_of(value)}
    return kept <= Counter(map(loose_key, values)) and 2 * len(words & found) >= len(words)


def words_of(value: Any) -> list[str]:
    """Return the words of a text, or the digits of a number."""
    return WORD.findall(value.casefold()) if isinstance(value, str) else [loose_key(value)]


def concerns(mismatch: Mismatch, path: str) -> bool:
    """Return whether the value at a pointer is wrong according to a mismatch."""
    pointer, words = mismatch
    if not f"{path}/".startswith(f"{pointer}/") or words.startswith("The member "):
        return False
    return not words.startswith(NOT_ALLOWED)


def is_not_allowed(mismatch: Mismatch, path: str) -> bool:
    """Return whether a value is in a member that is not allowed."""
    pointer, words = mismatch
    is_below = path.startswith(f"{pointer}/") and words.startswith(NOT_ALLOWED)
    return is_below and is_unwanted(path[len(pointer) + 1 :].partition("/")[0], words)


def is_unwanted(token: str, words: str) -> bool:
    """Return whether a message about members that are not allowed names this one, or does not name all."""
    return repr(unescaped(token)[:50]) in words or "…" in words


def plain_evidence(answer: ParsedResponse) -> ParsedResponse:
    """Return the response with evidence by pointers into its data, also if the model used others."""
    prefix = "" if isinstance(answer.data, dict) and "data" in answer.data else "/data"
    return ParsedResponse(
        data=answer.data, evidence={name.removeprefix(prefix): each for name, each in answer.evidence.items()}
    )


def moved(evidence: dict[str, Evidence], old: str, new: str) -> dict[str, Evidence]:
    return {f"{new}{name[len(old) :]}": each for name, each in evidence.items() if f"{name}/".startswith(f"{old}/")}


def rejected(guide: Guide, data: Any, by_pointer: dict[str, V], found: Mismatches) -> tuple[Any, dict[str, V]]:
    """Return data without the items that do not fit, and what belongs to its pointers."""
    for pointer, items in list(lists(guide, data)):
        gone = set(found.bad(pointer))
        if not gone:
            continue
        kept = [at for at in range(len(items)) if at not in gone]
        data = replaced(data, pointer, [items[at] for at in kept])
        new = {at: nth for nth, at in enumerate(kept)}
        by_pointer = {
            name: each for old, each in by_pointer.items() if (name := renumbered(old, pointer, new)) is not None
        }
    return data, by_pointer


def renumbered(name: str, pointer: str, new: dict[int, int]) -> str | None:
    """Return a pointer into a list whose items have new indexes. None if its item is gone."""
    if not name.startswith(f"{pointer}/"):
        return name
    token, slash, rest = name[len(pointer) + 1 :].partition("/")
    at = new.get(int(token)) if token.isdecimal() else None
    return None if at is None else f"{join(pointer, at)}{slash}{rest}"


def item_count(guide: Guide, data: Any) -> int:
    return sum(len(items) for _, items in lists(guide, data))


def count_at(data: Any, pointer: str) -> int:
    """Return the number of items of the list at a pointer."""
    value = value_at(data, pointer) if pointer else data
    return len(value) if isinstance(value, list) else 0
