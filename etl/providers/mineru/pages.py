"""Conversion of a server's result to Markdown with pages.

The server's Markdown has no page boundaries, so the text is built from the blocks of each page. MinerU omits headers
and footers from its Markdown. They are kept here, because they contain senders of letters and invoice numbers. If text
of the server's Markdown is missing from the blocks, the Markdown becomes a single page, because text matters more than
page numbers.

Images are not stored, so links to them are removed. Their captions and descriptions by a model stay. HTML tables stay
unchanged, because tables in Markdown cannot have spanning cells.
"""

import re
from collections import Counter
from typing import Any

from etl.core.characters import remove_control_characters
from etl.core.errors import EmptyDocument, TooManyPages
from etl.core.formats import IMAGES, DocumentFormat
from etl.core.stage_context import StageContext
from etl.providers.base import Page, PagedMarkdown, escape_markers
from etl.providers.mineru.results import Block, ParsedResult

SKIPPED_KINDS = frozenset({"page_number"})
TITLES = {"doc_title": 1, "paragraph_title": 2}
MAX_LEVEL = 6

# Each part has a maximum length, or ends where another link may start. Otherwise, the time could be quadratic in the
# length of the text.
IMAGE = re.compile(
    r"!\[((?:\\.|[^\[\]\\\n]){0,1000})\]"
    r"\((?:data:[\w/+=;,.:-]*|(?!https?://)[^)(!\[\s]{0,500})(?:\s{1,4}\"[^\"\n]{0,200}\")?\)",
    re.ASCII,
)
TAG = re.compile(r"<[^<>]*>")
BLANK_LINES = re.compile(r"\n{3,}")
# Maximum number and share of characters that may be missing from complete blocks, such as words of image links.
MAX_MISSING_CHARACTERS, MAX_MISSING_SHARE = 20, 0.01


def assemble(
    found: ParsedResult, *, kind: DocumentFormat, pages: int | None, limit: int, context: StageContext
) -> tuple[str, tuple[Page, ...]]:
    """Return the Markdown and its pages. `pages`: the document's number of pages, or None if it is unknown.

    Adds warnings about pages that the server omitted. Raises EmptyDocument, and TooManyPages above `limit`.
    """
    texts = texts_of(found, context)
    count = max(pages or found.pages, max(texts) + 1)
    if count > limit:
        raise TooManyPages.of(count, limit)
    if not any(texts.values()):
        raise EmptyDocument
    missing = [] if found.blocks is None else [index for index in range(count) if index not in texts]
    for index in missing:
        context.warn("page_failed", "The OCR provider returned nothing for this page.", page=index + 1)
    all_texts = texts if found.blocks is None else {index: texts.get(index, "") for index in range(count)}
    return build_markdown(all_texts, method=method(found, kind))


def texts_of(found: ParsedResult, context: StageContext) -> dict[int, str]:
    """Return the text of each page, by page index from 0.

    If text is missing from the blocks, set `found.blocks` to None, and return the Markdown as a single page.
    """
    if found.blocks is not None:
        texts = {index: clean("\n\n".join(filter(None, map(render, blocks)))) for index, blocks in found.blocks.items()}
        if has_all_text("\n\n".join(texts.values()), clean(found.markdown)):
            return texts
    found.blocks = None
    context.warn("no_page_data", "The OCR provider did not report the pages of the text.")
    return {0: clean(found.markdown)}


def build_markdown(texts: dict[int, str], *, method: str) -> tuple[str, tuple[Page, ...]]:
    markdown = PagedMarkdown()
    for index, text in sorted(texts.items()):
        markdown.add(index + 1, text, method=method if text else "none")
    return str(markdown), tuple(markdown.pages)


def method(found: ParsedResult, kind: DocumentFormat) -> str:
    return "ocr" if kind in IMAGES or found.recognized else "text"


# ---- Blocks ---------------------------------------------------------------------------------------------------------
def render(block: Block) -> str:
    """Return a block as Markdown: captions, body, footnotes. Their names differ between protocols."""
    kind = str(block.get("type"))
    if kind in SKIPPED_KINDS:
        return ""
    parts = [*strings(block, "captions", f"{kind}_caption"), body(block, kind)]
    return "\n\n".join(filter(None, [*parts, *strings(block, "footnotes", f"{kind}_footnote")]))


def body(block: Block, kind: str) -> str:
    text = "\n".join(strings(block, "list_items"))
    for key in ("content", "text", f"{kind}_body"):
        value = block.get(key)
        if isinstance(value, str) and value.strip():
            text = value.strip()
            break
    if text and kind == "equation" and not text.startswith(("$$", r"\[")):
        return f"$$\n{text}\n$$"
    return f"{'#' * level(block, kind)} {text}".strip() if text else ""


def level(block: Block, kind: str) -> int:
    value = block.get("text_level", block.get("level", 0) if kind in TITLES else 0)
    known = value if isinstance(value, int) and value > 0 else TITLES.get(kind, 0)
    return min(known, MAX_LEVEL)


def strings(block: Block, *keys: str) -> list[str]:
    """Return the strings of lists such as `["…"]` and `[{"content": "…"}]`."""
    items: list[Any] = [item for key in keys if isinstance(block.get(key), list) for item in block[key]]
    texts = [item.get("content") if isinstance(item, dict) else item for item in items]
    return [text.strip() for text in texts if isinstance(text, str) and text.strip()]


# ---- Text -----------------------------------------------------------------------------------------------------------
def clean(text: str) -> str:
    """Remove links to images, which are not stored, and escape text that looks like a page marker."""
    text = remove_control_characters(text.replace("\r\n", "\n"))
    return BLANK_LINES.sub("\n\n", escape_markers(IMAGE.sub(r"\1", text))).strip()


def has_all_text(pieces: str, markdown: str) -> bool:
    """Return whether the blocks contain nearly all letters and digits of the Markdown, in any order."""
    expected = letters(markdown)
    missing = expected - letters(pieces)
    return missing.total() <= max(MAX_MISSING_CHARACTERS, MAX_MISSING_SHARE * expected.total())


def letters(text: str) -> Counter[str]:
    return Counter(character for character in TAG.sub("", text) if character.isalnum())
