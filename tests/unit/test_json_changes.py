"""Merge patches, and the comparison of two JSON documents. B37."""

from typing import Any

import pytest

from config.platform import exact_json
from etl.core.json_changes import ABSENT, MAX_ALIGNED, merge_patch, pairs
from etl.postprocessors.schemas import Guide


@pytest.mark.parametrize(
    ("target", "patch", "merged"),
    [
        ({"a": "b"}, {"a": "c"}, {"a": "c"}),
        ({"a": "b"}, {"b": "c"}, {"a": "b", "b": "c"}),
        ({"a": "b"}, {"a": None}, {}),
        ({"a": "b", "b": "c"}, {"a": None}, {"b": "c"}),
        ({"a": ["b"]}, {"a": "c"}, {"a": "c"}),
        ({"a": "c"}, {"a": ["b"]}, {"a": ["b"]}),
        ({"a": {"b": "c"}}, {"a": {"b": "d", "c": None}}, {"a": {"b": "d"}}),
        ({"a": [{"b": "c"}]}, {"a": [1]}, {"a": [1]}),
        (["a", "b"], ["c", "d"], ["c", "d"]),
        ({"a": "b"}, ["c"], ["c"]),
        ({"a": "foo"}, None, None),
        ({"a": "foo"}, "bar", "bar"),
        ({"e": None}, {"a": 1}, {"e": None, "a": 1}),
        ([1, 2], {"a": "b", "c": None}, {"a": "b"}),
        ({}, {"a": {"bb": {"ccc": None}}}, {"a": {"bb": {}}}),
    ],
)
def test_a_patch_is_applied_as_in_rfc_7396(target: Any, patch: Any, merged: Any) -> None:
    """B37: these are the examples in appendix A of the RFC."""
    assert merge_patch(target, patch, Guide.of({})) == merged


def test_null_does_not_remove_a_required_member_that_may_be_null() -> None:
    """B37: without the member, the object would not match the schema."""
    total = {"type": ["number", "null"]}
    inner = {"type": "object", "properties": {"total": total, "note": total}, "required": ["total"]}
    guide = Guide.of({"properties": {"sums": inner, "total": {"type": "number"}}, "required": ["total"]})
    before = {"total": 1, "sums": {"total": 2, "note": 3}}
    patch = {"total": None, "sums": {"total": None, "note": None}}
    assert merge_patch(before, patch, guide) == {"sums": {"total": None}}


def changes(before: str, after: str) -> list[tuple[str, Any, Any]]:
    found = pairs(exact_json.loads(before), exact_json.loads(after))
    return [(pair.pointer, pair.before, pair.after) for pair in found if pair.is_change]


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        ('{"a": 1}', '{"a": 1}', []),
        ('{"a": 1, "b": 2}', '{"b": 2, "a": 1}', []),
        ("{}", "[]", [("", {}, [])]),
        ('{"a": {"b": null}}', '{"a": {"b": false}}', [("/a/b", None, False)]),
        ('{"a": null}', "{}", [("/a", None, ABSENT)]),
        ('{"a/b": 1}', "{}", [("/a~1b", 1, ABSENT)]),
        ("[1, 2, 3]", "[1, 3]", [("/1", 2, ABSENT)]),
        ("[1, 2, 3]", "[1, 9, 2, 3]", [("/1", ABSENT, 9)]),
        ('[{"n": 1}, {"n": 2}]', '[{"n": 1}, {"n": 5}]', [("/1/n", 2, 5)]),
        ("[1, 2, 3, 4, 5]", "[2, 3, 4, 6]", [("/0", 1, ABSENT), ("/3", 5, 6)]),
    ],
)
def test_only_values_that_differ_are_changes(before: str, after: str, expected: list[tuple[str, Any, Any]]) -> None:
    assert changes(before, after) == expected


def test_another_notation_of_a_number_is_a_change() -> None:
    """B37: digits are significant."""
    assert [pointer for pointer, *_ in changes('{"a": 12.5, "b": 1}', '{"a": 12.50, "b": 1.0}')] == ["/a", "/b"]


def test_long_lists_are_compared_position_by_position() -> None:
    count = 2 * MAX_ALIGNED
    before, after = ([{"n": n} for n in range(count)], [{"n": n + 1} for n in range(count)])
    assert sum(pair.is_change for pair in pairs(before, after)) == count


A, B, C = (
    '{"sku": "A", "qty": 1, "price": 9}',
    '{"sku": "B", "qty": 1, "price": 8}',
    '{"sku": "C", "qty": 5, "price": 7}',
)


@pytest.mark.parametrize(
    ("before", "after", "uncertain"),
    [
        ([A, B, C], [A, C], set()),
        ([A, B, C], [A, B.replace("1", "2"), C], set()),
        ([A, B, C], [B.replace('"B"', '"B2"')], {"/0"}),
        ([A, B, C], [A, B.replace('"B"', '"B2"')], {"/1"}),
        ([A, B], [A.replace('"A"', '"A2"'), B.replace('"B"', '"B2"')], set()),
        (
            [A, B, C],
            [B.replace('"B"', '"B2"'), C.replace("5", "6"), '{"sku": "D", "qty": 5, "price": 1}'],
            {"/0", "/1"},
        ),
        ([A, B], [B.replace('"B"', '"A"'), A.replace('"A"', '"D"')], {"/0", "/1"}),
    ],
)
def test_items_that_may_have_been_replaced_are_uncertain(
    before: list[str], after: list[str], uncertain: set[str]
) -> None:
    found = pairs(*(exact_json.loads(f"[{', '.join(each)}]") for each in (before, after)))
    assert {pair.pointer_after.rpartition("/")[0] for pair in found if not pair.is_certain} == uncertain


def test_everything_in_an_uncertain_item_is_uncertain() -> None:
    before, after = [{"n": [{"a": 1}]}, {"n": [{"a": 2}]}], [{"n": [{"a": 2}, {"a": 3}]}]
    found = {pair.pointer: pair.is_certain for pair in pairs(before, after) if pair.pointer_after.startswith("/0/")}
    assert found == {"/0/n/0/a": False, "/0/n/1": False}


def test_equal_items_of_long_sections_are_certain() -> None:
    before = [{"n": n} for n in range(2 * MAX_ALIGNED)]
    after = [{"n": -1}, *before[1:-1], {"n": -2}]
    assert [pair.pointer for pair in pairs(before, after) if not pair.is_certain] == ["/0/n", f"/{len(before) - 1}/n"]
