"""Running heads and feet, page numbers, and letterheads."""

import pytest

from etl.providers.local.layout import Block
from etl.providers.local.running_heads import RunningHeads, is_prose

HEIGHT = 842.0


def block(text: str, y: float, *, lines: int = 1, kind: str = "text") -> Block:
    return Block(kind=kind, text=text, x0=50, y0=y, x1=400, y1=y + 12 * lines, lines=lines)


def body() -> Block:
    return block("words of a paragraph that goes on " * 9, 200, lines=20)


def marked(*pages: list[Block]) -> list[list[str]]:
    """Return the texts that are left out of each page."""
    heads = RunningHeads()
    for blocks in pages:
        heads.add(blocks, HEIGHT)
    for blocks in pages:
        heads.mark(blocks, HEIGHT, is_prose=is_prose(blocks))
    return [[each.text for each in blocks if each.left_out] for blocks in pages]


@pytest.mark.parametrize("number", ["7", "Page 7 of 12", "- 7 -", "xii", "Seite 7/12"])
def test_page_numbers_are_left_out(number: str) -> None:
    blocks = [body(), block(number, 800)]
    assert marked(blocks) == [[number]]
    assert blocks[1].kind == "footer"


def test_lines_that_several_pages_repeat_are_left_out() -> None:
    pages = [[block(f"Annual report {number}", 80), body()] for number in range(3)]
    assert marked(*pages) == [["Annual report 0"], ["Annual report 1"], ["Annual report 2"]]


def test_a_letterhead_stays_on_the_first_page_that_has_it() -> None:
    text = "Example Ltd, tel 0555 1234567, info@example.com"
    assert marked([block(text, 30), body()], [block(text, 30), body()]) == [[], [text]]


def test_a_single_line_above_other_things_than_prose_stays() -> None:
    assert marked([block("Example Ltd", 30), block("| a | b |", 200, kind="table")]) == [[]]
