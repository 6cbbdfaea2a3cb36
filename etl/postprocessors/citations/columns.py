"""Check of the columns of cited values: whether the cited number of a row is the one that the field refers to."""

import re
from collections import Counter, defaultdict
from itertools import islice

from etl.core.stage_context import StageContext
from etl.postprocessors.citations.folding import fold
from etl.postprocessors.citations.index import Index, Place
from etl.postprocessors.citations.levels import AMBIGUOUS, NORMALIZED, RANK
from etl.postprocessors.citations.page_numbers import NAMES
from etl.postprocessors.citations.values import Citation, Claim

Column = tuple[str, int]
MAJORITY = 0.6
MIN_AGREEING, MIN_TO_REFUTE = 2, 3
MIN_LABEL = 3
MAX_LABEL = 60  # characters before a number in its row
MAX_SAME = 1_000  # rows with the same label that are compared
CARRIED = re.compile(
    r"(?:carried|brought) (?:forward|over|down)|\bübertrag\b|à reporter|suma y sigue|riporto",
    re.IGNORECASE,
)
CARRIED_NAMES = frozenset(("carried", "brought", "forward", "übertrag", "report", "riporto"))
NAME = re.compile(r"[A-Z]?[^\W\d_A-Z]+|[A-Z]+(?![a-z])")


def downgrade(citations: list[Citation], index: Index, context: StageContext) -> None:
    """Downgrade values that are in a different column than their field in other rows. Also downgrade numbers from
    quotes with several numbers, unless the column or a label shows which one is meant."""
    placed = [each for each in citations if each.place and RANK[each.match] <= RANK[NORMALIZED]]
    usual = usual_columns(placed, index)
    for citation in placed:
        context.check()
        named = named_column(citation, index)
        expected, votes = (named, MIN_TO_REFUTE) if named else usual.get(citation.claim.path, (None, 0))
        column = move_to_column(citation, expected, index) if expected else None
        if is_carried(citation, index) or has_label_of_others(citation, index):
            citation.match = AMBIGUOUS
        if expected and column == expected:
            continue
        is_refuted = expected and column and column[0] == expected[0] and votes >= MIN_TO_REFUTE
        if is_refuted or is_one_of_many(citation, index):
            citation.match = AMBIGUOUS


def named_column(citation: Citation, index: Index) -> Column | None:
    """Return the column whose head is the name of a number's field, or None."""
    if citation.claim.number is None or citation.place is None:
        return None
    head, name = index.head_of(index.row_of(citation.place.start)), " ".join(names_of(citation.claim.path))
    return ("cell", head.index(name)) if head.count(name) == 1 else None


def is_carried(citation: Citation, index: Index) -> bool:
    """Return whether a number is an amount carried forward, but its field's name does not indicate this."""
    if citation.claim.item or citation.claim.number is None or citation.place is None:
        return False
    start, end = index.row_span(index.row_of(citation.place.start))
    return bool(CARRIED.search(index.content, start, end)) and not CARRIED_NAMES & set(names_of(citation.claim.path))


def has_label_of_others(citation: Citation, index: Index) -> bool:
    """Return whether another number has the same label as this one, and `x-merge` does not select this one. Only for
    numbers outside of lists."""
    if citation.claim.item or citation.claim.number is None or citation.place is None:
        return False
    place = citation.place
    start, _ = index.row_span(index.row_of(place.start))
    label = index.content[start : place.start]
    if len(re.findall(r"[^\W\d_]", label)) < MIN_LABEL or len(label) > MAX_LABEL:
        return False
    same = [
        (position, index.number_from(position + len(label))) for position in islice(index.row_starts(label), MAX_SAME)
    ]
    others = [
        position
        for position, number in same
        if number and citation.claim.number not in (*number.sure, *number.possible)
    ]
    if citation.claim.policy == "last":
        return any(position > start for position in others)
    if citation.claim.policy == "first":
        return any(position < start for position in others)
    return bool(others) and citation.claim.policy != "max"


def usual_columns(placed: list[Citation], index: Index) -> dict[str, tuple[Column, int]]:
    """Return the most frequent column of each path in lists, and the number of values from which it is derived."""
    counts: defaultdict[str, Counter[Column]] = defaultdict(Counter)
    for citation in placed:
        if citation.claim.item and (column := column_of(citation, index)):
            counts[citation.claim.path][column] += 1
    found = {}
    for path, columns in counts.items():
        column, count = columns.most_common(1)[0]
        if count >= MIN_AGREEING and count >= MAJORITY * columns.total():
            found[path] = (column, columns.total())
    return found


def column_of(citation: Citation, index: Index, place: Place | None = None) -> Column | None:
    """Return the column of a value. In rows without cells, only numbers have a column."""
    place = place or citation.place
    column = index.column_of(place) if place else None
    return column if column and (column[0] == "cell" or citation.claim.number is not None) else None


def move_to_column(citation: Citation, expected: Column, index: Index) -> Column | None:
    """Change the citation to the expected column of the row if it contains the same value. Return the citation's
    column."""
    column = column_of(citation, index)
    if column == expected or citation.place is None:
        return column
    for other in citation.claim.places_in(index.row_span(index.row_of(citation.place.start))):
        if column_of(citation, index, other) == expected and other.match != AMBIGUOUS:
            citation.place, citation.match = other, other.match
            return expected
    return column


def is_one_of_many(citation: Citation, index: Index) -> bool:
    """Return whether the model's quote contains several numbers, and no label shows which one is meant."""
    number, place, quote = citation.claim.number, citation.place, citation.quote
    if number is None or place is None or quote is None:
        return False
    tokens = [each for each in index.numbers_in(quote) if each.sure and not index.is_in_date(each)]
    own = next((each for each in tokens if each.start == place.start), None)
    others = [each for each in tokens if number not in each.sure and (own is None or each.percent == own.percent)]
    return bool(others) and not has_label(citation.claim, place, index)


def has_label(claim: Claim, place: Place, index: Index) -> bool:
    """Return whether a word of the field's name is before the value in its row, after the previous number."""
    start, _ = index.row_span(index.row_of(place.start))
    before = [each.end for each in index.numbers_in((start, place.start)) if each.end <= place.start]
    words = set(re.findall(r"\w+", fold(index.content[max([start, *before]) : place.start])))
    return any(name in words for name in names_of(claim.path))


def is_of_pages(path: str) -> bool:
    """Return whether a field is a page or number of pages, by its name."""
    return any(name in NAMES for name in names_of(path))


def names_of(path: str) -> list[str]:
    last = next((token for token in reversed(path.split("/")) if token != "*"), "")
    return [word for part in NAME.findall(last) if len(word := part.casefold()) >= MIN_LABEL]
