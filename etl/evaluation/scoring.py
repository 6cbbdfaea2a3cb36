"""Scores of extracted data against expected data. Pure functions; `docs/rules.md` describes the measures for users.

Both are compared value by value. A value of the expected data counts 1 if the same value was extracted, and a value
that only one of the two has counts 0. The accuracy is the mean. Values are grouped by field, whose pointer has `*` for
the positions of lists: `/lines/*/amount`.

- Nothing: null, an empty list, an empty object, and a missing member are the same.
- Numbers: equal as exact decimals, so 1.0 is 1.00.
- Text: equal without regard to case, white space, and Unicode forms. Other text has its similarity, which is the
  Sørensen-Dice coefficient of pairs of characters, if that is at least 0.8 and all digits are equal, else 0: a wrong
  digit of an invoice number is entirely wrong.
- Lists: regardless of order. Equal items are paired first, then the others so that the sum of their scores is greatest.
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

MIN_SIMILARITY = Fraction(8, 10)
ANY = "*"
# Pairs of items that are compared for the best assignment. With more, each expected item takes the best one that is
# left; with still more, the sorted items are paired in order. A list of 1,000 items against 1,000 takes seconds.
MAX_OPTIMAL = 10_000
MAX_COMPARED = 1_000_000
DIGITS = re.compile(r"\d+")
ABSENT: Any = object()
Credit = int | Fraction


@dataclass(frozen=True, slots=True, kw_only=True)
class ValueScore:
    """The score of one value, from 0 to 1. `expected` or `found` is ABSENT if only the other exists."""

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
        return float(self.credit / Fraction(self.values)) if self.values else 1.0


@dataclass(slots=True, kw_only=True)
class Score:
    """The scores by field, and the values that are not entirely right."""

    fields: dict[str, FieldScore] = field(default_factory=dict)
    misses: list[ValueScore] = field(default_factory=list)

    @property
    def total(self) -> FieldScore:
        return total(self.fields)


def total(fields: dict[str, FieldScore]) -> FieldScore:
    """Return the score of all values. Each counts the same, so a list of many items counts more than a scalar."""
    return FieldScore(sum(each.credit for each in fields.values()), sum(each.values for each in fields.values()))


def score(expected: Any, found: Any) -> Score:
    """Compare JSON values. `found` is ABSENT if nothing was extracted."""
    result = Score()
    for value in compare(expected, found, ""):
        entry = result.fields.setdefault(value.field, FieldScore())
        entry.credit += value.credit
        entry.values += 1
        if value.credit != 1:
            result.misses.append(value)
    return result


def compare(expected: Any, found: Any, place: str) -> Iterator[ValueScore]:
    if is_nothing(expected) and is_nothing(found):
        if expected is not ABSENT:
            yield ValueScore(field=place, credit=1, expected=expected, found=found)
    elif both(dict, expected, found):
        mine, theirs = expected if is_filled(expected) else {}, found if is_filled(found) else {}
        for name in sorted({*mine, *theirs}):
            yield from compare(mine.get(name, ABSENT), theirs.get(name, ABSENT), join(place, name))
    elif both(list, expected, found):
        mine, theirs = expected if is_filled(expected) else [], found if is_filled(found) else []
        for one, other in pairs(mine, theirs):
            yield from compare(one, other, join(place, ANY))
    elif isinstance(expected, dict | list) or isinstance(found, dict | list):  # one of them, or both of other types
        yield from compare(expected, ABSENT, place)
        yield from compare(ABSENT, found, place)
    else:
        yield ValueScore(field=place, credit=scalar_credit(expected, found), expected=expected, found=found)


def is_nothing(value: Any) -> bool:
    return value is None or value is ABSENT or value in ([], {})


def is_filled(value: Any) -> bool:
    return not is_nothing(value)


def both(kind: type, expected: Any, found: Any) -> bool:
    """Return whether one is a list (or object), and the other one too, or nothing."""
    filled = [each for each in (expected, found) if is_filled(each)]
    return all(isinstance(each, kind) for each in filled)


# ---- Scalars --------------------------------------------------------------------------------------------------------
def scalar_credit(expected: Any, found: Any) -> Credit:
    if isinstance(expected, str) and isinstance(found, str):
        return text_credit(expected, found)
    return int(is_filled(expected) and is_filled(found) and canonical(expected) == canonical(found))


def text_credit(expected: str, found: str) -> Credit:
    one, other = folded(expected), folded(found)
    if one == other:
        return 1
    if DIGITS.findall(one) != DIGITS.findall(other):
        return 0
    alike = similarity(one, other)
    return alike if alike >= MIN_SIMILARITY else 0


def folded(text: str) -> str:
    """Return a text for comparison: one Unicode form, one case, single spaces."""
    return " ".join(unicodedata.normalize("NFKC", text).casefold().split())


def similarity(one: str, other: str) -> Fraction:
    """Return the Sørensen-Dice coefficient of the pairs of neighboring characters: symmetric, and in linear time."""
    mine, theirs = (Counter(zip(f" {text}", f"{text} ", strict=True)) for text in (one, other))
    return Fraction(2 * (mine & theirs).total(), mine.total() + theirs.total())


def canonical(value: Any) -> str:
    """Return a text that is equal for values that count as equal, and orders them."""
    if isinstance(value, str):
        return json.dumps(folded(value))
    if isinstance(value, bool) or value is None:
        return str(value)
    if isinstance(value, int | float | Decimal):
        return exact_json.comparable(value if isinstance(value, Decimal) else Decimal(repr(value)))
    if isinstance(value, dict):
        return "{" + ",".join(f"{json.dumps(name)}:{canonical(value[name])}" for name in sorted(value)) + "}"
    return "[" + ",".join(sorted(map(canonical, value))) + "]"


# ---- Lists ----------------------------------------------------------------------------------------------------------
def pairs(expected: list[Any], found: list[Any]) -> Iterator[tuple[Any, Any]]:
    """Pair the items. ABSENT stands for the partner of one without.

    Both lists are sorted first: so the result does not depend on their order, also where assignments are equally good.
    """
    mine = sorted((canonical(item), number) for number, item in enumerate(expected))
    theirs = sorted((canonical(item), number) for number, item in enumerate(found))
    equal = Counter(key for key, _ in mine) & Counter(key for key, _ in theirs)
    left = [expected[number] for number in rest(mine, equal)]
    right = [found[number] for number in rest(theirs, equal)]
    taken = dict(equal)
    by_key = {key: found[number] for key, number in theirs if key in equal}
    for key, number in mine:
        if taken.get(key):
            taken[key] -= 1
            yield expected[number], by_key[key]
    yield from assigned(left, right)


def rest(items: list[tuple[str, int]], equal: Counter[str]) -> Iterator[int]:
    """Yield the positions of items without an equal one."""
    taken = dict(equal)
    for key, number in items:
        if taken.get(key):
            taken[key] -= 1
        else:
            yield number


def assigned(left: list[Any], right: list[Any]) -> Iterator[tuple[Any, Any]]:
    size = len(left) * len(right)
    if size > MAX_COMPARED:
        yield from zip_longest(left, right, fillvalue=ABSENT)
        return
    choose = optimal if size <= MAX_OPTIMAL else best_first
    partners = choose(len(left), len(right), lambda i, j: weight(left[i], right[j]))
    for number, item in enumerate(left):
        yield item, right[partners[number]] if number in partners else ABSENT
    for number in sorted({*range(len(right))} - {*partners.values()}):
        yield ABSENT, right[number]


def weight(one: Any, other: Any) -> float:
    return float(sum(value.credit for value in compare(one, other, "")))


def best_first(rows: int, columns: int, weigh: Callable[[int, int], float]) -> dict[int, int]:
    """Return the column of each row: the best one that earlier rows have left."""
    free = list(range(columns))
    partners: dict[int, int] = {}
    for row in range(min(rows, columns)):
        best = max(free, key=lambda column, row=row: weigh(row, column))  # type: ignore[misc]
        partners[row] = best
        free.remove(best)
    return partners


def optimal(rows: int, columns: int, weigh: Callable[[int, int], float]) -> dict[int, int]:
    """Return the column of each row, so that the sum of weights is greatest."""
    if rows > columns:
        turned = optimal(columns, rows, lambda i, j: weigh(j, i))
        return {row: column for column, row in turned.items()}
    costs = [[-weigh(row, column) for column in range(columns)] for row in range(rows)]
    return least_cost(costs, columns)


def least_cost(costs: Sequence[Sequence[float]], columns: int) -> dict[int, int]:  # noqa: C901 - one algorithm
    """Solve the assignment problem by shortest augmenting paths (the Hungarian algorithm). `costs` has at
    most as many rows as columns. Row and column 0 are sentinels.
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
