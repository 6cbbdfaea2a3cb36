"""Search for numbers, dates, and texts in a reading, in their printed notations."""

import datetime as dt
import re
from decimal import Decimal, InvalidOperation

from tests.reading.text import compress

GROUPED = re.compile(r"\d{1,3}(?:[ \u00a0\u202f.,'’]\d{3})+(?:[.,]\d+)?")
SIMPLE = re.compile(r"\d+(?:[.,]\d+)?")
PLAIN = re.compile(r"[+-]?\d*\.?\d+")  # Decimal would also parse the texts 12E4 and NaN
SHORT = 4  # characters; a shorter value must be a separate word
MONTHS = {
    "en": "January February March April May June July August September October November December",
    "de": "Januar Februar März April Mai Juni Juli August September Oktober November Dezember",
    "fr": "janvier février mars avril mai juin juillet août septembre octobre novembre décembre",
    "nl": "januari februari maart april mei juni juli augustus september oktober november december",
    "es": "enero febrero marzo abril mayo junio julio agosto septiembre octubre noviembre diciembre",
    "it": "gennaio febbraio marzo aprile maggio giugno luglio agosto settembre ottobre novembre dicembre",
}


def numbers(text: str) -> set[Decimal]:
    """Return all numbers of a text. For an ambiguous number such as 1.234, return both meanings."""
    found: set[Decimal] = set()
    for token in [*GROUPED.findall(text), *SIMPLE.findall(text)]:
        found |= meanings(token)
    return found


def meanings(token: str) -> set[Decimal]:
    whole = re.sub(r"\D", "", token)
    last = re.search(r"[.,](\d+)$", token)
    decimal = re.sub(r"\D", "", token[: last.start()]) + "." + last[1] if last else whole
    return {Decimal(each) for each in (whole, decimal)}


def as_number(value: object) -> Decimal | None:
    """Return the absolute value of a number, or None for anything else. `numbers` ignores signs too."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    if isinstance(value, str) and not PLAIN.fullmatch(value.strip()):
        return None
    try:
        return abs(Decimal(str(value).strip()))
    except InvalidOperation:
        return None


def as_date(value: object) -> dt.date | None:
    try:
        return dt.date.fromisoformat(str(value)[:10]) if re.fullmatch(r"\d{4}-\d\d-\d\d(T.*)?", str(value)) else None
    except ValueError:
        return None


def printed_dates(date: dt.date) -> set[str]:
    """Return the usual printed forms of a date, as letters and digits only."""
    days, months = {f"{date.day}", f"{date:%d}"}, {f"{date.month}", f"{date:%m}"}
    years = {f"{date:%Y}", f"{date:%y}"}
    found = {f"{date:%Y%m%d}"}
    for day in days:
        found |= {f"{day}{month}{year}" for month in months for year in years}
        found |= {f"{month}{day}{year}" for month in months for year in years}
        for names in MONTHS.values():
            name = names.split()[date.month - 1]
            for month in (name, name[:3]):
                found |= {compress(f"{part}{date:%Y}") for part in (f"{day}{month}", f"{month}{day}")}
                found |= {compress(f"{day}{month}{date:%y}"), compress(f"{day}de{month}de{date:%Y}")}
        found.add(compress(f"{day}th{MONTHS['en'].split()[date.month - 1]}{date:%Y}"))
    return found


class Haystack:
    """A reading, indexed for searches of values."""

    def __init__(self, text: str) -> None:
        self.compressed = compress(text)
        self.words = {compress(word) for word in text.split()}
        self.numbers = numbers(text)

    def has(self, value: object) -> bool:
        """Return whether the text contains a value, as a number, a date, or a sequence of letters and digits.

        A string of digits, such as a customer number, may also be part of another word.
        """
        if (date := as_date(value)) is not None:
            return any(each in self.compressed for each in printed_dates(date))
        number = as_number(value)
        if number is not None and (number in self.numbers or not (isinstance(value, str) and value.isdecimal())):
            return number in self.numbers
        wanted = compress(str(value))
        if len(wanted) < SHORT:
            return wanted in self.words
        return wanted in self.compressed
