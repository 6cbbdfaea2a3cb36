"""JSON as a tree to look at: as much as is read at once, and the rest when it is opened."""

import json
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

from config.platform.http.pointers import join, tokens, unescaped
from config.platform.http.problems import NotFound

NODES = 300  # of one answer
CHILDREN = 100  # of one object or list, at a time
DEPTH = 8  # of one answer: templates nest as deep
LONGEST_TEXT, LONGEST_NAME = 1_000, 100

# How sure a citation is, for people. Those of `match: value` have no quote of the model's that holds.
SURE = ("exact", "normalized", "numeric")


@dataclass(slots=True, kw_only=True)
class Node:
    """A value. `children` are None of what holds some and is fetched when it is opened; `more` is where the next ones
    begin. `source` is its citation; `unsourced`: it has none, and should have."""

    name: str
    pointer: str
    kind: str  # object, array, text, number, truth or nothing
    depth: int
    text: str = ""
    cut: int = 0  # characters of the whole text, where it is not shown whole
    size: int = 0
    children: "list[Node] | None" = None
    more: int | None = None
    source: dict[str, Any] | None = None
    unsourced: bool = False

    @property
    def holds(self) -> bool:
        return self.kind in ("object", "array")

    @property
    def counted(self) -> str:
        word = "field" if self.kind == "object" else "item"
        return f"{self.size:,} {word}" + ("" if self.size == 1 else "s")

    @property
    def is_sure(self) -> bool:
        return self.source is not None and self.source["match"] in SURE


@dataclass(slots=True)
class Sources:
    """The citations of a result by pointer."""

    citations: Sequence[Mapping[str, Any]]
    by_pointer: dict[str, dict[str, Any]] = field(init=False)

    def __post_init__(self) -> None:
        self.by_pointer = {str(each["pointer"]): dict(each) for each in self.citations}


def grow(data: Any, sources: Sources, *, at: str = "", start: int = 0) -> Node:
    """Return the tree of what a JSON Pointer points at; of a list or object the members from `start` on.

    Raises NotFound where it points at nothing.
    """
    root = node_of(name_of(at), at, resolve(data, at), sources, depth=0)
    waiting, left = deque([(root, resolve(data, at), start)]), NODES
    while waiting:
        node, value, first = waiting.popleft()
        if not node.holds or node.depth >= DEPTH or (left <= 0 and node is not root):
            continue
        inside = list(islice(members(value), first, first + CHILDREN))
        node.children = [
            node_of(name, join(node.pointer, token), each, sources, depth=node.depth + 1)
            for name, token, each in inside
        ]
        node.more = first + CHILDREN if first + CHILDREN < node.size else None
        left -= len(inside)
        waiting.extend((child, each, 0) for child, (_, _, each) in zip(node.children, inside, strict=True))
    return root


def members(value: Any) -> Any:
    """Yield the name that is shown, the token of the pointer, and the value. Items are counted from 1 for people."""
    if isinstance(value, dict):
        return ((name, name, each) for name, each in value.items())
    return ((str(number + 1), str(number), each) for number, each in enumerate(value))


def node_of(name: str, pointer: str, value: Any, sources: Sources, *, depth: int) -> Node:
    kind = kind_of(value)
    node = Node(name=name[:LONGEST_NAME], pointer=pointer, kind=kind, depth=depth)
    if node.holds:
        node.size = len(value)
        return node
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    node.text, node.cut = text[:LONGEST_TEXT], len(text) if len(text) > LONGEST_TEXT else 0
    node.source = sources.by_pointer.get(pointer)
    node.unsourced = node.source is None and value is not None and value != ""
    return node


def kind_of(value: Any) -> str:
    match value:
        case dict():
            return "object"
        case list():
            return "array"
        case str():
            return "text"
        case bool():
            return "truth"
        case None:
            return "nothing"
    return "number"


def name_of(pointer: str) -> str:
    return unescaped(pointer.rpartition("/")[2])


def resolve(data: Any, pointer: str) -> Any:
    """Return what a JSON Pointer points at. Raises NotFound."""
    value = data
    try:
        for token in tokens(pointer):
            value = value[int(token)] if isinstance(value, list) else value[token]
    except (LookupError, TypeError, ValueError):
        raise NotFound from None
    return value
