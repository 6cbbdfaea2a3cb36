"""B5, B6, B7: reading, cancelling, and retrying tasks over HTTP."""

import socket
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, wait
from datetime import timedelta
from typing import Any

import pytest
from django.conf import LazySettings
from django.contrib.auth.models import User
from django.db import connection, connections
from django.test.utils import CaptureQueriesContext
from django.utils import timezone
from knox.models import AuthToken
from pydantic import SecretStr
from rest_framework.test import APIClient

from config.platform import storage
from config.platform.http import graceful_shutdown
from etl import runstate
from etl.api import lookup
from etl.core.states import Stage, Status
from etl.models import Task
from tests.broker import valkey
from tests.conftest import browser_of, change_settings, client_of
from tests.integration.etl_factories import make_row, make_rule, make_task
from tests.integration.etl_progress import MARKDOWN, RESULT, begin, complete, end_completed, fail, read
from tests.waiting import expect_within, wait_until

TASKS = "/api/v1/etl/tasks"


@pytest.fixture(autouse=True)
def _empty(transactional_db: None) -> None:
    valkey().flushdb()
    lookup.breaker_of.cache_clear()


def path(task: Task, *rest: str) -> str:
    return "/".join((TASKS, str(task.pk), *rest))


def get(api: APIClient, task: Task) -> Any:
    response = api.get(path(task))
    assert response.status_code == 200
    return response.json()


def ids(response: Any) -> list[int]:
    assert response.status_code == 200, response.content
    return [item["task_id"] for item in response.json()["results"]]


def task_queries(captured: CaptureQueriesContext) -> list[str]:
    return [query["sql"] for query in captured.captured_queries if "etl_task" in query["sql"]]


def forget(*tasks: Task) -> None:
    """Delete the run-states of these tasks."""
    for task in tasks:
        valkey().delete(runstate.key_of(task.pk))


# ---- One task -------------------------------------------------------------------------------------------------------


def test_a_task_is_readable_from_submission_to_end(api: APIClient, alice: User) -> None:
    """B4, B5."""
    task = make_task(alice, rule=make_rule(alice, version=1))
    shown = get(api, task)
    assert shown == {
        "task_id": task.pk, "status": "pending", "phase": "ocr", "progress": 0, "filename": "hello.txt",
        "rule_id": task.rule_id, "rule_version": 1, "duplicate_of": None,
        "result": None, "previous_result": None, "error": None,
        "approved_at": None, "approved_by": None, "corrected": False, "batch_id": None, "einvoice": None,
        "waiting": True,
        "metadata": {
            "attempts": {"ocr": 0, "postprocess": 0}, "artifact_mineru_markdown_key": None, "provider": None,
            "provider_task_id": None, "ocr": {}, "warnings": [], "failed_attempts": [],
                "postprocess": {
                    "strategy": None, "model": None,
                    "usage": {"prompt_tokens": 0, "completion_tokens": 0, "calls": 0},
                    "earlier_usage": {"prompt_tokens": 0, "completion_tokens": 0, "calls": 0},
                },
        },
        "created_at": shown["created_at"], "updated_at": shown["updated_at"],
    }  # fmt: skip
    assert shown["created_at"].endswith("Z")
    assert get(api, task)["created_at"] == shown["created_at"]
    read(task)
    shown = get(api, task)
    assert (shown["status"], shown["phase"], shown["progress"]) == ("llm_processing", "postprocess", 50)
    assert shown["metadata"]["attempts"] == {"ocr": 1, "postprocess": 0}
    assert shown["metadata"]["artifact_mineru_markdown_key"].startswith(f"etl/tasks/{task.pk}/ocr-{task.first_run}/")
    assert shown["metadata"]["ocr"]["pages"] == 1

    end_completed(begin(task, Stage.POSTPROCESS))
    shown = get(api, task)
    assert (shown["status"], shown["progress"], shown["result"]) == ("completed", 100, RESULT)


@pytest.mark.parametrize("end", [complete, fail])
def test_a_task_looks_the_same_without_its_run_state(api: APIClient, alice: User, end: Any) -> None:
    """B5: the representation is the same, whether it is read from the run-state or from the row."""
    task = make_task(alice)
    end(task)
    before = api.get(path(task))
    forget(task)
    after = api.get(path(task))

    assert before.json() == after.json()
    assert before.json()["status"] in ("completed", "failed")
    assert "Retry-After" not in before
    assert "Retry-After" not in after


def test_a_failure_has_a_code_and_a_stage(api: APIClient, alice: User) -> None:
    task = make_task(alice)
    fail(task)
    error = get(api, task)["error"]
    assert (error["code"], error["stage"], error["retryable"]) == ("file_encrypted", "ocr", False)
    assert error["detail"]


def test_a_task_with_a_run_state_costs_no_query_on_tasks(api: APIClient, alice: User) -> None:
    """B5."""
    task = make_task(alice)
    with CaptureQueriesContext(connection) as captured:
        assert get(api, task)["status"] == "pending"
        begin(task)
        assert api.get(path(task))["Retry-After"]
    assert task_queries(captured) == []

    forget(task)
    with CaptureQueriesContext(connection) as captured:
        assert get(api, task)["status"] == "pending"
    assert len(task_queries(captured)) == 1


def test_tasks_of_other_users_look_like_unknown_tasks(api: APIClient, alice: User, bob: User) -> None:
    """B5."""
    theirs, forgotten = make_task(bob), make_row(bob)
    answers = set()
    for task_id in (theirs.pk, forgotten.pk, 10**9, 0, 2**63, 10**30):
        for method, rest in (("get", ""), ("get", "/markdown"), ("get", "/events"), ("post", "/cancel")):
            response = getattr(api, method)(f"{TASKS}/{task_id}{rest}")
            body = response.json()
            assert response.status_code == 404, (task_id, rest)
            answers.add((body["detail"], body["code"]))
        response = api.post(f"{TASKS}/{task_id}/retry", {"from_stage": "ocr"})
        answers.add((response.json()["detail"], response.json()["code"]))
    assert answers == {("Task not found", "not_found")}
    for odd in ("x", "-1", "1.5", "%31%00", "9" * 5000):
        assert api.get(f"{TASKS}/{odd}").status_code == 404, odd


def test_staff_see_all_tasks(alice: User, staff: User) -> None:
    client, task = client_of(staff), make_task(alice)
    assert get(client, task)["task_id"] == task.pk
    forget(task)
    assert get(client, task)["task_id"] == task.pk
    assert ids(client.get(TASKS)) == []  # the list has only the user's own tasks


def test_a_result_too_large_for_redis_is_read_from_the_row(api: APIClient, alice: User) -> None:
    """B5: until the row has the result, the task is not shown as completed."""
    task = make_task(alice)
    read(task)
    large = RESULT | {"data": "x" * runstate.RESULT_BYTES}
    state = begin(task, Stage.POSTPROCESS)
    answer = runstate.complete(state, result=large, usage={})
    assert answer.moved
    assert (get(api, task)["status"], get(api, task)["result"]) == ("llm_processing", None)
    assert ids(api.get(f"{TASKS}?status=llm_processing")) == [task.pk]

    Task.objects.filter(pk=task.pk).update(status="completed", result=large)
    assert get(api, task)["result"] == large


def test_unsupported_methods_are_refused(api: APIClient, alice: User) -> None:
    task = make_task(alice)
    for url, allowed in (
        (TASKS, "get"),
        (path(task), "get delete"),
        (path(task, "layout"), "get"),
        (path(task, "markdown"), "get"),
        (path(task, "cancel"), "post"),
        (path(task, "retry"), "post"),
        ("/api/v1/etl/submit", "post"),
        ("/api/v1/etl/uploads", "post"),
    ):
        assert set(allowed.upper().split()) <= set(api.options(url)["Allow"].split(", "))
        for method in {"get", "post", "put", "patch", "delete"} - set(allowed.split()):
            response: Any = getattr(api, method)(url)
            assert (response.status_code, response.json()["code"]) == (405, "method_not_allowed"), (url, method)
        for method in allowed.split():
            assert APIClient().generic(method.upper(), url).status_code == 401
        assert api.get(url + "/").status_code == 404


# ---- Long polling ---------------------------------------------------------------------------------------------------


def long_poll(api: APIClient, task: Task) -> Any:
    """Poll for up to 60 s. Runs in a separate thread, whose connections it closes."""
    try:
        return api.get(f"{path(task)}?wait=60")
    finally:
        connections.close_all()


def delete_token(alice: User) -> None:
    AuthToken.objects.filter(user=alice).delete()


def deactivate(alice: User) -> None:
    User.objects.filter(pk=alice.pk).update(is_active=False)


@pytest.mark.slow
@pytest.mark.parametrize("revoke", [delete_token, deactivate])
def test_a_long_poll_ends_soon_after_its_access_is_revoked(
    api: APIClient, alice: User, revoke: Callable[[User], None]
) -> None:
    """B5: it must not continue for up to 60 s."""
    task = make_task(alice)
    with ThreadPoolExecutor(1) as pool:
        future = pool.submit(long_poll, api, task)
        wait_until(lambda: lookup.waiting_requests.by_user)
        revoke(alice)
        assert future.result(timeout=20).status_code == 401


def test_a_long_poll_returns_at_the_first_change(api: APIClient, alice: User) -> None:
    """B5."""
    task = make_task(alice)
    began = time.monotonic()
    with ThreadPoolExecutor(1) as pool:
        future = pool.submit(long_poll, api, task)
        wait_until(lambda: lookup.waiting_requests.by_user)
        state = begin(task)
        # The request is registered before it reads the task, so its first read may already return this change. Make
        # more changes until it returns.
        for percent in range(1, 50):
            runstate.record_progress(state, percent)
            if wait([future], timeout=0.2).done:
                break
        response = future.result(timeout=90)

    assert response.json()["status"] == "mineru_parsing"
    assert response["Retry-After"]
    assert time.monotonic() - began < 5
    assert not lookup.waiting_requests.by_user


@pytest.mark.slow
def test_a_long_poll_without_a_change_times_out(api: APIClient, alice: User) -> None:
    task = make_task(alice)

    def poll() -> None:
        began = time.monotonic()
        assert api.get(f"{path(task)}?wait=1").json()["status"] == "pending"
        assert time.monotonic() - began >= 1

    expect_within(3, poll)


def test_a_long_poll_of_an_ended_task_returns_immediately(api: APIClient, alice: User) -> None:
    task = make_task(alice)
    complete(task)

    def poll() -> None:
        assert api.get(f"{path(task)}?wait=60").json()["status"] == "completed"

    expect_within(3, poll)


def test_long_polls_beyond_the_limit_return_immediately(
    api: APIClient, alice: User, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each long poll occupies a thread."""
    task = make_task(alice)

    def poll() -> None:
        assert api.get(f"{path(task)}?wait=60").status_code == 200

    for bound in ("MAX_WAITING", "MAX_WAITING_PER_USER"):
        with monkeypatch.context() as patch:
            patch.setattr(lookup, bound, 0)
            expect_within(3, poll)


@pytest.mark.slow
def test_a_long_poll_holds_no_database_connection(api: APIClient, alice: User) -> None:
    """There can be more long polls than connections in the pool."""
    task = make_task(alice)
    used_connections = []
    original = lookup.poll_for_change

    def record_connection(*arguments: Any, **named: Any) -> Any:
        used_connections.append(connection.connection)
        return original(*arguments, **named)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(lookup, "poll_for_change", record_connection)
        assert api.get(f"{path(task)}?wait=1").status_code == 200
    assert used_connections == [None]


def test_shutdown_ends_long_polls(api: APIClient, alice: User, monkeypatch: pytest.MonkeyPatch) -> None:
    task = make_task(alice)
    monkeypatch.setattr(graceful_shutdown, "has_begun", threading.Event())
    graceful_shutdown.has_begun.set()

    def poll() -> None:
        assert api.get(f"{path(task)}?wait=60").status_code == 200

    expect_within(3, poll)


@pytest.mark.parametrize("seconds", ["-1", "61", "x", "1.5", "", "²", "9" * 400])
def test_invalid_wait_times_are_refused(api: APIClient, alice: User, seconds: str) -> None:
    response = api.get(f"{path(make_task(alice))}?wait={seconds}")
    assert response.status_code == 400
    assert [error["pointer"] for error in response.json()["errors"]] == ["/wait"]


# ---- Lists ----------------------------------------------------------------------------------------------------------


def of_every_status(alice: User) -> dict[str, list[int]]:
    """Create two tasks of each status, and return their IDs by status."""
    ids_by_status: dict[str, list[int]] = {}
    for _ in range(2):
        tasks = {status: make_task(alice) for status in Status.values}
        begin(tasks["mineru_parsing"])
        read(tasks["llm_processing"])
        complete(tasks["completed"])
        fail(tasks["failed"])
        state = runstate.read(tasks["cancelled"].pk)
        assert state
        assert runstate.cancel(state.task_id, generation=state.generation).moved  # the row is not updated yet
        for status, task in tasks.items():
            ids_by_status.setdefault(status, []).insert(0, task.pk)
    return ids_by_status


def test_the_list_matches_the_single_tasks_newest_first(api: APIClient, alice: User, bob: User) -> None:
    """B5."""
    ids_by_status = of_every_status(alice)
    make_task(bob)
    listed = api.get(TASKS).json()["results"]

    all_ids = [task_id for ids in ids_by_status.values() for task_id in ids]
    assert [item["task_id"] for item in listed] == sorted(all_ids, reverse=True)
    for item in listed:
        whole = api.get(f"{TASKS}/{item['task_id']}").json()
        del whole["result"], whole["previous_result"]
        assert item == whole


@pytest.mark.parametrize("status", Status.values)
def test_the_status_filter_matches_the_displayed_status(api: APIClient, alice: User, status: str) -> None:
    """B5: this includes a status that only Redis has."""
    ids_by_status = of_every_status(alice)
    response = api.get(f"{TASKS}?status={status}")

    assert ids(response) == ids_by_status[status]
    assert {item["status"] for item in response.json()["results"]} == {status}
    assert ids(api.get(f"{TASKS}?status={status}&limit=1")) == ids_by_status[status][:1]


def test_pages_contain_every_task_once(api: APIClient, alice: User) -> None:
    """B5."""
    rule = make_rule(alice)
    tasks = [make_row(alice, rule=rule) for _ in range(7)]
    moment = timezone.now()
    Task.objects.update(created_at=moment)
    Task.objects.filter(pk=tasks[0].pk).update(created_at=moment + timedelta(seconds=1))
    for query in ("limit=2", "limit=2&status=pending", "limit=3"):
        found, url = [], f"{TASKS}?{query}"
        while url:
            response = api.get(url)
            found += ids(response)
            url = response.json()["next"]
        assert found == [tasks[0].pk, *(task.pk for task in reversed(tasks[1:]))], query


def test_two_hundred_tasks_cost_as_much_as_two(api: APIClient, alice: User) -> None:
    """B5: the number of queries does not depend on the number of tasks."""
    rule = make_rule(alice)
    make_task(alice, rule=rule)
    costs = []
    for limit in (1, 200):
        before = int(valkey().info("commandstats").get("cmdstat_hgetall", {}).get("calls", 0))
        with CaptureQueriesContext(connection) as captured:
            assert len(ids(api.get(f"{TASKS}?limit={limit}"))) == limit
        reads = int(valkey().info("commandstats")["cmdstat_hgetall"]["calls"]) - before
        costs.append(len(captured))
        assert reads == limit
        Task.objects.bulk_create(
            Task(user=alice, rule=rule, rule_version=1, kind="txt", size=1, document_key=str(n)) for n in range(199)
        )
    assert costs[0] == costs[1]
    assert costs[0] <= 3


@pytest.mark.parametrize(
    ("query", "pointer"),
    [("status=odd", "/status"), ("status=", "/status"), ("limit=0", "/limit"), ("limit=201", "/limit"),
     ("cursor=odd", "/cursor")],
)  # fmt: skip
def test_invalid_query_parameters_are_refused(api: APIClient, query: str, pointer: str) -> None:
    response = api.get(f"{TASKS}?{query}")
    assert response.status_code == 400
    assert [error["pointer"] for error in response.json()["errors"]] == [pointer]


def test_lists_do_not_read_results(api: APIClient, alice: User) -> None:
    task = make_task(alice)
    complete(task)
    with CaptureQueriesContext(connection) as captured:
        (item,) = api.get(TASKS).json()["results"]
    assert "result" not in item
    assert not any('"etl_task"."result"' in sql for sql in task_queries(captured))


# ---- Without Redis --------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_without_redis_rows_are_returned_in_bounded_time(
    api: APIClient,
    alice: User,
    settings: LazySettings,
    silent_redis: str,
) -> None:
    """B5, B10: only the first request waits until the timeout."""
    running, ended = make_task(alice), make_task(alice)
    read(running)
    complete(ended)
    change_settings(settings, etl_redis_url=SecretStr(silent_redis))

    def poll() -> None:
        lookup.breaker_of.cache_clear()
        assert get(api, running)["status"] == "pending"
        assert get(api, ended)["result"] == RESULT
        assert ids(api.get(TASKS)) == [ended.pk, running.pk]
        assert ids(api.get(f"{TASKS}?status=pending")) == [running.pk]
        assert api.get(f"{path(running)}?wait=20").json()["status"] == "pending"

    expect_within(3, poll)


def test_redis_is_used_again_after_an_outage(
    api: APIClient, alice: User, settings: LazySettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("config.platform.http.circuit_breaker.PAUSE_SECONDS", 0.0)
    task = make_task(alice)
    begin(task)
    url = settings.SLUICE.etl_redis_url
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    change_settings(settings, etl_redis_url=SecretStr(f"redis://127.0.0.1:{port}/0"))
    assert get(api, task)["status"] == "pending"
    change_settings(settings, etl_redis_url=url)
    assert get(api, task)["status"] == "mineru_parsing"


# ---- Markdown -------------------------------------------------------------------------------------------------------


def test_markdown_is_served_as_plain_text(api: APIClient, alice: User) -> None:
    """B8, B21: browsers must not render the content of a document."""
    task = make_task(alice)
    assert api.get(path(task, "markdown")).json()["code"] == "not_ready"
    assert api.get(path(task, "markdown")).status_code == 409
    read(task)
    response: Any = api.get(path(task, "markdown"), headers={"Accept": "text/html"})

    assert (response.status_code, response["Content-Type"]) == (200, "text/markdown; charset=utf-8")
    assert response["X-Content-Type-Options"] == "nosniff"
    assert b"".join(response.streaming_content).decode() == MARKDOWN
    assert int(response["Content-Length"]) == len(MARKDOWN.encode())
    forget(task)
    assert api.get(path(task, "markdown")).status_code == 409  # its key is unknown until recovery


def test_markdown_is_available_without_a_run_state(api: APIClient, alice: User) -> None:
    """B8."""
    task = make_task(alice)
    complete(task)
    forget(task)
    response: Any = api.get(path(task, "markdown"))
    assert b"".join(response.streaming_content).decode() == MARKDOWN


def test_unchanged_markdown_is_304(api: APIClient, alice: User) -> None:
    task = make_task(alice)
    read(task)
    head: Any = api.head(path(task, "markdown"))
    assert (head.status_code, head.content, head["Content-Length"]) == (200, b"", str(len(MARKDOWN.encode())))
    again: Any = api.get(path(task, "markdown"), headers={"If-None-Match": head["ETag"]})
    assert (again.status_code, again.content, again["ETag"]) == (304, b"", head["ETag"])


def test_deleted_markdown_is_409(api: APIClient, alice: User) -> None:
    task = make_task(alice)
    read(task)
    storage.delete(get(api, task)["metadata"]["artifact_mineru_markdown_key"])
    response = api.get(path(task, "markdown"))
    assert (response.status_code, response.json()["code"]) == (409, "artifact_missing")


# ---- Cancel and retry -----------------------------------------------------------------------------------------------


def test_only_pending_tasks_can_be_cancelled(api: APIClient, alice: User) -> None:
    """B6."""
    waiting, running = make_task(alice), make_task(alice)
    begin(running)
    response = api.post(path(waiting, "cancel"))
    assert (response.status_code, response.json()) == (200, {"task_id": waiting.pk, "status": "cancelled"})
    assert get(api, waiting)["status"] == "cancelled"
    waiting.refresh_from_db()
    assert waiting.status == "cancelled"

    for task in (waiting, running):
        assert api.post(path(task, "cancel")).status_code == 409
    assert get(api, running)["status"] == "mineru_parsing"
    assert api.post(path(running, "cancel"), {"why": "x"}).json()["errors"][0]["pointer"] == "/why"


def test_other_users_can_neither_cancel_nor_retry(alice: User, bob: User) -> None:
    stranger, task = client_of(bob), make_task(alice)
    assert stranger.post(path(task, "cancel")).json()["detail"] == "Task not found"
    assert stranger.post(path(task, "retry"), {"from_stage": "ocr"}).json()["detail"] == "Task not found"
    assert Task.objects.get().status == "pending"


def test_an_ended_task_can_be_retried(api: APIClient, alice: User) -> None:
    """B7."""
    task = make_task(alice)
    complete(task)
    other = make_rule(alice, version=3)
    response = api.post(path(task, "retry"), {"from_stage": "postprocess", "rule_id": other.pk})

    assert response.status_code == 202
    assert response.json() == {"task_id": task.pk, "status": "pending", "status_url": path(task), "duplicate_of": None}
    assert (response["Location"], bool(response["Retry-After"])) == (path(task), True)
    shown = get(api, task)
    assert (shown["status"], shown["phase"], shown["result"], shown["error"]) == ("pending", "postprocess", None, None)
    assert (shown["rule_id"], shown["rule_version"]) == (other.pk, 3)
    assert shown["metadata"]["attempts"] == {"ocr": 1, "postprocess": 0}
    assert shown["metadata"]["artifact_mineru_markdown_key"]


def test_a_retry_without_a_rule_uses_the_same_version_even_if_deleted(api: APIClient, alice: User) -> None:
    """B7, B25."""
    rule = make_rule(alice)
    task = make_task(alice, rule=rule)
    fail(task)
    rule.deleted_at = timezone.now()
    rule.save()
    assert api.post(path(task, "retry"), {"from_stage": "ocr", "rule_id": rule.pk}).status_code == 400
    assert api.post(path(task, "retry"), {"from_stage": "ocr", "rule_id": None}).status_code == 202
    assert (get(api, task)["rule_id"], get(api, task)["rule_version"]) == (rule.pk, 1)


def test_impossible_retries_are_refused(api: APIClient, alice: User, settings: LazySettings) -> None:
    """B7."""
    task = make_task(alice)
    response = api.post(path(task, "retry"), {"from_stage": "ocr"})
    assert (response.status_code, response.json()["code"]) == (409, "not_ended")
    fail(task)
    response = api.post(path(task, "retry"), {"from_stage": "postprocess"})
    assert (response.status_code, response.json()["code"]) == (409, "artifact_missing")
    change_settings(settings, etl_queue_size=1)
    make_task(alice)
    response = api.post(path(task, "retry"), {"from_stage": "ocr"})
    assert (response.status_code, response.json()["code"]) == (503, "queue_full")
    assert get(api, task)["status"] == "failed"


@pytest.mark.parametrize(
    ("body", "pointer"),
    [
        ({}, "/from_stage"),
        ({"from_stage": "llm"}, "/from_stage"),
        ({"from_stage": None}, "/from_stage"),
        ({"from_stage": "ocr", "rule_id": 10**9}, "/rule_id"),
        ({"from_stage": "ocr", "rule_id": "1"}, "/rule_id"),
        ({"from_stage": "ocr", "more": 1}, "/more"),
    ],
)
def test_invalid_retries_are_refused(api: APIClient, alice: User, body: dict[str, Any], pointer: str) -> None:
    task = make_task(alice)
    fail(task)
    response = api.post(path(task, "retry"), body)
    assert response.status_code == 400
    assert [error["pointer"] for error in response.json()["errors"]] == [pointer]


# ---- Authentication -------------------------------------------------------------------------------------------------


def test_a_browser_session_reads_and_writes_with_a_csrf_token(alice: User) -> None:
    browser = browser_of(alice, enforce_csrf_checks=True)
    task = make_task(alice)
    assert browser.get(path(task)).json()["task_id"] == task.pk
    assert browser.post(path(task, "cancel")).json()["code"] == "csrf_failed"
    browser.cookies["csrftoken"] = token = "t" * 32
    response = browser.post(path(task, "cancel"), content_type="application/json", headers={"X-CSRFToken": token})
    assert response.status_code == 200


def test_document_etl_has_its_own_rate_limits(api: APIClient, alice: User, settings: LazySettings) -> None:
    """B11."""
    task = make_task(alice)
    change_settings(settings, etl_rate="1/min", etl_poll_rate="2/min", export_rate="1/min", export_poll_rate="1/min")
    valkey().delete(*valkey().keys("*rate*") or ["none"])
    assert [api.get(path(task)).status_code for _ in range(3)] == [200, 200, 429]
    limited = [api.post(path(task, "cancel")) for _ in range(2)]
    assert [response.status_code for response in limited] == [200, 429]
    assert limited[1]["Retry-After"]
