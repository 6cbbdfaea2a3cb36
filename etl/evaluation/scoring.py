"""Scores of extracted data against expected data. Pure functions; `docs/rules.md` describes the measures for users.

Both are compared value by value. An expected value scores 1 if the same value was extracted. A value that exists on
only one side scores 0. The accuracy is the mean. Values are grouped by field. The pointer of a field has `*` for the
positions of lists: `/lines/*/amount`.

- Empty values: null, an empty list, an empty object, and a missing member are equal.
- Numbers: equal as exact decimals, so 1.0 equals 1.00.
- Text: equal without regard to case, white space, and Unicode forms. Otherwise, the score is the similarity, which is
  the Sørensen-Dice coefficient of pairs of characters, if it is at least 0.8 and all digits are equal. If not, the
  score is 0, because a wrong digit makes an invoice number entirely wrong.
- Lists: the order does not matter. Equal items are paired first, and the others so that their total score is maximal.
"""

import json
import re
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from fractions import Fraction
from itertools import zip_longest
from typing import Any

from config.platform import exact_json
from config.platform.http.pointers import join
from etl.core.json_changes import ABSENT

MIN_SIMILARITY = Fraction(8, 10)
ANY = "*"
# Maximum number of pairs for an optimal assignment of list items. With more, each expected item gets the best remaining
# item.
MAX_OPTIMAL = 10_000
# Maximum number of JSON characters to compare for the assignment of items, which takes a few seconds. Longer lists are
# sorted and paired in order. 300 items of 70 characters against 300 others take 13 million.
MAX_COMPARED = 20_000_000
STEP = 3  # cost of a step of the assignment, in compared characters
DIGITS = re.compile(r"\d+")
Credit = int | Fraction


@dataclass(frozen=True, slots=True, kw_only=True)
class ValueScore:
    """The score of one value. `credit`: from 0 to 1. `expected` or `found` is ABSENT if only the other one exists."""

    field: str
    credit: Credit
    expected: Any
    found: Any


@dataclass(slots=True)
class FieldScore:
    credit: Credit = 0
    values: int = 0

    @property
    def accuracy(self) -> float:
        return float(self.credit / self.values) if self.values else 1.0


@dataclass(slots=True, kw_only=True)
class Score:
    """The scores by field, and the values that are not entirely correct (`misses`)."""

    fields: dict[str, FieldScore] = field(default_factory=dict)
    misses: list[ValueScore] = field(default_factory=list)


class ComparisonBudget:
    """The number of characters that can still be compared to assign items. Without it, nested lists would multiply the
    work."""

    def __init__(self, left: int) -> None:
        self.left = left

    def take(self, cost: int) -> bool:
        """Subtract the cost. Return False, and subtract nothing, if the budget is too small."""
        if cost > self.left:
            return False
        self.left -= cost
        return True


def total(fields: dict[str, FieldScore]) -> FieldScore:
    """Return the score of all values. All values have the same weight, so a long list weighs more than a scalar."""
    return FieldScore(sum(each.credit for each in fields.values()), sum(each.values for each in fields.values()))


def score(expected: Any, found: Any) -> Score:
    """Compare JSON values. `found` is ABSENT if nothing was extracted."""
    result = Score()
    for value in compare(prepare(expected), prepare(found), "", ComparisonBudget(MAX_COMPARED)):
        entry = result.fields.setdefault(value.field, FieldScore())
        entry.credit += value.credit
        entry.values += 1
        if value.credit != 1:
            result.misses.append(value)
    return result


# ---- Values ---------------------------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """A JSON value, prepared for comparisons. `key`: a sort key, which is the same for equal values.

    `values`: number of values in it. `members`: of an object. `items`: of a list, in the order of their keys.
    """

    value: Any
    key: str
    values: int = 1
    members: dict[str, "Node"] = field(default_factory=dict)
    items: list["Node"] = field(default_factory=list)

    @property
    def is_empty(self) -> bool:
        return not self.key


MISSING = Node(value=ABSENT, key="")


def prepare(value: Any) -> Node:
    if value is ABSENT or value is None or value in ([], {}):
        return Node(value=value, key="")
    if isinstance(value, dict):
        members = {name: prepare(value[name]) for name in sorted(value)}
        key = "{" + ",".join(f"{json.dumps(name)}:{each.key}" for name, each in members.items()) + "}"
        return Node(value=value, key=key, values=sum(each.values for each in members.values()), members=members)
    if isinstance(value, list):
        items = sorted(map(prepare, value), key=lambda each: each.key)
        key = "[" + ",".join(each.key for each in items) + "]"
        return Node(value=value, key=key, values=sum(each.values for each in items), items=items)
    return Node(value=value, key=canonical(value))


def compare(expected: Node, found: Node, place: str, budget: ComparisonBudget) -> Iterator[ValueScore]:
    if expected.is_empty and found.is_empty:
        if expected.value is not ABSENT:
            yield ValueScore(field=place, credit=1, expected=expected.value, found=found.value)
    elif both_are(dict, expected, found):
        for name in sorted({*expected.members, *found.members}):
            one, other = (each.members.get(name, MISSING) for each in (expected, found))
            yield from compare(one, other, join(place, name), budget)
    elif both_are(list, expected, found):
        for one, other in pairs(expected.items, found.items, budget):
            yield from compare(one, other, join(place, ANY), budget)
    elif any(each.members or each.items for each in (expected, found)):  # different types
        yield from compare(expected, MISSING, place, budget)
        yield from compare(MISSING, found, place, budget)
    else:
        credit = scalar_credit(expected, found)
        yield ValueScore(field=place, credit=credit, expected=expected.value, found=found.value)


def credit_of(expected: Node, found: Node) -> Credit:
    """Return the total credit of two values. Differing items of lists are paired in order, without an assignment."""
    if expected.key == found.key:
        return expected.values
    if expected.members and found.members:
        names = expected.members.keys() & found.members.keys()
        return sum(credit_of(expected.members[name], found.members[name]) for name in names)
    if expected.items and found.items:
        same, left, right = matched(expected.items, found.items)
        equal = sum(one.values for one, _ in same)
        return equal + sum(credit_of(one, other) for one, other in zip(left, right, strict=False))
    return scalar_credit(expected, found)


def both_are(kind: type, expected: Node, found: Node) -> bool:
    """Return whether both values are of this type, or one is and the other one is empty."""
    return all(isinstance(each.value, kind) for each in (expected, found) if not each.is_empty)


# ---- Scalars --------------------------------------------------------------------------------------------------------
def scalar_credit(expected: Node, found: Node) -> Credit:
    if isinstance(expected.value, str) and isinstance(found.value, str):
        return text_credit(expected.value, found.value)
    return int(expected.key == found.key and not expected.is_empty)


def text_credit(expected: str, found: str) -> Credit:
    one, other = folded(expected), folded(found)
    if one == other:
        return 1
    if DIGITS.findall(one) != DIGITS.findall(other):
        return 0
    alike = similarity(one, other)
    return alike if alike >= MIN_SIMILARITY else 0


def folded(text: str) -> str:
    """Normalize a text for comparison: one Unicode form, one case, single spaces."""
    return " ".join(unicodedata.normalize("NFKC", text).casefold().split())


def similarity(one: str, other: str) -> Fraction:
    """Return the Sørensen-Dice coefficient of pairs of adjacent characters. It is symmetric, and takes linear time."""
    mine, theirs = (Counter(zip(f" {text}", f"{text} ", strict=True)) for text in (one, other))
    return Fraction(2 * (mine & theirs).total(), mine.total() + theirs.total())


def canonical(value: Any) -> str:
    """Return the canonical form of a scalar, which is the same for equal values."""
    if isinstance(value, str):
        return json.dumps(folded(value))
    if isinstance(value, bool):
        return str(value)
    return exact_json.comparable(value if isinstance(value, Decimal) else Decimal(repr(value)))


# ---- Lists ----------------------------------------------------------------------------------------------------------
Pairs = Iterator[tuple[Node, Node]]


def pairs(expected: list[Node], found: list[Node], budget: ComparisonBudget) -> Pairs:
    """Pair the items of two sorted lists. An item without a partner is paired with MISSING.

    Sorting makes the result independent of the original order, also if several assignments are equally good.
    """
    same, left, right = matched(expected, found)
    yield from same
    yield from assigned(left, right, budget)


def matched(expected: list[Node], found: list[Node]) -> tuple[list[tuple[Node, Node]], list[Node], list[Node]]:
    """Return pairs of equal items of two sorted lists, and the remaining items of both lists."""
    same, left, right = [], [], []
    i = j = 0
    while i < len(expected) and j < len(found):
        one, other = expected[i], found[j]
        if one.key == other.key:
            same.append((one, other))
            i, j = i + 1, j + 1
        elif one.key < other.key:
            left.append(one)
            i += 1
        else:
            right.append(other)
            j += 1
    return same, left + expected[i:], right + found[j:]


def assigned(left: list[Node], right: list[Node], budget: ComparisonBudget) -> Pairs:
    """Pair items that differ so that their total credit is maximal or, for long lists, nearly maximal."""
    small, large = sorted((len(left), len(right)))
    compared = len(right) * sum(len(each.key) for each in left) + len(left) * sum(len(each.key) for each in right)
    if small * large <= MAX_OPTIMAL and budget.take(compared + STEP * small * small * large):
        choose = optimal
    elif budget.take(compared):
        choose = best_first
    else:
        yield from zip_longest(left, right, fillvalue=MISSING)
        return
    partners = choose(len(left), len(right), lambda i, j: float(credit_of(left[i], right[j])))
    for number, item in enumerate(left):
        yield item, right[partners[number]] if number in partners else MISSING
    for number in sorted({*range(len(right))} - {*partners.values()}):
        yield MISSING, right[number]


def best_first(rows: int, columns: int, weigh: Callable[[int, int], float]) -> dict[int, int]:
    """Return the column of each row: the best column that no earlier row has taken (greedy assignment)."""
    free = list(range(columns))
    partners: dict[int, int] = {}
    for row in range(min(rows, columns)):
        best = max(free, key=lambda column, row=row: weigh(row, column))  # type: ignore[misc]
        partners[row] = best
        free.remove(best)
    return partners


def optimal(rows: int, columns: int, weigh: Callable[[int, int], float]) -> dict[int, int]:
    """Return the column of each row, so that the sum of weights is maximal."""
    if rows > columns:
        transposed = optimal(columns, rows, lambda i, j: weigh(j, i))
        return {row: column for column, row in transposed.items()}
    costs = [[-weigh(row, column) for column in range(columns)] for row in range(rows)]
    return least_cost(costs, columns)


def least_cost(costs: Sequence[Sequence[float]], columns: int) -> dict[int, int]:  # noqa: C901 - one algorithm
    """Solve the assignment problem by shortest augmenting paths (the Hungarian algorithm).

    `costs` has at most as many rows as columns. Row and column 0 are sentinels.
    """
    rows = len(costs)
    of_row, of_column = [0.0] * (rows + 1), [0.0] * (columns + 1)  # potentials
    owner = [0] * (columns + 1)
    for row in range(1, rows + 1):
        owner[0] = row
        column, before = 0, [0] * (columns + 1)
        distance, is_used = [float("inf")] * (columns + 1), [False] * (columns + 1)
        while owner[column]:
            is_used[column] = True
            current, step, nearest = owner[column], float("inf"), 0
            for each in range(1, columns + 1):
                if is_used[each]:
                    continue
                reduced = costs[current - 1][each - 1] - of_row[current] - of_column[each]
                if reduced < distance[each]:
                    distance[each], before[each] = reduced, column
                if distance[each] < step:
                    step, nearest = distance[each], each
            for each in range(columns + 1):
                if is_used[each]:
                    of_row[owner[each]] += step
                    of_column[each] -= step
                else:
                    distance[each] -= step
            column = nearest
        while column:
            owner[column] = owner[before[column]]
            column = before[column]
    return {owner[column] - 1: column - 1 for column in range(1, columns + 1) if owner[column]}
