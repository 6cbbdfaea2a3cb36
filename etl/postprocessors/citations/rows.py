"""Assignment of list items to rows of the document.

A value such as an amount may occur in many rows. The row of its item is the one that contains the item's other values.
If several rows contain all of them, the order of the items decides. If the row is still not certain, the item has no
row, because no row is better than a wrong one.
"""

from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterable
from typing import Any

from etl.postprocessors.citations.index import MAX_OCCURRENCES, Index, Place
from etl.postprocessors.citations.levels import RANK
from etl.postprocessors.citations.values import Claim

MAX_CANDIDATES = 64  # places per value that are considered
RAREST = 2  # the number of an item's rarest values that select the candidate rows
EPSILON = 1e-9
QUOTE_WEIGHT = 0.5
NEAR = 8  # the maximum distance between two rows of an item
MAX_NEAR = 500  # places per value in these rows


def rows_of(claims: Iterable[Claim], index: Index) -> dict[str, int]:
    """Return the row of each item by the item's pointer. Items without a certain row are omitted."""
    items: defaultdict[str, list[Claim]] = defaultdict(list)
    for claim in claims:
        if claim.item:
            items[claim.item].append(claim)
    lists: defaultdict[str, list[str]] = defaultdict(list)
    for item in items:
        lists[item.rpartition("/")[0]].append(item)
    found: dict[str, int | None] = {}
    for names in lists.values():
        scores = [scored_rows(items[name], index) for name in names]
        remove_owned_rows(scores)
        chosen = in_order([best_of(each) for each in scores])
        taken = {row for row in chosen if row is not None}
        found |= {
            name: block_of(each, taken) if row is None else row
            for name, each, row in zip(names, scores, chosen, strict=True)
        }
    return {item: row for item, row in found.items() if row is not None}


def remove_owned_rows(scores: list[dict[int, float]]) -> None:
    """Remove rows that belong to another item. A row's owner is an item for which it is the only best row, and items
    with a lower score for the row lose it."""
    owners: dict[int, float] = {}
    for each in scores:
        if len(best := best_of(each)) == 1:
            owners[best[0]] = max(owners.get(best[0], 0.0), each[best[0]])
    for each in scores:
        for row in [row for row, score in each.items() if score < owners.get(row, 0.0) - EPSILON]:
            del each[row]


def best_of(scores: dict[int, float]) -> list[int]:
    best = max(scores.values(), default=0.0)
    return sorted(row for row, score in scores.items() if score > best - EPSILON and score > 0)


def block_of(scores: dict[int, float], taken: set[int]) -> int | None:
    """Return the first row of a multi-line item if each of its lines has a value that occurs only there, or None."""
    rows = [row for row in best_of(scores) if row not in taken]
    is_block = bool(rows) and rows[-1] - rows[0] <= NEAR and scores[rows[0]] >= 1 - EPSILON
    return rows[0] if is_block else None


def scored_rows(claims: list[Claim], index: Index) -> dict[int, float]:
    """Return the candidate rows of an item, with scores. Rare values have more weight, and quotes have less."""
    counts = {claim.pointer: len(range(*claim.likely_range())) for claim in claims if not claim.is_choice}
    quoted = {claim.pointer: quoted_rows(claim, index) for claim in claims if claim.quotes}
    scores: dict[int, float] = {row: 0.0 for rows in quoted.values() for row in rows}
    for claim in sorted(claims, key=lambda claim: counts.get(claim.pointer) or MAX_OCCURRENCES)[:RAREST]:
        if counts.get(claim.pointer):
            first, last = claim.likely_range()
            places = claim.places[first : min(last, first + MAX_CANDIDATES)]
            scores |= {index.row_of(place.start): 0.0 for place in places}
    for row in scores:
        span = index.row_span(row)
        for claim in claims:
            if counts.get(claim.pointer) and claim.starts_in(span):
                scores[row] += 1 / counts[claim.pointer]
            if row in (rows := quoted.get(claim.pointer, set())):
                scores[row] += QUOTE_WEIGHT / len(rows)
    return scores


def quoted_rows(claim: Claim, index: Index) -> set[int]:
    """Return the rows of the value in the model's quotes. For booleans and enum values, return the rows of the
    quotes."""
    places = [place for quote in claim.quotes[:MAX_CANDIDATES] for place in claim.places_in(quote)[:1]]
    return {index.row_of(place.start) for place in places} or {
        index.row_of(quote[0]) for quote in claim.quotes[:MAX_CANDIDATES] if claim.is_choice
    }


def in_order(options: list[list[int]]) -> list[int | None]:
    """Choose one row per item. Items are in document order, so if an item has several candidates, choose the only one
    that is between the rows of its neighbors."""
    chosen: list[int | None] = [rows[0] if len(rows) == 1 else None for rows in options]
    start = 0
    while start < len(chosen):
        end = next((index for index in range(start, len(chosen)) if chosen[index] is not None), len(chosen))
        low = chosen[start - 1] if start else None
        high = chosen[end] if end < len(chosen) else None
        run = options[start:end]
        if run and (low is None or high is None or low < high):
            chosen[start:end] = fitting(run, low, high)
        start = end + 1
    return chosen


def fitting(options: list[list[int]], low: int | None, high: int | None) -> list[int | None]:
    """Return the row of each item, or None unless exactly one of its candidates keeps the order."""
    known = [rows for rows in options if rows]
    earliest = increasing_rows(known, low)
    latest = increasing_rows(
        [[-row for row in reversed(rows)] for rows in reversed(known)], None if high is None else -high
    )
    if earliest is None or latest is None:
        return [None] * len(options)
    pairs = zip(earliest, reversed(latest), strict=True)
    rows = iter([first if first == -last else None for first, last in pairs])
    return [next(rows) if each else None for each in options]


def increasing_rows(options: list[list[int]], above: int | None) -> list[int] | None:
    """Return the lowest increasing sequence of rows after the row `above`, with one of each item's options, or None."""
    found: list[int] = []
    for rows in options:
        index = bisect_right(rows, above) if above is not None else 0
        if index == len(rows):
            return None
        above = rows[index]
        found.append(above)
    return found


# ---- Places ---------------------------------------------------------------------------------------------------------
class Rows:
    """The rows of items, and the search for values in and near them."""

    def __init__(self, index: Index, by_item: dict[str, int]) -> None:
        self.index, self.by_item = index, by_item
        self.items: dict[int, set[str]] = {}
        for item, row in by_item.items():
            self.items.setdefault(row, set()).add(item)
        # Items with their ancestors, because nested items may share a row.
        self.around = {row: {each for item in items for each in around(item)} for row, items in self.items.items()}
        self.sorted = sorted(self.items)
        self.used: dict[int, str] = {}  # the paths of cited values, by the start of their place

    def is_in_other_row(self, place: Place, item: str) -> bool:
        """Return whether a place is in the row of another item."""
        return self.belongs_to_others(self.index.row_of(place.start), item)

    def belongs_to_others(self, row: int, item: str) -> bool:
        """Return whether a row has items, and none of them is this item, contains it, or is contained in it."""
        owners = self.items.get(row, set())
        return bool(owners) and item not in self.around[row] and owners.isdisjoint(around(item))

    def places_near(self, claim: Claim) -> list[Place]:
        """Return the places of a value in and near the row of its item, the best first."""
        row = self.by_item.get(claim.item)
        if row is None:
            return []
        low, high = self.neighbors(row)
        first, last = max(0, row - NEAR, low + 1), min(len(self.index.rows), row + NEAR, high - 1)
        rows = {
            other for other in range(first, last + 1)
            if self.is_joined(row, other) and not self.belongs_to_others(other, claim.item)
        }  # fmt: skip
        span = self.index.row_span(first)[0], self.index.row_span(last)[1]
        places = claim.places_in(span, limit=MAX_NEAR)
        found = [place for place in places if self.index.row_of(place.start) in rows]

        def rank(place: Place) -> tuple[Any, ...]:
            distance = self.index.row_of(place.start) - row
            return distance != 0, place.start in self.used, abs(distance), distance < 0, RANK[place.match], place.start

        found.sort(key=rank)
        return found

    def is_joined(self, row: int, other: int) -> bool:
        """Return whether two rows can belong to the same item. An item in a table does not continue outside of it."""
        return row == other or self.index.has_cells(other) or not self.index.has_cells(row)

    def neighbors(self, row: int) -> tuple[int, int]:
        before, after = bisect_left(self.sorted, row), bisect_right(self.sorted, row)
        low = self.sorted[before - 1] if before else -1
        return low, self.sorted[after] if after < len(self.sorted) else len(self.index.rows) + 1


def around(pointer: str) -> list[str]:
    """Return the pointers of a value and of its ancestors."""
    ends = [end for end, character in enumerate(pointer) if character == "/"]
    return [pointer, *(pointer[:end] for end in ends)]
