"""B5, A25: events of task streams, their sources, and their numbers."""

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest
from django.conf import LazySettings
from django.contrib.auth.models import User
from pydantic import SecretStr
from rest_framework.test import APIClient

from config.platform.http import sse as streams
from config.platform.http.auth import Credential
from etl import runstate
from etl.api import event_stream, lookup
from etl.api.event_stream import TaskEventHub, TaskListener, TaskUpdate
from etl.core.states import Stage
from etl.models import Task
from etl.pipeline import actions
from tests.broker import valkey
from tests.conftest import change_settings
from tests.integration.etl_factories import make_task
from tests.integration.etl_progress import begin, complete, end_completed, fail, read
from tests.integration.test_etl_api import forget, get, path
from tests.integration.test_streams import events_in


@pytest.fixture(autouse=True)
def _empty(transactional_db: None) -> None:
    valkey().flushdb()
    lookup.breaker_of.cache_clear()


def watch(api: APIClient, task: Task, after: object = None) -> Any:
    headers = {} if after is None else {"Last-Event-ID": str(after)}
    return api.get(path(task, "events"), headers=headers)


def state_of(task: Task) -> runstate.RunState:
    return lookup.states_of([task.pk])[task.pk]


def update_of(task: Task) -> TaskUpdate:
    updates, _ = TaskEventHub().read({task.pk: 0})
    return updates[task.pk]


def opening(task: Task, after: object = "") -> list[tuple[int, str, Any]]:
    start = event_stream.begin(state_of(task), str(after))
    assert start
    return events_in(start.opening)


class Client:
    """A listener and the events that it has received."""

    def __init__(self, task: Task) -> None:
        self.task = task
        update = TaskUpdate(state_of(task))
        self.listener = TaskListener(task.pk, Credential(1), update.newest)
        self.listener.status = update.state.status
        self.events: list[tuple[int, str, Any]] = events_in(update.snapshot)

    def poll(self) -> list[tuple[int, str, Any]]:
        """Read the changes since the last poll, and return their events."""
        updates, _ = TaskEventHub().read({self.task.pk: self.listener.after})
        for each in updates.values():
            self.listener.send(each)
        new = events_in(b"".join(self.waiting()))
        self.events += new
        return new

    def waiting(self) -> Iterator[bytes]:
        while not self.listener.waiting.empty():
            yield self.listener.waiting.get_nowait() or b""


def test_a_stream_sends_each_status_and_progress(alice: User) -> None:
    """A25: the first event is a snapshot, and the last one the final status."""
    task = make_task(alice)
    client = Client(task)
    assert client.poll() == []
    state = begin(task)
    client.poll()
    runstate.record_progress(state, 20)
    client.poll()
    runstate.record_progress(state, 30)
    runstate.record_progress(state, 40)
    client.poll()
    assert client.poll() == []
    fail_now(state)
    client.poll()

    kinds = [(event, data["status"], data["progress"]) for _, event, data in client.events]
    assert kinds == [
        ("snapshot", "pending", 0),
        ("status", "mineru_parsing", 0),
        ("progress", "mineru_parsing", 20),
        ("progress", "mineru_parsing", 40),
        ("status", "failed", 40),
    ]
    numbers = [number for number, _, _ in client.events]
    assert numbers == sorted(set(numbers))
    assert client.events[-1][2]["error"]["code"] == "ocr_failed"


def fail_now(state: runstate.RunState) -> None:
    shown = {"code": "ocr_failed", "stage": "ocr", "detail": "x", "retryable": True}
    assert runstate.fail(state, error=shown, usage={}).moved


def test_the_snapshot_equals_the_task_of_the_api(api: APIClient, alice: User) -> None:
    """B5: both use the same representation."""
    task = make_task(alice)
    read(task)
    assert [(event, data) for _, event, data in opening(task)] == [("snapshot", get(api, task))]


@pytest.mark.parametrize("end", [complete, fail])
@pytest.mark.parametrize("is_forgotten", [False, True])
def test_the_stream_of_an_ended_task_sends_its_end_immediately(
    api: APIClient,
    alice: User,
    end: Any,
    is_forgotten: bool,  # noqa: FBT001
) -> None:
    """A25: the event numbers are the same with a run-state in Redis and without one."""
    task = make_task(alice)
    end(task)
    if is_forgotten:
        forget(task)
    response = watch(api, task)
    assert (response["Content-Type"], response["Cache-Control"]) == ("text/event-stream", "no-cache, no-transform")
    assert response["X-Accel-Buffering"] == "no"
    assert response.content.startswith(b"retry: 3000\n\n")
    (first, event, data), (last, status, ended) = events_in(response.content)

    assert (event, status) == ("snapshot", "status")
    assert data["status"] == ended["status"] in ("completed", "failed")
    assert (first, last) == (1_999_998, 1_999_999)
    assert [each[1] for each in events_in(watch(api, task, first).content)] == ["status"]
    gone = watch(api, task, last)
    assert (gone.status_code, gone.content) == (204, b"")


def test_a_reconnecting_client_gets_the_changes(alice: User) -> None:
    """A25: it gets nothing if there were no changes."""
    task = make_task(alice)
    ((number, _, _),) = opening(task)
    assert opening(task, number) == []
    state = begin(task)
    runstate.record_progress(state, 20)
    ((newer, event, data),) = opening(task, number)
    assert (event, data["status"], data["progress"]) == ("status", "mineru_parsing", 20)
    assert newer > number


@pytest.mark.parametrize("last", ["", "x", "-1", "1.5", "²", "5000000", "9" * 400])
def test_an_unknown_last_event_id_gets_a_snapshot(alice: User, last: str) -> None:
    assert [event for _, event, _ in opening(make_task(alice), last)] == ["snapshot"]


def test_event_numbers_grow_across_retries_and_redis_losses(alice: User) -> None:
    """A25, B10: each generation has a separate range of numbers."""
    task = make_task(alice)
    client = Client(task)
    fail(task)
    client.poll()
    task.refresh_from_db()
    actions.retry(task=task, from_stage=Stage.OCR)
    client.poll()
    forget(task)
    client.poll()
    task.refresh_from_db()
    task.generation += 1  # as recovery does
    task.save()
    runstate.create(task, stage=Stage.OCR)
    client.poll()
    read(task)
    end_completed(begin(task, Stage.POSTPROCESS))
    forget(task)
    client.poll()

    numbers = [number for number, _, _ in client.events]
    assert numbers == sorted(set(numbers))
    assert [data["status"] for _, event, data in client.events if event == "status"] == [
        "failed", "pending", "completed",
    ]  # fmt: skip


def test_tasks_are_read_in_one_round_trip_and_rows_only_without_a_run_state(
    alice: User, django_assert_num_queries: Any
) -> None:
    """A25: this holds for any number of listeners."""
    tasks = [make_task(alice) for _ in range(5)]
    with django_assert_num_queries(0):
        updates, more = TaskEventHub().read({task.pk: 0 for task in tasks})
    assert (len(updates), more) == (5, False)
    forget(*tasks[:2])
    with django_assert_num_queries(1):
        updates, _ = TaskEventHub().read({task.pk: 0 for task in tasks})
    assert len(updates) == 5
    assert TaskEventHub().read({task.pk: updates[task.pk].newest for task in tasks}) == ({}, False)


@pytest.mark.parametrize("code", ["schema_validation", "number_unrepresentable"])
def test_staff_without_permission_to_open_data_get_no_details_of_errors(alice: User, code: str) -> None:
    """C14: the details contain names of members of the result."""
    task = make_task(alice)
    listener = event_stream.RedactedTaskListener(task.pk, Credential(1), state_of(task).number)
    listener.status = "pending"
    error = {"code": code, "stage": "ocr", "detail": "#/Alice owes 12 EUR", "retryable": False}
    assert runstate.fail(begin(task), error=error, usage={}).moved
    listener.send(update_of(task))
    sent = listener.waiting.get_nowait()
    assert sent
    assert code.encode() in sent
    assert b"Alice" not in sent


def test_listeners_at_the_same_event_share_bytes(alice: User) -> None:
    task = make_task(alice)
    clients = [Client(task) for _ in range(2)]
    begin(task)
    update = update_of(task)
    for client in clients:
        client.listener.send(update)
    first, second = (client.listener.waiting.get_nowait() for client in clients)
    assert first is second


@pytest.mark.slow
def test_without_redis_streams_are_built_from_rows(
    alice: User,
    settings: LazySettings,
    silent_redis: str,
) -> None:
    task = make_task(alice)
    client = Client(task)
    complete(task)
    change_settings(settings, etl_redis_url=SecretStr(silent_redis))
    ((_, event, data),) = client.poll()
    assert (event, data["status"]) == ("status", "completed")


def test_the_limits_of_streams_apply_to_tasks(api: APIClient, alice: User, monkeypatch: pytest.MonkeyPatch) -> None:
    """A25: one user cannot open all streams of a process."""
    task = make_task(alice)
    for name, status in (("MAX_STREAMS", 503), ("MAX_STREAMS_PER_USER", 429)):
        with monkeypatch.context() as patch:
            patch.setattr(streams, name, 0)
            response = watch(api, task)
            assert (response.status_code, response.json()["code"]) == (status, "too_many_streams")
            assert response["Retry-After"]


def test_a_stream_ends_with_its_task(alice: User, monkeypatch: pytest.MonkeyPatch) -> None:
    """A25."""
    monkeypatch.setattr(TaskEventHub, "poll_seconds", 0.01)
    task = make_task(alice)
    number = state_of(task).number

    async def listen() -> bytes:
        listener = TaskListener(task.pk, Credential(alice.pk), number)
        listener.status = "pending"
        parts: list[bytes] = []
        async for part in streams.EventStream(TaskEventHub, listener, opening=b""):
            if not parts:
                await streams.in_thread(complete, task)
            parts.append(part)
        return b"".join(parts)

    events = events_in(asyncio.run(listen()))
    assert events[-1][1:2] == ("status",)
    assert events[-1][2]["status"] == "completed"
