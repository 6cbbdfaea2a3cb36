"""Detection of page numbers in page headers and footers. They are evidence only for fields about page numbers."""

import re
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Iterator

EDGE = 3  # lines at the start or end of a page
NAMES = frozenset(("page", "pages", "pagecount", "seite", "seiten", "página", "páginas", "pagina", "paginas", "pagine"))
OF = r"\s{0,3}(?:of|von|de|di|su?r|van|av|af|z|из|/|-)\s{0,3}"
NUMBERS = rf"\d{{1,5}}(?:{OF}\d{{1,5}})?(?![\w/-]|[.,]\d)"
# "Page 21 of 120", also in other languages, such as "第 21 页".
NAMED = re.compile(
    rf"\b(?:(?:page|seite|p[áa]gina|pagina|sida|side|strona|bladzijde|страница)|(?:pg|pp?|s|p[áa]g|blz|str|стр)\.)\s{{0,3}}{NUMBERS}"
    r"|第\s{0,3}\d{1,5}\s{0,3}[页頁ペ]",
    re.IGNORECASE,
)
# "- 21 -". It is a page number if its difference from the index of the page is the same on another page.
BARE = re.compile(rf"[\W_]{{0,10}}(\d{{1,5}})(?:{OF}\d{{1,5}})?[\W_]{{0,10}}")
LINE = re.compile(r"^[^\S\n]*+\S[^\n]*", re.MULTILINE)
Span = tuple[int, int]


def page_numbers(pages: Iterable[tuple[int, int, str]]) -> list[Span]:
    """Return the spans of page numbers, in order. A page is its index, its position, and its text."""
    named: list[Span] = []
    bare: defaultdict[int, list[Span]] = defaultdict(list)  # by the difference from the page's index
    for number, start, text in pages:
        for low, high in edges(text):
            line = text[low:high]
            named += [(start + low + match.start(), start + low + match.end()) for match in named_in(line)]
            if match := BARE.fullmatch(line):
                bare[int(match[1]) - number].append((start + low, start + high))
    return sorted({*named, *(span for spans in bare.values() if len(spans) > 1 for span in spans)})


def named_in(line: str) -> Iterator[re.Match[str]]:
    """Yield the page numbers at the start and the end of a line. In the middle, they are references to pages."""
    for match in NAMED.finditer(line):
        if not (any(map(str.isalnum, line[: match.start()])) and any(map(str.isalnum, line[match.end() :]))):
            yield match


def edges(text: str) -> Iterator[Span]:
    """Yield the spans of the first and last nonempty lines of a page."""
    lines = [match.span() for match in LINE.finditer(text)]
    yield from lines[:EDGE]
    yield from lines[max(EDGE, len(lines) - EDGE) :]


def is_within(spans: list[Span], start: int, end: int) -> bool:
    position = bisect_right(spans, (start, end)) - 1
    return any(low <= start and end <= high for low, high in spans[max(0, position) : position + 2])
