"""Counts of paid model calls by user, compared with the counts of the model server (B17)."""

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.test import Client
from rest_framework.test import APIClient

from etl.core.errors import LlmUnavailable, OutOfTime
from etl.core.stage_context import StageContext, Usage
from etl.core.states import Stage
from etl.models import ModelUsage, Task
from etl.pipeline import actions
from etl.postprocessors.conversation import Model
from etl.postprocessors.llm import Llm
from etl.postprocessors.validation import Question
from tests.integration.etl_factories import make_rule, make_task
from tests.integration.llm_factories import INVOICE, INVOICE_TEXT, codes, configure, context_of, ocr_of, rule_of
from tests.integration.openai_server import ModelServer, Reply, data_reply, problem, text_reply
from tests.integration.stage_runs import row_of, run, run_when_due
from tests.integration.test_llm import drip, hang
from tests.waiting import wait_until

USAGE = "/api/v1/etl/usage"
GOOD = {"number": "INV-2024-17", "total": 1234.5}
PROMPT, COMPLETION = 11, 7  # tokens that the server counts for each response


@pytest.fixture
def models(model_server: ModelServer) -> ModelServer:
    model_server.set_default(data_reply(GOOD))
    return model_server


@pytest.fixture
def task(alice: User, models: ModelServer) -> Task:
    return make_task(alice, INVOICE_TEXT, rule=make_rule(alice, mode="llm", json_schema=INVOICE))


def counted_by(models: ModelServer) -> dict[str, int]:
    """Return the usage that the model server has counted for its requests. Each of them had a response."""
    calls = len(models.requests)
    return {"calls": calls, "prompt_tokens": PROMPT * calls, "completion_tokens": COMPLETION * calls}


def total(api: APIClient) -> dict[str, int]:
    found: dict[str, int] = api.get(USAGE).json()["total"]
    return found


def test_all_runs_of_a_task_are_counted(task: Task, models: ModelServer, api: APIClient) -> None:
    models.enqueue(text_reply("prose"), data_reply({"number": 1}))
    run(task)
    assert row_of(task).metadata["postprocess"]["usage"] == counted_by(models)
    first = counted_by(models)
    for _ in range(2):
        actions.retry(task=row_of(task), from_stage=Stage.POSTPROCESS)
        run(task, Stage.POSTPROCESS)

    post = api.get(f"/api/v1/etl/tasks/{task.pk}").json()["metadata"]["postprocess"]
    assert post["usage"]["calls"] == 1
    assert {name: post["earlier_usage"][name] + post["usage"][name] for name in first} == counted_by(models)
    assert total(api) == counted_by(models)
    assert len(models.requests) == 5


def test_a_failed_run_is_counted(task: Task, models: ModelServer, api: APIClient) -> None:
    models.set_default(text_reply("prose"))
    run(task)

    assert row_of(task).status == "failed"
    assert total(api) == counted_by(models)


def test_all_attempts_are_counted(task: Task, models: ModelServer, api: APIClient) -> None:
    models.enqueue(text_reply(""), text_reply(""))
    run(task)
    run_when_due(task, Stage.POSTPROCESS)
    run_when_due(task, Stage.POSTPROCESS)

    assert row_of(task).status == "completed"
    assert total(api) == counted_by(models)


def test_tests_of_rules_are_counted(models: ModelServer, alice: User, api: APIClient) -> None:
    rule = make_rule(alice, mode="llm", json_schema=INVOICE)
    models.enqueue(text_reply("prose"))
    api.post(f"/api/v1/etl/rules/{rule.pk}/test", {"markdown": INVOICE_TEXT})

    assert len(models.requests) == 2
    assert total(api) == counted_by(models)
    [row] = ModelUsage.objects.all()
    assert (row.user, row.task_id, row.rule_id) == (alice, None, rule.pk)


def test_users_see_their_own_usage_by_day(task: Task, models: ModelServer, api: APIClient, bob: User) -> None:
    run(task)
    other = make_task(bob, INVOICE_TEXT, rule=make_rule(bob, mode="llm", json_schema=INVOICE))
    run(other)

    report = api.get(USAGE).json()

    assert len(models.requests) == 2
    assert report["total"] == {"calls": 1, "prompt_tokens": PROMPT, "completion_tokens": COMPLETION}
    assert [each | {"date": ""} for each in report["days"]] == [report["total"] | {"date": ""}]


@pytest.mark.parametrize("days", ["0", "367", "x", "-1", ""])
def test_an_invalid_number_of_days_is_refused(api: APIClient, days: str) -> None:
    response = api.get(f"{USAGE}?days={days}")
    assert response.status_code == 400
    assert response.json()["errors"][0]["detail"] == "Must be a whole number of days from 1 to 366."


def test_the_page_shows_the_usage_of_earlier_runs(task: Task, models: ModelServer, alice: User, client: Client) -> None:
    run(task)
    actions.retry(task=row_of(task), from_stage=Stage.POSTPROCESS)
    run(task, Stage.POSTPROCESS)
    client.force_login(alice)

    page = client.get(f"/app/documents/{task.pk}").content.decode()

    assert "<dt>Earlier runs</dt><dd>1 call, 11 in, 7 out</dd>" in page


# ---- Calls without a response ---------------------------------------------------------------------------------------
def process(context: StageContext) -> None:
    Llm().process(ocr_of(INVOICE_TEXT), rule_of(), context=context)


def process_until_sent(error: type[Exception], **options: Any) -> tuple[StageContext, list[Usage]]:
    """Process a document, and expect this error. Return the context and the usage that was reported.

    Try again if no call was counted: if the machine stalls, the time is over before the request is sent.
    """
    for _ in range(4):
        spent = list[Usage]()
        context = context_of(on_usage=spent.append, **options)
        with pytest.raises(error):
            process(context)
        if context.usage.calls:
            break
    return context, spent


@pytest.mark.parametrize("action", [drip, hang])
def test_a_call_that_times_out_is_counted(models: ModelServer, settings: Any, action: Any) -> None:
    configure(settings, models, etl_llm_timeout_seconds=0.5)
    models.set_default(Reply(action=action))

    context, spent = process_until_sent(LlmUnavailable)

    wait_until(lambda: models.requests)  # the server may read the request after the client has stopped waiting
    assert len(models.requests) == 1
    assert (context.usage, spent) == (Usage(calls=1), [Usage(calls=1)])
    assert codes(context) == ["usage_incomplete"]


@pytest.mark.slow
def test_a_call_that_ends_at_the_deadline_of_the_stage_is_counted(models: ModelServer) -> None:
    models.set_default(Reply(action=hang))

    context, _ = process_until_sent(OutOfTime, seconds=1.0)

    wait_until(lambda: models.requests)
    assert context.usage == Usage(calls=len(models.requests)) == Usage(calls=1)


def test_a_request_that_was_not_sent_is_not_counted(models: ModelServer, settings: Any) -> None:
    configure(settings, models, etl_llm_base_url="http://127.0.0.1:9/v1")
    context = context_of()

    with pytest.raises(LlmUnavailable):
        process(context)

    assert context.usage == Usage()


def test_a_rejected_request_is_not_counted(models: ModelServer) -> None:
    models.enqueue(problem(400, "response_format is not supported"))
    context = context_of()

    process(context)

    assert len(models.requests) == 2
    assert context.usage == Usage(prompt_tokens=PROMPT, completion_tokens=COMPLETION, calls=1)


def test_concurrent_calls_are_all_counted(models: ModelServer) -> None:
    context = context_of()
    model = Model(rule_of(), context=context)

    def ask(number: int) -> Any:
        question = Question(
            label="q", task="T", about="a", data=f"{INVOICE_TEXT} {number}", schema=INVOICE, checked=INVOICE
        )
        return model.ask(question).data

    with ThreadPoolExecutor(max_workers=4) as threads:
        answers = list(threads.map(ask, range(40)))

    assert answers == [GOOD] * 40
    assert context.usage.as_dict() == counted_by(models)
