"""Parser for the selectors and grouping labels of PromQL expressions."""

import re
from typing import NamedTuple

SELECTOR = re.compile(r"(?<![\w:$.])([a-zA-Z_:][\w:]*)(?![\w:])\s*(\{[^}]*\})?(?!\s*\()")
MATCHER = re.compile(r'(\w+)\s*(=~|!~|!=|=)\s*"((?:\\.|[^"\\])*)"')
GROUPING = re.compile(r"\b(by|without|on|ignoring)\s*\(([^)]*)\)")
RANGE = re.compile(r"\[[^\]]*\]")
WORDS = {"and", "or", "unless", "bool", "offset"}


class Selector(NamedTuple):
    """A selector of series. `matchers`: pairs of label and value, with a pair for each alternative of a regex."""

    text: str
    metric: str
    matchers: list[tuple[str, str]]


def selectors(expression: str) -> list[Selector]:
    """Return every selector of an expression, such as `export_slots{state="free"}`."""
    bare = RANGE.sub("", GROUPING.sub(" ", expression))
    return [
        Selector(metric + braces, metric, matchers(braces))
        for metric, braces in SELECTOR.findall(bare)
        if metric not in WORDS
    ]


def matchers(braces: str) -> list[tuple[str, str]]:
    return [
        (label, value)
        for label, sign, values in MATCHER.findall(braces)
        for value in (values.split("|") if "~" in sign else [values])
    ]


def groupings(expression: str) -> set[str]:
    """Return the labels in `by (…)`, `on (…)`, and similar clauses."""
    listed = [labels for _, labels in GROUPING.findall(expression)]
    return {label.strip() for labels in listed for label in labels.split(",") if label.strip()}
