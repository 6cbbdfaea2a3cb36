"""Strict parsing of a model's response, without repair of invalid JSON.

A repaired response could look complete although items are missing, as in `{"lines": [1, 2`. Only text around the JSON
is removed (`reply_text`). Numbers keep their exact digits (`exact_json`).
"""

import json
import math
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any

from config.platform import exact_json
from config.platform.exact_json import Number
from config.platform.http.pointers import join
from etl.core.characters import UNSTORABLE
from etl.postprocessors.reply_text import candidates

MAX_LEVELS = 64
MAX_VALUES = 100_000
MAX_INTEGER = 2**63
MAX_EVIDENCE = 5_000
MAX_QUOTE = 500
# Limits of a number. Validation takes 0.1 ms at these limits, and the time grows with the square of the decimal places.
MAX_DIGITS = 100
MAX_PLACES = 500  # after the decimal point
MAX_ZEROS = 9_999  # the exponent of a zero, as in `0e9999`
MAX_LITERAL = 700  # characters
EXPONENT = re.compile(r"[eE][+-]?0*(\d*)\Z")
MAX_EXPONENT = 4  # digits


class NotJson(Exception):
    """The response is not JSON that can be stored. `args[0]`: the reason, as a message for the model."""


class NumberOutOfRange(NotJson):
    """The response is JSON, but has numbers that cannot be stored. `numbers`: the reasons by JSON Pointer."""

    def __init__(self, numbers: dict[str, str]) -> None:
        super().__init__("It has numbers that cannot be stored.")
        self.numbers = numbers


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """The place of a value according to the model. `page`: counted from 1, or 0 if the model named no page."""

    page: int
    quote: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ParsedResponse:
    """The data of a response, and its unverified evidence by JSON Pointer into the data."""

    data: Any
    evidence: dict[str, Evidence] = field(default_factory=dict)

    def evidence_for(self, pointer: str) -> Evidence | None:
        """Return the evidence for a value. Some models use pointers into the response instead of the data."""
        return self.evidence.get(pointer) or self.evidence.get(f"/data{pointer}")


# ---- JSON -----------------------------------------------------------------------------------------------------------
def parse(text: str) -> Any:
    """Return the JSON value of a response. Raises NotJson."""
    reasons = []
    for candidate in candidates(text):
        try:
            return parse_strictly(candidate)
        except NumberOutOfRange:
            raise
        except NotJson as reason:
            reasons.append(reason)
    raise reasons[-1]


def parse_strictly(text: str) -> Any:
    """Parse JSON as in RFC 8259, if it can be stored. Raises NotJson."""
    try:
        value = json.loads(
            text,
            object_pairs_hook=without_duplicates,
            parse_constant=refuse_constant,
            parse_float=number,
            parse_int=number,
        )
    except json.JSONDecodeError as error:
        raise NotJson(f"It is not JSON: {error.msg} at character {error.pos}.") from None
    except RecursionError:
        raise NotJson(f"It is nested deeper than {MAX_LEVELS} levels.") from None
    if any(UNSTORABLE.search(inside) for inside in strings(value)):
        raise NotJson("It has characters that cannot be stored: U+0000, or half of a surrogate pair.")
    if out_of_range := {pointer: each.reason for pointer, each in scalars(value) if isinstance(each, OutOfRange)}:
        raise NumberOutOfRange(out_of_range)
    return value


def without_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise NotJson("An object in it has a member twice.")
    return found


def refuse_constant(_name: str) -> Any:
    raise NotJson("NaN and Infinity are not JSON.")


# ---- Numbers --------------------------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class OutOfRange:
    """A number that cannot be stored, with the reason."""

    reason: str


def number(literal: str) -> int | Number | OutOfRange:
    """Return a number with its exact digits, or the reason why it cannot be stored."""
    exponent = EXPONENT.search(literal)
    if len(literal) > MAX_LITERAL:
        return OutOfRange(f"The number has more than {MAX_DIGITS} digits.")
    if exponent and len(exponent[1]) > MAX_EXPONENT:
        return OutOfRange(f"The exponent of the number has more than {MAX_EXPONENT} digits.")
    if reason := range_error(Decimal(literal)):
        return OutOfRange(reason)
    return Number(literal) if exponent or "." in literal else exact_json.integer(literal)


def range_error(value: Decimal) -> str:
    _, digits, exponent = value.as_tuple()
    if len(digits) > MAX_DIGITS:
        return f"The number has more than {MAX_DIGITS} digits."
    if -int(exponent) > MAX_PLACES:
        return f"The number has more than {MAX_PLACES} decimal places."
    if math.isinf(float(value)) or int(exponent) > (MAX_PLACES if value else MAX_ZEROS):
        return "The number is larger than 1.8e308, which other programs read as infinity."
    return ""


def strings(value: Any) -> Iterator[str]:
    """Yield all strings in a value, including member names. Raises NotJson if it is nested too deeply or has too many
    values."""
    level, count = [value], 0
    for _ in range(MAX_LEVELS + 1):
        yield from (each for each in level if isinstance(each, str))
        level = [inside for each in level for inside in inside_of(each)]
        count += len(level)
        if count > MAX_VALUES:
            raise NotJson(f"It has more than {MAX_VALUES} values.")
        if not level:
            return
    raise NotJson(f"It is nested deeper than {MAX_LEVELS} levels.")


def inside_of(value: Any) -> list[Any]:
    if isinstance(value, dict):
        return [*value, *value.values()]
    return value if isinstance(value, list) else []


# ---- Data and evidence ----------------------------------------------------------------------------------------------
def readings(value: Any, *, has_data: bool) -> list[ParsedResponse]:
    """Return the possible readings of a response, the most likely first: data with evidence, as requested, or only
    data, which some models return. `has_data`: whether the schema of the data has a member `data`."""
    bare = ParsedResponse(data=value)
    if not isinstance(value, dict) or "data" not in value:
        return [bare]
    wrapped = ParsedResponse(data=value["data"], evidence=evidence_of(value.get("evidence")))
    if not has_data:
        return [wrapped]
    is_wrapped = "evidence" in value or len(value) == 1
    return [wrapped, bare] if is_wrapped else [bare, wrapped]


def evidence_of(given: Any) -> dict[str, Evidence]:
    """Return the evidence in a response. Evidence of another shape is ignored, because it is optional."""
    if isinstance(given, list):
        given = {str(each.get("pointer")): each for each in given[:MAX_EVIDENCE] if isinstance(each, dict)}
    if not isinstance(given, dict):
        return {}
    found: dict[str, Evidence] = {}
    for pointer, each in list(given.items())[:MAX_EVIDENCE]:
        if isinstance(each, dict) and isinstance(each.get("quote"), str):
            found[plain_pointer(pointer)] = Evidence(page=page_of(each.get("page")), quote=each["quote"].strip())
    return {pointer: each for pointer, each in found.items() if 0 < len(each.quote) <= MAX_QUOTE}


def plain_pointer(pointer: str) -> str:
    """Return a pointer in standard form. Some models write `#/total` or `total`. "" is the whole data."""
    pointer = pointer.removeprefix("#")
    return pointer if not pointer or pointer.startswith("/") else f"/{pointer}"


def page_of(given: Any) -> int:
    return given if isinstance(given, int) and not isinstance(given, bool) and 0 < given < MAX_INTEGER else 0


def scalars(value: Any, pointer: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the JSON Pointer and the value of each scalar in a value."""
    if not isinstance(value, dict | list):
        yield pointer, value
        return
    for name, inside in value.items() if isinstance(value, dict) else enumerate(value):
        yield from scalars(inside, join(pointer, name))
