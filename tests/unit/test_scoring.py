"""Scores of extracted data in comparison with expected data."""

import random
from itertools import permutations
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from config.platform import exact_json
from etl.evaluation import scoring

scalars = st.none() | st.booleans() | st.integers(-50, 50) | st.text("abAB 1é", max_size=6)
values = st.recursive(
    scalars,
    lambda inside: st.lists(inside, max_size=4) | st.dictionaries(st.sampled_from("xyz"), inside, max_size=3),
    max_leaves=14,
)


def total(result: scoring.Score) -> scoring.FieldScore:
    return scoring.total(result.fields)


def accuracy(expected: Any, found: Any) -> float:
    return total(scoring.score(expected, found)).accuracy


def shuffled(value: Any, chance: random.Random) -> Any:
    """Return the value with the items of its lists and the members of its objects in another order."""
    if isinstance(value, list):
        items = [shuffled(item, chance) for item in value]
        return chance.sample(items, len(items))
    if isinstance(value, dict):
        names = chance.sample(sorted(value), len(value))
        return {name: shuffled(value[name], chance) for name in names}
    return value


def fields(expected: Any, found: Any) -> dict[str, tuple[Any, int]]:
    return {name: (each.credit, each.values) for name, each in scoring.score(expected, found).fields.items()}


@given(values)
def test_a_value_equals_itself_with_the_full_score(value: Any) -> None:
    """B38."""
    result = scoring.score(value, value)
    assert total(result).accuracy == 1
    assert result.misses == []


@given(values, values)
def test_scores_are_between_0_and_1(expected: Any, found: Any) -> None:
    """B38."""
    result = scoring.score(expected, found)
    for each in (*result.fields.values(), total(result)):
        assert 0 <= each.credit <= each.values
    assert (total(result).accuracy == 1) is (not result.misses)


@given(values, values, st.randoms(use_true_random=False))
def test_the_order_of_lists_and_members_does_not_count(expected: Any, found: Any, chance: random.Random) -> None:
    """B38: the scores of all fields are exactly equal."""
    assert fields(shuffled(expected, chance), shuffled(found, chance)) == fields(expected, found)


@given(st.lists(st.lists(st.integers(0, 9), min_size=4, max_size=4), min_size=1, max_size=4))
def test_the_assignment_is_optimal(weights: list[list[int]]) -> None:
    """It is compared with every possible assignment."""
    chosen = scoring.optimal(len(weights), 4, lambda row, column: weights[row][column])
    best = max(
        sum(weights[row][column] for row, column in enumerate(columns))
        for columns in permutations(range(4), len(weights))
    )
    assert sorted(chosen) == list(range(len(weights)))
    assert len({*chosen.values()}) == len(weights)
    assert sum(weights[row][column] for row, column in chosen.items()) == best


@pytest.mark.parametrize(
    ("expected", "found", "score"),
    [
        ("1.0", "1.00", 1),
        ("12.50", "1.25e1", 1),
        ("90071992547409.93", "90071992547409.94", 0),
        ("1", "true", 0),
        ("0", "null", 0),
        ("12", '"12"', 0),
        ('"ACME  Ltd."', '"acme ltd."', 1),
        ('"\\ufb01nal"', '"final"', 1),
        ('"INV-2024-17"', '"INV-2024-18"', 0),
        ('"paid"', '"unpaid"', 0),
        ("null", "null", 1),
        ("null", "[]", 1),
        ("null", '"x"', 0),
        ("[]", '"x"', 0),
        ("{}", "1", 0),
        ('{"a": 1, "b": 2}', '{"a": 1}', 0.5),
        ('{"a": 1}', '{"a": 1, "b": 2}', 0.5),
        ('{"a": 1, "b": null}', '{"a": 1}', 1),
        ("[1, 2, 3]", "[3, 1, 2]", 1),
        ("[1, 1, 2]", "[1, 2, 2]", 2 / 3),
        ("[1, 2]", "[]", 0),
        ('{"a": 1}', "[1]", 0),
    ],
)
def test_values_are_compared(expected: str, found: str, score: float) -> None:
    """B38."""
    assert accuracy(exact_json.loads(expected), exact_json.loads(found)) == pytest.approx(score)


def test_similar_text_has_its_similarity() -> None:
    """B38."""
    assert 0.8 <= accuracy("Consulting services in March", "Consulting service in March") < 1
    assert accuracy("Consulting services in March", "Travel expenses") == 0


def test_items_are_paired_with_the_maximum_total_score() -> None:
    """B38: the first item is similar to both expected items, so it could be paired with the wrong one."""
    expected = [{"name": "a", "sum": 1, "tax": 2}, {"name": "a", "sum": 1, "tax": 9}]
    found = [{"name": "a", "sum": 1, "tax": 3}, {"name": "a", "sum": 7, "tax": 2}]
    result = scoring.score({"lines": expected}, {"lines": found})

    assert fields({"lines": expected}, {"lines": found}) == {
        "/lines/*/name": (2, 2),
        "/lines/*/sum": (1, 2),
        "/lines/*/tax": (1, 2),
    }
    assert [(each.field, each.expected, each.found) for each in result.misses] == [
        ("/lines/*/sum", 1, 7),
        ("/lines/*/tax", 9, 3),
    ]


@pytest.mark.parametrize("size", [150, 1_100])
def test_long_lists_are_compared(size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """B38: the assignment need not be optimal. The order does not count."""
    monkeypatch.setattr(scoring, "MAX_COMPARED", 2_000_000)
    expected: list[dict[str, Any]] = [{"id": f"item {number}", "sum": number} for number in range(size)]
    found = [{**each, "sum": each["sum"] + 0.5} for each in expected]
    for seed in (1, 2):
        random.Random(seed).shuffle(found)
        result = scoring.score(expected, found)
        assert (total(result).values, total(result).accuracy) == (2 * size, 0.5)


def nested(levels: int, size: int, value: int) -> Any:
    return [nested(levels - 1, size, value) for _ in range(size)] if levels else value


@pytest.mark.parametrize(("levels", "size"), [(2, 40), (11, 2)])
def test_lists_in_lists_do_not_multiply_the_work(levels: int, size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """B38: all lists of a comparison share one budget. Otherwise, 20 KB of nested lists would occupy a worker."""
    monkeypatch.setattr(scoring, "MAX_COMPARED", 500_000)
    costs: list[int] = []
    take = scoring.ComparisonBudget.take

    def record(budget: scoring.ComparisonBudget, cost: int) -> bool:
        is_taken = take(budget, cost)
        costs.append(cost if is_taken else 0)
        return is_taken

    monkeypatch.setattr(scoring.ComparisonBudget, "take", record)
    result = scoring.score({"m": nested(levels, size, 1)}, {"m": nested(levels, size, 2)})
    assert 0 < sum(costs) <= 500_000
    assert (total(result).values, total(result).accuracy) == (size**levels, 0)


def test_items_of_inner_lists_are_assigned() -> None:
    """B38."""
    expected = [{"id": "a", "parts": [{"no": 1, "sum": 5}, {"no": 2, "sum": 6}]}]
    found = [{"id": "a", "parts": [{"no": 2, "sum": 7}, {"no": 1, "sum": 5}]}]
    assert accuracy(expected, found) == 0.8
