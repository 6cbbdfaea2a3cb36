"""Rule tests: `POST /rules/{id}/test` applies a rule to Markdown without a task. B27, B15."""

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.db import connection, connections
from rest_framework.exceptions import ValidationError
from rest_framework.test import APIClient

from etl.api.serializers import TrialSerializer
from etl.models import ModelUsage, Task
from etl.pipeline import trial
from rules.models import Rule
from tests.conftest import change_settings, client_of
from tests.integration import openai_server
from tests.integration.openai_server import MODEL, ModelServer, Reply, Request, data_reply, problem, text_reply
from tests.waiting import wait_until

URL = "/api/v1/etl/rules"
SCHEMA = {"type": "object", "properties": {"total": {"type": "number"}}, "required": ["total"]}
MARKDOWN = "<!-- page: 1 -->\nHello\n\n<!-- page: 2 -->\nTotal: 12.50 EUR\n"


@pytest.fixture
def models(models: ModelServer, settings: Any) -> ModelServer:
    change_settings(settings, etl_llm_timeout_seconds=30.0)
    return models


@pytest.fixture
def rule(api: APIClient) -> str:
    """The path of a rule that alice owns."""
    return str(api.post(URL, {"name": "Totals", "json_schema": SCHEMA, "system_prompt": "Find the total."})["Location"])


def connections_in_use() -> int:
    stats: dict[str, int] = connections["default"].pool.get_stats()  # type: ignore[attr-defined]
    return stats["pool_size"] - stats["pool_available"]


def open_transactions() -> int:
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND state LIKE 'idle in%'"
        )
        return int(cursor.fetchone()[0])


def try_out(api: APIClient, rule: str, markdown: Any = MARKDOWN) -> Any:
    return api.post(f"{rule}/test", {"markdown": markdown})


def try_and_disconnect(api: APIClient, rule: str, markdown: str = MARKDOWN) -> Any:
    """Try out a rule, and close the database connection of the calling thread."""
    try:
        return try_out(api, rule, markdown)
    finally:
        connection.close()


def hold_replies(models: ModelServer) -> tuple[threading.Semaphore, threading.Event]:
    """Make the model respond only after an event. Return a semaphore that each request releases, and the event."""
    called, may_respond = threading.Semaphore(0), threading.Event()

    def respond_when_allowed(_request: Request) -> Reply:
        called.release()
        may_respond.wait(120)
        return data_reply({"total": 1})

    models.set_default(respond_when_allowed)
    return called, may_respond


def test_skip_returns_the_markdown_without_calling_a_model(api: APIClient, models: ModelServer) -> None:
    """B27: such as the default rule, which all users share."""
    default = Rule.objects.get(slug="default")
    response = try_out(api, f"{URL}/{default.pk}")

    assert response.status_code == 200
    answer = response.json()
    assert answer | {"result": None} == {
        "ok": True,
        "result": None,
        "usage": {"prompt_tokens": 0, "completion_tokens": 0, "calls": 0},
        "warnings": [],
    }
    result = answer["result"]
    assert (result["markdown_s3_key"], result["provider_task_id"]) == (None, None)
    assert result["metadata"]["pages"] == 2
    assert result["metadata"]["provenance"]["rule_id"] == default.pk
    assert models.requests == []


def test_llm_returns_valid_data_with_citations(api: APIClient, models: ModelServer, rule: str) -> None:
    """B27: like the result of a task."""
    models.set_default(data_reply({"total": 12.5}, {"/total": {"page": 2, "quote": "Total: 12.50 EUR"}}))
    answer = try_out(api, rule).json()

    assert answer["ok"] is True
    result = answer["result"]
    assert result["data"] == {"total": 12.5}
    assert result["output_s3_key"] is None
    assert [(each["pointer"], each["page"]) for each in result["citations"]] == [("/total", 2)]
    assert answer["usage"] == {"prompt_tokens": 11, "completion_tokens": 7, "calls": 1}
    assert result["metadata"]["provenance"]["model"] == MODEL
    assert "Find the total." in models.requests[0].message("system")
    assert not Task.objects.exists()


@pytest.mark.parametrize(
    ("reply", "code", "retryable"),
    [
        (text_reply("not JSON"), "schema_validation", False),
        (data_reply({"total": "much"}), "schema_validation", False),
        (text_reply('{"total": 1', finish="length"), "llm_truncated", False),
        (problem(401), "llm_unavailable", False),
        (problem(503), "llm_unavailable", True),
    ],
)
def test_failed_trials_are_reported_without_a_server_error(
    api: APIClient, models: ModelServer, rule: str, reply: Any, code: str, *, retryable: bool
) -> None:
    """B27: the response includes the usage."""
    models.set_default(reply)
    response = try_out(api, rule)

    assert response.status_code == 200
    answer = response.json()
    assert answer["ok"] is False
    assert (answer["error"]["code"], answer["error"]["stage"]) == (code, "postprocess")
    assert answer["error"]["retryable"] is retryable
    assert answer["error"]["detail"]
    assert answer["usage"]["calls"] == (len(models.requests) if code in ("schema_validation", "llm_truncated") else 0)
    assert answer.keys() == {"ok", "error", "usage", "warnings"}


@pytest.mark.slow
def test_a_trial_ends_at_its_deadline(
    api: APIClient, models: ModelServer, rule: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """B27."""
    monkeypatch.setattr(trial, "MAX_SECONDS", 1)

    def respond_too_late(_request: Request) -> openai_server.Reply:
        models.stopped.wait(10)
        return data_reply({"total": 1})

    models.set_default(respond_too_late)
    answer = try_out(api, rule).json()
    assert answer["ok"] is False
    assert answer["error"]["code"] in ("timeout", "llm_unavailable")


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ({}, ("/markdown", "required")),
        ({"markdown": ""}, ("/markdown", "blank")),
        ({"markdown": " \n"}, ("/markdown", "blank")),
        ({"markdown": 5}, ("/markdown", "invalid")),
        ({"markdown": None}, ("/markdown", "null")),
        ({"markdown": "x" * 1_000_001}, ("/markdown", "max_length")),
        ({"markdown": "x", "rule_id": 3}, ("/rule_id", "unknown_field")),
    ],
)
def test_invalid_input_has_a_pointer(
    api: APIClient, rule: str, body: dict[str, Any], expected: tuple[str, str]
) -> None:
    """B27."""
    response = api.post(f"{rule}/test", body)
    assert response.status_code == 400
    assert [(error["pointer"], error["code"]) for error in response.json()["errors"]] == [expected]


def test_a_too_large_body_is_413(api: APIClient, rule: str) -> None:
    assert try_out(api, rule, "x" * (5 * 1024**2)).status_code == 413


def test_deleted_rules_and_rules_of_other_users_are_404(api: APIClient, bob: User, rule: str) -> None:
    """B27."""
    assert try_out(client_of(bob), rule).status_code == 404
    api.delete(rule)
    assert try_out(api, rule).status_code == 404
    assert try_out(APIClient(), rule).status_code == 401


def test_no_connection_is_held_during_a_model_call(models: ModelServer, rule: str) -> None:
    """B27: otherwise, a few trials would occupy all connections of the pool and stop the service."""
    called, may_respond = hold_replies(models)
    size = connections["default"].settings_dict["OPTIONS"]["pool"]["max_size"]
    trials = min(trial.MAX_AT_ONCE, size)
    staff = [User.objects.create_superuser(f"staff{number}") for number in range(trials + 1)]
    clients = [client_of(user) for user in staff]  # staff may read alice's rule
    before = connections_in_use()  # connections of this test

    with ThreadPoolExecutor(trials) as threads:
        waiting = [threads.submit(try_and_disconnect, client, rule) for client in clients[:trials]]
        try:
            assert all(called.acquire(timeout=60) for _ in range(trials))
            # The pool also counts connections that its threads are still opening. When many requests start together, it
            # opens more than it needs. These connections become available, unlike a connection that a trial holds.
            wait_until(lambda: connections_in_use() <= before, limit=30)
            assert open_transactions() == 0
            busy = try_out(clients[-1], rule)
        finally:
            may_respond.set()
        assert [each.result().json()["ok"] for each in waiting] == [True] * trials
    assert (busy.status_code, busy.json()["code"]) == (503, "too_many_trials")
    assert int(busy["Retry-After"]) > 0


def test_trials_of_a_user_do_not_block_other_users_or_rules_without_a_model(
    api: APIClient, staff: User, alice: User, models: ModelServer, rule: str
) -> None:
    """B27: otherwise, one user with eight slow trials would block the trials of all other users."""
    called, may_respond = hold_replies(models)
    skip = str(api.post(URL, {"name": "Text", "postprocess_mode": "skip"})["Location"])
    with ThreadPoolExecutor(trial.MAX_OF_USER + 1) as threads:
        waiting = [threads.submit(try_and_disconnect, client_of(alice), rule) for _ in range(trial.MAX_OF_USER)]
        try:
            assert all(called.acquire(timeout=60) for _ in waiting)
            refused, without_model = try_out(api, rule), try_out(api, skip)
            others = threads.submit(try_and_disconnect, client_of(staff), rule)
            assert called.acquire(timeout=60)
        finally:
            may_respond.set()
        assert [each.result().json()["ok"] for each in (*waiting, others)] == [True] * 3
    assert (refused.status_code, refused.json()["code"]) == (429, "too_many_trials")
    assert int(refused["Retry-After"]) > 0
    assert without_model.json()["ok"]
    assert try_out(api, rule).json()["ok"]  # the user's places are free again


def test_tests_with_a_model_are_limited_in_a_day(
    api: APIClient, staff: User, models: ModelServer, rule: str, settings: Any
) -> None:
    """B27: otherwise, a user's script could run two paid calls at a time, all day long."""
    change_settings(settings, etl_daily_rule_tests=2)
    skip = str(api.post(URL, {"name": "Text", "postprocess_mode": "skip"})["Location"])
    models.set_default(lambda _request: data_reply({"total": 1}))
    assert [try_out(api, rule).status_code for _ in range(4)] == [200, 200, 429, 429]
    refused = try_out(api, rule)
    assert refused.json()["code"] == "quota_exceeded"
    assert "2 times today" in refused.json()["detail"]
    assert 0 < int(refused["Retry-After"]) <= 86_400
    assert ModelUsage.objects.count() == 2
    limit = api.get("/api/v1/etl/limits").json()["rule_tests_per_day"]
    assert (limit["limit"], limit["used"], limit["remaining"]) == (2, 2, 0)
    assert try_out(api, skip).json()["ok"]
    assert try_out(client_of(staff), rule).json()["ok"]


@pytest.mark.slow
def test_a_trial_that_waits_for_a_model_delays_no_other_large_body(
    api: APIClient, models: ModelServer, rule: str
) -> None:
    """B24: large bodies are processed one at a time, also those of trials."""
    called, may_respond = hold_replies(models)
    text = "x" * 100_000
    skip = str(api.post(URL, {"name": "Text", "postprocess_mode": "skip"})["Location"])
    with ThreadPoolExecutor(2) as threads:
        waiting = threads.submit(try_and_disconnect, api, rule, text)
        try:
            assert called.acquire(timeout=60)
            other = threads.submit(try_and_disconnect, api, skip, text).result(timeout=30)
        finally:
            may_respond.set()
        assert waiting.result().status_code == other.status_code == 200


@pytest.mark.parametrize(
    ("markdown", "expected"),
    [
        ("text", [(1, "text")]),
        ("<!-- page: 1 -->\none\n<!-- page: 2 -->\ntwo", [(1, "one\n"), (2, "two")]),
        ("\n<!-- page: 3 -->\nthree\n<!-- page: 7 -->\n", [(3, "three\n"), (7, "")]),
        ("before\n<!-- page: 1 -->\none", [(1, "before\n<!-- page: 1 -->\none")]),
        ("<!-- page: 2 -->\na\n<!-- page: 1 -->\nb", [(1, "<!-- page: 2 -->\na\n<!-- page: 1 -->\nb")]),
        ("<!-- page: 0 -->\na", [(1, "<!-- page: 0 -->\na")]),
    ],
)
def test_pages_follow_the_markers_without_losing_text(markdown: str, expected: list[tuple[int, str]]) -> None:
    """B27."""
    ocr = trial.ocr_of(markdown)
    assert [(page.number, markdown[page.start : page.end]) for page in ocr.pages] == expected
    assert ocr.metadata["pages"] == len(expected)


@pytest.mark.parametrize("task_id", ["17", 17.0, True])
def test_a_task_id_is_a_whole_number(task_id: Any) -> None:
    with pytest.raises(ValidationError):
        TrialSerializer.read({"markdown": "A", "task_id": task_id})
