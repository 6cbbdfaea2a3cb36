"""Bounding boxes of citations on pages. B31."""

from time import process_time

import pytest

from etl.postprocessors.citations.boxes import Boxes
from etl.postprocessors.citations.index import Index
from etl.postprocessors.document_text import clean
from etl.providers.base import Cell, Lines, OCRResult, PagedMarkdown

HEIGHT, LETTER = 12.0, 6.0


def text_of(*pages: str) -> Index:
    markdown = PagedMarkdown()
    for number, page in enumerate(pages, start=1):
        markdown.add(number, page)
    ocr = OCRResult(markdown=str(markdown), pages=tuple(markdown.pages), provider="", provider_task_id="")
    return Index(clean(ocr))


def lines(*printed: str) -> Lines:
    """Return lines of equal height. Cells are separated by tabs, and start at x = 0, 100, 200, …"""
    return [
        [cell(text, 100.0 * column, 20.0 * row) for column, text in enumerate(line.split("\t")) if text]
        for row, line in enumerate(printed)
    ]


def cell(text: str, x: float, y: float) -> Cell:
    return x, y, x + LETTER * len(text), y + HEIGHT, text


def place(index: Index, value: str, *, times: int = 1) -> tuple[int, int]:
    start = -1
    for _ in range(times):
        start = index.content.index(value, start + 1)
    return start, start + len(value)


def test_the_box_of_a_value_is_that_of_its_row() -> None:
    index = text_of("# Invoice\n\n| item | price |\n| --- | --- |\n| Pump | 12.50 |\n| Valve | 3.00 |")
    boxes = Boxes({1: lines("Invoice", "item\tprice", "Pump\t12.50", "Valve\t3.00")}, index)
    assert boxes.find(place(index, "12.50"), 1) == [0, 40, 130, 52]
    assert boxes.find(place(index, "Invoice"), 1) == [0, 0, 42, 12]


def test_equal_rows_have_places_of_their_own() -> None:
    """B31."""
    index = text_of("| Pump | 2.00 |\n| Valve | 9.00 |\n| Pump | 2.00 |")
    boxes = Boxes({1: lines("Pump\t2.00", "Valve\t9.00", "Pump\t2.00")}, index)
    assert boxes.find(place(index, "2.00"), 1) == [0, 0, 124, 12]
    assert boxes.find(place(index, "2.00", times=2), 1) == [0, 40, 124, 52]


def test_the_box_of_a_row_with_several_lines_includes_all_lines() -> None:
    index = text_of("| Pump with a steel housing | 12.50 |\n| Valve | 3.00 |")
    boxes = Boxes({1: lines("Pump with\t12.50", "a steel housing", "Valve\t3.00")}, index)
    assert boxes.find(place(index, "12.50"), 1) == [0, 0, 130, 32]


def test_the_box_in_a_paragraph_is_the_line_of_the_value() -> None:
    index = text_of("This contract begins on 3 May and ends after two years. The fee is 500 EUR, due in advance.")
    printed = (
        "This contract begins",
        "on 3 May and ends after",
        "two years. The fee is",
        "500 EUR, due in",
        "advance.",
    )
    boxes = Boxes({1: lines(*printed)}, index)
    assert boxes.find(place(index, "500 EUR"), 1) == [0, 60, 90, 72]


def test_columns_side_by_side_are_not_one_row() -> None:
    index = text_of("Bill to Miller\n\nShip to Jones")
    boxes = Boxes({1: [[cell("Bill to Miller", 0, 0), cell("Ship to Jones", 300, 0)]]}, index)
    assert boxes.find(place(index, "Miller"), 1) == [0, 0, 84, 12]
    assert boxes.find(place(index, "Jones"), 1) == [300, 0, 378, 12]


def test_equal_lines_on_different_pages_have_different_boxes() -> None:
    index = text_of("Total 5.00", "Total 5.00")
    boxes = Boxes({1: lines("", "Total 5.00"), 2: lines("Total 5.00")}, index)
    assert boxes.find(place(index, "5.00"), 1) == [0, 20, 60, 32]
    assert boxes.find(place(index, "5.00", times=2), 2) == [0, 0, 60, 12]


def test_a_value_without_lines_has_no_box() -> None:
    index = text_of("Total 5.00")
    assert Boxes({}, index).find(place(index, "5.00"), 1) is None
    assert Boxes({1: lines("Something else")}, index).find(place(index, "5.00"), 1) is None


def test_a_wide_page_is_processed_in_time() -> None:
    words = [f"w{number}" for number in range(800)]
    wide = 5
    rows = [" | ".join(words)] * wide + words
    index = text_of("\n".join(f"| {row} |" for row in rows))
    boxes = Boxes({1: lines(*["\t".join(words)] * wide, *words)}, index)
    y = 20 * (len(rows) - 1)
    before = process_time()
    assert boxes.find(place(index, words[-1], times=wide + 1), 1) == [0, y, LETTER * len(words[-1]), y + HEIGHT]
    assert process_time() - before < 5


@pytest.mark.slow
def test_a_page_of_many_equal_rows_is_processed_in_time() -> None:
    rows = 3_000
    index = text_of("\n".join("| the item of the day | 2.00 |" for _ in range(rows)))
    boxes = Boxes({1: lines(*["the item of the day\t2.00"] * rows)}, index)
    before = process_time()
    assert boxes.find(place(index, "2.00", times=rows), 1) == [0, 20 * (rows - 1), 124, 20 * (rows - 1) + HEIGHT]
    assert process_time() - before < 5
