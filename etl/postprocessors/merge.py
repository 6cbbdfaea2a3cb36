"""What several pieces of a document gave, as one value, guided by the schema and by no model.

Objects are merged member by member. Of scalars the first in the document's order counts, and pieces that say otherwise
are reported. Lists are joined; an item that two pieces gave alike is kept once. A schema may say more:

- `"x-merge-key": "sku"` (or a list of names) at a list: items with the same key are one, and are merged;
- `"x-merge": "concat"` at a string: the pieces' strings after one another; at a list: every item, also equal ones.

Null, and what is empty, gives way to anything else. Nothing is made up: every scalar of the result is one that a
piece gave, or several joined. The same pieces give the same result.
"""

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from config.platform.http.pointers import join
from etl.postprocessors.responses import Evidence, ParsedResponse
from etl.postprocessors.schemas import Guide, Schema

MAX_LEVELS = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Leaf:
    """A scalar, or a list whose items have meanings by their places, and the piece that gave it (from 0)."""

    value: Any
    origin: int
    evidence: Evidence | None = None


Tree = dict[str, Any] | list[Any] | Leaf  # of trees
NOTHING = Leaf(value=None, origin=-1)


@dataclass(slots=True, kw_only=True)
class Merged:
    """`leaves`: by JSON Pointer. `conflicts`: a place, and the pieces that say different things of it, the one that was
    taken first. `repeats`: how many items of a list were left out since another piece gave the same."""

    data: Any = None
    leaves: dict[str, Leaf] = field(default_factory=dict)
    conflicts: list[tuple[str, list[int]]] = field(default_factory=list)
    repeats: Counter[str] = field(default_factory=Counter)


def merge(schema: Schema, answers: list[ParsedResponse]) -> Merged:
    guide = Guide.of(schema)
    empty: Any = {} if guide.is_of("object") else [] if guide.is_of("array") else None
    trees = [
        grown(guide, empty if answer.data is None else answer.data, answer, origin)
        for origin, answer in enumerate(answers)
    ]
    found = Merged()
    whole = settled(guide, Merging(found).together(guide, trees, ""))
    found.data = plain(whole)
    found.leaves = dict(leaves(whole))
    return found


# ---- Trees ----------------------------------------------------------------------------------------------------------
def grown(guide: Guide, value: Any, answer: ParsedResponse, origin: int, pointer: str = "") -> Tree:
    """Return a value as a tree whose leaves know where they are from. Members that are null are left out: they say that
    something was not here."""
    if isinstance(value, dict):
        return {
            name: grown(guide.member(name), inside, answer, origin, join(pointer, name))
            for name, inside in value.items()
            if inside is not None
        }
    if isinstance(value, list) and not guide.is_tuple:
        item = guide.item()
        return [
            grown(item, inside, answer, origin, join(pointer, index))
            for index, inside in enumerate(value)
            if inside is not None or item.takes_null
        ]
    return Leaf(value=value, origin=origin, evidence=answer.evidence_for(pointer))


def plain(tree: Tree) -> Any:
    if isinstance(tree, Leaf):
        return tree.value
    if isinstance(tree, dict):
        return {name: plain(inside) for name, inside in tree.items()}
    return [plain(inside) for inside in tree]


def leaves(tree: Tree, pointer: str = "") -> Iterator[tuple[str, Leaf]]:
    if isinstance(tree, Leaf):
        yield pointer, tree
        return
    for name, inside in tree.items() if isinstance(tree, dict) else enumerate(tree):
        yield from leaves(inside, join(pointer, name))


def origin_of(tree: Tree) -> int:
    return next((leaf.origin for _, leaf in leaves(tree)), -1)


def is_blank(tree: Tree) -> bool:
    if isinstance(tree, Leaf):
        return tree.value is None or (isinstance(tree.value, str) and not tree.value.strip())
    return all(map(is_blank, tree.values() if isinstance(tree, dict) else tree))


def is_null(tree: Tree) -> bool:
    return isinstance(tree, Leaf) and tree.value is None


def sameness(tree: Tree) -> str:
    """Return a text that is equal for trees with equal values; how strings are spaced and capitalised counts not."""
    return json.dumps(comparable(plain(tree)), sort_keys=True)


def comparable(value: Any) -> Any:
    if isinstance(value, str):
        return " ".join(value.split()).casefold()
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, dict):
        return {name: comparable(inside) for name, inside in value.items() if inside is not None}
    return [comparable(inside) for inside in value] if isinstance(value, list) else value


# ---- Merging --------------------------------------------------------------------------------------------------------
class Merging:
    """One merge, and what it has to report."""

    def __init__(self, found: Merged) -> None:
        self.found = found

    def together(self, guide: Guide, trees: list[Tree], pointer: str) -> Tree:
        """Return one tree for those that pieces gave for one place; at least one, in the document's order."""
        telling = [tree for tree in trees if not is_blank(tree)]
        others = [tree for tree in telling if type(tree) is not type(telling[0])]
        if others:
            self.disagree(pointer, [telling[0], *others])
        candidates = telling or [tree for tree in trees if not is_null(tree)] or trees
        # Only scalars give way: lists are joined and objects merged, and what is blank in them is seen to there.
        sources = candidates if isinstance(candidates[0], Leaf) else trees
        alike = [tree for tree in sources if type(tree) is type(candidates[0])]
        if isinstance(alike[0], dict):
            return self.objects(guide, [tree for tree in alike if isinstance(tree, dict)], pointer)
        if isinstance(alike[0], list):
            return self.lists(guide, [tree for tree in alike if isinstance(tree, list)], pointer)
        return self.scalars(guide, [tree for tree in alike if isinstance(tree, Leaf)], pointer)

    def objects(self, guide: Guide, trees: list[dict[str, Tree]], pointer: str) -> Tree:
        names = dict.fromkeys(name for tree in trees for name in tree)
        return {
            name: self.together(guide.member(name), [tree[name] for tree in trees if name in tree], join(pointer, name))
            for name in names
        }

    def scalars(self, guide: Guide, trees: list[Leaf], pointer: str) -> Tree:
        by_value: dict[str, Leaf] = {}
        for tree in trees:
            by_value.setdefault(sameness(tree), tree)
        different = list(by_value.values())
        if guide.is_concatenated and all(isinstance(tree.value, str) for tree in trees):
            text = "\n".join(tree.value.strip() for tree in different)
            return Leaf(value=text if len(different) > 1 else trees[0].value, origin=trees[0].origin)
        if len(different) > 1:
            self.disagree(pointer, different)
        return trees[0]

    def lists(self, guide: Guide, trees: list[list[Tree]], pointer: str) -> Tree:
        if guide.is_concatenated:
            return [item for tree in trees for item in tree]
        groups = self.groups(guide, trees, pointer)
        item = guide.item()
        return [self.together(item, group, join(pointer, index)) for index, group in enumerate(groups)]

    def groups(self, guide: Guide, trees: list[list[Tree]], pointer: str) -> list[list[Tree]]:
        """Return the items of all lists, those that are the same in one group. Equal items of one piece are different
        ones, as two coffees on one bill are."""
        names = guide.merge_key or guide.item().merge_key
        groups: dict[tuple[str, int], list[Tree]] = {}
        for tree in trees:
            seen = Counter[str]()
            for item in tree:
                key = key_of(item, names)
                name = key or sameness(item)
                nth = 0 if key or guide.is_unique else seen[name]
                seen[name] += 1
                group = groups.setdefault((name, nth), [])
                if group and not key:
                    self.found.repeats[pointer] += 1
                else:
                    group.append(item)
        return list(groups.values())

    def disagree(self, pointer: str, trees: Sequence[Tree]) -> None:
        self.found.conflicts.append((pointer, list(dict.fromkeys(map(origin_of, trees)))))


def key_of(item: Tree, names: tuple[str, ...]) -> str:
    """Return what an item is known by, "" if it has not all of that."""
    if not names or not isinstance(item, dict) or any(name not in item or is_blank(item[name]) for name in names):
        return ""
    return "key " + sameness({name: item[name] for name in names})


# ---- What was found nowhere -----------------------------------------------------------------------------------------
def settled(guide: Guide, tree: Tree, levels: int = MAX_LEVELS) -> Tree:
    """Return the tree with null, or an empty list, where a member must be there, may be that, and no piece had it."""
    if levels == 0 or isinstance(tree, Leaf):
        return tree
    if isinstance(tree, list):
        item = guide.item()
        return [settled(item, inside, levels - 1) for inside in tree]
    whole = {name: settled(guide.member(name), inside, levels - 1) for name, inside in tree.items()}
    for name in guide.required():
        if name not in whole:
            absent = absence(guide.member(name), levels - 1)
            whole |= {} if absent is None else {name: absent}
    return whole


def absence(guide: Guide, levels: int) -> Tree | None:
    """Return what says that nothing was found, or None where the schema has no way to say so."""
    if guide.takes_null:
        return NOTHING
    if guide.is_of("array") and not guide.word("minItems"):
        return []
    return settled(guide, {}, levels) if guide.is_of("object") and levels > 0 else None
