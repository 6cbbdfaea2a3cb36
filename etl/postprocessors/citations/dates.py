"""Dates in a text, in the notations of several languages, with their possible meanings."""

import calendar
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import date

from etl.postprocessors.citations.characters import search_text
from etl.postprocessors.citations.languages import DAY_FIRST, months_of

YEAR = r"(?P<year>\d{4}|['’]?\d{2})(?!\d)"
DAY = r"(?<![\w.,/-])(?P<day>\d{1,2})"
GAP = r"(?:[ \u00a0]|\n(?!\n))"
NAME = r"[^\W\d_][^\W\d_\u0300-\u036f]*(?:[\u0300-\u036f][^\W\d_]*)*"
YEAR_FIRST = re.compile(
    r"(?<![\w/-])(?<!\d\.)(?P<year>\d{4})(?P<mark>[-/.])(?P<month>\d{1,2})(?P=mark)(?P<day>\d{1,2})(?=T\d|(?![\w/-])(?!\.\d))"
)
NUMERIC = re.compile(
    r"(?<![\w/-])(?<!\d\.)(?P<one>\d{1,2})(?P<mark>[-/.])"
    r"[ \u00a0]?(?P<two>\d{1,2})(?P=mark)[ \u00a0]?(?P<year>\d{4}|\d{2})"
    r"(?![\w/-])(?!\.\d)"
)
SHORT = re.compile(r"(?<![\w./,-])(?P<day>\d{1,2})\.(?P<month>\d{1,2})\.(?![\w/-])")
NAMED = re.compile(
    rf"{DAY}(?:st|nd|rd|th|er|º|ª|°|o|\.)?(?:{GAP}|[-/])?(?:(?:of|de|di|den|do){GAP}|d['’])?"
    rf"(?P<month>{NAME})\.?,?"
    rf"(?:(?:{GAP}|[-/])?(?:(?:of|de|del|di|do){GAP})?{YEAR})?",
    re.IGNORECASE,
)
MONTH_FIRST = re.compile(
    rf"(?<!\w)(?P<month>[^\W\d_]{{3,12}})\.?(?:{GAP}|-)(?P<day>\d{{1,2}})(?:st|nd|rd|th)?,?(?:{GAP}|-){YEAR}",
    re.IGNORECASE,
)
YEAR_MONTH = re.compile(
    rf"(?<![\w.,/-])(?P<year>\d{{4}})\.?(?:{GAP}|-)(?P<month>[^\W\d_]{{3,12}})\.?(?:{GAP}|-)(?P<day>\d{{1,2}})(?!\w)"
)
NUMERAL = r"(?:\d{1,2}|[一二三四五六七八九十]{1,3})"
IDEOGRAPHIC = re.compile(
    rf"(?P<year>\d{{4}}|[〇零一二三四五六七八九]{{4}}|(?:明治|大正|昭和|平成|令和) ?(?:\d{{1,2}}|元)) ?[年년] ?"
    rf"(?P<month>{NUMERAL}) ?[月월] ?(?P<day>{NUMERAL}) ?[日일]"
)
VIETNAMESE = re.compile(
    r"(?<![\w.,/-])(?P<day>\d{1,2})(?: tháng |/)(?P<month>\d{1,2}) năm (?P<year>\d{4})(?!\w)", re.IGNORECASE
)
# German ranges of days: `1.-3. Mai 2026`, `01.–03.05.2026`, `28. April bis 3. Mai 2026`.
MONTH = rf"(?:\d{{1,2}}\.|{NAME}\.?)"
RANGE = re.compile(
    rf"(?<![\w.,/-])(?P<first>\d{{1,2}})\.(?:{GAP}?(?P<first_month>{MONTH}))?"
    rf"{GAP}?(?:[-–—/+&]|bis(?:{GAP}zum)?|und|u\.){GAP}?"
    rf"(?P<last>\d{{1,2}})\.{GAP}?(?P<month>{MONTH})(?:{GAP}?{YEAR})?(?![\w/-])(?!\.\d)",
    re.IGNORECASE,
)
DIGITS = {numeral: str(value) for value, numeral in enumerate("〇一二三四五六七八九")} | {"零": "0"}
ERAS = {"明治": 1867, "大正": 1911, "昭和": 1925, "平成": 1988, "令和": 2018}  # the year before the era's first year
ENGLISH = {name.casefold() for name in (*calendar.month_name, *calendar.month_abbr, "Sept")}
CENTURIES = (1900, 2000)
PAST, FUTURE = 60, 10  # a two-digit year is at most this far from the years that the document names
MAX_MONTH_LETTERS = 14


@dataclass(frozen=True, slots=True, kw_only=True)
class DateToken:
    """A date: `text[start:end]`. `days`: the possible days; only one if the date is unambiguous. `partial`: the month
    and day of a date without a year."""

    start: int
    end: int
    days: tuple[date, ...] = ()
    partial: tuple[int, int] | None = None
    is_numeric: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundDate:
    """A date whose order of day and month may still be unknown.

    `orders`: the possible pairs of day and month. Each key is the part that is first (`day` or `month`) or the number
    of the month.
    `has_foreign_month`: the day is before a month name that is not English.
    """

    start: int
    end: int
    orders: dict[str, tuple[int, int]]
    year: str = ""
    mark: str = ""
    has_foreign_month: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class DateConvention:
    """The notation of a document's dates: the part that is first in dates with `/` or `-`, if known, and the first and
    last year that the document names."""

    order: str | None
    years: tuple[int, int] | None


def find(text: str, offset: int) -> Iterator[FoundDate]:
    plain = search_text(text)
    for pattern in (YEAR_FIRST, NUMERIC, SHORT, NAMED, MONTH_FIRST, YEAR_MONTH, IDEOGRAPHIC, VIETNAMESE):
        for match in pattern.finditer(plain):
            if found := found_date(match, offset):
                yield found
    for match in RANGE.finditer(plain):
        yield from ends_of_range(match, offset)


def found_date(match: re.Match[str], offset: int) -> FoundDate | None:
    parts = match.groupdict()
    mark, year = parts.get("mark") or "", year_of(parts.get("year") or "")
    if "one" in parts:
        one, two = int(parts["one"]), int(parts["two"])
        options = {"day": (one, two)} if mark == "." else {"day": (one, two), "month": (two, one)}
    else:
        months = month_numbers(parts["month"])
        # In a date without a year, the month must be certain.
        options = {str(month): (numeral(parts["day"]), month) for month in months if year or len(months) == 1}
    orders = {order: (day, month) for order, (day, month) in options.items() if is_day(day, month)}
    if not orders:
        return None
    has_foreign_month = match.re is NAMED and parts["month"].casefold() not in ENGLISH
    start, end = match.start() + offset, match.end() + offset
    return FoundDate(start=start, end=end, orders=orders, year=year, mark=mark, has_foreign_month=has_foreign_month)


def ends_of_range(match: re.Match[str], offset: int) -> Iterator[FoundDate]:
    """Yield the first and the last day of a range. They share the year and, if only one is written, the month."""
    month = match["month"].rstrip(".")
    first_month = (match["first_month"] or month).rstrip(".")
    months = month_numbers(first_month), month_numbers(month)
    if any(len(each) != 1 for each in months):
        return
    first, last = (int(match["first"]), months[0][0]), (int(match["last"]), months[1][0])
    if last[::-1] <= first[::-1] or not (is_day(*first) and is_day(*last)):
        return
    mark = "." if month.isdecimal() else ""
    for start, pair in ((match.start(), first), (match.start("last"), last)):
        end, year = match.end() + offset, year_of(match["year"] or "")
        yield FoundDate(start=start + offset, end=end, orders={"day": pair}, year=year, mark=mark)


def month_numbers(text: str) -> tuple[int, ...]:
    if text[0].isdecimal() or text[0] in "一二三四五六七八九十":
        return (numeral(text),)
    return months_of(text) if len(text) <= MAX_MONTH_LETTERS else ()


def numeral(text: str) -> int:
    """Return the value of a number with at most two digits, or of a Chinese numeral such as 十四 or 二十."""
    if text.isdecimal():
        return int(text)
    tens, mark, ones = text.rpartition("十")
    digits = [int(DIGITS.get(each, 0)) for each in ((tens or "一") if mark else "〇", ones or "〇")]
    return 10 * digits[0] + digits[1]


def year_of(text: str) -> str:
    """Return the two or four digits of a year. Chinese numerals and years of Japanese eras are converted."""
    if before := ERAS.get(text[:2]):
        count = text[2:].strip()
        return str(before + (1 if count == "元" else int(count)))
    return "".join(DIGITS.get(each, each) for each in text.lstrip("'’"))


def is_day(day: int, month: int) -> bool:
    return bool(valid_dates(2000, day, month))  # a leap year


# ---- Meanings -------------------------------------------------------------------------------------------------------
def convention_of(dates: Iterable[FoundDate], *, language: str) -> DateConvention:
    votes: Counter[str] = Counter()
    years: list[int] = []
    for each in dates:
        is_code = each.mark == "-" and len(each.year) == len("24")  # may be a lot number, or start with the year
        if each.mark in ("/", "-") and len(each.orders) == 1 and not is_code:
            votes.update(each.orders.keys() & {"day", "month"})
        if each.has_foreign_month and each.year:
            votes["day"] += 1
        if len(each.year) == len("2024"):
            years.append(int(each.year))
    order = next(iter(votes)) if len(votes) == 1 else None
    if not votes and language in DAY_FIRST:
        order = "day"
    return DateConvention(order=order, years=(min(years), max(years)) if years else None)


def read(each: FoundDate, convention: DateConvention) -> DateToken:
    orders = each.orders
    if len(orders) > 1 and convention.order in orders:
        orders = {convention.order: orders[convention.order]}
    pairs = dict.fromkeys(orders.values())
    if not each.year:
        [(day, month)] = pairs
        return DateToken(start=each.start, end=each.end, partial=(month, day))
    days = [day for pair in pairs for year in years_of(each.year, convention) for day in valid_dates(year, *pair)]
    return DateToken(start=each.start, end=each.end, days=tuple(dict.fromkeys(days)), is_numeric=bool(each.mark))


def years_of(year: str, convention: DateConvention) -> list[int]:
    """Return the possible meanings of a year. For two digits, prefer a year near those that the document names."""
    if len(year) > len("24"):
        return [int(year)]
    options = [century + int(year) for century in CENTURIES]
    if convention.years is None:
        return options
    first, last = convention.years
    near = [option for option in options if first - PAST <= option <= last + FUTURE]
    return near if len(near) == 1 else options


def valid_dates(year: int, day: int, month: int) -> list[date]:
    try:
        return [date(year, month, day)]
    except ValueError:
        return []


# ---- Times of day ---------------------------------------------------------------------------------------------------
TIME = re.compile(
    r"[T \t\u00a0,(]*(?:at |um |à |a las |om )?"
    r"(?P<hour>\d{1,2})[:.h](?P<minute>\d{2})(?:[:.](?P<second>\d{2})(?:[.,]\d+)?)?"
    r"\s?(?P<half>[ap]\.?m\b\.?)?\s?(?P<zone>Z\b|(?:UTC|GMT)?[-+]\d{1,2}:?(?:\d{2})?|(?-i:[A-Z]{3,4})\b)?(?![\d:])",
    re.IGNORECASE,
)
ZERO = frozenset({"", "z", "utc", "gmt", "+00:00", "-00:00", "+0000", "+00"})
Time = tuple[int, int, int, str]


def time_in(text: str) -> Time | None:
    """Return the hour, minute, second, and zone at the start of a text."""
    match = TIME.match(text)
    if match is None:
        return None
    hour, half = int(match["hour"]), (match["half"] or "").casefold()[:1]
    if half:
        hour = hour % 12 + (12 if half == "p" else 0)
    zone = (match["zone"] or "").casefold()
    return hour, int(match["minute"]), int(match["second"] or 0), "z" if zone and zone in ZERO else zone


def has_time(time: str, after: str) -> bool:
    """Return whether the time of a value matches the text after its date. Midnight also matches a missing time."""
    wanted, found = time_in(time), time_in(after)
    if found is None:
        return not time or (wanted is not None and wanted[:3] == (0, 0, 0))
    return not time or wanted == found
