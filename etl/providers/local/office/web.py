"""HTML to Markdown: headings, lists, tables, and preformatted text. Links and pictures are not followed."""

import re
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from lxml import etree, html

from etl.core import encodings
from etl.core.errors import FileCorrupt, TooDeep
from etl.providers.local.office import markdown
from etl.providers.local.office.bounds import MAX_SPAN, TextBudget
from etl.providers.local.office.pages import HIDDEN, OfficePage
from etl.providers.local.office.xml import number

HEADINGS = {f"h{level}": level for level in range(1, 7)}
BLOCKS = frozenset({
    "address", "article", "aside", "body", "caption", "center", "dd", "details", "dialog", "div", "dl", "dt",
    "fieldset", "figcaption", "figure", "footer", "form", "header", "hr", "html", "legend", "main", "nav", "p", "pre",
    "section", "summary",
})  # fmt: skip
SKIPPED = frozenset({
    "script", "style", "template", "noscript", "svg", "math", "head", "iframe", "object", "embed", "audio", "video",
    "canvas",
})  # fmt: skip
CELLS = frozenset({"td", "th"})
LISTS = frozenset({"ul", "ol", "menu"})
# Elements with content of their own, whose blocks are collected apart.
CONTAINERS = CELLS | LISTS | {"li", "blockquote", "table", "tr"}
INVISIBLE = re.compile(r"display\s*:\s*none|visibility\s*:\s*hidden|font-size\s*:\s*0(?![.\d])", re.IGNORECASE)
CHECKS = frozenset({"checkbox", "radio"})
UNTYPED = frozenset({"", "text", "number", "date", "email", "tel", "url"})
# Where a file names its encoding, and the encodings that browsers use for some names.
CHARSET, NAMED_WITHIN = re.compile(rb"""(?:charset|encoding)\s*=\s*["']?([\w.:-]{1,40})""", re.IGNORECASE), 2_048
WEB_NAMES = {"iso-8859-1": "cp1252", "latin1": "cp1252", "us-ascii": "cp1252", "gb2312": "gb18030", "gbk": "gb18030"}
TOO_DEEP = "Excessive depth"


@dataclass(slots=True)
class Frame:
    """An open container: its element, finished blocks, and the rows or items in it."""

    element: Any = None
    blocks: list[str] = field(default_factory=list)
    rows: list[list[tuple[Any, list[str]]]] = field(default_factory=list)
    count: int = 0

    @property
    def tag(self) -> str:
        return "" if self.element is None else str(self.element.tag)


def parse(content: str) -> Any:
    """Return the root element. HTML declares no entities, and the parser loads nothing. Raises FileCorrupt."""
    # Without `huge_tree`, the parser leaves out what is deeper than 256 levels, without an error.
    parser = html.HTMLParser(encoding="utf-8", no_network=True, huge_tree=True, remove_comments=True, remove_pis=True)
    try:
        root = html.document_fromstring(content.encode("utf-8", "replace") or b" ", parser=parser)
    except (etree.LxmlError, ValueError):
        raise FileCorrupt from None
    if any(TOO_DEEP in entry.message for entry in parser.error_log):
        raise TooDeep
    return root


class HtmlPage:
    """A walk over a tree by events, because a malicious one may be deeper than Python's stack."""

    def __init__(self, root: Any, budget: TextBudget) -> None:
        self.root, self.budget = root, budget
        self.frames = [Frame()]
        self.inline: list[str] = []
        self.preformatted = 0
        self.is_hidden = False

    def read(self) -> OfficePage:
        walk = etree.iterwalk(self.root, events=("start", "end"))
        for event, element in walk:
            if event == "start":
                if self.is_skipped(element):
                    walk.skip_subtree()
                else:
                    self.start(element, str(element.tag))
                    self.add_text(element.text)
                continue
            if not self.is_skipped(element):
                self.end(element, str(element.tag))
            self.add_text(element.tail if element is not self.root else "")
        self.flush()
        text = markdown.join(self.frames[0].blocks)
        return OfficePage(text=text, warnings=frozenset({HIDDEN} if self.is_hidden else ()))

    def is_skipped(self, element: Any) -> bool:
        if not isinstance(element.tag, str) or element.tag in SKIPPED:
            return True
        is_invisible = "hidden" in element.attrib or INVISIBLE.search(element.get("style") or "") is not None
        self.is_hidden = self.is_hidden or (is_invisible and bool(element.text_content().strip()))
        return is_invisible

    # ---- Text -------------------------------------------------------------------------------------------------------
    def add_text(self, text: str | None) -> None:
        if text:
            self.inline.append(self.budget.spend(text if self.preformatted else re.sub(r"\s+", " ", text)))

    def flush(self, prefix: str = "") -> None:
        """End a paragraph."""
        lines = "".join(self.inline).split("\n")
        self.inline = []
        text = "\n".join(lines if self.preformatted else (" ".join(line.split()) for line in lines)).strip()
        if text:
            self.frames[-1].blocks.append(prefix + (text.replace("\n", " ") if prefix else text))

    # ---- Elements ---------------------------------------------------------------------------------------------------
    def start(self, element: Any, tag: str) -> None:
        if tag in BLOCKS or tag in HEADINGS or tag in CONTAINERS:
            self.flush()
        if tag in CONTAINERS:
            self.frames.append(Frame(element))
        elif tag == "pre":
            self.preformatted += 1
        elif tag == "sup" and "".join(self.inline[-1:])[-1:].strip():
            self.inline.append("^")
        else:
            self.add_replaced(element, tag)

    def add_replaced(self, element: Any, tag: str) -> None:
        """Add what is shown in place of an element."""
        if tag == "br":
            self.inline.append("\n")
        elif tag == "img":
            self.add_text(element.get("alt"))
        elif tag == "input":
            self.add_field(element)
        elif tag == "option" and "selected" not in element.attrib:
            element.text = ""

    def add_field(self, element: Any) -> None:
        kind = (element.get("type") or "").lower()
        if kind in CHECKS:
            self.inline.append("[x] " if "checked" in element.attrib else "[ ] ")
        elif kind in UNTYPED:
            self.add_text(element.get("value"))

    def end(self, element: Any, tag: str) -> None:
        if tag in HEADINGS:
            self.flush(f"{'#' * HEADINGS[tag]} ")
        elif tag == "pre":
            self.flush()
            self.preformatted -= 1
        elif tag in CONTAINERS:
            self.flush()
            self.close(element, tag)
        elif tag in BLOCKS:
            self.flush()

    def close(self, element: Any, tag: str) -> None:
        frame, parent = self.frames.pop(), self.frames[-1]
        if tag in CELLS and parent.tag == "tr":
            parent.rows[:1] = [[*(parent.rows[0] if parent.rows else []), (element, frame.blocks)]]
        elif tag == "tr" and parent.tag == "table":
            parent.rows += frame.rows or [[]]
            parent.blocks += frame.blocks
        elif tag == "table":
            parent.blocks += frame.blocks + self.table_blocks(frame)
        elif tag == "li":
            parent.count += 1
            is_ordered = parent.tag == "ol"
            start = number(parent.element.get("start") or "1", 1) if is_ordered else 1
            marker = f"{start + parent.count - 1}. " if is_ordered else "- "
            parent.blocks += indented(frame.blocks, marker)
        elif tag == "blockquote":
            parent.blocks += (
                ["\n".join(f"> {line}" for line in markdown.join(frame.blocks).split("\n"))] if frame.blocks else []
            )
        else:  # a list, or a cell or row outside of a table
            cells = [block for row in frame.rows for _, blocks in row for block in blocks]
            parent.blocks += filter(None, [markdown.join(frame.blocks), *cells])

    # ---- Tables -----------------------------------------------------------------------------------------------------
    def table_blocks(self, frame: Frame) -> list[str]:
        """Return a table, or the blocks of its cells one after another if it only arranges the page."""
        if is_layout(frame):
            return [block for row in frame.rows for _, blocks in row for block in blocks]
        return [markdown.table(self.grid(frame.rows))]

    def grid(self, rows: list[list[tuple[Any, list[str]]]]) -> list[list[str]]:
        """Return the texts by row and column. A cell that spans several is in the first one."""
        grid: list[list[str]] = []
        taken: dict[int, int] = {}  # the rows that a cell above still spans, by column
        for row in rows:
            line: list[str] = []
            for cell, blocks in row:
                while taken.get(len(line), 0):
                    line.append("")
                width, height = span(cell, "colspan"), span(cell, "rowspan")
                self.budget.count_cells(width)
                taken |= dict.fromkeys(range(len(line), len(line) + width), height)
                line += [cell_text(blocks), *[""] * (width - 1)]
            taken = {column: left - 1 for column, left in taken.items() if left > 1}
            grid.append(line)
        return grid


def is_layout(frame: Frame) -> bool:
    """Return whether a table only arranges a page or mail: it has a single column, or tables in its cells."""
    cells = [(cell, blocks) for row in frame.rows for cell, blocks in row]
    if all(len(row) <= 1 for row in frame.rows):
        return True
    has_head = any(cell.tag == "th" for cell, _ in cells)
    is_nested = any(block.startswith("| ") for _, blocks in cells for block in blocks)
    return not has_head and (is_nested or frame.element.get("role") == "presentation")


def cell_text(blocks: list[str]) -> str:
    """Return the text of a cell on one line, also of a table in it."""
    lines = [line for block in blocks for line in block.split("\n") if not line.startswith("| ---")]
    return " ".join(line.strip("| ").replace(" | ", " ") if line.startswith("| ") else line.strip() for line in lines)


def span(cell: Any, name: str) -> int:
    return max(1, min(number((cell.get(name) or "").strip(), 1), MAX_SPAN))


def indented(blocks: list[str], marker: str) -> list[str]:
    """Return the blocks of a list item as one block, with its continuation below its text."""
    if not blocks:
        return []
    first, *others = "\n".join(blocks).split("\n")
    return ["\n".join([marker + first, *(f"{' ' * len(marker)}{line}" for line in others)])]


def page(content: str, budget: TextBudget) -> OfficePage:
    return HtmlPage(parse(content), budget).read()


def decode(content: bytes) -> str:
    """Return the text of a file, in the encoding that it names or, without one, in a detected one."""
    named = CHARSET.search(content[:NAMED_WITHIN])
    if named and not encodings.is_utf_8(content) and not content.startswith(encodings.BYTE_ORDER_MARKS):
        with suppress(LookupError):
            return content.decode(WEB_NAMES.get(label := named[1].decode().lower(), label), "replace")
    return encodings.decode(content)
