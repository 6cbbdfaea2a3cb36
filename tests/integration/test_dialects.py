"""Responses of model servers according to their documentation. `tests/dialects` has a file for each server.

An exchange has the `status` and the `body` of a response, and its `outcome`: `data`, or the code of the error.
Optional: `headers`, those of the response; `calls`, the number of calls (by default one); `document`, which is `long`
for a document with pages of text; and `warning`, which is `prompt_truncated` if that warning is expected.
"""

import json
from pathlib import Path
from typing import Any

import pytest

from etl.core.errors import EtlError
from etl.postprocessors.base import Processed
from etl.postprocessors.llm import Llm
from tests.integration.llm_factories import INVOICE_TEXT, codes, context_of, ocr_of, rule_of
from tests.integration.openai_server import ModelServer, Reply, data_reply

FOLDER = Path(__file__).parents[1] / "dialects"
SERVERS = [json.loads(path.read_text(encoding="utf-8")) for path in sorted(FOLDER.glob("*.json"))]
EXCHANGES = {f"{server['server']}: {each['name']}": each for server in SERVERS for each in server["exchanges"]}
TOO_LONG = {name: each for name, each in EXCHANGES.items() if each["outcome"] == "document_too_long"}
GOOD = {"number": "INV-2024-17", "total": 1234.5}
LONG = f"{INVOICE_TEXT}\n\n" + "The quick brown fox jumps over the lazy dog near the river bank. " * 350


def reply(exchange: dict[str, Any]) -> Reply:
    return Reply(exchange["body"], status=exchange["status"], headers=exchange.get("headers", {}))


def process(exchange: dict[str, Any], **options: Any) -> Processed:
    text = LONG if exchange.get("document") == "long" else INVOICE_TEXT
    return Llm().process(ocr_of(text), rule_of(strategy="direct-json"), **options)


def test_every_file_has_its_source() -> None:
    assert len(SERVERS) >= 14
    assert all(server["documentation"] for server in SERVERS)
    assert all(each.startswith("https://") for server in SERVERS for each in server["documentation"])


@pytest.mark.parametrize("exchange", EXCHANGES.values(), ids=EXCHANGES.keys())
def test_each_response_has_the_recorded_outcome(models: ModelServer, exchange: dict[str, Any]) -> None:
    models.set_default(reply(exchange))
    context = context_of()

    if exchange["outcome"] == "data":
        assert process(exchange, context=context).data == GOOD
    else:
        with pytest.raises(EtlError) as caught:
            process(exchange, context=context)
        assert caught.value.code == exchange["outcome"]
    assert len(models.requests) == exchange.get("calls", 1)
    assert ("prompt_truncated" in codes(context)) == (exchange.get("warning") == "prompt_truncated")


@pytest.mark.parametrize("exchange", TOO_LONG.values(), ids=TOO_LONG.keys())
def test_a_document_with_a_too_long_prompt_is_split(models: ModelServer, exchange: dict[str, Any]) -> None:
    models.enqueue(reply(exchange))
    models.set_default(data_reply(GOOD))

    result = Llm().process(ocr_of(INVOICE_TEXT), rule_of(), context=context_of())

    assert (result.data, result.strategy) == (GOOD, "chunked-extract")
