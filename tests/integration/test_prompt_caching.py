"""Prompt caching: the calls of a task share a prefix that is as long as possible, because model servers cache it."""

import json
import re
from typing import Any

import pytest

from etl.postprocessors.llm import Llm
from rules.library.content import RuleContent
from tests.conftest import change_settings
from tests.integration.llm_factories import INVOICE, context_of, ocr_of, rule_of
from tests.integration.openai_server import ModelServer, Reply, Request, data_reply, problem, text_reply

LONG_RULE = "Read the amounts in the column on the right. " * 1_700  # 77 kB, with the schema 80 kB


@pytest.fixture
def models(models: ModelServer, settings: Any) -> ModelServer:
    # The larger the pieces are, the smaller is the share of the common prefix.
    change_settings(settings, etl_postprocess_chunk_size_chars=8_000)
    models.set_default(data_reply({"number": "INV-2024-17", "total": 1234.5}))
    return models


def sent(request: Request) -> str:
    """Return the text of a request as a server concatenates it."""
    return "".join(f"<{each['role']}>{each['content']}" for each in request.messages)


def common_start(one: str, other: str) -> str:
    length = next((at for at, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))
    return one[:length]


def shares(requests: list[Request]) -> list[float]:
    """Return the share of each request, except the first, that is a prefix of an earlier one."""
    texts = [sent(request) for request in requests]
    return [
        max(len(common_start(text, earlier)) for earlier in texts[:number]) / len(text)
        for number, text in enumerate(texts)
        if number
    ]


def pages(count: int) -> list[str]:
    return ["\n\n".join(f"Row {page}-{row}: INV-2024-17, 1,234.50 EUR" for row in range(150)) for page in range(count)]


def process(rule: RuleContent, *, count: int = 6, **changes: Any) -> None:
    Llm().process(ocr_of(*pages(count)), rule, context=context_of(**changes))


@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["chunked-extract", "chunked-summarize"])
def test_calls_of_a_task_share_a_prefix(models: ModelServer, strategy: str) -> None:
    if strategy == "chunked-summarize":
        models.set_default(
            lambda request: data_reply({"number": "I", "total": 1}) if request.form else text_reply("Notes.")
        )

    process(rule_of(INVOICE, system_prompt=LONG_RULE, strategy=strategy))

    found = shares(models.requests)
    assert len(found) >= 5
    assert min(found) >= 0.9


@pytest.mark.slow
def test_a_correction_of_some_rows_shares_the_prefix_of_the_pieces(models: ModelServer) -> None:
    """The schema of a correction differs, because it has only one list. It is sent after the instructions of the rule.

    Otherwise, only 1 % of the prompt would be shared.
    """
    row = {"type": "object", "properties": {"n": {"type": "string"}, "amount": {"type": "number"}}, "required": ["n"]}
    schema = {"type": "object", "properties": {"rows": {"type": "array", "items": row}, "total": {"type": "number"}}}

    def answer(request: Request) -> Reply:
        numbers = re.findall(r"^Row (\S+):", request.message("user"), re.MULTILINE)
        is_piece = "piece" in request.message("user").split("\n")[0]
        return data_reply({"rows": [{"n": n, "amount": "?" if is_piece and n == "0-5" else 1234.5} for n in numbers]})

    models.set_default(answer)

    process(rule_of(schema, system_prompt=LONG_RULE, strategy="chunked-extract"))

    assert "an earlier answer got wrong" in models.requests[-1].message("system")
    assert shares(models.requests)[-1] >= 0.9


@pytest.mark.slow
def test_calls_differ_only_after_the_marker(models: ModelServer) -> None:
    """Also with a short rule."""
    process(rule_of(INVOICE, strategy="chunked-extract"))

    first, second = (sent(request) for request in models.requests[:2])
    marker = models.requests[1].message("user").split("\n")[1]
    before_marker = second.index(marker)
    assert first.startswith(second[:before_marker])
    assert second[before_marker + len(marker) :].startswith("<user>")


@pytest.mark.slow
def test_servers_without_a_system_role_can_cache_the_prefix(models: ModelServer) -> None:
    models.set_default(
        lambda request: (
            problem(400, "System role not supported")
            if request.message("system")
            else data_reply({"number": "INV-2024-17", "total": 1234.5})
        )
    )

    process(rule_of(INVOICE, system_prompt=LONG_RULE, strategy="chunked-extract"))

    assert min(shares(models.requests[1:])) >= 0.9


@pytest.mark.slow
def test_a_corrective_retry_continues_the_same_conversation(models: ModelServer) -> None:
    models.enqueue(text_reply("Sorry?"))

    process(rule_of(INVOICE, strategy="direct-json"))

    first, second = models.requests
    assert sent(second).startswith(sent(first))


def test_other_runs_share_all_but_the_marker(models: ModelServer) -> None:
    for secret in (b"one", b"two"):
        process(rule_of(INVOICE, system_prompt=LONG_RULE, strategy="direct-json"), count=1, secret=secret)

    [share] = shares(models.requests)
    assert share >= 0.9
    assert json.dumps(models.requests[0].body["response_format"]) == json.dumps(
        models.requests[1].body["response_format"]
    )
