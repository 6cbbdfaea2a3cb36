"""Search for values and quotes in a document's text in any notation: other capitals or spaces, `1.234,56` for 1234.56,
`29 February 2024` for 2024-02-29. Rules only, so the results are deterministic."""

import html
import re
import unicodedata
from array import array
from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from datetime import date
from decimal import Decimal, InvalidOperation
from functools import lru_cache
from typing import Any

from etl.postprocessors.document_text import DocumentText

# Words, without Markdown, table marks, and HTML tags.
TAG = re.compile(r"<[a-zA-Z/][^<>\n]{0,300}>")
WORD = re.compile(r"[^\s|*_`~#>\\<]+|<(?![a-zA-Z/])")
ALIKE = str.maketrans({**dict.fromkeys("‐‑‒–—−", "-"), **dict.fromkeys("‘’‚‛´`", "'"), **dict.fromkeys("“”„‟«»", '"')})
# Not inside a word, except as in `EUR12.50`.
ALONE = r"(?:(?<!\w)|(?<=\b[A-Z]{3}))"
NUMBER = re.compile(ALONE + r"(?:\d[\d.,'’]{0,40}\d|\d)")
GROUPED = re.compile(ALONE + r"\d{1,3}(?:[ \u00a0\u2009\u202f]\d{3}){1,8}(?:[.,]\d{1,10})?(?!\d)")
DATE = re.compile(r"(\d{4})-(\d{2})-(\d{2})(?:[T ].{0,40})?")
MONTHS = (
    *("January", "February", "March", "April", "May", "June"),
    *("July", "August", "September", "October", "November", "December"),
)
MAX_PLACES = 50  # for one number
MAX_NUMBER = 60  # characters
MAX_WORDY = 4_000  # characters of a value that is searched for

Pages = tuple[int, int]  # the first and the last


@dataclass(frozen=True, slots=True, kw_only=True)
class Hit:
    """A match: `content[start:end]` of the text, on a page."""

    page: int
    start: int
    end: int


@dataclass(slots=True)
class Folded:
    """Normalized words, separated by one space. `begins`: a word's position in `text`; `at`, `ends`: its start and end
    in the original."""

    text: str = ""
    begins: "array[int]" = field(default_factory=lambda: array("l"))
    at: "array[int]" = field(default_factory=lambda: array("l"))
    ends: "array[int]" = field(default_factory=lambda: array("l"))

    def origin(self, place: int) -> int:
        """Return the original position of a character. If folding changed its word's length, it is within that word."""
        word = bisect_right(self.begins, place) - 1
        return min(self.at[word] + place - self.begins[word], self.ends[word] - 1)


def fold(text: str) -> str:
    return folded([(0, text)]).text


def folded(parts: Iterable[tuple[int, str]]) -> Folded:
    """Normalize texts, one per line. Each comes with its position in the whole."""
    made, lines, position = Folded(), list[str](), 0
    for start, text in parts:
        words = []
        for match in WORD.finditer(blank_tags(text)):
            if word := fold_word(match.group()):
                made.begins.append(position)
                made.at.append(start + match.start())
                made.ends.append(start + match.end())
                words.append(word)
                position += len(word) + 1
        lines.append(" ".join(words))
        position += not words  # an empty line is only a line break
    made.text = "\n".join(lines)
    return made


def fold_word(word: str) -> str:
    if word.isascii() and "&" not in word:
        return word.lower()
    word = unicodedata.normalize("NFKC", html.unescape(word)).casefold().translate(ALIKE)
    return " ".join(word.split())


def blank_tags(text: str) -> str:
    """Replace HTML tags by spaces: their attributes are not words of the document."""
    return TAG.sub(lambda tag: " " * len(tag.group()), text) if "<" in text else text


# ---- The index ------------------------------------------------------------------------------------------------------
class Index:
    """A search index of a document's text. A match never spans pages."""

    def __init__(self, text: DocumentText) -> None:
        self.text = text
        self.folded = folded((span.start, text.content[span.start : span.end]) for span in text.pages)
        self.numbers = self.all_numbers()

    def all_numbers(self) -> dict[Decimal, list[Hit]]:
        found: defaultdict[Decimal, list[Hit]] = defaultdict(list)
        for span in self.text.pages:
            plain = blank_tags(self.text.content[span.start : span.end])
            for start, end, number in numbers_in(plain):
                if len(found[number]) < MAX_PLACES:
                    found[number].append(Hit(page=span.number, start=span.start + start, end=span.start + end))
        return dict(found)

    def exactly(self, quote: str, *, within: Pages | None = None) -> Hit | None:
        """Return the place of a quote, character by character."""
        start, end = self.bounds(within)
        while (place := self.text.content.find(quote, start, end)) >= 0:
            span = self.text.span_at(place)
            if span.start <= place and place + len(quote) <= span.end:
                return Hit(page=span.number, start=place, end=place + len(quote))
            start = place + 1
        return None

    def words(self, needle: str, *, within: Pages | None = None) -> Hit | None:
        """Return the place of folded text, as whole words."""
        start, end = (bisect_left(self.folded.at, bound) for bound in self.bounds(within))
        begins = self.folded.begins
        if start == len(begins):
            return None
        last = begins[end] if end < len(begins) else len(self.folded.text)
        place = whole_words(needle, self.folded.text, begins[start], last)
        if place < 0:
            return None
        first, final = self.folded.origin(place), self.folded.origin(place + len(needle) - 1)
        return Hit(page=self.text.page_at(first), start=first, end=final + 1)

    def bounds(self, pages: Pages | None) -> tuple[int, int]:
        """Return the start and end of a range of pages in the content. None stands for all pages."""
        if pages is None:
            return 0, len(self.text.content)
        spans = [span for span in self.text.pages if pages[0] <= span.number <= pages[1]]
        return (spans[0].start, spans[-1].end) if spans else (0, 0)

    def value(self, value: Any, *, likely: Pages | None = None) -> Hit | None:
        """Return the first place of a string or number in any notation, on `likely` pages if possible."""
        for needle in forms(value):
            for pages in [likely, None] if likely else [None]:
                if place := self.words(needle, within=pages):
                    return place
        places = [place for number in sorted(numbers_of(value)) for place in self.numbers.get(number, ())]
        return min(places, default=None, key=lambda each: not (likely and likely[0] <= each.page <= likely[1]))


def whole_words(needle: str, text: str, start: int = 0, end: int | None = None) -> int:
    """Return the position of the needle in the text, not as part of a longer word or number; or -1."""
    if not needle:
        return -1
    while (place := text.find(needle, start, end)) >= 0:
        start, after = place + 1, place + len(needle)
        if not joins(text[place - 1 : place], needle[0]) and not joins(needle[-1], text[after : after + 1]):
            return place
    return -1


def joins(before: str, after: str) -> bool:
    """Whether two characters belong to one word. Scripts without spaces have no word boundaries."""
    return bool(before and after) and before.isalnum() and after.isalnum() and before < "\u2e80" and after < "\u2e80"


# ---- Notations ------------------------------------------------------------------------------------------------------
def numbers_of(value: Any) -> frozenset[Decimal]:
    """Return the number of a value, or the possible numbers of a numeric string. Signs are dropped: they have many
    notations. A string such as `007` is a name."""
    if isinstance(value, bool) or value is None:
        return frozenset()
    if isinstance(value, int | float):
        return frozenset(number for number in [plain_decimal(repr(value))] if number is not None)
    text = value.strip().lstrip("+-−").strip() if isinstance(value, str) and len(value) <= MAX_NUMBER else ""
    if not (NUMBER.fullmatch(text) or GROUPED.fullmatch(text)) or re.match(r"0\d", text):
        return frozenset()
    return possible_numbers(text)


def plain_decimal(text: str) -> Decimal | None:
    try:
        return normalized(Decimal(text))
    except InvalidOperation:
        return None


def normalized(number: Decimal) -> Decimal:
    return abs(number).normalize() if number else Decimal(0)


SHARE = re.compile(r"[ \u00a0]?%")


def numbers_in(text: str) -> Iterator[tuple[int, int, Decimal]]:
    """Yield the numbers in a text with all their meanings: 1.234 is one or a thousand, and 19 % is also 0.19."""
    for pattern in (NUMBER, GROUPED):
        for match in pattern.finditer(text):
            start, end = match.span()
            for number in possible_numbers(match.group()):
                yield start, end, number
                if SHARE.match(text, end):
                    yield start, end, normalized(number / 100)


@lru_cache(maxsize=10_000)
def possible_numbers(token: str) -> frozenset[Decimal]:
    plain = re.sub(r"[\s'’]", "", token)
    found = [plain_decimal(notation) for notation in meanings(plain)]
    return frozenset(number for number in found if number is not None)


def meanings(token: str) -> Iterator[str]:
    """Yield the possible meanings of digits, points, and commas in Python's notation."""
    last = max(token.rfind("."), token.rfind(","))
    if last < 0:
        yield token
        return
    whole, rest = re.sub(r"[.,]", "", token[:last]), token[last + 1 :]
    is_single = not re.search(r"[.,]", token[:last])
    if is_single or token[last] not in token[:last]:
        yield f"{whole}.{rest}"
    if len(rest) == 3:  # noqa: PLR2004 - digits of a group
        yield whole + rest


def forms(value: Any) -> list[str]:
    """Return the folded notations of a value, the most likely first."""
    if not isinstance(value, str):
        return []
    plain = fold(value[:MAX_WORDY]) if len(value) <= MAX_WORDY else ""
    return [each for each in dict.fromkeys([plain, *dates(value.strip())]) if each]


def dates(value: str) -> list[str]:
    match = DATE.fullmatch(value)
    try:
        day = date(*(int(part) for part in match.groups())) if match else None
    except ValueError:
        day = None
    return [fold(notation) for notation in date_notations(day)] if day else []


def date_notations(day: date) -> Iterator[str]:
    y, m, d, month = day.year, day.month, day.day, MONTHS[day.month - 1]
    yield f"{y}-{m:02}-{d:02}"
    for mark in "./-":
        yield from (f"{d:02}{mark}{m:02}{mark}{y}", f"{d}{mark}{m}{mark}{y}", f"{y}{mark}{m:02}{mark}{d:02}")
        yield from (f"{m:02}{mark}{d:02}{mark}{y}", f"{m}{mark}{d}{mark}{y}")
        yield from (f"{d:02}{mark}{m:02}{mark}{y % 100:02}", f"{m:02}{mark}{d:02}{mark}{y % 100:02}")
    for name in (month, month[:3], f"{month[:3]}."):
        yield from (
            f"{d} {name} {y}",
            f"{d:02} {name} {y}",
            f"{name} {d}, {y}",
            f"{name} {d:02}, {y}",
            f"{name} {d} {y}",
        )
        yield from (f"{d}. {name} {y}", f"{d}-{name}-{y}", f"{d:02}-{name}-{y}", f"{d:02}-{name}-{y % 100:02}")
    yield f"{y}年{m}月{d}日"
