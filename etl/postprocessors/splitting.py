"""Splitting of a long text into pieces: between pages, before headings, between paragraphs, items, rows, or sentences.

Each character is in exactly one piece, in order; pieces of white space are dropped. A row of a table or an item of
several lines is split only if it is longer than a piece. Page markers and headings stay with the text after them.

A model is also shown context, marked as for reading only: the headings that it is under, the head of a
table that continues with the current group, and, where the cut may be inside an item, a few lines of both sides. An
item belongs to the piece in which it begins.
"""

import re
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass

from etl.core.errors import DocumentTooLong
from etl.postprocessors.borders import Items, find_items, is_running, running_heads
from etl.postprocessors.document_text import DocumentText
from etl.postprocessors.groups import TextAbove
from etl.postprocessors.tables import RUN, cells, html_rows
from etl.providers.base import PAGE_MARKER, page_marker

HEADING = r"#{1,6}[ \t][^\n]*"
# Places before which a text may be cut, best first, and the minimum fill of a piece that ends there.
CUTS = (
    (re.compile(rf"^{PAGE_MARKER}$", re.MULTILINE), 0.5),
    (re.compile(r"^#{1,6}[ \t]", re.MULTILINE), 0.5),
    (re.compile(r"(?<=\n\n)(?=\S)"), 0.25),
    (re.compile(r"(?<=\n)(?=.)|(?<=</tr>)", re.IGNORECASE), 0.25),
    (re.compile(r"(?<=[.!?;][ \t])|(?<=[。！？])"), 0.25),
    (re.compile(r"(?<=[ \t])(?=\S)"), 0.25),
)
# A marker or a heading extends to the first character after it.
WHOLE = re.compile(rf"^{PAGE_MARKER}\s*(?:{HEADING}\s*)?|^{HEADING}\s*", re.MULTILINE)
AHEAD = 2_000  # characters after a piece in which items are searched for
MAX_CONTEXT = 500  # characters of each side
TABLE_GOES_ON = "[a table goes on; its head, for reading only:]"
UNDER_HEADINGS = "[the headings above, for reading only:]"
READING_BEFORE = "[for reading only, the end of the piece before this one:]"
PIECE_BEGINS = "[this piece begins here:]"
PIECE_ENDS = "[this piece ends here; for reading only, the beginning of the next one:]"


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """A piece of a text. `text` is `content[start:end]`. `headings`: those that it is under. `lead`: the head and
    groups that its first table lacks, or ""; `lead_at`: where its rows begin in `text`. `before`, `after`: lines around
    the piece, if an item may continue there, or ""."""

    number: int
    start: int
    end: int
    text: str
    headings: str
    lead: str
    lead_at: int
    before: str
    after: str
    first_page: int
    last_page: int

    @property
    def pages(self) -> str:
        return pages_named(self.first_page, self.last_page)

    @property
    def shown(self) -> str:
        """The piece as the model gets it: with its page marker, the table's head, and the lines around it."""
        lead = f"{TABLE_GOES_ON}\n{self.lead}\n" if self.lead else ""
        text = self.text[: self.lead_at] + lead + self.text[self.lead_at :]
        if not re.match(PAGE_MARKER, self.text):
            text = f"{page_marker(self.first_page)}\n\n{text}"
        above = [(UNDER_HEADINGS, self.headings), (READING_BEFORE, self.before)]
        shown = "".join(f"{mark}\n{lines}\n" for mark, lines in above if lines)
        before = f"{shown}{PIECE_BEGINS}\n" if shown else ""
        after = f"\n{PIECE_ENDS}\n{self.after}" if self.after else ""
        return f"{before}{text}{after}"

    def about(self, total: int) -> str:
        """Return a description for the prompt."""
        return f"piece {self.number} of {total} of the text of a document, {self.pages}"


@dataclass(frozen=True, slots=True)
class Border:
    """A cut. `is_sure`: no item continues there."""

    place: int
    is_sure: bool = True


def pages_named(first: int, last: int) -> str:
    return f"page {first}" if first == last else f"pages {first} to {last}"


def pages_listed(numbers: list[int], *, max_pieces: int = 20) -> str:
    shown = ", ".join(map(str, numbers[:max_pieces])) + (
        f", and {len(numbers) - max_pieces} more" if len(numbers) > max_pieces else ""
    )
    return f"page {shown}" if len(numbers) == 1 else f"pages {shown}"


def split(text: DocumentText, *, size: int, max_pieces: int) -> list[Piece]:
    """Return pieces of at most `size` characters. Raises DocumentTooLong if there are more than `max_pieces`."""
    pieces: list[Piece] = []
    above = TextAbove(text.content)
    start = Border(0)
    for end in borders(text, size=size):
        if text.content[start.place : end.place].strip():
            if len(pieces) == max_pieces:
                raise DocumentTooLong(f"The document is longer than {max_pieces} pieces of {size} characters.")
            pieces.append(build_piece(text, start, end, above, size=size, number=len(pieces) + 1))
        start = end
    return pieces


def build_piece(text: DocumentText, start: Border, end: Border, above: TextAbove, *, size: int, number: int) -> Piece:
    content, first, limit = text.content, start.place, end.place
    last = max(first, first + len(content[first:limit].rstrip()) - 1)
    lead_at, lead = above.lead(first, limit)
    return Piece(
        number=number,
        start=first,
        end=limit,
        text=content[first:limit],
        headings=above.headings_of(beginning(content, first, limit)),
        lead=lead,
        lead_at=lead_at - first,
        before="" if start.is_sure else lines_before(content, first, size=size),
        after="" if end.is_sure else lines_after(content, limit, size=size),
        first_page=page_from(text, first),
        last_page=text.page_at(last),
    )


def beginning(content: str, start: int, end: int) -> int:
    """Return the beginning of the text after a page marker."""
    found = re.compile(rf"(?:{PAGE_MARKER})?\s*").match(content, start, end)
    return found.end() if found else start


def page_from(text: DocumentText, start: int) -> int:
    """Return the page on which a piece starts: the next page if it starts with a marker."""
    after = bisect_right(text.pages, start, key=lambda span: span.end)
    return text.pages[min(after, len(text.pages) - 1)].number


def lines_before(content: str, place: int, *, size: int) -> str:
    """Return whole lines before a place, or words if there is no line break."""
    begin = max(0, place - min(MAX_CONTEXT, size // 8))
    _, newline, lines = content[begin:place].partition("\n")
    return (lines if begin and newline and lines.strip() else content[begin:place]).strip()


def lines_after(content: str, place: int, *, size: int) -> str:
    found = content[place : place + min(MAX_CONTEXT, size // 8)]
    lines = found.rpartition("\n")[0]
    return (lines if lines.strip() else found).strip()


# ---- Cuts -----------------------------------------------------------------------------------------------------------
def borders(text: DocumentText, *, size: int) -> Iterator[Border]:
    """Yield the end of each piece."""
    content = text.content
    unbreakable = UnbreakableSpans(content, size=size)
    running = running_heads(content, [(span.start, span.end) for span in text.pages])
    start = 0
    while len(content) - start > size:
        items = find_items(content, start, min(start + size + AHEAD, len(content)), running)
        start = cut(content, start, start + size, unbreakable, items)
        yield Border(start, is_sure(content, start, items, running))
    yield Border(len(content))


def cut(content: str, start: int, limit: int, unbreakable: "UnbreakableSpans", items: Items) -> int:
    """Return the end of the piece that starts at `start`, at most `limit`: inside an item only if it is too long."""
    size = limit - start
    whole = [places(pattern, content, start, limit, unbreakable) for pattern, _fill in CUTS]
    between_items = [[place for place in found if not items.breaks(place)] for found in whole]
    for candidates in (between_items, whole):
        last = [found[-1] if found else start for found in candidates]
        for (_pattern, fill), position in zip(CUTS, last, strict=True):
            if position - start >= fill * size:
                return position
        if (best := max(last)) > start:
            return best
    return hard_cut(start, limit, unbreakable)


def places(
    pattern: re.Pattern[str], content: str, start: int, limit: int, unbreakable: "UnbreakableSpans"
) -> list[int]:
    """Return the matches of the pattern after `start`, up to `limit`."""
    # One character more, because patterns may look ahead. They see the text before `start`.
    found = [match.start() for match in pattern.finditer(content, start, min(limit + 1, len(content)))]
    return [place for place in found if start < place <= limit and not unbreakable.around(place)]


def is_sure(content: str, place: int, items: Items, running: frozenset[str]) -> bool:
    """Return whether the text after a cut begins with a heading, an item, or a row of a table."""
    for match in re.finditer(r"[^\n]+", content[place : place + AHEAD]):
        line = match.group()
        if line.startswith(("#", "<tr", "<table")) or items.begins(place + match.start()):
            return True
        if not line.strip() or is_running(line, running):
            continue
        return "|" in line and bool(cells(line)[0])
    return False


def hard_cut(start: int, limit: int, unbreakable: "UnbreakableSpans") -> int:
    """Return a cut without a suitable boundary: before an unbreakable span, or at the limit."""
    around = unbreakable.around(limit)
    return around[0] if around and around[0] > start else limit


class UnbreakableSpans:
    """Spans that must not be cut, unless they are longer than a piece."""

    def __init__(self, content: str, *, size: int) -> None:
        whole = ((match.start(), match.end()) for match in WHOLE.finditer(content))
        found = [*whole, *markdown_rows(content, size=size), *html_rows(content)]
        fitting = sorted((start, end) for start, end in found if end - start <= size)
        self.spans = [(start, end) for start, end in merge_overlapping(fitting) if end - start <= size]

    def around(self, place: int) -> tuple[int, int] | None:
        """Return the span that a cut at this place would break."""
        index = bisect_right(self.spans, place, key=lambda span: span[0]) - 1
        span = self.spans[index] if index >= 0 else (0, 0)
        return span if span[0] < place < span[1] else None


def markdown_rows(content: str, *, size: int) -> Iterator[tuple[int, int]]:
    """Yield the rows of Markdown tables, with the rows that continue their cells, which have an empty first cell."""
    for run in RUN.finditer(content):
        rows: list[tuple[int, int, bool]] = []
        start = run.start()
        for line in run.group().splitlines(keepends=True):
            rows.append((start, start + len(line), not cells(line)[0]))
            start += len(line)
        has_continuations = 2 * sum(is_empty for _, _, is_empty in rows) < len(rows)
        first = run.start()
        for start, end, is_empty in rows:
            first = first if is_empty and has_continuations and end - first <= size else start
            yield first, end


def merge_overlapping(spans: list[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    """Merge overlapping spans."""
    current: tuple[int, int] | None = None
    for start, end in spans:
        if current and start < current[1]:
            current = (current[0], max(current[1], end))
            continue
        if current:
            yield current
        current = (start, end)
    if current:
        yield current
