"""Safe HTML from the Markdown of documents, which is untrusted input.

Two defenses: tags that are not on the allow list are shown as text, so that no content disappears; and nh3 sanitizes
the result with the same list. No IDs, no styles, no images, no external resources.
"""

import re
import threading
from collections.abc import Sequence
from functools import cache, lru_cache
from typing import Any

import nh3
from django.utils.html import escape
from django.utils.safestring import SafeString
from markdown_it import MarkdownIt
from markdown_it.renderer import RendererHTML
from markdown_it.rules_block import StateBlock
from markdown_it.rules_inline import StateInline
from markdown_it.token import Token

# Limits that bound the time of a request. A text above one of them is shown as plain text.
MAX_CHARACTERS = 64_000  # a typical page has a few thousand
MAX_BRACKETS, MAX_EMPHASIS_MARKERS = 1_000, 12_000  # the parser's time is quadratic in their number
MAX_CELLS = 8_000  # the parser pads short rows with cells
# A step of the parser takes 5 to 10 microseconds. A page full of formatting needs 18,000 steps.
MAX_STEPS, STEPS_PER_BLOCK = 30_000, 4
WAIT_SECONDS = 2  # for other requests to render; after that, the text is shown as plain text
render_lock = threading.Lock()
# The parser drops blocks that are nested more deeply, with their text. `is_too_complex` detects such texts.
MAX_NESTING = 150
MARKER = r"(?:>|(?:[-+*]|\d{1,9}[.)])[ \t])"
NESTED = re.compile(rf"^(?:[ \t]{{0,80}}{MARKER}){{30}}|^[ \t]{{80,}}{MARKER}", re.MULTILINE)

TAGS = frozenset(
    (
        *("p", "br", "hr", "h1", "h2", "h3", "h4", "h5", "h6", "blockquote", "pre", "code", "ul", "ol", "li", "a"),
        *("em", "strong", "b", "i", "u", "s", "del", "ins", "mark", "sub", "sup", "small"),
        *("table", "caption", "thead", "tbody", "tfoot", "tr", "th", "td"),
    )
)
CELL = {"colspan", "rowspan"}
ATTRIBUTES: dict[str, set[str]] = {"*": set(), "a": {"href"}, "td": CELL, "th": CELL, "ol": {"start"}}
CLASSES = {name: {"left", "center", "right"} for name in ("td", "th")}
DISALLOWED_TAG = re.compile(rf"<(?!/?(?:{'|'.join(sorted(TAGS))})\b)", re.IGNORECASE)
ALIGNED = re.compile(r"text-align:(\w+)")

# HTML parsers reopen unclosed formatting elements in each following block, with all their attributes, which amplifies a
# small input. `reopened_size` returns an upper bound before parsing. Elements without nested tags that are closed again
# are not counted, if no quotation mark can hide the closing tag.
MAX_REOPENED = 2_000_000
MAX_TAGS = 10_000  # opening tags, except those of tables; deeply nested tags take longer
MAX_HTML = 2_000_000  # characters
MAX_PASSES = 8  # levels of nested formatting
FORMATS = "a|b|code|em|i|s|small|strong|u"
BR = re.compile(r"<br\s*/?>", re.IGNORECASE)
CLOSED = re.compile(rf'<({FORMATS})(?:\s+[\w-]+(?:="[^"<>]*")?)*\s*>[^<>]*</\1>', re.IGNORECASE)
BARE = re.compile(rf"<(?:{FORMATS})>", re.IGNORECASE)
OPENED = re.compile(rf"<(?:{FORMATS})\b", re.IGNORECASE)
# Blocks, nested links and closing tags: the parser closes open formatting there, and reopens it.
REOPENING = re.compile(rf"</[a-z]|<a\b|<(?!(?:{FORMATS})\b)[a-z]", re.IGNORECASE)
COUNTED = re.compile(r"<(?!(?:table|caption|thead|tbody|tfoot|tr|th|td)\b)[a-z]", re.IGNORECASE)
STEPS = "steps"  # name of the parser rules that count steps
BARE_CHARACTERS = 10  # about the length of a reopened tag without attributes


class TooComplex(Exception):
    """A text that needs too many steps of the parser."""


def render(text: str) -> SafeString | None:
    """Return the HTML of a page's Markdown, or None if it is too complex or the renderer stays busy.

    One text is rendered at a time: it takes up to 0.3 s of the GIL, which all other requests of the process need.
    """
    if is_too_complex(text) or not render_lock.acquire(timeout=WAIT_SECONDS):
        return None
    try:
        return html_of(text)
    finally:
        render_lock.release()


def is_too_complex(text: str) -> bool:
    return (
        len(text) > MAX_CHARACTERS
        or text.count("[") > MAX_BRACKETS
        or sum(map(text.count, "*_~")) > MAX_EMPHASIS_MARKERS
        or sum(map(max_cells, re.split(r"\n[ \t]*\n", text))) > MAX_CELLS
        or NESTED.search(text) is not None
    )


def max_cells(block: str) -> int:
    """Estimate the cells of a table in this block from its pipes. The result is at least half of the actual number."""
    pipes = [line.count("|") for line in block.split("\n")]
    return len(pipes) * max(pipes)


@lru_cache(maxsize=8)
def html_of(text: str) -> SafeString | None:
    try:
        html = parser().render(text, {STEPS: 0})
    except TooComplex:
        return None
    if is_too_expensive(html):
        return None
    clean = nh3.clean(
        html,
        tags=set(TAGS),
        attributes=ATTRIBUTES,
        allowed_classes=CLASSES,
        clean_content_tags=set(),
        url_schemes={"http", "https", "mailto"},
        url_relative="deny",  # relative links would lead to our own pages
        link_rel="nofollow noopener noreferrer ugc",
    )
    return SafeString(clean) if len(clean) <= MAX_HTML else None


def is_too_expensive(html: str) -> bool:
    """Return whether nh3 could expand this HTML excessively, or take too long."""
    tags = sum(1 for _ in COUNTED.finditer(html))
    return len(html) > MAX_HTML or tags > MAX_TAGS or reopened_size(html) > MAX_REOPENED


def reopened_size(html: str) -> int:
    """Return an upper bound for the characters of tags that a parser may reopen.

    Only a parser can find the end of a tag with attributes, so all text after the first one counts. Removed parts are
    replaced by a dot, so that the text around them does not form new tags.
    """
    html = BR.sub(".", html)
    for _ in range(MAX_PASSES):
        html, number = CLOSED.subn(".", html)
        if not number:
            break
    breaks = sum(1 for _ in REOPENING.finditer(html))
    html, bare = BARE.subn(".", html)
    first = OPENED.search(html)
    return breaks * (bare * BARE_CHARACTERS + (len(html) - first.start() if first else 0))


@cache
def parser() -> MarkdownIt:
    markdown = MarkdownIt("commonmark", {"html": True, "maxNesting": MAX_NESTING}).enable(["table", "strikethrough"])
    markdown.block.ruler.before("table", STEPS, count_block)
    markdown.inline.ruler.before("text", STEPS, count_inline)
    markdown.add_render_rule("image", render_image)
    markdown.add_render_rule("html_block", render_html)
    markdown.add_render_rule("html_inline", render_html)
    for name in ("th_open", "td_open"):
        markdown.add_render_rule(name, render_cell)
    return markdown


def count_block(state: StateBlock, _start: int, _end: int, _silent: bool) -> bool:  # noqa: FBT001 - markdown-it's signature
    return count(state.env, STEPS_PER_BLOCK)


def count_inline(state: StateInline, _silent: bool) -> bool:  # noqa: FBT001 - markdown-it's signature
    return count(state.env, 1)


def count(env: Any, steps: int) -> bool:
    """Count steps, as a rule that never matches. Raises TooComplex."""
    env[STEPS] += steps
    if env[STEPS] > MAX_STEPS:
        raise TooComplex
    return False


def render_image(self: RendererHTML, tokens: Sequence[Token], index: int, options: Any, env: Any) -> str:
    """Render the alternative text of an image, so that nothing is fetched."""
    words = self.renderInlineAsText(tokens[index].children or [], options, env)
    return f"<em>[{escape(words or 'image')}]</em>"


def render_html(_self: RendererHTML, tokens: Sequence[Token], index: int, _options: Any, _env: Any) -> str:
    """Render allowed tags, such as MinerU's tables; escape other tags and comments."""
    return DISALLOWED_TAG.sub("&lt;", tokens[index].content)


def render_cell(self: RendererHTML, tokens: Sequence[Token], index: int, options: Any, _env: Any) -> str:
    """Render a cell's alignment as a class, because the CSP forbids inline styles."""
    token = tokens[index]
    found = ALIGNED.search(str(token.attrs.pop("style", "")))
    if found:
        token.attrSet("class", found[1])
    return self.renderToken(tokens, index, options, {})
