"""Merge of the responses for the pieces of a document, directed by the schema, without a model.

No value is dropped, and values of different objects are not combined, unless the schema says so:

- Lists are concatenated. `"x-merge": "unique"` (or `uniqueItems`) keeps one of exactly equal items. `"x-merge-key":
  "sku"` (or a list of names) merges the items with exactly the same key.
- If scalars differ, `"x-merge": "first"`, `"last"`, or `"max"` selects one, and `"error"` fails. `"concat"` joins
  strings.
- An object without lists is taken from one piece: the object that contains all values of the others. If no object
  does, the objects differ, and `x-merge` selects one. Members with their own `x-merge` are merged separately. Items
  with the same key are treated as one object.

Differences that the schema does not resolve are conflicts. The argument `choices` of `merge` resolves them. No value is
invented: every scalar of the result comes from a piece, or joins the strings of several pieces. The result is
deterministic.
"""

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any

from config.platform import exact_json
from config.platform.http.pointers import join
from etl.postprocessors.responses import Evidence, ParsedResponse
from etl.postprocessors.schemas import Guide, Schema

MAX_LEVELS = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Leaf:
    """A scalar or a tuple, which is a list whose items have a meaning by position. `origin`: the index of its piece."""

    value: Any
    origin: int
    evidence: Evidence | None = None


Tree = dict[str, Any] | list[Any] | Leaf  # members and items are trees too
NULL_LEAF = Leaf(value=None, origin=-1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Conflict:
    """Different values for one pointer. `policy`: "error" if the schema's `x-merge` is that, else ""."""

    pointer: str
    candidates: tuple[Tree, ...]
    policy: str = ""

    @property
    def origins(self) -> list[int]:
        return list(dict.fromkeys(leaf.origin for tree in self.candidates for _, leaf in leaves(tree)))


@dataclass(slots=True, kw_only=True)
class Merged:
    """The result of a merge. `leaves`: the leaves by JSON Pointer. `repeats`: the number of items omitted from each
    list because they are exactly equal to another item."""

    data: Any = None
    leaves: dict[str, Leaf] = field(default_factory=dict)
    conflicts: list[Conflict] = field(default_factory=list)
    repeats: Counter[str] = field(default_factory=Counter)


def merge(schema: Schema, answers: list[ParsedResponse], *, choices: Mapping[str, int] | None = None) -> Merged:
    """Merge the data of the pieces. `choices`: the index of the candidate to use, by the conflict's pointer."""
    guide = Guide.of(schema)
    empty: Any = {} if guide.is_of("object") else [] if guide.is_of("array") else None
    trees = [
        build_tree(guide, empty if answer.data is None else answer.data, answer, origin)
        for origin, answer in enumerate(answers)
    ]
    found = Merged()
    whole = fill_missing(guide, Merger(found, choices or {}).merge_trees(guide, trees, ""))
    found.data = plain(whole)
    found.leaves = dict(leaves(whole))
    return found


# ---- Trees ----------------------------------------------------------------------------------------------------------
def build_tree(guide: Guide | None, value: Any, answer: ParsedResponse, origin: int, pointer: str = "") -> Tree:
    """Return a value as a tree whose leaves have an origin.

    A member that is null although the schema does not allow null is omitted: the piece does not have the value.
    Without a guide, nothing is omitted. This is for items without a merge key, which are complete in their piece.
    """
    if guide is None:
        return tree_without_guide(value, answer, origin, pointer)
    if isinstance(value, dict):
        return {
            name: build_tree(guide.member(name), inside, answer, origin, join(pointer, name))
            for name, inside in value.items()
            if inside is not None or guide.member(name).allows_null
        }
    if isinstance(value, list) and not guide.is_tuple:
        item = guide.item()
        return [
            build_tree(item if guide.is_keyed else None, inside, answer, origin, join(pointer, index))
            for index, inside in enumerate(value)
            if inside is not None or item.allows_null
        ]
    return Leaf(value=value, origin=origin, evidence=answer.evidence_for(pointer))


def tree_without_guide(value: Any, answer: ParsedResponse, origin: int, pointer: str) -> Tree:
    if isinstance(value, dict):
        return {name: tree_without_guide(inside, answer, origin, join(pointer, name)) for name, inside in value.items()}
    if isinstance(value, list):
        return [tree_without_guide(inside, answer, origin, join(pointer, at)) for at, inside in enumerate(value)]
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


def is_blank(tree: Tree) -> bool:
    if isinstance(tree, Leaf):
        return tree.value is None or (isinstance(tree.value, str) and not tree.value.strip())
    return all(map(is_blank, tree.values() if isinstance(tree, dict) else tree))


def is_null(tree: Tree) -> bool:
    return isinstance(tree, Leaf) and tree.value is None


def has_only_nulls(tree: Tree) -> bool:
    """Return whether a tree is an object that contains only nulls."""
    return isinstance(tree, dict) and all(is_null(inside) or has_only_nulls(inside) for inside in tree.values())


def loose_key(value: Any) -> str:
    """Return a text for comparing values. It ignores the amount of white space, and the case of texts without digits.
    Texts with digits keep their case, because it may distinguish identifiers."""
    return json.dumps(comparable(value, is_exact=False), sort_keys=True, default=str)


def exact_key(value: Any) -> str:
    return json.dumps(comparable(value, is_exact=True), sort_keys=True, default=str)


def comparable(value: Any, *, is_exact: bool) -> Any:
    if isinstance(value, str):
        spaced = " ".join(value.split())
        return value if is_exact else spaced if any(map(str.isdigit, value)) else spaced.casefold()
    if isinstance(value, int | float | Decimal) and not isinstance(value, bool):
        return ["number", exact_json.comparable(Decimal(str(value)))]
    if isinstance(value, dict):
        return {name: comparable(inside, is_exact=is_exact) for name, inside in value.items() if inside is not None}
    return [comparable(inside, is_exact=is_exact) for inside in value] if isinstance(value, list) else value


# ---- Merging --------------------------------------------------------------------------------------------------------
class Merger:
    """A merge in progress, which records conflicts and repeats in `found`."""

    def __init__(self, found: Merged, choices: Mapping[str, int]) -> None:
        self.found, self.choices = found, choices

    def merge_trees(self, guide: Guide, trees: list[Tree], pointer: str, *, is_same: bool = False) -> Tree:
        """Merge the trees of one pointer. There is at least one, and they are in document order. `is_same`: they
        describe the same object."""
        filled = [tree for tree in trees if not is_blank(tree)]
        if any(type(tree) is not type(filled[0]) for tree in filled):
            chosen = self.choose(guide, filled, pointer)
            # Lists are concatenated. Other objects or scalars would be a second conflict for the same pointer.
            is_list = isinstance(chosen, list)
            filled = trees = [tree for tree in filled if isinstance(tree, list)] if is_list else [chosen]
        candidates = filled or [tree for tree in trees if not is_null(tree)] or trees
        # Only blank scalars are dropped here. Lists are joined and objects merged, which handles their blank members.
        sources = candidates if isinstance(candidates[0], Leaf) else trees
        alike = [tree for tree in sources if type(tree) is type(candidates[0])]
        if isinstance(alike[0], dict):
            return self.objects(guide, [tree for tree in alike if isinstance(tree, dict)], pointer, is_same=is_same)
        if isinstance(alike[0], list):
            return self.lists(guide, [tree for tree in alike if isinstance(tree, list)], pointer)
        return self.scalars(guide, [tree for tree in alike if isinstance(tree, Leaf)], pointer)

    def objects(self, guide: Guide, trees: list[dict[str, Tree]], pointer: str, *, is_same: bool) -> Tree:
        names = dict.fromkeys(name for tree in trees for name in tree)
        if pointer and not any(isinstance(inside, list) for tree in trees for inside in tree.values()):
            whole = self.choose_object(guide, trees, pointer, is_same=is_same)
            names = {name: None for name in names if name in whole or guide.member(name).policy}
        else:
            whole = {}
        return {
            name: whole[name]
            if name in whole and not guide.member(name).policy
            else self.merge_trees(
                guide.member(name), [tree[name] for tree in trees if name in tree], join(pointer, name)
            )
            for name in names
        }

    def choose_object(
        self, guide: Guide, trees: list[dict[str, Tree]], pointer: str, *, is_same: bool
    ) -> dict[str, Tree]:
        """Return the object of one piece. Objects that agree in a member may still be different objects."""
        own = {name for tree in trees for name in tree if guide.member(name).policy}
        parts = [{name: inside for name, inside in tree.items() if name not in own} for tree in trees]
        is_agreed = agree(parts)
        places = maximal_objects([part for part in parts if not is_blank(part)])
        if len(places) < 2 or (is_same and is_agreed):  # noqa: PLR2004 - there is nothing to choose
            return union(*(places if not is_same else ()), *parts)
        fullest = max(range(len(places)), key=lambda at: sum(not is_blank(leaf) for _, leaf in leaves(places[at])))
        choices: list[Tree] = [*places, union(*places)] if is_agreed else [*places]
        chosen = self.choose(guide, choices, pointer, default=fullest)
        return chosen if isinstance(chosen, dict) else places[fullest]

    def scalars(self, guide: Guide, trees: list[Leaf], pointer: str) -> Tree:
        if guide.policy == "concat" and all(isinstance(tree.value, str) for tree in trees):
            texts = dict.fromkeys(tree.value.strip() for tree in trees)
            return Leaf(value="\n".join(texts) if len(texts) > 1 else trees[0].value, origin=trees[0].origin)
        by_value: dict[str, Leaf] = {}
        for tree in reversed(trees) if guide.policy == "last" else trees:
            by_value.setdefault(loose_key(plain(tree)), tree)
        if len(by_value) == 1:
            return trees[0]
        inside = list(by_value.values())
        return self.choose(guide, inside[::-1] if guide.policy == "last" else inside, pointer)

    def choose(self, guide: Guide, different: Sequence[Tree], pointer: str, *, default: int = 0) -> Tree:
        """Return one of several values, selected by the schema. If the schema does not select one, record a conflict
        and use the given choice or the default."""
        match guide.policy:
            case "first":
                return different[0]
            case "last":
                return different[-1]
            case "max" if all(isinstance(tree, Leaf) for tree in different):
                return max(different, key=lambda tree: sort_key(plain(tree)))
        policy = "error" if guide.policy == "error" else ""
        self.found.conflicts.append(Conflict(pointer=pointer, candidates=tuple(different), policy=policy))
        return different[self.choices.get(pointer, default)]

    def lists(self, guide: Guide, trees: list[list[Tree]], pointer: str) -> Tree:
        names = guide.item_key
        items = [item for tree in trees for item in tree]
        if not names and not guide.is_unique:
            return items
        groups: dict[str, list[Tree]] = {}
        for at, item in enumerate(items):
            key = key_of(item, names) or (exact_key(plain(item)) if guide.is_unique else f"item {at}")
            groups.setdefault(key, []).append(item)
        if guide.is_unique and not names:
            self.found.repeats[pointer] += len(items) - len(groups)
            return [group[0] for group in groups.values()]
        return [
            self.merge_trees(guide.item(), group, join(pointer, at), is_same=True)
            for at, group in enumerate(groups.values())
        ]


def values_of(part: dict[str, Tree]) -> dict[str, str]:
    """Return the members of an object that are not blank, with texts for comparing their values."""
    return {name: loose_key(plain(inside)) for name, inside in part.items() if not is_blank(inside)}


def agree(parts: list[dict[str, Tree]]) -> bool:
    """Return whether each member has the same value in all objects that have it."""
    values: dict[str, str] = {}
    return all(values.setdefault(name, value) == value for part in parts for name, value in values_of(part).items())


def maximal_objects(parts: list[dict[str, Tree]]) -> list[dict[str, Tree]]:
    """Return the objects whose values are not contained in another object. Of equal objects, return the first."""
    values = [values_of(part) for part in parts]
    order = sorted(range(len(parts)), key=lambda at: -len(values[at]))
    found: list[int] = []
    for at in order:
        if not any(values[at].items() <= values[other].items() for other in found):
            found.append(at)
    return [parts[at] for at in sorted(found)]


def union(*parts: dict[str, Tree]) -> dict[str, Tree]:
    """Return the union of the objects, with the first value of each member that is not blank."""
    whole: dict[str, Tree] = {}
    for part in parts:
        whole |= {
            name: inside
            for name, inside in part.items()
            if name not in whole or (is_blank(whole[name]) and not is_null(inside))
        }
    return whole


def sort_key(value: Any) -> tuple[Decimal, str]:
    """Return a sort key for numbers, or for text such as ISO dates."""
    is_number = isinstance(value, int | float | Decimal) and not isinstance(value, bool)
    return (Decimal(str(value)), "") if is_number else (Decimal(0), str(value))


def key_of(item: Tree, names: tuple[str, ...]) -> str:
    """Return the merge key of an item, or "" if a member of the key is missing."""
    if not names or not isinstance(item, dict) or any(name not in item or is_blank(item[name]) for name in names):
        return ""
    return "key " + exact_key(plain({name: item[name] for name in names}))


# ---- Missing values -------------------------------------------------------------------------------------------------
def fill_missing(guide: Guide, tree: Tree, levels: int = MAX_LEVELS) -> Tree:
    """Fill required members that no piece has with null or an empty list, if the schema allows it. Items without a
    merge key are not filled, because they are complete in their piece."""
    if levels == 0 or isinstance(tree, Leaf):
        return tree
    if isinstance(tree, list):
        item = guide.item()
        return [fill_missing(item, inside, levels - 1) for inside in tree] if guide.is_keyed else tree
    required = guide.required()
    # Some models write a missing object as an object that contains only nulls.
    empty = {
        name for name in tree.keys() - set(required) if has_only_nulls(tree[name]) and guide.member(name).required()
    }
    whole = {name: fill_missing(guide.member(name), tree[name], levels - 1) for name in tree if name not in empty}
    for name in required:
        if name not in whole:
            absent = missing_value(guide.member(name), levels - 1)
            whole |= {} if absent is None else {name: absent}
    return whole


def missing_value(guide: Guide, levels: int) -> Tree | None:
    """Return the value that means "not found", or None if the schema does not allow one."""
    if guide.allows_null:
        return NULL_LEAF
    if guide.is_of("array") and not guide.keyword("minItems"):
        return []
    return fill_missing(guide, {}, levels) if guide.is_of("object") and levels > 0 else None
