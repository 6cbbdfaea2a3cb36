"""Detection of running heads and feet, page numbers, and stamps. They are omitted from the running text.

Some stay in the text of the first page that has them: a letterhead with values such as an address or an account number,
and every head of a page without prose, such as an invoice, because the seller's name may be nowhere else.
"""

import math
import re
from collections import Counter

from etl.providers.local.layout import Block

# Height of the zones of running heads and feet, at the top and bottom, as a share of the page's height.
ZONE, SINGLE_LINE_ZONE = 0.13, 0.085
NUMBER_ZONE = 0.2  # for page numbers of prose
MAX_LINES, MAX_LETTERS = 3, 160
# Minimum number of pages with the same line that make it a running head without other evidence.
MIN_REPEATS = 2
# Prose: minimum share of a page's letters in long paragraphs, and minimum lines of a long paragraph.
PROSE_SHARE, PROSE_LINES = 0.5, 3
PAGE_NUMBER = re.compile(
    r"(?:#+ )?[-–—|\[( ]*(?:page|seite|p\.|pg\.?|p[aá]g(?:ina|\.)?|blatt|s\.|side|sida|strana|стр\.?)?[ |]*"
    r"(?:\d{1,4}|[ivxlcdm]{1,6})(?:\s*(?:of|von|de|di|/|\|)\s*\d{1,4})?[-–—|\]). ]*",
    re.IGNORECASE,
)
STAMP = re.compile(
    r"download(?:ed)? (?:from|on|by|at|date|time)|all rights reserved|protected by copyright|©|\(c\) ?\d{4}|copyright"
    r"|preprint|doi\.org|^arxiv:|issn|this article is|for personal use only|confidential",
    re.IGNORECASE,
)
NUMBER = re.compile(r"[0-9]+|[ivxlc]+$")
SHORT_NUMBER = re.compile(r"\b[0-9]{1,3}\b|\b[ivxlc]+$")  # a page number, but not an invoice number
FOOTNOTE = re.compile(r"[*†‡¹²³] ?\w")
NUMBERED_FOOTNOTE = re.compile(r"[(\[]?\d{1,2}[.)\]]? \w")
# Useful values, such as addresses and account numbers. A letterhead has several.
VALUE = re.compile(r"@|\bwww\.|\b(?:tel|fax|iban|bic|vat|ust|phone|mobil)\b|\d{5,}|\+\d", re.IGNORECASE)
AMOUNT = re.compile(r"\d[.,]\d\d(?!\d)")


class RunningHeads:
    """Lines at the edges of the pages read so far, with the number of pages that have them."""

    def __init__(self) -> None:
        self.pages: Counter[str] = Counter()
        self.last = 0  # the last page that was added
        self.known: set[str] = set()
        self.has_prose = False

    def add(self, blocks: list[Block], height: float, *, number: int) -> None:
        """Count the lines at the edges of a page."""
        self.last = number
        self.pages.update({key(block) for block in blocks if zone(block, height, ZONE)})

    def mark(self, blocks: list[Block], height: float, *, number: int, is_prose: bool) -> None:
        """Set the kind of running heads and feet of a page, and whether they are omitted from the text."""
        self.has_prose |= is_prose
        for block in self.candidates(blocks, height, number=number, is_prose=is_prose):
            block.kind = zone(block, height, ZONE) or ("header" if block.y1 < height / 2 else "footer")
            text = key(block) if self.has_prose else key(block, numbers=SHORT_NUMBER)
            block.left_out = not is_letterhead(block, is_prose=is_prose) or text in self.known
            self.known |= {text, key(block)}

    def candidates(self, blocks: list[Block], height: float, *, number: int, is_prose: bool) -> list[Block]:
        """Return running heads and feet: blocks that are recognized directly, and those beside or behind them."""
        found: list[Block] = []
        rest: list[Block] = []
        for block in filter(is_short, blocks):
            edge = zone(block, height, ZONE)
            has_number = is_prose and is_numbered(block, blocks, height, number=number)
            if has_number or self.is_candidate(block, blocks, height):
                found.append(block)
            elif block.lines == 1 and (edge == "footer" or (edge and block.kind != "title")):
                rest.append(block)
        beside = [block for block in rest if any(is_beside(block, other) for other in found)]
        found += beside
        known = set(map(id, beside))
        return found + [block for block in rest if id(block) not in known and is_behind(block, found, blocks, height)]

    def is_candidate(self, block: Block, blocks: list[Block], height: float) -> bool:
        edge = zone(block, height, ZONE)
        if not edge:
            return False
        if self.pages[key(block)] >= MIN_REPEATS:
            return True
        if is_footnote(block) or (self.last > 1 and block.text.startswith("#")):
            return False  # a footnote or a title that no other page repeats
        is_single = bool(zone(block, height, SINGLE_LINE_ZONE)) and block.lines == 1
        return (
            block.kind in {"header", "footer"}
            or (is_single and bool(PAGE_NUMBER.fullmatch(block.text) or STAMP.search(block.text)))
            or (is_single and (edge == "footer" or block.kind != "title") and is_apart(block, blocks, edge))
        )


def restore_if_empty(blocks: list[Block]) -> None:
    """Keep all blocks of a page whose text would otherwise be empty, such as a page with only a section title."""
    if all(block.left_out or not block.text for block in blocks):
        for block in blocks:
            block.left_out = False


def is_short(block: Block) -> bool:
    return block.kind != "table" and block.lines <= MAX_LINES and len(block.text) <= MAX_LETTERS


def is_footnote(block: Block) -> bool:
    """Return whether a block begins with a footnote mark. In a single line, a number may be a page number instead."""
    return bool(FOOTNOTE.match(block.text)) or (block.lines > 1 and bool(NUMBERED_FOOTNOTE.match(block.text)))


def is_letterhead(block: Block, *, is_prose: bool) -> bool:
    """Return whether a line at the edge must stay in the text of the first page that has it."""
    if PAGE_NUMBER.fullmatch(block.text) or STAMP.search(block.text):
        return False
    values = len(VALUE.findall(block.text))
    if is_prose:
        return values > 1
    return block.kind == "header" or values > 0 or bool(AMOUNT.search(block.text))


def is_numbered(block: Block, blocks: list[Block], height: float, *, number: int) -> bool:
    """Return whether a line is a page number, or begins or ends with the number of its page: `2 A. Author et al.`"""
    if PAGE_NUMBER.fullmatch(block.text):
        edge = zone(block, height, NUMBER_ZONE)
    else:
        words = block.text.split() if block.lines == 1 and block.kind != "title" else []
        edge = zone(block, height, ZONE) if str(number) in (*words[:1], *words[-1:]) else ""
    return bool(edge) and is_apart(block, blocks, edge)


def is_beside(block: Block, other: Block) -> bool:
    """Return whether blocks are in the same row."""
    return abs(block.y0 + block.y1 - other.y0 - other.y1) < min(block.y1 - block.y0, other.y1 - other.y0)


def is_behind(block: Block, found: list[Block], blocks: list[Block], height: float) -> bool:
    """Return whether only running heads are between a line and the edge, and the rest of the page is farther away."""
    edge = zone(block, height, ZONE)
    beyond = [other for other in found if (other.y1 <= block.y0 if edge == "header" else other.y0 >= block.y1)]
    known = set(map(id, beyond))
    rest = [other for other in blocks if id(other) not in known and other is not block]
    return bool(beyond) and is_apart(block, rest, edge) and distance(block, beyond) <= distance(block, rest)


def distance(block: Block, others: list[Block]) -> float:
    """Return the vertical distance to the nearest of other blocks, or infinity without any."""
    return min((max(other.y0 - block.y1, block.y0 - other.y1, 0.0) for other in others), default=math.inf)


def is_prose(blocks: list[Block]) -> bool:
    """Return whether a page consists mostly of paragraphs with several lines."""
    letters = [(len(block.text), block.kind in {"text", "list"} and block.lines >= PROSE_LINES) for block in blocks]
    total = sum(length for length, _ in letters)
    return total > 0 and sum(length for length, prose in letters if prose) >= PROSE_SHARE * total


def key(block: Block, *, numbers: re.Pattern[str] = NUMBER) -> str:
    """Return the position and text of a block, without numbers, which differ between pages."""
    return f"{round(block.y0 / 20)} {numbers.sub('0', block.text)}"


def zone(block: Block, height: float, share: float) -> str:
    """Return `header` or `footer` for a block entirely in the zone at the top or bottom of a page, or ""."""
    if not height:
        return ""
    return "header" if block.y1 < share * height else "footer" if block.y0 > (1 - share) * height else ""


def is_apart(block: Block, blocks: list[Block], edge: str) -> bool:
    """Return whether nothing is between a line and the edge, with a gap between the line and the rest."""
    height = block.y1 - block.y0
    for other in blocks:
        if other is block or abs((other.y0 + other.y1) - (block.y0 + block.y1)) < height:
            continue
        gap = other.y0 - block.y1 if edge == "header" else block.y0 - other.y1
        if gap < 0.7 * height:
            return False
    return True
