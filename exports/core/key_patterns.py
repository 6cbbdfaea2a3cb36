"""Regular expressions for keys. Staff write them, and every key of a request is matched against them."""

import re
from collections.abc import Iterable, Iterator
from itertools import cycle
from re import _compiler, _constants, _parser  # type: ignore[attr-defined]
from typing import Any

MAX_BOUNDED = 10  # a repetition with a greater maximum counts as unbounded
REPETITIONS = {_constants.MAX_REPEAT, _constants.MIN_REPEAT}
SAMPLES = ("ABCDEFGHIJ", "1234567890", "abcdefghij", "_-. ")
SAMPLE_REPETITIONS = 4  # of a repeated part, in an example
CHOICES = {_constants.BRANCH, _constants.GROUPREF, _constants.GROUPREF_EXISTS}


def error_of(pattern: str) -> str:
    """Return the error of a pattern, or "" if it is valid."""
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
    """Return whether these parts may cause catastrophic backtracking: a text can match them in exponentially many ways.

    `repeats`: whether the parts are inside a repetition.
    """
    for kind, value in parts:
        is_repetition = kind in REPETITIONS
        if repeats and (kind in CHOICES or (is_repetition and value[0] != value[1])):
            return True
        is_within = repeats or (is_repetition and value[1] > MAX_BOUNDED)
        if any(is_ambiguous(inner, repeats=is_within) for inner in inside(value)):
            return True
    return False


def inside(value: Any) -> Iterator[Any]:
    """Yield the patterns inside a part."""
    if isinstance(value, _parser.SubPattern):
        yield value
    elif isinstance(value, tuple | list):
        for each in value:
            yield from inside(each)


# ---- Examples -------------------------------------------------------------------------------------------------------
def example_of(pattern: str) -> str:
    """Return a short key that matches a pattern, or "" if none was found. For users who cannot read patterns."""
    text = sample(_parser.parse(pattern), cycle(range(10)))
    return text if re.fullmatch(pattern, text) else ""


def sample(parts: Iterable[tuple[Any, Any]], turn: Iterator[int]) -> str:
    """Return a text that matches these parts. Conditions such as lookahead are ignored."""
    return "".join(sample_of(kind, value, turn) for kind, value in parts)


def sample_of(kind: Any, value: Any, turn: Iterator[int]) -> str:
    if kind is _constants.LITERAL:
        return chr(value)
    if kind in (_constants.IN, _constants.ANY, _constants.NOT_LITERAL):
        start = next(turn)
        usual = (char for chars in SAMPLES for char in chars[start:] + chars[:start] if matches(kind, value, char))
        return next(usual, chr(value[0][1]) if kind is _constants.IN and isinstance(value[0][1], int) else "")
    if kind in REPETITIONS:
        minimum, maximum, inner = value
        return "".join(sample(inner, turn) for _ in range(max(minimum, min(maximum, SAMPLE_REPETITIONS))))
    if kind is _constants.SUBPATTERN:
        return sample(value[-1], turn)
    return sample(value[1][0], turn) if kind is _constants.BRANCH else ""


def matches(kind: Any, value: Any, char: str) -> bool:
    """Return whether a part that stands for a single character matches this one."""
    part = _parser.SubPattern(_parser.State(), [(kind, value)])
    return bool(_compiler.compile(part).fullmatch(char))
