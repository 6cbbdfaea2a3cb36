"""The notation of a document's numbers: decimal point or comma, and spaces between digit groups or not.

Most numbers, such as `12.50` and `1.234,56`, are unambiguous. They determine how to read ambiguous numbers, such as
`1.234`, unless they contradict each other.
"""

import re
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from decimal import Decimal
from functools import lru_cache

WESTERN, INDIAN = r"[1-9]\d{0,2}(?:S\d{3})+", r"[1-9]\d?(?:S\d{2})+S\d{3}"
GROUPED = {mark: re.compile(f"(?:{WESTERN}|{INDIAN})".replace("S", re.escape(mark))) for mark in ".,' \u00a0٬"}
SPACES = re.compile("[ \u00a0]")
# Decimals that may also be a time, or a day and a month.
TIME_OR_DATE = re.compile(r"(?:[01]?\d|2[0-4])[.,][0-5]\d|(?:[012]?\d|3[01])[.,](?:0\d|1[012])")
CENT_DIGITS = 2
SURE_VOTES_PER_WEAK_VOTE = 3  # sure votes that outweigh one opposing weak vote
POINT, COMMA = ".", ","


@dataclass(frozen=True, slots=True, kw_only=True)
class Convention:
    """The notation of numbers. `decimal`: the decimal mark, `.` or `,`. `spaces`: whether spaces separate groups. None
    means unknown."""

    decimal: str | None = None
    spaces: bool | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Digits:
    """The meanings of a token's digits.

    `point`, `comma`: its value with this decimal mark, or None if it cannot have this mark. `vote`: the decimal mark
    that the token itself shows. `groups`: the mark between its digit groups, if it is certain. `soft`: its groups are
    separated by ordinary spaces, so it may be several numbers. `is_code`: it starts with a zero, like an identifier.
    """

    point: Decimal | None = None
    comma: Decimal | None = None
    vote: str = ""
    weight: int = 0  # of the vote: 2 if only an amount can have this form, else 1
    groups: str = ""
    soft: bool = False
    has_separator: bool = False
    is_code: bool = False

    def values(self, convention: Convention) -> tuple[Decimal, ...]:
        """Return the possible values in a document with this convention."""
        found = tuple(dict.fromkeys(value for value in (self.point, self.comma) if value is not None))
        if len(found) > 1 and convention.decimal:
            return found[:1] if convention.decimal == POINT else found[1:]
        return found

    def map_values(self, change: Callable[[Decimal], Decimal]) -> "Digits":
        point, comma = (None if value is None else change(value) for value in (self.point, self.comma))
        return replace(self, point=point, comma=comma)


@lru_cache(maxsize=20_000)
def read_digits(core: str) -> Digits | None:
    """Return the meanings of digits with separators, or None if they are not a number, as in `1.2.3`."""
    is_soft, is_hard = " " in core, "\u00a0" in core
    is_spaced = is_soft or is_hard
    digits = read_marked(SPACES.sub("", core), is_grouped=is_spaced)
    if digits is None or not is_spaced:
        return digits
    return replace(digits, soft=is_soft, groups="" if is_soft else " ", has_separator=True)


def read_marked(core: str, *, is_grouped: bool) -> Digits | None:
    """Return the meanings of digits without spaces. `is_grouped`: spaces already separated the groups."""
    marks = [char for char in core if not char.isdecimal()]
    if not marks:
        value = Decimal(core)
        return Digits(point=value, comma=value, is_code=len(core) > 1 and core[0] == "0")
    kinds, last = set(marks), marks[-1]
    if kinds & {"'", "٬", "٫"}:
        return read_swiss_or_arabic(core, kinds)
    whole, _, rest = core.rpartition(last)
    if len(kinds) > 1:
        return read_two_marks(whole, rest, last)
    if len(marks) > 1:
        return read_groups(core, last) if not is_grouped else None
    decimal = Decimal(f"{whole or 0}.{rest}")
    can_group = not is_grouped and bool(GROUPED[last].fullmatch(core))
    if can_group:
        grouped = Decimal(whole + rest)
        point, comma = (decimal, grouped) if last == POINT else (grouped, decimal)
        return Digits(point=point, comma=comma, has_separator=True)
    is_amount = len(rest) == CENT_DIGITS and not TIME_OR_DATE.fullmatch(core)
    return with_decimal_mark(
        decimal, last, weight=2 if is_amount or is_grouped else 1, is_code=len(whole) > 1 and whole[0] == "0"
    )


def with_decimal_mark(value: Decimal, mark: str, *, weight: int, groups: str = "", is_code: bool = False) -> Digits:
    """Return digits whose decimal mark is known."""
    point, comma = (value, None) if mark == POINT else (None, value)
    return Digits(
        point=point, comma=comma, vote=mark, weight=weight, groups=groups, has_separator=True, is_code=is_code
    )


def read_two_marks(whole: str, rest: str, last: str) -> Digits | None:
    groups = next(char for char in whole if not char.isdecimal())
    if groups == last or not GROUPED[groups].fullmatch(whole):
        return None
    number = Decimal(f"{whole.replace(groups, '')}.{rest}")
    return with_decimal_mark(number, last, weight=2, groups=groups)


def read_groups(core: str, mark: str) -> Digits | None:
    if not GROUPED[mark].fullmatch(core):
        return None
    return with_decimal_mark(Decimal(core.replace(mark, "")), COMMA if mark == POINT else POINT, weight=2, groups=mark)


def read_swiss_or_arabic(core: str, kinds: set[str]) -> Digits | None:
    """Return the meaning of digits with apostrophes (Swiss) or Arabic marks. They are unambiguous."""
    groups = "'" if "'" in kinds else "٬"
    mark = next((char for char in (".", ",", "٫") if char in kinds), "")
    whole, _, rest = core.partition(mark) if mark else (core, "", "")
    if (not rest.isdecimal() and mark) or (groups in kinds and not GROUPED[groups].fullmatch(whole)):
        return None
    if groups not in kinds and not whole.isdecimal():
        return None
    value = Decimal(f"{whole.replace(groups, '')}.{rest}" if rest else whole.replace(groups, ""))
    is_western = mark in (POINT, COMMA)
    return Digits(
        point=value,
        comma=value,
        vote=mark if is_western else "",
        weight=2 if is_western else 0,
        groups=groups,
        has_separator=True,
    )


# ---- Votes ----------------------------------------------------------------------------------------------------------
def convention_of(tokens: Iterable[tuple[Digits, bool, bool]]) -> Convention:
    """Return the convention of a document, determined by its tokens.

    Each token has two flags. The first one is whether it is alone, so that spaces in it separate groups. The second one
    is whether it is certainly an amount, because `3.20` can also be a section, a version, or a time.
    """
    sure: Counter[str] = Counter()
    weak: Counter[str] = Counter()
    groups: set[bool] = set()  # whether spaces separate the groups
    for digits, is_alone, is_amount in tokens:
        if digits.vote:
            is_sure = is_amount or bool(digits.groups) or (is_alone and digits.weight > 1)
            (sure if is_sure else weak)[digits.vote] += 1
        if digits.soft and is_alone and digits.vote:
            groups.add(True)
        elif digits.groups:
            groups.add(digits.groups == " ")
    spaces = next(iter(groups)) if len(groups) == 1 else None
    return Convention(decimal=decimal_mark(sure, weak), spaces=spaces)


def decimal_mark(sure: Counter[str], weak: Counter[str]) -> str | None:
    if len(sure) != 1:
        return None
    [mark] = sure
    against = weak[COMMA if mark == POINT else POINT]
    return mark if against * SURE_VOTES_PER_WEAK_VOTE <= sure[mark] else None
