"""Running heads and feet, page numbers, and stamps in the margins. They are marked, and left out of the running text.

A letterhead, with values such as an address or an account, stays in the text of the first page that has it.
"""

import re
from collections import Counter
from collections.abc import Iterator

from etl.providers.local.layout import Block

# The parts of a page's height, from the top and from the bottom, in which running heads and feet are.
ZONE, SINGLE_LINE_ZONE = 0.13, 0.085
MAX_LINES, MAX_LETTERS = 3, 160
# Pages that must have the same line, so that it is a running head without other signs.
MIN_REPEATS = 2
# The share of a page's letters that are in paragraphs of several lines, from which it is prose.
PROSE_SHARE, PROSE_LINES = 0.5, 3
PAGE_NUMBER = re.compile(
    r"(?:#+ )?[-–—|\[( ]*(?:page|seite|p\.|pg\.?|página|pagina|blatt)?\s*(?:\d{1,4}|[ivxlcdm]{1,6})"
    r"(?:\s*(?:of|von|de|di|/|\|)\s*\d{1,4})?[-–—|\]). ]*",
    re.IGNORECASE,
)
STAMP = re.compile(
    r"downloaded from|downloaded on|downloaded by|all rights reserved|protected by copyright|©|\(c\) ?\d{4}|copyright"
    r"|preprint|doi\.org|^arxiv:|issn|this article is|for personal use only|confidential",
    re.IGNORECASE,
)
# Values that a reader may look for: a letterhead has several.
VALUE = re.compile(r"@|\bwww\.|\b(?:tel|fax|iban|bic|vat|ust|phone|mobil)\b|\d{5,}|\+\d", re.IGNORECASE)


class RunningHeads:
    """The lines at the edges of the pages that were read, by how many pages have them."""

    def __init__(self) -> None:
        self.pages: Counter[str] = Counter()
        self.kept: set[str] = set()

    def add(self, blocks: list[Block], height: float) -> None:
        """Count the lines at the edges of a page."""
        self.pages.update({key(block) for block in blocks if zone(block, height, ZONE)})

    def mark(self, blocks: list[Block], height: float, *, is_prose: bool) -> None:
        """Set the kind of running heads and feet, and whether they are left out of the text."""
        for block in self.candidates(blocks, height):
            edge = zone(block, height, ZONE) or block.kind
            repeated = self.pages[key(block)] >= MIN_REPEATS
            is_number = bool(PAGE_NUMBER.fullmatch(block.text))
            is_letterhead = not is_number and not STAMP.search(block.text) and (
                not (is_prose or repeated) or len(VALUE.findall(block.text)) > 1
            )  # fmt: skip
            block.kind = edge
            block.left_out = not is_letterhead or key(block) in self.kept
            self.kept.add(key(block))
        if all(block.left_out or not block.text for block in blocks):  # such as the names of sections, one a page
            for block in blocks:
                block.left_out = False

    def candidates(self, blocks: list[Block], height: float) -> Iterator[Block]:
        for block in blocks:
            if block.kind == "table" or block.lines > MAX_LINES or len(block.text) > MAX_LETTERS:
                continue
            edge = zone(block, height, ZONE)
            if not edge:
                continue
            is_single = zone(block, height, SINGLE_LINE_ZONE) and block.lines == 1
            if (
                block.kind in {"header", "footer"}
                or (self.pages[key(block)] >= MIN_REPEATS)
                or (is_single and (PAGE_NUMBER.fullmatch(block.text) or STAMP.search(block.text)))
                or (is_single and block.kind != "title" and is_apart(block, blocks, edge))
            ):
                yield block


def is_prose(blocks: list[Block]) -> bool:
    """Return whether most of a page is paragraphs of several lines."""
    letters = [(len(block.text), block.kind in {"text", "list"} and block.lines >= PROSE_LINES) for block in blocks]
    total = sum(length for length, _ in letters)
    return total > 0 and sum(length for length, prose in letters if prose) >= PROSE_SHARE * total


def key(block: Block) -> str:
    """Return the text without its numbers, which differ between pages, and its place."""
    return f"{round(block.y0 / 20)} {re.sub(r'[0-9]+|[ivxlc]+$', '0', block.text)}"


def zone(block: Block, height: float, share: float) -> str:
    """Return `header` or `footer` for a block that is whole at the top or bottom of a page, or ""."""
    if not height:
        return ""
    return "header" if block.y1 < share * height else "footer" if block.y0 > (1 - share) * height else ""


def is_apart(block: Block, blocks: list[Block], edge: str) -> bool:
    """Return whether nothing is between a line and the edge, and a gap is between it and the rest."""
    height = block.y1 - block.y0
    for other in blocks:
        if other is block or abs((other.y0 + other.y1) - (block.y0 + block.y1)) < height:
            continue
        gap = other.y0 - block.y1 if edge == "header" else block.y0 - other.y1
        if gap < 0.7 * height:
            return False
    return True
