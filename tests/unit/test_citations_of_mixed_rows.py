"""Citations of items that mix the values of two rows, and of items that span several rows. B31."""

from typing import Any

import pytest

from tests.unit.test_citations import HEAD, SURE, citations, statement

WRAPPED = "| Item | Qty | Gross |\n|---|---|---|\n| Lamp | 1 | 11.90 |\n| of steel |  |  |\n| Desk | 1 | 23.80 |"
WHOLE = {"/0/name": "| alpha | 11.90 |", "/0/amount": "| beta 40W | 23.80 |"}
ROWS = [(f"item{number:02}x", 1, f"{number * 11 + 1}.90") for number in range(1, 15)]
TABLE = statement(ROWS, per_page=20)[0]
LINES = "alpha 11.90\n\nbeta 23.80\n\ngamma 35.70"
NAMES = "| Item | Gross |\n|---|---|\n| alpha | 11.90 |\n| beta 40W | 23.80 |\n| gamma | 35.70 |"
HTML = "<table>" + "".join(
    f"<tr><td>{name}</td><td>{sum_}</td></tr>" for name, sum_ in (("alpha", "11.90"), ("beta", "23.80"))
)


def uncertain_pointers(data: Any, page: str, quotes: Any = None) -> list[str]:
    found = citations(data, quotes, pages=[page])
    return [pointer for pointer, each in found.items() if each["match"] not in SURE]


@pytest.mark.parametrize(
    ("page", "data", "quotes"),
    [
        (TABLE, [{"name": "item01x", "amount": 23.9}], {}),
        (TABLE, [{"name": "item01x", "qty": 1, "amount": 23.9}, {"name": "item03x", "qty": 1, "amount": 34.9}], {}),
        (TABLE, [{"name": "item03x", "amount": 23.9}, {"name": "item04x", "amount": 45.9}], {}),
        (TABLE, [{"name": "item01x", "amount": 144.9}], {}),
        (TABLE, [{"name": "item01x", "amount": 144.9}], {"/0/amount": "144.90"}),
        (NAMES, [{"name": "alpha", "amount": 23.8}, {"name": "gamma", "amount": 35.7}], {}),
        (NAMES, [{"name": "alpha", "amount": 23.8}], {"/0/amount": "| beta 40W | 23.80 |"}),
        (NAMES, [{"name": "alpha", "amount": 23.8}], {"/0/name": "| alpha | 11.90 |"}),
        (NAMES, [{"name": "alpha", "amount": 23.8}], WHOLE),
        (NAMES, [{"name": "alpha", "amount": 23.8}], {"/0/name": "alpha", "/0/amount": "23.80"}),
        (NAMES, [{"name": "alpha", "amount": 35.7}], {"/0/name": "alpha", "/0/amount": "35.70"}),
        (WRAPPED, [{"name": "Lamp of steel", "amount": 23.8}], {}),
        (HTML, [{"name": "alpha", "amount": 23.8}], {}),
        (LINES, [{"name": "alpha", "amount": 23.8}, {"name": "gamma", "amount": 35.7}], {}),
        (LINES, [{"name": "alpha", "amount": 23.8}], {"/0/name": "alpha 11.90", "/0/amount": "beta 23.80"}),
        ("Lamp 40 W 11.90\nDesk 23.80", [{"name": "Lamp 40 W", "amount": 23.8}], {}),
        ("Lamp: EUR 11.90\nDesk: EUR 23.80", [{"name": "Lamp", "amount": 23.8}], {}),
        ("01.02.2024 Lamp 11\n02.02.2024 Desk 23", [{"name": "Lamp", "sum": 11, "date": "2024-02-02"}], {}),
    ],
)  # fmt: skip
def test_an_item_that_mixes_two_complete_rows_is_not_sure(page: str, data: Any, quotes: Any) -> None:
    """A model that skips a row may return its amount with another name."""
    found = citations(data, quotes, pages=[page])
    doubtful = {pointer for pointer, each in found.items() if each["match"] == "ambiguous"}
    assert {pointer.rpartition("/")[0] for pointer in doubtful} == {"/0"}
    assert all(each["match"] in SURE for pointer, each in found.items() if pointer not in doubtful)


def test_two_amounts_beside_the_name_of_another_row_are_not_sure_with_it() -> None:
    page = "| Item | Net | Gross |\n|---|---|---|\n| alpha | 10.00 | 11.90 |\n| beta | 20.00 | 23.80 |"
    assert uncertain_pointers([{"name": "alpha", "net": 20, "gross": 23.8}], page) == ["/0/name"]


def test_a_number_outside_its_quoted_row_is_not_found() -> None:
    quotes = {"/0/name": "| alpha | 11.90 |", "/0/amount": "| alpha | 11.90 |"}
    found = citations([{"name": "alpha", "amount": 23.8}], quotes, pages=[NAMES])
    assert [each["match"] for each in found.values()] == ["exact", "not_found"]


@pytest.mark.parametrize(
    ("page", "data"),
    [
        # Lines below a row, with values that were not requested.
        ("Desk lamp 4711\n  31.50 EUR", [{"name": "Desk lamp", "amount": 31.5}]),
        ("Desk lamp 12.50\nAmount: 31.50", [{"name": "Desk lamp", "amount": 31.5}]),
        ("Item A-1  Desk\n  Qty: 3  Unit: 4.50\n  Total: 13.50", [{"sku": "A-1", "qty": 3, "sum": 13.5}]),
        (f"{HEAD}\n| 1 | Lamp 40 W | 2 |  |\n|  | Art. 4711 |  | 31.50 |", [{"name": "Lamp 40 W", "amount": 31.5}]),
        (f"{HEAD}\n| 1 | Lamp 40 W | 2 | 31.50 |\n|  | Art. 4711 |  |  |", [{"art": "4711", "amount": 31.5}]),
        (f"{HEAD}\n| 1 | Lamp 40 W | 2 | 31.50 |\n|  | Fee |  | 1.50 |", [{"name": "Lamp 40 W", "a": 31.5, "b": 1.5}]),
        # A group in its first row only.
        (
            "| Group | Day | Sum |\n|---|---|---|\n| Bulbs | 01.02.2024 | 5.00 |\n|  | 03.02.2024 | 7.00 |",
            [{"group": "Bulbs", "sum": 7}],
        ),
        # Rows that always consist of two lines.
        (
            "| Name | Price |\n|---|---|\n| Lamp | 10.00 |\n| Gross | 11.90 |\n| Desk | 20.00 |\n| Gross | 23.80 |",
            [{"name": "Lamp", "sum": 11.9}, {"name": "Desk", "sum": 23.8}],
        ),
        ("Lamp 4711\nPreis 31\nDesk 4712\nPreis 47", [{"name": "Lamp", "sum": 31}, {"name": "Desk", "sum": 47}]),
        # Two tables about the same items.
        (
            "| Name | Age |\n|---|---|\n| Ann | 31 |\n\n| City | Tax |\n|---|---|\n| Bonn | 4711 |",
            [{"name": "Ann", "tax": 4711}],
        ),
        ("Ann earns 100.00\nAnn pays 23.00", [{"name": "Ann", "tax": 23}]),
    ],
)  # fmt: skip
def test_an_item_of_several_rows_stays_sure(page: str, data: Any) -> None:
    assert uncertain_pointers({"lines": data}, page) == []
