"""Changes of JSON values: merge patches (RFC 7396), and the values that differ between two documents.

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

# Longer parts of lists that differ are compared item by item, because the search for equal items takes quadratic time.
MAX_ALIGNED = 200


class Absent(Enum):
    """The value of a member or item that does not exist, unlike null."""

    ABSENT = "absent"


ABSENT = Absent.ABSENT


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """A value before and after a change, each with its pointer there. Containers are only pairs if they are empty, or
    if the other value is not a container of the same kind.

    `is_certain`: false if the items of a list that they belong to may be different ones, paired by their places alone.
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
        """The pointer in the document after the change; of a removed value, in the one before it."""
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

    Null is the value of a required member that may be null: without the member, the schema would reject the object.
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
    """Yield all values of both documents. Items of lists that were inserted or removed do not shift the others."""
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
    for name_before, name_after, one, other, is_own in members:
        yield from pairs(
            one,
            other,
            pointer_before=join(pointer_before, name_before),
            pointer_after=join(pointer_after, name_after),
            is_certain=is_certain and is_own,
        )


def items(before: list[Any], after: list[Any]) -> Iterator[tuple[int, int, Any, Any, bool]]:
    """Yield the items of two lists, each with its index there, and whether they certainly belong together."""
    olds, news = ([exact_json.dumps(item, is_sorted=True) for item in each] for each in (before, after))
    for tag, start, end, new_start, new_end in sections(olds, news):
        shared = end - start if tag == "equal" else min(end - start, new_end - new_start)
        certain = same_items(before[start:end], after[new_start:new_end]) if tag == "replace" else [True] * shared
        for at in range(shared):
            yield start + at, new_start + at, before[start + at], after[new_start + at], certain[at]
        for at in range(start + shared, end):
            yield at, new_start + shared, before[at], ABSENT, True
        for at in range(new_start + shared, new_end):
            yield start + shared, at, ABSENT, after[at], True


def same_items(olds: list[Any], news: list[Any]) -> list[bool]:
    """Return for each place of a section that differs whether both items there are certainly the same item.

    A single item is, and so is one with more values that occur only once in the section from the old item at its place
    than from any other. If the section has another length, no item is.
    """
    if len(olds) != len(news) or len(olds) == 1:
        return [len(olds) == len(news)] * min(len(olds), len(news))
    owners: defaultdict[tuple[Any, bytes], list[int]] = defaultdict(list)
    for place, item in enumerate(olds):
        for value in values_of(item):
            owners[value].append(place)
    found = []
    for place, item in enumerate(news):
        common = Counter(owners[value][0] for value in values_of(item) if len(owners.get(value, ())) == 1)
        most = max((count for other, count in common.items() if other != place), default=0)
        found.append(same(olds[place], item) or common[place] > most)
    return found


def values_of(item: Any) -> list[tuple[Any, bytes]]:
    """Return the members of an item, each with its name or index."""
    members = item.items() if isinstance(item, dict) else enumerate(item) if isinstance(item, list) else ()
    return [(name, exact_json.dumps(value, is_sorted=True)) for name, value in members]


def sections(olds: list[bytes], news: list[bytes]) -> Iterator[tuple[str, int, int, int, int]]:
    """Yield the equal and the different sections of two lists, as `SequenceMatcher.get_opcodes` does."""
    length = min(len(olds), len(news))
    head = next((at for at in range(length) if olds[at] != news[at]), length)
    tail = next((at for at in range(length - head) if olds[-1 - at] != news[-1 - at]), length - head)
    old_end, new_end = len(olds) - tail, len(news) - tail
    yield "equal", 0, head, 0, head
    if max(old_end, new_end) - head > MAX_ALIGNED:
        yield "replace", head, old_end, head, new_end
    else:
        matcher = SequenceMatcher(None, olds[head:old_end], news[head:new_end], autojunk=False)
        for tag, start, end, new_start, new_stop in matcher.get_opcodes():
            yield tag, head + start, head + end, head + new_start, head + new_stop
    yield "equal", old_end, len(olds), new_end, len(news)
