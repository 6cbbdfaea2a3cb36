"""Parser of spreadsheet format codes into sections, conditions, and tokens (ECMA-376 part 1, 18.8.31)."""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from decimal import Decimal
from functools import lru_cache
from operator import eq, ge, gt, le, lt, ne

Token = tuple[str, str]  # kind and text
Condition = tuple[str, Decimal]  # such as ">=", 1000

TOKEN = re.compile(
    r'"(?P<quoted>[^"]*)"|\\(?P<escaped>.)|\[\$(?P<currency>[^\]-]*)[^\]]*\]|\[(?P<elapsed>h+|m+|s+)\]|\[[^\]]*\]'
    r"|[_*].|(?P<general>General)|(?P<ampm>AM/PM|A/P)|(?P<date>y+|m+|d+|h+|s+(?:\.0+)?)"
    r"|(?P<number>\.?[#0?][#0?,.]*)|(?P<exponent>E[+-]0+)|(?P<other>.)",
    re.IGNORECASE | re.DOTALL,
)
SEPARATOR = re.compile(r'"[^"]*"|\\.|\[[^\]]*\]|(?P<separator>;)', re.DOTALL)
BRACKETS = re.compile(r'"[^"]*"|\\.|\[(?P<condition>[<>=][^\]]*)\]', re.DOTALL)
CONDITION = re.compile(r"(<=|>=|<>|<|>|=) *(-?[0-9]+(?:\.[0-9]*)?(?:E[+-]?[0-9]{1,3})?)", re.IGNORECASE)
COMPARISONS: dict[str, Callable[[Decimal, Decimal], bool]] = {"<": lt, "<=": le, ">": gt, ">=": ge, "=": eq, "<>": ne}
ZERO = Decimal(0)
POSITIVE, NOT_NEGATIVE, NEGATIVE = (">", ZERO), (">=", ZERO), ("<", ZERO)
# Default conditions of sections, by the number of sections. The last section applies to all other numbers.
IMPLIED: dict[int, tuple[Condition | None, ...]] = {
    1: (None,), 2: (NOT_NEGATIVE, None), 3: (POSITIVE, NEGATIVE, None),
}  # fmt: skip
TEXT = ("other", "@")


@dataclass(frozen=True, slots=True)
class Section:
    """The tokens of a section, without colors, conditions, and padding.

    `has_sign`: whether the tokens themselves show that a number is negative, for example with brackets.
    """

    condition: Condition | None
    tokens: tuple[Token, ...]
    has_sign: bool

    def includes(self, amount: Decimal) -> bool:
        return self.condition is None or COMPARISONS[self.condition[0]](amount, self.condition[1])


@lru_cache(maxsize=1_000)
def number_sections(code: str) -> tuple[Section, ...]:
    """Return the sections for numbers. Raises ValueError for an invalid condition."""
    parts = split(code)
    if len(parts) > 1 and TEXT in tokens(parts[-1]):
        del parts[-1]
    parts = parts[:3]
    own = [condition(part) for part in parts]
    used = [mine or implied for mine, implied in zip(own, IMPLIED[len(parts)], strict=True)]
    found = [tokens(part) for part in parts]
    signs = [
        bool(mine and section and section[0][1] == "-") or (at == 1 and is_for_negatives(used))
        for at, (mine, section) in enumerate(zip(own, found, strict=True))
    ]
    return tuple(Section(*each) for each in zip(used, found, signs, strict=True))


def is_for_negatives(conditions: Sequence[Condition | None]) -> bool:
    """Return whether the second section applies exactly to negative numbers."""
    first, second = conditions[:2]
    return second == NEGATIVE or (second is None and first in {POSITIVE, NOT_NEGATIVE})


@lru_cache(maxsize=1_000)
def text_section(code: str) -> tuple[Token, ...]:
    """Return the tokens of the section for text, or an empty tuple if text is displayed unchanged."""
    found = tokens(split(code)[:4][-1])
    return found if found.count(TEXT) == 1 else ()


def split(code: str) -> list[str]:
    """Split a format code at semicolons, except quoted and escaped ones."""
    ends = [match.start() for match in SEPARATOR.finditer(code) if match["separator"]]
    return [code[start:end] for start, end in zip([0, *(end + 1 for end in ends)], [*ends, len(code)], strict=True)]


def condition(section: str) -> Condition | None:
    """Return the condition of a section, if it has one. Raises ValueError."""
    text = next((match["condition"] for match in BRACKETS.finditer(section) if match["condition"]), None)
    if text is None:
        return None
    match = CONDITION.fullmatch(text)
    if match is None:
        raise ValueError
    return match[1], Decimal(match[2])


@lru_cache(maxsize=1_000)
def tokens(section: str) -> tuple[Token, ...]:
    found = ((match.lastgroup, match[match.lastgroup or 0]) for match in TOKEN.finditer(section))
    return tuple(("quoted" if kind in {"escaped", "currency"} else kind, text) for kind, text in found if kind)
