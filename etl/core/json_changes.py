"""Changes of JSON values: merge patches (RFC 7396), and differences between two JSON documents.

Numbers are compared digit for digit: 12.5 and 12.50 differ.
"""

from collections import Counter, defaultdict
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from difflib import SequenceMatcher
from enum import Enum
from typing import Any, Protocol

from config.platform import exact_json
from config.platform.http.pointers import join

# Maximum length of differing sections of lists that are aligned. Longer sections are compared position by position,
# because alignment takes quadratic time.
MAX_ALIGNED = 200


class Absent(Enum):
    """The value of a member or item that does not exist, unlike null."""

    ABSENT = "absent"


ABSENT = Absent.ABSENT


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """A value before and after a change, with its pointer in each document.

    Members and items of containers are paired instead of the containers themselves, unless a container is empty, or the
    other value is not a container of the same kind. `is_certain`: False if the values belong to list items that were
    paired only by position, and so may be different items.
    """

    before: Any
    after: Any
    pointer_before: str
    pointer_after: str
    is_certain: bool = True

    @property
    def is_change(self) -> bool:
        return not same(self.before, self.after)

    @property
    def pointer(self) -> str:
        """The pointer in the new document, or in the old one for a removed value."""
        return self.pointer_before if self.after is ABSENT else self.pointer_after


def same(one: Any, other: Any) -> bool:
    if one is ABSENT or other is ABSENT:
        return one is other
    return exact_json.dumps(one, is_sorted=True) == exact_json.dumps(other, is_sorted=True)


class Members(Protocol):
    """The members that a schema allows in an object."""

    def required(self) -> Collection[str]: ...

    @property
    def allows_null(self) -> bool: ...

    def member(self, name: str) -> "Members": ...


def merge_patch(target: Any, patch: Any, members: Members) -> Any:
    """Return the target with a merge patch applied: null removes a member, and lists are replaced as a whole.

    For a required member that can be null, null becomes its value, because the schema would reject an object without
    the member.
    """
    if not isinstance(patch, dict):
        return patch
    merged = dict(target) if isinstance(target, dict) else {}
    required = set(members.required())
    for name, value in patch.items():
        if value is not None:
            is_object = isinstance(value, dict)
            merged[name] = merge_patch(merged.get(name), value, members.member(name)) if is_object else value
        elif name in required and members.member(name).allows_null:
            merged[name] = None
        else:
            merged.pop(name, None)
    return merged


def pairs(
    before: Any, after: Any, *, pointer_before: str = "", pointer_after: str = "", is_certain: bool = True
) -> Iterator[Pair]:
    """Yield all values of both documents in pairs. Inserted and removed items of lists do not shift the others."""
    if isinstance(before, dict) and isinstance(after, dict) and (before or after):
        members = [
            (name, name, before.get(name, ABSENT), after.get(name, ABSENT), True)
            for name in dict.fromkeys([*before, *after])
        ]
    elif isinstance(before, list) and isinstance(after, list) and (before or after):
        members = list(items(before, after))
    else:
        yield Pair(
            before=before,
            after=after,
            pointer_before=pointer_before,
            pointer_after=pointer_after,
            is_certain=is_certain,
        )
        return
    for name_before, name_after, one, other, is_certain_here in members:
        yield from pairs(
            one,
            other,
            pointer_before=join(pointer_before, name_before),
            pointer_after=join(pointer_after, name_after),
            is_certain=is_certain and is_certain_here,
        )


def items(before: list[Any], after: list[Any]) -> Iterator[tuple[int, int, Any, Any, bool]]:
    """Yield pairs of items of two lists: both indexes, both items, and whether the pair is certain."""
    old_items, new_items = ([exact_json.dumps(item, is_sorted=True) for item in each] for each in (before, after))
    for tag, start, end, new_start, new_end in sections(old_items, new_items):
        shared = end - start if tag == "equal" else min(end - start, new_end - new_start)
        certain = same_items(before[start:end], after[new_start:new_end]) if tag == "replace" else [True] * shared
        for at in range(shared):
            yield start + at, new_start + at, before[start + at], after[new_start + at], certain[at]
        for at in range(start + shared, end):
            yield at, new_start + shared, before[at], ABSENT, True
        for at in range(new_start + shared, new_end):
            yield start + shared, at, ABSENT, after[at], True


def same_items(old_items: list[Any], new_items: list[Any]) -> list[bool]:
    """Return for each position of a differing section whether the old and the new item there are certainly the same.

    A section's only item is the same. Otherwise, a new item is the same as the old item at its position if it is equal,
    or shares more unique values with it than with any other old item. If the section's length changed, no pair is
    certain.
    """
    if len(old_items) != len(new_items) or len(old_items) == 1:
        return [len(old_items) == len(new_items)] * min(len(old_items), len(new_items))
    owners: defaultdict[tuple[Any, bytes], list[int]] = defaultdict(list)
    for place, item in enumerate(old_items):
        for value in values_of(item):
            owners[value].append(place)
    found = []
    for place, item in enumerate(new_items):
        common = Counter(owners[value][0] for value in values_of(item) if len(owners.get(value, ())) == 1)
        most = max((count for other, count in common.items() if other != place), default=0)
        found.append(same(old_items[place], item) or common[place] > most)
    return found


def values_of(item: Any) -> list[tuple[Any, bytes]]:
    """Return the members of an item, each as its name or index and its serialized value."""
    members = item.items() if isinstance(item, dict) else enumerate(item) if isinstance(item, list) else ()
    return [(name, exact_json.dumps(value, is_sorted=True)) for name, value in members]


def sections(old_items: list[bytes], new_items: list[bytes]) -> Iterator[tuple[str, int, int, int, int]]:
    """Yield the equal and the differing sections of two lists, as `SequenceMatcher.get_opcodes` does."""
    length = min(len(old_items), len(new_items))
    head = next((at for at in range(length) if old_items[at] != new_items[at]), length)
    tail = next((at for at in range(length - head) if old_items[-1 - at] != new_items[-1 - at]), length - head)
    old_end, new_end = len(old_items) - tail, len(new_items) - tail
    yield "equal", 0, head, 0, head
    if max(old_end, new_end) - head > MAX_ALIGNED:
        yield "replace", head, old_end, head, new_end
    else:
        matcher = SequenceMatcher(None, old_items[head:old_end], new_items[head:new_end], autojunk=False)
        for tag, start, end, new_start, new_stop in matcher.get_opcodes():
            yield tag, head + start, head + end, head + new_start, head + new_stop
    yield "equal", old_end, len(old_items), new_end, len(new_items)
