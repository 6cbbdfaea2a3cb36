"""The merge of the responses for pieces according to the schema, without a model (B16)."""

import json
import time
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from etl.postprocessors.merge import Merged, merge
from etl.postprocessors.responses import Evidence, ParsedResponse, scalars
from etl.postprocessors.schemas import Guide, checked_for_pieces, envelope, relax, strip_annotations, without_anchors
from rules.schema import json_schema

SCALARS = st.none() | st.booleans() | st.integers(-5, 5) | st.sampled_from(["", "a", "A", "b c", "b  c"]) | st.just(0.5)
ITEMS = st.fixed_dictionaries({}, optional={"sku": SCALARS, "price": SCALARS})
DATA = st.fixed_dictionaries(
    {},
    optional={
        "name": SCALARS,
        "notes": SCALARS,
        "lines": st.none() | st.lists(ITEMS, max_size=4),
        "tags": st.none() | st.lists(SCALARS, max_size=4),
        "keyed": st.none() | st.lists(ITEMS, max_size=4),
        "inner": st.none()
        | st.fixed_dictionaries({}, optional={"name": SCALARS, "tags": st.lists(SCALARS, max_size=3)}),
        "odd": SCALARS | st.lists(SCALARS, max_size=2) | ITEMS,
    },
)
SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "name": {"type": ["string", "null"]},
        "notes": {"type": "string", "x-merge": "concat"},
        "lines": {"type": "array", "items": {"$ref": "#/$defs/line"}},
        "tags": {"type": "array", "items": {"type": "string"}},
        "keyed": {"type": "array", "x-merge-key": "sku", "items": {"$ref": "#/$defs/line"}},
        "inner": {"$ref": "#"},
    },
    "required": ["name"],
    "$defs": {"line": {"type": "object", "properties": {"sku": {"type": "string"}, "price": {"type": "number"}}}},
}


def merged(*data: Any, schema: dict[str, Any] | None = None) -> Merged:
    return merge(SCHEMA if schema is None else schema, [ParsedResponse(data=each) for each in data])


def merged_member(kind: dict[str, Any], *data: Any) -> Any:
    """Return the merged value of one member."""
    schema = {"type": "object", "properties": {"x": kind}}
    return merged(*({"x": each} for each in data), schema=schema).data.get("x")


def without_lists(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: without_lists(inside) for name, inside in value.items()}
    return [] if isinstance(value, list) else value


def conflicts(found: Merged) -> list[tuple[str, list[int]]]:
    return [(conflict.pointer, conflict.origins) for conflict in found.conflicts]


# ---- Properties -----------------------------------------------------------------------------------------------------
@given(st.lists(DATA, min_size=1, max_size=4))
def test_merging_is_deterministic(pieces: list[Any]) -> None:
    first, second = merged(*pieces), merged(*json.loads(json.dumps(pieces)))
    assert json.dumps(first.data) == json.dumps(second.data)
    assert (first.conflicts, first.repeats) == (second.conflicts, second.repeats)


@given(DATA)
def test_merging_is_idempotent_except_for_lists(piece: Any) -> None:
    once, twice = merged(piece), merged(piece, piece)
    assert without_lists(twice.data) == without_lists(once.data)
    # The only conflicts are between items of the piece that have the same key.
    assert [each.pointer for each in twice.conflicts] == [each.pointer for each in once.conflicts]
    assert merged(once.data).data == once.data


@given(DATA, st.lists(st.just({}), max_size=3), st.lists(st.just({}), max_size=3))
def test_empty_pieces_change_nothing(piece: Any, before: list[Any], after: list[Any]) -> None:
    assert merged(*before, piece, *after).data == merged(piece).data


@pytest.mark.slow
@given(st.lists(DATA, min_size=1, max_size=4))
def test_every_value_comes_from_a_piece(pieces: list[Any]) -> None:
    given_values = {json.dumps(value) for piece in pieces for _, value in scalars(piece)}
    given_lines = {value.strip() for piece in pieces for _, value in scalars(piece) if isinstance(value, str)}
    for pointer, value in scalars(merged(*pieces).data):
        if pointer == "/notes" and isinstance(value, str):
            assert set(value.split("\n")) <= given_lines | {""}
        elif value is not None and value not in ({}, []):
            assert json.dumps(value) in given_values


@given(st.lists(DATA, min_size=1, max_size=4))
@example([{"tags": [False]}, {"tags": [""]}])
def test_no_list_item_except_null_is_dropped(pieces: list[Any]) -> None:
    found = merged(*pieces)
    items = [item for piece in pieces for item in piece.get("tags") or () if item is not None]
    assert json.dumps(found.data.get("tags") or []) == json.dumps(items)
    lines = [item for piece in pieces for item in piece.get("lines") or ()]
    assert len(found.data.get("lines") or []) == len(lines)


@given(st.lists(DATA, min_size=1, max_size=4))
def test_the_first_non_empty_scalar_wins(pieces: list[Any]) -> None:
    names = [piece.get("name") for piece in pieces]
    nonblank = [name for name in names if name is not None and not (isinstance(name, str) and not name.strip())]
    found = merged(*pieces)
    if nonblank:
        assert found.data["name"] == nonblank[0]
        assert type(found.data["name"]) is type(nonblank[0])


@given(st.lists(DATA, min_size=1, max_size=4))
@example([{"notes": "A"}, {"notes": "a"}])
def test_each_leaf_records_its_piece(pieces: list[Any]) -> None:
    """The piece of a joined text is that of its first line."""
    found = merged(*pieces)
    for pointer, leaf in found.leaves.items():
        assert -1 <= leaf.origin < len(pieces)
        assert dict(scalars(found.data))[pointer] == leaf.value
        if leaf.origin >= 0:
            values = [value for _, value in scalars(pieces[leaf.origin])]
            is_joined = pointer == "/notes" and isinstance(leaf.value, str) and leaf.value not in values
            assert (leaf.value.split("\n")[0] if is_joined else leaf.value) in values


# ---- Cases ----------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("kind", "values", "result"),
    [
        ({"type": "string"}, [None, "", "b", "c"], "b"),
        ({"type": "number"}, [0, 5], 0),
        ({"type": "boolean"}, [False, True], False),
        ({"type": "array"}, [["a", "b"], ["b", "c"]], ["a", "b", "b", "c"]),
        ({"type": "array"}, [[{"a": 1}], [{"a": 1}], [{"a": 1}]], [{"a": 1}] * 3),  # for example, three equal sales
        ({"type": "array", "x-merge": "unique"}, [["a", "b"], ["b", "c"]], ["a", "b", "c"]),
        ({"type": "array", "x-merge": "unique"}, [["a1", "a"], ["A1", "a "]], ["a1", "a", "A1", "a "]),
        (
            {"type": "array", "x-merge": "unique"},
            [[{"a": 1, "b": None}], [{"b": None, "a": 1.0}]],
            [{"a": 1, "b": None}],
        ),
        ({"type": "number", "x-merge": "first"}, [None, 7, 3], 7),
        ({"type": "number", "x-merge": "last"}, [7, 3, 7, None], 7),
        ({"type": "number", "x-merge": "max"}, [7, 117.5, 30], 117.5),
        ({"type": "string", "x-merge": "max"}, ["2024-02-29", "2023-12-31"], "2024-02-29"),
        ({"type": "object", "x-merge": "last"}, [{"a": 1, "b": 1}, {"a": 2}], {"a": 2}),
        ({"type": "array"}, [["a", "a"], ["a"]], ["a", "a", "a"]),  # for example, two coffees on one bill
        ({"type": "array", "uniqueItems": True}, [["a", "a"], ["a"]], ["a"]),
        ({"type": "array", "x-merge": "concat"}, [["a"], ["a", "b"]], ["a", "a", "b"]),
        ({"type": "array", "items": {"type": "string"}}, [[None, "a"], None], ["a"]),
        ({"type": "array", "items": {"type": ["string", "null"]}}, [[None, "a"]], [None, "a"]),
        ({"type": "array", "prefixItems": [{}, {}]}, [[1, 2], [3, 4]], [1, 2]),
        ({"type": "string", "x-merge": "concat"}, ["One.", "Two.", "One."], "One.\nTwo."),
        ({"type": "object"}, [{"a": 1, "b": None}, {"a": 1, "b": 2}], {"a": 1, "b": 2}),
        ({}, [{"a": 1}, [1], "x"], {"a": 1}),
        ({}, [{}, [1]], [1]),
    ],
)
def test_it_merges_values_of_each_type(kind: dict[str, Any], values: list[Any], result: Any) -> None:
    assert merged_member(kind, *values) == result


def test_items_with_the_same_key_are_merged() -> None:
    first = {"keyed": [{"sku": "A", "price": None}, {"sku": "B", "price": 2}, {"price": 7}]}
    second = {"keyed": [{"sku": "B", "price": 3}, {"sku": "A", "price": 1}, {"price": 7}, {"sku": "b", "price": 4}]}

    found = merged(first, second)

    assert found.data["keyed"] == [
        {"sku": "A", "price": 1},
        {"sku": "B", "price": 2},
        {"price": 7},
        {"price": 7},
        {"sku": "b", "price": 4},
    ]
    assert conflicts(found) == [("/keyed/1", [0, 1])]
    chosen = merge(SCHEMA, [ParsedResponse(data=first), ParsedResponse(data=second)], choices={"/keyed/1": 1})
    assert chosen.data["keyed"][1] == {"sku": "B", "price": 3}


FIRM = {"type": "object", "properties": {"firm": {"type": "object"}}}


def test_an_object_comes_from_one_place() -> None:
    """B42: it must not have the name of one company and the tax ID of another."""
    found = merged({"firm": {"name": "ACME", "tax": None}}, {"firm": {"name": "Beta", "tax": "DE1"}}, schema=FIRM)
    assert found.data["firm"] == {"name": "Beta", "tax": "DE1"}
    assert conflicts(found) == [("/firm", [0, 1])]


def test_members_of_pieces_that_agree_are_united() -> None:
    found = merged({"firm": {"name": "ACME"}}, {"firm": {"name": "ACME", "tax": "DE1"}}, schema=FIRM)
    assert (found.data["firm"], found.conflicts) == ({"name": "ACME", "tax": "DE1"}, [])


def test_members_of_different_pieces_are_united_only_by_choice() -> None:
    pieces = [ParsedResponse(data={"firm": {"name": "ACME"}}), ParsedResponse(data={"firm": {"tax": "DE1"}})]
    found = merge(FIRM, pieces)
    assert found.data["firm"] == {"name": "ACME"}
    [conflict] = found.conflicts
    assert len(conflict.candidates) == 3
    assert merge(FIRM, pieces, choices={"/firm": 2}).data["firm"] == {"name": "ACME", "tax": "DE1"}


def test_members_with_their_own_x_merge_are_merged_separately() -> None:
    schema = {
        "type": "object",
        "properties": {
            "pay": {"type": "object", "properties": {"iban": {"x-merge": "last"}, "by": {"x-merge": "first"}}}
        },
    }
    found = merged({"pay": {"iban": "1", "by": "card"}}, {"pay": {"iban": "2"}}, schema=schema)
    assert (found.data["pay"], found.conflicts) == ({"iban": "2", "by": "card"}, [])


def test_a_schema_may_refuse_different_values() -> None:
    schema = {"type": "object", "properties": {"total": {"type": "number", "x-merge": "error"}}}
    [conflict] = merged({"total": 1}, {"total": 2}, schema=schema).conflicts
    assert (conflict.pointer, conflict.policy) == ("/total", "error")
    assert merged({"total": 1}, {"total": 1.0}, schema=schema).conflicts == []


@pytest.mark.parametrize("values", [["unknown", {"net": 1}, {"net": 2}], [{"net": 1}, {"net": 2}, "unknown"]])
def test_values_of_different_types_are_one_conflict(values: list[Any]) -> None:
    schema = {"type": "object", "properties": {"total": {}}}
    pieces = [ParsedResponse(data={"total": each}) for each in values]
    [conflict] = merge(schema, pieces).conflicts
    assert len(conflict.candidates) == 3
    for index, value in enumerate(values):
        assert merge(schema, pieces, choices={"/total": index}).data == {"total": value}


def test_many_items_with_the_same_key_are_merged_in_time() -> None:
    kind = {"type": "array", "x-merge-key": "rate", "items": {"type": "object"}}
    began = time.process_time()
    assert merged_member(kind, [{"rate": 19, "country": "DE"}] * 1_000) == [{"rate": 19, "country": "DE"}]
    assert time.process_time() - began < 5


@pytest.mark.parametrize(
    ("reference", "name", "anchor"),
    [("#/$defs/Head", "Head", {}), ("#/$defs/He%20ad", "He ad", {}), ("#/$defs/Stra%C3%9Fe", "Straße", {}),
     ("#head", "Head", {"$anchor": "head"}), ("#head", "He ad", {"$anchor": "head"})],
)  # fmt: skip
def test_each_kind_of_local_reference_can_be_used_in_pieces(reference: str, name: str, anchor: dict[str, str]) -> None:
    members = {"a": {"type": "string"}, "b": {"type": "string"}}
    head = {"type": "object", "properties": members, "required": ["a", "b"], **anchor}
    schema: dict[str, Any] = {"type": "object", "properties": {"head": {"$ref": reference}}, "$defs": {name: head}}
    assert json_schema.check(schema) == []
    schema = without_anchors(schema)
    assert json_schema.errors(checked_for_pieces(schema), {"head": {"a": "x"}}) == []
    assert json_schema.errors(schema, {"head": {"a": "x"}}) == [("/head", "The member 'b' is missing.")]
    assert Guide.of(schema).member("head").member("a").is_of("string")


@pytest.mark.parametrize(("outer", "inner"), [("$defs", "definitions"), ("definitions", "$defs")])
def test_definitions_may_refer_to_those_of_the_other_keyword(outer: str, inner: str) -> None:
    schema = {
        "type": "object",
        "properties": {"head": {"$ref": f"#/{outer}/head"}},
        outer: {"head": {"type": "object", "properties": {"seller": {"$ref": f"#/{inner}/party"}}}},
        inner: {"party": {"type": "object", "required": ["name"]}},
    }
    assert json_schema.errors(checked_for_pieces(schema), {"head": {"seller": {}}}) == []


def test_items_without_a_key_stay_as_they_are() -> None:
    """A regression test: members that may be null in only one of several alternatives were removed, which made the item
    invalid. Each item has been validated in its piece, so it is kept unchanged."""
    goods = {"properties": {"sku": {"type": "string"}, "amount": {"type": "number"}}, "required": ["sku"]}
    hours = {"properties": {"sku": {"type": "string"}, "amount": {"type": ["number", "null"]}}, "required": ["amount"]}
    schema = {"properties": {"rows": {"type": "array", "items": {"anyOf": [goods, hours]}}}}
    items = [{"sku": "A", "amount": None}, {"sku": "B", "amount": None, "discount": {"code": None}}, {"sku": "C"}]
    found = merge(schema, [ParsedResponse(data={"rows": items}), ParsedResponse(data={"rows": items[:1]})])
    assert found.data == {"rows": [*items, items[0]]}


def test_empty_members_of_an_item_stay() -> None:
    discount = {"type": "object", "properties": {"code": {"type": ["string", "null"]}}, "required": ["code"]}
    schema = {"properties": {"rows": {"type": "array", "items": {"properties": {"discount": discount}}}}}
    item = {"discount": {"code": None}}
    assert merge(schema, [ParsedResponse(data={"rows": [item]})]).data == {"rows": [item]}


def test_a_key_may_have_several_members() -> None:
    kind = {"type": "array", "items": {"type": "object", "x-merge-key": ["a", "b"]}}
    assert merged_member(kind, [{"a": 1, "b": 1}], [{"a": 1, "b": 2}, {"a": 1, "b": 1.0, "c": 3}]) == [
        {"a": 1, "b": 1, "c": 3},
        {"a": 1, "b": 2},
    ]


def test_conflicts_list_their_pieces() -> None:
    found = merged({"name": None}, {"name": "x"}, {"name": "X "}, {"name": "y"}, {"name": "z"}, {"name": "y"})
    assert found.data["name"] == "x"
    assert conflicts(found) == [("/name", [1, 3, 4])]


def test_numbers_and_booleans_differ() -> None:
    assert conflicts(merged({"name": 1}, {"name": True})) == [("/name", [0, 1])]
    assert merged({"name": 1}, {"name": 1.0}).conflicts == []


def test_missing_values_are_null_where_allowed() -> None:
    schema = {
        "type": "object",
        "properties": {
            "a": {"type": ["string", "null"]},
            "b": {"type": "string"},
            "c": {"type": "array"},
            "d": {"type": "array", "minItems": 1},
            "e": {
                "type": "object",
                "properties": {"f": {"anyOf": [{"type": "string"}, {"type": "null"}]}},
                "required": ["f"],
            },
        },
        "required": ["a", "b", "c", "d", "e"],
    }
    assert merged({}, None, schema=schema).data == {"a": None, "c": [], "e": {"f": None}}


def test_recursive_schemas_terminate() -> None:
    schema = {"type": "object", "properties": {"next": {"$ref": "#"}}, "required": ["next"]}
    assert merged({}, {"next": {}}, schema=schema).data["next"]


def test_evidence_follows_its_value() -> None:
    answers = [
        ParsedResponse(data={"tags": ["a"]}, evidence={"/tags/0": Evidence(page=1, quote="a")}),
        ParsedResponse(data={"tags": ["b"]}, evidence={"/tags/0": Evidence(page=2, quote="b")}),
    ]
    found = merge(SCHEMA, answers)
    assert found.leaves["/tags/1"].evidence == Evidence(page=2, quote="b")
    assert found.leaves["/tags/1"].origin == 1


# ---- Schemas --------------------------------------------------------------------------------------------------------
FULL = {
    "type": "object",
    "title": "T",
    "properties": {
        "title": {"type": "string", "description": "D", "minLength": 1, "x-merge": "concat"},
        "kind": {"const": "invoice"},
        "unit": {"enum": ["a", "b"]},
        "lines": {"type": "array", "minItems": 1, "items": {"type": "object", "required": ["sku"], "minProperties": 1}},
        "either": {"oneOf": [{"type": "string"}, {"type": "object", "required": ["x"]}]},
        "required": {"type": "integer"},
    },
    "required": ["title", "kind"],
    "dependentRequired": {"unit": ["title"]},
    "if": {"required": ["unit"]},
    "then": {"required": ["lines"]},
    "additionalProperties": False,
}


@pytest.mark.parametrize(
    "part",
    [
        *(
            {},
            {"title": None},
            {"kind": None, "unit": None},
            {"unit": "a"},
            {"lines": []},
            {"lines": [{}]},
            {"either": {}},
        ),
        *({"either": None}, {"required": None}, {"lines": [{"sku": 1}], "kind": "invoice"}),
    ],
)
def test_parts_of_a_valid_whole_match_the_relaxed_schema(part: Any) -> None:
    assert json_schema.errors(strip_annotations(relax(FULL)), part) == []


@pytest.mark.parametrize("part", [{"title": 1}, {"kind": "bill"}, {"unit": "c"}, {"lines": {}}, {"other": 1}, []])
def test_impossible_parts_do_not_match_the_relaxed_schema(part: Any) -> None:
    assert json_schema.errors(strip_annotations(relax(FULL)), part) != []


def test_schemas_without_annotations_keep_members_named_like_keywords() -> None:
    short = strip_annotations(FULL)
    assert "title" not in short
    assert short["properties"]["title"] == {"type": "string", "minLength": 1}


def test_schemas_are_not_modified() -> None:
    before = json.dumps(FULL)
    relax(FULL), strip_annotations(FULL), envelope(FULL, wants_evidence=True)
    assert json.dumps(FULL) == before


def test_guides_resolve_references_and_alternatives() -> None:
    root = {
        "anyOf": [{"$ref": "#/$defs/a~1b"}, {"type": "null"}],
        "$defs": {"a/b": {"allOf": [{"properties": {"x": {"type": "array", "items": {"x-merge-key": "k"}}}}]}},
    }
    guide = Guide.of(root)
    assert guide.allows_null
    assert guide.member("x").item().merge_key == ("k",)
    assert guide.member("nothing").parts == ({},)
    assert not Guide.of({"$ref": "#/nowhere/at/all"}).is_tuple
