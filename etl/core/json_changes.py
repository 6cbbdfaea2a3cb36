"""Changes of JSON values: merge patches (RFC 7396), and the values that differ between two documents.

Numbers are compared digit for digit: 12.5 and 12.50 differ.
"""

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
    if the other value is not a container of the same kind."""

    before: Any
    after: Any
    pointer_before: str
    pointer_after: str

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
    def takes_null(self) -> bool: ...

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
        elif name in required and members.member(name).takes_null:
            merged[name] = None
        else:
            merged.pop(name, None)
    return merged


def pairs(before: Any, after: Any, *, pointer_before: str = "", pointer_after: str = "") -> Iterator[Pair]:
    """Yield all values of both documents. Items of lists that were inserted or removed do not shift the others."""
    if isinstance(before, dict) and isinstance(after, dict) and (before or after):
        members = [
            (name, name, before.get(name, ABSENT), after.get(name, ABSENT)) for name in dict.fromkeys([*before, *after])
        ]
    elif isinstance(before, list) and isinstance(after, list) and (before or after):
        members = list(items(before, after))
    else:
        yield Pair(before=before, after=after, pointer_before=pointer_before, pointer_after=pointer_after)
        return
    for name_before, name_after, one, other in members:
        yield from pairs(
            one, other, pointer_before=join(pointer_before, name_before), pointer_after=join(pointer_after, name_after)
        )


def items(before: list[Any], after: list[Any]) -> Iterator[tuple[int, int, Any, Any]]:
    """Yield the items of two lists, each with its index there. Equal items belong together."""
    olds, news = ([exact_json.dumps(item, is_sorted=True) for item in each] for each in (before, after))
    for tag, start, end, new_start, new_end in sections(olds, news):
        shared = end - start if tag == "equal" else min(end - start, new_end - new_start)
        for at in range(shared):
            yield start + at, new_start + at, before[start + at], after[new_start + at]
        for at in range(start + shared, end):
            yield at, new_start + shared, before[at], ABSENT
        for at in range(new_start + shared, new_end):
            yield start + shared, at, ABSENT, after[at]


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
