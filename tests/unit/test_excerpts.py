"""Excerpts of a text for corrections."""

from typing import Any

import pytest

from etl.postprocessors.excerpts import Excerpts, ExcerptText, words

TABLE = """\
<!-- page: 1 -->
| Number | Name | Price |
| --- | --- | --- |
| A1 | Hinge | 1.00 |
|  | galvanized |  |
| A2 | Filter | 2.00 |
<!-- page: 2 -->
| A3 | Bench | 3.00 |
|  | oak |  |
| A4 | Lamp | 4.00 |
"""


def find(excerpts: Excerpts, item: dict[str, Any]) -> int:
    unit = excerpts.find(item, [])
    assert unit is not None
    return unit


def shown_of(excerpts: Excerpts, unit: int) -> str:
    shown = ExcerptText()
    shown.add(excerpts, [unit])
    return shown.text


def test_a_row_is_shown_with_the_rows_that_continue_its_cells() -> None:
    """Without the second row, the model would mistake the first part of a cell for the whole text."""
    excerpts = Excerpts(TABLE, first_page=1)
    unit = find(excerpts, {"number": "A3", "price": 3})
    assert shown_of(excerpts, unit).splitlines()[-2:] == ["| A3 | Bench | 3.00 |", "|  | oak |  |"]


GROUPED = (
    "| article | amount |\n|---|---|\n"
    "| North | |\n| Branch 7 | |\n"
    + "".join(f"| x{number} | {number}.25 |\n" for number in range(10, 15))
    + "| Branch 8 | |\n"
    + "".join(f"| x{number} | {number}.25 |\n" for number in range(15, 20))
)


def test_an_item_is_not_found_in_the_row_of_its_group() -> None:
    """The rarest words of this item are those of its groups, but the item is in another row."""
    excerpts = Excerpts(GROUPED, first_page=1)
    unit = find(excerpts, {"region": "North", "branch": "Branch 8", "amount": 16.25})
    assert GROUPED[slice(*excerpts.span(unit))] == "| x16 | 16.25 |\n"


def test_rows_of_other_groups_of_a_table_are_shown_without_its_head() -> None:
    """A regression test: the head was repeated for each group, so that heads were half of a request."""
    excerpts = Excerpts(GROUPED, first_page=1)
    shown = ExcerptText()
    shown.add(excerpts, [unit for sku in ("x11", "x12", "x17") if (unit := excerpts.find({"article": sku}, []))])
    rows = "| North | |\n| Branch 7 | |\n| x11 | 11.25 |\n| x12 | 12.25 |\n| Branch 8 | |\n| x17 | 17.25 |"
    assert shown.text.endswith(f"|---|---|\n{rows}")
    assert shown.text.count("|---|") == 1


def test_an_excerpt_has_its_page_and_the_head_of_its_table() -> None:
    excerpts = Excerpts(TABLE, first_page=1)
    shown = shown_of(excerpts, find(excerpts, {"number": "A3", "price": 3}))
    assert "<!-- page: 2 -->" in shown
    assert "| Number | Name | Price |" in shown
    assert "Filter" not in shown


def test_a_row_that_the_document_repeats_is_found_by_all_of_its_words() -> None:
    """A regression test: all words of the row are frequent, so it was not found, and the whole text was sent again."""
    rows = "".join(
        f"| B1 | Hinge | 7.00 |\n| B2 | Hinge | 7.00 |\n| C{number} | Hinge | 9.00 |\n" for number in range(5)
    )
    excerpts = Excerpts(f"<!-- page: 1 -->\n| Number | Name | Price |\n| --- | --- | --- |\n{rows}", first_page=1)
    unit = find(excerpts, {"number": "B2", "name": "Hinge", "price": "7 EUR"})
    assert shown_of(excerpts, unit).splitlines()[-1] == "| B2 | Hinge | 7.00 |"
    assert excerpts.find({"name": "Hinge"}, []) is None


def test_a_value_that_is_not_in_the_text_has_no_excerpt() -> None:
    assert Excerpts(TABLE, first_page=1).find({"number": "Z9"}, []) is None


@pytest.mark.parametrize(
    ("text", "word"),
    [("12,50", "12.5"), ("1,000.00", "1000"), ("1.000,00", "1000"), ("1'000", "1000"), ("100", "100"), ("0.00", "0")],
)
def test_numbers_are_compared_without_separators_and_trailing_decimal_zeros(text: str, word: str) -> None:
    assert list(words(text)) == [word]


def test_integers_that_differ_by_zeros_are_different() -> None:
    """All rows share the price, so only the count identifies a row."""
    excerpts = Excerpts("| Count | Price |\n| --- | --- |\n| 100 | 2.50 |\n| 10 | 2.50 |\n| 1 | 2.50 |\n", first_page=1)
    start, end = excerpts.span(find(excerpts, {"count": 10, "price": 2.5}))
    assert excerpts.content[start:end].strip() == "| 10 | 2.50 |"
