"""Incomplete pages of a document: pages whose text may be missing or wrong, according to the document's warnings."""

from collections.abc import Iterable, Mapping
from itertools import islice
from typing import Any

# Codes of warnings that mark a page as incomplete.
INCOMPLETE = frozenset(
    {"page_failed", "low_confidence", "unsupported_script", "image_not_read", "formula_without_value"}
)
MAX_LISTED = 20


def incomplete_pages(warnings: Iterable[Mapping[str, Any]]) -> list[int]:
    """Return the numbers of the incomplete pages. 0 stands for the whole document."""
    return sorted({each.get("page") or 0 for each in warnings if each["code"] in INCOMPLETE})


def describe(pages: list[int]) -> str:
    """Describe the pages in words, such as "pages 2, 5-7". Return "" if there are none."""
    if not pages:
        return ""
    numbers = [page for page in pages if page]
    if not numbers:
        return "some pages"
    return f"page {numbers[0]}" if len(numbers) == 1 else f"pages {ranges(numbers)}"


def ranges(numbers: Iterable[int]) -> str:
    """Format numbers as ranges, such as "3-5, 8"."""
    spans: list[list[int]] = []
    for each in sorted(set(numbers)):
        if spans and each == spans[-1][1] + 1:
            spans[-1][1] = each
        else:
            spans.append([each, each])
    texts = [str(first) if first == last else f"{first}-{last}" for first, last in spans]
    return listed(texts)


def listed(texts: Iterable[str]) -> str:
    """Join texts with commas. "…" replaces those after the first twenty."""
    first = list(islice(texts, MAX_LISTED + 1))
    return ", ".join(first if len(first) <= MAX_LISTED else [*first[:-1], "…"])
