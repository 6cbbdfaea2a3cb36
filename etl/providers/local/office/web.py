"""Reader of HTML. Removes invisible content. Links and pictures are not followed."""

import codecs
import re
from contextlib import suppress
from typing import Any

from lxml import etree, html

from etl.core import encodings
from etl.core.errors import FileCorrupt, TooDeep
from etl.core.formats import DocumentFormat
from etl.providers.local.office import conversion, markdown
from etl.providers.local.office.bounds import MAX_SPAN, TextBudget
from etl.providers.local.office.pages import HIDDEN, STRUCK, STRUCK_END, OfficePage
from etl.providers.local.office.xml import number

SKIPPED = (
    "script", "style", "template", "noscript", "svg", "math", "iframe", "object", "embed", "audio", "video", "canvas",
    "head",
)  # fmt: skip
# Inline elements. Their tags are removed, because docling separates words there, even in the middle of a word.
INLINE = (
    "a", "abbr", "b", "bdi", "bdo", "big", "cite", "data", "del", "dfn", "em", "font", "i", "ins", "mark", "nobr", "q",
    "rb", "ruby", "s", "small", "span", "strike", "strong", "sub", "sup", "time", "tt", "u", "var", "wbr",
)  # fmt: skip
STRUCK_TAGS = frozenset({"s", "del", "strike"})
STRUCK_STYLE = re.compile(r"text-decoration(?:-line)?\s*:[^;]*line-through", re.IGNORECASE)
INVISIBLE = re.compile(r"display\s*:\s*none|visibility\s*:\s*hidden|font-size\s*:\s*0(?![.\d])", re.IGNORECASE)
# The encoding that a file declares, and the actual encodings that browsers use for some names.
CHARSET, NAMED_WITHIN = re.compile(rb"""(?:charset|encoding)\s*=\s*["']?([\w.:-]{1,40})""", re.IGNORECASE), 2_048
WEB_NAMES = {"iso-8859-1": "cp1252", "latin1": "cp1252", "us-ascii": "cp1252", "gb2312": "gb18030", "gbk": "gb18030"}
# The beginnings of names that are ignored: a file that names its encoding in ASCII is not in UTF-16 or UTF-32, browsers
# do not support UTF-7, and the others are codecs of Python.
NOT_WEB_NAMES = ("utf-16", "utf-32", "utf-7", "idna", "punycode", "undefined", "unicode-escape", "raw-unicode-escape")
TOO_DEEP = "Excessive depth"


def page(content: str, budget: TextBudget) -> OfficePage:
    """Return a page. Raises FileCorrupt and FileTooLarge."""
    root = parse(content)
    is_hidden = remove_hidden(root)
    count_cells(root, budget)
    for foot in list(root.iter("tfoot")):
        move_foot_to_end(foot)
    mark_struck(root)
    for each in root.iter("ol"):
        number_items(each)
    for each in root.iter("sup"):
        each.text = f"^{each.text or ''}"
    etree.strip_tags(root, *INLINE)
    for each in list(root.iter("rt", "rp")):  # phonetic hints; with children, an end tag is missing
        if len(each) == 0:
            each.drop_tree()
    for each in list(root.iter("header", "footer", "nav", "table")):
        if each.tag != "table" or is_layout(each):
            convert_to_div(each)
    # Without the byte order mark, docling guesses the encoding.
    source = codecs.BOM_UTF8 + etree.tostring(root, encoding="utf-8", method="html")
    found = conversion.pages(DocumentFormat.HTML, source, budget)
    warnings = frozenset({HIDDEN} if is_hidden else ()).union(*(each.warnings for each in found))
    return OfficePage(text=markdown.join(each.text for each in found), warnings=warnings)


def parse(content: str) -> Any:
    """Return the root element. The parser loads nothing, and HTML cannot declare entities. Raises FileCorrupt."""
    # Without `huge_tree`, the parser silently omits elements deeper than 256 levels.
    parser = html.HTMLParser(encoding="utf-8", no_network=True, huge_tree=True, remove_comments=True, remove_pis=True)
    try:
        root = html.document_fromstring(
            encodings.without_controls(content).encode("utf-8", "replace") or b" ", parser=parser
        )
    except (etree.LxmlError, ValueError):
        raise FileCorrupt from None
    if any(TOO_DEEP in entry.message for entry in parser.error_log):
        raise TooDeep
    return root


def remove_hidden(root: Any) -> bool:
    """Remove elements that browsers do not show. Return whether hidden elements had text."""
    for each in list(root.iter(*SKIPPED)):
        if each.getparent() is not None:
            each.drop_tree()
    had_text = False
    for each in list(root.iter("*")):
        if "hidden" in each.attrib or INVISIBLE.search(each.get("style") or ""):
            had_text = had_text or bool(each.text_content().strip())
            if each.getparent() is not None:
                each.drop_tree()
    return had_text


def mark_struck(root: Any) -> None:
    """Mark text that is struck through, including text inside nested elements."""
    struck: set[Any] = set()
    for each in root.iter("*"):
        is_within = each.getparent() in struck
        if is_within and each.tail:
            each.tail = f"{STRUCK}{each.tail}{STRUCK_END}"
        if is_within or each.tag in STRUCK_TAGS or STRUCK_STYLE.search(each.get("style") or ""):
            struck.add(each)
            each.text = f"{STRUCK}{each.text}{STRUCK_END}" if each.text else None


def number_items(ordered: Any) -> None:
    """Write item numbers as list styles, which docling reads, starting at the first item with a `value`."""
    following = 0
    for item in ordered.iterchildren("li"):
        following = number(item.get("value", "")) or following
        if following:
            item.set("style", f"list-style-type: '{following}.'")
            following += 1


def move_foot_to_end(foot: Any) -> None:
    """Convert a table foot to the last body of its table, because docling omits feet."""
    foot.tag = "tbody"
    if (table := foot.getparent()).tag == "table":
        table.append(foot)


def is_layout(table: Any) -> bool:
    """Return whether a table is only used for layout: it has no header cells, and it has a single column, contains
    tables, or has the role `presentation`."""
    if next(table.iter("th"), None) is not None:
        return False
    is_nested = next(table.iterdescendants("table"), None) is not None
    return is_nested or table.get("role") == "presentation" or all(len(row) <= 1 for row in table.iter("tr"))


def convert_to_div(element: Any) -> None:
    """Convert an element to `div`. For a table, convert its rows and cells too."""
    within = [each for each in element.iter("tbody", "thead", "tfoot", "tr", "td") if belongs_to(each, element)]
    for each in [element, *within]:
        each.tag = "div"


def belongs_to(part: Any, table: Any) -> bool:
    return next(part.iterancestors("table"), None) is table


def count_cells(root: Any, budget: TextBudget) -> None:
    """Limit column and row spans, and count each cell once for each column that it spans. Raises TooManyCells."""
    for cell in root.iter("td", "th"):
        spans = {name: number((cell.get(name) or "").strip(), 1) for name in ("colspan", "rowspan")}
        for name, span in spans.items():
            if name in cell.attrib:
                cell.set(name, str(max(1, min(span, MAX_SPAN))))
        budget.count_cells(max(1, min(spans["colspan"], MAX_SPAN)))


def decode(content: bytes) -> str:
    """Decode a file with the encoding that it declares, or else with a detected one."""
    named = CHARSET.search(content[:NAMED_WITHIN])
    if named and not encodings.is_utf_8(content) and not content.startswith(encodings.BYTE_ORDER_MARKS):
        with suppress(LookupError):
            name = codecs.lookup(WEB_NAMES.get(label := named[1].decode().lower(), label)).name.replace("_", "-")
            if not name.startswith(NOT_WEB_NAMES):
                return content.decode(name, "replace")
    return encodings.decode(content)
