"""Parser of server results, as archives or JSON, into the same format for all protocols.

3.x and the hosted service return a list of blocks with page numbers (`content_list`). 4.0 returns a list of pages
(`structured_content`). Only `structured_content` and `middle_json` list all pages, including blank ones.
"""

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, BinaryIO

import orjson

from etl.providers.mineru import archive
from etl.providers.mineru.archive import Archive
from etl.providers.mineru.client import InvalidOcrResponse, UnsafeResult, parse_object, short_text, value_at

ZIP = b"PK"
MARKDOWN = ("full.md", ".md")
ENDINGS = {
    "structured_content": ("structured_content.json",),
    "content_list": ("content_list.json",),
    "middle_json": ("layout.json", "middle.json", "middle_json.json"),
}
# Maximum size of JSON about pages: 32 KB for each of 500. Empty objects take many times as much memory as JSON.
MAX_JSON_BYTES = 16 * 1024**2
MAX_PAGE = 10_000  # larger than any real document; limits memory

Block = dict[str, Any]


@dataclass(slots=True, kw_only=True)
class ParsedResult:
    """A server's result.

    `blocks`: the blocks of each processed page by page index from 0, including blank pages. None if the server does not
    report pages.
    """

    markdown: str
    blocks: dict[int, list[Block]] | None = None
    pages: int = 0  # of the document according to the server; 0 if unknown
    version: str = ""
    recognized: bool | None = None  # whether OCR was used instead of the document's text layer
    backend: str = ""


def read(file: BinaryIO) -> ParsedResult:
    """Read a result. Raises InvalidOcrResponse and UnsafeResult."""
    file.seek(0)
    if file.read(len(ZIP)) == ZIP:
        return read_archive(file)
    file.seek(0)
    body = file.read(archive.MAX_MEMBER_BYTES + 1)
    if len(body) > archive.MAX_MEMBER_BYTES:
        raise UnsafeResult
    return read_json(parse_object(body))


# ---- Archives -------------------------------------------------------------------------------------------------------
def read_archive(file: BinaryIO) -> ParsedResult:
    try:
        with Archive(file) as opened:
            opened.check_members()
            markdown = opened.find(*MARKDOWN)
            if markdown is None:
                raise InvalidOcrResponse
            text = opened.read(markdown).decode(errors="replace")
            return build_result(text, lambda name: read_member(opened, ENDINGS[name]))
    except archive.DamagedArchive:
        raise InvalidOcrResponse from None
    except archive.UnsafeArchive:
        raise UnsafeResult from None


def read_member(opened: Archive, endings: tuple[str, ...]) -> Any:
    """Return the JSON of a member, or None if it is unreadable. It is optional, because the Markdown has all text."""
    member = opened.find(*endings)
    if member is None or member.file_size > MAX_JSON_BYTES:
        return None
    return parse_or_none(opened.read(member))


def parse_or_none(text: Any) -> Any:
    try:
        return orjson.loads(text) if isinstance(text, bytes | str) else text
    except orjson.JSONDecodeError:
        return None


# ---- JSON -----------------------------------------------------------------------------------------------------------
def read_json(body: dict[str, Any]) -> ParsedResult:
    """Read `files[0].content` of 4.0, or the only entry of `results` of 3.x."""
    files, results = body.get("files"), body.get("results")
    content = files[0].get("content") if isinstance(files, list) and files and isinstance(files[0], dict) else None
    if isinstance(results, dict) and len(results) == 1:
        content = next(iter(results.values()))
    if not isinstance(content, dict):
        raise InvalidOcrResponse
    markdown = content.get("markdown", content.get("md_content"))
    if not isinstance(markdown, str):
        raise InvalidOcrResponse
    result = build_result(markdown, lambda name: parse_or_none(content.get(name)))
    result.version = result.version or short_text(body, "version")
    return result


# ---- Pages ----------------------------------------------------------------------------------------------------------
def build_result(markdown: str, load: Callable[[str], Any]) -> ParsedResult:
    """Build a result. `structured_content` is complete, so other members are only loaded without it."""
    result = ParsedResult(markdown=markdown)
    structured = load("structured_content")
    if isinstance(structured, dict):
        result.blocks = by_page(structured.get("pages"))
        result.pages = number(structured, "metadata", "document", "page_count")
        result.version = short_text(structured, "metadata", "producer", "version")
        mode = short_text(structured, "extensions", "mineru", "parse_mode")
        result.recognized = {"ocr": True, "txt": False}.get(mode)
        return result
    listed = load("content_list")
    if isinstance(listed, list):
        result.blocks = by_item(listed)
    middle = load("middle_json")
    if isinstance(middle, dict):
        add_middle(result, middle)
    return result


def by_page(pages: Any) -> dict[int, list[Block]] | None:
    """Parse `[{"page_idx": 0, "blocks": […]}]`. None if it has another shape."""
    blocks: dict[int, list[Block]] = {}
    for page in pages if isinstance(pages, list) else []:
        index = page_index(page)
        if index is None or not isinstance(page.get("blocks"), list):
            return None
        blocks.setdefault(index, []).extend(block for block in page["blocks"] if isinstance(block, dict))
    return blocks or None


def by_item(items: list[Any]) -> dict[int, list[Block]] | None:
    """Parse `[{"type": "text", "page_idx": 0, …}]`. None if it has another shape."""
    blocks: dict[int, list[Block]] = defaultdict(list)
    for item in items:
        index = page_index(item)
        if index is None:
            return None
        blocks[index].append(item)
    return dict(blocks) or None


def add_middle(result: ParsedResult, middle: dict[str, Any]) -> None:
    """Add facts from `middle_json`: pages without blocks, the version, and whether OCR was used."""
    result.version = short_text(middle, "_version_name")
    result.backend = short_text(middle, "_backend")
    if result.backend == "vlm" or isinstance(middle.get("_ocr_enable"), bool):
        result.recognized = middle.get("_ocr_enable") is not False
    pages = middle.get("pdf_info")
    if result.blocks is not None and isinstance(pages, list):
        for index in map(page_index, pages):
            if index is not None:
                result.blocks.setdefault(index, [])


def page_index(page: Any) -> int | None:
    index = page.get("page_idx") if isinstance(page, dict) else None
    return index if isinstance(index, int) and not isinstance(index, bool) and 0 <= index < MAX_PAGE else None


def number(body: Any, *path: str) -> int:
    value = value_at(body, *path)
    return value if isinstance(value, int) and 0 < value <= MAX_PAGE else 0
