"""Regular expressions of keys. Staff write them, and they run for every key of a request."""

import re
from collections.abc import Iterable, Iterator
from re import _constants, _parser
from typing import Any

MANY = 10  # more repetitions than these count as any number of them
REPETITIONS = {_constants.MAX_REPEAT, _constants.MIN_REPEAT}
CHOICES = {_constants.BRANCH, _constants.GROUPREF, _constants.GROUPREF_EXISTS}


def error_of(pattern: str) -> str:
    """Return why a pattern cannot be used, or ""."""
    try:
        re.compile(pattern)
    except re.error as error:
        return f"Not a regular expression: {error}."
    if is_ambiguous(_parser.parse(pattern)):
        return (
            "A part that repeats must not contain another repetition, an alternative, or a reference to a group: "
            "a key that does not match could take hours to check. Write [A-Z_]+ instead of ([A-Z]+_?)+."
        )
    return ""


def is_ambiguous(parts: Iterable[tuple[Any, Any]], *, repeats: bool = False) -> bool:
    """Return whether a text may match in exponentially many ways, of which all are tried if the rest does not match.

    `repeats`: these parts are inside of a repetition.
    """
    for kind, value in parts:
        is_repetition = kind in REPETITIONS
        if repeats and (kind in CHOICES or (is_repetition and value[0] != value[1])):
            return True
        is_within = repeats or (is_repetition and value[1] > MANY)
        if any(is_ambiguous(inner, repeats=is_within) for inner in inside(value)):
            return True
    return False


def inside(value: Any) -> Iterator[Any]:
    """Yield the patterns that a part contains."""
    if isinstance(value, _parser.SubPattern):
        yield value
    elif isinstance(value, tuple | list):
        for each in value:
            yield from inside(each)
