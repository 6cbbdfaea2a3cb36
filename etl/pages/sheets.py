"""Pages of a document's Markdown, a few at a time, without reading the whole document.

A stored Markdown file never changes: its key contains the hash of its content. So each process indexes the byte offsets
of its pages once, and then reads only byte ranges.
"""

import re
from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import lru_cache
from itertools import chain, pairwise

from django.utils.safestring import SafeString

from config.platform import storage
from etl.ingest.acceptance import translate_storage_errors
from etl.pages.rendering import MAX_CHARACTERS, render
from etl.pipeline import actions
from etl.providers.base import PAGE_MARKER

MARKER_LINE = re.compile(rb"(?:^|\n)" + PAGE_MARKER.encode() + rb"[ \t]*(?=\r?\n)")
MARKER_BYTES = 64
# Limits of a response. A page that is longer than PIECE_BYTES is split, and shown as plain text.
PIECE_BYTES = MAX_CHARACTERS
RESPONSE_BYTES, RESPONSE_PIECES = 32_000, 20
INDEXES = 256  # cached per process; an index of 100 pages takes about 10 KB
NO_PAGE = 0  # text before the first marker, which third-party providers may return


@dataclass(frozen=True, slots=True)
class SheetSpan:
    """A piece: a page, or a part of a long page. Bytes `start` to `end` of the Markdown, without its marker."""

    page: int
    start: int
    end: int
    part: int = 1
    parts: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Sheet:
    """A piece with its content. `html` is None if it is shown as plain text."""

    piece: SheetSpan
    text: str
    html: SafeString | None


@dataclass(frozen=True, slots=True, kw_only=True)
class SheetList:
    """Consecutive sheets. `before`, `after`: indexes of the next pieces in both directions, None at the ends."""

    sheets: list[Sheet]
    before: int | None
    after: int | None
    pages: int


def load(key: str, *, at: int = 0, page: int | None = None, before: int | None = None, raw: bool = False) -> SheetList:
    """Return the sheets from the piece `at` on, from a page on, or directly before the piece `before`.

    An index out of range returns the nearest sheets. Raises OcrResultMissing and StorageUnavailable.
    """
    pieces = index(key)
    first = place_of(pieces, page) if page is not None else at
    if before is not None:
        first = backwards(pieces, min(max(before, 0), len(pieces)))
    first = min(max(first, 0), max(len(pieces) - 1, 0))
    last = forwards(pieces, first, until=before)
    return SheetList(
        sheets=[sheet(piece, text, raw=raw) for piece, text in texts(key, pieces[first:last])],
        before=first or None,
        after=last if last < len(pieces) else None,
        pages=len({piece.page for piece in pieces}),
    )


def sheet(piece: SheetSpan, text: str, *, raw: bool) -> Sheet:
    text = text.strip("\r\n")
    return Sheet(piece=piece, text=text, html=None if raw or piece.parts > 1 else render(text))


# ---- Selection ------------------------------------------------------------------------------------------------------
def place_of(pieces: tuple[SheetSpan, ...], page: int) -> int:
    """Return the index of the first piece of a page or, if there is no such page, of the next one."""
    return next((place for place, piece in enumerate(pieces) if piece.page >= page), len(pieces) - 1)


def forwards(pieces: tuple[SheetSpan, ...], first: int, *, until: int | None) -> int:
    """Return the end index of a response that starts at `first` and has at least one piece."""
    last, size = first, 0
    end = min(len(pieces), first + RESPONSE_PIECES, len(pieces) if until is None else max(until, first + 1))
    while last < end and (last == first or size + length(pieces[last]) <= RESPONSE_BYTES):
        size += length(pieces[last])
        last += 1
    return last


def backwards(pieces: tuple[SheetSpan, ...], end: int) -> int:
    """Return the first index of a response that ends before `end`."""
    first, size = end, 0
    while first > 0 and end - first < RESPONSE_PIECES:
        size += length(pieces[first - 1])
        if size > RESPONSE_BYTES and first < end:
            break
        first -= 1
    return first


def length(piece: SheetSpan) -> int:
    return piece.end - piece.start


# ---- Index ----------------------------------------------------------------------------------------------------------
@lru_cache(maxsize=INDEXES)
def index(key: str) -> tuple[SheetSpan, ...]:
    """Return the pieces of a Markdown file. Raises OcrResultMissing and StorageUnavailable."""
    with fetching():
        return tuple(cut(marks(storage.read(key))))


def marks(blocks: Iterable[bytes]) -> list[tuple[int, int, int]]:
    """Return `(page, start of the marker, start of the text)` for each page, and a last one for the end of the file."""
    found: dict[int, tuple[int, int]] = {0: (NO_PAGE, 0)}
    position, tail = 0, b""
    for block in chain(blocks, [b"\n"]):  # the last line may lack a line break
        text, base = tail + block, position - len(tail)
        for match in MARKER_LINE.finditer(text):
            if match.start() or not base:  # `^` must match only at the start of the document
                found[base + match.start()] = (int(match["number"]), base + match.end())
        position += len(block)
        tail = text[-MARKER_BYTES:]
    return [
        *((page, start, text_at) for start, (page, text_at) in sorted(found.items())),
        (NO_PAGE, position, position),
    ]


def cut(found: list[tuple[int, int, int]]) -> Iterator[SheetSpan]:
    for (page, _, start), (_, end, _) in pairwise(found):
        if page == NO_PAGE and start == end:
            continue
        parts = max(1, -(-(end - start) // PIECE_BYTES))
        for part in range(parts):
            at = start + part * PIECE_BYTES
            yield SheetSpan(page, at, min(at + PIECE_BYTES, end), part + 1, parts)


# ---- Reading --------------------------------------------------------------------------------------------------------
@contextmanager
def fetching() -> Iterator[None]:
    """Translate storage errors into OcrResultMissing and StorageUnavailable."""
    with translate_storage_errors():
        try:
            yield
        except storage.Missing:
            raise actions.OcrResultMissing from None


def texts(key: str, pieces: tuple[SheetSpan, ...]) -> Iterator[tuple[SheetSpan, str]]:
    if not pieces:
        return
    start, end = pieces[0].start, pieces[-1].end + 3  # up to 3 more bytes of the last character
    content = span(key, start, end)
    for piece in pieces:
        yield piece, characters(content[piece.start - start :], length(piece), is_first=piece.part == 1)


def span(key: str, start: int, end: int) -> bytes:
    """Return a byte range of an object."""
    content = bytearray()
    with fetching(), closing(storage.read(key, start=start)) as blocks:
        while len(content) < end - start and (block := next(blocks, b"")):
            content += block
    return bytes(content[: end - start])


def characters(content: bytes, size: int, *, is_first: bool) -> str:
    """Return the characters that start in the first `size` bytes. A piece may start or end inside a character."""
    start, end = 0, min(size, len(content))
    while not is_first and start < end and is_continuation_byte(content[start]):
        start += 1
    while end < len(content) and is_continuation_byte(content[end]):
        end += 1
    return content[start:end].decode(errors="replace")


def is_continuation_byte(byte: int) -> bool:
    return byte & 0b1100_0000 == 0b1000_0000  # noqa: PLR2004 - UTF-8, RFC 3629
