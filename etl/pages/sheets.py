"""A document's Markdown, a few pages at a time: a document of 300 pages is not read whole to show three.

A stored Markdown never changes, as its key is named by its content. So where its pages begin is found once in each
process, and pages are then read by their bytes.
"""

import re
from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import lru_cache
from itertools import chain, pairwise

from django.utils.safestring import SafeString

from config.platform import storage
from etl.ingest.acceptance import storing
from etl.pages.rendering import MOST_CHARACTERS, is_plain, render
from etl.pipeline import actions
from etl.providers.base import PAGE_MARKER

MARKER_LINE = re.compile(rb"(?:^|\n)" + PAGE_MARKER.encode() + rb"[ \t]*(?=\r?\n)")
MARKER_BYTES = 64
# Of one answer. A page that is longer than a piece is shown in pieces, as text.
PIECE_BYTES = MOST_CHARACTERS
ANSWER_BYTES, ANSWER_PIECES = 32_000, 20
INDEXES = 256  # of documents, in each process: some 10 KB for 100 pages
NO_PAGE = 0  # what stands before the first marker, in Markdown of somebody else's provider


@dataclass(frozen=True, slots=True)
class Piece:
    """A page, or a part of one that is too long: bytes `start` to `end` of the Markdown, its marker not among them."""

    page: int
    start: int
    end: int
    part: int = 1
    parts: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Sheet:
    """A piece as it is shown. `html` is None where it is shown as text."""

    piece: Piece
    text: str
    html: SafeString | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Stack:
    """Some sheets, one after another, and where those before and after them begin; None at the ends."""

    sheets: list[Sheet]
    before: int | None
    after: int | None
    pages: int


def stack(key: str, *, at: int = 0, page: int | None = None, before: int | None = None, raw: bool = False) -> Stack:
    """Return the sheets from the piece `at` on, or from a page on, or those right before a piece.

    Raises ArtefactMissing and StorageUnavailable. What is out of range shows the nearest.
    """
    pieces = index(key)
    first = place_of(pieces, page) if page is not None else at
    if before is not None:
        first = backwards(pieces, min(max(before, 0), len(pieces)))
    first = min(max(first, 0), max(len(pieces) - 1, 0))
    last = forwards(pieces, first, until=before)
    return Stack(
        sheets=[sheet(piece, text, raw=raw) for piece, text in texts(key, pieces[first:last])],
        before=first or None,
        after=last if last < len(pieces) else None,
        pages=len({piece.page for piece in pieces}),
    )


def sheet(piece: Piece, text: str, *, raw: bool) -> Sheet:
    text = text.strip("\r\n")
    is_text = raw or piece.parts > 1 or is_plain(text)
    return Sheet(piece=piece, text=text, html=None if is_text else render(text))


# ---- Which pieces ---------------------------------------------------------------------------------------------------
def place_of(pieces: tuple[Piece, ...], page: int) -> int:
    """Return where a page begins, or the first one after it."""
    return next((place for place, piece in enumerate(pieces) if piece.page >= page), len(pieces) - 1)


def forwards(pieces: tuple[Piece, ...], first: int, *, until: int | None) -> int:
    """Return where an answer that begins at `first` ends: with so many bytes, one piece at least."""
    last, size = first, 0
    end = min(len(pieces), first + ANSWER_PIECES, len(pieces) if until is None else max(until, first + 1))
    while last < end and (last == first or size + length(pieces[last]) <= ANSWER_BYTES):
        size += length(pieces[last])
        last += 1
    return last


def backwards(pieces: tuple[Piece, ...], end: int) -> int:
    first, size = end, 0
    while first > 0 and end - first < ANSWER_PIECES:
        size += length(pieces[first - 1])
        if size > ANSWER_BYTES and first < end:
            break
        first -= 1
    return first


def length(piece: Piece) -> int:
    return piece.end - piece.start


# ---- Where pages begin ----------------------------------------------------------------------------------------------
@lru_cache(maxsize=INDEXES)
def index(key: str) -> tuple[Piece, ...]:
    """Return the pieces of a Markdown. Raises ArtefactMissing and StorageUnavailable."""
    with fetching():
        return tuple(cut(marks(storage.read(key))))


def marks(blocks: Iterable[bytes]) -> list[tuple[int, int, int]]:
    """Return `(page, where its marker begins, where its text begins)`, and the end as a page of its own."""
    found: dict[int, tuple[int, int]] = {0: (NO_PAGE, 0)}
    position, tail = 0, b""
    for block in chain(blocks, [b"\n"]):  # the last line may have no end
        text, base = tail + block, position - len(tail)
        for match in MARKER_LINE.finditer(text):
            if match.start() or not base:  # `^` is the beginning of the document alone
                found[base + match.start()] = (int(match["number"]), base + match.end())
        position += len(block)
        tail = text[-MARKER_BYTES:]
    return [
        *((page, start, text_at) for start, (page, text_at) in sorted(found.items())),
        (NO_PAGE, position, position),
    ]


def cut(found: list[tuple[int, int, int]]) -> Iterator[Piece]:
    for (page, _, start), (_, end, _) in pairwise(found):
        if page == NO_PAGE and start == end:
            continue
        parts = max(1, -(-(end - start) // PIECE_BYTES))
        for part in range(parts):
            at = start + part * PIECE_BYTES
            yield Piece(page, at, min(at + PIECE_BYTES, end), part + 1, parts)


# ---- Reading --------------------------------------------------------------------------------------------------------
@contextmanager
def fetching() -> Iterator[None]:
    """Within it ArtefactMissing is raised for what is gone, and StorageUnavailable for all else."""
    with storing():
        try:
            yield
        except storage.Missing:
            raise actions.OcrResultMissing from None


def texts(key: str, pieces: tuple[Piece, ...]) -> Iterator[tuple[Piece, str]]:
    if not pieces:
        return
    start, end = pieces[0].start, pieces[-1].end + 3  # the rest of a character that begins in the last piece
    content = span(key, start, end)
    for piece in pieces:
        yield piece, characters(content[piece.start - start :], length(piece), is_first=piece.part == 1)


def span(key: str, start: int, end: int) -> bytes:
    """Return these bytes of an object, without reading on to its end."""
    content = bytearray()
    with fetching(), closing(storage.read(key, start=start)) as blocks:
        while len(content) < end - start and (block := next(blocks, b"")):
            content += block
    return bytes(content[: end - start])


def characters(content: bytes, size: int, *, is_first: bool) -> str:
    """Return the characters that begin in the first `size` bytes: pieces of long pages are cut anywhere."""
    start, end = 0, min(size, len(content))
    while not is_first and start < end and is_inside(content[start]):
        start += 1
    while end < len(content) and is_inside(content[end]):
        end += 1
    return content[start:end].decode(errors="replace")


def is_inside(byte: int) -> bool:
    """Whether a byte of UTF-8 is one that a character goes on with."""
    return byte & 0b1100_0000 == 0b1000_0000  # noqa: PLR2004 - RFC 3629
