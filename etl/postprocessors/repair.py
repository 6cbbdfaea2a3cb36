"""Repair of responses that do not match the schema, part by part.

Valid parts are kept unchanged, and only the invalid parts are requested again. A repair must not lose items: a
correction with fewer items than before is refused. Items that are still invalid are removed, and the others are kept.
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
from rules.schema.messages import MISSING, NOT_ALLOWED

MAX_ERRORS = 100  # per validation
SLICE = 50  # items that are validated at once
WORD = re.compile(r"[^\W_]+")

V = TypeVar("V")
Mismatch = tuple[str, str]  # the pointer of an invalid part and an error message


class ItemsLost(Exception):
    """A correction has fewer items than before. `args[0]`: the reason, as a message for the model."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Mismatches:
    """The invalid parts of data. `items`: the first mismatch of each invalid item, by list and index. `others`: the
    mismatches outside of items."""

    items: dict[tuple[str, int], Mismatch] = field(default_factory=dict)
    others: list[Mismatch] = field(default_factory=list)

    def __bool__(self) -> bool:
        return bool(self.items or self.others)

    @property
    def listed(self) -> list[Mismatch]:
        return [*self.others, *self.items.values()]

    def is_invalid_list(self, pointer: str) -> bool:
        """Return whether a list as a whole is invalid, for example because it is too short."""
        return any(path == pointer for path, _ in self.others)

    def has_item(self, pointer: str) -> bool:
        """Return whether a pointer leads into an invalid item."""
        return any((path, index_in(pointer, path)) in self.items for path in {path for path, _ in self.items})

    def invalid_indexes(self, pointer: str) -> list[int]:
        return [at for path, at in self.items if path == pointer]


# ---- Finding --------------------------------------------------------------------------------------------------------
def mismatches(schema: Schema, data: Any) -> Mismatches:
    """Return all invalid parts. The number of errors per validation is limited, so items are validated in slices.
    Raises SchemaRefused."""
    guide = Guide.of(schema)
    bare, found = data, list(lists(guide, data))
    for pointer, _ in found:
        bare = replaced(bare, pointer, [])
    invalid: dict[tuple[str, int], Mismatch] = {}
    for pointer, items in found:
        for start in range(0, len(items), SLICE):
            indexes = range(start, min(start + SLICE, len(items)))
            invalid |= find_invalid_items(schema, bare, pointer, {at: items[at] for at in indexes})
    rest, _ = remove_invalid_items(guide, data, {}, Mismatches(items=invalid))
    touched = {pointer for pointer, _ in invalid}  # without their invalid items, these lists may be too short
    others = [each for each in json_schema.errors(schema, rest, MAX_ERRORS) if each[0] not in touched]
    return Mismatches(items=invalid, others=others)


def find_invalid_items(
    schema: Schema, bare: Any, pointer: str, items: dict[int, Any]
) -> dict[tuple[str, int], Mismatch]:
    """Return the first mismatch of each invalid item. `bare`: the data with empty lists."""
    invalid: dict[tuple[str, int], Mismatch] = {}
    while True:
        remaining = [at for at in items if (pointer, at) not in invalid]
        errors = json_schema.errors(schema, replaced(bare, pointer, [items[at] for at in remaining]), MAX_ERRORS)
        inside = [(nth, path, words) for path, words in errors if (nth := index_in(path, pointer)) is not None]
        if not inside:
            return dict(sorted(invalid.items()))
        for nth, path, words in reversed(inside):
            place = join(pointer, remaining[nth]) + path[len(join(pointer, nth)) :]
            invalid[pointer, remaining[nth]] = (place, words)


def index_in(path: str, pointer: str) -> int | None:
    """Return the index of the item that a pointer leads into, or None."""
    token = path[len(pointer) + 1 :].partition("/")[0] if path.startswith(f"{pointer}/") else ""
    return int(token) if token.isdecimal() else None


def lists(guide: Guide, data: Any, pointer: str = "") -> Iterator[tuple[str, list[Any]]]:
    """Yield the outermost lists, except tuples, which are treated as single values."""
    kinds = guide.keyword("type")
    if isinstance(data, list) and not guide.is_tuple:
        if kinds is None or "array" in kinds:
            yield pointer, data
    elif isinstance(data, dict):
        for name, inside in data.items():
            yield from lists(guide.member(name), inside, join(pointer, name))


def value_at(data: Any, pointer: str) -> Any:
    """Return the value at a pointer, or None if it does not exist or is inside a list."""
    for token in tokens(pointer):
        data = data.get(token) if isinstance(data, dict) else None
    return data


def replaced(data: Any, pointer: str, value: Any, *, creates: bool = False) -> Any:
    """Return a copy with another value at a pointer. `creates`: create missing parents instead of raising ItemsLost."""
    if not pointer:
        return value
    if not isinstance(data, dict) and not creates:
        raise ItemsLost("A part of the answer is missing, with its items.")
    name, rest = split_pointer(pointer)
    known = data if isinstance(data, dict) else {}
    return {**known, name: replaced(known.get(name), rest, value, creates=creates)}


def removed(data: Any, pointer: str) -> Any:
    """Return a copy without the member at a pointer."""
    if not pointer or not isinstance(data, dict):
        return None
    name, rest = split_pointer(pointer)
    if not rest:
        return {other: inside for other, inside in data.items() if other != name}
    return {**data, name: removed(data.get(name), rest)}


def split_pointer(pointer: str) -> tuple[str, str]:
    first, slash, rest = pointer[1:].partition("/")
    return unescaped(first), slash + rest


# ---- Repairing ------------------------------------------------------------------------------------------------------
def invalid_parts(guide: Guide, data: Any, found: Mismatches) -> Any:
    """Return the invalid items of each list and, if there are mismatches outside of items, the data without valid
    lists."""
    bare = data if found.others else None
    for pointer, items in lists(guide, data):
        if invalid_indexes := found.invalid_indexes(pointer):
            bare = replaced(bare, pointer, [items[at] for at in invalid_indexes], creates=True)
        elif found.others and not found.is_invalid_list(pointer):
            bare = removed(bare, pointer)
    return bare


def complaints(found: Mismatches) -> list[str]:
    """Return the mismatches as text for the model, with pointers into the result of `invalid_parts`."""
    order = {
        item: nth
        for pointer in {path for path, _ in found.items}
        for nth, item in enumerate((pointer, at) for at in found.invalid_indexes(pointer))
    }
    inside = [
        (join(pointer, order[pointer, at]) + path[len(join(pointer, at)) :], words)
        for (pointer, at), (path, words) in found.items.items()
    ]
    return [f"{pointer or 'the whole'}: {words}" for pointer, words in [*found.others, *inside]]


def apply_correction(
    schema: Schema, current: ParsedResponse, found: Mismatches, given: ParsedResponse
) -> ParsedResponse:
    """Return the current response with its invalid parts replaced by those of the response `given`.

    A corrected item without the valid values of the original is probably another item, so it is not used. Raises
    ItemsLost.
    """
    guide = Guide.of(schema)
    current, given = plain_evidence(current), plain_evidence(given)
    data, evidence = current.data, dict(current.evidence)
    for mismatch in found.others:
        data, changed = with_corrected(data, given.data, mismatch)
        for pointer in changed:
            evidence = {name: each for name, each in evidence.items() if not f"{name}/".startswith(f"{pointer}/")}
            evidence |= move_evidence(given.evidence, pointer, pointer)
    for pointer, items in lists(guide, current.data):
        evidence = {name: each for name, each in evidence.items() if not name.startswith(f"{pointer}/")}
        evidence |= {name: each for name, each in current.evidence.items() if name.startswith(f"{pointer}/")}
        new, origins = merged_items(schema, pointer, items, found, value_at(given.data, pointer))
        data = replaced(data, pointer, new)
        for at, origin in origins.items():
            evidence |= move_evidence(given.evidence, join(pointer, origin), join(pointer, at))
    return ParsedResponse(data=data, evidence=evidence)


def with_corrected(data: Any, given: Any, mismatch: Mismatch) -> tuple[Any, list[str]]:
    """Return the data with one invalid part replaced by its correction, and the pointers of the changes. Valid values
    are kept, because the correction may have lost them."""
    pointer, words = mismatch
    own, new = value_at(data, pointer), as_map(value_at(given, pointer))
    if is_missing_member(mismatch) and isinstance(own, dict):
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
        pointer = pointer.rpartition("/")[0]  # replace a tuple as a whole
    parent, _, name = pointer.rpartition("/")
    if not pointer or unescaped(name) in as_map(value_at(given, parent)):
        return replaced(data, pointer, value_at(given, pointer)), [pointer]
    return removed(data, pointer), [pointer]


def merged_items(
    schema: Schema, pointer: str, items: list[Any], found: Mismatches, got: Any
) -> tuple[list[Any], dict[int, int]]:
    """Return the items of a list after the correction, and the index in the correction of each replaced item."""
    invalid_indexes = found.invalid_indexes(pointer)
    is_invalid_list = found.is_invalid_list(pointer)
    if not invalid_indexes and not is_invalid_list:
        return items, {}
    given = got if isinstance(got, list) else []
    if is_invalid_list or len(given) > len(items):
        kept = {exact_key(item) for at, item in enumerate(items) if at not in invalid_indexes}
        minimum = len({exact_key(item) for item in items}) if is_invalid_list else len(items)
        if len(given) < minimum or not kept <= {exact_key(item) for item in given}:
            raise ItemsLost(f"{pointer or 'The list'} had {len(items)} items, and now lacks some of them.")
        return given, {at: at for at in range(len(given))}
    if len(given) not in (len(items), len(invalid_indexes)):
        raise ItemsLost(f"{pointer or 'The list'} needs {len(invalid_indexes)} corrected items, and has {len(given)}.")
    origins = {at: at if len(given) == len(items) else nth for nth, at in enumerate(invalid_indexes)}
    origins = {at: nth for at, nth in origins.items() if is_corrected(schema, pointer, items[at], given[nth])}
    return [given[origins[at]] if at in origins else item for at, item in enumerate(items)], origins


def is_corrected(schema: Schema, pointer: str, item: Any, given: Any) -> bool:
    """Return whether a corrected item has all valid values of the original and at least half of the words in its
    invalid parts. The values and words may be in other members."""
    errors = json_schema.errors(schema, replaced(None, pointer, [item], creates=True), MAX_ERRORS)
    kept, words = Counter[str](), set[str]()
    for path, value in scalars(item, join(pointer, 0)):
        if value in (None, "", [], {}) or any(each[0] == path or is_not_allowed(each, path) for each in errors):
            continue
        is_inside = any(is_about(each, path) for each in errors)
        (words if is_inside else kept).update(words_of(value) if is_inside else [loose_key(value)])
    values = [value for _, value in scalars(given)]
    found = {word for value in values for word in words_of(value)}
    return kept <= Counter(map(loose_key, values)) and 2 * len(words & found) >= len(words)


def words_of(value: Any) -> list[str]:
    """Return the words of a text, or the digits of a number."""
    return WORD.findall(value.casefold()) if isinstance(value, str) else [loose_key(value)]


def is_about(mismatch: Mismatch, path: str) -> bool:
    """Return whether a mismatch is about the value at a pointer."""
    pointer, words = mismatch
    is_inside = f"{path}/".startswith(f"{pointer}/")
    return is_inside and not is_missing_member(mismatch) and not words.startswith(NOT_ALLOWED)


def is_missing_member(mismatch: Mismatch) -> bool:
    return mismatch[1].startswith(MISSING)


def is_not_allowed(mismatch: Mismatch, path: str) -> bool:
    """Return whether a value is in a member that is not allowed."""
    pointer, words = mismatch
    is_below = path.startswith(f"{pointer}/") and words.startswith(NOT_ALLOWED)
    return is_below and is_unwanted(path[len(pointer) + 1 :].partition("/")[0], words)


def is_unwanted(token: str, words: str) -> bool:
    """Return whether a message about members that are not allowed names this one, or is truncated."""
    return repr(unescaped(token)[:50]) in words or "…" in words


def plain_evidence(answer: ParsedResponse) -> ParsedResponse:
    """Return the response with evidence by pointers into its data. Some models use pointers into the response."""
    prefix = "" if isinstance(answer.data, dict) and "data" in answer.data else "/data"
    return ParsedResponse(
        data=answer.data, evidence={name.removeprefix(prefix): each for name, each in answer.evidence.items()}
    )


def move_evidence(evidence: dict[str, Evidence], old: str, new: str) -> dict[str, Evidence]:
    return {f"{new}{name[len(old) :]}": each for name, each in evidence.items() if f"{name}/".startswith(f"{old}/")}


def remove_invalid_items(
    guide: Guide, data: Any, by_pointer: dict[str, V], found: Mismatches
) -> tuple[Any, dict[str, V]]:
    """Return the data without invalid items, and `by_pointer` with the pointers of the remaining data."""
    for pointer, items in list(lists(guide, data)):
        gone = set(found.invalid_indexes(pointer))
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
    """Return a pointer with the new index of its item, or None if the item was removed."""
    if not name.startswith(f"{pointer}/"):
        return name
    token, slash, rest = name[len(pointer) + 1 :].partition("/")
    at = new.get(int(token)) if token.isdecimal() else None
    return None if at is None else f"{join(pointer, at)}{slash}{rest}"


def item_count(guide: Guide, data: Any) -> int:
    return sum(len(items) for _, items in lists(guide, data))


def count_at(data: Any, pointer: str) -> int:
    """Return the number of items of the list at a pointer."""
    value = value_at(data, pointer)
    return len(value) if isinstance(value, list) else 0
