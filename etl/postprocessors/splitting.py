"""Splitting of a long text into pieces: between pages, before headings, between paragraphs, rows, or sentences.

Each character is in exactly one piece, in order; pieces of white space are dropped. A row of a table is split only if
it is longer than a piece. Page markers and headings stay with the text after them.
"""

import re
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass

from etl.core.errors import DocumentTooLong
from etl.postprocessors.document_text import DocumentText
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
# A line with a `|` counts as a row. A marker or a heading extends to the first character after it.
WHOLE = re.compile(rf"^{PAGE_MARKER}\s*(?:{HEADING}\s*)?|^{HEADING}\s*|^[^\n|]*\|[^\n]*\n?", re.MULTILINE)
UNDERLINE = re.compile(r"[ \t]*\|?[ \t]*:?-+:?[ \t]*(?:\|[ \t:-]*)*")  # below the header of a Markdown table
MAX_LEAD = 1_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """`text` is `content[start:end]`. `lead`: the header of the table in which the piece starts, or ""."""

    number: int
    start: int
    end: int
    text: str
    lead: str
    first_page: int
    last_page: int

    @property
    def pages(self) -> str:
        return pages_named(self.first_page, self.last_page)

    @property
    def shown(self) -> str:
        """The piece as the model gets it: with the page marker and the table's header first."""
        marker = page_marker(self.first_page)
        head = (
            f"[a table goes on; for reading only, its first row:]\n{self.lead}\n[here it goes on:]\n"
            if self.lead
            else ""
        )
        return head + self.text if re.match(PAGE_MARKER, self.text) else f"{marker}\n\n{head}{self.text}"

    def about(self, total: int) -> str:
        """Return a description for the prompt."""
        return f"piece {self.number} of {total} of the text of a document, {self.pages}"


def pages_named(first: int, last: int) -> str:
    return f"page {first}" if first == last else f"pages {first} to {last}"


def split(text: DocumentText, *, size: int, most: int) -> list[Piece]:
    """Return pieces of at most `size` characters. Raises DocumentTooLong if there are more than `most`."""
    pieces: list[Piece] = []
    for start, end in bounds(text.content, size=size):
        if not text.content[start:end].strip():
            continue
        if len(pieces) == most:
            raise DocumentTooLong(f"The document is longer than {most} pieces of {size} characters.")
        pieces.append(build_piece(text, start, end, number=len(pieces) + 1))
    return pieces


def build_piece(text: DocumentText, start: int, end: int, *, number: int) -> Piece:
    last = max(start, start + len(text.content[start:end].rstrip()) - 1)
    return Piece(
        number=number,
        start=start,
        end=end,
        text=text.content[start:end],
        lead=lead(text.content, start),
        first_page=page_from(text, start),
        last_page=text.page_at(last),
    )


def page_from(text: DocumentText, start: int) -> int:
    """Return the page on which a piece starts: the next page if it starts with a marker."""
    after = bisect_right(text.pages, start, key=lambda span: span.end)
    return text.pages[min(after, len(text.pages) - 1)].number


# ---- Cuts -----------------------------------------------------------------------------------------------------------
def bounds(content: str, *, size: int) -> Iterator[tuple[int, int]]:
    unbreakable = UnbreakableSpans(content, size=size)
    start = 0
    while len(content) - start > size:
        end = cut(content, start, start + size, unbreakable)
        yield start, end
        start = end
    yield start, len(content)


def cut(content: str, start: int, limit: int, unbreakable: "UnbreakableSpans") -> int:
    """Return the end of the piece that starts at `start`, at most `limit`."""
    size = limit - start
    last = [last_cut(pattern, content, start, limit, unbreakable) for pattern, _fill in CUTS]
    for (_pattern, fill), position in zip(CUTS, last, strict=True):
        if position - start >= fill * size:
            return position
    best = max(last)
    return best if best > start else hard_cut(start, limit, unbreakable)


def last_cut(pattern: re.Pattern[str], content: str, start: int, limit: int, unbreakable: "UnbreakableSpans") -> int:
    """Return the last match of the pattern after `start`, up to `limit`; or `start`."""
    # One character more, because patterns may look ahead. They see the text before `start`.
    found = [match.start() for match in pattern.finditer(content, start, min(limit + 1, len(content)))]
    return next((place for place in reversed(found) if start < place <= limit and not unbreakable.around(place)), start)


def hard_cut(start: int, limit: int, unbreakable: "UnbreakableSpans") -> int:
    """Return a cut without a suitable boundary: before an unbreakable span, or at the limit."""
    around = unbreakable.around(limit)
    return around[0] if around and around[0] > start else limit


class UnbreakableSpans:
    """Spans that must not be cut, unless they are longer than a piece."""

    def __init__(self, content: str, *, size: int) -> None:
        found = [*((match.start(), match.end()) for match in WHOLE.finditer(content)), *html_rows(content)]
        fitting = sorted((start, end) for start, end in found if end - start <= size)
        self.spans = [(start, end) for start, end in merge_overlapping(fitting) if end - start <= size]

    def around(self, place: int) -> tuple[int, int] | None:
        """Return the span that a cut at this place would break."""
        index = bisect_right(self.spans, place, key=lambda span: span[0]) - 1
        span = self.spans[index] if index >= 0 else (0, 0)
        return span if span[0] < place < span[1] else None


def html_rows(content: str) -> Iterator[tuple[int, int]]:
    folded = content.lower() if content.isascii() else ascii_lower(content)
    end = 0
    while (start := folded.find("<tr", end)) >= 0 and (close := folded.find("</tr>", start)) >= 0:
        end = close + len("</tr>")
        yield start, end


def ascii_lower(content: str) -> str:
    """Lower-case without changing positions: `str.lower` turns `İ` into two characters."""
    return content.translate(LOWER)


LOWER = {code: code + 32 for code in range(ord("A"), ord("Z") + 1)}


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


# ---- Continued tables -----------------------------------------------------------------------------------------------
def lead(content: str, start: int) -> str:
    """Return the header of the table that is cut at `start`, or "". Without it, rows are numbers without names."""
    found = html_head(content, start) or markdown_head(content, start)
    return found if len(found) <= MAX_LEAD else ""


def html_head(content: str, start: int) -> str:
    table = content.rfind("<table", 0, start)
    if table < 0 or content.find("</table", table, start) >= 0:
        return ""
    row = content.find("<tr", table, start)
    end = content.find("</tr>", row, start) if row >= 0 else -1
    return content[row : end + len("</tr>")] if end >= 0 else ""


def markdown_head(content: str, start: int) -> str:
    if "|" not in content[start:].partition("\n")[0] or content[start - 1 : start] != "\n":
        return ""
    first = second = ""
    position = start
    while position > 0:
        line_start = content.rfind("\n", 0, position - 1) + 1
        line = content[line_start : position - 1]
        if "|" not in line:
            break
        first, second, position = line, first, line_start
    return f"{first}\n{second}" if first and UNDERLINE.fullmatch(second) else ""
