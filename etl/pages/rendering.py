"""Markdown of documents as HTML that may stand in a page of ours. The documents are anybody's, and so is their text.

Two walls: what is no harmless tag is shown as text, so that nothing of a document vanishes; and whatever comes out is
cleaned by nh3, by a short list of what may stay. No ids, no styles, no images, nothing that is fetched.
"""

import re
from collections.abc import Sequence
from functools import cache, lru_cache
from typing import Any

import nh3
from django.utils.html import escape
from django.utils.safestring import SafeString
from markdown_it import MarkdownIt
from markdown_it.renderer import RendererHTML
from markdown_it.token import Token

# What is longer is shown as plain text: a page has a few thousand characters, and no thread may be held for long.
MOST_CHARACTERS = 64_000
# So is what has more of these: the parser looks at all brackets for each bracket, and at all stars for each star.
MOST_BRACKETS, MOST_STARS = 1_000, 12_000
MOST_CELLS = 20_000  # rows that lack cells are given them
# Deeper ones are dropped by the parser, text and all; `is_plain` finds what would go so deep.
DEEPEST = 150
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
FOREIGN_TAG = re.compile(rf"<(?!/?(?:{'|'.join(sorted(TAGS))})\b)", re.IGNORECASE)
ALIGNED = re.compile(r"text-align:(\w+)")

# HTML's parsers open what formats text, and was not closed, again in each block after it, with all its attributes. So
# few bytes may become many: how many, in characters, is known beforehand. What was closed at once is not among them;
# only what is surely a tag is taken for one that closes, as a quote may hide it.
MOST_COPIED = 2_000_000
MOST_TAGS = 10_000  # that open, without those of tables; the deeper they are, the longer each takes
MOST_HTML = 2_000_000  # characters
MOST_PASSES = 8  # levels of formatting within formatting
FORMATS = "a|b|code|em|i|s|small|strong|u"
BREAK = re.compile(r"<br\s*/?>", re.IGNORECASE)
CLOSED = re.compile(rf'<({FORMATS})(?:\s+[\w-]+(?:="[^"<>]*")?)*\s*>[^<>]*</\1>', re.IGNORECASE)
BARE = re.compile(rf"<(?:{FORMATS})>", re.IGNORECASE)
OPENED = re.compile(rf"<(?:{FORMATS})\b", re.IGNORECASE)
# Blocks, a link within another, and what closes anything: all that may come between is closed, to be opened again.
BREAKING = re.compile(rf"</[a-z]|<a\b|<(?!(?:{FORMATS})\b)[a-z]", re.IGNORECASE)
COUNTED = re.compile(r"<(?!(?:table|caption|thead|tbody|tfoot|tr|th|td)\b)[a-z]", re.IGNORECASE)
BARE_CHARACTERS = 10  # of one that is opened again, about


def is_plain(text: str) -> bool:
    """Tell whether a text is one that is not rendered: too long, or built to be slow."""
    return (
        len(text) > MOST_CHARACTERS
        or text.count("[") > MOST_BRACKETS
        or sum(map(text.count, "*_~")) > MOST_STARS
        or cells(text) > MOST_CELLS
        or NESTED.search(text) is not None
        or laid_out(text) is None
    )


def cells(text: str) -> int:
    """Return how many cells a table in this text may come to have."""
    lines = text.split("\n")
    return len(lines) * max(line.count("|") for line in lines)


def render(text: str) -> SafeString:
    """Return the HTML of a page's Markdown; of what `is_plain`, its text."""
    html = laid_out(text)
    return SafeString(f"<pre>{escape(text)}</pre>") if html is None else html


@lru_cache(maxsize=8)  # who renders asks `is_plain` before
def laid_out(text: str) -> SafeString | None:
    """Return the HTML of a page's Markdown; None where its tags would make too much of it."""
    html = parser().render(text)
    if is_tangled(html):
        return None
    clean = nh3.clean(
        html,
        tags=set(TAGS),
        attributes=ATTRIBUTES,
        allowed_classes=CLASSES,
        clean_content_tags=set(),
        url_schemes={"http", "https", "mailto"},
        url_relative="deny",  # they would lead to pages of ours
        link_rel="nofollow noopener noreferrer ugc",
    )
    return SafeString(clean) if len(clean) <= MOST_HTML else None


def is_tangled(html: str) -> bool:
    """Tell whether nh3 could make far more of this HTML than it is, or take long."""
    return len(html) > MOST_HTML or sum(1 for _ in COUNTED.finditer(html)) > MOST_TAGS or copied(html) > MOST_COPIED


def copied(html: str) -> int:
    """Return how many characters of tags a parser may come to open again, at most.

    Where a tag with attributes ends only a parser knows: it might be with the text. What is taken out leaves a dot, so
    that what was around it makes no tag that was not there.
    """
    html = BREAK.sub(".", html)
    for _ in range(MOST_PASSES):
        html, number = CLOSED.subn(".", html)
        if not number:
            break
    breaks = sum(1 for _ in BREAKING.finditer(html))
    html, bare = BARE.subn(".", html)
    first = OPENED.search(html)
    return breaks * (bare * BARE_CHARACTERS + (len(html) - first.start() if first else 0))


@cache
def parser() -> MarkdownIt:
    made = MarkdownIt("commonmark", {"html": True, "maxNesting": DEEPEST}).enable(["table", "strikethrough"])
    made.add_render_rule("image", instead_of_image)
    made.add_render_rule("html_block", html)
    made.add_render_rule("html_inline", html)
    for name in ("th_open", "td_open"):
        made.add_render_rule(name, cell)
    return made


def instead_of_image(self: RendererHTML, tokens: Sequence[Token], place: int, options: Any, env: Any) -> str:
    """What the image is about: nothing is fetched from anywhere."""
    words = self.renderInlineAsText(tokens[place].children or [], options, env)
    return f"<em>[{escape(words or 'image')}]</em>"


def html(_self: RendererHTML, tokens: Sequence[Token], place: int, _options: Any, _env: Any) -> str:
    """Tags that are harmless, as MinerU's tables have; others, and comments, as the text that they may well be."""
    return FOREIGN_TAG.sub("&lt;", tokens[place].content)


def cell(self: RendererHTML, tokens: Sequence[Token], place: int, options: Any, _env: Any) -> str:
    """A cell's alignment as a class: styles in the page are not allowed."""
    token = tokens[place]
    found = ALIGNED.search(str(token.attrs.pop("style", "")))
    if found:
        token.attrSet("class", found[1])
    return self.renderToken(tokens, place, options, {})
