"""Markdown of documents as HTML that may stand in a page of ours. The documents are anybody's, and so is their text.

Two walls: what is no harmless tag is shown as text, so that nothing of a document vanishes; and whatever comes out is
cleaned by nh3, by a short list of what may stay. No ids, no styles, no images, nothing that is fetched.
"""

import re
from collections.abc import Sequence
from functools import cache
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


def is_plain(text: str) -> bool:
    """Tell whether a text is one that is not rendered: too long, or built to be slow."""
    return (
        len(text) > MOST_CHARACTERS
        or text.count("[") > MOST_BRACKETS
        or sum(map(text.count, "*_~")) > MOST_STARS
        or cells(text) > MOST_CELLS
        or NESTED.search(text) is not None
    )


def cells(text: str) -> int:
    """Return how many cells a table in this text may come to have."""
    lines = text.split("\n")
    return len(lines) * max(line.count("|") for line in lines)


def render(text: str) -> SafeString:
    """Return the HTML of a page's Markdown."""
    html = parser().render(text)
    return SafeString(
        nh3.clean(
            html,
            tags=set(TAGS),
            attributes=ATTRIBUTES,
            allowed_classes=CLASSES,
            clean_content_tags=set(),
            url_schemes={"http", "https", "mailto"},
            url_relative="deny",  # they would lead to pages of ours
            link_rel="nofollow noopener noreferrer ugc",
        )
    )


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
