"""The scores of the reading benchmark, whose measures detect missing, split, and misplaced parts."""

import json
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import pytest

from tests.reading.corpus import Case, cases
from tests.reading.einvoices import truth_of
from tests.reading.grids import grids
from tests.reading.measures import facts, fields, headings, invoice_rows, invoice_values, reading_order, tables
from tests.reading.prepare import html_table
from tests.reading.reading import Reading
from tests.reading.report import table
from tests.reading.results import Result, load, save
from tests.reading.scoring import best_of, lost_pages, score, shares
from tests.reading.text import edit_distance, ends_of, indel_similarity, plain, starts_of
from tests.reading.trees import Node, similarity
from tests.reading.values import Haystack

PRICES = """
| Item | Net | Gross |
| --- | ---: | ---: |
| Paper, A4 | 99.58 | 118.50 |
| Ink | 10.00 | 11.90 |
"""


@pytest.fixture
def document(tmp_path: Path) -> Case:
    (tmp_path / "17.png").write_bytes(b"")
    return Case(tmp_path / "17.png")


def with_truth(document: Case, kind: str, truth: Any) -> Case:
    text = truth if isinstance(truth, str) else json.dumps(truth)
    document.path.with_name(f"17.{kind}").write_text(text)
    return document


# ---- Texts ----------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("left", "right", "similarity", "edits"),
    [("", "", 1.0, 0), ("abc", "", 0.0, 3), ("abc", "abc", 1.0, 0), ("abcd", "abxd", 0.75, 1), ("ab", "ba", 0.5, 2)],
)
def test_distances_of_texts(left: str, right: str, similarity: float, edits: int) -> None:
    assert indel_similarity(left, right) == indel_similarity(right, left) == similarity
    assert edit_distance(left, right) == edit_distance(right, left) == edits


def test_a_near_match_ends_where_the_fewest_characters_differ() -> None:
    text = "the reader of documents"

    assert ends_of("reader", text, max_edits=0) == [10]
    assert ends_of("raeder", text, max_edits=1) == []
    assert 10 in ends_of("raeder", text, max_edits=2)
    assert starts_of("reader", text, max_edits=0) == [4]


def test_plain_text_has_no_markup() -> None:
    markdown = "# Terms\n\n![](a.png)\n- **We** agree\n\n| a | b |\n| --- | ---: |\n| <td>1</td> | 2\\* |"

    assert plain(markdown) == "Terms We agree a b 1 2*"


# ---- Facts ----------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("fact", "holds"),
    [
        ({"type": "present", "text": "Net  “price”"}, True),
        ({"type": "present", "text": "net “price”"}, False),
        ({"type": "present", "text": "net “price”", "case_sensitive": False}, True),
        ({"type": "present", "text": "Nit “price”", "max_diffs": 1}, True),
        ({"type": "absent", "text": "Page 1"}, False),
        ({"type": "absent", "text": "Page 1", "first_n": 10}, True),
        ({"type": "absent", "text": "1", "last_n": 3}, False),
        ({"type": "order", "before": "Net", "after": "Paper"}, True),
        ({"type": "order", "before": "Ink", "after": "Paper"}, False),
        ({"type": "order", "before": "Ink", "after": "Pencil"}, False),
        ({"type": "table", "cell": "118.50", "left": "99.58", "down": "11.90"}, True),
        ({"type": "table", "cell": "118.50", "up": "11.90"}, False),
        ({"type": "table", "cell": "11.90", "top_heading": "Gross", "left_heading": "Ink"}, True),
        ({"type": "table", "cell": "11.90", "top_heading": "Net"}, False),
    ],
)
def test_facts_follow_the_rules_of_the_public_benchmark(document: Case, fact: dict[str, Any], *, holds: bool) -> None:
    with_truth(document, "facts.jsonl", {"id": "a", **fact})

    assert facts(document, f'# Net "price"\n{PRICES}\nPage 1') == {f"{fact['type']} a": float(holds)}


def test_equations_are_not_judged(document: Case) -> None:
    with_truth(document, "facts.jsonl", {"id": "a", "type": "math", "math": "x"})

    assert facts(document, "x") == {}


def test_a_table_in_html_has_the_neighbors_of_its_spans() -> None:
    [grid] = grids('<table><tr><th colspan="2">A</th></tr><tr><td>b</td><td>c</td></tr></table>')
    a, b, c = grid.cells

    assert grid.neighbors(a, "down") == [b, c]
    assert grid.headings(c, "up") == [a]
    assert grid.headings(c, "left") == [b]


# ---- Values ---------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("value", "text", "found"),
    [
        (1234.5, "Total: 1,234.50 EUR", True),
        (1234.5, "Summe: 1.234,50", True),
        (1234.5, "1 234,5", True),
        (1234.5, "1,234.51", False),
        ("1234.50", "1,234.51", False),
        ("1234", "KD-1234-7", True),
        (-12, "(12)", True),
        ("2026-03-05", "5 March 2026", True),
        ("2026-03-05", "05.03.2026", True),
        ("2026-03-05", "le 5 mars 2026", True),
        ("2026-03-05", "March 6, 2026", False),
        ("New York-Branch", "NEW\nYORK BRANCH", True),
        ("12E4", "Article 12E4", True),
        ("NY", "ANYONE", False),
        ("NY", "Albany, NY", True),
    ],
)
def test_a_value_is_found_as_it_is_printed(value: object, text: str, *, found: bool) -> None:
    assert Haystack(text).has(value) is found


def test_fields_are_values_of_the_text(document: Case) -> None:
    with_truth(document, "fields.json", {"/net": 99.58, "/seller": "Absent Ltd"})

    assert fields(document, PRICES) == {"/net": 1.0, "/seller": 0.0}


def test_an_invoice_row_has_its_name_and_amount_in_one_row(document: Case) -> None:
    rows = [{"name": "Paper, A4", "amount": "118.5"}, {"name": "Paper, A4", "amount": "11.90"}]
    with_truth(document, "invoice.json", {"values": {"total": "130.40"}, "rows": rows})

    assert list(invoice_rows(document, PRICES).values()) == [1.0, 0.0]
    assert list(invoice_rows(document, "Paper A4 118,50\n\nInk 11,90").values()) == [1.0, 0.0]
    assert list(invoice_rows(document, "Paper A4\n118,50").values()) == [0.0, 0.0]
    assert invoice_values(document, PRICES) == {"total": 0.0}


def test_the_truth_of_an_e_invoice_is_its_xml() -> None:
    root = ET.fromstring(  # noqa: S314 - written here
        "<Invoice><ExchangedDocument><ID>17</ID><IssueDateTime><DateTimeString>20260305</DateTimeString>"
        "</IssueDateTime></ExchangedDocument><IncludedSupplyChainTradeLineItem><SpecifiedTradeProduct><Name>Ink</Name>"
        "</SpecifiedTradeProduct><Sum><LineTotalAmount>11.90</LineTotalAmount></Sum></IncludedSupplyChainTradeLineItem>"
        "</Invoice>"
    )

    assert truth_of(root) == {
        "values": {"number": "17", "date": "2026-03-05"},
        "rows": [{"name": "Ink", "amount": "11.90"}],
    }


# ---- Structure ------------------------------------------------------------------------------------------------------
def test_recorded_tables_count_from_any_number_and_their_regions_are_joined() -> None:
    def region(column_increment: int, *cells: tuple[int, int, str]) -> str:
        found = "".join(
            f'<cell start-row="{row}" start-col="{column}"><content>{text}</content></cell>'
            for row, column, text in cells
        )
        return f'<region col-increment="{column_increment}">{found}</region>'

    recorded = (
        region(0, (1, 1, "Age"), (1, 2, "People"), (2, 1, "0"), (2, 2, "353"))
        + region(2, (1, 1, "Age"), (1, 2, "People"), (2, 1, "40"))
        + region(0, (0, 0, "80"), (0, 1, "723"))
    )
    [grid] = grids(html_table(ET.fromstring(f"<table>{recorded}</table>")))  # noqa: S314 - made here

    assert [[cell.text for cell in line] for line in grid.lines] == [
        ["Age", "People", "Age", "People"],
        ["0", "353", "40", ""],
        ["80", "723"],
    ]


def test_trees_differ_by_the_nodes_that_are_inserted_deleted_or_changed() -> None:
    one = Node("table", children=[Node("row", children=[Node("cell", "ab"), Node("cell", "c")])])
    two = Node("table", children=[Node("row", children=[Node("cell", "ax")])])

    assert similarity(one, one) == 1.0
    assert similarity(one, two) == similarity(two, one) == 1 - 1.5 / 4
    assert similarity(one, Node("document")) == 0.0


def test_a_table_is_compared_with_the_most_similar_one(document: Case) -> None:
    with_truth(document, "truth.md", PRICES)
    other = "| x | y |\n| --- | --- |\n| Ink | z |\n"

    assert tables(document, f"{other}\n{PRICES}") == {"table 1": 1.0}
    assert tables(document, "No table.") == {"table 1": 0.0}
    torn = tables(document, PRICES.replace("| Ink", "\n| Ink"))["table 1"]
    assert 0 < torn < 1


def test_text_in_another_order_is_less_similar(document: Case) -> None:
    with_truth(document, "truth.md", "one two three four")

    assert reading_order(document, "**one** two\n\nthree four") == {"nid": 1.0}
    assert reading_order(document, "three four one two")["nid"] < 0.7


def test_headings_count_with_the_text_below_them(document: Case) -> None:
    with_truth(document, "truth.md", "# A\n\ntext\n\n# B\n\nmore")

    assert headings(document, "## A\ntext\n## B\nmore") == {"mhs": 1.0}
    assert headings(document, "# A\n\ntext B more")["mhs"] < 1
    assert headings(document, "A text B more") == {"mhs": 0.0}


# ---- Sums -----------------------------------------------------------------------------------------------------------
def test_a_page_whose_distinctive_words_are_missing_is_lost() -> None:
    same = {"invoice", "total"}
    pages = [
        {"alpha", "bravo", "charlie", "delta", "echoes"} | same,
        {"foxtrot", "golf", "hotel", "india", "juliet"} | same,
    ]

    assert lost_pages(pages, "Invoice, total: foxtrot golf hotel india juliet") == [1]
    assert lost_pages(pages, "alpha bravo foxtrot golf") == []
    assert lost_pages([same], "") == []  # too few words to judge


def test_sums_are_over_parts_and_of_fields_over_documents(document: Case) -> None:
    with_truth(document, "fields.json", {str(index): f"value {index}" for index in range(4)})
    one = score(document, Reading(markdown="value 0, value 1", seconds=2))
    two = score(document, Reading(markdown="", error="file_corrupt"))

    assert shares([one, two])["fields"].value == 0.25
    assert shares(best_of([[one], [two]]))["fields"].value == 0.5
    assert "| fields (1) | 0.500 | 0.000 |" in table({"one": [one], "two": [two]})


# ---- Folders --------------------------------------------------------------------------------------------------------
def test_documents_are_files_without_their_truth(tmp_path: Path) -> None:
    for name in ("a/17.pdf", "a/17.truth.md", "b.md", "b.facts.jsonl", ".sources/c.pdf", "README.md"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()

    found = list(cases(tmp_path))

    assert [case.name for case in found] == ["17.pdf", "b.md"]
    assert {case.name for half in ("dev", "held") for case in cases(tmp_path, half=half)} == {"17.pdf", "b.md"}


def test_variants_of_a_document_are_in_one_half(tmp_path: Path) -> None:
    halves = {Case(tmp_path / f"invoice--{variant}.pdf").half for variant in range(20)}

    assert len(halves) == 1
    assert {Case(tmp_path / f"{name}.pdf").half for name in range(20)} == {"dev", "held"}


def test_stored_readings_can_be_scored_again(document: Case, tmp_path: Path) -> None:
    reading = Reading(markdown="text", warnings=["hidden_text 1"], seconds=1.5)
    save(tmp_path / "results", "local", [Result(document, reading, score(document, reading))])

    assert list(load(tmp_path / "results", "local", [document, Case(tmp_path / "18.png")])) == [(document, reading)]
