"""A search index of a document's text: words, numbers, dates, and rows."""

import re
from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from datetime import date
from decimal import Decimal

from etl.postprocessors.citations import dates, numbers
from etl.postprocessors.citations.characters import STRUCK, cuts, has_no_bounds, is_inside_word
from etl.postprocessors.citations.conventions import convention_of
from etl.postprocessors.citations.dates import DateToken
from etl.postprocessors.citations.folding import Folded, fold, folded
from etl.postprocessors.citations.languages import language_of
from etl.postprocessors.citations.levels import AMBIGUOUS, NORMALIZED
from etl.postprocessors.citations.numbers import Number
from etl.postprocessors.citations.page_numbers import is_within, page_numbers
from etl.postprocessors.citations.scales import CELL, ROW, Scales, rows_of
from etl.postprocessors.document_text import DocumentText
from etl.postprocessors.tables import TableHeads

RUN = re.compile(r"\w+")  # of letters and digits
MAX_OCCURRENCES = 5_000  # of one text in a document
MAX_HYPHENS = 4
Span = tuple[int, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """A place of a value in the text: `content[start:end]`. `match`: its level of certainty (see `levels`)."""

    start: int
    end: int
    match: str

    def as_ambiguous(self) -> "Place":
        return replace(self, match=AMBIGUOUS)


class Index:
    """The index of one document."""

    def __init__(self, text: DocumentText) -> None:
        self.text, self.content = text, text.content
        self.language = language_of(self.content)
        self.folded: Folded = folded(self.page_texts())
        self.word_positions = self.all_words()
        self.dates, self.by_day, self.by_partial = self.all_dates()
        self.tables = TableHeads(self.content).tables
        self.scales = Scales(self.content, text.pages, self.tables)
        self.numbers, self.by_number = self.all_numbers()
        self.number_starts = [each.core[0] for each in self.numbers]
        self.date_starts = [each.start for each in self.dates]
        self.page_numbers = page_numbers(
            (span.number, span.start, self.content[span.start : span.end]) for span in text.pages
        )
        self.rows = [match.start() for match in ROW.finditer(self.content)]
        self.cell_rows: dict[int, bool] = {}  # cache of `has_cells`
        self.struck = [match.span() for match in STRUCK.finditer(self.content)]

    def page_texts(self) -> Iterable[tuple[int, str]]:
        """Yield the text of each page, with its start in the content."""
        return ((span.start, self.content[span.start : span.end]) for span in self.text.pages)

    def all_words(self) -> dict[str, list[int]]:
        found: defaultdict[str, list[int]] = defaultdict(list)
        for match in RUN.finditer(self.folded.text):
            found[match.group()].append(match.start())
        return dict(found)

    def all_dates(self) -> tuple[list[DateToken], dict[date, list[DateToken]], dict[tuple[int, int], list[DateToken]]]:
        found = [each for start, text in self.page_texts() for each in dates.find(text, start)]
        convention = dates.convention_of(found, language=self.language)
        tokens = sorted((dates.read(each, convention) for each in found), key=lambda each: (each.start, -each.end))
        by_day: defaultdict[date, list[DateToken]] = defaultdict(list)
        by_partial: defaultdict[tuple[int, int], list[DateToken]] = defaultdict(list)
        for token in tokens:
            for day in token.days:
                by_day[day].append(token)
            if token.partial:
                by_partial[token.partial].append(token)
        return tokens, dict(by_day), dict(by_partial)

    def all_numbers(self) -> tuple[list[Number], dict[Decimal, list[Number]]]:
        dated = [(each.start, each.end) for each in self.dates if each.is_numeric]
        found = [
            (start, text, each)
            for start, text in self.page_texts()
            for each in numbers.find(text, start, excluded=within(dated, start, start + len(text)))
        ]
        convention = convention_of(
            (each.digits, each.is_alone, each.is_amount) for _, _, each in found if not each.is_unsure
        )
        for _, _, each in found:
            each.far_scales, each.is_in_scaled_column = self.scales.at(*each.core)
        tokens: list[Number] = []
        by_number: defaultdict[Decimal, list[Number]] = defaultdict(list)
        for start, text, each in found:
            tokens += numbers.read(each, text, convention, language=self.language, offset=start)
        tokens.sort(key=lambda each: (each.core[0], -each.core[1]))
        for token in tokens:
            for value in dict.fromkeys((*token.sure, *token.possible)):
                by_number[value].append(token)
        return tokens, dict(by_number)

    # ---- Words ------------------------------------------------------------------------------------------------------
    def words(self, needle: str, *, within: Span | None = None, is_quote: bool = False) -> Iterator[Place]:
        """Yield the places of a folded text, as whole words and in order. A quote may omit the sign of a number, which
        `widened` adds."""
        if not needle:
            return
        start, end = self.folded_bounds(within)
        text = self.folded.text
        for first in self.candidates(needle, start, end):
            after = first + len(needle)
            before = text[first - 1 : first] if first else ""
            if is_inside_word(before, needle[0]) or is_inside_word(needle[-1], text[after : after + 1]):
                continue
            found = self.place_of(first, after, is_quote=is_quote)
            is_part = is_quote and not (needle[0].isalpha() and needle[-1].isalpha())
            if found and not (is_part and found.match == AMBIGUOUS):
                yield found

    def place_of(self, start: int, end: int, *, is_quote: bool = False) -> Place | None:
        """Return the place of `folded.text[start:end]`, or None if it cuts a word or a number."""
        first, last = self.folded.original_start(start, self.content), self.original_end(end)
        is_word, is_compound = cuts(self.content, first, last)
        if is_word or self.cuts_number(first, last, is_quote=is_quote):
            return None
        return Place(start=first, end=last, match=AMBIGUOUS if is_compound else NORMALIZED)

    def hyphenated(self, needle: str, *, within: Span | None = None, is_quote: bool = False) -> Iterator[Place]:
        """Yield the places of a folded text where one of its hyphens is at the end of a line."""
        hyphens = [index for index, char in enumerate(needle) if char == "-"][:MAX_HYPHENS]
        for index in hyphens:
            for mark in ("", "- "):
                variant = (needle[:index] + mark + needle[index + 1 :]).strip()
                for found in self.words(variant, within=within, is_quote=is_quote):
                    if "\n" in self.content[found.start : found.end]:
                        yield found

    def candidates(self, needle: str, start: int, end: int) -> Iterator[int]:
        """Yield the positions of a text in the folded text, including those inside words."""
        text = self.folded.text
        runs = list(RUN.finditer(needle))
        if not runs or any(has_no_bounds(char) for char in needle):
            position = text.find(needle, start, end)
            while position >= 0:
                yield position
                position = text.find(needle, position + 1, end)
            return
        rarest = min(runs, key=lambda run: len(self.word_positions.get(run.group(), ())))
        positions = self.word_positions.get(rarest.group(), [])
        for rare in positions[bisect_left(positions, start) : bisect_right(positions, end)]:
            position = rare - rarest.start()
            if position >= start and position + len(needle) <= end and text.startswith(needle, position):
                yield position

    def folded_bounds(self, within: Span | None) -> Span:
        """Return the bounds in the folded text of the words that start in a span of the content."""
        if within is None:
            return 0, len(self.folded.text)
        first, last = (bisect_left(self.folded.original_starts, bound) for bound in within)
        starts, total = self.folded.folded_starts, len(self.folded.text)
        return starts[first] if first < len(starts) else total, starts[last] - 1 if last < len(starts) else total

    def original_end(self, after: int) -> int:
        """Return the original end of a folded text that ends at `after`."""
        folded = self.folded
        starts, ends = folded.folded_starts, folded.original_ends
        word = bisect_right(starts, after - 1) - 1
        end = starts[word + 1] - 1 if word + 1 < len(starts) else len(folded.text)
        is_plain = after == end and self.content[folded.original_starts[word] : ends[word]].isascii()
        return ends[word] if is_plain else folded.original_end(after, self.content)

    # ---- Numbers ----------------------------------------------------------------------------------------------------
    def numbers_in(self, span: Span) -> list[Number]:
        first, last = bisect_left(self.number_starts, span[0]), bisect_left(self.number_starts, span[1])
        return [each for each in self.numbers[first:last] if each.core[1] <= span[1]]

    def number_at(self, position: int) -> Number | None:
        """Return the number whose digits contain or touch a position."""
        last = bisect_right(self.number_starts, position) - 1
        for each in reversed(self.numbers[max(0, last - 3) : last + 1]):
            if each.core[0] <= position <= each.core[1]:
                return each
        return None

    def numbers_near(self, place: Place) -> list[Number]:
        """Return the numbers that share digits with a place."""
        last = bisect_left(self.number_starts, place.end)
        first = max(0, bisect_left(self.number_starts, place.start) - 3)
        return [each for each in self.numbers[first:last] if each.core[1] > place.start]

    def cuts_number(self, start: int, end: int, *, is_quote: bool) -> bool:
        """Return whether a bound is inside the digits of a number or, unless the text is a quote, between a number and
        its sign."""
        first, last = self.number_at(start), self.number_at(end)
        if any(each and each.core[0] < bound < each.core[1] for each, bound in ((first, start), (last, end))):
            return True
        return bool(first and first.signed and first.core[0] == start and not is_quote)

    def widened(self, span: Span) -> Span | None:
        """Return a span extended by the signs and units of the numbers at its bounds, or None if it cuts a number."""
        start, end = span
        for each in (self.number_at(start), self.number_at(end)):
            if each is None:
                continue
            if each.core[0] < start < each.core[1] or each.core[0] < end < each.core[1]:
                return None
            if each.core[0] >= start and each.core[1] <= end:
                start, end = min(start, each.start), max(end, each.end)
        return start, end

    def is_in_date(self, number: Number) -> bool:
        end = bisect_right(self.date_starts, number.core[0])
        return any(each.end >= number.core[1] for each in self.dates[max(0, end - 3) : end])

    def is_struck(self, place: Place) -> bool:
        """Return whether a place is in struck-through text."""
        return bool(self.struck) and is_within(self.struck, place.start, place.end)

    def is_page_number(self, place: Place) -> bool:
        """Return whether a place is a page number or the number of pages in a page header or footer."""
        if not is_within(self.page_numbers, place.start, place.end):
            return False
        return not any(map(str.isalpha, self.content[place.start : place.end]))

    # ---- Rows and pages ---------------------------------------------------------------------------------------------
    def row_of(self, position: int) -> int:
        """Return the index of the row at a position. A row is a line or an HTML table row."""
        return bisect_right(self.rows, position)

    def rows_in(self, span: Span) -> range:
        return range(self.row_of(span[0]), self.row_of(span[1] - 1) + 1)

    def row_span(self, row: int) -> Span:
        start = self.rows[row - 1] if row else 0
        end = self.rows[row] if row < len(self.rows) else len(self.content)
        return start + (self.content[start : start + 1] == "\n"), end

    def row_starts(self, text: str) -> Iterator[int]:
        """Yield the positions of rows that start with a text."""
        position = self.content.find(text)
        while position >= 0:
            if self.row_span(self.row_of(position))[0] == position:
                yield position
            position = self.content.find(text, position + 1)

    def number_from(self, position: int) -> Number | None:
        """Return the number that starts at a position."""
        near = bisect_left(self.number_starts, position)
        return next((each for each in self.numbers[max(0, near - 1) : near + 2] if each.start == position), None)

    def has_cells(self, row: int) -> bool:
        if row not in self.cell_rows:
            self.cell_rows[row] = len(CELL.findall(self.content, *self.row_span(row))) > 1
        return self.cell_rows[row]

    def cells(self, row: int) -> list[str]:
        start, end = self.row_span(row)
        return CELL.split(self.content[start:end])

    def head_of(self, row: int) -> list[str]:
        """Return the normalized column names for a row of a table, or an empty list."""
        number = self.scales.table_at(self.row_span(row)[1] - 1)
        head = self.tables[number].head if number is not None else ""
        rows = list(rows_of(head, is_html="<t" in head))
        names = CELL.split(rows[0]) if rows and "span" not in head and (len(rows) == 1 or "<t" not in head) else []
        return [fold(cell) for cell in names] if len(names) == len(self.cells(row)) else []

    def column_of(self, place: Place) -> tuple[str, int]:
        """Return the kind and index of a place's column: "cell", counted from the left or, in a row without cells,
        "number", counted from the right."""
        start, end = self.row_span(self.row_of(place.start))
        cells = len(CELL.findall(self.content, start, place.start))
        if self.has_cells(self.row_of(place.start)):
            return "cell", cells
        after = [each for each in self.numbers_in((place.start, end)) if each.core[0] >= place.end]
        return "number", len({each.core[1] for each in after})

    def bounds(self, pages: Span | None) -> Span:
        """Return the bounds of a range of pages in the content. None means all pages."""
        if pages is None:
            return 0, len(self.content)
        spans = [span for span in self.text.pages if pages[0] <= span.number <= pages[1]]
        return (spans[0].start, spans[-1].end) if spans else (0, 0)


def within(spans: list[Span], start: int, end: int) -> list[Span]:
    """Return the spans in a range, relative to its start."""
    first, last = bisect_left(spans, (start, 0)), bisect_left(spans, (end, 0))
    return [(low - start, high - start) for low, high in spans[first:last]]
