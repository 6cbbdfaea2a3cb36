"""The values of a result, and their places in the text of the document."""

import re
from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import date
from decimal import Decimal, InvalidOperation
from itertools import islice
from typing import Any

from config.platform.http.pointers import join
from etl.postprocessors.citations import identifiers
from etl.postprocessors.citations.cells import wrapped_texts
from etl.postprocessors.citations.conventions import Convention, read_digits
from etl.postprocessors.citations.dates import has_time
from etl.postprocessors.citations.folding import fold
from etl.postprocessors.citations.index import MAX_OCCURRENCES, Index, Place, Span
from etl.postprocessors.citations.levels import AMBIGUOUS, EXACT, NORMALIZED, RANK
from etl.postprocessors.citations.neighbors import LIKE_CURRENCY
from etl.postprocessors.responses import Evidence

DATE = re.compile(r"(\d{4})-(\d{2})-(\d{2})(?:[T ](\d{2}:\d{2}.{0,40}))?")
NUMERIC = re.compile(r"-?\d[\d.,'’ \u00a0\u202f]{0,40}")
AMOUNT = re.compile(rf"(?:{LIKE_CURRENCY.pattern})?\s?\d[\d.,'’ \u00a0\u202f]{{0,40}}(?:{LIKE_CURRENCY.pattern})?")
TIME_WINDOW = 40  # characters after a date
MAX_TEXT = 20_000  # characters; longer values are not searched for
# The minimum number of letters and digits. Shorter values may occur in a text by chance.
MIN_LENGTH = 3
# If the document does not contain a text that is at least this long, the text is the model's own.
FREE_WORDS, FREE_LENGTH = 6, 80


@dataclass(slots=True)
class Claim:
    """A value of a result that needs a citation.

    `item`: the pointer of the innermost list item that contains it, or "". `path`: its pointer with `*` instead of the
    indexes of items. `places`: all its places in the text, in order.
    """

    pointer: str
    value: Any
    item: str
    path: str
    is_choice: bool = False  # a boolean or an enum value
    policy: str = ""  # the schema's `x-merge`
    evidence: Evidence | None = None
    likely: Span | None = None  # the part of the text that its piece covers
    places: list[Place] = field(default_factory=list)
    quotes: list[Span] = field(default_factory=list)

    @property
    def number(self) -> Decimal | None:
        return None if self.is_choice else number_of(self.value)

    @property
    def is_free_text(self) -> bool:
        if not isinstance(self.value, str):
            return False
        return len(self.value.split()) >= FREE_WORDS or len(self.value) > FREE_LENGTH

    @property
    def is_confined(self) -> bool:
        """Whether it is a number of an item and its quote is in the text. It is not searched for in other rows then."""
        return bool(self.item and self.quotes) and self.number is not None

    @property
    def is_specific(self) -> bool:
        text = literal(self.value)
        return sum(map(str.isalnum, text)) >= MIN_LENGTH or any(letter >= "\u2e80" for letter in text)

    def starts_in(self, span: Span) -> bool:
        """Return whether one of its places starts in a span. The place may end after the span."""
        first, last = self.range_in(span)
        return first < last

    def places_in(self, span: Span, *, limit: int | None = None) -> list[Place]:
        """Return the places in a span. `limit`: the maximum number of places."""
        first, last = self.range_in(span)
        places = self.places[first:last] if limit is None else self.places[first : min(last, first + limit)]
        return [place for place in places if place.end <= span[1]]

    def range_in(self, span: Span) -> tuple[int, int]:
        """Return the start and end index of the places that start in a span."""
        first, last = (bisect_left(self.places, bound, key=lambda place: place.start) for bound in span)
        return first, last

    def likely_range(self) -> tuple[int, int]:
        """Return the start and end index of the places in the piece that the value is from. If it has none there, the
        range includes all places."""
        first, last = self.range_in(self.likely) if self.likely else (0, 0)
        return (first, last) if first < last else (0, len(self.places))


@dataclass(slots=True, kw_only=True)
class Citation:
    """The citation of a value. `place`: its place in the text; `quote`: the model's quote, if that is the evidence."""

    claim: Claim
    match: str
    place: Place | None = None
    quote: Span | None = None
    page: int | None = None


def claims_in(data: Any, pointer: str = "", item: str = "", path: str = "") -> Iterator[Claim]:
    """Yield a claim for every value that is not null or empty."""
    if isinstance(data, dict):
        for name, inside in data.items():
            yield from claims_in(inside, join(pointer, name), item, join(path, name))
    elif isinstance(data, list):
        for index, inside in enumerate(data):
            here = join(pointer, index)
            yield from claims_in(inside, here, here, join(path, "*"))
    elif data is not None and data != "":
        yield Claim(pointer, data, item, path)


# ---- Forms of values ------------------------------------------------------------------------------------------------
def literal(value: Any) -> str:
    """Return a value as text: strings without quotes, and numbers with all digits. Only huge exponents are kept."""
    if isinstance(value, Decimal):
        return format(value, "f") if -MAX_EXPONENT < value.adjusted() < MAX_EXPONENT else str(value)
    return str.__str__(value) if isinstance(value, str) else repr(value)


MAX_EXPONENT = 400


def number_of(value: Any) -> Decimal | None:
    """Return the exact value of a JSON number, or None for other values."""
    if isinstance(value, bool) or value is None or type(value) is str:
        return None
    try:
        number = value if isinstance(value, Decimal) else Decimal(literal(value))
    except (InvalidOperation, ValueError):
        return None
    return number if number.is_finite() else None


def day_of(text: str) -> tuple[date, str] | None:
    """Return the day and the time, or "", of an ISO 8601 date. Return None for other texts."""
    match = DATE.fullmatch(text)
    try:
        day = date(*(int(part) for part in match.groups()[:3])) if match else None
    except ValueError:
        return None
    return (day, match[4] or "") if match and day else None


def numbers_of_text(text: str) -> tuple[Decimal, ...]:
    """Return the possible values of a numeric string. With a leading zero, as in `007`, it is an identifier: none."""
    if not NUMERIC.fullmatch(text):
        return ()
    sign = -1 if text.startswith("-") else 1
    digits = read_digits(re.sub(r"[\u00a0\u202f]", "\u00a0", text.lstrip("-").replace("’", "'")))
    return tuple(sign * value for value in digits.values(Convention())) if digits and not digits.is_code else ()


# ---- Places ---------------------------------------------------------------------------------------------------------
class Finder:
    """Finder of the places of values in a document. Places are cached for repeated values."""

    def __init__(self, index: Index) -> None:
        self.index = index
        self.wrapped = wrapped_texts(index)
        self.known: dict[tuple[bool, bool, str], list[Place]] = {}

    def places(self, value: Any, *, is_of_pages: bool = False) -> list[Place]:
        """Return all places of a value in the text, in order. Page numbers in headers and footers are included only if
        `is_of_pages` is true."""
        text, number = literal(value), number_of(value)
        if number is None and not isinstance(value, str):
            return []  # true and false
        key = (number is None, is_of_pages, text)
        if key not in self.known:
            found = self.of_text(text.strip()) if number is None else [*self.of_number(number, text)]
            best: dict[int, Place] = {}
            for place in sorted(found, key=lambda place: RANK[place.match]):
                if is_of_pages or not self.index.is_page_number(place):
                    best.setdefault(place.start, place.as_ambiguous() if self.index.is_struck(place) else place)
            self.known[key] = [best[start] for start in sorted(best)]
        return self.known[key]

    def of_number(self, number: Decimal, text: str, *, is_sure: bool = True) -> Iterator[Place]:
        for token in self.index.by_number.get(number, ()):
            if number not in token.sure or not is_sure:
                match = AMBIGUOUS
            else:
                match = EXACT if token.literal == text else NORMALIZED
            yield Place(start=token.start, end=token.end, match=match)

    def of_text(self, text: str) -> list[Place]:
        found = [*self.of_words(text), *self.of_day(text)]
        numbers = numbers_of_text(text)
        if AMOUNT.fullmatch(text):
            found = [self.of_amount(place) for place in found]
        for number in numbers:
            found += self.of_number(number, text, is_sure=len(numbers) == 1)
        return found

    def of_amount(self, place: Place) -> Place:
        """Return the place of an amount that is a string. It is ambiguous if it lacks a sign, scale, or digits that are
        beside it in the text."""
        tokens = self.index.numbers_near(place)
        is_whole = all(place.start <= each.reach[0] and each.reach[1] <= place.end for each in tokens)
        return place if is_whole else place.as_ambiguous()

    def of_words(self, text: str) -> Iterator[Place]:
        needle = fold(text) if len(text) <= MAX_TEXT else ""
        if not needle:
            return
        content = self.index.content
        searches = self.index.words(needle), self.index.hyphenated(needle)
        hits = [hit for found in searches for hit in islice(found, MAX_OCCURRENCES)]
        hits += [Place(start=start, end=end, match=NORMALIZED) for start, end in self.wrapped.get(needle, ())]
        hits = hits or [*islice(identifiers.respaced_places(self.index, needle), MAX_OCCURRENCES)]
        for place in identifiers.mark_other_spellings(hits, text, content):
            is_exact = place.match == NORMALIZED and content[place.start : place.end] == text
            yield Place(start=place.start, end=place.end, match=EXACT if is_exact else place.match)

    def of_day(self, text: str) -> Iterator[Place]:
        parsed = day_of(text)
        if parsed is None:
            return
        day, time = parsed
        for token in self.index.by_day.get(day, ()):
            after = self.index.content[token.end : token.end + TIME_WINDOW]
            is_sure = token.days == (day,) and has_time(time, after)
            yield Place(start=token.start, end=token.end, match=NORMALIZED if is_sure else AMBIGUOUS)
        for token in self.index.by_partial.get((day.month, day.day), ()):
            yield Place(start=token.start, end=token.end, match=AMBIGUOUS)

    # ---- Quotes -----------------------------------------------------------------------------------------------------
    def quotes(self, evidence: Evidence) -> list[Span]:
        """Return the places of a quote on the page that the model named or, if there are none, on all pages or across a
        page break."""
        needle = fold(evidence.quote)
        if not needle:
            return []
        for pages in ((evidence.page, evidence.page), None):
            bounds = self.index.bounds(pages)
            hits = islice(self.index.words(needle, within=bounds, is_quote=True), MAX_OCCURRENCES)
            spans = [(hit.start, hit.end) for hit in hits]
            hyphenated = self.index.hyphenated(needle, within=bounds, is_quote=True)
            spans = spans or [(hit.start, hit.end) for hit in hyphenated]
            if found := [span for each in spans if (span := self.index.widened(each))]:
                return found
        return self.over_page_break(needle, evidence.page)

    def over_page_break(self, needle: str, page: int) -> list[Span]:
        """Return the place of a quote that continues on the next page, after a footer and a header."""
        words = needle.split()
        for first in (page, page - 1):
            ends, starts = self.index.bounds((first, first)), self.index.bounds((first + 1, first + 1))
            if ends == (0, 0) or starts == (0, 0):
                continue
            tail = (max(ends[0], ends[1] - PAGE_EDGE), ends[1])
            head = (starts[0], min(starts[1], starts[0] + PAGE_EDGE))
            for cut in range(len(words) - 1, 0, -1):
                before = self.last(" ".join(words[:cut]), tail)
                after = self.first(" ".join(words[cut:]), head) if before else None
                if before and after and self.is_page_break(before[1], after[0]):
                    return [(before[0], after[1])]
        return []

    def is_page_break(self, end: int, start: int) -> bool:
        """Return whether two texts are separated only by whole paragraphs, such as a footer and a header."""
        content = self.index.content
        first = PARAGRAPH_END.match(content, end, self.index.text.span_at(end - 1).end)
        page = self.index.text.span_at(start)
        return bool(first) and not content[page.start : start].rpartition("\n\n")[2].strip()

    def first(self, needle: str, within: Span) -> Span | None:
        hit = next(self.index.words(needle, within=within, is_quote=True), None)
        return (hit.start, hit.end) if hit else None

    def last(self, needle: str, within: Span) -> Span | None:
        hits = list(islice(self.index.words(needle, within=within, is_quote=True), MAX_OCCURRENCES))
        return (hits[-1].start, hits[-1].end) if hits else None


PARAGRAPH_END = re.compile(r"[^\S\n]*(?:\n[^\S\n]*\n|\Z)")
PAGE_EDGE = 400  # characters at the end or start of a page
