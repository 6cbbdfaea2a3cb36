"""Excerpts of a text: the rows, items, or lines that contain given values, each after its page marker.

Values and quotes are matched by their words and digits. If several rows match equally well, the page of the evidence
decides, and then the order.
"""

import re
from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from config.platform.http.pointers import join
from etl.postprocessors.borders import find_items, running_heads
from etl.postprocessors.groups import HeadingsAndTables, html_rows_of, markdown_rows_of
from etl.postprocessors.repair import Mismatches, plain_evidence, value_at
from etl.postprocessors.responses import Evidence, ParsedResponse, scalars
from etl.postprocessors.splitting import PIECE_BEGINS, TABLE_CONTINUES, UNDER_HEADINGS, markdown_rows
from etl.postprocessors.tables import html_rows
from etl.providers.base import PAGE_MARKER, page_marker

WORD = re.compile(r"[^\W_]+(?:[.,'’][^\W_]+)*")
SEPARATOR = re.compile(r"[.,'’]")
THOUSANDS = 3  # digits
MARKER = re.compile(PAGE_MARKER)
HTML_ROW = re.compile(r"\s*<tr\b", re.IGNORECASE)
HEAD_LINES = 2  # the lines of a Markdown table's head; groups of HTML tables are in these or later lines
MAX_UNIT = 2_000  # characters of a row or item
MAX_AROUND = 150  # characters on each side of a line outside of rows and items
MIN_SCORE = 0.5  # reached by a single word that occurs at most twice
MIN_MATCHING, MIN_SHARE = 2, 0.75  # the number and share of a value's words that a unit with a lower score needs


@dataclass(frozen=True, slots=True, kw_only=True)
class Unit:
    """A row, an item, or a line of a text: `content[start:end]`."""

    start: int
    end: int
    page: int
    is_whole: bool  # a complete row or item, not a line that may be part of one
    is_group: bool = False  # a row with one filled cell


class Excerpts:
    """The units of a text. `first_page`: the page of the text before the first page marker."""

    def __init__(self, content: str, *, first_page: int) -> None:
        self.content = content
        self.markers = [(match.start(), int(match["number"])) for match in MARKER.finditer(content)]
        self.first_page = first_page
        self.above = HeadingsAndTables(content)
        self.units = [
            Unit(
                start=start,
                end=end,
                page=self.page_at(start),
                is_whole=is_whole,
                is_group=is_whole and is_group(content[start:end]),
            )
            for start, end, is_whole in units_of(content)
        ]
        self.places: dict[str, list[int]] = defaultdict(list)
        for index, unit in enumerate(self.units):
            for word in set(words(content[unit.start : unit.end])):
                self.places[word].append(index)

    def page_at(self, place: int) -> int:
        index = bisect_right(self.markers, place, key=lambda marker: marker[0]) - 1
        return self.markers[index][1] if index >= 0 else self.first_page

    def find(self, value: Any, evidence: Iterable[Evidence], *, after: int = -1) -> int | None:
        """Return the index of the unit that matches a value best, or None. If several match equally well, the first one
        after index `after` is preferred. Group rows never match an object, although it may contain their values."""
        evidence = list(evidence)
        pages = {each.page for each in evidence}
        wanted = {word for each in evidence for word in words(each.quote)}
        wanted |= {word for _, inside in scalars(value) if is_text(inside) for word in words(str(inside))}
        wanted &= self.places.keys()
        scores: dict[int, float] = defaultdict(float)
        counts = Counter[int]()
        for word in sorted(wanted):
            places = [at for at in self.places[word] if not (isinstance(value, dict) and self.units[at].is_group)]
            for index in places:
                scores[index] += 1 / len(places)
                counts[index] += 1
        if not scores:
            return None
        best = max(scores, key=lambda at: (round(scores[at], 6), self.units[at].page in pages, at > after, -at))
        # All words of a repeated row are frequent, so its score is low. It is accepted if most of the words match.
        is_similar = counts[best] >= max(MIN_MATCHING, MIN_SHARE * len(wanted))
        return best if scores[best] >= MIN_SCORE or is_similar else None

    def span(self, index: int) -> tuple[int, int]:
        """Return the span to show for a unit. For a line, which may be part of a row, it includes the lines around."""
        unit = self.units[index]
        if unit.is_whole:
            return unit.start, unit.end
        start = self.content.find("\n", max(0, unit.start - MAX_AROUND), unit.start) + 1
        end = self.content.rfind("\n", unit.end, unit.end + MAX_AROUND)
        return start or unit.start, end if end >= 0 else unit.end

    def are_rows(self, places: list[list[int]]) -> bool:
        """Return whether each place is one complete row or item, and they are distinct and in order."""
        units = [unit for place in places for unit in place]
        is_ordered = all(one < other for one, other in pairwise(units))
        return is_ordered and len(units) == len(places) and all(self.units[unit].is_whole for unit in units)


@dataclass(slots=True)
class ExcerptText:
    """The text of excerpts from consecutive texts. Page markers, headings, and table heads are not repeated."""

    parts: list[str] = field(default_factory=list)
    page: int = 0
    headings: str = ""
    lead: str = ""

    @property
    def text(self) -> str:
        return "\n".join(self.parts)

    def add(self, excerpts: Excerpts, indexes: Iterable[int]) -> None:
        """Add units of a text, in text order."""
        end = -1
        for start, stop in sorted({excerpts.span(index) for index in indexes}):
            start = max(start, end)  # noqa: PLW2901 - the lines around two units may overlap
            if start >= stop:
                continue
            self.add_above(excerpts, start, stop)
            self.parts.append(excerpts.content[start:stop].strip("\n"))
            self.page, end = excerpts.page_at(stop), stop

    def add_above(self, excerpts: Excerpts, start: int, stop: int) -> None:
        headings, lead = excerpts.above.headings_of(start), excerpts.above.lead(start, stop)[1]
        if headings and headings != self.headings:
            self.parts += [UNDER_HEADINGS, headings, PIECE_BEGINS]
        if (here := excerpts.page_at(start)) != self.page and not MARKER.match(excerpts.content, start):
            self.parts.append(page_marker(here))
        if lead and lead != self.lead:
            self.parts += new_groups(lead, self.lead) or [f"{TABLE_CONTINUES}\n{lead}"]
        self.headings, self.lead = headings, lead or self.lead


def is_group(row: str) -> bool:
    """Return whether only the first cell of a table row has text."""
    read = html_rows_of if HTML_ROW.match(row) else markdown_rows_of
    return any(each.is_group for each in read(row, 0))


def new_groups(lead: str, before: str) -> list[str]:
    """Return the groups that are new if `lead` continues the table of `before`, or an empty list."""
    lines, known = lead.split("\n"), before.split("\n")
    same = next((at for at, pair in enumerate(zip(lines, known, strict=False)) if pair[0] != pair[1]), len(known))
    is_table = same >= HEAD_LINES and lines[:HEAD_LINES] == known[:HEAD_LINES]
    return lines[same:] if is_table and len(lines) >= len(known) else []


def units_of(content: str) -> Iterator[tuple[int, int, bool]]:
    """Yield the units of a text in order, without overlap, and whether each is a row or item of at most MAX_UNIT."""
    pages = [match.start() for match in MARKER.finditer(content)]
    running = running_heads(content, list(pairwise([*pages, len(content)])))
    rows = [*markdown_rows(content, size=MAX_UNIT), *html_rows(content)]
    items = find_items(content, 0, len(content), running).spans
    end = 0
    # Of spans with the same start, use the longest: a row is also listed without the rows that continue its cells.
    for start, stop in sorted([*rows, *items, (len(content), len(content))], key=lambda span: (span[0], -span[1])):
        if start < end:
            continue
        for line in re.finditer(r"[^\n]+", content[end:start]):
            yield end + line.start(), end + line.end(), False
        if start < stop:
            yield start, stop, stop - start <= MAX_UNIT
        end = stop


def words(text: str) -> Iterator[str]:
    """Yield the normalized words of a text. Numbers do not depend on their notation."""
    for match in WORD.finditer(text):
        word = match.group().casefold()
        yield plain_number(word) if SEPARATOR.sub("", word).isdecimal() else word


def plain_number(word: str) -> str:
    """Return a number without thousands separators and trailing decimal zeros. Three digits after the last separator
    count as thousands, because most amounts have two decimals."""
    *groups, last = SEPARATOR.split(word)
    if not groups or len(last) == THOUSANDS:
        return "".join((*groups, last))
    return ".".join(filter(None, ("".join(groups), last.rstrip("0"))))


def is_text(value: Any) -> bool:
    return value is not None and not isinstance(value, bool)


# ---- Invalid parts --------------------------------------------------------------------------------------------------
Item = tuple[str, int]  # a list's pointer and an index


def locate(excerpts: Excerpts, response: ParsedResponse, found: Mismatches) -> dict[Item | None, list[int]] | None:
    """Return the units of each invalid item and, under the key None, those of invalid values outside of items.

    Return None if one of them cannot be found, if more than half of a list's items are invalid, or if the excerpts
    would be longer than half of the text.
    """
    response = plain_evidence(response)
    places: dict[Item | None, list[int]] = {}
    last: dict[str, int] = {}
    for pointer, at in found.items:
        items = value_at(response.data, pointer)
        unit = excerpts.find(items[at], evidence_in(response, join(pointer, at)), after=last.get(pointer, -1))
        if unit is None or 2 * len(found.invalid_indexes(pointer)) > max(len(items), 2):
            return None
        places[pointer, at], last[pointer] = [unit], unit
    for pointer, _ in found.others:
        value = value_at(response.data, pointer)
        unit = None if isinstance(value, dict | list) else excerpts.find(value, evidence_in(response, pointer))
        if unit is None:
            return None
        places.setdefault(None, []).append(unit)
    spans = {excerpts.span(unit) for units in places.values() for unit in units}
    return places if 2 * sum(end - start for start, end in spans) <= len(excerpts.content) else None


def evidence_in(response: ParsedResponse, pointer: str) -> list[Evidence]:
    return [each for name, each in response.evidence.items() if f"{name}/".startswith(f"{pointer}/")]
