"""Budgets of language model tokens, per user and per rule (B44)."""

import threading
from collections.abc import Callable
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.core.files.uploadedfile import SimpleUploadedFile
from django.db import connection
from django.test import Client
from rest_framework.test import APIClient

from etl.core.errors import TokenBudgetExceeded
from etl.core.stage_context import Usage as Spent
from etl.core.states import Stage
from etl.maintenance import cleanup
from etl.models import Allowance, ModelUsage, RuleAllowance, RuleTokens, Task, Usage
from etl.pipeline import actions, budgets, quotas
from etl.pipeline.budgets import DailyBudget
from rules.models import Rule
from tests.conftest import client_of
from tests.integration.etl_factories import make_batch, make_rule, make_task
from tests.integration.etl_progress import fail
from tests.integration.llm_factories import INVOICE, context_of
from tests.integration.openai_server import ModelServer, data_reply, problem
from tests.integration.stage_runs import ConfigureStages, row_of, run, run_when_due

pytestmark = pytest.mark.django_db(transaction=True)
GOOD = data_reply({"number": "1", "total": 1})  # 11 and 7 tokens


@pytest.fixture
def models(model_server: ModelServer, configure_stages: ConfigureStages) -> ModelServer:
    configure_stages(etl_ocr_provider="local", etl_postprocess_parallel=3)
    model_server.set_default(GOOD)
    return model_server


@pytest.fixture
def rule(alice: User) -> Rule:
    return make_rule(alice, mode="llm", json_schema=INVOICE)


def send(api: APIClient, rule: Rule) -> Any:
    file = SimpleUploadedFile("a.txt", b"Invoice 1", content_type="text/plain")
    return api.post("/api/v1/etl/submit", {"file": file, "rule_id": rule.pk}, format="multipart")


def used(user: User) -> int:
    return sum(Usage.objects.filter(user=user).values_list("tokens", flat=True))


def test_tokens_are_counted_for_the_user_and_the_rule(models: ModelServer, alice: User, bob: User, rule: Rule) -> None:
    """B44: as many as in the ledger of model calls."""
    for _ in range(2):
        run(make_task(alice, "Invoice 1", rule=rule))
    assert (used(alice), used(bob)) == (36, 0)
    assert RuleTokens.objects.get(rule_id=rule.pk).tokens == 36
    ledger = ModelUsage.objects.filter(user=alice).totals()
    assert ledger["prompt_tokens"] + ledger["completion_tokens"] == 36


@pytest.mark.parametrize("of", ["setting", "allowance"])
def test_a_user_without_tokens_is_refused_with_numbers(
    models: ModelServer, alice: User, rule: Rule, configure_stages: ConfigureStages, of: str
) -> None:
    """B44: submissions, retries, batches, and rule tests return 429. Other users, and rules without a model, are not
    affected.
    """
    many = {"file": [SimpleUploadedFile("a.txt", b"1")], "rule_id": rule.pk}
    task = make_task(alice, "Invoice 1", rule=rule)
    run(task)
    batch, (failed,) = make_batch(alice, rule=rule)
    fail(failed)
    if of == "setting":
        configure_stages(etl_daily_tokens=18)
    else:
        configure_stages(etl_daily_tokens=1_000)
        Allowance.objects.create(user=alice, daily_tokens=18)
    api = client_of(alice)

    for response in (
        send(api, rule),
        api.post(f"/api/v1/etl/tasks/{task.pk}/retry", {"from_stage": "postprocess"}, format="json"),
        api.post(f"/api/v1/etl/rules/{rule.pk}/test", {"markdown": "x"}, format="json"),
        api.post("/api/v1/etl/batches", many, format="multipart"),
        api.post(f"/api/v1/etl/batches/{batch.pk}/retry"),
    ):
        assert (response.status_code, response.json()["code"]) == (429, "quota_exceeded")
        assert "18 of today's 18 language model tokens" in response.json()["detail"]
        assert 0 < int(response["Retry-After"]) <= 86_400
    assert row_of(task).status == "completed"
    assert len(models.requests) == 1
    assert send(api, make_rule(alice)).status_code == 202
    if of == "allowance":
        bob = User.objects.create_user("bob")
        assert send(client_of(bob), make_rule(bob, mode="llm", json_schema=INVOICE)).status_code == 202


def test_a_rule_has_a_separate_budget(
    models: ModelServer, alice: User, configure_stages: ConfigureStages, rule: Rule
) -> None:
    """B44."""
    RuleAllowance.objects.create(rule=rule, daily_tokens=18)
    run(make_task(alice, "Invoice 1", rule=rule))
    response = send(client_of(alice), rule)
    assert (response.status_code, response.json()["code"]) == (429, "quota_exceeded")
    assert "The rule has used 18 of today's 18" in response.json()["detail"]
    other = make_rule(alice, mode="llm", name="other", json_schema=INVOICE)
    assert send(client_of(alice), other).status_code == 202

    configure_stages(etl_rule_daily_tokens=0)
    assert send(client_of(alice), other).status_code == 429


def test_a_retry_of_a_batch_checks_the_rule_of_each_document(models: ModelServer, alice: User, rule: Rule) -> None:
    """A document that was retried alone may have another rule than its batch."""
    RuleAllowance.objects.create(rule=rule, daily_tokens=18)
    run(make_task(alice, "Invoice 1", rule=rule))
    batch, tasks = make_batch(alice, 2)
    Task.objects.filter(pk=tasks[1].pk).update(rule=rule)
    for task in tasks:
        fail(task)

    response = client_of(alice).post(f"/api/v1/etl/batches/{batch.pk}/retry")

    assert (response.status_code, response.json()["code"]) == (429, "quota_exceeded")


@pytest.mark.slow
def test_a_running_document_fails_when_the_budget_is_used_up(
    models: ModelServer, alice: User, configure_stages: ConfigureStages, rule: Rule
) -> None:
    """B44: it is not retried automatically. The owner can retry it later, and finished calls are not paid again."""
    configure_stages(etl_daily_tokens=40, etl_postprocess_chunk_size_chars=200, etl_postprocess_parallel=1)
    rule = make_rule(alice, mode="llm", name="pieces", json_schema=INVOICE, postprocess_strategy="chunked-extract")
    task = make_task(alice, "\n\n".join(f"Paragraph {n} of the invoice. " * 5 for n in range(8)), rule=rule)
    run(task)

    row = row_of(task)
    assert row.status == "failed"
    assert row.error is not None
    assert (row.error["code"], row.error["retryable"]) == ("token_budget_exceeded", True)
    assert "54 of today's 40" in row.error["detail"]
    assert len(models.requests) == 3  # one call more than the budget allows
    assert row.metadata["attempts"][Stage.POSTPROCESS] == 1
    assert run_when_due(task, Stage.POSTPROCESS) is False
    with pytest.raises(quotas.QuotaExceeded):
        actions.retry(task=row, from_stage=Stage.POSTPROCESS)

    Usage.objects.update(day="2026-01-01")
    configure_stages(etl_daily_tokens=100_000)
    actions.retry(task=row_of(task), from_stage=Stage.POSTPROCESS)
    first = {request.message("user") for request in models.requests}
    del models.requests[:]
    run_when_due(task, Stage.POSTPROCESS)
    assert row_of(task).status == "completed"
    assert not first & {request.message("user") for request in models.requests}


def in_thread(call: Callable[[], None]) -> threading.Thread:
    def work() -> None:
        try:
            call()
        finally:
            connection.close()

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    return thread


@pytest.mark.parametrize("limit", [1, 99, 150, 500])
def test_concurrent_calls_exceed_a_budget_by_one_call_at_most(
    models: ModelServer, alice: User, configure_stages: ConfigureStages, limit: int
) -> None:
    """B44: this is the documented bound for one process. Each call uses its maximum number of tokens."""
    configure_stages(etl_daily_tokens=limit)
    budget = DailyBudget(user_id=alice.pk, rule_id=0)
    refused: list[TokenBudgetExceeded] = []

    def call() -> None:
        try:
            with budget.call(100, context=context_of()):
                budgets.spend(alice.pk, 0, Spent(prompt_tokens=100, calls=1))
        except TokenBudgetExceeded as error:
            refused.append(error)

    threads = [in_thread(call) for _ in range(8)]
    for thread in threads:
        thread.join(30)

    assert limit <= used(alice) < limit + 100
    assert len(refused) == 8 - used(alice) // 100
    assert not budgets.running.calls


def test_concurrent_calls_run_while_they_fit_the_budget(
    models: ModelServer, alice: User, configure_stages: ConfigureStages
) -> None:
    configure_stages(etl_daily_tokens=250)
    budget = DailyBudget(user_id=alice.pk, rule_id=0)

    def call() -> None:
        with budget.call(100, context=context_of()):
            pass

    with budget.call(100, context=context_of()), budget.call(100, context=context_of()):
        assert budgets.running.calls[f"user {alice.pk}"] == 2
        waiting = in_thread(call)
        waiting.join(0.3)
        assert waiting.is_alive()
    waiting.join(30)
    assert not waiting.is_alive()
    assert not budgets.running.calls


def test_a_call_without_tokens_is_not_counted(models: ModelServer, alice: User, rule: Rule) -> None:
    models.enqueue(problem(503, "busy"))
    task = make_task(alice, "Invoice 1", rule=rule)
    run(task)
    assert used(alice) == 0
    run_when_due(task, Stage.POSTPROCESS)
    assert used(alice) == 18


def test_the_limits_include_token_budgets(
    models: ModelServer, alice: User, configure_stages: ConfigureStages, rule: Rule
) -> None:
    """B44: with the same fields as other limits. `limit` and `remaining` are null if there is no limit."""
    api = client_of(alice)
    body = api.get("/api/v1/etl/limits").json()
    assert {**body["tokens_per_day"], "resets_at": ""} == {"limit": None, "used": 0, "remaining": None, "resets_at": ""}
    assert body["rule_tokens_per_day"] == []

    configure_stages(etl_daily_tokens=100)
    RuleAllowance.objects.create(rule=rule, daily_tokens=10)
    RuleAllowance.objects.create(rule=make_rule(User.objects.create_user("eve"), mode="llm"), daily_tokens=10)
    run(make_task(alice, "Invoice 1", rule=rule))

    body = api.get("/api/v1/etl/limits").json()
    day = {"resets_at": body["documents_per_day"]["resets_at"]}
    assert body["tokens_per_day"] == {"limit": 100, "used": 18, "remaining": 82, **day}
    assert body["rule_tokens_per_day"] == [{"rule_id": rule.pk, "limit": 10, "used": 18, "remaining": 0, **day}]


def test_pages_show_budgets_and_the_admin_sets_them(
    models: ModelServer, alice: User, configure_stages: ConfigureStages, rule: Rule, client: Client
) -> None:
    """B44."""
    configure_stages(etl_daily_tokens=1_000)
    run(make_task(alice, "Invoice 1", rule=rule))
    client.force_login(alice)
    assert "982 of 1,000 language model tokens" in client.get("/app/documents").content.decode()

    client.force_login(User.objects.create_superuser("sam"))
    client.post("/admin/etl/ruleallowance/add/", {"rule": rule.pk, "daily_tokens": 5})
    client.post("/admin/etl/allowance/add/", {"user": alice.pk, "daily_tokens": 7})
    assert RuleAllowance.objects.get().daily_tokens == 5
    assert Allowance.objects.get().daily_tokens == 7
    assert ">18<" in client.get("/admin/etl/ruleallowance/").content.decode()
    assert client.get("/admin/etl/usage/").status_code == 200


def test_old_days_are_deleted() -> None:
    RuleTokens.objects.create(rule_id=1, day="2020-01-01", tokens=5)
    cleanup.delete_old_usage()
    assert not RuleTokens.objects.exists()
