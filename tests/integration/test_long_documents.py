"""Long documents with a simulated model: no row is lost, duplicated, or changed without a warning. B42.

The simulated model reads the rows in a request. Its errors are scripted: rows without a required field, rows that are
missing after a corrective retry, conflicts, and slow or failing calls.
"""

import json
import re
import threading
import time
from typing import Any

import pytest

from etl.core.errors import Fenced, LlmUnavailable, SchemaInvalid
from etl.core.stage_context import StageContext
from etl.postprocessors.base import Processed
from etl.postprocessors.llm import Llm
from tests.conftest import change_settings
from tests.integration.llm_factories import Killed, MemoryResponseCache, codes, context_of, kill, ocr_of, rule_of
from tests.integration.openai_server import ModelServer, Reply, Request, data_reply, problem, text_reply

ROW = {
    "type": "object",
    "properties": {"sku": {"type": "string"}, "amount": {"type": "number"}},
    "required": ["sku", "amount"],
    "additionalProperties": False,
}
SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {"total": {"type": ["number", "null"]}, "lines": {"type": "array", "items": ROW}},
    "required": ["lines"],
    "additionalProperties": False,
}
LINE = re.compile(r"^\| (A-\d+) \| ([\d.]+) \|$", re.MULTILINE)
HEAD = "| article | amount |\n|---|---|\n"


def pages_of(rows: int) -> list[str]:
    """Return the pages of a statement with this many rows, 50 on each page."""
    lines = [f"| A-{number} | {number}.50 |\n" for number in range(rows)]
    return [HEAD + "".join(lines[at : at + 50]) for at in range(0, rows, 50)]


def rows_of(request: Request) -> list[dict[str, Any]]:
    """Return all rows of the document's text in a request."""
    return [{"sku": sku, "amount": float(amount)} for sku, amount in LINE.findall(text_of(request))]


ALL = [{"sku": f"A-{number}", "amount": number + 0.5} for number in range(500)]


@pytest.fixture
def models(models: ModelServer, settings: Any) -> ModelServer:
    change_settings(
        settings,
        etl_postprocess_chunk_threshold_chars=1_000,
        etl_postprocess_chunk_size_chars=1_500,
        etl_postprocess_parallel=1,
    )
    return models


def process(
    rows: int = 500, *, schema: dict[str, Any] = SCHEMA, context: StageContext | None = None, **rule: Any
) -> Processed:
    return Llm().process(ocr_of(*pages_of(rows)), rule_of(schema, **rule), context=context or context_of(seconds=120))


def warning(context: StageContext, code: str) -> str:
    [found] = [each for each in context.warnings if each.code == code]
    return found.detail


def is_correction(request: Request) -> bool:
    return len(request.messages) > 2 or "an earlier answer got wrong" in request.message("system")


# ---- Items that do not fit ------------------------------------------------------------------------------------------
def without_sku(rows: list[dict[str, Any]], *numbers: int) -> list[dict[str, Any]]:
    bad = {f"A-{number}" for number in numbers}
    return [{"amount": row["amount"]} if row["sku"] in bad else row for row in rows]


def test_only_the_items_that_do_not_fit_are_requested_again(models: ModelServer) -> None:
    """One of 500 rows lacks a required field. The correction must not contain or replace the other rows."""

    def answer(request: Request) -> Reply:
        if is_correction(request):
            return data_reply({"lines": [{"sku": "A-237", "amount": 237.5}]})
        return data_reply({"lines": without_sku(rows_of(request), 237)})

    models.set_default(answer)
    context = context_of(seconds=120)

    assert process(context=context).data["lines"] == ALL

    [again] = [request for request in models.requests if is_correction(request)]
    assert "Give exactly 1 items of /lines," in again.message("system")
    assert "- an item: The member 'sku' is missing." in again.message("user")
    assert [row["sku"] for row in rows_of(again)] == ["A-237"]
    assert "The response had 50 items before and 50 after." in warning(context, "repaired")


def text_of(request: Request) -> str:
    """Return the document's text between the markers in a prompt."""
    user = request.message("user")
    return user.split(user.split("\n")[1])[2].strip()


@pytest.mark.parametrize("strategy", ["direct-json", "chunked-extract"])
def test_a_correction_shows_only_the_lines_of_its_items(models: ModelServer, strategy: str) -> None:
    """A correction must not send the whole piece or the whole document again."""

    def answer(request: Request) -> Reply:
        rows = rows_of(request)
        quotes = {f"/lines/{at}/amount": {"page": 1, "quote": f"{row['sku']} |"} for at, row in enumerate(rows)}
        return data_reply({"lines": rows if is_correction(request) else without_sku(rows, 37, 237, 238)}, quotes)

    models.set_default(answer)
    assert process(strategy=strategy).data["lines"] == ALL

    [again] = [request for request in models.requests if is_correction(request)]  # one for all pieces
    head = "[a table goes on; its head, for reading only:]\n| article | amount |\n|---|---|\n"
    if strategy == "direct-json":
        assert text_of(again) == (
            f"<!-- page: 1 -->\n{head}| A-37 | 37.50 |\n<!-- page: 5 -->\n| A-237 | 237.50 |\n| A-238 | 238.50 |"
        )
    assert [row["sku"] for row in rows_of(again)] == ["A-37", "A-237", "A-238"]
    assert len(text_of(again)) < 400
    assert "Give exactly 3 items of /lines," in again.message("system")
    assert again.message("user").count("The member 'sku' is missing.") == 1


def test_rows_reread_without_success_are_shown_with_their_values(models: ModelServer) -> None:
    def answer(request: Request) -> Reply:
        if len(request.messages) > 2:
            return data_reply({"lines": rows_of(request)})
        return data_reply({"lines": [] if is_correction(request) else without_sku(rows_of(request), 37, 237)})

    models.set_default(answer)
    assert process(strategy="direct-json").data["lines"] == ALL

    again = models.requests[-1]
    assert json.loads(again.messages[2]["content"]) == {"data": {"lines": [{"amount": 37.5}, {"amount": 237.5}]}}
    assert "- /lines needs 2 corrected items: no more, and no fewer." in again.messages[3]["content"]
    assert "- /lines/0, /lines/1: The member 'sku' is missing." in again.messages[3]["content"]


def test_items_that_differ_only_in_a_missing_field_are_not_mixed_up(models: ModelServer) -> None:
    """The item lacks its number, and all of its other values occur in other items too."""
    page = HEAD + "".join(f"| A-{number} | 7.50 |\n" for number in range(60))

    def answer(request: Request) -> Reply:
        rows = rows_of(request)
        quotes = {f"/lines/{at}/amount": {"page": 1, "quote": f"{row['sku']} | 7.50"} for at, row in enumerate(rows)}
        return data_reply({"lines": rows[:1] if is_correction(request) else without_sku(rows, 41)}, quotes)

    models.set_default(answer)
    result = Llm().process(ocr_of(page), rule_of(SCHEMA, strategy="direct-json"), context=context_of(seconds=120))
    assert result.data["lines"] == [{"sku": f"A-{number}", "amount": 7.5} for number in range(60)]


def test_items_that_cannot_be_located_are_corrected_with_the_whole_text(models: ModelServer) -> None:
    def answer(request: Request) -> Reply:
        rows = rows_of(request)
        return data_reply({"lines": rows if is_correction(request) else [*rows[:7], {}, *rows[8:]]})

    models.set_default(answer)
    assert process(100, strategy="direct-json").data["lines"] == ALL[:100]
    assert text_of(models.requests[1]) == text_of(models.requests[0])


def test_a_required_value_missing_from_all_pieces_is_requested_once(models: ModelServer) -> None:
    """Without this request, the task would fail, although all rows are valid."""
    schema = {**SCHEMA, "properties": {**SCHEMA["properties"], "total": {"type": "number"}}, "required": ["total"]}

    def answer(request: Request) -> Reply:
        asks_for_total = "were not found so far: /total." in request.message("system")
        return data_reply({"total": 12.5}) if asks_for_total else data_reply({"lines": rows_of(request)})

    models.set_default(answer)
    assert process(schema=schema).data == {"total": 12.5, "lines": ALL}
    last = models.requests[-1]
    assert "| A-0 |" in text_of(last)
    assert "| A-499 |" in text_of(last)
    assert len(text_of(last)) < 8_200


def test_other_members_of_the_reply_about_a_missing_value_are_ignored(models: ModelServer) -> None:
    """The response has the value and invalid rows. The value is used, and nothing is requested again."""
    schema = {**SCHEMA, "properties": {**SCHEMA["properties"], "total": {"type": "number"}}, "required": ["total"]}

    def answer(request: Request) -> Reply:
        asks_for_total = "were not found so far: /total." in request.message("system")
        return (
            data_reply({"total": 12.5, "lines": [{}] * 30})
            if asks_for_total
            else data_reply({"lines": rows_of(request)})
        )

    models.set_default(answer)
    assert process(schema=schema).data == {"total": 12.5, "lines": ALL}
    assert sum("were not found so far" in request.message("system") for request in models.requests) == 1


@pytest.mark.slow
def test_a_value_not_found_at_the_edges_is_requested_with_more_text(models: ModelServer, settings: Any) -> None:
    change_settings(settings, etl_postprocess_chunk_size_chars=8_000)
    schema = {**SCHEMA, "properties": {**SCHEMA["properties"], "total": {"type": "number"}}, "required": ["total"]}
    sizes: list[int] = []

    def answer(request: Request) -> Reply:
        if "were not found so far: /total." not in request.message("system"):
            return data_reply({"lines": rows_of(request)})
        sizes.append(len(text_of(request)))
        return data_reply({"total": 12.5} if len(sizes) > 1 else {"total": None})

    models.set_default(answer)
    assert process(1_000, schema=schema).data["total"] == 12.5
    assert sizes[0] < 4_200
    assert sizes[0] < sizes[1] < 12_200


def test_a_required_value_that_is_not_found_fails_with_its_name(models: ModelServer) -> None:
    schema = {**SCHEMA, "properties": {**SCHEMA["properties"], "total": {"type": "number"}}, "required": ["total"]}
    models.set_default(lambda request: data_reply({"lines": rows_of(request)}))
    with pytest.raises(SchemaInvalid, match="'total' is missing"):
        process(schema=schema)
    assert sum("were not found so far" in request.message("system") for request in models.requests) == 1


@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["direct-json", "chunked-extract"])
def test_a_correction_may_be_the_whole_response(models: ModelServer, strategy: str) -> None:
    models.set_default(
        lambda r: data_reply({"lines": rows_of(r) if is_correction(r) else without_sku(rows_of(r), 237)})
    )
    assert process(strategy=strategy).data["lines"] == ALL


@pytest.mark.parametrize("strategy", ["direct-json", "chunked-extract"])
@pytest.mark.parametrize("given", [[], [{"sku": "A-1", "amount": 1}] * 7], ids=["nothing", "other items"])
def test_a_correction_that_loses_items_is_refused(models: ModelServer, strategy: str, given: list[Any]) -> None:
    models.set_default(
        lambda r: data_reply({"lines": given if is_correction(r) else without_sku(rows_of(r), 237, 238)})
    )
    context = context_of(seconds=120)

    result = process(context=context, strategy=strategy)

    assert result.data["lines"] == [row for row in ALL if row["sku"] not in ("A-237", "A-238")]
    pages = "pages 1 to 10" if strategy == "direct-json" else "page 5"
    assert f"2 items do not fit the schema and were left out ({pages}" in warning(context, "items_rejected")
    assert "The member 'sku' is missing." in warning(context, "items_rejected")
    assert sum(map(is_correction, models.requests)) == 2


def test_rejected_items_are_named_by_their_own_pages(models: ModelServer) -> None:
    """With one call for a whole document, "pages 1 to 10" would not locate the item."""

    def answer(request: Request) -> Reply:
        rows = without_sku(rows_of(request), 7, 237)
        evidence = {f"/lines/{at}/amount": {"page": at // 50 + 1, "quote": f"{at}.50"} for at in range(500)}
        return data_reply({"lines": [] if is_correction(request) else rows}, evidence)

    models.set_default(answer)
    context = context_of(seconds=120)
    process(context=context, strategy="direct-json")
    assert "2 items do not fit the schema and were left out (pages 1, 5)." in warning(context, "items_rejected")


def test_a_rule_may_require_all_items(models: ModelServer) -> None:
    models.set_default(lambda r: data_reply({"lines": without_sku(rows_of(r), 237)}))
    with pytest.raises(SchemaInvalid):
        process(require_complete=True)


def test_a_response_too_long_to_repeat_is_not_shown_in_part(models: ModelServer) -> None:
    """A model that is shown only a part of its response would return only the rows in that part."""
    models.enqueue(
        text_reply(json.dumps({"data": {"lines": ALL}}, indent=8)[:-1]), lambda r: data_reply({"lines": rows_of(r)})
    )

    assert process(strategy="direct-json").data["lines"] == ALL

    shown = models.requests[1].messages[2]["content"]
    assert re.fullmatch(r"\(an answer of \d{5} characters, which is not repeated here\)", shown)


def test_values_outside_of_lists_are_corrected_without_the_lists(models: ModelServer) -> None:
    def answer(request: Request) -> Reply:
        return (
            data_reply({"total": 7})
            if is_correction(request)
            else data_reply({"total": "7", "lines": rows_of(request)})
        )

    models.set_default(answer)
    context = context_of(seconds=120)

    data = process(200, context=context, strategy="direct-json").data

    assert data == {"total": 7, "lines": ALL[:200]}
    assert json.loads(models.requests[1].messages[2]["content"]) == {"data": {"total": "7"}}
    assert "/total. The response had 200 items before and 200 after." in warning(context, "repaired")


def test_a_correction_of_one_value_does_not_lose_another(models: ModelServer) -> None:
    """A correction shows only the lines of the wrong value.

    The model cannot find other values there and returns null for them, which must not replace valid values.
    """
    names = ("opening", "closing", "number")
    schema = {**SCHEMA, "properties": {**SCHEMA["properties"], **{name: {"type": "number"} for name in names}}}
    schema["required"] = [*names, "lines"]
    document = ocr_of(*pages_of(200), "Opening balance: 12.25\n\nClosing balance: 99.75")

    def answer(request: Request) -> Reply:
        if is_correction(request):
            return data_reply({"opening": 12.25, "closing": None, "number": 7})
        return data_reply({"opening": "12.25 EUR", "closing": 99.75, "lines": rows_of(request)})

    models.set_default(answer)
    data = Llm().process(document, rule_of(schema, strategy="direct-json"), context=context_of(seconds=120)).data
    assert data == {"opening": 12.25, "closing": 99.75, "number": 7, "lines": ALL[:200]}


def test_the_schema_for_pieces_still_requires_complete_items(models: ModelServer) -> None:
    models.set_default(lambda r: data_reply({"lines": rows_of(r)}))
    process(100)
    system = models.requests[0].message("system")
    shown = json.loads(system.partition("JSON Schema:\n```json\n")[2].partition("\n```")[0])
    assert "required" not in shown
    assert shown["properties"]["lines"]["items"] == ROW


def test_a_schema_may_have_anchors(models: ModelServer) -> None:
    rows = {"type": "array", "items": {"$ref": "#row"}}
    schema = {"type": "object", "properties": {"lines": rows}, "$defs": {"row": {**ROW, "$anchor": "row"}}}
    models.set_default(lambda r: data_reply({"lines": rows_of(r)}))
    assert process(100, schema=schema).data["lines"] == ALL[:100]


def test_shared_definitions_stay_strict_within_items(models: ModelServer) -> None:
    schema = {
        "type": "object",
        "properties": {
            "first": {"$ref": "#/$defs/row"},
            "lines": {"type": "array", "items": {"$ref": "#/$defs/row"}},
        },
        "$defs": {"row": ROW},
    }
    models.set_default(lambda r: data_reply({"first": {"sku": None}, "lines": without_sku(rows_of(r), 7)}))
    context = context_of(seconds=120)

    data = process(100, schema=schema, context=context).data

    assert data["lines"] == [row for row in ALL[:100] if row["sku"] != "A-7"]
    assert "items_rejected" in codes(context)


def test_an_item_that_fits_no_alternative_is_not_replaced_by_another(models: ModelServer) -> None:
    """The error concerns the whole item, so it has no valid values that a correction must keep.

    Even so, another valid item must not replace it.
    """
    rows = {"type": "array", "items": {"anyOf": [ROW, {"type": "string"}]}}
    schema = {**SCHEMA, "properties": {"lines": rows}}

    def answer(request: Request) -> Reply:
        if is_correction(request):
            return data_reply({"lines": ["another"]})
        return data_reply({"lines": [[*row.values()] if row["sku"] == "A-7" else row for row in rows_of(request)]})

    models.set_default(answer)
    context = context_of(seconds=120)

    assert process(100, schema=schema, context=context).data["lines"] == [
        row for row in ALL[:100] if row["sku"] != "A-7"
    ]
    assert "items_rejected" in codes(context)


# ---- Conflicts ------------------------------------------------------------------------------------------------------
def totals(*values: Any) -> Any:
    """Return a simulated model that finds these totals in the pieces, in order. In a conflict, it chooses the last."""

    def answer(request: Request) -> Reply:
        piece = re.search(r"piece (\d+) of", request.message("user"))
        if not piece:
            return data_reply({"total": values[-1]})
        at = int(piece[1]) - 1
        return data_reply({"total": values[at] if at < len(values) else None, "lines": rows_of(request)})

    return answer


def with_total(**keywords: Any) -> dict[str, Any]:
    return {**SCHEMA, "properties": {**SCHEMA["properties"], "total": {"type": ["number", "null"], **keywords}}}


def test_the_model_is_asked_once_about_values_that_differ(models: ModelServer) -> None:
    """Otherwise, a subtotal that is carried forward could become the total."""
    models.set_default(totals(117017.0, 1006573.25))
    context = context_of(seconds=120)

    result = process(100, context=context)

    assert result.data["total"] == 1006573.25
    [choice] = [request for request in models.requests if "piece" not in request.message("user").split("\n")[0]]
    assert "Values of /total:\n- 117017.0 (page 1)\n- 1006573.25 (page 2)" in choice.message("user")
    assert warning(context, "merge_conflict").endswith("/total: page 1, page 2. The model chose one.")


def test_the_places_of_values_that_differ_are_shown(models: ModelServer) -> None:
    models.set_default(totals(3.5, 55.5))
    process(100)
    data = models.requests[-1].message("user")
    assert "<!-- page: 1 -->\n\n" in data
    assert "| A-3 | 3.50 |" in data
    assert "<!-- page: 2 -->\n\n" in data
    assert "| A-55 | 55.50 |" in data


@pytest.mark.parametrize(("policy", "total"), [("first", 117.0), ("last", 30.0), ("max", 1006.25)])
def test_a_rule_chooses_between_values_that_differ(models: ModelServer, policy: str, total: float) -> None:
    models.set_default(totals(117.0, 1006.25, 30.0))
    context = context_of(seconds=120)

    assert process(200, schema=with_total(**{"x-merge": policy}), context=context).data["total"] == total

    assert "merge_conflict" not in codes(context)
    assert all("piece" in request.message("user") for request in models.requests)


def test_a_rule_may_refuse_values_that_differ(models: ModelServer) -> None:
    models.set_default(totals(117.0, 1006.25))
    with pytest.raises(SchemaInvalid, match=r"/total \(page 1, page 2\)"):
        process(100, schema=with_total(**{"x-merge": "error"}))


def test_the_model_chooses_between_objects_of_two_places(models: ModelServer) -> None:
    firm = {"type": "object", "properties": {"name": {"type": "string"}, "tax": {"type": "string"}}}
    schema = {**SCHEMA, "properties": {**SCHEMA["properties"], "firm": firm}}
    firms = {1: {"name": "ACME"}, 2: {"name": "Beta", "tax": "DE1"}}

    def answer(request: Request) -> Reply:
        piece = re.search(r"piece (\d+) of", request.message("user"))
        if not piece:
            return data_reply({"firm": {"name": "ACME", "tax": None}})
        return data_reply({"firm": firms.get(int(piece[1])), "lines": rows_of(request)})

    models.set_default(answer)
    context = context_of(seconds=120)

    assert process(100, schema=schema, context=context).data["firm"] == {"name": "ACME"}
    assert "/firm" in warning(context, "merge_conflict")


def test_the_last_of_many_values_is_shown(models: ModelServer) -> None:
    """At most eight values are shown. The last one, which is often the total, must be one of them."""
    values = [100.5 + number for number in range(10)]
    models.set_default(totals(*values))
    context = context_of(seconds=120)

    assert process(500, context=context).data["total"] == values[-1]

    assert "- 109.5 (page 10)" in models.requests[-1].message("user")
    assert warning(context, "merge_conflict").endswith("It was shown the first and the last ones, 8 of 10.")


def test_the_model_chooses_between_tuples_that_differ(models: ModelServer) -> None:
    """Lists are not hashable, which must not cause an error."""
    place = {"type": ["array", "null"], "prefixItems": [{"type": "number"}, {"type": "number"}]}
    schema = {**SCHEMA, "properties": {**SCHEMA["properties"], "place": place}}
    places = {1: [1.5, 2.5], 2: [3.5, 4.5]}

    def answer(request: Request) -> Reply:
        piece = re.search(r"piece (\d+) of", request.message("user"))
        return data_reply({"place": places.get(int(piece[1]) if piece else 2), "lines": rows_of(request)})

    models.set_default(answer)
    context = context_of(seconds=120)

    assert process(100, schema=schema, context=context).data["place"] == [3.5, 4.5]
    assert "/place" in warning(context, "merge_conflict")


# ---- Sums -----------------------------------------------------------------------------------------------------------
SUMMED = with_total(**{"x-sum-of": "/lines/*/amount", "x-merge": "last"})


def test_amounts_that_cannot_be_read_are_not_summed(models: ModelServer) -> None:
    """There must be no warning that the sum of "50.00 EUR" and "50.00" is 50.00."""
    amount = {"type": "array", "items": {"type": "string"}}
    schema = {"type": "object", "properties": {"total": {"type": "string", "x-sum-of": "/rows/*"}, "rows": amount}}
    models.set_default(data_reply({"total": "100.00", "rows": ["50.00 EUR", "50.00"]}))
    context = context_of(seconds=120)
    process(5, schema=schema, context=context)
    assert "sum_differs" not in codes(context)


def test_a_total_that_differs_from_its_sum_is_reported(models: ModelServer) -> None:
    models.set_default(lambda r: data_reply({"total": 4999.99, "lines": rows_of(r)}))
    context = context_of(seconds=120)
    process(100, schema=SUMMED, context=context)
    assert warning(context, "sum_differs") == "/total is 4999.99, but the sum of /lines/*/amount is 5000.0."


def test_sums_are_exact(models: ModelServer) -> None:
    """With binary floating-point numbers, 0.1 + 0.2 is not 0.3."""
    amounts = [{"sku": str(n), "amount": 0.1} for n in range(30)]
    models.set_default(data_reply({"total": 3, "lines": amounts}))
    context = context_of(seconds=120)
    process(5, schema=SUMMED, context=context)
    assert "sum_differs" not in codes(context)


def test_totals_of_groups_are_compared_with_their_own_amounts(models: ModelServer) -> None:
    group = {
        "type": "object",
        "properties": {
            "sum": {"type": "number", "x-sum-of": "/groups/*/amounts/*"},
            "amounts": {"type": "array", "items": {"type": "number"}},
        },
    }
    schema = {"type": "object", "properties": {"groups": {"type": "array", "items": group}}}
    models.set_default(data_reply({"groups": [{"sum": 3, "amounts": [1, 2]}, {"sum": 8, "amounts": [3, 4]}]}))
    context = context_of(seconds=120)
    process(5, schema=schema, context=context)
    assert warning(context, "sum_differs").startswith("/groups/1/sum is 8, but the sum")


# ---- Notes ----------------------------------------------------------------------------------------------------------
def notes_of(request: Request) -> Reply:
    rows = rows_of(request)
    return text_reply("\n".join([*(f"{row['sku']} {row['amount']}" for row in rows), f"items of /lines: {len(rows)}"]))


def rows_in_notes(request: Request) -> list[dict[str, Any]]:
    found = re.findall(r"^(A-\d+) ([\d.]+)$", request.message("user"), re.MULTILINE)
    return [{"sku": sku, "amount": float(amount)} for sku, amount in found]


def test_rows_that_are_lost_when_notes_are_combined_are_detected(models: ModelServer, settings: Any) -> None:
    """The first combination has only half of the rows, and must not be accepted."""
    change_settings(settings, etl_postprocess_chunk_threshold_chars=100_000)

    def answer(request: Request) -> Reply:
        if "piece" in request.message("user").split("\n")[1 - 1]:
            return notes_of(request)
        rows = rows_in_notes(request)
        return data_reply({"lines": rows if is_correction(request) else rows[::2]})

    models.set_default(answer)
    context = context_of(seconds=120)

    assert process(100, context=context, strategy="chunked-summarize").data["lines"] == ALL[:100]
    assert "Must have at least 100 items, as in the notes, and has 50." in models.requests[-1].messages[3]["content"]
    assert "items_uncounted" not in codes(context)


def test_a_combination_that_keeps_losing_rows_fails(models: ModelServer) -> None:
    models.set_default(
        lambda r: (
            notes_of(r) if "piece" in r.message("user").split("\n")[0] else data_reply({"lines": rows_in_notes(r)[::2]})
        )
    )
    with pytest.raises(SchemaInvalid, match="/lines"):
        process(60, strategy="chunked-summarize")


def test_notes_without_a_count_of_items_are_reported(models: ModelServer) -> None:
    models.set_default(
        lambda r: text_reply("Notes") if "piece" in r.message("user").split("\n")[0] else data_reply({"lines": []})
    )
    context = context_of(seconds=120)
    process(60, context=context, strategy="chunked-summarize")
    assert "/lines" in warning(context, "items_uncounted")


# ---- Shared corrections ---------------------------------------------------------------------------------------------
def rows_without_amounts(request: Request, *, every: int) -> list[dict[str, Any]]:
    """Return the rows of a request without every n-th amount."""
    rows = rows_of(request)
    return [row if int(row["sku"][2:]) % every else {"sku": row["sku"]} for row in rows]


@pytest.mark.slow
@pytest.mark.parametrize(("every", "sizes"), [(50, [10]), (4, [100, 25])], ids=["few", "many"])
def test_the_wrong_items_of_all_pieces_share_requests(models: ModelServer, every: int, sizes: list[int]) -> None:
    models.set_default(
        lambda r: data_reply({"lines": rows_of(r) if is_correction(r) else rows_without_amounts(r, every=every)})
    )
    assert process().data["lines"] == ALL
    again = [request for request in models.requests if is_correction(request)]
    assert [len(rows_of(request)) for request in again] == sizes
    assert [item["sku"] for request in again for item in rows_of(request)] == [
        f"A-{number}" for number in range(0, 500, every)
    ]


def test_a_refused_reply_is_named_although_a_later_reply_of_the_round_was_used(models: ModelServer) -> None:
    """One response has so many invalid items that they need two requests.

    The model returns too few items for the first one until a request names this error. Before, the second response hid
    the refusal, and 100 items were missing.
    """

    def answer(request: Request) -> Reply:
        if not is_correction(request):
            return data_reply({"lines": rows_without_amounts(request, every=4)})
        rows = rows_of(request)
        return data_reply({"lines": rows[:-1] if len(rows) == 100 and len(request.messages) == 2 else rows})

    models.set_default(answer)
    context = context_of(seconds=120)

    assert process(strategy="direct-json", context=context).data["lines"] == ALL

    again = [request for request in models.requests if is_correction(request)]
    assert [len(rows_of(request)) for request in again] == [100, 25, 100]
    assert "- /lines needs 100 corrected items: no more, and no fewer." in again[2].messages[3]["content"]
    assert "items_rejected" not in codes(context)


@pytest.mark.slow
def test_each_request_names_the_refusal_of_its_own_items(models: ModelServer) -> None:
    """Both responses of a round are refused. Before, only the last refusal was named, and with the wrong number."""

    def answer(request: Request) -> Reply:
        if not is_correction(request):
            return data_reply({"lines": rows_without_amounts(request, every=4)})
        rows = rows_of(request)
        return data_reply({"lines": rows[:-1] if len(request.messages) == 2 else rows})

    models.set_default(answer)

    assert process(strategy="direct-json").data["lines"] == ALL

    again = [request for request in models.requests if is_correction(request)]
    assert [len(rows_of(request)) for request in again] == [100, 25, 100, 25]
    for request, count, other in ((again[2], 100, 25), (again[3], 25, 100)):
        assert f"- /lines needs {count} corrected items" in request.messages[3]["content"]
        assert f"needs {other}" not in request.messages[3]["content"]


@pytest.mark.slow
def test_no_correction_is_paid_twice_after_the_worker_was_killed(models: ModelServer) -> None:
    """The worker is killed after each response. The next run uses cached responses, and the result is the same."""

    def answer(request: Request) -> Reply:
        if not is_correction(request):
            return data_reply({"lines": rows_without_amounts(request, every=4)})
        rows = rows_of(request)
        is_refused = rows[0]["sku"] == "A-400" and len(request.messages) == 2
        return data_reply({"lines": rows[:7] if is_refused else rows})

    models.set_default(answer)
    undisturbed = process()
    calls = len(models.requests)
    models.requests.clear()
    response_cache = MemoryResponseCache()
    for _ in range(calls):
        with pytest.raises(Killed):
            process(context=context_of(seconds=120, response_cache=response_cache, on_usage=kill))
    context = context_of(seconds=120, response_cache=response_cache, on_usage=kill)

    assert process(context=context) == undisturbed
    assert undisturbed.data["lines"] == ALL
    assert len(models.requests) == calls
    assert context.usage.calls == calls
    assert context.paid.calls == 0


# ---- Several calls at a time ----------------------------------------------------------------------------------------
class ConcurrencyCounter:
    """A simulated model that counts concurrent calls."""

    def __init__(self, seconds: float = 0.2) -> None:
        self.seconds, self.now, self.maximum = seconds, 0, 0
        self.lock = threading.Lock()

    def __call__(self, request: Request) -> Reply:
        with self.lock:
            self.now += 1
            self.maximum = max(self.maximum, self.now)
        time.sleep(self.seconds)
        with self.lock:
            self.now -= 1
        return data_reply({"lines": rows_of(request)})


@pytest.mark.slow
@pytest.mark.parametrize("parallel", [1, 3])
def test_pieces_are_read_a_few_at_a_time(models: ModelServer, settings: Any, parallel: int) -> None:
    change_settings(settings, etl_postprocess_parallel=parallel)
    counter = ConcurrencyCounter()
    models.set_default(counter)
    seen: list[int] = []
    context = context_of(seconds=120, on_progress=lambda done, _total: seen.append(done))

    assert process(context=context).data["lines"] == ALL

    assert counter.maximum == parallel
    assert context.usage.calls == len(models.requests)
    assert seen == sorted(seen)


@pytest.mark.slow
def test_warnings_are_in_the_order_of_the_pieces(models: ModelServer, settings: Any) -> None:
    change_settings(settings, etl_postprocess_parallel=4)

    def answer(request: Request) -> Reply:
        rows = rows_of(request)
        time.sleep(0.3 if rows[0]["sku"] < "A-3" else 0)
        return data_reply({"lines": [{"amount": 1}, *rows[1:]]})

    models.set_default(answer)
    context = context_of(seconds=120)
    process(context=context)
    pages = [each.page for each in context.warnings if each.code == "items_rejected"]
    assert len(pages) > 5
    assert pages == sorted(page for page in pages if page)


@pytest.mark.slow
def test_calls_that_run_when_another_fails_are_kept(models: ModelServer, settings: Any) -> None:
    change_settings(settings, etl_postprocess_parallel=3)
    failing = threading.Event()
    failing.set()

    def answer(request: Request) -> Reply:
        if "piece 2 of" in request.message("user") and failing.is_set():
            return problem(503)
        time.sleep(0.3)
        return data_reply({"lines": rows_of(request)})

    models.set_default(answer)
    response_cache = MemoryResponseCache()
    with pytest.raises(LlmUnavailable):
        process(context=context_of(seconds=120, response_cache=response_cache))
    first = len(models.requests)
    assert first < 8  # no call was started after the failure
    failing.clear()

    context = context_of(seconds=120, response_cache=response_cache)
    assert process(context=context).data["lines"] == ALL

    pieces = [re.search(r"piece \d+ of", request.message("user")) for request in models.requests]
    names = [found.group() for found in pieces if found]
    assert {name for name in names if names.count(name) > 1} == {"piece 2 of"}


def test_a_cancelled_run_does_not_wait_for_its_calls(models: ModelServer, settings: Any) -> None:
    change_settings(settings, etl_postprocess_parallel=3)
    context = context_of(seconds=120)

    def answer(request: Request) -> Reply:
        if "piece 1 of" not in request.message("user"):
            context.lease_lost.set()
            models.stopped.wait(60)
        return data_reply({"lines": rows_of(request)})

    models.set_default(answer)
    began = time.monotonic()
    with pytest.raises(Fenced):
        process(context=context)
    assert time.monotonic() - began < 9  # less than the timeout of a call, which is 10 s
