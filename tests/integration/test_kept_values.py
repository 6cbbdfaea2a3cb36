"""Values that corrections and merges must keep, checks of sums, and the usage of several runs."""

import json
import re
from collections.abc import Callable
from typing import Any

import pytest
from django.contrib.auth.models import User
from rest_framework.test import APIClient

from etl.core.stage_context import StageContext
from etl.core.states import Stage
from etl.pipeline import actions
from etl.postprocessors.base import Processed
from etl.postprocessors.llm import Llm
from tests.conftest import change_settings
from tests.integration.etl_factories import make_rule, make_task
from tests.integration.llm_factories import INVOICE_TEXT, codes, context_of, ocr_of, rule_of
from tests.integration.openai_server import ModelServer, Reply, Request, data_reply, text_reply
from tests.integration.stage_runs import row_of, run, run_when_due
from tests.integration.test_llm import hang
from tests.integration.test_long_documents import ALL, SCHEMA, is_correction, pages_of, rows_of, text_of

HEADER: dict[str, Any] = {
    "type": "object",
    "properties": {
        "number": {"type": "string"},
        "total": {"type": ["number", "null"]},
        "due": {"type": ["string", "null"]},
        "currency": {"enum": ["EUR", "USD"]},
    },
    "required": ["currency"],
    "additionalProperties": False,
}
INVOICE_PAGE = "Invoice INV-2024-17\n\nDiscount 34.50 EUR\n\nTotal 1,234.50 EUR\n\nDue 2024-05-01"
FIRST = {"number": "INV-2024-17", "total": 1234.5, "due": "2024-05-01", "currency": "Euro"}
RIGHT = FIRST | {"currency": "EUR"}
LIMITS = {"etl_postprocess_chunk_threshold_chars": 1_000, "etl_postprocess_chunk_size_chars": 1_500}


@pytest.fixture
def models(models: ModelServer, settings: Any) -> ModelServer:
    change_settings(settings, etl_postprocess_parallel=1, **LIMITS)
    return models


def process(pages: list[str], schema: dict[str, Any], **rule: Any) -> tuple[Processed, StageContext]:
    context = context_of(seconds=120)
    return Llm().process(ocr_of(*pages), rule_of(schema, **rule), context=context), context


# ---- Corrections ----------------------------------------------------------------------------------------------------
def test_a_correction_does_not_change_values_that_fit(models: ModelServer) -> None:
    """The corrected response replaces the valid total with the discount. That must not change the result silently."""
    models.set_default(lambda request: data_reply(RIGHT | {"total": 34.5} if is_correction(request) else FIRST))
    done, context = process([INVOICE_PAGE], HEADER)
    assert done.data == RIGHT or "/total" in str(context.warnings)


def test_a_correction_does_not_drop_values_that_fit(models: ModelServer) -> None:
    """The corrected response contains only the wrong field, as requested. The other three fields must be kept."""
    models.set_default(lambda request: data_reply({"currency": "EUR"} if is_correction(request) else FIRST))
    done, _ = process([INVOICE_PAGE], HEADER)
    assert done.data == RIGHT


def test_a_correction_does_not_replace_an_item_by_another(models: ModelServer) -> None:
    """Row A-37 is wrong, and the correction contains row A-5 instead, which must not replace A-37 silently."""

    def answer(request: Request) -> Reply:
        if is_correction(request):
            return data_reply({"lines": [{"sku": "A-5", "amount": 5.5}]})
        rows = rows_of(request)
        return data_reply({"lines": [{"amount": row["amount"]} if row["sku"] == "A-37" else row for row in rows]})

    models.set_default(answer)
    done, context = process(pages_of(100), SCHEMA, strategy="direct-json")
    assert done.data["lines"] == ALL[:100] or "items_rejected" in codes(context)


def test_only_the_field_that_is_not_allowed_is_removed(models: ModelServer) -> None:
    """The correction must not change the other fields."""
    models.set_default(
        lambda request: data_reply({"total": 34.5, "currency": "USD"} if is_correction(request) else RIGHT | {"x": 1})
    )
    assert process([INVOICE_PAGE], HEADER)[0].data == RIGHT


def test_items_that_share_a_row_are_reported(models: ModelServer) -> None:
    """Two items are equal, but only one row in the document has their values."""
    models.set_default(lambda request: data_reply({"lines": [*rows_of(request), rows_of(request)[5]]}))
    done, context = process(pages_of(20), SCHEMA, strategy="direct-json")
    assert len(done.data["lines"]) == 21
    [warning] = [each for each in context.warnings if each.code == "items_repeated"]
    assert warning.detail == "2 items are equal to others, and have fewer rows in the document: /lines."


# ---- Replies --------------------------------------------------------------------------------------------------------
def test_a_draft_in_a_code_fence_is_not_the_answer(models: ModelServer) -> None:
    """A response with a draft in a code fence and an answer after it is ambiguous, so the model is called again."""
    draft, final = {"number": "INV-2024-17", "total": 34.5}, {"number": "INV-2024-17", "total": 1234.5}
    text = (
        f"A first draft:\n```json\n{json.dumps({'data': draft})}\n```\nThis takes the discount for the total. "
        f"The answer is:\n{json.dumps({'data': final})}"
    )
    models.set_default(lambda request: data_reply(final) if is_correction(request) else text_reply(text))
    context = context_of()
    assert Llm().process(ocr_of(INVOICE_PAGE), rule_of(), context=context).data == final
    assert len(models.requests) == 2


# ---- Borders --------------------------------------------------------------------------------------------------------
def test_rows_of_the_context_are_not_duplicated(models: ModelServer) -> None:
    """A model may also return rows of the context around its piece. They must not be in the result twice."""
    words = ["alpha", "beta", "gamma", "delta", "epsilon", "zeta", "eta", "theta"]
    entries = []
    for number in range(120):
        notes = "".join(f"{words[(number * 5 + nth) % 8]} note\n" for nth in range((number * 7) % 5))
        entries.append(f"{words[number * 3 % 8]} item A-{number} costs {number}.50\n{notes}")

    def answer(request: Request) -> Reply:
        matches = re.findall(r"item (A-\d+) costs ([\d.]+)", text_of(request))
        return data_reply({"lines": [{"sku": sku, "amount": float(amount)} for sku, amount in matches]})

    models.set_default(answer)
    done, context = process(["".join(entries)], SCHEMA)
    assert any("for reading only" in text_of(request) for request in models.requests)
    assert (done.data["lines"], context.warnings) == (ALL[:120], [])


ACCOUNT_ROW = {
    "type": "object",
    "properties": {"account": {"type": ["string", "null"]}, "sku": {"type": "string"}, "amount": {"type": "number"}},
    "required": ["account", "sku", "amount"],
}
ACCOUNTS = {"type": "object", "properties": {"lines": {"type": "array", "items": ACCOUNT_ROW}}, "required": ["lines"]}
GROUPS: dict[str, Callable[[], str]] = {
    "heading": lambda: "".join(
        f"## Account {account}\n\n| article | amount |\n|---|---|\n"
        + "".join(f"| A-{account}{number:03} | {number}.50 |\n" for number in range(150))
        + "\n"
        for account in (7, 8)
    ),
    "row of a table": lambda: (
        "| article | amount |\n|---|---|\n"
        + "".join(
            f"| **Account {account}** | |\n" * (number == 0) + f"| A-{account}{number:03} | {number}.50 |\n"
            for account in (7, 8)
            for number in range(150)
        )
    ),
    "cell over several rows": lambda: (
        "<table><tr><th>account</th><th>article</th><th>amount</th></tr>"
        + "".join(
            f"<tr>{f'<td rowspan=150>Account {account}</td>' * (number == 0)}<td>A-{account}{number:03}</td>"
            f"<td>{number}.50</td></tr>"
            for account in (7, 8)
            for number in range(150)
        )
        + "</table>"
    ),
    "line in bold": lambda: "".join(
        f"**Account {account}**\n\n| article | amount |\n|---|---|\n"
        + "".join(f"| A-{account}{number:03} | {number}.50 |\n" for number in range(150))
        + "\n"
        for account in (7, 8)
    ),
    "first cell of a group": lambda: (
        "| account | article | amount |\n|---|---|---|\n"
        + "".join(
            f"| {f'Account {account}' * (number == 0)} | A-{account}{number:03} | {number}.50 |\n"
            for account in (7, 8)
            for number in range(150)
        )
    ),
}


@pytest.mark.parametrize("text", GROUPS.values(), ids=GROUPS)
def test_a_piece_has_the_heading_of_its_rows(models: ModelServer, text: Callable[[], str]) -> None:
    """A group's heading is in the text only once, where the group begins, so later pieces must repeat it.

    Otherwise, a model that reads only its piece would return rows without an account, or with that of the next heading.
    """

    def answer(request: Request) -> Reply:
        account, rows, is_own = None, [], True
        for line in text_of(request).replace("<tr>", "\n<tr>").splitlines():
            if "[this piece begins here:]" in line or "for reading only" in line:
                is_own = "for reading only" not in line or "its head" in line
            named, row = re.search(r"Account (\d)", line), re.search(r"(A-\d+)(?: \| |</td><td>)([\d.]+)", line)
            account = named[1] if named else account
            rows += [{"account": account, "sku": row[1], "amount": float(row[2])}] if row and is_own else []
        return data_reply({"lines": rows})

    models.set_default(answer)
    done, context = process([text()], ACCOUNTS)
    lost = [row for row in done.data["lines"] if row["account"] != row["sku"][2]]
    assert (len(done.data["lines"]), lost, context.warnings) == (300, [], [])


# ---- Merging --------------------------------------------------------------------------------------------------------
WITH_SELLER: dict[str, Any] = {
    "type": "object",
    "properties": {
        "seller": {
            "type": ["object", "null"],
            "properties": {name: {"type": ["string", "null"]} for name in ("name", "tax_id", "country")},
        },
        "lines": SCHEMA["properties"]["lines"],
    },
    "required": ["lines"],
}


def sellers(models: ModelServer, *given: dict[str, str]) -> tuple[Any, StageContext]:
    """Return the merged seller of a document whose pieces have these sellers."""
    remaining = list(given)

    def answer(request: Request) -> Reply:
        return data_reply({"seller": remaining.pop(0) if remaining else None, "lines": rows_of(request)})

    models.set_default(answer)
    done, context = process(pages_of(250), WITH_SELLER)
    return done.data["seller"], context


def test_a_common_value_does_not_merge_two_companies(models: ModelServer) -> None:
    """A common country must not give a company the tax ID of another one without a warning."""
    seller, context = sellers(models, {"name": "Acme", "country": "DE"}, {"tax_id": "DE999999999", "country": "DE"})
    assert seller != {"name": "Acme", "country": "DE", "tax_id": "DE999999999"} or "merge_conflict" in codes(context)


def test_pieces_that_agree_cause_no_conflict(models: ModelServer) -> None:
    """The third piece agrees with both others, so the model isn't called to resolve a conflict."""
    whole = {"name": "Acme", "tax_id": "DE1"}
    seller, context = sellers(models, {"name": "Acme"}, {"tax_id": "DE1"}, whole)
    assert seller == whole
    assert "merge_conflict" not in codes(context)


def test_identifiers_that_differ_in_case_are_a_conflict(models: ModelServer) -> None:
    seller, context = sellers(models, {"name": "abC-1"}, {"name": "ABc-1"})
    assert "merge_conflict" in codes(context), seller


def test_members_keep_their_order_and_their_nulls(models: ModelServer) -> None:
    """docs/api-documents.md: fields have the order of the model's response, for long documents too."""
    members = {"sku": {"type": "string"}, "note": {"type": ["string", "null"]}, "vat": {"type": ["number", "null"]}}
    row = {"type": "object", "properties": members, "required": ["sku", "vat"]}
    schema = {"type": "object", "properties": {"lines": {"type": "array", "items": row}}, "required": ["lines"]}
    models.set_default(
        lambda request: data_reply(
            {"lines": [{"vat": None, "note": None, "sku": row["sku"]} for row in rows_of(request)]}
        )
    )
    done, _ = process(pages_of(100), schema)
    assert list(done.data["lines"][0]) == ["vat", "note", "sku"]


# ---- Sums -----------------------------------------------------------------------------------------------------------
AMOUNT = {"type": ["number", "string"]}
SUMS = {
    "type": "object",
    "properties": {
        "total": AMOUNT | {"x-sum-of": "/lines/*/amount"},
        "lines": {"type": "array", "items": {"type": "object", "properties": {"amount": AMOUNT}}},
    },
}


@pytest.mark.parametrize(
    ("total", "amounts"), [("9,999.00", ["1,000.00", "2,000.00"]), (3000, ["1,000.00", 3000])], ids=["text", "mixed"]
)
def test_a_sum_of_amounts_as_text_is_compared(models: ModelServer, total: Any, amounts: list[Any]) -> None:
    """Amounts such as `1,000.00` must be read as numbers. Otherwise, totals are not compared, or sums are too small."""
    models.set_default(data_reply({"total": total, "lines": [{"amount": amount} for amount in amounts]}))
    _, context = process(["1,000.00\n2,000.00\n3,000.00\nTotal 9,999.00"], SUMS)
    assert "sum_differs" in codes(context)


# ---- Usage ----------------------------------------------------------------------------------------------------------
@pytest.fixture
def stage_models(model_server: ModelServer, settings: Any) -> ModelServer:
    change_settings(settings, etl_postprocess_parallel=1, **LIMITS)
    return model_server


def test_a_retry_does_not_count_stored_replies_again(alice: User, stage_models: ModelServer, api: APIClient) -> None:
    """A retry of a failed task reuses stored responses. They must be counted in one run only."""
    task = make_task(alice, "\n".join(pages_of(300)), rule=make_rule(alice, mode="llm", json_schema=SCHEMA))
    stage_models.set_default(
        lambda request: data_reply({"lines": rows_of(request)}, finish="length" if is_third() else "stop")
    )

    def is_third() -> bool:
        return len(stage_models.requests) == 3

    run(task)
    assert (row_of(task).error or {})["code"] == "llm_truncated"
    actions.retry(task=row_of(task), from_stage=Stage.POSTPROCESS)
    run(task, Stage.POSTPROCESS)

    assert row_of(task).status == "completed"
    post = row_of(task).metadata["postprocess"]
    assert post["earlier_usage"]["calls"] + post["usage"]["calls"] == len(stage_models.requests)
    assert api.get("/api/v1/etl/usage").json()["total"]["calls"] == len(stage_models.requests)


@pytest.mark.slow
def test_a_call_without_a_response_is_still_reported_after_the_next_attempt(
    alice: User, stage_models: ModelServer, settings: Any
) -> None:
    """Warnings of a failed attempt are discarded, but the warning about a call whose usage is unknown must be kept."""
    task = make_task(alice, INVOICE_TEXT, rule=make_rule(alice, mode="llm", json_schema=HEADER))
    stage_models.enqueue(Reply(action=hang), data_reply(RIGHT))
    change_settings(settings, etl_llm_timeout_seconds=1.0)
    run(task)
    change_settings(settings, etl_llm_timeout_seconds=30.0)  # this call must succeed although the machine may stall
    run_when_due(task, Stage.POSTPROCESS)

    row = row_of(task)
    assert (row.status, row.metadata["postprocess"]["usage"]["calls"]) == ("completed", 2)
    assert "usage_incomplete" in [each["code"] for each in row.metadata["warnings"]]
