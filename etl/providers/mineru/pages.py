"""Markdown with pages, built from a server's result.

A server's own Markdown has no page boundaries, so the text is built from the blocks of each page. Headers and footers,
which MinerU omits from its Markdown, are kept, because they contain senders of letters and numbers of invoices. If the
blocks lack text of the server's Markdown, that Markdown becomes a single page: text matters more than page numbers.

Images are not kept, so links to them are removed. Their captions, and descriptions by a model, stay. HTML tables stay
as they are, because tables in Markdown have no spanning cells.
"""

import re
from collections import Counter
from typing import Any

from etl.core.characters import remove_control_characters
from etl.core.errors import EmptyDocument, TooManyPages
from etl.core.formats import IMAGES, DocumentFormat
from etl.core.stage_context import StageContext
from etl.providers.base import MarkdownOfPages, Page, unmarked
from etl.providers.mineru.results import Block, ParsedResult

NOT_TEXT = frozenset({"page_number"})
TITLES = {"doc_title": 1, "paragraph_title": 2}
DEEPEST = 6

# Each part is bounded, or ends where another link may start: the time must not be quadratic in the length of a text.
IMAGE = re.compile(
    r"!\[((?:\\.|[^\[\]\\\n]){0,1000})\]"
    r"\((?:data:[\w/+=;,.:-]*|(?!https?://)[^)(!\[\s]{0,500})(?:\s{1,4}\"[^\"\n]{0,200}\")?\)",
    re.ASCII,
)
TAG = re.compile(r"<[^<>]*>")
BLANK_LINES = re.compile(r"\n{3,}")
# Characters that may be missing in complete blocks: words of image links, for example.
SPARE_CHARACTERS, SPARE_SHARE = 20, 0.01


def assemble(
    found: ParsedResult, *, kind: DocumentFormat, pages: int | None, limit: int, context: StageContext
) -> tuple[str, tuple[Page, ...]]:
    """Return the Markdown and its pages. `pages`: the document's number of pages, if known.

    Warns about pages that the server omitted. Raises EmptyDocument if there is no text, and TooManyPages above `limit`.
    """
    texts = texts_of(found, context)
    count = max(pages or found.pages, max(texts) + 1)
    if count > limit:
        raise TooManyPages.of(count, limit)
    if not any(texts.values()):
        raise EmptyDocument
    missing = [] if found.blocks is None else [place for place in range(count) if place not in texts]
    for place in missing:
        context.warn("page_failed", "The OCR provider returned nothing for this page.", page=place + 1)
    whole = texts if found.blocks is None else {place: texts.get(place, "") for place in range(count)}
    return lay_out(whole, method=method(found, kind))


def texts_of(found: ParsedResult, context: StageContext) -> dict[int, str]:
    """Return the text of each page by its number from 0."""
    if found.blocks is not None:
        texts = {place: clean("\n\n".join(filter(None, map(render, blocks)))) for place, blocks in found.blocks.items()}
        if has_all_text("\n\n".join(texts.values()), clean(found.markdown)):
            return texts
    found.blocks = None
    context.warn("no_page_data", "The OCR provider did not report the pages of the text.")
    return {0: clean(found.markdown)}


def lay_out(texts: dict[int, str], *, method: str) -> tuple[str, tuple[Page, ...]]:
    markdown = MarkdownOfPages()
    for place, text in sorted(texts.items()):
        markdown.add(place + 1, text, method=method if text else "none")
    return str(markdown), tuple(markdown.pages)


def method(found: ParsedResult, kind: DocumentFormat) -> str:
    return "ocr" if kind in IMAGES or found.recognized else "text"


# ---- Blocks ---------------------------------------------------------------------------------------------------------
def render(block: Block) -> str:
    """Return a block as Markdown: captions, body, footnotes. Each protocol has its own names for these."""
    kind = str(block.get("type"))
    if kind in NOT_TEXT:
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
    return min(known, DEEPEST)


def strings(block: Block, *keys: str) -> list[str]:
    """Return the strings of lists such as `["…"]` and `[{"content": "…"}]`."""
    items: list[Any] = [item for key in keys if isinstance(block.get(key), list) for item in block[key]]
    texts = [item.get("content") if isinstance(item, dict) else item for item in items]
    return [text.strip() for text in texts if isinstance(text, str) and text.strip()]


# ---- Text -----------------------------------------------------------------------------------------------------------
def clean(text: str) -> str:
    """Remove links to images, which are not kept, and defuse text that looks like a page marker."""
    text = remove_control_characters(text.replace("\r\n", "\n"))
    return BLANK_LINES.sub("\n\n", unmarked(IMAGE.sub(r"\1", text))).strip()


def has_all_text(pieces: str, markdown: str) -> bool:
    """Return whether the blocks have all letters and digits of the Markdown, in any order."""
    wanted = letters(markdown)
    missing = wanted - letters(pieces)
    return missing.total() <= max(SPARE_CHARACTERS, SPARE_SHARE * wanted.total())


def letters(text: str) -> "Counter[str]":
    return Counter(character for character in TAG.sub("", text) if character.isalnum())
