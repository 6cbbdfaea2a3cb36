"""Results of a server, from an archive or JSON, in one shape for all protocols.

3.x and the hosted service return one list of blocks with page numbers (`content_list`), 4.0 returns a list of pages
(`structured_content`). The list of all pages, including blank ones, is in the latter, or in `middle_json`.
"""

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, BinaryIO

import orjson

from etl.providers.mineru import archive
from etl.providers.mineru.archive import Archive
from etl.providers.mineru.client import InvalidOcrResponse, UnsafeResult, parse_object, short_text, within

ZIP = b"PK"
MARKDOWN = ("full.md", ".md")
ENDINGS = {
    "structured_content": ("structured_content.json",),
    "content_list": ("content_list.json",),
    "middle_json": ("layout.json", "middle.json", "middle_json.json"),
}
# JSON about pages, 32 KB for each of 500: empty objects are many times as large in memory as in JSON.
MAX_JSON_BYTES = 16 * 1024**2
MAX_PAGE = 10_000  # no real document; a larger number would only fill memory

Block = dict[str, Any]


@dataclass(slots=True, kw_only=True)
class ParsedResult:
    """A server's result. `blocks` of each page by its number from 0; None if the server does not report pages. All
    processed pages are keys, also blank ones.
    """

    markdown: str
    blocks: dict[int, list[Block]] | None = None
    pages: int = 0  # of the document, as the server counts them; 0 if unknown
    version: str = ""
    recognized: bool | None = None  # whether characters were recognized, or the document's own text was read
    backend: str = ""


def read(file: BinaryIO) -> ParsedResult:
    """Read a result. Raises InvalidOcrResponse and UnsafeResult."""
    file.seek(0)
    if file.read(len(ZIP)) == ZIP:
        return of_archive(file)
    file.seek(0)
    body = file.read(archive.MAX_MEMBER_BYTES + 1)
    if len(body) > archive.MAX_MEMBER_BYTES:
        raise UnsafeResult
    return of_json(parse_object(body))


# ---- Archives -------------------------------------------------------------------------------------------------------
def of_archive(file: BinaryIO) -> ParsedResult:
    try:
        with Archive(file) as opened:
            opened.check_members()
            markdown = opened.find(*MARKDOWN)
            if markdown is None:
                raise InvalidOcrResponse
            text = opened.read(markdown).decode(errors="replace")
            return found(text, lambda name: loaded(opened, ENDINGS[name]))
    except archive.DamagedArchive:
        raise InvalidOcrResponse from None
    except archive.UnsafeArchive:
        raise UnsafeResult from None


def loaded(opened: Archive, endings: tuple[str, ...]) -> Any:
    """Return the JSON of a member, or None if it is unreadable: the Markdown has all text anyway."""
    member = opened.find(*endings)
    if member is None or member.file_size > MAX_JSON_BYTES:
        return None
    return lenient(opened.read(member))


def lenient(text: Any) -> Any:
    try:
        return orjson.loads(text) if isinstance(text, bytes | str) else text
    except orjson.JSONDecodeError:
        return None


# ---- JSON -----------------------------------------------------------------------------------------------------------
def of_json(body: dict[str, Any]) -> ParsedResult:
    """Read 4.0's `files[0].content`, or 3.x's `results`, by the name of our only file."""
    files, results = body.get("files"), body.get("results")
    content = files[0].get("content") if isinstance(files, list) and files and isinstance(files[0], dict) else None
    if isinstance(results, dict) and len(results) == 1:
        content = next(iter(results.values()))
    if not isinstance(content, dict):
        raise InvalidOcrResponse
    markdown = content.get("markdown", content.get("md_content"))
    if not isinstance(markdown, str):
        raise InvalidOcrResponse
    outcome = found(markdown, lambda name: lenient(content.get(name)))
    outcome.version = outcome.version or short_text(body, "version")
    return outcome


# ---- Pages ----------------------------------------------------------------------------------------------------------
def found(markdown: str, load: Callable[[str], Any]) -> ParsedResult:
    """Return the first available source of pages. `structured_content` is complete, so no other is loaded beside it."""
    outcome = ParsedResult(markdown=markdown)
    structured = load("structured_content")
    if isinstance(structured, dict):
        outcome.blocks = by_page(structured.get("pages"))
        outcome.pages = number(structured, "metadata", "document", "page_count")
        outcome.version = short_text(structured, "metadata", "producer", "version")
        mode = short_text(structured, "extensions", "mineru", "parse_mode")
        outcome.recognized = {"ocr": True, "txt": False}.get(mode)
        return outcome
    listed = load("content_list")
    if isinstance(listed, list):
        outcome.blocks = by_item(listed)
    middle = load("middle_json")
    if isinstance(middle, dict):
        add_middle(outcome, middle)
    return outcome


def by_page(pages: Any) -> dict[int, list[Block]] | None:
    """Parse `[{"page_idx": 0, "blocks": […]}]`. None if it has another shape."""
    blocks: dict[int, list[Block]] = {}
    for page in pages if isinstance(pages, list) else []:
        place = index(page)
        if place is None or not isinstance(page.get("blocks"), list):
            return None
        blocks.setdefault(place, []).extend(block for block in page["blocks"] if isinstance(block, dict))
    return blocks or None


def by_item(items: list[Any]) -> dict[int, list[Block]] | None:
    """Parse `[{"type": "text", "page_idx": 0, …}]`. None if it has another shape."""
    blocks: dict[int, list[Block]] = defaultdict(list)
    for item in items:
        place = index(item)
        if place is None:
            return None
        blocks[place].append(item)
    return dict(blocks) or None


def add_middle(outcome: ParsedResult, middle: dict[str, Any]) -> None:
    """Add facts from `middle_json`: pages without blocks, the version, and whether text was recognized."""
    outcome.version = short_text(middle, "_version_name")
    outcome.backend = short_text(middle, "_backend")
    if outcome.backend == "vlm" or isinstance(middle.get("_ocr_enable"), bool):
        outcome.recognized = middle.get("_ocr_enable") is not False
    pages = middle.get("pdf_info")
    for place in map(index, pages if isinstance(pages, list) and outcome.blocks is not None else []):
        if place is not None and outcome.blocks is not None:
            outcome.blocks.setdefault(place, [])


def index(page: Any) -> int | None:
    place = page.get("page_idx") if isinstance(page, dict) else None
    return place if isinstance(place, int) and not isinstance(place, bool) and 0 <= place < MAX_PAGE else None


def number(body: Any, *path: str) -> int:
    value = within(body, *path)
    return value if isinstance(value, int) and 0 < value <= MAX_PAGE else 0
