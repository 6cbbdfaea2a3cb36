"""Splitting of a long text into pieces: between pages, before headings, between paragraphs, items, rows, or sentences.

Each character is in exactly one piece, in order. Pieces that consist of white space are dropped. A table row or
multi-line item is split only if it is longer than a piece. Page markers and headings stay with the text after them.

With each piece, a model is shown context that is marked as for reading only. It consists of the headings above the
piece, the head of a table that continues in it with the current group, and a few lines before or after the piece if the
cut may be inside an item. An item belongs to the piece in which it starts.
"""

import re
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass

from etl.core.errors import DocumentTooLong
from etl.postprocessors.borders import Items, find_items, is_running, running_heads
from etl.postprocessors.document_text import DocumentText
from etl.postprocessors.groups import HeadingsAndTables
from etl.postprocessors.tables import RUN, cells, html_rows
from etl.providers.base import PAGE_MARKER, page_marker

HEADING = r"#{1,6}[ \t][^\n]*"
# Patterns of positions where a text may be cut, the best first, with the minimum fill of a piece that ends there.
CUTS = (
    (re.compile(rf"^{PAGE_MARKER}$", re.MULTILINE), 0.5),
    (re.compile(r"^#{1,6}[ \t]", re.MULTILINE), 0.5),
    (re.compile(r"(?<=\n\n)(?=\S)"), 0.25),
    (re.compile(r"(?<=\n)(?=.)|(?<=</tr>)", re.IGNORECASE), 0.25),
    (re.compile(r"(?<=[.!?;][ \t])|(?<=[。！？])"), 0.25),
    (re.compile(r"(?<=[ \t])(?=\S)"), 0.25),
)
# The unbreakable span of a marker or a heading extends to the text after it.
WHOLE = re.compile(rf"^{PAGE_MARKER}\s*(?:{HEADING}\s*)?|^{HEADING}\s*", re.MULTILINE)
LOOKAHEAD = 2_000  # characters after a piece that are searched for items
MAX_CONTEXT = 500  # characters on each side of a piece
MAX_PAGES_NAMED = 20
TABLE_CONTINUES = "[a table goes on; its head, for reading only:]"
UNDER_HEADINGS = "[the headings above, for reading only:]"
READING_BEFORE = "[for reading only, the end of the piece before this one:]"
PIECE_BEGINS = "[this piece begins here:]"
PIECE_ENDS = "[this piece ends here; for reading only, the beginning of the next one:]"


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """A piece of a text. `text` is `content[start:end]`.

    `headings`: the headings above it. `lead`: the table head and groups that its first table continues with, or "".
    `lead_at`: the position in `text` of the rows that `lead` belongs to. `before`, `after`: the lines around the piece
    if an item may continue there, or "".
    """

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
        return page_range_text(self.first_page, self.last_page)

    @property
    def shown(self) -> str:
        """The piece as shown to the model, with its page marker and its context."""
        lead = f"{TABLE_CONTINUES}\n{self.lead}\n" if self.lead else ""
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
class Cut:
    """A position where the text is cut. `is_between_items`: certainly not inside an item."""

    place: int
    is_between_items: bool = True


def page_range_text(first: int, last: int) -> str:
    return f"page {first}" if first == last else f"pages {first} to {last}"


def page_list_text(numbers: list[int]) -> str:
    shown = ", ".join(map(str, numbers[:MAX_PAGES_NAMED]))
    more = len(numbers) - MAX_PAGES_NAMED
    return f"{'page' if len(numbers) == 1 else 'pages'} {shown}" + (f", and {more} more" if more > 0 else "")


def split(text: DocumentText, *, size: int, max_pieces: int) -> list[Piece]:
    """Return pieces of at most `size` characters. Raises DocumentTooLong if there are more than `max_pieces`."""
    pieces: list[Piece] = []
    above = HeadingsAndTables(text.content)
    start = Cut(0)
    for end in piece_ends(text, size=size):
        if text.content[start.place : end.place].strip():
            if len(pieces) == max_pieces:
                raise DocumentTooLong(f"The document is longer than {max_pieces} pieces of {size} characters.")
            pieces.append(build_piece(text, start, end, above, size=size, number=len(pieces) + 1))
        start = end
    return pieces


def build_piece(text: DocumentText, start: Cut, end: Cut, above: HeadingsAndTables, *, size: int, number: int) -> Piece:
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
        before="" if start.is_between_items else lines_before(content, first, size=size),
        after="" if end.is_between_items else lines_after(content, limit, size=size),
        first_page=page_from(text, first),
        last_page=text.page_at(last),
    )


def beginning(content: str, start: int, end: int) -> int:
    """Return the position of the first text after a page marker, if there is one."""
    found = re.compile(rf"(?:{PAGE_MARKER})?\s*").match(content, start, end)
    return found.end() if found else start


def page_from(text: DocumentText, start: int) -> int:
    """Return the page on which a piece starts: the next page if it starts with a marker."""
    after = bisect_right(text.pages, start, key=lambda span: span.end)
    return text.pages[min(after, len(text.pages) - 1)].number


def lines_before(content: str, place: int, *, size: int) -> str:
    """Return whole lines before a position, or parts of a line if there is no line break."""
    begin = max(0, place - min(MAX_CONTEXT, size // 8))
    _, newline, lines = content[begin:place].partition("\n")
    return (lines if begin and newline and lines.strip() else content[begin:place]).strip()


def lines_after(content: str, place: int, *, size: int) -> str:
    found = content[place : place + min(MAX_CONTEXT, size // 8)]
    lines = found.rpartition("\n")[0]
    return (lines if lines.strip() else found).strip()


# ---- Cuts -----------------------------------------------------------------------------------------------------------
def piece_ends(text: DocumentText, *, size: int) -> Iterator[Cut]:
    """Yield the cut at the end of each piece."""
    content = text.content
    unbreakable = UnbreakableSpans(content, size=size)
    running = running_heads(content, [(span.start, span.end) for span in text.pages])
    start = 0
    while len(content) - start > size:
        items = find_items(content, start, min(start + size + LOOKAHEAD, len(content)), running)
        start = find_cut(content, start, start + size, unbreakable, items)
        yield Cut(start, is_between_items(content, start, items, running))
    yield Cut(len(content))


def find_cut(content: str, start: int, limit: int, unbreakable: "UnbreakableSpans", items: Items) -> int:
    """Return the end of the piece that starts at `start`, at most `limit`. An item is cut only if it is too long."""
    size = limit - start
    whole = [places(pattern, content, start, limit, unbreakable) for pattern, _fill in CUTS]
    between_items = [[place for place in found if not items.is_inside_item(place)] for found in whole]
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
    # Search one character further, because patterns may look ahead. They also look behind, at the text before `start`.
    found = [match.start() for match in pattern.finditer(content, start, min(limit + 1, len(content)))]
    return [place for place in found if start < place <= limit and not unbreakable.around(place)]


def is_between_items(content: str, place: int, items: Items, running: frozenset[str]) -> bool:
    """Return whether the text after a cut starts with a heading, an item, or a table row."""
    for match in re.finditer(r"[^\n]+", content[place : place + LOOKAHEAD]):
        line = match.group()
        if line.startswith(("#", "<tr", "<table")) or items.is_item_start(place + match.start()):
            return True
        if not line.strip() or is_running(line, running):
            continue
        return "|" in line and bool(cells(line)[0])
    return False


def hard_cut(start: int, limit: int, unbreakable: "UnbreakableSpans") -> int:
    """Return the position of a cut if no boundary is suitable: before an unbreakable span, or at the limit."""
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
        """Return the span that a cut at this position would break, or None."""
        index = bisect_right(self.spans, place, key=lambda span: span[0]) - 1
        span = self.spans[index] if index >= 0 else (0, 0)
        return span if span[0] < place < span[1] else None


def markdown_rows(content: str, *, size: int) -> Iterator[tuple[int, int]]:
    """Yield the rows of Markdown tables. A row with an empty first cell usually continues the cells of the row before
    it, so it is yielded together with that row."""
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
