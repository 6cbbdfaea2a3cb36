"""Finding values and quotes in a document's text, however they are written there: in other capitals, with other spaces,
`1.234,56` for 1234.56, `29 February 2024` for 2024-02-29. By rules alone, so that the same is found each time."""

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

# Words; marks of Markdown and tables are no part of them, nor are tags of HTML.
TAG = re.compile(r"<[a-zA-Z/][^<>\n]{0,300}>")
WORD = re.compile(r"[^\s|*_`~#>\\<]+|<(?![a-zA-Z/])")
ALIKE = str.maketrans({**dict.fromkeys("‐‑‒–—−", "-"), **dict.fromkeys("‘’‚‛´`", "'"), **dict.fromkeys("“”„‟«»", '"')})
# Not inside a word, but for `EUR12.50`.
ALONE = r"(?:(?<!\w)|(?<=\b[A-Z]{3}))"
NUMBER = re.compile(ALONE + r"(?:\d[\d.,'’]{0,40}\d|\d)")
GROUPED = re.compile(ALONE + r"\d{1,3}(?:[ \u00a0\u2009\u202f]\d{3}){1,8}(?:[.,]\d{1,10})?(?!\d)")
DATE = re.compile(r"(\d{4})-(\d{2})-(\d{2})(?:[T ].{0,40})?")
MONTHS = (
    *("January", "February", "March", "April", "May", "June"),
    *("July", "August", "September", "October", "November", "December"),
)
MAX_PLACES = 50  # of one number
MAX_NUMBER = 60  # characters
MAX_WORDY = 4_000  # characters of a value that is looked for

Pages = tuple[int, int]  # the first and the last


@dataclass(frozen=True, slots=True, kw_only=True)
class Hit:
    """`content[start:end]` of the text, on a page."""

    page: int
    start: int
    end: int


@dataclass(slots=True)
class Folded:
    """A text in words of one form, one space between them; `begins` says where each word is in it, `at` where it is in
    the text that it was made of, and `ends` where it ends there."""

    text: str = ""
    begins: "array[int]" = field(default_factory=lambda: array("l"))
    at: "array[int]" = field(default_factory=lambda: array("l"))
    ends: "array[int]" = field(default_factory=lambda: array("l"))

    def origin(self, place: int) -> int:
        """Return where a character comes from. Inside a word that folding has made longer or shorter it is somewhere
        in that word."""
        word = bisect_right(self.begins, place) - 1
        return min(self.at[word] + place - self.begins[word], self.ends[word] - 1)


def fold(text: str) -> str:
    return folded([(0, text)]).text


def folded(parts: Iterable[tuple[int, str]]) -> Folded:
    """Return texts in one form, a line each; each with the place where it begins in what they are parts of."""
    made, lines, position = Folded(), list[str](), 0
    for start, text in parts:
        words = []
        for match in WORD.finditer(without_tags(text)):
            if word := fold_word(match.group()):
                made.begins.append(position)
                made.at.append(start + match.start())
                made.ends.append(start + match.end())
                words.append(word)
                position += len(word) + 1
        lines.append(" ".join(words))
        position += not words  # an empty line is a line break alone
    made.text = "\n".join(lines)
    return made


def fold_word(word: str) -> str:
    if word.isascii() and "&" not in word:
        return word.lower()
    word = unicodedata.normalize("NFKC", html.unescape(word)).casefold().translate(ALIKE)
    return " ".join(word.split())


def without_tags(text: str) -> str:
    """Return the text with spaces where tags of HTML are: their attributes are not the document's words."""
    return TAG.sub(lambda tag: " " * len(tag.group()), text) if "<" in text else text


# ---- The index ------------------------------------------------------------------------------------------------------
class Index:
    """A document's text, to look things up in. Nothing that is found goes over the end of a page."""

    def __init__(self, text: DocumentText) -> None:
        self.text = text
        self.folded = folded((span.start, text.content[span.start : span.end]) for span in text.pages)
        self.numbers = self.all_numbers()

    def all_numbers(self) -> dict[Decimal, list[Hit]]:
        found: defaultdict[Decimal, list[Hit]] = defaultdict(list)
        for span in self.text.pages:
            plain = without_tags(self.text.content[span.start : span.end])
            for start, end, number in numbers_in(plain):
                if len(found[number]) < MAX_PLACES:
                    found[number].append(Hit(page=span.number, start=span.start + start, end=span.start + end))
        return dict(found)

    def exactly(self, quote: str, *, within: Pages | None = None) -> Hit | None:
        """Return where a quote stands, character by character."""
        start, end = self.bounds(within)
        while (place := self.text.content.find(quote, start, end)) >= 0:
            span = self.text.span_at(place)
            if span.start <= place and place + len(quote) <= span.end:
                return Hit(page=span.number, start=place, end=place + len(quote))
            start = place + 1
        return None

    def words(self, needle: str, *, within: Pages | None = None) -> Hit | None:
        """Return where folded words stand, as whole words."""
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
        """Return where the pages from a first to a last one begin and end in the content; all of it for None."""
        if pages is None:
            return 0, len(self.text.content)
        spans = [span for span in self.text.pages if pages[0] <= span.number <= pages[1]]
        return (spans[0].start, spans[-1].end) if spans else (0, 0)

    def value(self, value: Any, *, likely: Pages | None = None) -> Hit | None:
        """Return the first place of a string or number, in any of the ways to write it; on likely pages, if there."""
        for needle in forms(value):
            for pages in [likely, None] if likely else [None]:
                if place := self.words(needle, within=pages):
                    return place
        places = [place for number in sorted(numbers_of(value)) for place in self.numbers.get(number, ())]
        return min(places, default=None, key=lambda each: not (likely and likely[0] <= each.page <= likely[1]))


def whole_words(needle: str, text: str, start: int = 0, end: int | None = None) -> int:
    """Return where the needle stands in the text and is no part of a longer word or number, or -1."""
    if not needle:
        return -1
    while (place := text.find(needle, start, end)) >= 0:
        start, after = place + 1, place + len(needle)
        if not joins(text[place - 1 : place], needle[0]) and not joins(needle[-1], text[after : after + 1]):
            return place
    return -1


def joins(before: str, after: str) -> bool:
    """Whether two characters belong to one word. Scripts that are written without spaces have no such bounds."""
    return bool(before and after) and before.isalnum() and after.isalnum() and before < "\u2e80" and after < "\u2e80"


# ---- Ways to write a value ------------------------------------------------------------------------------------------
def numbers_of(value: Any) -> frozenset[Decimal]:
    """Return the number that a value is, or the numbers that a string that consists of one can mean, all without signs,
    which are written in many ways. A string such as `007` is a name."""
    if isinstance(value, bool) or value is None:
        return frozenset()
    if isinstance(value, int | float):
        return frozenset(number for number in [plain_decimal(repr(value))] if number is not None)
    text = value.strip().lstrip("+-−").strip() if isinstance(value, str) and len(value) <= MAX_NUMBER else ""
    if not (NUMBER.fullmatch(text) or GROUPED.fullmatch(text)) or re.match(r"0\d", text):
        return frozenset()
    return readings(text)


def plain_decimal(text: str) -> Decimal | None:
    try:
        return normal(Decimal(text))
    except InvalidOperation:
        return None


def normal(number: Decimal) -> Decimal:
    return abs(number).normalize() if number else Decimal(0)


SHARE = re.compile(r"[ \u00a0]?%")


def numbers_in(text: str) -> Iterator[tuple[int, int, Decimal]]:
    """Yield the numbers in a text, in every way to read them: 1.234 is one or a thousand, 19 % is 0.19, too."""
    for pattern in (NUMBER, GROUPED):
        for match in pattern.finditer(text):
            start, end = match.span()
            for number in readings(match.group()):
                yield start, end, number
                if SHARE.match(text, end):
                    yield start, end, normal(number / 100)


@lru_cache(maxsize=10_000)
def readings(token: str) -> frozenset[Decimal]:
    plain = re.sub(r"[\s'’]", "", token)
    found = [plain_decimal(way) for way in ways(plain)]
    return frozenset(number for number in found if number is not None)


def ways(token: str) -> Iterator[str]:
    """Yield a token of digits, points and commas as Python would write the numbers that it can mean."""
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
    """Return the words that a value may stand in a text as, folded, the likelier first."""
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
    return [fold(way) for way in written(day)] if day else []


def written(day: date) -> Iterator[str]:
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
