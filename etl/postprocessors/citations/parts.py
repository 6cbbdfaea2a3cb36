"""Detection of tokens that may be only a part of a number, because other digits are beside them."""

import re

from etl.postprocessors.citations.characters import FILLER
from etl.postprocessors.citations.conventions import read_digits
from etl.postprocessors.citations.neighbors import (
    GAP,
    LIKE_CURRENCY,
    MAX_LABEL,
    REACH,
    SPACES,
    WORD_AFTER,
    Span,
    is_of,
    is_symbol,
    row_start,
    skip,
)

POWER = re.compile(rf"{GAP}{{0,4}}[×x·⋅]?{GAP}{{0,4}}10[\^⁻]")
FRACTION = re.compile(r"[ \u00a0]\d{1,2}/\d{1,2}(?![\d/])")
GLUE = (FILLER, "\u00a0")
# Between digits, these separate numbers, or are handled elsewhere.
SEPARATORS = frozenset(' \u00a0\t\n|-–—/:;=()[]"%‰^')
# Digits beside a number that may be part of it, as in `2, 500.00`, `1|500.00`, or `1` and `500.00` in two lines.
LEFT = re.compile(
    rf"(?<![\d.,'])(?P<digits>\d[\d.,']{{0,20}}(?<=\d))(?P<mark>{GAP}{{0,2}}[.,']?){GAP}{{0,2}}\n?{GAP}{{0,2}}\Z"
)
RIGHT = re.compile(
    rf"(?P<mark>{GAP}{{0,2}}[.,']?){GAP}{{0,2}}\n?{GAP}{{0,2}}(?P<digits>\d{{2,3}}(?:[.,]\d{{1,2}})?)(?![\d.,']\d|[.,'])"
)
LIST_CONTINUES = re.compile(rf"[,;]{GAP}\d")


def is_part(plain: str, start: int, end: int, core: Span) -> bool:
    """Return whether digits beside a number may belong to it, or an unknown symbol is attached to its start."""
    before, after = skip_glue(plain, start, -1), skip_glue(plain, end, 1)
    left, right = plain[before - 1 : before], plain[after : after + 1]
    if left.isdecimal() or right.isdecimal() or right == "…" or (is_symbol(left) and before == start):
        return True
    beyond, further = skip_glue(plain, before - 1, -1), skip_glue(plain, after + 1, 1)
    if is_joined_digit(left, plain[beyond - 1 : beyond]) or is_joined_digit(right, plain[further : further + 1]):
        return True
    is_raised = plain.startswith("^^", core[1]) and plain[core[0] : core[1]].isdecimal()  # cents
    is_power = plain[core[0] : core[1]] == "10" and right in ("^", "⁻")
    return is_raised or is_power or bool(POWER.match(plain, core[1]) or FRACTION.match(plain, core[1]))


def skip_glue(plain: str, position: int, step: int) -> int:
    """Return the first position from here that is not next to markup or a no-break space."""
    while plain[position - 1 : position] in GLUE if step < 0 else plain[position : position + 1] in GLUE:
        position += step
    return position


def is_joined_digit(mark: str, beyond: str) -> bool:
    return bool(mark) and beyond.isdecimal() and mark not in SEPARATORS and not mark.isalnum() and not is_of(mark, "Sc")


def is_split(plain: str, core: Span) -> bool:
    """Return whether a number and the digits before or after it may be one number that a space, a line break, or a `|`
    splits. Lists such as `10, 12, 500` and numbered items such as `2. 500.00` are excluded."""
    start, end = core
    low = max(0, start - MAX_LABEL)
    own = plain[start:end]
    before = skip(plain, start, -1)
    if plain[before - 1 : before] in tuple(",;") and LIST_CONTINUES.match(plain, end):
        return False
    can_continue = plain[before - 1 : before] in tuple(".,'\n") or plain[start - 1 : start] in tuple(".,'")
    left = LEFT.search(plain, low, start) if can_continue else None
    if left and begins_number(plain, left) and makes_number(left["digits"], left["mark"], own, plain, end):
        return True
    right = RIGHT.match(plain, end)
    if right and (has_words_before(plain, start) or "\n" not in right.group()):
        return makes_number(own, right["mark"], right["digits"], plain, right.end())
    return is_at_lone_bar(plain, start, end)


def begins_number(plain: str, left: re.Match[str]) -> bool:
    """Return whether digits may start a number, and are not a list item, the number of an item, or a separate cell."""
    before = plain[row_start(plain, left.start()) : left.start()].strip(SPACES + "|")
    return before[-1:] not in (",", ";") if before else not (left["mark"] or "\n" in left.group())


def has_words_before(plain: str, start: int) -> bool:
    return any(map(str.isalpha, plain[row_start(plain, start) : start]))


def is_at_lone_bar(plain: str, start: int, end: int) -> bool:
    """Return whether a number and other digits are on opposite sides of the only `|` in three lines. The `|` is not a
    cell separator then."""
    bar = start - 1 if plain[start - 1 : start] == "|" else end
    if not (plain[bar : bar + 1] == "|" and plain[bar - 1 : bar].isdecimal() and plain[bar + 1 : bar + 2].isdecimal()):
        return False
    first = row_start(plain, max(0, row_start(plain, start) - 1))
    return sum(line.count("|") for line in plain[first : end + REACH].split("\n", 3)[:3]) == 1


def makes_number(left: str, mark: str, right: str, plain: str, end: int) -> bool:
    """Return whether two parts form a number: the second one is a group of three digits, or two decimal places at the
    end of an amount."""
    whole = right[: next((position for position, char in enumerate(right) if not char.isdecimal()), len(right))]
    mark = mark.strip(SPACES)
    if not mark:
        return len(whole) == 3 and left.isdecimal() and len(left) <= 3 and left[0] != "0"  # noqa: PLR2004 - a group
    if len(whole) not in (2, 3) or (len(whole) == 2 and whole != right) or read_digits(left + mark + right) is None:  # noqa: PLR2004
        return False
    after = skip(plain, end, 1)
    word = WORD_AFTER.match(plain, after)
    return (
        whole != right
        or plain[after : after + 1] in tuple("|\n)")
        or after == len(plain)
        or bool(word and LIKE_CURRENCY.fullmatch(word["word"]))
    )
