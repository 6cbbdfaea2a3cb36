"""Detection of running heads and feet, page numbers, and letterheads."""

import pytest

from etl.providers.local.layout import Block
from etl.providers.local.running_heads import RunningHeads, is_prose, restore_if_empty

HEIGHT = 842.0


def block(text: str, y: float, *, x: float = 50, lines: int = 1, kind: str = "text") -> Block:
    return Block(kind=kind, text=text, x0=x, y0=y, x1=x + 350, y1=y + 12 * lines, lines=lines)


def body() -> Block:
    return block("words of a paragraph that goes on " * 9, 200, lines=20)


def omitted_texts(*pages: list[Block]) -> list[list[str]]:
    """Return the omitted texts of each page."""
    heads = RunningHeads()
    for number, blocks in enumerate(pages, start=1):
        heads.add(blocks, HEIGHT, number=number)
    for number, blocks in enumerate(pages, start=1):
        heads.mark(blocks, HEIGHT, number=number, is_prose=is_prose(blocks))
    return [[each.text for each in blocks if each.left_out] for blocks in pages]


@pytest.mark.parametrize("number", ["7", "Page 7 of 12", "- 7 -", "xii", "Seite 7/12", "Page | 7", "pág. 7", "стр. 7"])
def test_page_numbers_are_left_out(number: str) -> None:
    blocks = [body(), block(number, 800)]
    assert omitted_texts(blocks) == [[number]]
    assert blocks[1].kind == "footer"


def test_lines_that_several_pages_repeat_are_left_out() -> None:
    pages = [[block(f"Annual report {number}", 80), body()] for number in range(3)]
    assert omitted_texts(*pages) == [["Annual report 0"], ["Annual report 1"], ["Annual report 2"]]


def test_a_letterhead_stays_on_the_first_page_that_has_it() -> None:
    text = "Example Ltd, tel 0555 1234567, info@example.com"
    assert omitted_texts([block(text, 30), body()], [block(text, 30), body()]) == [[], [text]]


def test_a_single_line_on_a_page_without_prose_stays() -> None:
    assert omitted_texts([block("Example Ltd", 30), block("| a | b |", 200, kind="table")]) == [[]]


@pytest.mark.parametrize("text", ["Example Ltd", "Invoice No. 2024-117"])
def test_a_repeated_head_stays_on_the_first_page_that_has_it_if_there_is_no_prose(text: str) -> None:
    """The name of the seller and the number of the invoice may be nowhere else."""
    pages = [[block(text, 30), block("| a | b |", 200, kind="table"), block("Example", 800)] for _ in range(3)]
    assert omitted_texts(*pages) == [["Example"], [text, "Example"], [text, "Example"]]


def test_numbers_of_several_invoices_in_one_file_stay() -> None:
    def pages(*texts: str) -> list[list[Block]]:
        return [[block(text, 30), block("| a | b |", 200, kind="table")] for text in texts]

    assert omitted_texts(*pages("Invoice 1001", "Invoice 1001", "Invoice 1002")) == [[], ["Invoice 1001"], []]
    assert omitted_texts(*pages("Report 1", "Report 2", "Report 3")) == [[], ["Report 2"], ["Report 3"]]


def test_a_head_with_the_number_of_a_page_is_left_out_of_a_table_after_prose() -> None:
    pages = [
        [block("A. Author 1235", 30), body()],
        [block("A. Author 1236", 30), block("| a | b |", 200, kind="table")],
    ]
    assert omitted_texts(*pages) == [["A. Author 1235"], ["A. Author 1236"]]


def test_a_line_beside_a_running_head_is_left_out() -> None:
    """For example, the name of a journal in large type is in the same row as the number of the issue."""
    name, issue = "## A Journal of Examples | www.example.org 1", "| e2748"
    blocks = [body(), block(name, 800, kind="title"), block(issue, 801, x=500, kind="footer")]
    assert omitted_texts(blocks) == [[name, issue]]


def test_a_heading_beside_its_number_stays() -> None:
    heading = block("## Measures", 30, x=100, kind="title")
    assert heading.text not in omitted_texts([block("4", 30, kind="header"), heading, body()])[0]


def test_a_line_above_a_page_number_is_left_out() -> None:
    blocks = [body(), block("Conference 2015", 740), block("7", 800)]
    assert omitted_texts(blocks) == [["Conference 2015", "7"]]
    assert omitted_texts([body(), block("The last line of it", 740)]) == [[]]


def test_a_line_that_is_nearer_to_the_text_than_to_a_running_head_stays() -> None:
    """For example, the first line of a code listing at the top of a page."""
    example, text = block("cat file1 file2 >file3", 80), block("words of a paragraph " * 14, 110, lines=20)
    blocks = [block("- 3 -", 40), example, text]
    assert omitted_texts(blocks) == [["- 3 -"]]


def test_a_title_that_no_other_page_repeats_stays() -> None:
    """The layout model mistakes some titles at the top of a page for running heads."""
    title = block("# The history of the example", 70, kind="header")
    assert omitted_texts([title, body()], [body()], [body()]) == [[], [], []]
    assert omitted_texts([title, body()], [title, body()]) == [[title.text], [title.text]]


@pytest.mark.parametrize("text", ["2 A. Author et al.", "Example of a title 2"])
def test_a_line_with_the_number_of_its_page_is_left_out(text: str) -> None:
    pages = [[body()], [block(text, 95), body()]]
    assert omitted_texts(*pages) == [[], [text]]
    assert omitted_texts([body()], [body()], [block(text, 95), body()]) == [[], [], []]


def test_the_number_of_a_page_of_prose_with_wide_margins_is_left_out() -> None:
    assert omitted_texts([body(), block("7", 690)]) == [["7"]]
    assert omitted_texts([block("Total", 200), block("7", 690)]) == [[]]


@pytest.mark.parametrize("text", ["Download date: 28 Dec 2018", "Downloaded from example.org at 6:51 on Monday"])
def test_a_stamp_is_left_out_of_any_page(text: str) -> None:
    assert omitted_texts([block("A cover", 200), block(text, 800)]) == [[text]]


def test_a_foot_stays_on_a_page_without_prose_only_if_it_has_values() -> None:
    name, account, total = "A university", "account 4711000815", "Total 1,250.00"
    cover = block("A cover", 200)
    assert omitted_texts([cover, block(name, 800)]) == [[name]]
    assert omitted_texts([cover, block(account, 800)]) == [[]]
    assert omitted_texts([cover, block(total, 800)]) == [[]]


@pytest.mark.parametrize(("text", "lines"), [("1 Estimate of 2021 2 Estimate of 2020", 2), ("* Without tax", 1)])
def test_footnotes_stay(text: str, lines: int) -> None:
    assert omitted_texts([body(), block(text, 800, lines=lines, kind="footer")]) == [[]]


def test_a_repeated_line_that_begins_like_a_footnote_is_left_out() -> None:
    pages = [[body(), block(f"{number} Annual report of an example", 800, lines=2)] for number in (10, 11)]
    assert omitted_texts(*pages) == [[pages[0][1].text], [pages[1][1].text]]


def test_a_page_keeps_its_text_if_nothing_else_would_be_left() -> None:
    blocks = [block("Part two", 30)]
    blocks[0].left_out = True
    restore_if_empty(blocks)
    assert not blocks[0].left_out
