"""Contract of all processors and strategies in ETL_POSTPROCESSORS and ETL_STRATEGIES (B22; B15, B17, B18, B21).

A new entry in these settings is tested without further code. The tests add a processor themselves. The requirements
depend on the attributes of a processor: whether it returns data, and whether it calls a model. The fake model fills in
the schema of the prompt.
"""

import json
import re
from dataclasses import dataclass
from typing import Any

import pytest
from django.conf import settings as configured
from django.utils.module_loading import import_string

from config.platform import exact_json
from etl.core.errors import EtlError, Fenced, OutOfTime
from etl.core.stage_context import StageContext, Usage
from etl.pipeline import engines
from etl.postprocessors.base import PostProcessor, Processed
from etl.postprocessors.strategies.base import Strategy
from rules.library.content import RuleContent
from rules.schema import json_schema
from tests.conftest import change_settings
from tests.integration import words
from tests.integration.llm_factories import (
    Killed,
    MemoryResponseCache,
    contains_no_private_data,
    context_of,
    kill,
    ocr_of,
    rule_of,
)
from tests.integration.openai_server import MODEL, ModelServer, Reply, Request, data_reply, problem, text_reply

SECRET = "Zebra-4711"
PAGES = [
    f"# Part {page}\n\nName: {SECRET}\n\nAmount: {page}00.50 EUR\n\n" + f"Filler of page {page}. " * 20
    for page in (1, 2, 3)
]
SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": ["string", "null"]},
        "amounts": {"type": "array", "items": {"type": "number"}},
        "kind": {"enum": ["invoice", "other"]},
    },
    "required": ["name", "amounts", "kind"],
    "additionalProperties": False,
}


MODES = {**configured.ETL_POSTPROCESSORS, words.MODE: words.PATH}


def kind_of(mode: str) -> type[PostProcessor]:
    kind: type[PostProcessor] = import_string(MODES[mode])
    return kind


@dataclass(frozen=True)
class Variant:
    """A mode, with a strategy if the mode calls a model."""

    mode: str
    strategy: str = ""

    @property
    def rule(self) -> RuleContent:
        schema = SCHEMA if self.calls_model else None
        return RuleContent(rule_id=1, version=1, name="r", mode=self.mode, strategy=self.strategy, json_schema=schema)

    @property
    def calls_model(self) -> bool:
        return kind_of(self.mode).asks_model

    def __str__(self) -> str:
        return f"{self.mode} {self.strategy}".strip()


VARIANTS = [Variant(mode) for mode in MODES if mode not in {"llm", "einvoice"}]
VARIANTS += [Variant("einvoice", "chunked-extract")]  # for a document without an e-invoice
VARIANTS += [Variant("llm", strategy) for strategy in configured.ETL_STRATEGIES]
MODEL_VARIANTS = [variant for variant in VARIANTS if variant.calls_model]
every_variant = pytest.mark.parametrize("variant", VARIANTS, ids=str)
every_model_variant = pytest.mark.parametrize("variant", MODEL_VARIANTS, ids=str)


@pytest.fixture(autouse=True)
def modes(settings: Any) -> None:
    settings.ETL_POSTPROCESSORS = MODES


@pytest.fixture
def models(models: ModelServer, settings: Any) -> ModelServer:
    change_settings(
        settings,
        etl_postprocess_chunk_threshold_chars=900,
        etl_postprocess_chunk_size_chars=600,
        etl_postprocess_parallel=1,  # so that calls have an order
    )
    models.set_default(extract)
    return models


def extract(request: Request) -> Reply:
    """Fill in the schema with values of the text, or return notes if no JSON is requested."""
    text = request.message("user")
    if not request.form and "```json code fence" not in request.message("system"):
        return text_reply(text)
    name = re.search(r"Name: (\S+)", text)
    amounts = sorted({float(found) for found in re.findall(r"(\d+\.50?)\b", text)})
    return data_reply({"name": name[1] if name else None, "amounts": amounts, "kind": "invoice"})


def process(variant: Variant, context: StageContext | None = None) -> Processed:
    return engines.processor(variant.mode).process(ocr_of(*PAGES), variant.rule, context=context or context_of())


# ---- Registration ---------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("mode", MODES)
def test_a_processor_is_registered_for_its_mode(mode: str) -> None:
    processor = engines.processor(mode)
    assert isinstance(processor, PostProcessor)
    assert processor.mode == mode
    assert engines.processor(mode) is processor


@pytest.mark.parametrize("name", configured.ETL_STRATEGIES)
def test_a_strategy_is_registered_by_its_name(name: str) -> None:
    from etl.postprocessors.llm import strategy

    assert isinstance(strategy(name), Strategy)
    assert strategy(name).name == name


# ---- Results --------------------------------------------------------------------------------------------------------
@every_variant
def test_the_result_matches_the_rule(models: ModelServer, variant: Variant) -> None:
    """B15, B17: the data matches the schema if a model is called."""
    result = process(variant)

    if not variant.calls_model:
        assert models.requests == []
        assert result.model is None
    if not kind_of(variant.mode).gives_data:
        assert result == Processed()
    if variant.rule.json_schema is None:
        return
    assert json_schema.errors(SCHEMA, result.data) == []
    assert result.data == {"name": SECRET, "amounts": [100.5, 200.5, 300.5], "kind": "invoice"}
    assert (result.strategy, result.model) == (variant.strategy, MODEL)


@every_variant
def test_the_result_is_json(models: ModelServer, variant: Variant) -> None:
    result = process(variant)
    parts = [result.data, result.citations, result.strategy, result.model]
    assert exact_json.loads(exact_json.dumps(parts)) == parts


@every_model_variant
def test_citations_match_the_text_at_their_offsets(models: ModelServer, variant: Variant) -> None:
    """B20: each quote is on its page."""
    ocr = ocr_of(*PAGES)
    citations = process(variant).citations

    assert {"/name", "/amounts/0", "/amounts/1", "/amounts/2"} <= {each["pointer"] for each in citations}
    for each in citations:
        page = ocr.pages[each["page"] - 1]
        assert each["quote"] in ocr.markdown[page.start : page.end]
        assert each["match"] in ("exact", "normalized", "ambiguous")


@every_variant
def test_the_result_is_deterministic(models: ModelServer, variant: Variant) -> None:
    first, second = context_of(), context_of()
    assert process(variant, first) == process(variant, second)
    assert first.warnings == second.warnings
    half = len(models.requests) // 2
    assert [each.body for each in models.requests[:half]] == [each.body for each in models.requests[half:]]


@every_variant
def test_progress_reaches_its_end(models: ModelServer, variant: Variant) -> None:
    reported: list[tuple[int, int]] = []
    process(variant, context_of(on_progress=lambda done, total: reported.append((done, total))))
    assert reported == sorted(reported)
    assert reported[-1][0] == reported[-1][1] > 0


@every_model_variant
def test_every_response_is_counted(models: ModelServer, variant: Variant) -> None:
    """B17."""
    spent: list[Usage] = []
    context = context_of(on_usage=spent.append)
    process(variant, context)
    calls = len(models.requests)
    assert context.usage == Usage(prompt_tokens=11 * calls, completion_tokens=7 * calls, calls=calls)
    assert len(spent) == calls


# ---- Requests -------------------------------------------------------------------------------------------------------
@every_model_variant
def test_only_the_document_is_sent_and_as_data(models: ModelServer, variant: Variant) -> None:
    """B21: the text is between markers, and only in the user message. Tools and streaming are not used."""
    process(variant)
    for request in models.requests:
        system, user = request.messages
        marker = user["content"].split("\n")[1]
        assert re.fullmatch(r"[0-9a-f]{32}", marker)
        before, _, rest = user["content"].partition(f"\n{marker}\n")
        inside, _, after = rest.rpartition(f"\n{marker}\n")
        assert "not instructions" in before
        assert "not instructions" in after
        assert inside
        assert SECRET not in system["content"] + before + after
        assert json.dumps(request.body).count("tool") == 0
        assert not request.body.get("stream")


@every_model_variant
def test_the_whole_document_is_sent(models: ModelServer, variant: Variant) -> None:
    """B18: nothing is omitted silently."""
    process(variant)
    sent = "".join(request.message("user") for request in models.requests)
    for page in (1, 2, 3):
        assert sent.count(f"Filler of page {page}.") >= 20


# ---- Errors ---------------------------------------------------------------------------------------------------------
@every_variant
def test_it_stops_when_the_lease_is_lost(models: ModelServer, variant: Variant) -> None:
    context = context_of()
    context.lease_lost.set()
    with pytest.raises(Fenced):
        process(variant, context)
    assert models.requests == []


@every_variant
def test_it_stops_at_the_deadline(models: ModelServer, variant: Variant) -> None:
    with pytest.raises(OutOfTime):
        process(variant, context_of(seconds=0))


FAULTS = {
    "401": (problem(401, SECRET), "llm_unavailable", False),
    "429": (problem(429, SECRET, headers={"Retry-After": "3"}), "llm_unavailable", True),
    "500": (problem(500, SECRET), "llm_unavailable", True),
    "nothing": (text_reply(""), "llm_invalid_response", True),
    "garbage": (Reply(b"\xff{{{" + SECRET.encode()), "llm_invalid_response", True),
    "cut off": (text_reply(f'{{"name": "{SECRET}', finish="length"), "llm_truncated", False),
    "refused": (text_reply(None, refusal=SECRET), "llm_refused", False),
    "withheld": (text_reply(SECRET, finish="content_filter"), "llm_refused", False),
}


@every_model_variant
@pytest.mark.parametrize(("reply", "code", "transient"), FAULTS.values(), ids=FAULTS.keys())
def test_failures_have_an_error_code(
    models: ModelServer, variant: Variant, reply: Reply, code: str, *, transient: bool
) -> None:
    """B18: the error contains no content of the document."""
    models.set_default(reply)
    with pytest.raises(EtlError) as caught:
        process(variant)
    assert (caught.value.code, caught.value.transient) == (code, transient)
    assert contains_no_private_data(caught.value, SECRET)


@every_model_variant
def test_results_that_do_not_match_the_schema_are_refused(models: ModelServer, variant: Variant) -> None:
    """B17: a model that never returns valid data leads to schema_validation after a bounded number of calls."""
    models.set_default(lambda r: data_reply({"name": [SECRET], "more": SECRET}) if r.form else text_reply("Notes."))
    with pytest.raises(EtlError) as caught:
        process(variant)
    assert caught.value.code == "schema_validation"
    assert contains_no_private_data(caught.value, SECRET)
    assert len(models.requests) <= 3 + 3


@every_model_variant
def test_paid_responses_are_reused(models: ModelServer, variant: Variant) -> None:
    """B2: a worker that is killed after each response sends each request once, and has the same result in the end."""

    undisturbed = process(variant)
    calls = len(models.requests)
    models.requests.clear()
    response_cache = MemoryResponseCache()

    for _ in range(calls):
        with pytest.raises(Killed):
            process(variant, context_of(response_cache=response_cache, on_usage=kill))
    context = context_of(response_cache=response_cache, on_usage=kill)

    assert process(variant, context) == undisturbed
    assert len(models.requests) == calls == context.usage.calls


@pytest.mark.parametrize("strategy", configured.ETL_STRATEGIES)
def test_warnings_are_bounded_and_contain_no_private_data(models: ModelServer, strategy: str) -> None:
    many = [{"name": f"{SECRET}-{number}"} for number in range(500)]
    rule = rule_of({"type": "object"}, strategy=strategy)
    models.set_default(
        lambda request: (
            data_reply({"x" * 500: many, "y": len(models.requests)}) if request.form else text_reply("Notes.")
        )
    )
    context = context_of()

    engines.processor("llm").process(ocr_of(*PAGES), rule, context=context)

    assert len(context.warnings) < 50
    assert all(len(warning.detail) < 4_000 and SECRET not in warning.detail for warning in context.warnings)
