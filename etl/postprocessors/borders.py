"""Detection of items in text without blank lines or table marks, such as multi-line rows and list entries.

Detection depends on the form of the lines, not on their language. It looks for indentation, a repeating sequence of
line forms, or a number or word that starts many lines. A line's form is its first word: each number in it becomes 9.
Letters beside numbers, and infrequent words, become A.
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
WORD = "A"  # the form of a line that starts with an infrequent word
MIN_ITEMS = 3
MAX_LINES = 12  # per item
MIN_SHARE = 0.1  # the share of lines that must start with a word for it to be a form
MAX_PERIOD = 8
EDGE = 4  # the number of lines at the top and bottom of a page that may be running heads


@dataclass(frozen=True, slots=True)
class Line:
    """A line of the text. `follows_break`: it is the first line, or follows an empty line or a page marker."""

    start: int
    end: int
    text: str
    follows_break: bool


@dataclass(frozen=True, slots=True)
class Items:
    """The spans of items in a text, in order."""

    spans: list[tuple[int, int]] = field(default_factory=list)

    def is_inside_item(self, place: int) -> bool:
        """Return whether a cut at this position would split an item."""
        index = bisect_left(self.spans, place, key=lambda span: span[0]) - 1
        return index >= 0 and place < self.spans[index][1]

    def is_item_start(self, place: int) -> bool:
        return any(start == place for start, _ in self.spans)


def find_items(content: str, start: int, end: int, running: frozenset[str]) -> Items:
    """Return the items in `content[start:end]`, if its lines have a recognizable pattern."""
    lines = content_lines(content, start, end, running)
    if len(lines) < 2 * MIN_ITEMS:
        return Items()
    forms = forms_of(lines)
    return by_indentation(lines) or by_period(lines, forms) or by_beginning(lines, forms) or Items()


def content_lines(content: str, start: int, end: int, running: frozenset[str]) -> list[Line]:
    """Return the lines that may belong to items. Page markers, running heads, headings, and table rows do not."""
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
    return MARKER.fullmatch(text) is not None or mask_digits(text) in running


def running_heads(content: str, pages: list[tuple[int, int]]) -> frozenset[str]:
    """Return the lines that occur once each at the top or bottom of at least half of the pages, with digits masked."""
    if len(pages) < 2:  # noqa: PLR2004 - a single page has no repeated lines
        return frozenset()
    counts = Counter[str]()
    for start, end in pages:
        lines = [mask_digits(line) for line in content[start:end].split("\n") if line.strip()]
        repeated = Counter(lines)
        counts.update({line for line in (*lines[:EDGE], *lines[-EDGE:]) if "|" not in line and repeated[line] == 1})
    return frozenset(line for line, count in counts.items() if count * 2 >= max(len(pages), 4))


def mask_digits(text: str) -> str:
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
    """Find items whose first line is less indented than their other lines."""
    indents = [len(line.text) - len(line.text.lstrip()) for line in lines]
    least = min(indents)
    starts = [index for index, indent in enumerate(indents) if indent == least]
    is_shape = len(starts) >= MIN_ITEMS and len(lines) - len(starts) >= len(starts) / 2
    return spans_from(lines, starts) if is_shape and is_dense(starts, lines) else None


def by_period(lines: list[Line], forms: list[str]) -> Items | None:
    """Find items with the same number of lines, by a repeating sequence of line forms."""
    for period in range(2, MAX_PERIOD + 1):
        first = next((index for index in range(len(forms)) if repeats(forms, index, period)), None)
        if first is None or len(set(forms[first : first + period])) == 1:
            continue
        offsets = range(first, first + period)
        begin = next(
            (index for index in offsets if lines[index].follows_break and repeats(forms, index, period)), first
        )
        pattern = forms[begin : begin + period]
        found = matches(forms, pattern, begin)
        if len(found) * period * 2 >= len(lines):
            return Items([(lines[at].start, lines[min(at + period, len(lines)) - 1].end) for at in found])
    return None


def repeats(forms: list[str], index: int, period: int) -> bool:
    pattern = forms[index : index + period]
    after = forms[index + period : index + 3 * period]
    return len(after) == 2 * period and after == pattern * 2


def matches(forms: list[str], pattern: list[str], begin: int) -> list[int]:
    """Return the indexes of the non-overlapping occurrences of the pattern. The last one may be incomplete."""
    found: list[int] = []
    index = begin
    while index < len(forms):
        part = forms[index : index + len(pattern)]
        fits = part == pattern[: len(part)]
        found += [index] if fits else []
        index += len(pattern) if fits else 1
    return found


def by_beginning(lines: list[Line], forms: list[str]) -> Items | None:
    """Find items whose first line starts with a number, or with the same word at regular distances."""
    counts = Counter(form for form in forms if form != WORD)
    places = {
        form: [at for at, each in enumerate(forms) if each == form] for form in counts if counts[form] >= MIN_ITEMS
    }
    fitting = [form for form, starts in places.items() if is_dense(starts, lines) and is_distinctive(form, starts)]
    if not fitting:
        return None
    maximum = max(counts[form] for form in fitting)
    chosen = min((form for form in fitting if counts[form] >= 0.8 * maximum), key=lambda form: places[form][0])
    return spans_from(lines, places[chosen])


def is_dense(starts: list[int], lines: list[Line]) -> bool:
    length = starts[-1] - starts[0]
    return 2 * length >= len(lines) - 2 * MAX_LINES and length <= MAX_LINES * (len(starts) - 1)


def is_distinctive(form: str, starts: list[int]) -> bool:
    if not form[0].isalpha() or "9" in form:
        return True
    gaps = [after - before for before, after in pairwise(starts)]
    return gaps.count(mode(gaps)) >= 0.7 * len(gaps)


def spans_from(lines: list[Line], starts: list[int]) -> Items:
    """Return the items that start at these lines. An item ends before the next one. If a page ends or an empty line
    follows in between, it ends there, but not before the most frequent item length."""
    usual = mode([after - before for before, after in pairwise(starts)])
    spans = []
    for first, following in zip(starts, [*starts[1:], len(lines)], strict=True):
        break_indexes = (at for at in range(first + usual, following) if lines[at].follows_break)
        limit = min(first + usual, len(lines)) if following == len(lines) else following
        spans.append((lines[first].start, lines[next(break_indexes, limit) - 1].end))
    return Items(spans)
