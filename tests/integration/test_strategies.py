"""Strategies, their choice by size, pieces, and citations, with a scripted server over real HTTP (B16, B18, B20)."""

import json
import re
from typing import Any

import pytest

from etl.core.errors import (
    DocumentTooLong,
    Fenced,
    LlmForbidden,
    LlmInvalidResponse,
    LlmTruncated,
    LlmUnavailable,
    SchemaInvalid,
)
from etl.core.stage_context import StageContext
from etl.postprocessors.base import Processed
from etl.postprocessors.llm import Llm
from etl.providers.base import OCRResult
from rules.library.content import RuleContent
from tests.conftest import change_settings
from tests.integration.llm_factories import (
    INVOICE_TEXT,
    Killed,
    MemoryResponseCache,
    codes,
    contains_no_private_data,
    context_of,
    kill,
    ocr_of,
    rule_of,
)
from tests.integration.openai_server import ModelServer, Request, data_reply, problem, text_reply

GOOD = {"number": "INV-2024-17", "total": 1234.5}
LINES = {
    "type": "object",
    "properties": {
        "customer": {"type": "string"},
        "lines": {
            "type": "array",
            "items": {
                "type": "object",
                "properties": {"sku": {"type": "string"}, "price": {"type": "number"}},
                "required": ["sku", "price"],
                "additionalProperties": False,
            },
        },
    },
    "required": ["customer", "lines"],
    "additionalProperties": False,
}
# Three pages, each of which is a separate piece.
PAGES = [
    f"Customer: ACME Ltd\n\nSKU-{page} costs {page}.50 EUR\n\n" + f"Words of page {page}. " * 9 for page in (1, 2, 3)
]


@pytest.fixture
def models(models: ModelServer, settings: Any) -> ModelServer:
    change_settings(
        settings,
        etl_postprocess_chunk_threshold_chars=500,
        etl_postprocess_chunk_size_chars=300,
        etl_postprocess_max_chunks=5,
        etl_postprocess_parallel=1,
    )
    return models


def process(
    *, ocr: OCRResult | None = None, rule: RuleContent | None = None, context: StageContext | None = None
) -> Processed:
    return Llm().process(ocr or ocr_of(*PAGES), rule or rule_of(LINES), context=context or context_of())


def piece_of(request: Request) -> int:
    """Return the number of the piece in a request, or 0 for a request that combines pieces."""
    found = re.search(r"piece (\d+) of", request.message("user"))
    return int(found[1]) if found else 0


def extracts(request: Request) -> Any:
    """Return the response of a model that finds the values in each piece."""
    page = piece_of(request)
    line = {"sku": f"SKU-{page}", "price": page + 0.5}
    return data_reply(
        {"customer": "ACME Ltd" if page == 1 else None, "lines": [line]},
        {"/lines/0/sku": {"page": page, "quote": f"SKU-{page} costs"}},
    )


ALL_LINES = {"customer": "ACME Ltd", "lines": [{"sku": f"SKU-{page}", "price": page + 0.5} for page in (1, 2, 3)]}


# ---- Choice ---------------------------------------------------------------------------------------------------------
def test_a_short_document_takes_one_call(models: ModelServer) -> None:
    """B16: the strategy is chosen by size."""
    models.enqueue(data_reply(GOOD))
    assert process(ocr=ocr_of(INVOICE_TEXT), rule=rule_of()).strategy == "direct-json"


@pytest.mark.parametrize("strategy", ["chunked-extract", "chunked-summarize"])
def test_a_long_document_is_split_by_the_configured_strategy(models: ModelServer, settings: Any, strategy: str) -> None:
    """B16: a setting selects the strategy for long text."""
    change_settings(settings, etl_postprocess_long_strategy=strategy)
    models.set_default(lambda request: extracts(request) if piece_of(request) else data_reply(ALL_LINES))

    result = process()

    assert (result.strategy, result.data) == (strategy, ALL_LINES)
    assert len(models.requests) == (3 if strategy == "chunked-extract" else 4)


def test_a_rule_can_require_a_single_call(models: ModelServer) -> None:
    models.enqueue(data_reply(ALL_LINES))
    assert process(rule=rule_of(LINES, strategy="direct-json")).strategy == "direct-json"
    assert len(models.requests) == 1


def test_a_required_single_call_fails_beyond_the_context_length(models: ModelServer) -> None:
    models.enqueue(problem(400, "This model's maximum context length is 4096 tokens.", code="context_length_exceeded"))

    with pytest.raises(DocumentTooLong) as caught:
        process(rule=rule_of(LINES, strategy="direct-json"))

    assert caught.value.code == "document_too_long"
    assert len(models.requests) == 1


@pytest.mark.parametrize("status", [400, 413, 500])
def test_a_document_that_turns_out_too_long_is_split(models: ModelServer, settings: Any, status: int) -> None:
    """If the direct strategy was chosen by size, extraction falls back to pieces once."""
    change_settings(settings, etl_postprocess_chunk_threshold_chars=100_000)
    models.enqueue(problem(status, "The prompt is too long: reduce the length of the messages."))
    models.set_default(extracts)

    result = process()

    assert (result.strategy, result.data) == ("chunked-extract", ALL_LINES)
    assert len(models.requests) == 4


def test_fails_when_even_a_piece_is_too_long(models: ModelServer) -> None:
    models.set_default(problem(400, "maximum context length exceeded"))
    with pytest.raises(DocumentTooLong):
        process()
    assert len(models.requests) == 1


@pytest.mark.parametrize("strategy", ["chunked-extract", "chunked-summarize"])
def test_refuses_more_pieces_than_allowed_before_any_call(models: ModelServer, strategy: str) -> None:
    """B16: it fails with an error, and never truncates silently."""
    with pytest.raises(DocumentTooLong) as caught:
        process(ocr=ocr_of(*PAGES, *PAGES), rule=rule_of(LINES, strategy=strategy))
    assert models.requests == []
    assert "5 pieces of 300 characters" in caught.value.detail


def test_an_unknown_strategy_is_reported(models: ModelServer) -> None:
    with pytest.raises(LlmForbidden, match="clairvoyance"):
        process(rule=rule_of(LINES, strategy="clairvoyance"))


def test_custom_strategies_can_be_added(models: ModelServer, settings: Any) -> None:
    """B22: a class, and an entry in the settings."""
    path = "etl.postprocessors.strategies.direct.DirectJson"
    settings.ETL_STRATEGIES = {**settings.ETL_STRATEGIES, "theirs": path}
    models.enqueue(data_reply(ALL_LINES))
    assert process(rule=rule_of(LINES, strategy="theirs")).strategy == "theirs"


# ---- Pieces ---------------------------------------------------------------------------------------------------------
def test_sends_each_piece_with_its_pages(models: ModelServer) -> None:
    models.set_default(extracts)

    process()

    users = [request.message("user") for request in models.requests]
    assert ["piece 2 of 3 of the text of a document, page 2" in user for user in users] == [False, True, False]
    for page, user in enumerate(users, 1):
        assert f"<!-- page: {page} -->\n\nCustomer: ACME Ltd\n\nSKU-{page} costs" in user


def test_pieces_use_the_relaxed_schema(models: ModelServer) -> None:
    models.set_default(extracts)

    process()

    system = models.requests[0].message("system")
    shown = json.loads(system.partition("JSON Schema:\n```json\n")[2].partition("\n```")[0])
    assert "required" not in shown
    assert shown["properties"]["customer"]["type"] == ["string", "null"]


def test_shows_progress_call_by_call(models: ModelServer) -> None:
    progress: list[tuple[int, int]] = []
    models.set_default(extracts)

    process(context=context_of(on_progress=lambda done, total: progress.append((done, total))))

    assert progress == [(0, 4), (1, 4), (2, 4), (3, 4), (4, 4)]


@pytest.mark.parametrize("strategy", ["chunked-extract", "chunked-summarize"])
@pytest.mark.parametrize(
    ("reply", "error"),
    [
        (text_reply("{}", finish="length"), LlmTruncated),
        (problem(500), LlmUnavailable),
        (text_reply(json.dumps({"data": {"customer": 17}})), SchemaInvalid),
    ],
)
def test_no_piece_is_dropped(models: ModelServer, strategy: str, reply: Any, error: type[Exception]) -> None:
    """B18: a failed piece fails the task."""
    if strategy == "chunked-summarize" and error is SchemaInvalid:
        reply = text_reply("<think>Nothing to say.</think>")
    models.set_default(lambda request: reply if piece_of(request) == 2 else extracts(request))
    with pytest.raises(error):
        process(rule=rule_of(LINES, strategy=strategy))


def test_missing_notes_are_reported_as_such(models: ModelServer) -> None:
    reply = text_reply("<think>Nothing to say.</think>")
    models.set_default(lambda request: reply if piece_of(request) == 2 else extracts(request))
    with pytest.raises(SchemaInvalid, match="contains no notes"):
        process(rule=rule_of(LINES, strategy="chunked-summarize"))


@pytest.mark.parametrize("strategy", ["chunked-extract", "chunked-summarize"])
def test_paid_pieces_are_reused(models: ModelServer, strategy: str) -> None:
    """B2, B17: also if a user retries the failed task, which starts another run with another secret."""
    response_cache = MemoryResponseCache()
    rule = rule_of(LINES, strategy=strategy)
    models.set_default(
        lambda r: problem(503) if piece_of(r) == 3 else extracts(r) if piece_of(r) else data_reply(ALL_LINES)
    )
    with pytest.raises(LlmUnavailable):
        process(rule=rule, context=context_of(response_cache=response_cache))
    models.requests.clear()
    response_cache.run.clear()

    models.set_default(lambda r: extracts(r) if piece_of(r) else data_reply(ALL_LINES))
    context = context_of(response_cache=response_cache, secret=b"another run")
    result = process(rule=rule, context=context)

    assert [piece_of(request) for request in models.requests] == ([3] if strategy == "chunked-extract" else [3, 0])
    assert result.data == ALL_LINES
    assert context.usage.calls == (3 if strategy == "chunked-extract" else 4)


@pytest.mark.parametrize("strategy", ["direct-json", "chunked-extract", "chunked-summarize"])
def test_a_killed_run_resumes_at_its_last_piece(models: ModelServer, strategy: str) -> None:
    """B2: even if it is killed after each response, the server gets each call once, and the result is the same."""

    def answer(request: Request) -> Any:
        if len(request.messages) == 2 and piece_of(request) == 2 and strategy == "chunked-extract":
            return text_reply("no JSON at first")
        return extracts(request) if piece_of(request) else data_reply(ALL_LINES)

    response_cache = MemoryResponseCache()
    rule = rule_of(LINES, strategy=strategy)
    models.set_default(answer)
    undisturbed = process(rule=rule)
    calls = len(models.requests)
    models.requests.clear()

    for _ in range(calls):
        with pytest.raises(Killed):
            process(rule=rule, context=context_of(response_cache=response_cache, on_usage=kill))
    context = context_of(response_cache=response_cache, on_usage=kill)

    assert process(rule=rule, context=context) == undisturbed
    assert len(models.requests) == calls
    assert context.usage.calls == calls


def test_a_lost_lease_stops_the_run_between_pieces(models: ModelServer) -> None:
    context = context_of()

    def answer(request: Request) -> Any:
        if piece_of(request) == 2:
            context.lease_lost.set()
        return extracts(request)

    models.set_default(answer)
    with pytest.raises(Fenced):
        process(context=context)
    assert len(models.requests) == 2


# ---- Extracting -----------------------------------------------------------------------------------------------------
def test_reports_conflicts_between_pieces(models: ModelServer) -> None:
    names = {1: "ACME Ltd", 2: "ACME  LTD", 3: "Beta Inc", 0: "Gamma"}
    models.set_default(lambda request: data_reply({"customer": names[piece_of(request)], "lines": []}))
    context = context_of()

    result = process(context=context)

    assert result.data == {"customer": "ACME Ltd", "lines": []}
    [warning] = [each for each in context.warnings if each.code == "merge_conflict"]
    assert warning.page == 1
    assert "/customer: page 1, page 3. The model chose none, so the first is used." in warning.detail
    assert "Beta" not in warning.detail


def test_limits_the_number_of_reported_conflicts(models: ModelServer) -> None:
    schema = {"type": "object", "additionalProperties": {"type": "number"}}
    models.set_default(lambda request: data_reply({f"m{number}": piece_of(request) for number in range(100)}))
    context = context_of()

    process(rule=rule_of(schema), context=context)

    conflicts = [each for each in context.warnings if each.code == "merge_conflict"]
    assert len(conflicts) == 21
    assert "80 more" in conflicts[-1].detail


def test_items_are_deduplicated_on_request(models: ModelServer) -> None:
    """B42: true duplicates are kept unless a rule requests deduplication."""
    same = {"sku": "SKU-1", "price": 1.5}
    models.set_default(data_reply({"customer": "ACME Ltd", "lines": [same, same]}))
    context = context_of()

    assert process(context=context).data["lines"] == [same] * 6
    assert "merge_repeats" not in codes(context)

    schema = json.loads(json.dumps(LINES))
    schema["properties"]["lines"]["x-merge"] = "unique"
    assert process(rule=rule_of(schema), context=context).data["lines"] == [same]
    [warning] = [each for each in context.warnings if each.code == "merge_repeats"]
    assert warning.detail == "5 items that equal another one were left out: /lines."


def test_an_invalid_merged_result_is_repaired_by_one_more_call(models: ModelServer) -> None:
    """B16: at most two calls combine the pieces."""
    schema = json.loads(json.dumps(LINES))
    schema["properties"]["lines"]["minItems"] = 4
    models.set_default(
        lambda r: (
            extracts(r)
            if piece_of(r)
            else data_reply({**ALL_LINES, "lines": [*ALL_LINES["lines"], {"sku": "SKU-3", "price": 3.5}]})
        )
    )

    result = process(rule=rule_of(schema))

    assert len(models.requests) == 4
    last = models.requests[-1]
    assert "- /lines: " in last.message("user")
    assert '"SKU-3"' in last.message("user")
    assert len(result.data["lines"]) == 4


def test_fails_if_the_merged_result_stays_invalid(models: ModelServer) -> None:
    """B17: a required value that no piece contains is not invented."""
    models.set_default(data_reply({"lines": []}))

    with pytest.raises(SchemaInvalid) as caught:
        process()

    assert len(models.requests) == 4  # the pieces, and one about the missing value
    assert contains_no_private_data(caught.value, "ACME")


def test_warns_of_a_result_without_a_value(models: ModelServer) -> None:
    """B18: an empty result is never a silent success."""
    models.set_default(data_reply({"name": None}))
    context = context_of()
    process(rule=rule_of({"type": "object", "properties": {"name": {"type": ["string", "null"]}}}), context=context)
    assert "no_values" in codes(context)


# ---- Summarizing ----------------------------------------------------------------------------------------------------
def test_converts_notes_into_data(models: ModelServer) -> None:
    models.set_default(lambda r: text_reply(f"Notes on {piece_of(r)}") if piece_of(r) else data_reply(ALL_LINES))

    assert process(rule=rule_of(LINES, strategy="chunked-summarize")).data == ALL_LINES

    *noting, combining = models.requests
    assert [request.form for request in noting] == ["", "", ""]
    assert combining.form == "json_schema"
    for page in (1, 2, 3):
        assert f"Notes of page {page}:\nNotes on {page}" in combining.message("user")


def test_truncated_notes_are_refused(models: ModelServer) -> None:
    """B18: for text, completeness cannot be checked."""
    models.set_default(text_reply("Notes", finish=None))
    with pytest.raises(LlmInvalidResponse):
        process(rule=rule_of(LINES, strategy="chunked-summarize"))


def test_combines_long_notes_in_two_calls(models: ModelServer) -> None:
    """B16: at most two calls, for notes of any length."""
    first = {"customer": "ACME Ltd", "lines": []}
    models.set_default(
        lambda r: (
            text_reply(f"Notes on {piece_of(r)}. " * 40)
            if piece_of(r)
            else data_reply(first if "first pieces of a document" in r.message("user") else ALL_LINES)
        )
    )

    assert process(rule=rule_of(LINES, strategy="chunked-summarize")).data == ALL_LINES

    one, two = models.requests[3:]
    assert "Notes on 1" in one.message("user")
    assert "Notes on 3" not in one.message("user")
    assert '"customer": "ACME Ltd"' in two.message("user")
    assert "Notes on 3" in two.message("user")


# ---- Citations ------------------------------------------------------------------------------------------------------
TWO_PAGES = ("# Invoice INV-2024-17\n\nTo: ACME Ltd", "| Total | 1.234,50 € |\n|---|---|\n\nDue on 29 February 2024")
DATED = {
    "type": "object",
    "properties": {
        "number": {"type": "string"},
        "to": {"type": "string"},
        "total": {"type": "number"},
        "due": {"type": "string", "format": "date"},
        "currency": {"enum": ["EUR", "USD"]},
        "paid": {"type": "boolean"},
    },
}
DATA = {
    "number": "INV-2024-17",
    "to": "acme  ltd",
    "total": 1234.5,
    "due": "2024-02-29",
    "currency": "EUR",
    "paid": False,
}


def cited(
    models: ModelServer, data: Any, evidence: Any, *, context: StageContext | None = None
) -> dict[str, tuple[int, str, str]]:
    models.enqueue(data_reply(data, evidence))
    result = process(ocr=ocr_of(*TWO_PAGES), rule=rule_of(DATED), context=context)
    assert all(each.keys() == {"pointer", "page", "bbox", "quote", "match"} for each in result.citations)
    return {each["pointer"]: (each["page"], each["match"], each["quote"]) for each in result.citations}


def test_checks_each_quote_against_the_text(models: ModelServer) -> None:
    """B20: citations of pages are verified."""
    context = context_of()
    found = cited(
        models,
        DATA,
        {
            "/number": {"page": 1, "quote": "Invoice INV-2024-17"},
            "/to": {"page": 1, "quote": "TO:  acme ltd"},
            "/total": {"page": 2, "quote": "1.234,50 €"},
            "/due": {"page": 1, "quote": "Due on 29 February 2024"},  # of another page
            "/currency": {"page": 2, "quote": "€"},
            "/paid": {"page": 2, "quote": "Total"},
        },
        context=context,
    )

    assert found == {
        "/number": (1, "exact", "Invoice INV-2024-17"),
        "/to": (1, "normalized", "To: ACME Ltd"),
        "/total": (2, "normalized", "1.234,50 €"),
        "/due": (2, "normalized", "Due on 29 February 2024"),
        "/currency": (2, "quote", "€"),
        "/paid": (2, "quote", "Total"),
    }
    assert codes(context) == []


def test_values_are_located_without_evidence_of_the_model(models: ModelServer) -> None:
    """B20: evidence is searched for in the text."""
    context = context_of()
    found = cited(models, DATA, {}, context=context)

    assert {pointer: place[:2] for pointer, place in found.items()} == {
        "/number": (1, "exact"),
        "/to": (1, "normalized"),
        "/total": (2, "normalized"),
        "/due": (2, "normalized"),
    }
    assert "1.234,50" in found["/total"][2]
    assert codes(context) == []


def test_unfounded_evidence_is_dropped(models: ModelServer) -> None:
    context = context_of()
    found = cited(
        models,
        {"number": "INV-2024-17", "to": "Beta Inc", "total": 999},
        {
            "/number": {"page": 1, "quote": "Number: INV-2024-17"},  # not in the text, although the value is
            "/to": {"page": 1, "quote": "To: ACME Ltd"},  # in the text, but with another value
            "/total": {"page": 2, "quote": "Total 999"},
        },
        context=context,
    )

    assert found["/number"][:2] == (1, "exact")
    assert [found[pointer][1] for pointer in ("/to", "/total")] == ["not_found", "not_found"]
    [unverified] = [each for each in context.warnings if each.code == "citation_unverified"]
    assert "for 3 values" in unverified.detail
    [absent] = [each for each in context.warnings if each.code == "value_not_in_text"]
    assert absent.detail == "These values were not found in the document: /to, /total."


@pytest.mark.parametrize(
    "evidence",
    [
        None,
        "page 1",
        [1, None, {"pointer": ["x"], "quote": "y"}],
        {"/number": "INV"},
        {"/number": {"page": "1", "quote": 5}},
        {"/number": {"quote": ""}},
        {"/nowhere": {"page": 1, "quote": "To"}},
    ],
)
def test_evidence_is_optional(models: ModelServer, evidence: Any) -> None:
    models.enqueue(text_reply(json.dumps({"data": {"number": "INV-2024-17"}, "evidence": evidence})))
    [citation] = process(ocr=ocr_of(*TWO_PAGES), rule=rule_of(DATED)).citations
    quote = "# Invoice INV-2024-17"
    assert citation == {"pointer": "/number", "page": 1, "bbox": None, "match": "exact", "quote": quote}


@pytest.mark.parametrize("pointer", ["/number", "number", "#/number", "/data/number"])
def test_common_pointer_notations_are_accepted(models: ModelServer, pointer: str) -> None:
    found = cited(models, {"number": "INV-2024-17"}, {pointer: {"page": 1, "quote": "INV-2024-17"}})
    assert found["/number"][1] == "exact"


def test_evidence_may_be_a_list(models: ModelServer) -> None:
    evidence = [{"pointer": "/number", "page": 1, "quote": "INV-2024-17"}]
    assert cited(models, {"number": "INV-2024-17"}, evidence)["/number"][1] == "exact"


@pytest.mark.slow
def test_the_names_in_a_warning_are_bounded(models: ModelServer) -> None:
    schema = {"type": "array", "items": {"type": "string"}}
    models.enqueue(data_reply([f"nowhere {number}" for number in range(3_000)]))
    context = context_of()

    citations = process(ocr=ocr_of(INVOICE_TEXT), rule=rule_of(schema), context=context).citations

    assert {each["match"] for each in citations} == {"not_found"}
    [warning] = context.warnings
    assert (warning.code, len(citations)) == ("value_not_in_text", 3_000)
    assert warning.detail.endswith("/19, and 2980 more.")


def test_citations_of_merged_lists_point_at_their_items(models: ModelServer) -> None:
    """B20: evidence stays with its value in the merge."""
    models.set_default(extracts)

    found = {each["pointer"]: each for each in process().citations}

    for index, page in enumerate((1, 2, 3)):
        citation = found[f"/lines/{index}/sku"]
        assert (citation["page"], citation["match"]) == (page, "exact")
    assert found["/customer"]["page"] == 1


def test_the_pages_of_the_piece_are_searched_first(models: ModelServer) -> None:
    models.set_default(lambda r: data_reply({"customer": "ACME Ltd" if piece_of(r) == 3 else None, "lines": []}))
    [citation] = process().citations
    assert citation["page"] == 3


# ---- Schemas --------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("schema", "data"),
    [
        ({"type": "array", "items": {"type": "string"}}, ["ACME Ltd"]),
        ({"type": "object", "properties": {"data": {"type": "integer"}}, "required": ["data"]}, {"data": 5}),
        ({"$ref": "#/$defs/x", "$defs": {"x": {"type": "object", "required": ["a"]}}}, {"a": 1}),
        ({"type": "object", "oneOf": [{"required": ["a"]}, {"required": ["b"]}]}, {"b": 1}),
    ],
)
@pytest.mark.parametrize("is_wrapped", [True, False])
def test_data_of_any_shape_is_accepted(models: ModelServer, schema: Any, data: Any, *, is_wrapped: bool) -> None:
    models.enqueue(data_reply(data) if is_wrapped else text_reply(json.dumps(data)))
    assert process(ocr=ocr_of(INVOICE_TEXT), rule=rule_of(schema)).data == data


def test_references_of_sent_schemas_stay_valid(models: ModelServer) -> None:
    schema = {
        "type": "object",
        "properties": {"first": {"$ref": "#/$defs/line"}, "$ref": {"type": "string"}},
        "$defs": {"line": {"type": "object", "x-merge": "concat", "properties": {"next": {"$ref": "#"}}}},
        "$schema": "https://json-schema.org/draft/2020-12/schema",
    }
    models.enqueue(data_reply({}))

    process(ocr=ocr_of(INVOICE_TEXT), rule=rule_of(schema))

    sent = models.requests[0].body["response_format"]["json_schema"]["schema"]["properties"]["data"]
    assert sent == {
        "type": "object",
        "properties": {"first": {"$ref": "#/properties/data/$defs/line"}, "$ref": {"type": "string"}},
        "$defs": {"line": {"type": "object", "properties": {"next": {"$ref": "#/properties/data"}}}},
    }


def test_an_unchecked_schema_of_a_rule_is_reported(models: ModelServer) -> None:
    models.enqueue(data_reply({}))
    with pytest.raises(SchemaInvalid, match="Save the rule again"):
        process(ocr=ocr_of(INVOICE_TEXT), rule=rule_of({"$ref": "http://127.0.0.1:9/schema"}))
