"""Detection of computed values, which are not in the document, but are the sum or the number of cited values."""

from collections import defaultdict
from collections.abc import Iterable, Iterator
from decimal import Context, Decimal, localcontext
from itertools import combinations
from typing import TypeVar

from etl.postprocessors.citations.levels import AMBIGUOUS, COMPUTED, NOT_FOUND, RANK
from etl.postprocessors.citations.values import Citation

MAX_SIBLINGS = 8
SUMMANDS = (2, 3)
Number = TypeVar("Number", Decimal, int)
EXACTLY = Context(prec=1_000)


def mark(citations: list[Citation]) -> None:
    """Mark missing numbers that are the sum of a list's values, the sum of two or three values of the same object, or
    the number of a list's items."""
    missing = [each for each in citations if each.match == NOT_FOUND and each.claim.number is not None]
    if not missing:
        return
    with localcontext(EXACTLY):
        sums, counts = list_sums_and_sizes(citations)
        siblings = by_parent(citations)
        for citation in missing:
            number, pointer = citation.claim.number, citation.claim.pointer
            if (
                (number in sums and is_outside(pointer, sums[number]))
                or is_count(number, pointer, counts)
                or number in set(sibling_sums(siblings.get(pointer.rpartition("/")[0], [])))
            ):
                citation.match = COMPUTED


def is_cited(citation: Citation) -> bool:
    return RANK[citation.match] <= RANK[AMBIGUOUS]


def list_sums_and_sizes(citations: list[Citation]) -> tuple[dict[Decimal, set[str]], dict[int, set[str]]]:
    """Return the sums and the sizes of lists, each with the pointers of the lists. A sum is included only if all of its
    values are cited. An item is counted only if one of its values is cited."""
    columns: defaultdict[tuple[str, str], list[Citation]] = defaultdict(list)
    items: defaultdict[str, set[str]] = defaultdict(set)
    for citation in citations:
        for base, rest, item in lists_of(citation.claim.pointer, citation.claim.path):
            if citation.claim.number is not None:
                columns[base, rest].append(citation)
            if is_cited(citation):
                items[base].add(item)
    sums = pointers_by_number((base, total_of(column)) for (base, _), column in columns.items() if is_summable(column))
    return sums, pointers_by_number((base, len(names)) for base, names in items.items() if len(names) > 1)


def is_summable(column: list[Citation]) -> bool:
    return len(column) > 1 and all(map(is_cited, column))


def total_of(column: list[Citation]) -> Decimal:
    return sum((citation.claim.number or Decimal(0) for citation in column), Decimal(0))


def pointers_by_number(pairs: Iterable[tuple[str, Number]]) -> dict[Number, set[str]]:
    """Return the pointers of lists, grouped by number."""
    found: defaultdict[Number, set[str]] = defaultdict(set)
    for base, number in pairs:
        found[number].add(base)
    return dict(found)


def lists_of(pointer: str, path: str) -> Iterator[tuple[str, str, str]]:
    """Yield each list that contains a value: its pointer, the value's path from there, and the pointer of the item."""
    tokens, names = pointer.split("/"), path.split("/")
    for position, name in enumerate(names):
        if name == "*":
            yield "/".join(tokens[:position]), "/".join(names[position:]), "/".join(tokens[: position + 1])


def is_outside(pointer: str, lists: set[str]) -> bool:
    return any(not pointer.startswith(f"{base}/") for base in lists)


def is_count(number: Decimal | None, pointer: str, counts: dict[int, set[str]]) -> bool:
    if number is None or number != number.to_integral_value() or not 1 < number < 10**9:
        return False
    return is_outside(pointer, counts.get(int(number), set()))


def by_parent(citations: list[Citation]) -> dict[str, list[Decimal]]:
    """Return the cited numbers of each object."""
    found: defaultdict[str, list[Decimal]] = defaultdict(list)
    for citation in citations:
        if is_cited(citation) and citation.claim.number is not None:
            found[citation.claim.pointer.rpartition("/")[0]].append(citation.claim.number)
    return found


def sibling_sums(numbers: list[Decimal]) -> Iterator[Decimal]:
    for count in SUMMANDS:
        for chosen in combinations(numbers[:MAX_SIBLINGS], count):
            yield sum(chosen, Decimal(0))
