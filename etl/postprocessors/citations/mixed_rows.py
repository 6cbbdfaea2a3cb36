"""Detection of list items that mix the values of two rows, such as the name of one row and the amount of another.

An item may span several rows, so a value in a different row than the others is not necessarily an error. It is an error
if each of the two rows has its own value where the item has the value of the other row.
"""

import re
from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import islice

from etl.postprocessors.citations import columns
from etl.postprocessors.citations.cells import cells_of
from etl.postprocessors.citations.index import Index, Place, Span
from etl.postprocessors.citations.levels import AMBIGUOUS, NORMALIZED, RANK
from etl.postprocessors.citations.units import CURRENCY
from etl.postprocessors.citations.values import Citation
from etl.postprocessors.tables import Table

DAY = re.compile(r"\d{1,4}([./-])\d{1,2}\1(?:\d{1,4})?")
MONEY = re.compile(rf"\b(?:{CURRENCY})\b")
CENTS = re.compile(r"[.,](\d{1,2})\D*\Z")
WORD = re.compile(r"\S+")
TEXT, NUMBER, DATE = "text", "number", "date"
MAX_PARTS = 100  # of a row
MAX_BEFORE = 20  # characters before a number that may be its currency


@dataclass(frozen=True, slots=True)
class Part:
    """A cell of a table row, or a number, date, or text of a line."""

    kind: str
    start: int
    end: int
    is_cell: bool = False

    def overlaps(self, place: Place | None) -> bool:
        # A value that starts in a cell may end in the next row. It belongs to that cell only, not to those in between.
        if place is None or (self.is_cell and place.start < self.start):
            return False
        return place.start < self.end and place.end > self.start

    def has(self, citation: Citation) -> bool:
        return self.overlaps(citation.place) and not (citation.claim.number is not None and self.kind == TEXT)


def downgrade(citations: Iterable[Citation], index: Index) -> None:
    """Downgrade values that are in a different row than the other values of their item, if the item mixes two rows.

    Values of fields that are usually in a different row are not downgraded.
    """
    items: defaultdict[str, list[Citation]] = defaultdict(list)
    for citation in citations:
        if citation.claim.item and citation.place:
            items[citation.claim.item].append(citation)
    apart, total, mixed = Counter[str](), Counter[str](), list[Citation]()
    for values in items.values():
        own = own_row(values, index)
        total.update(value.claim.path for value in values)
        others = [value for value in values if row_of(value, index) != own]
        apart.update(value.claim.path for value in others)
        mixed += [
            value for value in others if RANK[value.match] <= RANK[NORMALIZED] and is_mixed(value, values, own, index)
        ]
    for value in mixed:
        path = value.claim.path
        is_usual = apart[path] >= columns.MIN_AGREEING and apart[path] >= columns.MAJORITY * total[path]
        if not is_usual:
            value.match = AMBIGUOUS


def row_of(citation: Citation, index: Index) -> int:
    return index.row_of(citation.place.start) if citation.place else -1


def own_row(values: list[Citation], index: Index) -> int:
    """Return the row with the most values of an item. Of several such rows, prefer one with a text value, then the
    first."""
    counts = Counter(row_of(value, index) for value in values)
    named = {row_of(value, index) for value in values if kind_of(str(value.claim.value)) == TEXT}
    return max(counts, key=lambda row: (counts[row], row in named, -row))


def is_mixed(value: Citation, values: list[Citation], own: int, index: Index) -> bool:
    """Return whether this value belongs to another item: the item's row has a different value in its position, and the
    row of this value has different values in the positions of the item's values."""
    other = row_of(value, index)
    if index.has_cells(own) or index.has_cells(other):
        return are_of_one_table(own, other, index) and is_crossed(
            value, values, cells_in(own, index), cells_in(other, index)
        )
    if value.place is None or columns.has_label(value.claim, value.place, index):
        return False
    return any(
        [part.kind for part in ours] == [part.kind for part in theirs] and is_crossed(value, values, ours, theirs)
        for ours, theirs in zip(lines_in(own, index), lines_in(other, index), strict=True)
    )


def is_crossed(value: Citation, values: list[Citation], ours: list[Part], theirs: list[Part]) -> bool:
    """Return whether each row has its own part in the position of a value that the item has from the other row."""
    if len(ours) != len(theirs):
        return False
    both = list(zip(ours, theirs, strict=True))
    return any(their.has(value) and is_other(value, their, our, values) for our, their in both) and any(
        our.has(each) and is_other(each, our, their, values) for our, their in both for each in values
    )


def is_other(value: Citation, part: Part, opposite: Part, values: list[Citation]) -> bool:
    """Return whether the opposite part has a different value of the same kind, which no value of the item cites."""
    places = value.claim.places_in((opposite.start - MAX_BEFORE, opposite.end))
    is_used = any(opposite.overlaps(place) for place in (*places, *(each.place for each in values)))
    return part.kind == opposite.kind and not is_used


def are_of_one_table(one: int, other: int, index: Index) -> bool:
    """Return whether two rows are in the same table, or in tables with the same head or without heads."""
    tables = [table_of(row, index) for row in (one, other)]
    heads = [table.head if table else "" for table in tables]
    return all(tables) and (tables[0] == tables[1] or heads[0] == heads[1])


def table_of(row: int, index: Index) -> Table | None:
    end = index.row_span(row)[1] - 1
    number = bisect_right(index.tables, end, key=lambda table: table.end)
    table = index.tables[number] if number < len(index.tables) else None
    return table if table and table.start <= end else None


# ---- Parts ----------------------------------------------------------------------------------------------------------
def cells_in(row: int, index: Index) -> list[Part]:
    """Return the cells of a table row. The kind of cells without words is ""."""
    spans = [parts[0] if parts else (0, 0) for parts in cells_of(index, row)]
    return [Part(kind_of(index.content[start:end]), start, end, is_cell=True) for start, end in spans]


def lines_in(row: int, index: Index) -> tuple[list[Part], list[Part]]:
    """Return the parts of a line in two readings. In the second one, whole numbers are text, as in `Lamp 40 W`."""
    parts = list(parts_of(index.row_span(row), index))
    return merged(parts), merged(replace(part, kind=TEXT) if part.kind == NUMBER else part for part in parts)


def parts_of(span: Span, index: Index) -> Iterator[Part]:
    """Yield the words of a line. The kind of a number includes how many decimal places it has, and that of a label its
    colon."""
    for match in islice(WORD.finditer(index.content, *span), MAX_PARTS):
        word = match.group()
        if kind := kind_of(word):
            cents = CENTS.search(word) if kind == NUMBER else None
            yield Part(f"{kind}{len(cents[1]) if cents else ''}{':' * word.endswith(':')}", *match.span())


def merged(parts: Iterable[Part]) -> list[Part]:
    """Return the parts with consecutive texts joined."""
    found: list[Part] = []
    for part in parts:
        if found and part.kind.startswith(TEXT) and found[-1].kind == TEXT:
            found[-1] = Part(part.kind, found[-1].start, part.end)
        else:
            found.append(part)
    return found


def kind_of(text: str) -> str:
    """Return the kind of a text: a date, a number (maybe with a currency), other text, or "" for no words."""
    if DAY.fullmatch(text.strip()):
        return DATE
    words = [word for word in text.split() if any(map(str.isalnum, word)) and not MONEY.fullmatch(word)]
    if not words:
        return ""
    is_number = all(any(map(str.isdecimal, word)) for word in words) and not any(map(str.isalpha, MONEY.sub("", text)))
    return NUMBER if is_number else TEXT
