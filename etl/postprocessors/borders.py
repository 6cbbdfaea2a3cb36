"""Borders between the items of a text without blank lines or table marks: rows of several lines, entries of a list.

Only the form of lines counts, never their language: indentation, a sequence of forms that is repeated, or a number or
word with which lines begin again and again. A line's form is its first word, with all digits alike.
"""

import re
from bisect import bisect_left
from collections import Counter
from dataclasses import dataclass, field
from itertools import pairwise
from statistics import mode

from etl.providers.base import PAGE_MARKER

LINE = re.compile(r"[^\n]+")
MARKER = re.compile(PAGE_MARKER)
DIGITS = re.compile(r"\d+")
LETTERS = re.compile(r"[^\W\d_]+")
WORD = "A"  # the form of a line that begins with any word
MIN_ITEMS = 3
MAX_LINES = 12  # of an item
MIN_SHARE = 0.1  # of the lines that begin with a word, if it is more than any word
MAX_PERIOD = 8
EDGE = 4  # lines at the top and the bottom of a page that may be running heads


@dataclass(frozen=True, slots=True)
class Line:
    """`follows_break`: after an empty line, a page marker, or the beginning."""

    start: int
    end: int
    text: str
    follows_break: bool


@dataclass(frozen=True, slots=True)
class Items:
    """Spans of items in a text, in order."""

    spans: list[tuple[int, int]] = field(default_factory=list)

    def breaks(self, place: int) -> bool:
        """Return whether a cut at this place would be inside an item."""
        index = bisect_left(self.spans, place, key=lambda span: span[0]) - 1
        return index >= 0 and place < self.spans[index][1]

    def begins(self, place: int) -> bool:
        return any(start == place for start, _ in self.spans)


def find_items(content: str, start: int, end: int, running: frozenset[str]) -> Items:
    """Return the items in `content[start:end]`. No item if its lines show none."""
    lines = content_lines(content, start, end, running)
    if len(lines) < 2 * MIN_ITEMS:
        return Items()
    forms = forms_of(lines)
    return by_indentation(lines) or by_period(lines, forms) or by_beginning(lines, forms) or Items()


def content_lines(content: str, start: int, end: int, running: frozenset[str]) -> list[Line]:
    """Return the lines that may belong to an item: no page markers, running heads, headings, or rows of tables."""
    found: list[Line] = []
    follows_break, last = True, start
    for match in LINE.finditer(content, start, end):
        text = match.group()
        follows_break = follows_break or content.count("\n", last, match.start()) > 1
        last = match.end()
        if is_running(text, running):
            follows_break = True
        elif text.strip() and "|" not in text and not text.startswith("#"):
            found.append(Line(match.start(), match.end(), text, follows_break))
            follows_break = False
        else:
            follows_break = True
    return found


def is_running(text: str, running: frozenset[str]) -> bool:
    return MARKER.fullmatch(text) is not None or alike(text) in running


def running_heads(content: str, pages: list[tuple[int, int]]) -> frozenset[str]:
    """Return the lines at the edges of at least half of the pages, once on each, with all digits alike."""
    if len(pages) < 2:  # noqa: PLR2004 - one page repeats nothing
        return frozenset()
    counts = Counter[str]()
    for start, end in pages:
        lines = [alike(line) for line in content[start:end].split("\n") if line.strip()]
        repeated = Counter(lines)
        counts.update({line for line in (*lines[:EDGE], *lines[-EDGE:]) if "|" not in line and repeated[line] == 1})
    return frozenset(line for line, count in counts.items() if count * 2 >= max(len(pages), 4))


def alike(text: str) -> str:
    return DIGITS.sub("9", text.strip())


def forms_of(lines: list[Line]) -> list[str]:
    firsts = [line.text.split(maxsplit=1)[0].casefold() for line in lines]
    counts = Counter(firsts)
    frequent = max(MIN_ITEMS, len(lines) * MIN_SHARE)
    return [form_of(first, is_frequent=counts[first] >= frequent) for first in firsts]


def form_of(first: str, *, is_frequent: bool) -> str:
    if any(map(str.isdigit, first)):
        return LETTERS.sub(WORD, DIGITS.sub("9", first))
    return first if is_frequent or not first[0].isalpha() else WORD


# ---- Three ways to find items ---------------------------------------------------------------------------------------
def by_indentation(lines: list[Line]) -> Items | None:
    """Find items whose first line is less indented than the rest of them."""
    indents = [len(line.text) - len(line.text.lstrip()) for line in lines]
    starts = [index for index, indent in enumerate(indents) if indent == min(indents)]
    is_shape = len(starts) >= MIN_ITEMS and len(lines) - len(starts) >= len(starts) / 2
    return spans_from(lines, starts) if is_shape and is_dense(starts, lines) else None


def by_period(lines: list[Line], forms: list[str]) -> Items | None:
    """Find items of equal length: a sequence of forms that is repeated."""
    for period in range(2, MAX_PERIOD + 1):
        first = next((index for index in range(len(forms)) if repeats(forms, index, period)), None)
        if first is None or len(set(forms[first : first + period])) == 1:
            continue
        turn = range(first, first + period)
        begin = next((index for index in turn if lines[index].follows_break and repeats(forms, index, period)), first)
        pattern = forms[begin : begin + period]
        starts = matches(forms, pattern, begin)
        if len(starts) * period * 2 >= len(lines):
            return Items([(lines[at].start, lines[min(at + period, len(lines)) - 1].end) for at in starts])
    return None


def repeats(forms: list[str], index: int, period: int) -> bool:
    pattern = forms[index : index + period]
    after = forms[index + period : index + 3 * period]
    return len(after) == 2 * period and after == pattern * 2


def matches(forms: list[str], pattern: list[str], begin: int) -> list[int]:
    """Return the indexes at which the pattern occurs, without overlap. The last occurrence may be cut off."""
    found: list[int] = []
    index = begin
    while index < len(forms):
        part = forms[index : index + len(pattern)]
        fits = part == pattern[: len(part)]
        found += [index] if fits else []
        index += len(pattern) if fits else 1
    return found


def by_beginning(lines: list[Line], forms: list[str]) -> Items | None:
    """Find items whose first line begins with a number, or at regular distances with the same word."""
    counts = Counter(form for form in forms if form != WORD)
    places = {
        form: [at for at, each in enumerate(forms) if each == form] for form in counts if counts[form] >= MIN_ITEMS
    }
    fitting = [form for form, starts in places.items() if is_dense(starts, lines) and is_telling(form, starts)]
    if not fitting:
        return None
    maximum = max(counts[form] for form in fitting)
    chosen = min((form for form in fitting if counts[form] >= 0.8 * maximum), key=lambda form: places[form][0])
    return spans_from(lines, places[chosen])


def is_dense(starts: list[int], lines: list[Line]) -> bool:
    length = starts[-1] - starts[0]
    return 2 * length >= len(lines) - 2 * MAX_LINES and length <= MAX_LINES * (len(starts) - 1)


def is_telling(form: str, starts: list[int]) -> bool:
    if not form[0].isalpha() or "9" in form:
        return True
    gaps = [after - before for before, after in pairwise(starts)]
    return gaps.count(mode(gaps)) >= 0.7 * len(gaps)


def spans_from(lines: list[Line], starts: list[int]) -> Items:
    """Return items from their first lines. An item ends before the next one, or after the usual number of lines where
    the page ends or an empty line follows."""
    usual = mode([after - before for before, after in pairwise(starts)])
    spans = []
    for first, following in zip(starts, [*starts[1:], len(lines)], strict=True):
        breaks = (at for at in range(first + usual, following) if lines[at].follows_break)
        limit = min(first + usual, len(lines)) if following == len(lines) else following
        spans.append((lines[first].start, lines[next(breaks, limit) - 1].end))
    return Items(spans)
