"""The headings and groups of rows, which may be in the text before a piece or an excerpt."""

import pytest

from etl.postprocessors.excerpts import Excerpts
from etl.postprocessors.groups import HeadingsAndTables
from etl.postprocessors.tables import TableHeads
from tests.unit.test_excerpts import find, shown_of

HEAD = "| region | account | amount |\n|---|---|---|\n"
TABLES = {
    "one cell": (
        f"{HEAD}| North | | |\n| | 7 | 1.00 |\n| x | 8 | 2.00 |\n| x | 8 | 3.00 |\n",
        "| x | 8 | 3",
        ["North"],
    ),
    "the next group": (f"{HEAD}| North | | |\n| x | 7 | 1.00 |\n| South | | |\n| x | 8 | 2.00 |\n", "| South", []),
    "nested groups": (
        f"{HEAD}| North | | |\n| Kiel | | |\n| x | 7 | 1.00 |\n| Bremen | | |\n| x | 8 | 2.00 |\n| x | 8 | 3.00 |\n",
        "| x | 8 | 3",
        ["North", "Bremen"],
    ),
    "the next inner group": (
        f"{HEAD}| North | | |\n| Kiel | | |\n| x | 7 | 1.00 |\n| Bremen | | |\n| x | 8 | 2.00 |\n",
        "| Bremen",
        ["North"],
    ),
    "the next outer group": (
        f"{HEAD}| North | | |\n| Kiel | | |\n| x | 7 | 1.00 |\n| South | | |\n| Ulm | | |\n| x | 8 | 2.00 |\n",
        "| South",
        [],
    ),
    "two empty cells": (f"{HEAD}| North | 7 | 1.00 |\n| | | 2.00 |\n| | | 3.00 |\n", "| | | 3", ["North | 7"]),
    "an empty row": (f"{HEAD}| North | 7 | 1.00 |\n| | | |\n| | | 3.00 |\n", "| | | |", []),
    "no group": (f"{HEAD}| North | 7 | 1.00 |\n| South | 8 | 2.00 |\n", "| South", []),
}
HTML = "<table><tr><th>region</th><th>account</th><th>amount</th></tr>"
OPEN = f"{HTML}<tr><td rowspan=3>North</td><td rowspan='2'>7</td><td>1</td></tr><tr><td>2</td></tr><tr><td>8</td><td>3"
HTML_TABLES = {
    "open cells": (OPEN, "<tr><td>2", ["<td>North</td><td>7</td>"]),
    "a closed cell": (f"{OPEN}</td></tr>", "<tr><td>8", ["<td>North</td>"]),
    "nested groups": (
        f"{HTML}<tr><td colspan=3>North</td></tr><tr><td colspan=3>Kiel</td></tr><tr><td>x</td><td>7</td></tr>",
        "<tr><td>x",
        ["North", "Kiel"],
    ),
    "one cell": (f"{HTML}<tr><td colspan=3>North</td></tr><tr><td>x</td><td>7</td></tr>", "<tr><td>x", ["North"]),
}


@pytest.mark.parametrize(
    ("text", "row", "groups"),
    [*TABLES.values(), *HTML_TABLES.values()],
    ids=[*TABLES, *(f"html: {name}" for name in HTML_TABLES)],
)
def test_it_finds_the_groups_of_a_row(text: str, row: str, groups: list[str]) -> None:
    place = text.index(row)
    above = HeadingsAndTables(text)
    assert above.lead(place, len(text))[0] == place
    found = list(above.groups(place))
    assert len(found) == len(groups)
    assert all(group in line for group, line in zip(groups, found, strict=True))


def test_the_head_of_a_table_may_have_several_rows() -> None:
    head = "<tr><th colspan=2>2024</th></tr><tr><th>account</th><th>amount</th></tr>"
    text = f"<table>{head}<tr><th>7</th><td>1</td></tr><tr><th>8</th><td>2</td></tr></table>"
    place = text.index("<tr><th>8")
    assert HeadingsAndTables(text).lead(place, len(text)) == (place, head)


def test_it_finds_the_headings_of_a_position() -> None:
    text = "# Report\n\n## Account 7\n\nx\n\n### Fees\n\ny\n\n## Account 8\n\n**Interest**\n\nz\n"
    above = HeadingsAndTables(text)
    assert above.headings_of(text.index("y")) == "# Report\n## Account 7\n### Fees"
    assert above.headings_of(text.index("z")) == "# Report\n## Account 8\n**Interest**"
    assert above.headings_of(text.index("## Account 8")) == "# Report"
    assert above.headings_of(0) == ""


def test_an_excerpt_has_the_headings_and_groups_of_its_rows() -> None:
    """A regression test: a correction, which contains only the invalid rows, lacked the name of their account."""
    rows = "".join(f"| x{number} | {number} | {number}.00 |\n" for number in range(9))
    excerpts = Excerpts(f"## Account 7\n\n{HEAD}| North | | |\n{rows}", first_page=1)
    shown = shown_of(excerpts, find(excerpts, {"region": "x8", "amount": 8}))
    assert "## Account 7" in shown
    assert "| North | |" in shown
    assert "x7" not in shown


def test_tags_of_a_table_may_be_in_upper_case() -> None:
    """The text of custom providers may contain such tags."""
    head = "<TR><TH>Item</TH><TH>Price</TH></TR>"
    content = f"<TABLE>{head}<TR><TD>Lamp</TD><TD>4.00</TD></TR></TABLE>\nEnd"
    [table] = TableHeads(content).tables
    assert (table.head, table.columns, content[table.end :]) == (head, 2, "\nEnd")
