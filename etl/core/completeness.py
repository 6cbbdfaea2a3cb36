"""Pages of a document that were lost, or whose text is uncertain, according to its warnings."""

from collections.abc import Iterable, Mapping
from typing import Any

# Codes of warnings after which a page's text may be missing or wrong.
INCOMPLETE = frozenset(
    {"page_failed", "low_confidence", "unsupported_script", "image_not_read", "formula_without_value"}
)
MAX_RANGES = 20


def incomplete_pages(warnings: Iterable[Mapping[str, Any]]) -> list[int]:
    """Return the numbers of the pages that are incomplete. 0 stands for a warning about the whole document."""
    return sorted({each.get("page") or 0 for each in warnings if each["code"] in INCOMPLETE})


def describe(pages: list[int]) -> str:
    """Return the pages for people: "pages 2, 5-7", or "" if there are none."""
    if not pages:
        return ""
    numbers = [page for page in pages if page]
    if not numbers:
        return "some pages"
    return f"page {numbers[0]}" if len(numbers) == 1 else f"pages {ranges(numbers)}"


def ranges(numbers: Iterable[int]) -> str:
    """Return numbers as ranges: 3-5, 8."""
    spans: list[list[int]] = []
    for each in sorted(set(numbers)):
        if spans and each == spans[-1][1] + 1:
            spans[-1][1] = each
        else:
            spans.append([each, each])
    texts = [str(first) if first == last else f"{first}-{last}" for first, last in spans]
    return ", ".join([*texts[:MAX_RANGES], *(["…"] if len(texts) > MAX_RANGES else [])])
