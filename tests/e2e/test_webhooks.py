"""Webhooks with real processes: from the request to the receiver, and after a worker crash. A25, A28."""

import threading
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
from django.db.models.functions import Now
from rest_framework.test import APIClient
from standardwebhooks import Webhook as Verifier

from exports.models import Dataset, Delivery
from tests.e2e.conftest import Workers
from tests.integration.receiver import OK, Receiver, allow, answer, receiver
from tests.waiting import wait_until

pytestmark = pytest.mark.usefixtures("empty_bucket")

ITEM = {"key": "JFK", "effectiveDate": "2024-02-29"}


@pytest.fixture
def endpoint(settings: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[Receiver]:
    """A receiver that this process and the workers can reach."""
    allow(settings, "127.0.0.0/8")
    monkeypatch.setenv("EXPORT_WEBHOOK_ALLOW_CIDRS", "127.0.0.0/8")
    with receiver() as running:
        yield running


def subscribe(api: APIClient, url: str) -> Any:
    response = api.post("/exports/webhooks", {"url": url, "events": ["export.succeeded", "export.cancelled"]})
    assert response.status_code == 201
    return response.json()


@pytest.mark.slow
def test_a_webhook_is_delivered_after_a_failed_first_attempt(
    dataset: Dataset, api: APIClient, workers: Workers, endpoint: Receiver
) -> None:
    """A25, A28: from the request to the receiver, without beat. The first retry comes after about 5 s."""
    hook = subscribe(api, f"{endpoint.url}/SECRETPATH")
    endpoint.replies = [answer(500), OK]
    workers.start()
    job = api.post("/exports", {"dataset": "things", "items": [ITEM]}).json()
    wait_until(lambda: Delivery.objects.filter(status="delivered").exists())

    first, second = endpoint.received
    assert (first.id, first.body) == (second.id, second.body)
    payload = Verifier(hook["secret"]).verify(second.body, second.headers)
    shown = api.get(f"/exports/{job['jobId']}").json()
    assert shown["receipt"].pop("signedUrl")
    assert (payload["type"], payload["data"]) == ("export.succeeded", shown)
    waited = int(second.headers["webhook-timestamp"]) - int(first.headers["webhook-timestamp"])
    assert waited >= 5
    wait_until(lambda: "webhook_delivered" in workers.logs())  # the line is written after the commit
    for secret in ("SECRETPATH", hook["secret"]):
        assert secret not in workers.logs()


@pytest.mark.slow
def test_the_delivery_of_a_killed_worker_is_sent_again(
    dataset: Dataset, api: APIClient, workers: Workers, endpoint: Receiver
) -> None:
    """A12, A25: SIGKILL while the receiver delays its response."""
    hook = subscribe(api, endpoint.url)
    requested, is_over = threading.Event(), threading.Event()

    def wait(to: Any) -> None:
        requested.set()
        is_over.wait(60)
        OK(to)

    endpoint.replies = [wait]
    killed = workers.start("webhooks", concurrency=1)
    job = api.post("/exports", {"dataset": "things", "items": [ITEM]}).json()
    api.post(f"/exports/{job['jobId']}/cancel")
    assert requested.wait(60)
    killed.kill()
    is_over.set()
    workers.start("webhooks,maintenance")
    workers.start_beat()
    assert Delivery.objects.get().status == "pending"
    Delivery.objects.update(lease_until=Now() - timedelta(seconds=1))  # instead of waiting until it expires
    wait_until(lambda: Delivery.objects.filter(status="delivered").exists())

    assert len(endpoint.received) == 2
    assert len(set(endpoint.ids)) == 1
    (shown,) = api.get(f"/exports/webhooks/{hook['id']}/deliveries").json()["results"]
    assert [line["error"] for line in shown["log"]] == ["worker lost", None]


@pytest.mark.slow
def test_a_slow_endpoint_delays_no_other_delivery(api: APIClient, workers: Workers, endpoint: Receiver) -> None:
    slow = subscribe(api, endpoint.url)
    is_over = threading.Event()

    def wait(to: Any) -> None:
        is_over.wait(60)
        OK(to)

    endpoint.then = wait
    with receiver() as elsewhere:
        quick = subscribe(api, elsewhere.url)
        for _ in range(4):
            api.post(f"/exports/webhooks/{slow['id']}/test")
        workers.start("webhooks", concurrency=2)
        wait_until(lambda: endpoint.received)
        api.post(f"/exports/webhooks/{quick['id']}/test")
        wait_until(lambda: elsewhere.received)
        assert len(endpoint.received) == 1
        is_over.set()
        wait_until(lambda: not Delivery.objects.filter(status="pending").exists())
