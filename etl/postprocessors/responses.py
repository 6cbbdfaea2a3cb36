"""What a model answered, read strictly: JSON or not, never mended.

A mended answer looks whole and is not: what makes `{"lines": [1, 2` valid also makes it shorter. Around the JSON only
what models are known to add is taken away, their thoughts and a code fence.
"""

import json
import math
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from config.platform.http.pointers import join
from etl.core.characters import UNSTORABLE

THOUGHTS = re.compile(r"\A\s*<(think|thinking|reasoning)>.*?</\1>", re.DOTALL | re.IGNORECASE)
MAX_LEVELS = 64
MAX_VALUES = 100_000
MAX_INTEGER = 2**63  # what JSON libraries, and what stores it, hold exactly
MAX_EVIDENCE = 5_000
MAX_QUOTE = 500


class NotJson(Exception):
    """The answer is not JSON that can be kept. `args[0]` says why, in our words, for the model to read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """Where a model says that a value stands. `page` from 1, 0 if it did not say."""

    page: int
    quote: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ParsedResponse:
    """`evidence` by JSON Pointer into `data`, as far as the model got them right; unchecked."""

    data: Any
    evidence: dict[str, Evidence] = field(default_factory=dict)

    def evidence_for(self, pointer: str) -> Evidence | None:
        """Return the evidence for a value; some models point from the root of their answer."""
        return self.evidence.get(pointer) or self.evidence.get(f"/data{pointer}")


# ---- JSON -----------------------------------------------------------------------------------------------------------
def parse(text: str) -> Any:
    """Return the one JSON value in an answer. Raises NotJson."""
    text = without_thoughts(text)
    try:
        return strict(text)
    except NotJson:
        fenced = inside_fence(text)
        if fenced is None:
            raise
    return strict(fenced)


def inside_fence(text: str) -> str | None:
    """Return what is in the one code fence of an answer, None unless there is one. Line by line: a pattern would look
    for the end of each of a million beginnings."""
    lines = text.split("\n")
    fences = [index for index, line in enumerate(lines) if line.strip().startswith("```")]
    if len(fences) != 2 or lines[fences[1]].strip() != "```":  # noqa: PLR2004 - its beginning and its end
        return None
    return "\n".join(lines[fences[0] + 1 : fences[1]])


def without_thoughts(text: str) -> str:
    """Return an answer without what the model said to itself before."""
    return THOUGHTS.sub("", text, count=1).strip()


def strict(text: str) -> Any:
    """Return what RFC 8259 makes of a text, and what can be stored. Raises NotJson."""
    try:
        value = json.loads(
            text, object_pairs_hook=unique, parse_constant=no_constant, parse_float=finite, parse_int=small
        )
    except json.JSONDecodeError as error:
        raise NotJson(f"It is not JSON: {error.msg} at character {error.pos}.") from None
    except RecursionError:
        raise NotJson(f"It is nested deeper than {MAX_LEVELS} levels.") from None
    if any(UNSTORABLE.search(inside) for inside in strings(value)):
        raise NotJson("It has characters that cannot be stored: U+0000, or half of a surrogate pair.")
    return value


def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise NotJson("An object in it has a member twice.")
    return found


def no_constant(_name: str) -> Any:
    raise NotJson("NaN and Infinity are not JSON.")


def finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise NotJson("A number in it is too large.")
    return number


def small(text: str) -> int:
    number = int(text) if len(text) < 30 else MAX_INTEGER  # noqa: PLR2004 - int() refuses thousands of digits
    if not -MAX_INTEGER <= number < MAX_INTEGER:
        raise NotJson("A number in it is too large. Write long numbers, such as account numbers, as strings.")
    return number


def strings(value: Any) -> Iterator[str]:
    """Yield all strings in a value, names of members included. Raises NotJson when it is nested too deeply, or holds
    too much."""
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
    """Return what an answer may mean, the likelier first: data with evidence beside it, as it was asked for, or
    the bare data, as models are apt to answer. `has_data`: whether the bare data may have a member `data` itself."""
    bare = ParsedResponse(data=value)
    if not isinstance(value, dict) or "data" not in value:
        return [bare]
    wrapped = ParsedResponse(data=value["data"], evidence=evidence_of(value.get("evidence")))
    if not has_data:
        return [wrapped]
    is_wrapped = "evidence" in value or len(value) == 1
    return [wrapped, bare] if is_wrapped else [bare, wrapped]


def evidence_of(told: Any) -> dict[str, Evidence]:
    """Return the evidence in an answer; what has another shape is left out, as nothing depends on it."""
    if isinstance(told, list):
        told = {str(each.get("pointer")): each for each in told[:MAX_EVIDENCE] if isinstance(each, dict)}
    if not isinstance(told, dict):
        return {}
    found: dict[str, Evidence] = {}
    for pointer, each in list(told.items())[:MAX_EVIDENCE]:
        if isinstance(each, dict) and isinstance(each.get("quote"), str):
            found[plain_pointer(pointer)] = Evidence(page=page_of(each.get("page")), quote=each["quote"].strip())
    return {pointer: each for pointer, each in found.items() if 0 < len(each.quote) <= MAX_QUOTE}


def plain_pointer(pointer: str) -> str:
    """Return a pointer as it should be: some models write `#/total`, or `total`."""
    pointer = pointer.removeprefix("#")
    return pointer if pointer.startswith("/") else f"/{pointer}"


def page_of(told: Any) -> int:
    return told if isinstance(told, int) and not isinstance(told, bool) and 0 < told < MAX_INTEGER else 0


def scalars(value: Any, pointer: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the JSON Pointer and the value of everything in a value that holds nothing itself."""
    if not isinstance(value, dict | list):
        yield pointer, value
        return
    for name, inside in value.items() if isinstance(value, dict) else enumerate(value):
        yield from scalars(inside, join(pointer, name))
