"""Merge of the responses for the pieces of a document, directed by the schema, without a model.

Objects are merged member by member. Of different scalars, the first in the document's order is used, and the conflict
is reported. Lists are joined; an equal item from another piece is kept once. A schema can change that:

- `"x-merge-key": "sku"` (or a list of names) at a list: items with the same key are merged into one;
- `"x-merge": "concat"` at a string: the strings of all pieces are joined; at a list: equal items are kept too.

Any other value replaces null and empty values. No value is invented: every scalar of the result comes from a piece, or
joins several. The result is deterministic.
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
    """A scalar, or a list whose items have a meaning by position, and the index of its piece (from 0)."""

    value: Any
    origin: int
    evidence: Evidence | None = None


Tree = dict[str, Any] | list[Any] | Leaf  # of trees
NOTHING = Leaf(value=None, origin=-1)


@dataclass(slots=True, kw_only=True)
class Merged:
    """The result of a merge. `leaves` by JSON Pointer. `conflicts`: a pointer, and the pieces that differ, first the
    used one. `repeats`: omitted items of a list that another piece has too."""

    data: Any = None
    leaves: dict[str, Leaf] = field(default_factory=dict)
    conflicts: list[tuple[str, list[int]]] = field(default_factory=list)
    repeats: Counter[str] = field(default_factory=Counter)


def merge(schema: Schema, answers: list[ParsedResponse]) -> Merged:
    guide = Guide.of(schema)
    empty: Any = {} if guide.is_of("object") else [] if guide.is_of("array") else None
    trees = [
        build_tree(guide, empty if answer.data is None else answer.data, answer, origin)
        for origin, answer in enumerate(answers)
    ]
    found = Merged()
    whole = fill_missing(guide, Merging(found).merge_trees(guide, trees, ""))
    found.data = plain(whole)
    found.leaves = dict(leaves(whole))
    return found


# ---- Trees ----------------------------------------------------------------------------------------------------------
def build_tree(guide: Guide, value: Any, answer: ParsedResponse, origin: int, pointer: str = "") -> Tree:
    """Return a value as a tree whose leaves have their origin. Null members are omitted: the piece does not have the
    value."""
    if isinstance(value, dict):
        return {
            name: build_tree(guide.member(name), inside, answer, origin, join(pointer, name))
            for name, inside in value.items()
            if inside is not None
        }
    if isinstance(value, list) and not guide.is_tuple:
        item = guide.item()
        return [
            build_tree(item, inside, answer, origin, join(pointer, index))
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


def comparison_key(tree: Tree) -> str:
    """Return a text that is equal for trees with equal values. Spacing and capitalization of strings are ignored."""
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
    """One merge, with its conflicts and repeats."""

    def __init__(self, found: Merged) -> None:
        self.found = found

    def merge_trees(self, guide: Guide, trees: list[Tree], pointer: str) -> Tree:
        """Merge the trees of one pointer, at least one, in the document's order."""
        filled = [tree for tree in trees if not is_blank(tree)]
        others = [tree for tree in filled if type(tree) is not type(filled[0])]
        if others:
            self.add_conflict(pointer, [filled[0], *others])
        candidates = filled or [tree for tree in trees if not is_null(tree)] or trees
        # Only blank scalars are dropped here. Lists are joined and objects merged, which handles their blank members.
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
            name: self.merge_trees(
                guide.member(name), [tree[name] for tree in trees if name in tree], join(pointer, name)
            )
            for name in names
        }

    def scalars(self, guide: Guide, trees: list[Leaf], pointer: str) -> Tree:
        by_value: dict[str, Leaf] = {}
        for tree in trees:
            by_value.setdefault(comparison_key(tree), tree)
        different = list(by_value.values())
        if guide.is_concatenated and all(isinstance(tree.value, str) for tree in trees):
            text = "\n".join(tree.value.strip() for tree in different)
            return Leaf(value=text if len(different) > 1 else trees[0].value, origin=trees[0].origin)
        if len(different) > 1:
            self.add_conflict(pointer, different)
        return trees[0]

    def lists(self, guide: Guide, trees: list[list[Tree]], pointer: str) -> Tree:
        if guide.is_concatenated:
            return [item for tree in trees for item in tree]
        groups = self.groups(guide, trees, pointer)
        item = guide.item()
        return [self.merge_trees(item, group, join(pointer, index)) for index, group in enumerate(groups)]

    def groups(self, guide: Guide, trees: list[list[Tree]], pointer: str) -> list[list[Tree]]:
        """Return the items of all lists, those that are the same in one group. Equal items of one piece are different
        ones, as two coffees on one bill are."""
        names = guide.merge_key or guide.item().merge_key
        groups: dict[tuple[str, int], list[Tree]] = {}
        for tree in trees:
            seen = Counter[str]()
            for item in tree:
                key = key_of(item, names)
                name = key or comparison_key(item)
                nth = 0 if key or guide.is_unique else seen[name]
                seen[name] += 1
                group = groups.setdefault((name, nth), [])
                if group and not key:
                    self.found.repeats[pointer] += 1
                else:
                    group.append(item)
        return list(groups.values())

    def add_conflict(self, pointer: str, trees: Sequence[Tree]) -> None:
        self.found.conflicts.append((pointer, list(dict.fromkeys(map(origin_of, trees)))))


def key_of(item: Tree, names: tuple[str, ...]) -> str:
    """Return the merge key of an item, or "" if a member of the key is missing."""
    if not names or not isinstance(item, dict) or any(name not in item or is_blank(item[name]) for name in names):
        return ""
    return "key " + comparison_key({name: item[name] for name in names})


# ---- Missing values -------------------------------------------------------------------------------------------------
def fill_missing(guide: Guide, tree: Tree, levels: int = MAX_LEVELS) -> Tree:
    """Fill required members that no piece has with null or an empty list, if the schema allows it."""
    if levels == 0 or isinstance(tree, Leaf):
        return tree
    if isinstance(tree, list):
        item = guide.item()
        return [fill_missing(item, inside, levels - 1) for inside in tree]
    whole = {name: fill_missing(guide.member(name), inside, levels - 1) for name, inside in tree.items()}
    for name in guide.required():
        if name not in whole:
            absent = missing_value(guide.member(name), levels - 1)
            whole |= {} if absent is None else {name: absent}
    return whole


def missing_value(guide: Guide, levels: int) -> Tree | None:
    """Return the value for "not found", or None if the schema allows none."""
    if guide.takes_null:
        return NOTHING
    if guide.is_of("array") and not guide.keyword("minItems"):
        return []
    return fill_missing(guide, {}, levels) if guide.is_of("object") and levels > 0 else None
