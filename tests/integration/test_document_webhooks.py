"""Webhooks of documents and batches. The transaction of each end adds one event, and events are sent in order. B35."""

import json
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.db import transaction
from django.utils import timezone
from rest_framework.test import APIClient
from standardwebhooks import Webhook as Verifier

from config.platform.webhooks import outbox, sender
from config.platform.webhooks.models import EventType
from etl import runstate
from etl.core.errors import LlmUnavailable
from etl.core.stage_context import Usage
from etl.core.states import Stage
from etl.maintenance import recovery
from etl.models import Task
from etl.pipeline import actions, completion, deletion
from exports.models import Delivery
from exports.tasks import deliver
from tests.broker import queued
from tests.integration.etl_factories import make_task
from tests.integration.etl_progress import RESULT, begin, complete, fail, read
from tests.integration.receiver import Receiver, answer
from tests.integration.test_leases import in_threads
from tests.integration.test_submission import pointers

pytestmark = pytest.mark.usefixtures("empty_redis")

EVENTS = ["document.completed", "document.failed", "batch.completed"]
PATH = "/webhooks"


def subscribe(api: APIClient, url: str, *events: str) -> Any:
    response = api.post(PATH, {"url": url, "events": events or EVENTS})
    assert response.status_code == 201, response.json()
    return response.json()


def types() -> list[str]:
    return list(Delivery.objects.order_by("seq").values_list("type", flat=True))


def without_results(task: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in task.items() if name not in ("result", "previous_result")}


def received(endpoint: Receiver) -> list[tuple[int, str]]:
    events = [json.loads(got.body) for got in endpoint.received]
    return [(event["data"]["task_id"], event["type"]) for event in events]


# ---- Content --------------------------------------------------------------------------------------------------------
def test_a_completed_document_is_sent_as_in_the_api_without_its_result(
    alice: User, api: APIClient, endpoint: Receiver
) -> None:
    """B35."""
    hook = subscribe(api, endpoint.url)
    task = make_task(alice)
    complete(task)
    deliver()

    (got,) = endpoint.received
    event = Verifier(hook["secret"]).verify(got.body, got.headers)
    shown = api.get(f"/api/v1/etl/tasks/{task.pk}").json()
    assert event["type"] == "document.completed"
    assert event["data"] == without_results(shown)
    assert (event["timestamp"], shown["result"]) == (shown["updated_at"], RESULT)
    (listed,) = api.get(f"{PATH}/{hook['id']}/deliveries").json()["results"]
    assert (listed["type"], listed["subject"], listed["jobId"]) == ("document.completed", f"document:{task.pk}", None)
    assert listed["status"] == "delivered"


def test_a_failed_document_is_sent_with_its_error(alice: User, api: APIClient, endpoint: Receiver) -> None:
    """B35."""
    subscribe(api, endpoint.url)
    task = make_task(alice)
    fail(task, LlmUnavailable())
    deliver()

    event = json.loads(endpoint.received[0].body)
    assert event["type"] == "document.failed"
    assert event["data"] == without_results(api.get(f"/api/v1/etl/tasks/{task.pk}").json())
    assert event["data"]["error"]["code"] == LlmUnavailable.code


def test_each_event_of_a_retried_document_describes_its_own_end(
    alice: User, api: APIClient, endpoint: Receiver
) -> None:
    """B35: the first event reports the failure, although the document has completed since."""
    subscribe(api, endpoint.url)
    task = make_task(alice)
    fail(task)
    complete(actions.retry(task=task, from_stage=Stage.OCR))
    assert types() == ["document.failed", "document.completed"]
    deliver()

    first, second = (json.loads(got.body)["data"] for got in endpoint.received)
    assert (first["status"], second["status"]) == ("failed", "completed")
    assert first["task_id"] == second["task_id"] == task.pk


def test_the_events_of_a_document_arrive_in_order(alice: User, api: APIClient, endpoint: Receiver) -> None:
    """B35: a later event waits while the receiver refuses an earlier one. Events of other documents do not wait."""
    subscribe(api, endpoint.url)
    task, other = make_task(alice), make_task(alice)
    fail(task)
    complete(actions.retry(task=task, from_stage=Stage.OCR))
    complete(other)
    endpoint.replies.append(answer(500))
    sender.drain()
    assert received(endpoint) == [(task.pk, "document.failed"), (other.pk, "document.completed")]

    Delivery.objects.filter(status="pending").update(available_at=timezone.now())
    sender.drain()
    assert received(endpoint)[2:] == [(task.pk, "document.failed"), (task.pk, "document.completed")]


# ---- Once per end ---------------------------------------------------------------------------------------------------
def test_recording_an_end_again_adds_no_event(alice: User, api: APIClient, endpoint: Receiver) -> None:
    """B35: several workers and recovery record the same end."""
    subscribe(api, endpoint.url)
    task = make_task(alice)
    read(task)
    end = runstate.complete(begin(task, Stage.POSTPROCESS), result=RESULT, usage=Usage().as_dict()).state
    assert end
    assert sorted(in_threads(4, lambda _: completion.record(end))) == [False, False, False, True]
    recovery.recover_all()
    assert types() == ["document.completed"]


def test_recovery_adds_the_event_of_an_end(alice: User, api: APIClient, endpoint: Receiver) -> None:
    """B35: the worker was killed after the change in Redis and before that of the row."""
    subscribe(api, endpoint.url)
    task = make_task(alice)
    read(task)
    assert runstate.complete(begin(task, Stage.POSTPROCESS), result=RESULT, usage=Usage().as_dict()).moved
    assert types() == []
    recovery.recover_all()
    assert types() == ["document.completed"]


def test_a_rolled_back_end_has_no_event_and_wakes_no_worker(alice: User, api: APIClient, endpoint: Receiver) -> None:
    """B35."""
    subscribe(api, endpoint.url)
    task = make_task(alice)
    read(task)
    end = runstate.complete(begin(task, Stage.POSTPROCESS), result=RESULT, usage=Usage().as_dict()).state
    assert end
    with transaction.atomic():
        assert completion.record(end)
        transaction.set_rollback(True)
    assert (types(), queued("webhooks")) == ([], 0)
    assert Task.objects.get().status == "pending"
    completion.record(end)
    assert types() == ["document.completed"]
    assert queued("webhooks") == 1


def test_a_cancelled_document_has_no_event(alice: User, api: APIClient, endpoint: Receiver) -> None:
    subscribe(api, endpoint.url)
    actions.cancel(task=make_task(alice))
    assert types() == []


def test_only_enabled_webhooks_of_the_owner_with_the_event_receive_it(
    alice: User, bob: User, api: APIClient, endpoint: Receiver
) -> None:
    """B35."""
    subscribe(api, endpoint.url, "document.failed", "export.succeeded")
    off = subscribe(api, endpoint.url)
    api.patch(f"{PATH}/{off['id']}", {"enabled": False})
    wanted = subscribe(api, endpoint.url, "document.completed")
    complete(make_task(alice))
    complete(make_task(bob))
    assert [str(each.webhook_id) for each in Delivery.objects.all()] == [wanted["id"]]


def test_the_log_keeps_the_event_of_a_deleted_document(alice: User, api: APIClient, endpoint: Receiver) -> None:
    """B34, B35: the event is sent even if the document has been deleted."""
    hook = subscribe(api, endpoint.url)
    task = make_task(alice)
    complete(task)
    deletion.delete(Task.objects.get(), user=alice, message="Deleted.")
    deliver()
    assert json.loads(endpoint.received[0].body)["data"]["task_id"] == task.pk
    (listed,) = api.get(f"{PATH}/{hook['id']}/deliveries").json()["results"]
    assert (listed["subject"], listed["status"]) == (f"document:{task.pk}", "delivered")


# ---- Batches --------------------------------------------------------------------------------------------------------
def test_an_event_that_is_published_again_has_no_effect(alice: User, api: APIClient, endpoint: Receiver) -> None:
    """B35: it has the same subject and number. A larger number is a new event."""
    subscribe(api, endpoint.url, "batch.completed")

    def publish(seq: int) -> int:
        with transaction.atomic():
            return outbox.publish(
                EventType.BATCH_COMPLETED, user_id=alice.pk, subject="batch:7", seq=seq, at=timezone.now(),
                data={"batch_id": 7, "status": "completed"},
            )  # fmt: skip

    assert [publish(1), publish(1), publish(2)] == [1, 0, 1]
    deliver()
    assert [json.loads(got.body)["type"] for got in endpoint.received] == ["batch.completed", "batch.completed"]


# ---- The resource ---------------------------------------------------------------------------------------------------
def test_both_paths_are_the_same_resource(api: APIClient, endpoint: Receiver) -> None:
    """B35."""
    made = api.post(PATH, {"url": endpoint.url, "events": EVENTS})
    hook = made.json()
    assert made.headers["Location"] == f"{PATH}/{hook['id']}"
    assert api.get(f"/exports/webhooks/{hook['id']}").json() == api.get(f"{PATH}/{hook['id']}").json()
    assert api.post(f"/exports/webhooks/{hook['id']}/test").status_code == 202
    (test,) = api.get(f"{PATH}/{hook['id']}/deliveries").json()["results"]
    assert (test["type"], test["subject"]) == ("webhook.test", None)
    deliver()
    assert api.post(f"{PATH}/{hook['id']}/deliveries/{test['id']}/redeliver").status_code == 202
    assert api.patch(f"/exports/webhooks/{hook['id']}", {"events": EVENTS[:1]}).json()["events"] == EVENTS[:1]
    assert api.delete(f"{PATH}/{hook['id']}").status_code == 204
    assert api.get(f"/exports/webhooks/{hook['id']}").status_code == 404


def test_unknown_events_are_refused(api: APIClient, endpoint: Receiver) -> None:
    response = api.post(PATH, {"url": endpoint.url, "events": ["document.cancelled"]})
    assert pointers(response) == {("/events", "invalid")}
    assert "document.completed" in response.json()["errors"][0]["detail"]
