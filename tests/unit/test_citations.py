"""Citations of values in the text, in different notations (B31)."""

import calendar
import time
from datetime import date
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import assume, given
from hypothesis import strategies as st

from etl.core.stage_context import StageContext
from etl.pages.tree import resolve
from etl.postprocessors.citations.citing import cite
from etl.postprocessors.citations.folding import fold
from etl.postprocessors.citations.scales import scales_in
from etl.postprocessors.citations.units import scales_of
from etl.postprocessors.document_text import clean
from etl.postprocessors.responses import Evidence, ParsedResponse
from etl.postprocessors.strategies.base import StrategyResult
from tests.integration.llm_factories import ocr_of

FILES = sorted(Path(__file__).with_name("citation_cases").glob("*.yaml"))
MIN_CASES = 300
SURE = ("exact", "normalized")


def citations(data: Any, evidence: Any = None, *, pages: Any, schema: Any = None, places: Any = None) -> Any:
    """Return the citations by pointer. `evidence` has, by pointer, the model's quote, or a pair of page and quote."""
    quotes = {
        pointer: Evidence(page=quote[0], quote=quote[1]) if isinstance(quote, tuple) else Evidence(page=1, quote=quote)
        for pointer, quote in (evidence or {}).items()
        if quote is not None
    }
    found = StrategyResult(answer=ParsedResponse(data=data, evidence=quotes), places=places or {})
    context, text = StageContext(seconds=60), clean(ocr_of(*pages))
    cited = cite(found, schema=schema or {}, text=text, lines={}, context=context)
    return {each["pointer"]: each for each in cited}


@pytest.mark.slow
def test_the_cases_in_the_files_have_the_expected_levels() -> None:
    documents = [document for file in FILES for document in yaml.load(file.read_text(), yaml.CSafeLoader)]
    cases = [(document, case) for document in documents for case in document["cases"]]
    assert len(cases) >= MIN_CASES
    for document, (stated, quote, level, *shown) in cases:
        is_decimal = isinstance(stated, str) and stated.startswith("decimal ")
        value = Decimal(stated.removeprefix("decimal ")) if is_decimal else stated
        schema = {"properties": {"value": document["schema"]}} if "schema" in document else None
        found = citations({"value": value}, {"/value": quote}, pages=document["pages"], schema=schema)
        citation = found.get("/value", {"match": "none", "quote": None})
        assert citation["match"] == level, f"{document['name']}: {value!r} by {quote!r}"
        assert not shown or citation["quote"] == shown[0], f"{document['name']}: {value!r} by {quote!r}"


# ---- Rows -----------------------------------------------------------------------------------------------------------
HEAD = "| No. | Article | Qty | Amount |\n|---|---|---|---|"


def statement(rows: list[tuple[str, int, str]], *, per_page: int) -> list[str]:
    """Return pages with a table of these rows."""
    lines = [
        f"| {number} | {name} | {count} | {amount} |" for number, (name, count, amount) in enumerate(rows, start=1)
    ]
    return ["\n".join([HEAD, *lines[start : start + per_page]]) for start in range(0, len(lines), per_page)]


@pytest.mark.slow
def test_a_repeated_amount_is_cited_in_the_row_of_its_item() -> None:
    """B31."""
    rows = [
        (f"Article {number:03}", number % 7 + 1, ("500.00", "19.90", "1,250.00")[number % 3]) for number in range(500)
    ]
    data = [
        {"article": name, "count": count, "amount": Decimal(amount.replace(",", ""))} for name, count, amount in rows
    ]
    found = citations({"lines": data}, pages=statement(rows, per_page=25))
    for number, (name, _, _) in enumerate(rows):
        for member in ("article", "count", "amount"):
            citation = found[f"/lines/{number}/{member}"]
            assert (citation["page"], citation["match"] in SURE) == (number // 25 + 1, True)
            assert name in citation["quote"]


def test_equal_rows_are_cited_in_order() -> None:
    rows = [("Coffee", 1, "2.50"), ("Coffee", 1, "2.50"), ("Tea", 1, "2.00"), ("Coffee", 1, "2.50")]
    data = [{"article": name, "amount": float(amount)} for name, _, amount in rows]
    found = citations(data, pages=statement(rows, per_page=1))
    assert [found[f"/{number}/amount"]["page"] for number in range(4)] == [1, 2, 3, 4]


def test_the_piece_decides_between_equal_rows() -> None:
    rows = [("Coffee", 1, "2.50"), ("Coffee", 1, "2.50"), ("Coffee", 1, "2.50")]
    found = citations(
        [{"article": "Coffee", "amount": 2.5}],
        pages=statement(rows, per_page=1),
        places={"/0/article": (2, 2), "/0/amount": (2, 2)},
    )
    assert [each["page"] for each in found.values()] == [2, 2]


def test_no_row_is_better_than_a_wrong_one() -> None:
    rows = [("Coffee", 1, "2.50"), ("Coffee", 1, "2.50"), ("Coffee", 1, "2.50")]
    [found] = citations({"amount": 2.5}, pages=statement(rows, per_page=1)).values()
    assert found == {"pointer": "/amount", "page": None, "bbox": None, "quote": None, "match": "ambiguous"}


def test_the_amount_of_another_row_is_not_sure() -> None:
    rows = [("Desk", 1, "99.00"), ("Lamp", 2, "31.50"), ("Chair", 3, "189.00"), ("Shelf", 4, "75.00")]
    data = [{"article": name, "amount": float(amount)} for name, _, amount in rows]
    data[1]["amount"] = 189.0
    for evidence in ({}, {"/1/amount": "| 3 | Chair | 3 | 189.00 |"}):
        assert citations(data, evidence, pages=statement(rows, per_page=9))["/1/amount"]["match"] == "ambiguous"


def test_the_amount_of_another_column_is_not_sure() -> None:
    rows = [("Desk", 1, "99.00"), ("Lamp", 2, "31.50"), ("Chair", 3, "189.00"), ("Shelf", 4, "75.00")]
    data = [{"article": name, "qty": count} for name, count, _ in rows]
    data[2]["qty"] = 189
    found = citations(data, {"/2/qty": "| 3 | Chair | 3 | 189.00 |"}, pages=statement(rows, per_page=9))
    assert [found[f"/{number}/qty"]["match"] for number in range(4)] == ["exact", "exact", "ambiguous", "exact"]
    assert found["/3/qty"]["quote"] == "| 4 | Shelf | 4 | 75.00 |"


def test_an_item_of_several_lines_is_one_row() -> None:
    page = (
        "Desk lamp\n  Art. 4711\n  31.50 EUR\nOffice chair\n  Art. 4712\n  31.50 EUR\nShelf\n  Art. 4713\n  75.00 EUR"
    )
    data = [{"article": "4711", "amount": 31.5}, {"article": "4712", "amount": 31.5}, {"article": "4713", "amount": 75}]
    found = citations(data, pages=[page])
    assert [each["match"] for each in found.values()] == ["exact", "normalized"] * 3


@pytest.mark.parametrize("cell", ["\u00a0" * 2_500 + "q", "TEUR" + "\u00a0" * 2_500 + "q"])
def test_a_cell_of_white_space_is_searched_in_time(cell: str) -> None:
    began = time.process_time()
    citations({"a": 5}, {"/a": "Sum"}, pages=[f"| a | b |\n|---|---|\n| x | -{cell} |\n| y | {cell} |\n| Sum | 5 |\n"])
    assert time.process_time() - began < 5


def test_a_run_of_zeros_is_not_a_scale() -> None:
    assert list(scales_in("x 1,000,000")) == [Decimal(1_000_000)]
    assert list(scales_in("x1" + "000" * 334_000)) == []


def test_the_quote_of_a_long_value_ends_with_a_whole_word() -> None:
    value = " ".join(f"clause{number}" for number in range(10, 60))
    quote = citations({"terms": value}, pages=[f"Terms. {value} End."])["/terms"]["quote"]
    assert value.startswith(quote)
    assert set(quote.split()) <= set(value.split())


@pytest.mark.parametrize("line", ["", "x|"])
def test_long_lines_of_spaces_are_indexed_in_time(line: str) -> None:
    began = time.process_time()
    found = citations({"name": "Lamp"}, pages=[f"a|b\n{' ' * 60_000}{line}\nLamp"])
    assert time.process_time() - began < 10
    assert found["/name"]["match"] in SURE


def test_a_table_with_one_filled_column_is_indexed_in_time() -> None:
    """Each row could be the continuation of the cell above it."""
    rows = "".join(f"| | Value {number:06} | |\n" for number in range(3_000))
    began = time.process_time()
    found = citations({"last": "Value 002999"}, pages=[f"| A | B | C |\n|---|---|---|\n| x | first | y |\n{rows}"])
    assert time.process_time() - began < 10
    assert found["/last"]["match"] in SURE


def test_words_of_documents_do_not_fill_the_memory_of_a_worker() -> None:
    """The cache outlives the document, whose author chooses the words."""
    assert scales_of.cache_info().maxsize


@pytest.mark.slow
def test_the_total_after_many_rows_is_found() -> None:
    rows = [(f"Article {number:04}", 1, "10.00") for number in range(1_000)]
    data = {"lines": [{"article": name, "amount": 10} for name, _, _ in rows], "total": 10_400}
    pages = [*statement(rows, per_page=50), "Total 10,400.00 of all"]
    assert citations(data, pages=pages)["/total"]["match"] == "normalized"


def test_a_cell_of_two_lines_is_cited_at_its_row() -> None:
    row = "| {0} | Lamp | 9.50 |\n|  | Special {0} |  |"
    pages = ["\n".join(["| No. | Name | Price |", "|---|---|---|", *(row.format(each) for each in (11, 12, 13))])]
    data = [{"name": f"Lamp Special {each}", "price": 9.5} for each in (11, 12, 13)]
    found = citations(data, pages=pages)
    for number, each in enumerate((11, 12, 13)):
        assert found[f"/{number}/name"]["quote"] == row.format(each).removesuffix(" |  |")
        assert [found[f"/{number}/{name}"]["match"] for name in ("name", "price")] == ["normalized", "normalized"]


ROW = "| 2 | Lamp | 2 | 12.00 |"


@pytest.mark.parametrize(
    ("quote", "text", "level"),
    [
        (ROW, "Page 21 of 120", "not_found"),
        (ROW, "Delivered in 21 boxes", "not_found"),
        (None, "Page 21 of 120", "not_found"),
        (None, "Delivered in 21 boxes", "ambiguous"),
    ],
)
def test_a_number_outside_the_row_of_its_item_is_not_sure(quote: str | None, text: str, level: str) -> None:
    rows = [("Desk", 1, "99.00"), ("Lamp", 2, "12.00"), ("Chair", 3, "189.00"), ("Shelf", 4, "75.00")]
    data: Any = [{"article": name, "amount": float(amount)} for name, _, amount in rows]
    data[1]["amount"] = 21.0
    for pages in ([*statement(rows, per_page=9), text], [f"{statement(rows[:2], per_page=9)[0]}\n\n{text}"]):
        lines = data[: len(rows) if len(pages) > 1 else 2]
        found = citations(lines, {"/1/amount": quote}, pages=[*pages, "The last page."])
        assert found["/1/article"]["match"] == "exact"
        assert found["/1/amount"]["match"] == level


def test_a_number_of_pages_is_cited_by_a_page_number() -> None:
    found = citations({"pages": 120, "total": 120}, pages=["Terms\n\nPage 1 of 120"])
    assert [each["match"] for each in found.values()] == ["exact", "not_found"]


# ---- Sums -----------------------------------------------------------------------------------------------------------
def test_sums_and_counts_are_distinguished_from_missing_values() -> None:
    rows = [("Desk", 1, "99.10"), ("Lamp", 2, "31.20"), ("Chair", 3, "189.30")]
    lines = [{"article": name, "amount": Decimal(amount)} for name, _, amount in rows]
    data = {"lines": lines, "total": Decimal("319.60"), "wrong": Decimal("319.61"), "articles": 3, "pages": 7}
    found = citations(data, pages=["\n".join(f"{name}: {amount}" for name, _, amount in rows)])
    assert {pointer: found[pointer]["match"] for pointer in ("/total", "/wrong", "/articles", "/pages")} == {
        "/total": "computed",
        "/wrong": "not_found",
        "/articles": "computed",
        "/pages": "not_found",
    }
    assert found["/total"] == {"pointer": "/total", "page": None, "bbox": None, "quote": None, "match": "computed"}


def test_a_sum_of_values_that_are_missing_is_missing() -> None:
    data = {"lines": [{"amount": 99}, {"amount": 17}], "total": 116}
    assert citations(data, pages=["Desk: 99.00"])["/total"]["match"] == "not_found"


def test_a_sum_of_two_values_beside_it_is_computed() -> None:
    found = citations({"net": 100, "vat": 19, "gross": 119}, pages=["Net 100.00, VAT 19.00"])
    assert [each["match"] for each in found.values()] == ["normalized", "normalized", "computed"]


class Digits(str):
    """A number that keeps its digits, as a subclass of str."""

    __slots__ = ()


@pytest.mark.parametrize("value", [Digits("90071992547409.930"), Decimal("90071992547409.930")])
def test_numbers_are_compared_digit_by_digit(value: Any) -> None:
    for text, level in {
        "90071992547409.930": "exact",
        "90,071,992,547,409.93": "normalized",
        "90071992547409.94": "not_found",
    }.items():
        assert citations({"value": value}, pages=[f"Sum {text}"])["/value"]["match"] == level


# ---- Limits ---------------------------------------------------------------------------------------------------------
HOSTILE = (
    "1",
    "1.",
    "1 234 ",
    "<a",
    "&",
    "a<",
    "(",
    "1/",
    "-",
    "1-",
    "$",
    "\u0301",
    "1\u0301",
    "a-\n",
    "12.12.",
    "May 1 ",
)


@pytest.mark.slow
def test_equal_values_of_one_long_line_are_cited_in_time() -> None:
    """A regression test: 500 values took minutes, and the time limit was not checked."""
    began = time.process_time()
    found = citations({"n": [1] * 500}, pages=["1 2 " * 5900])
    assert time.process_time() - began < 20
    assert len(found) == 500


@pytest.mark.slow
@pytest.mark.parametrize("part", HOSTILE)
def test_hostile_texts_are_searched_in_time(part: str) -> None:
    """The time is linear in the length, not quadratic."""
    data: Any = {"a": "nowhere", "b": 77, "c": "2024-02-29", "d": part * 20, "e": part}

    def seconds(characters: int) -> float:
        began = time.process_time()
        found = citations(data, {"/a": part * 50, "/d": part}, pages=[part * (characters // len(part))])
        assert found["/a"]["match"] not in ("exact", "normalized")  # it is not in the text
        return time.process_time() - began

    small, large = seconds(25_000), seconds(100_000)
    assert large < 20
    assert large < 8 * small + 1


# ---- Properties -----------------------------------------------------------------------------------------------------
MONTHS = tuple(calendar.month_name)
DATES = (
    *("{0:%d/%m/%Y}", "{0:%m/%d/%Y}", "{0:%d.%m.%Y}", "{0:%Y-%m-%d}", "{0:%d-%m-%Y}", "{0:%d.%m.%y}", "{0:%d/%m/%y}"),
    *("{0.day} {month} {0.year}", "{month} {0.day}, {0.year}", "{0.day}. {month} {0.year}"),
    "{0.year}年{0.month}月{0.day}日",
)
NUMBERS = st.integers() | st.floats(allow_nan=False) | st.decimals(allow_nan=False)
SCALARS = NUMBERS | st.text(max_size=10) | st.booleans() | st.none()
JSON = st.dictionaries(st.sampled_from("abc"), SCALARS | st.lists(SCALARS, max_size=3))
PAGES = st.lists(st.text(max_size=60), min_size=1, max_size=3)
# The notations of amounts: the mark between groups, and the decimal mark.
NOTATIONS = st.sampled_from([",.", ".,", " .", " ,", "'.", "\u00a0,", "\u202f,"])
AMOUNTS = st.integers(-(10**13), 10**13).map(lambda cents: Decimal(cents) / 100)
WRITTEN = st.sampled_from(
    ["{}", "{} EUR", "$ {}", "Total: {}", "| {} |", "Sum {}.", "{} kg", "~{}~", "**{}**", "{}%", "<td>{}</td>"]
)
LETTERS = "ab1 -.,'²é\u0301ß\n"


def written(amount: Decimal, notation: str) -> str:
    groups, point = notation.replace(" ", "")[:-1], notation[-1]
    return f"{amount:,.2f}".replace(",", "_").replace(".", point).replace("_", groups)


@given(AMOUNTS, AMOUNTS, NOTATIONS, WRITTEN)
def test_another_number_is_never_sure(amount: Decimal, other: Decimal, notation: str, pattern: str) -> None:
    """B31."""
    assume(amount != other and (not pattern.endswith("%") or other * 100 != amount))
    text = pattern.format(written(amount, notation))
    found = citations({"value": other}, {"/value": text}, pages=[text])["/value"]
    assert found["match"] not in SURE


@given(AMOUNTS, NOTATIONS, WRITTEN)
def test_the_same_number_is_sure(amount: Decimal, notation: str, pattern: str) -> None:
    text = pattern.format(written(amount, notation))
    found = citations({"value": amount}, {"/value": text}, pages=[text])["/value"]
    assert found["match"] in SURE
    assert written(amount, notation).lstrip("-") in found["quote"]


def test_a_text_is_found_after_a_boolean_that_is_written_the_same() -> None:
    assert citations({"a": True, "b": "True"}, {}, pages=["Answer: True here"])["/b"]["match"] == "exact"


@pytest.mark.parametrize(
    "after", [", as agreed", ". Next", "; next", ": next", '" next', "] next", ", EUR", " next", ""]
)
@pytest.mark.parametrize("dash", ["-", "−", "–"])
def test_a_minus_behind_a_number_is_its_sign(dash: str, after: str) -> None:
    text = f"Refund 413.03{dash}{after}"
    levels = {
        value: citations({"value": Decimal(value)}, {"/value": text}, pages=[text])["/value"]["match"]
        for value in ("413.03", "-413.03")
    }
    assert levels["413.03"] not in SURE
    assert levels["-413.03"] in SURE


@given(AMOUNTS, NOTATIONS, st.data())
def test_a_part_of_a_number_is_never_sure(amount: Decimal, notation: str, data: st.DataObject) -> None:
    """The value consists of the digits of a part, and the quote is that part."""
    text = written(amount, notation)
    start = data.draw(st.integers(0, len(text) - 1))
    end = data.draw(st.integers(start + 1, len(text)))
    part = text[start:end]
    digits = "".join(char for char in part if char.isdecimal())
    assume(digits)
    for value in (Decimal(digits), -Decimal(digits), Decimal(digits) / 100, digits, part):
        is_same = isinstance(value, Decimal) and value == amount
        if is_same or (isinstance(value, str) and part == text):
            continue
        if isinstance(value, str) and Decimal(f"{'-' * value.startswith('-')}{digits}") in (amount, amount * 100):
            continue  # -25 is -25.00
        if isinstance(value, str) and value.rstrip("0") == text.rstrip("0"):
            continue  # -14.5 is -14.50, and 25.0 is 25.00
        found = citations({"value": value}, {"/value": part}, pages=[f"Amount {text} due"])["/value"]
        assert found["match"] not in SURE, (text, value)


@given(st.integers(1, 999), st.integers(0, 999), st.sampled_from(".,"))
def test_undecided_groups_are_ambiguous(whole: int, rest: int, mark: str) -> None:
    text = f"{whole}{mark}{rest:03}"
    for value in (whole * 1000 + rest, Decimal(f"{whole}.{rest:03}")):
        found = citations({"value": value}, {"/value": text}, pages=[f"Paid {text} to them"])["/value"]
        assert found["match"] == "ambiguous"


@pytest.mark.slow
@given(st.dates(min_value=date(1950, 1, 1), max_value=date(2049, 12, 31)), st.dates(), st.sampled_from(DATES))
def test_another_day_is_never_sure(day: date, other: date, notation: str) -> None:
    assume(day != other)
    text = notation.format(day, month=MONTHS[day.month])
    found = citations({"value": other.isoformat()}, {"/value": text}, pages=[f"on {text} at noon"])["/value"]
    assert found["match"] not in SURE


@given(
    st.text(alphabet=LETTERS, max_size=30),
    st.text(alphabet=LETTERS, min_size=1, max_size=12),
)
def test_a_text_that_differs_is_never_sure(text: str, value: str) -> None:
    """Only case, character widths, spaces, markup, and hyphens at the ends of lines may differ."""

    def letters(each: str) -> str:
        return "".join(fold(each).split()).replace("-", "")

    found = citations({"value": value}, {"/value": text}, pages=[f"x {text} y"]).get("/value")
    if found and found["match"] in SURE:
        assert letters(value) in letters(found["quote"])
        if found["match"] == "exact":
            assert value.strip() in found["quote"]


@given(st.from_regex(r"[A-Za-z]-?[0-9]{1,4}[A-Za-z]?", fullmatch=True), st.sampled_from(["quoted", ""]))
def test_an_identifier_that_differs_in_case_is_never_sure(sku: str, how: str) -> None:
    """In a document with `B-1051` and `b-1051`, these are two articles."""
    other = sku.swapcase()
    pages = [f"| Article | Amount |\n|---|---|\n| {other} | 12.50 |\n| {sku} | 99.00 |"]
    rows = [{"sku": sku, "amount": Decimal("12.50")}, {"sku": sku, "amount": Decimal("99.00")}]
    quotes = {"/0/sku": f"{other} | 12.50", "/1/sku": f"{sku} | 99.00"} if how else {}
    found = citations(rows, quotes, pages=pages)
    assert found["/1/sku"]["match"] == "exact"
    assert found["/0/sku"]["match"] not in SURE or sku in found["/0/sku"]["quote"]


@given(JSON, st.dictionaries(st.sampled_from(["/a", "/b", "/a/0", "/x"]), st.tuples(st.integers(), st.text())), PAGES)
def test_every_citation_holds(data: Any, evidence: Any, pages: list[str]) -> None:
    """B20: the document contains the cited text, for any response of a model."""
    text = clean(ocr_of("first page", *pages))
    quotes = {pointer: (page, quote) for pointer, (page, quote) in evidence.items() if quote}
    for pointer, each in citations(data, quotes, pages=["first page", *pages]).items():
        assert each.keys() == {"pointer", "page", "bbox", "quote", "match"}
        assert each["bbox"] is None
        assert (each["match"] in ("computed", "not_found")) <= (each["quote"] is None and each["page"] is None)
        assert (each["match"] in (*SURE, "quote")) <= bool(each["quote"])
        if each["quote"] is not None:
            assert each["quote"] in text.page(each["page"])
        assert resolve(data, pointer) not in (None, "")


@pytest.mark.parametrize(
    ("merge", "value", "level"),
    [("last", 250.5, "ambiguous"), ("last", 900.25, "exact"), ("first", 250.5, "exact"), ("", 900.25, "ambiguous")],
)
def test_a_label_with_several_amounts_is_not_sure(merge: str, value: float, level: str) -> None:
    """A regression test: a response omitted the last closing balance, and that of an earlier page was cited as sure."""
    pages = ["Closing balance: 250.5\n\nFee 1.00", "Closing balance: 900.25\n\nFee 2.00"]
    schema = {"properties": {"closing_balance": {"type": "number"} | ({"x-merge": merge} if merge else {})}}
    found = citations({"closing_balance": value}, pages=pages, schema=schema)["/closing_balance"]
    assert (found["match"], found["page"]) == (level, 1 if value == 250.5 else 2)
