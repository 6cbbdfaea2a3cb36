"""Values that are not in the document, but are sums or numbers of cited values."""

from collections import defaultdict
from collections.abc import Iterable, Iterator
from decimal import Context, Decimal, localcontext
from itertools import combinations
from typing import TypeVar

from etl.postprocessors.citations.levels import AMBIGUOUS, COMPUTED, NOT_FOUND, RANK
from etl.postprocessors.citations.values import Citing

MAX_SIBLINGS = 8
SUMMANDS = (2, 3)
Number = TypeVar("Number", Decimal, int)
EXACTLY = Context(prec=1_000)


def find(citings: list[Citing]) -> None:
    """Mark the missing numbers that are the sum of a list's values or of two or three values beside them, or the
    number of a list's items."""
    missing = [each for each in citings if each.match == NOT_FOUND and each.claim.number is not None]
    if not missing:
        return
    with localcontext(EXACTLY):
        sums, counts = of_lists(citings)
        siblings = by_parent(citings)
        for citing in missing:
            number, pointer = citing.claim.number, citing.claim.pointer
            if (
                (number in sums and is_outside(pointer, sums[number]))
                or is_count(number, pointer, counts)
                or number in set(of_siblings(siblings.get(pointer.rpartition("/")[0], [])))
            ):
                citing.match = COMPUTED


def is_cited(citing: Citing) -> bool:
    return RANK[citing.match] <= RANK[AMBIGUOUS]


def of_lists(citings: list[Citing]) -> tuple[dict[Decimal, set[str]], dict[int, set[str]]]:
    """Return the sums of the numbers of lists, and their sizes, with the lists' pointers. Sums count if all of their
    values are cited."""
    columns: defaultdict[tuple[str, str], list[Citing]] = defaultdict(list)
    items: defaultdict[str, set[str]] = defaultdict(set)
    for citing in citings:
        for base, rest, item in lists_of(citing.claim.pointer, citing.claim.path):
            if citing.claim.number is not None:
                columns[base, rest].append(citing)
            if is_cited(citing):
                items[base].add(item)
    sums = reverse((base, total_of(column)) for (base, _), column in columns.items() if is_summable(column))
    return sums, reverse((base, len(names)) for base, names in items.items() if len(names) > 1)


def is_summable(column: list[Citing]) -> bool:
    return len(column) > 1 and all(map(is_cited, column))


def total_of(column: list[Citing]) -> Decimal:
    return sum((citing.claim.number or Decimal(0) for citing in column), Decimal(0))


def reverse(pairs: Iterable[tuple[str, Number]]) -> dict[Number, set[str]]:
    """Return the lists of each number."""
    found: defaultdict[Number, set[str]] = defaultdict(set)
    for base, number in pairs:
        found[number].add(base)
    return dict(found)


def lists_of(pointer: str, path: str) -> Iterator[tuple[str, str, str]]:
    """Yield each list around a value: its pointer, the value's path from there, and the pointer of the item."""
    tokens, names = pointer.split("/"), path.split("/")
    for place, name in enumerate(names):
        if name == "*":
            yield "/".join(tokens[:place]), "/".join(names[place:]), "/".join(tokens[: place + 1])


def is_outside(pointer: str, lists: set[str]) -> bool:
    return any(not pointer.startswith(f"{base}/") for base in lists)


def is_count(number: Decimal | None, pointer: str, counts: dict[int, set[str]]) -> bool:
    if number is None or number != number.to_integral_value() or not 1 < number < 10**9:
        return False
    return is_outside(pointer, counts.get(int(number), set()))


def by_parent(citings: list[Citing]) -> dict[str, list[Decimal]]:
    """Return the cited numbers of each object."""
    found: defaultdict[str, list[Decimal]] = defaultdict(list)
    for citing in citings:
        if is_cited(citing) and citing.claim.number is not None:
            found[citing.claim.pointer.rpartition("/")[0]].append(citing.claim.number)
    return found


def of_siblings(numbers: list[Decimal]) -> Iterator[Decimal]:
    for count in SUMMANDS:
        for chosen in combinations(numbers[:MAX_SIBLINGS], count):
            yield sum(chosen, Decimal(0))
