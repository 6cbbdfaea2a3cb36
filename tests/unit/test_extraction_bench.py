"""The extraction benchmark: the simulated model, which reads the text in a request, and the scores of results."""

import json
from typing import Any

import pytest

from tests.bench.extraction import families, reader, reading
from tests.bench.extraction.documents import ROWS, Document
from tests.bench.extraction.families import FAMILIES, Family
from tests.bench.extraction.model_request import ModelRequest
from tests.bench.extraction.scoring import Score, score

BY_NAME = {family.name: family for family in FAMILIES}


def shown(document: Document) -> str:
    """Return the text as sent to a model."""
    pages = document.text.split("\f")
    return "\n\n".join(f"<!-- page: {number} -->\n\n{page}" for number, page in enumerate(pages, 1))


def model_call(document: Document, **changes: Any) -> ModelRequest:
    options = {"kind": "extract", "mode": "perfect", "run": "x", "schema": document.schema, "data": shown(document)}
    return ModelRequest(**(options | changes))


def values_of(rows: list[reading.Item]) -> list[dict[str, Any]]:
    return [{name: value.value for name, value in row.items()} for row in rows]


@pytest.fixture(scope="module")
def document() -> Document:
    return families.document(BY_NAME["invoice-en-carried"], seed=1, pages=3)


# ---- Documents and reader -------------------------------------------------------------------------------------------
@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.name)
@pytest.mark.parametrize("pages", [1, 3])
def test_a_reader_of_the_whole_document_finds_every_value(family: Family, pages: int) -> None:
    made = families.document(family, seed=5, pages=pages)

    found = reading.read(shown(made), made.schema)

    rows = [{name: value for name, value in row.values.items() if value is not None} for row in made.rows]
    assert values_of(found.rows) == rows
    assert {pointer: value.value for pointer, value in found.scalars.items()} == made.scalars
    assert made.text.count("\f") == pages - 1
    assert rows


def test_a_reader_without_the_head_of_a_table_mistakes_its_columns(document: Document) -> None:
    second = shown(document).partition("<!-- page: 2 -->")[2]
    found = reading.read(second, document.schema).rows[0]
    truth = next(row for row in document.rows if row.pages == {2})
    assert (found["sku"].value, found["quantity"].value) == (truth.values["sku"], truth.values["unit_price"])


def test_a_reader_of_half_an_item_returns_half_an_item() -> None:
    made = families.document(BY_NAME["invoice-fr-blocks"], seed=1, pages=1)
    lines = shown(made).splitlines()
    second = next(number for number, line in enumerate(lines) if line.startswith("    "))
    found = reading.read("\n".join(lines[second:]), made.schema).rows
    assert [set(row) for row in found[:2]] == [{"unit_price", "quantity", "amount"}, set(made.rows[0].values)]


def test_a_reader_uses_context_without_returning_its_items(document: Document) -> None:
    """The context consists of the head of a table and the lines of neighboring pieces."""
    second = shown(document).partition("<!-- page: 2 -->")[2]
    head = "\n".join(line for line in shown(document).splitlines()[:12] if "Article" in line or "---" in line)
    text = f"<!-- page: 2 -->\n[a table goes on; its head, for reading only:]\n{head}\n{second}"
    found = reading.read(text, document.schema).rows
    assert [row["amount"].value for row in found] == [row.values["amount"] for row in document.rows if row.pages != {1}]

    made = families.document(BY_NAME["invoice-fr-blocks"], seed=1, pages=1)
    lines = [line for line in shown(made).splitlines() if line.startswith((" ", "Article"))]
    before, piece, after = lines[:1], lines[1:10], lines[10:]
    context = ["[for reading only, the end of the piece before this one:]", *before, "[this piece begins here:]"]
    ends = ["[this piece ends here; for reading only, the beginning of the next one:]", *after]
    found = reading.read("\n".join([*context, *piece, *ends]), made.schema).rows
    assert values_of(found) == [row.values for row in made.rows[1:4]]


@pytest.mark.slow
def test_a_sloppy_reader_has_the_share_of_defects_in_its_name() -> None:
    made = families.document(BY_NAME["statement-de-signs"], seed=1)
    perfect, sloppy = (json.loads(reader.extract(model_call(made, mode=mode))) for mode in ("perfect", "sloppy-10"))
    spoiled = [
        here != there or evidence_of(perfect, index) != evidence_of(sloppy, index)
        for index, (here, there) in enumerate(zip(perfect["data"][ROWS], sloppy["data"][ROWS], strict=True))
    ]
    assert 0.07 < sum(spoiled) / len(spoiled) < 0.13


def evidence_of(answer: Any, index: int) -> list[Any]:
    return [value for pointer, value in answer["evidence"].items() if pointer.startswith(f"/{ROWS}/{index}/")]


def test_a_sloppy_reader_corrects_reported_errors(document: Document) -> None:
    first = json.loads(reader.extract(model_call(document, mode="sloppy-10", run="many")))["data"][ROWS]
    wrong = [index for index, row in enumerate(first) if row != document.rows[index].values]
    assert wrong
    complaints = tuple(f"/{ROWS}/{index}" for index in wrong)
    again = model_call(
        document, mode="sloppy-10", run="many", previous=json.dumps({ROWS: first}), complaints=(complaints,)
    )
    second = json.loads(reader.extract(again))["data"][ROWS]
    assert sum(row != document.rows[index].values for index, row in enumerate(second)) < len(wrong)


def test_a_forgetful_reader_returns_fewer_items_when_asked_again(document: Document) -> None:
    again = model_call(document, mode="forgetful", previous="{}", complaints=(("/rows/1",),))
    assert len(json.loads(reader.extract(again))["data"][ROWS]) == reader.REMEMBERED


@pytest.mark.parametrize(("mode", "count"), [("perfect", 2), ("forgetful", 1)])
def test_a_reader_returns_only_the_parts_to_correct(document: Document, mode: str, count: int) -> None:
    shown_again = [{**document.rows[3].values, "amount": None}, {**document.rows[9].values, "sku": None}]
    again = model_call(
        document,
        mode=mode,
        previous=json.dumps({"data": {ROWS: shown_again}}),
        is_part=True,
        complaints=(("/rows/0/amount", "/rows/1/sku"),),
    )
    expected = [document.rows[3].values, document.rows[9].values][:count]
    assert json.loads(reader.extract(again))["data"] == {ROWS: expected}


def test_a_reader_chooses_the_value_of_the_last_page(document: Document) -> None:
    data = 'Values of /total:\n- 12.5 (page 7)\n- 3.0 (pages 1 to 2)\n\nValues of /a/b:\n- {"c": 1} (page 3)'
    answer = json.loads(reader.choose(model_call(document, kind="choose", data=data)))
    assert answer["data"] == {"total": 12.5, "a": {"b": {"c": 1}}}


# ---- Score ----------------------------------------------------------------------------------------------------------
def task_of(document: Document) -> dict[str, Any]:
    """Return a task with the correct result of a document, and with a citation of each value."""
    answer = json.loads(reader.extract(model_call(document)))
    citations = [
        {"pointer": pointer, "page": each["page"], "quote": each["quote"], "match": "exact"}
        for pointer, each in answer["evidence"].items()
    ]
    result = {"data": answer["data"], "citations": citations}
    return {"status": "completed", "error": None, "result": result, "metadata": {"warnings": []}}


def scored(document: Document, change: Any = lambda _task: None) -> Score:
    task = task_of(document)
    change(task)
    return score(document, task)


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.name)
def test_a_perfect_result_has_a_perfect_score(family: Family) -> None:
    made = families.document(family, seed=2, pages=4)
    result = scored(made)
    assert (result.right, result.extra, result.scalars_right) == (len(made.rows), 0, len(made.scalars))
    assert (result.astray, result.wrong, result.lost) == ([], [], [])


def test_a_missing_row_is_a_loss(document: Document) -> None:
    result = scored(document, lambda task: task["result"]["data"][ROWS].pop(30))
    assert (len(result.lost), result.named, result.right) == (1, 0, len(document.rows) - 1)


@pytest.mark.parametrize(
    ("detail", "is_named"),
    [("One item was rejected (page 2).", True), ("Rejected on pages 1 to 3.", True), ("Rejected: page 3.", False)],
)
def test_a_warning_names_a_loss_by_its_page(document: Document, detail: str, *, is_named: bool) -> None:
    def change(task: Any) -> None:
        number = next(index for index, row in enumerate(document.rows) if row.pages == {2})
        del task["result"]["data"][ROWS][number]
        task["metadata"]["warnings"] = [{"code": "items_rejected", "detail": detail}]

    result = scored(document, change)
    assert (len(result.lost), result.named) == ((0, 1) if is_named else (1, 0))


@pytest.mark.parametrize(("detail", "named"), [("1 items do not fit (page 1).", 1), ("2 items (pages 1 to 30).", 0)])
def test_a_warning_names_as_many_losses_as_it_counts_on_few_pages(document: Document, detail: str, named: int) -> None:
    def change(task: Any) -> None:
        del task["result"]["data"][ROWS][2:4]
        task["metadata"]["warnings"] = [{"code": "items_rejected", "detail": detail}]

    result = scored(document, change)
    assert (len(result.lost), result.named) == (2 - named, named)


@pytest.mark.parametrize("code", ["value_not_in_text", "repaired"])
def test_a_warning_about_something_else_names_no_loss(document: Document, code: str) -> None:
    def change(task: Any) -> None:
        del task["result"]["data"][ROWS][0]
        task["metadata"]["warnings"] = [{"code": code, "detail": "page 1", "page": 1}]

    assert len(scored(document, change).lost) == 1


def test_half_an_item_is_a_row_that_the_document_does_not_have(document: Document) -> None:
    result = scored(document, lambda task: task["result"]["data"][ROWS].insert(4, {"amount": 7.25}))
    assert (result.extra, result.right) == (1, len(document.rows))


@pytest.mark.parametrize(("match", "count"), [("exact", 1), ("normalized", 1), ("ambiguous", 0), ("not_found", 0)])
def test_a_wrong_value_with_a_sure_citation_counts_as_wrong(document: Document, match: str, count: int) -> None:
    def change(task: Any) -> None:
        task["result"]["data"][ROWS][3]["amount"] += 1
        cited(task, "/rows/3/amount")["match"] = match

    result = scored(document, change)
    assert (len(result.wrong), result.differing, result.extra) == (count, 1, 0)


def cited(task: Any, pointer: str) -> Any:
    return next(each for each in task["result"]["citations"] if each["pointer"] == pointer)


def test_a_citation_in_another_row_is_astray(document: Document) -> None:
    def change(task: Any) -> None:
        cited(task, "/rows/3/amount")["quote"] = cited(task, "/rows/4/amount")["quote"]

    assert len(scored(document, change).astray) == 1


def test_a_citation_that_fits_several_rows_is_astray(document: Document) -> None:
    """A price that occurs in several rows does not identify one of them."""
    prices = [row.values["unit_price"] for row in document.rows if row.pages == {1}]
    index = next(index for index, price in enumerate(prices) if prices.count(price) > 1)

    def change(task: Any) -> None:
        cited(task, f"/rows/{index}/unit_price")["quote"] = f"{prices[index]:,.2f}"

    assert len(scored(document, change).astray) == 1


def test_a_value_that_was_not_found_is_astray(document: Document) -> None:
    def change(task: Any) -> None:
        cited(task, "/total").update(page=None, quote=None, match="not_found")

    assert len(scored(document, change).astray) == 1


def test_a_single_value_without_a_citation_is_astray(document: Document) -> None:
    result = scored(document, lambda task: task["result"]["citations"].remove(cited(task, "/total")))
    assert len(result.astray) == 1
