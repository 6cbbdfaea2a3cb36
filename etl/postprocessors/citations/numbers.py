"""Numbers in a text: tokens with sign, digit groups, unit, and scale, and their possible values.

A token is read in the notation of the document's other numbers: `1.234` means 1234 in a document with `12,50`. Without
a known notation, both values are possible.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from decimal import Decimal

from etl.postprocessors.citations.characters import FILLER, FRACTIONS, has_no_bounds, search_text, without_markup
from etl.postprocessors.citations.conventions import Convention, Digits, read_digits
from etl.postprocessors.citations.neighbors import Span, is_prose_around, is_qualified, scale_around, sign_around
from etl.postprocessors.citations.parts import is_part, is_split
from etl.postprocessors.citations.scales import beside, is_near, units_in
from etl.postprocessors.citations.units import CURRENCY, LETTERS, ONE, PERCENT, SCALE, SCALED, UNIT, scales_of

# Digits with separators. Groups may be separated by spaces: `read` decides whether these are one number.
CORE = re.compile(
    r"\d{1,3}(?:[ \u00a0]\d{3})+(?:[.,٫]\d+)?(?![.,'٫٬]?\d)"
    r"|\d+(?:[.,'٫٬]\d+)*"
    r"|(?<![\w.,'])[.,]\d+(?![.,'٫٬]?\d)"
)
PREFIX = re.compile(
    rf"(?P<open>\( ?)?(?:(?P<sign>[-–+])(?P<gap>[ \u00a0]?))?(?P<currency>(?<![^\W_])(?:{CURRENCY})[ \u00a0]?)?"
    r"(?P<inner>\()?(?P<second>[-–+] ?)?\Z"
)
SUFFIX = re.compile(
    rf"(?P<fraction>[ \u00a0]?[{''.join(FRACTIONS)}])?(?P<exponent>[eE][-+]?\d{{1,3}}(?![^\W_\u2e80-\uffff]))?"
    rf"(?P<price>[.,][-–]{{1,2}}(?!\d))?(?P<percent>[ \u00a0]?(?:{PERCENT}))?(?P<scale>[ \u00a0]?{SCALE}\.?)?"
    r"(?P<letter>[ \u00a0]?[kKmMbB](?![^\W_\u2e80-\uffff]))?"
    rf"(?P<currency>[ \u00a0]?(?:{CURRENCY})(?![^\W_\u2e80-\uffff]))?"
    rf"(?P<minus>[-–](?=[\s|),.;:\"”»\]{FILLER}]|\Z))?(?P<close> ?\)(?:[ \u00a0]?%)?)?",
    re.IGNORECASE,
)
UNITS = re.compile(rf"[ \u00a0]?(?:{UNIT})(?![^\W_])")
WINDOW = 16  # characters before and after a number that may belong to it
MAX_CORE = 60  # digits and separators; longer texts are not numbers


@dataclass(frozen=True, slots=True, kw_only=True)
class Number:
    """A number token: `text[start:end]` with its sign, parentheses, unit, and scale.

    `core`: the span of the digits. `reach`: the span of everything that affects the value. `sure`: its certain values;
    several are equivalent, such as 19 % and 0.19. `possible`: values that it may have. `literal`: its sign and digits,
    if they are written as in JSON. `signed`: an attached sign or parentheses may make it negative.
    """

    start: int
    end: int
    core: Span
    reach: Span = (0, 0)
    sure: tuple[Decimal, ...] = ()
    possible: tuple[Decimal, ...] = ()
    literal: str = ""
    signed: bool = False
    percent: bool = False


@dataclass(slots=True, kw_only=True)
class FoundNumber:
    """A token before the document's convention is known. `signs`: the possible factors of its sign, 1 and -1."""

    start: int
    end: int
    core: Span
    digits: Digits
    reach: Span = (0, 0)
    signs: tuple[int, ...] = (1,)
    sign: str = ""
    has_dash: bool = False  # its sign is not attached to it
    is_unsure: bool = False  # it is in a range, ratio, or compound, or may be part of another number
    percent: Decimal | None = None
    scale: str = ""
    is_scale_unsure: bool = False
    factor: Decimal | None = None
    letter: str = ""
    has_currency: bool = False
    far_scales: tuple[Decimal, ...] = ()  # from the header of its table, or from a note
    is_in_scaled_column: bool = False
    label_scales: tuple[Decimal, ...] = ()
    is_alone: bool = False  # it is alone in a cell, after a colon, or after a currency

    @property
    def is_amount(self) -> bool:
        """Whether the token is certainly not a time, section, or version."""
        return self.has_currency or bool(self.percent) or bool(self.scale) or self.signs == (-1,)


def find(text: str, offset: int, *, excluded: list[Span]) -> Iterator[FoundNumber]:
    """Yield the tokens of a text. `offset`: the position of the text in the document. `excluded`: spans with a
    different meaning, such as numeric dates. Their tokens are marked as unsure."""
    plain = without_markup(text)
    units = units_in(plain)
    spans = iter(sorted(excluded))
    span = next(spans, None)
    for match in CORE.finditer(plain):
        while span and span[1] <= match.start():
            span = next(spans, None)
        found = read_token(plain, match.start(), match.end(), units)
        if found is None:
            continue
        found.is_unsure = found.is_unsure or bool(span and span[0] < match.end())
        found.start, found.end = found.start + offset, found.end + offset
        found.core = (found.core[0] + offset, found.core[1] + offset)
        found.reach = (found.reach[0] + offset, found.reach[1] + offset)
        yield found


def read_token(plain: str, start: int, end: int, units: list[int]) -> FoundNumber | None:
    """Return the token with the digits `plain[start:end]`, or None if they are not a number or are part of a word."""
    digits = read_digits(plain[start:end]) if end - start <= MAX_CORE else None
    if digits is None:
        return None
    low = max(0, start - WINDOW)
    before, after = PREFIX.search(plain[low:start]), SUFFIX.match(plain, end)
    if before is None or after is None:
        return None
    first, last = low + before.start(), after.end()
    if not after["percent"] and not after["scale"] and not after["letter"] and (unit := UNITS.match(plain, end)):
        last = max(last, unit.end())
    while last > end and plain[last - 1] in " \u00a0.":
        last -= 1
    found = FoundNumber(start=first, end=last, core=(start, end), digits=digits, reach=(start, end))
    if is_inside_word(plain, found):
        return None
    found.has_currency = bool(before["currency"] or after["currency"])
    read_amount(found, before, after)
    read_sign(plain, found, before, after)
    read_adjacent_characters(plain, found, before)
    mark_ambiguity(plain, found, units)
    return found


def is_inside_word(plain: str, found: FoundNumber) -> bool:
    """Return whether letters or marks of identifiers are attached to the token."""
    before, after = plain[found.start - 1 : found.start], plain[found.end : found.end + 1]
    first, far = plain[found.start], plain[found.start - 2 : found.start - 1]
    has_letter = before.isalpha() and not has_no_bounds(before)
    if has_letter and first != "(" and not (first in "-–+" and found.start == found.core[0]):
        return True
    if before in ("_", "^"):
        return True
    if before and before in "./-'@" and far.isalnum() and not far.isdecimal():
        return True
    return bool(after) and (
        after == "_" or (after.isalpha() and not has_no_bounds(after) and plain[found.end - 1].isalnum())
    )


def read_amount(found: FoundNumber, before: re.Match[str], after: re.Match[str]) -> None:
    if after["percent"]:
        found.percent = Decimal(1000 if "‰" in after["percent"] else 100)
    found.scale = (after["scale"] or "").strip(" \u00a0.")
    found.letter = (after["letter"] or "").strip(" \u00a0")
    for currency in (before["currency"], after["currency"]):
        found.factor = SCALED.get((currency or "").strip(" \u00a0"), found.factor)
    if after["fraction"]:
        part = Decimal(FRACTIONS[after["fraction"][-1]])
        found.is_unsure = len(after["fraction"]) > 1
        found.digits = found.digits.map_values(lambda value: value + part)
    if after["exponent"]:
        factor = Decimal(f"1{after['exponent']}")
        found.digits = found.digits.map_values(lambda value: value * factor)


def read_sign(plain: str, found: FoundNumber, before: re.Match[str], after: re.Match[str]) -> None:
    is_enclosed = bool(before["open"] or before["inner"]) and bool(after["close"])
    signs = [mark.strip() for mark in (before["sign"], before["second"]) if mark and mark.strip()]
    if len(signs) > 1 and before["gap"]:
        del signs[0]  # a bullet
        found.start = found.core[0] - len(before["second"])
    found.sign = "".join(signs)
    if "-" in signs or "–" in signs:
        found.signs = (-1,) if before["gap"] and before["second"] else signs_of_dash(plain, found, before)
        found.has_dash = bool(before["gap"]) and not before["second"]
        if found.signs == (1,):
            found.start, found.sign = found.core[0] - len(before["currency"] or ""), ""
        elif plain[found.core[0]] == ",":
            found.signs = (1, -1)  # `–,50 €` is a German price of 50 cents
    elif after["minus"]:
        found.signs = (-1,) if found.digits.has_separator else (1, -1)
    elif is_enclosed:
        is_amount = (found.digits.has_separator or found.has_currency) and "%" not in after.group()
        opening = plain.rfind("(", found.start, found.core[0])
        found.signs = (-1,) if is_amount and not is_prose_around(plain, opening, found.end) else (1, -1)
    else:
        # An unpaired parenthesis is not part of the number.
        found.start += len(before["open"] or "")
        found.end -= len(after["close"] or "")


def signs_of_dash(plain: str, found: FoundNumber, before: re.Match[str]) -> tuple[int, ...]:
    """Return the possible factors of a dash before a number. It may be a minus, a range, a bullet, or a dash between
    words."""
    position = found.start
    previous = text_before(plain, position)[-1:]
    adjacent = plain[position - 1 : position]
    if before["open"] or before["second"] or (before["currency"] and not before["gap"]):
        return (-1,) if not adjacent.isalnum() else (1, -1)
    if not before["gap"]:
        if adjacent.isalnum():
            found.is_unsure = found.is_unsure or before["sign"] != "–"
            return (1,)
        return (1, -1) if previous.isdecimal() or adjacent in (")", "]") else (-1,)
    if previous == "|":
        return (-1,)
    if previous in ("", "\n"):
        rest = plain[found.end : found.end + WINDOW].partition("\n")[0].strip()
        return (1,) if rest and before["sign"] == "-" else (1, -1)
    return (1, -1)


def text_before(plain: str, position: int) -> str:
    return plain[max(0, position - WINDOW) : position].rstrip(" \u00a0")


def read_adjacent_characters(plain: str, found: FoundNumber, before: re.Match[str]) -> None:
    """Mark a token as unsure if a ratio, range, or compound continues it, and as alone if it fills a cell."""
    start, end = found.start, found.end
    left, right = plain[start - 1 : start], plain[end : end + 1]
    far_left, far_right = plain[start - 2 : start - 1], plain[end + 1 : end + 2]
    if left and left in "/:" and far_left.isdecimal():
        found.is_unsure = True
    if right and right in "/:-@" and (far_right.isdecimal() or (right in "-@" and far_right.isalpha())):
        found.is_unsure = True
    previous = text_before(plain, start)[-1:]
    is_first = previous == "|" or (not previous and start < WINDOW)
    is_last = plain[end : end + WINDOW].lstrip(" \u00a0")[:1] in ("|", "")
    follows_colon = plain[max(0, start - 2) : start].rstrip().endswith(":")
    found.is_alone = (is_first and is_last) or follows_colon or bool(before["currency"])


def mark_ambiguity(plain: str, found: FoundNumber, units: list[int]) -> None:
    """Mark a token as ambiguous if its neighbors may be parts of the number."""
    start, end = found.start, found.end
    if plain[start - 1 : start] == "%" and not plain[start - 2 : start - 1].isdecimal() and not found.percent:
        found.percent = Decimal(100)
        found.start = start = start - 1
    if found.signs != (1,) or found.scale or found.factor:
        found.reach = (start, end)
    if is_part(plain, start, end, found.core) or is_split(plain, found.core) or is_qualified(plain, start):
        found.is_unsure = True
        found.reach = (start - 1, end + 1)
    if scale := scale_around(plain, start, end):
        found.is_scale_unsure = True
        found.scale, found.reach = scale
    elif is_near(units, start, end) and (label := beside(plain, start, found.core[1], end)):
        found.label_scales, found.reach = label, (start - 1, end + 1)
    if found.signs == (1,) and not found.sign:
        is_amount = found.digits.has_separator or found.has_currency
        if span := sign_around(plain, start, end, is_amount=is_amount):
            found.signs, found.has_dash, found.reach = (1, -1), True, span


# ---- Values ---------------------------------------------------------------------------------------------------------
def read(found: FoundNumber, text: str, convention: Convention, *, language: str, offset: int) -> Iterator[Number]:
    """Yield the number of a token. If it may be several numbers separated by spaces, yield these too; if it certainly
    is, yield only these."""
    digits = found.digits
    if digits.soft and not found.is_alone and convention.spaces is not True:
        are_separate = convention.spaces is False
        yield from parts(found, text, convention, are_separate=are_separate, offset=offset)
        if are_separate:
            return
        found.is_unsure = True
    yield number(found, text, convention, language=language, offset=offset)


def parts(
    found: FoundNumber, text: str, convention: Convention, *, are_separate: bool, offset: int
) -> Iterator[Number]:
    low, high = found.core
    for match in re.finditer(r"[^ \u00a0]+", search_text(text[low - offset : high - offset])):
        digits = read_digits(match.group())
        if digits is None:
            continue
        start, end = low + match.start(), low + match.end()
        values = digits.values(convention)
        is_sure = are_separate and not found.is_unsure and len(values) == 1 and not digits.is_code
        yield Number(
            start=start,
            end=end,
            core=(start, end),
            reach=(start, end),
            sure=values if is_sure else (),
            possible=() if is_sure else values,
            literal=text[start - offset : end - offset] if is_sure else "",
        )


def number(found: FoundNumber, text: str, convention: Convention, *, language: str, offset: int) -> Number:
    values = found.digits.values(convention)
    exact = tuple(value * sign for value in values for sign in found.signs)
    certain, possible = unit_factors(found, language)
    is_sure = len(exact) == 1 and not found.is_unsure and not found.digits.is_code
    sure = tuple(value * factor for value in exact for factor in certain)
    maybe = tuple(value * factor for value in exact for factor in possible)
    start, end = found.core
    literal = text[start - offset - len(found.sign) : end - offset]
    has_plain_sign = found.sign in ("", "-") and found.signs == ((-1,) if found.sign else (1,))
    is_literal = is_sure and ONE in certain and has_plain_sign and literal.startswith(found.sign)
    return Number(
        start=found.start,
        end=found.end,
        core=found.core,
        reach=(found.start - 1, found.end + 1) if found.is_in_scaled_column else found.reach,
        sure=sure if is_sure else (),
        possible=maybe if is_sure else (*sure, *maybe),
        literal=literal if is_literal else "",
        signed=found.signs != (1,) and not found.has_dash,
        percent=found.percent is not None,
    )


def unit_factors(found: FoundNumber, language: str) -> tuple[tuple[Decimal, ...], tuple[Decimal, ...]]:
    """Return the certain factors of a token's unit or scale, and the possible ones."""
    if found.percent:
        return (ONE, 1 / found.percent), ()
    if found.scale:
        scales = tuple(scale * (found.factor or ONE) for scale in scales_of(found.scale, language))
        is_sure = len(scales) == 1 and not found.is_scale_unsure
        return (scales, (ONE,)) if is_sure else ((), (ONE, *scales))
    if found.letter:
        scale = LETTERS[found.letter.casefold()]
        if found.has_currency:
            return (scale,), (ONE,)
        return ((ONE,), ()) if found.letter == "m" else ((), (ONE, scale))
    if found.factor:
        return (found.factor,), (ONE,)
    scales = found.label_scales or found.far_scales
    return ((), (ONE, *scales)) if scales else ((ONE,), ())
