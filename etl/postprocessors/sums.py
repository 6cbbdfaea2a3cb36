"""Check of totals that a schema declares as sums, as in `"x-sum-of": "/items/*/amount"`. Decimals are exact."""

import re
from collections.abc import Iterator
from decimal import Decimal, localcontext
from typing import Any

from config.platform import exact_json
from config.platform.http.pointers import join, tokens
from etl.core.stage_context import StageContext
from etl.postprocessors.schemas import Guide, Schema

KEYWORD = "x-sum-of"
NUMBER = re.compile(r"[+-]?\d+(?:\.\d+)?")
GROUPED = re.compile(r"([+-]?\d{1,3}(?:([,. '’\u00a0\u202f])\d{3})(?:\2\d{3})*)(?:(?!\2)[.,](\d+))?")
DECIMAL_COMMA = re.compile(r"([+-]?\d+),(\d{1,2})")
MAX_WARNINGS = 20
PRECISION = 2_000  # digits: more than a sum of accepted numbers can have


def check(data: Any, schema: Schema, *, context: StageContext) -> None:
    """Warn about totals that differ from the sum of their amounts."""
    if KEYWORD.encode() not in exact_json.dumps(schema):
        return
    differing = [
        f"{pointer} is {total}, but the sum of {pattern} is {amounts}."
        for pointer, pattern, total, amounts in sums(data, Guide.of(schema))
        if total != amounts
    ]
    for detail in differing[:MAX_WARNINGS]:
        context.warn("sum_differs", detail)
    if (more := len(differing) - MAX_WARNINGS) > 0:
        context.warn("sum_differs", f"{more} more totals differ from the sums of their amounts.")


def sums(data: Any, guide: Guide) -> Iterator[tuple[str, str, Decimal, Decimal]]:
    """Yield the pointer, the pattern of the amounts, the total, and the sum for each declared total.

    Missing amounts are ignored. A total is skipped if it or all amounts are missing, or if it or an amount is text that
    is not a number.
    """
    for pointer, pattern, value in totals(data, guide, ""):
        total = number_of(value)
        given = [each for each in matching(data, bind_pattern(pattern, pointer)) if each not in (None, "")]
        amounts = [number for each in given if (number := number_of(each)) is not None]
        if total is not None and amounts and len(amounts) == len(given):
            yield pointer, pattern, total, exact_sum(amounts)


def exact_sum(amounts: list[Decimal]) -> Decimal:
    with localcontext(prec=PRECISION):  # the default of 28 digits would round
        return sum(amounts, Decimal(0))


def totals(data: Any, guide: Guide, pointer: str) -> Iterator[tuple[str, str, Any]]:
    if isinstance(data, dict):
        for name, inside in data.items():
            yield from totals(inside, guide.member(name), join(pointer, name))
    elif isinstance(data, list):
        item = guide.item()
        for at, inside in enumerate(data):
            yield from totals(inside, item, join(pointer, at))
    elif isinstance(pattern := guide.keyword(KEYWORD), str):
        yield pointer, pattern, data


def bind_pattern(pattern: str, pointer: str) -> list[str]:
    """Return the tokens of a pattern. While it leads to the same item as the pointer of the total, `*` is replaced by
    the item's index, so that the total of a group is compared with the amounts of this group only."""
    parts, own = tokens(pattern), tokens(pointer)
    for at, (part, name) in enumerate(zip(parts, own, strict=False)):
        if part not in (name, "*"):
            break
        parts[at] = name
    return parts


def matching(data: Any, parts: list[str]) -> Iterator[Any]:
    """Yield the values that a pattern matches."""
    if not parts:
        yield data
    elif isinstance(data, list):
        for at, inside in enumerate(data):
            if parts[0] in ("*", str(at)):
                yield from matching(inside, parts[1:])
    elif isinstance(data, dict):
        for name in data if parts[0] == "*" else [parts[0]]:
            yield from matching(data.get(name), parts[1:])


def number_of(value: Any) -> Decimal | None:
    """Return the number of a JSON number or numeric string without rounding, or None. Strings may have digit groups, as
    in `9,999.00`."""
    if isinstance(value, int | float | Decimal) and not isinstance(value, bool):
        return Decimal(str(value))
    if not isinstance(value, str):
        return None
    if NUMBER.fullmatch(value):
        return Decimal(value)
    if not (found := GROUPED.fullmatch(value) or DECIMAL_COMMA.fullmatch(value)):
        return None
    whole, places = found[1], found[found.re.groups]
    return Decimal(re.sub(r"[^\d+-]", "", whole) + (f".{places}" if places else ""))
