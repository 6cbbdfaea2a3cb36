"""JSON as an expandable tree, loaded in parts."""

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Any

from config.platform import exact_json
from config.platform.http.paging import whole_number
from config.platform.http.pointers import join, tokens, unescaped
from config.platform.http.problems import NotFound
from config.platform.plurals import counted
from etl.pages.explanations import MATCHES, Explanation, of_match
from etl.postprocessors.citations.levels import COMPUTED, CORRECTED, EXACT, NORMALIZED, NOT_FOUND

NODES = 300  # per response
CHILDREN = 100  # of one object or list, at a time
DEPTH = 8  # levels per response: each nests one more template
MAX_TEXT, MAX_NAME = 1_000, 100

# Matches that need no check by a person.
SURE = (EXACT, NORMALIZED)
PLACELESS = (COMPUTED, CORRECTED, NOT_FOUND)


@dataclass(slots=True, kw_only=True)
class Node:
    """A value. `children` is None for a container that is fetched when opened; `more` is the index of the next child.
    `source` is the citation; `unsourced` marks a value without the citation that it should have."""

    name: str
    pointer: str
    kind: str  # object, array, text, number, boolean, or nothing
    depth: int
    text: str = ""
    cut: int = 0  # length of the full text if it is truncated
    size: int = 0
    children: "list[Node] | None" = None
    more: int | None = None
    source: dict[str, Any] | None = None
    unsourced: bool = False

    @property
    def is_container(self) -> bool:
        return self.kind in ("object", "array")

    @property
    def counted(self) -> str:
        return counted(self.size, "field" if self.kind == "object" else "item")

    @property
    def is_sure(self) -> bool:
        return self.source is not None and self.source["match"] in SURE

    @property
    def level(self) -> Explanation:
        """The certainty of the citation."""
        return of_match(self.source["match"] if self.source else NOT_FOUND)


Sources = Mapping[str, dict[str, Any]] | None  # citations by pointer; None if the values need no citations
KINDS = {dict: "object", list: "array", str: "text", bool: "boolean", type(None): "nothing"}


def legend() -> list[dict[str, Any]]:
    """Return the levels of citations with their meanings and marks."""
    return [
        {
            "match": match,
            "level": level,
            "is_sure": match in SURE,
            "has_page": match not in PLACELESS,
        }
        for match, level in MATCHES.items()
    ]


def build(data: Any, sources: Sources, *, at: str = "", start: int = 0) -> Node:
    """Return the tree of the value at a JSON Pointer. A list or object has its members from `start` on.

    Raises NotFound if there is no such value.
    """
    whole = resolve(data, at)
    root = node_of(unescaped(at.rpartition("/")[2]), at, whole, sources, depth=0)
    queue, remaining = deque([(root, whole, start)]), NODES
    while queue:
        node, value, first = queue.popleft()
        if not node.is_container or node.depth >= DEPTH or (remaining <= 0 and node is not root):
            continue
        inside = list(islice(members(value), first, first + CHILDREN))
        node.children = [
            node_of(name, join(node.pointer, token), each, sources, depth=node.depth + 1)
            for name, token, each in inside
        ]
        node.more = first + CHILDREN if first + CHILDREN < node.size else None
        remaining -= len(inside)
        queue.extend((child, each, 0) for child, (_, _, each) in zip(node.children, inside, strict=True))
    return root


def members(value: Any) -> Any:
    """Yield the displayed name, the pointer token, and the value. Displayed names of items count from 1."""
    if isinstance(value, dict):
        return ((name, name, each) for name, each in value.items())
    return ((str(number + 1), str(number), each) for number, each in enumerate(value))


def node_of(name: str, pointer: str, value: Any, sources: Sources, *, depth: int) -> Node:
    node = Node(name=name[:MAX_NAME], pointer=pointer, kind=kind_of(value), depth=depth)
    if node.is_container:
        node.size = len(value)
        return node
    text = value if isinstance(value, str) else exact_json.dumps(value).decode()
    node.text, node.cut = text[:MAX_TEXT], len(text) if len(text) > MAX_TEXT else 0
    source = (sources or {}).get(pointer)
    node.source = source if source and source["match"] != NOT_FOUND else None
    node.unsourced = sources is not None and node.source is None and value is not None and value != ""
    return node


def kind_of(value: Any) -> str:
    return KINDS.get(type(value), "number")


def resolve(data: Any, pointer: str) -> Any:
    """Return the value at a JSON Pointer. Raises NotFound."""
    if pointer and not pointer.startswith("/"):
        raise NotFound
    value = data
    try:
        for token in tokens(pointer):
            value = value[index(token)] if isinstance(value, list) else value[token]
    except (LookupError, TypeError):
        raise NotFound from None
    return value


def index(token: str) -> int:
    """Return the list index of a JSON Pointer token. Raises LookupError for an invalid index, such as `-1` or `01`."""
    number = whole_number(token)
    if number is None or str(number) != token:
        raise LookupError
    return number
