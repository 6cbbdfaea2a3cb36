"""Webhooks: events, retries, signatures, and the SSRF guard. A25, A28."""

import json
import re
import socket
import ssl
import threading
from datetime import datetime, timedelta
from typing import Any

import psycopg
import pytest
from django.contrib.auth.models import User
from django.db import connection
from django.db.models.functions import Now
from django.test.utils import CaptureQueriesContext
from django.utils import timezone
from rest_framework.test import APIClient
from standardwebhooks import Webhook as Verifier
from standardwebhooks import WebhookVerificationError

from config.platform.http.outbound import connections
from config.platform.webhooks import request, sender, subscriptions, url_guard
from config.platform.webhooks.request import WebhookResponse
from exports.delivery import receipts
from exports.jobs import actions, webhook_events
from exports.maintenance import periodic
from exports.models import Attempt, Dataset, Delivery, Event, Job, Link, Receipt, Webhook
from exports.worker import execution
from tests.broker import lose_messages, queued
from tests.conftest import client_of
from tests.integration.factories import make_job
from tests.integration.receiver import OK, PEM, Receiver, allow, answer, receiver, trickle
from tests.integration.test_completion import finish
from tests.integration.test_leases import in_threads
from tests.integration.test_submission import pointers
from tests.unit.test_logs import _restore_logging, configure  # noqa: F401 - a fixture
from tests.waiting import expect_within

pytestmark = pytest.mark.usefixtures("empty_bucket", "empty_redis")

ALL = ["export.succeeded", "export.failed", "export.cancelled"]
UNKNOWN_ID = "00000000-0000-0000-0000-000000000000"
PUBLIC = "93.184.215.14"


@pytest.fixture
def alice_job(dataset: Dataset, alice: User) -> Job:
    return make_job(dataset, alice, 1)


def subscribe(api: APIClient, url: str, *events: str) -> Any:
    response = api.post("/exports/webhooks", {"url": url, "events": events or ALL})
    assert response.status_code == 201, response.json()
    return response.json()


def work() -> None:
    """Do the work of the Celery task."""
    webhook_events.fan_out()
    sender.drain()


def add_deliveries(dataset: Dataset, user: User) -> None:
    """Cancel a new job, and create the deliveries of its end."""
    actions.cancel(make_job(dataset, user, 1))
    webhook_events.fan_out()


def make_due() -> None:
    Delivery.objects.filter(status="pending").update(available_at=Now() - timedelta(seconds=1))


def sent_to(api: APIClient, hook: Any) -> list[Any]:
    found: list[Any] = api.get(f"/exports/webhooks/{hook['id']}/deliveries").json()["results"]
    return found


def verify(got: Any, secret: str) -> Any:
    return Verifier(secret).verify(got.body, got.headers)


# ---- Events and receivers -------------------------------------------------------------------------------------------


def test_a_success_sends_the_job_as_in_the_api_without_its_link(
    dataset: Dataset, alice: User, api: APIClient, endpoint: Receiver
) -> None:
    """A25."""
    hook = subscribe(api, endpoint.url)
    job = make_job(dataset, alice, 2)
    finish(job)
    work()

    (got,) = endpoint.received
    shown = api.get(f"/exports/{job.pk}").json()
    assert shown["receipt"].pop("signedUrl")
    happened = Event.objects.get(job=job, kind="status", status="success").at
    assert verify(got, hook["secret"]) == {
        "type": "export.succeeded",
        "timestamp": happened.isoformat().replace("+00:00", "Z"),
        "data": shown,
    }
    assert got.headers["content-type"] == "application/json"
    assert got.headers["user-agent"].startswith("Sluice/")
    (delivery,) = sent_to(api, hook)
    assert delivery == {
        "id": got.id,
        "type": "export.succeeded",
        "jobId": str(job.pk),
        "subject": None,
        "status": "delivered",
        "attempts": 1,
        "createdAt": delivery["createdAt"],
        "nextAttemptAt": None,
        "finishedAt": delivery["finishedAt"],
        "log": [{"at": delivery["log"][0]["at"], "statusCode": 204, "error": None,
                 "durationMs": delivery["log"][0]["durationMs"]}],
    }  # fmt: skip
    assert delivery["createdAt"] <= delivery["log"][0]["at"] <= delivery["finishedAt"]


def test_failures_and_cancellations_are_sent(
    dataset: Dataset, alice: User, api: APIClient, endpoint: Receiver, source_db: psycopg.Connection
) -> None:
    """A25."""
    subscribe(api, endpoint.url)
    actions.cancel(make_job(dataset, alice, 1))
    source_db.execute("DROP FUNCTION data.rows_for")
    make_job(dataset, alice, 1, key="EWR")
    execution.drain()
    work()

    sent = {got.json["type"]: got.json["data"] for got in endpoint.received}
    assert {kind: data["status"] for kind, data in sent.items()} == {
        "export.cancelled": "cancelled",
        "export.failed": "failed",
    }
    assert sent["export.failed"]["error"]["code"] == "EXPORT_SOURCE_ERROR"


def test_only_subscribed_events_of_own_jobs_are_sent(
    dataset: Dataset, alice: User, bob: User, api: APIClient, endpoint: Receiver
) -> None:
    early = make_job(dataset, alice, 1)
    actions.cancel(early)
    subscribe(api, endpoint.url, "export.failed")
    subscribe(client_of(bob), endpoint.url)
    off = subscribe(api, endpoint.url)
    api.patch(f"/exports/webhooks/{off['id']}", {"enabled": False})
    on = subscribe(api, endpoint.url, "export.cancelled", "export.succeeded")
    late = make_job(dataset, alice, 1)
    actions.cancel(late)
    work()

    assert [(str(each.webhook_id), each.job_id) for each in Delivery.objects.all()] == [(on["id"], late.pk)]
    assert not Event.objects.awaiting_fan_out().exists()


def test_each_end_is_sent_to_each_webhook_once_by_concurrent_workers(
    dataset: Dataset, alice: User, api: APIClient, endpoint: Receiver
) -> None:
    """A25."""
    hooks = [subscribe(api, endpoint.url)["id"] for _ in range(2)]
    jobs = [make_job(dataset, alice, 1) for _ in range(5)]
    for job in jobs:
        actions.cancel(job)
    assert sum(in_threads(4, lambda _: webhook_events.fan_out())) == 10
    assert webhook_events.fan_out() == 0

    Event.objects.update(told_at=None)  # as after an unexpected crash
    assert webhook_events.fan_out() == 0
    made = {(str(each.webhook_id), each.job_id) for each in Delivery.objects.all()}
    assert made == {(hook, job.pk) for hook in hooks for job in jobs}


def test_a_job_that_ends_twice_is_sent_twice(dataset: Dataset, alice: User, api: APIClient, endpoint: Receiver) -> None:
    subscribe(api, endpoint.url)
    job = make_job(dataset, alice, 1)
    Job.objects.update(function="data.no_such")
    execution.drain()
    work()
    actions.retry(job)
    Job.objects.update(function="data.rows_for")
    finish(job)
    work()

    assert [got.json["type"] for got in endpoint.received] == ["export.failed", "export.succeeded"]
    assert len(set(endpoint.ids)) == 2


def test_an_event_describes_the_job_as_it_was(
    dataset: Dataset, alice: User, api: APIClient, endpoint: Receiver
) -> None:
    """A25: a job fails, is retried immediately, and succeeds. Its receipt is revoked before its events are sent."""
    subscribe(api, endpoint.url)
    job = make_job(dataset, alice, 1)
    Job.objects.update(function="data.no_such")
    execution.drain()
    actions.retry(job)
    Job.objects.update(function="data.rows_for")
    finish(job)
    receipt = Receipt.objects.get()
    receipts.revoke(receipt)
    endpoint.then = answer(500)
    work()
    endpoint.then = answer(200)
    make_due()
    work()

    first, again, second = (got.json for got in endpoint.received)
    assert (first, first["type"], second["type"]) == (again, "export.failed", "export.succeeded")
    failed, succeeded = first["data"], second["data"]
    assert (failed["status"], failed["error"]["code"]) == ("failed", "EXPORT_SOURCE_ERROR")
    assert (failed["progress"]["failed"], failed["progress"]["pending"]) == (1, 0)
    assert (succeeded["status"], succeeded["receipt"]["state"]) == ("success", "active")
    lives = {name: datetime.fromisoformat(succeeded["receipt"][name]) for name in ("expiresAt", "deliveryExpiresAt")}
    assert lives["deliveryExpiresAt"] == receipt.issued_at + timedelta(seconds=job.ttl)
    assert lives["expiresAt"] == Link.objects.get().expires_at < lives["deliveryExpiresAt"]


def test_the_events_of_a_job_arrive_in_their_order(
    dataset: Dataset, alice: User, api: APIClient, endpoint: Receiver
) -> None:
    """A25: the second event waits until the first one is delivered. Events of other jobs do not wait."""
    subscribe(api, endpoint.url)
    job = make_job(dataset, alice, 1)
    Job.objects.update(function="data.no_such")
    execution.drain()
    endpoint.then = answer(500)
    work()
    Delivery.objects.update(available_at=Now() + timedelta(hours=1))  # otherwise, it would be due again after 5 s
    endpoint.then = answer(200)
    actions.retry(job)
    Job.objects.update(function="data.rows_for")
    finish(job)
    actions.cancel(make_job(dataset, alice, 1, key="EWR"))
    work()
    assert [got.json["type"] for got in endpoint.received] == ["export.failed", "export.cancelled"]

    make_due()
    work()
    assert [got.json["type"] for got in endpoint.received][2:] == ["export.failed", "export.succeeded"]


def test_the_events_of_a_purged_job_arrive_in_their_order(
    dataset: Dataset, alice: User, api: APIClient, endpoint: Receiver
) -> None:
    """A25: the job is deleted while its first event is being sent. Events of another deleted job do not wait."""
    hook = subscribe(api, endpoint.url)
    job = make_job(dataset, alice, 1)
    Job.objects.update(function="data.no_such")
    execution.drain()
    webhook_events.fan_out()
    actions.retry(job)
    actions.cancel(job)
    actions.cancel(make_job(dataset, alice, 1, key="EWR"))
    webhook_events.fan_out()
    first = sender.claim()
    assert first
    Job.objects.update(finished_at=Now() - timedelta(days=8))
    periodic.purge()
    assert not Job.objects.exists()
    assert sender.record_failure(first, WebhookResponse(status=500))
    work()
    assert [got.json["data"]["jobId"] == str(job.pk) for got in endpoint.received] == [False]

    make_due()
    work()
    assert [got.json["type"] for got in endpoint.received][1:] == ["export.failed", "export.cancelled"]
    assert [each["subject"] for each in sent_to(api, hook)].count(f"export:{job.pk}") == 2


def test_a_deactivated_user_gets_no_events(dataset: Dataset, alice: User, api: APIClient, endpoint: Receiver) -> None:
    subscribe(api, endpoint.url)
    first, second = make_job(dataset, alice, 1), make_job(dataset, alice, 1, key="EWR")
    actions.cancel(first)
    webhook_events.fan_out()
    User.objects.update(is_active=False)
    actions.cancel(second)
    work()
    assert endpoint.received == []

    User.objects.update(is_active=True)  # waiting deliveries are sent; events while the user was inactive are not
    work()
    assert [got.json["data"]["jobId"] for got in endpoint.received] == [str(first.pk)]


def test_the_reaper_sends_lost_wake_ups_again(
    dataset: Dataset, alice: User, api: APIClient, endpoint: Receiver
) -> None:
    """A12, A25."""
    subscribe(api, endpoint.url)
    actions.cancel(make_job(dataset, alice, 1))
    lose_messages()
    periodic.reap()
    assert queued("webhooks") == 1

    webhook_events.fan_out()
    lose_messages()
    periodic.reap()
    assert queued("webhooks") == 1

    sender.drain()
    lose_messages()
    periodic.reap()
    assert queued("webhooks") == 0


# ---- Attempts -------------------------------------------------------------------------------------------------------


def test_failures_are_retried_on_schedule_with_the_same_id_and_bytes(
    dataset: Dataset, alice: User, api: APIClient, endpoint: Receiver
) -> None:
    """A25."""
    hook = subscribe(api, endpoint.url)
    actions.cancel(make_job(dataset, alice, 1))
    endpoint.then = answer(500)
    for delay in sender.SCHEDULE:
        before = timezone.now()
        work()
        after = timezone.now()
        (shown,) = sent_to(api, hook)
        due = datetime.fromisoformat(shown["nextAttemptAt"])
        assert before + timedelta(seconds=delay) <= due <= after + timedelta(seconds=1.2 * delay)
        assert shown["status"] == "pending"
        make_due()
    work()
    make_due()
    work()

    (shown,) = sent_to(api, hook)
    assert (shown["status"], shown["attempts"], shown["nextAttemptAt"]) == ("failed", 10, None)
    assert [line["statusCode"] for line in shown["log"]] == [500] * 10
    assert len(endpoint.received) == 10
    assert len({(got.id, got.body) for got in endpoint.received}) == 1
    for got in endpoint.received:
        verify(got, hook["secret"])


def test_the_first_retry_has_a_wake_up_and_later_ones_wait_for_the_reaper(
    dataset: Dataset, alice: User, api: APIClient, endpoint: Receiver
) -> None:
    """A message with a longer delay than the broker's visibility timeout would be redelivered again and again."""
    subscribe(api, endpoint.url)
    endpoint.then = answer(500)
    add_deliveries(dataset, alice)
    lose_messages()
    sender.drain()
    assert queued("webhooks") == 1

    make_due()
    lose_messages()
    sender.drain()
    assert queued("webhooks") == 0


@pytest.mark.parametrize(
    ("reply", "seconds"),
    [
        (answer(429, Retry_After="3600"), 3600),
        (answer(503, Retry_After="99999999"), 24 * 3600),
        (answer(503, Retry_After="1"), 5),
        (answer(503, Retry_After="9" * 5000), 24 * 3600),
        (answer(503, Retry_After="soon"), 5),
        (answer(500, Retry_After="3600"), 5),
    ],
)
def test_retry_after_of_a_receiver_is_respected(
    alice_job: Job, api: APIClient, endpoint: Receiver, reply: Any, seconds: int
) -> None:
    subscribe(api, endpoint.url)
    endpoint.then = reply
    before = timezone.now()
    actions.cancel(alice_job)
    work()

    due, after = Delivery.objects.get().available_at, timezone.now()
    assert before + timedelta(seconds=seconds) <= due <= after + timedelta(seconds=1.2 * seconds)


@pytest.mark.parametrize("status", [301, 302, 307, 400, 404, 500])
def test_only_2xx_is_a_success_and_redirects_are_not_followed(api: APIClient, endpoint: Receiver, status: int) -> None:
    """A25."""
    hook = subscribe(api, endpoint.url)
    with receiver() as elsewhere:
        endpoint.then = answer(status, Location=elsewhere.url)
        api.post(f"/exports/webhooks/{hook['id']}/test")
        work()

        assert elsewhere.received == []
    assert len(endpoint.received) == 1
    (shown,) = sent_to(api, hook)
    assert (shown["status"], shown["log"][0]["statusCode"]) == ("failed", status)


def test_requests_use_no_proxies_or_cookies(
    dataset: Dataset, alice: User, api: APIClient, endpoint: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")
    subscribe(api, endpoint.url)
    endpoint.then = answer(500, Set_Cookie="a=b")
    actions.cancel(make_job(dataset, alice, 1))
    work()
    make_due()
    work()

    assert len(endpoint.received) == 2
    assert not any({"cookie", "authorization", "x-request-id"} & got.headers.keys() for got in endpoint.received)


def test_an_unreachable_endpoint_is_recorded_without_internals(api: APIClient, endpoint: Receiver) -> None:
    hook = subscribe(api, "http://127.0.0.1:1/")
    api.post(f"/exports/webhooks/{hook['id']}/test")
    work()

    (shown,) = sent_to(api, hook)
    assert [(line["statusCode"], line["error"]) for line in shown["log"]] == [
        (None, "connection failed, or the response was not HTTP")
    ]


def test_the_delivery_of_a_lost_worker_is_repeated_and_its_late_outcome_discarded(
    dataset: Dataset, alice: User, api: APIClient, endpoint: Receiver
) -> None:
    """A11, A25."""
    hook = subscribe(api, endpoint.url)
    add_deliveries(dataset, alice)
    lost = sender.claim()
    assert lost
    assert sender.claim() is None
    Delivery.objects.update(lease_until=Now() - timedelta(seconds=1))
    work()

    (shown,) = sent_to(api, hook)
    assert endpoint.ids == [str(lost.id)]
    assert (shown["status"], shown["attempts"]) == ("delivered", 2)
    assert [line["error"] for line in shown["log"]] == ["worker lost", None]
    for record in (sender.record_success, sender.record_failure):
        assert not record(lost, WebhookResponse(status=500))
    assert sent_to(api, hook) == [shown]


def test_a_delivery_that_kills_its_workers_fails(
    dataset: Dataset, alice: User, api: APIClient, endpoint: Receiver
) -> None:
    hook = subscribe(api, endpoint.url)
    add_deliveries(dataset, alice)
    for _ in range(sender.ATTEMPTS):
        assert sender.claim()
        Delivery.objects.update(lease_until=Now() - timedelta(seconds=1))
    assert sender.claim() is None
    periodic.reap()

    (shown,) = sent_to(api, hook)
    assert shown["status"] == "failed"
    assert [line["error"] for line in shown["log"]] == ["worker lost"] * sender.ATTEMPTS


def test_a_running_last_attempt_is_not_failed(
    dataset: Dataset, alice: User, api: APIClient, endpoint: Receiver
) -> None:
    subscribe(api, endpoint.url)
    add_deliveries(dataset, alice)
    Delivery.objects.update(attempts=sender.ATTEMPTS - 1)
    claimed = sender.claim()
    assert claimed
    sender.fail_exhausted()

    assert Delivery.objects.get().status == "pending"
    sender.attempt(claimed)
    assert Delivery.objects.get().status == "delivered"


def test_graceful_shutdown_hands_the_delivery_to_another_worker(
    api: APIClient, endpoint: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A12."""
    hook = subscribe(api, endpoint.url)
    api.post(f"/exports/webhooks/{hook['id']}/test")
    lose_messages()

    def shut_down(*_args: Any, **_options: Any) -> None:
        raise SystemExit

    monkeypatch.setattr(socket, "create_connection", shut_down)
    with pytest.raises(SystemExit):
        sender.drain()

    row = Delivery.objects.get()
    assert (row.status, row.attempts, row.token) == ("pending", 0, None)
    assert queued("webhooks") == 1
    assert Attempt.objects.count() == 0


def test_a_webhook_gets_one_delivery_at_a_time(
    dataset: Dataset, alice: User, api: APIClient, endpoint: Receiver
) -> None:
    """A slow endpoint must not occupy every worker."""
    hooks = [subscribe(api, endpoint.url)["id"] for _ in range(2)]
    for _ in range(3):
        add_deliveries(dataset, alice)
    claims = [claimed for claimed in in_threads(8, lambda _: sender.claim()) if claimed]

    assert sorted(str(claimed.webhook_id) for claimed in claims) == sorted(hooks)


def test_at_most_two_webhooks_of_a_user_are_served_at_a_time(
    dataset: Dataset, alice: User, api: APIClient, endpoint: Receiver
) -> None:
    """A25: two of four workers remain for other users."""
    for _ in range(8):
        subscribe(api, endpoint.url)
    add_deliveries(dataset, alice)
    claims = [claimed for claimed in in_threads(8, lambda _: sender.claim()) if claimed]

    assert len({claimed.webhook_id for claimed in claims}) == len(claims) == 2
    for claimed in claims:
        sender.attempt(claimed)
    sender.drain()
    assert len(set(endpoint.ids)) == 8


def test_users_with_the_fewest_running_deliveries_come_first(
    dataset: Dataset, alice: User, bob: User, api: APIClient, endpoint: Receiver
) -> None:
    """A25: failing endpoints of one user, with a backlog, do not delay other users."""
    for client in (api, api, api, client_of(bob)):
        subscribe(client, endpoint.url)
    for user in (alice, alice, alice, bob):
        actions.cancel(make_job(dataset, user, 1))
        webhook_events.fan_out()
    owners = dict(Webhook.objects.values_list("pk", "user__username"))
    claims = [sender.claim() for _ in range(4)]

    assert [claimed and owners[claimed.webhook_id] for claimed in claims] == ["alice", "bob", "alice", None]


def test_certificates_are_verified_against_the_host_name(
    api: APIClient, settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A25."""
    allow(settings, "127.0.0.0/8")
    monkeypatch.setattr(socket, "getaddrinfo", AttackerDns("hook.example", "127.0.0.1"))
    with receiver(tls=True) as endpoint:
        url = endpoint.url
        untrusted = request.post(url, body=b"{}", headers={})
        assert endpoint.received == []
        trusting = ssl.create_default_context(cafile=PEM)
        monkeypatch.setattr(connections, "tls_context", lambda: trusting)
        hook = subscribe(api, url)
        api.post(f"/exports/webhooks/{hook['id']}/test")
        work()
        (got,) = endpoint.received
        monkeypatch.setattr(socket, "getaddrinfo", AttackerDns("other.example", "127.0.0.1"))
        misnamed = request.post(url.replace("hook.", "other."), body=b"{}", headers={})

    assert got.headers["host"] == url.split("/")[2]
    verify(got, hook["secret"])
    assert len(endpoint.received) == 1
    for refused in (untrusted, misnamed):
        assert refused.error == "no TLS connection: certificate or protocol not accepted"


@pytest.mark.slow
def test_deliveries_in_backoff_are_never_scanned(api: APIClient, endpoint: Receiver) -> None:
    """A failing endpoint has thousands of them. A claim reads only due deliveries, by an index."""
    hook = Webhook.objects.get(pk=subscribe(api, endpoint.url)["id"])
    later = timezone.now() + timedelta(hours=1)
    Delivery.objects.bulk_create(
        Delivery(webhook=hook, type="export.succeeded", body="{}", available_at=later) for _ in range(5_000)
    )
    with connection.cursor() as cursor:
        cursor.execute("ANALYZE exports_delivery")
        cursor.execute(f"EXPLAIN {sender.NEXT_WEBHOOK}", {"attempts": 10, "busy": 2})
        plan = "\n".join(row[0] for row in cursor.fetchall())

    assert plan.count("Index Cond: (available_at <= statement_timestamp())") == 1


# ---- Endless responses ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("head", [b"", b"HTTP/1.1 200 OK\r\nX-Slow: "])
def test_a_trickling_receiver_times_out(
    api: APIClient, endpoint: Receiver, monkeypatch: pytest.MonkeyPatch, head: bytes
) -> None:
    """A25: even though no single read times out."""
    monkeypatch.setattr(request, "ATTEMPT_SECONDS", 0.5)
    hook = subscribe(api, endpoint.url)

    def test() -> None:
        over, ended = threading.Event(), threading.Event()
        endpoint.then = trickle(over, head=head, ended=ended)
        endpoint.received.clear()
        while not endpoint.received:  # if the machine stalls, the time may be over before the request is sent
            Delivery.objects.all().delete()
            api.post(f"/exports/webhooks/{hook['id']}/test")
            work()
        assert ended.wait(30)
        (shown,) = sent_to(api, hook)
        assert [(line["statusCode"], line["error"]) for line in shown["log"]] == [(None, "no response in time")]

    expect_within(3, test)


def test_a_silent_receiver_times_out(api: APIClient, endpoint: Receiver, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(request, "ATTEMPT_SECONDS", 0.3)
    hook = subscribe(api, endpoint.url)
    over = threading.Event()

    def wait(_to: Any) -> None:
        over.wait(20)

    endpoint.then = wait
    api.post(f"/exports/webhooks/{hook['id']}/test")
    work()
    over.set()

    assert sent_to(api, hook)[0]["log"][0]["error"] == "no response in time"


@pytest.mark.parametrize("status", [200, 302])
def test_an_endless_response_is_cut_off(api: APIClient, endpoint: Receiver, status: int) -> None:
    """A25: redirects are a separate case, because the library would read and decompress their whole body."""
    hook = subscribe(api, endpoint.url)

    def flood(to: Any) -> None:
        to.send_response(status)
        to.send_header("Location", endpoint.url)
        to.end_headers()
        try:
            while True:
                to.wfile.write(bytes(65536))
        finally:
            ended.set()

    def test() -> None:
        ended.clear()
        Delivery.objects.all().delete()
        api.post(f"/exports/webhooks/{hook['id']}/test")
        work()
        assert ended.wait(5)
        assert sent_to(api, hook)[0]["log"][0]["statusCode"] == status

    ended = threading.Event()
    endpoint.then = flood
    expect_within(5, test)


@pytest.mark.slow
def test_a_trickling_body_does_not_change_the_status(
    api: APIClient, endpoint: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(request, "ATTEMPT_SECONDS", 3)  # enough for the headers, even on a busy machine
    hook = subscribe(api, endpoint.url)
    over = threading.Event()
    endpoint.then = trickle(over, head=b"HTTP/1.1 200 OK\r\nContent-Length: 9999\r\n\r\n")
    api.post(f"/exports/webhooks/{hook['id']}/test")
    work()
    over.set()

    assert sent_to(api, hook)[0]["status"] == "delivered"


# ---- Signatures -----------------------------------------------------------------------------------------------------


def test_both_secrets_sign_for_a_day_after_rotation(api: APIClient, endpoint: Receiver) -> None:
    """A25."""
    hook = subscribe(api, endpoint.url)
    response = api.post(f"/exports/webhooks/{hook['id']}/rotate-secret")
    assert response.status_code == 200
    assert response["Cache-Control"] == "no-store, no-transform"
    new, old = response.json()["secret"], hook["secret"]
    assert new != old
    api.post(f"/exports/webhooks/{hook['id']}/test")
    work()
    for secret in (new, old):
        verify(endpoint.received[0], secret)

    Webhook.objects.update(old_secret_until=Now() - timedelta(seconds=1))
    api.post(f"/exports/webhooks/{hook['id']}/test")
    work()
    verify(endpoint.received[1], new)
    with pytest.raises(WebhookVerificationError):
        verify(endpoint.received[1], old)


def test_the_secret_is_shown_only_when_created(api: APIClient, endpoint: Receiver) -> None:
    hook = subscribe(api, endpoint.url)
    assert re.fullmatch(r"whsec_[A-Za-z0-9+/]{43}=", hook["secret"])
    path = f"/exports/webhooks/{hook['id']}"
    api.post(f"{path}/test")
    answers = [api.get("/exports/webhooks"), api.get(path), api.patch(path, {"events": ALL[:1]}),
               api.get(f"{path}/deliveries")]  # fmt: skip

    for response in answers:
        assert response.status_code == 200
        assert "whsec_" not in response.content.decode()


# ---- Disabling ------------------------------------------------------------------------------------------------------


def test_410_disables_the_webhook_immediately(
    dataset: Dataset, alice: User, api: APIClient, endpoint: Receiver
) -> None:
    """A25."""
    hook = subscribe(api, endpoint.url)
    endpoint.then = answer(410)
    for _ in range(2):
        actions.cancel(make_job(dataset, alice, 1))
    work()

    shown = api.get(f"/exports/webhooks/{hook['id']}").json()
    assert (shown["enabled"], shown["disabledReason"]) == (False, "The endpoint returned 410 Gone.")
    assert len(endpoint.received) == 1
    waits, ended = sorted(sent_to(api, hook), key=lambda each: -len(each["status"]))
    assert (ended["status"], ended["nextAttemptAt"]) == ("failed", None)
    assert (waits["status"], waits["nextAttemptAt"]) == ("pending", None)


def test_410_of_a_former_url_does_not_disable_the_webhook(
    dataset: Dataset, alice: User, api: APIClient, endpoint: Receiver
) -> None:
    """A25: the URL is changed while a request to the former one is in progress."""
    hook = subscribe(api, endpoint.url)
    add_deliveries(dataset, alice)
    delivery = sender.claim()
    assert delivery
    assert api.patch(f"/exports/webhooks/{hook['id']}", {"url": f"{endpoint.url}new"}).status_code == 200
    endpoint.then = answer(410)
    sender.attempt(delivery)

    shown = api.get(f"/exports/webhooks/{hook['id']}").json()
    assert (shown["enabled"], shown["disabledReason"]) == (True, None)
    [waits] = sent_to(api, hook)
    assert waits["status"] != "failed"


def test_a_webhook_is_disabled_after_three_days_and_ten_attempts_without_success(
    dataset: Dataset, alice: User, api: APIClient, endpoint: Receiver
) -> None:
    """A25."""
    hook = subscribe(api, endpoint.url)
    endpoint.then = answer(500)
    actions.cancel(make_job(dataset, alice, 1))
    for failures, days, enabled in ((8, 30, True), (100, 2.99, True), (9, 3.01, False)):
        Webhook.objects.update(failures=failures, failing_since=Now() - timedelta(days=days))
        make_due()
        work()

        shown = api.get(f"/exports/webhooks/{hook['id']}").json()
        assert shown["enabled"] is enabled
        assert (shown["disabledReason"] is None) is enabled


def test_waiting_deliveries_are_sent_when_a_webhook_is_enabled_again(
    dataset: Dataset, alice: User, api: APIClient, endpoint: Receiver
) -> None:
    """A25."""
    hook = subscribe(api, endpoint.url)
    endpoint.replies = [answer(500)]
    actions.cancel(make_job(dataset, alice, 1))
    work()
    Webhook.objects.update(enabled=False, disabled_reason="x", failures=10, failing_since=Now() - timedelta(days=4))
    make_due()
    work()
    periodic.reap()
    assert len(endpoint.received) == 1
    lose_messages()

    shown = api.patch(f"/exports/webhooks/{hook['id']}", {"enabled": True}).json()
    assert (shown["enabled"], shown["disabledReason"]) == (True, None)
    assert queued("webhooks") == 1
    row = Webhook.objects.get()
    assert (row.failures, row.failing_since) == (0, None)
    work()
    assert len(set(endpoint.ids)) == 1
    assert sent_to(api, hook)[0]["status"] == "delivered"


def test_a_success_resets_the_failure_count_and_test_deliveries_do_not_count(
    dataset: Dataset, alice: User, api: APIClient, endpoint: Receiver
) -> None:
    hook = subscribe(api, endpoint.url)
    endpoint.replies = [answer(500), answer(500), OK]
    api.post(f"/exports/webhooks/{hook['id']}/test")
    work()
    assert Webhook.objects.get().failures == 0
    actions.cancel(make_job(dataset, alice, 1))
    work()
    assert Webhook.objects.get().failures == 1
    make_due()
    work()
    assert (Webhook.objects.get().failures, Webhook.objects.get().failing_since) == (0, None)


# ---- Redelivery and test --------------------------------------------------------------------------------------------


def test_a_test_delivery_is_sent_to_a_disabled_webhook(api: APIClient, endpoint: Receiver) -> None:
    """A25."""
    hook = subscribe(api, endpoint.url)
    api.patch(f"/exports/webhooks/{hook['id']}", {"enabled": False})
    response = api.post(f"/exports/webhooks/{hook['id']}/test")
    assert response.status_code == 202
    assert (response.json()["type"], response.json()["status"]) == ("webhook.test", "pending")
    work()

    (got,) = endpoint.received
    body = verify(got, hook["secret"])
    assert body.keys() == {"type", "timestamp", "data"}
    assert (body["type"], body["data"]) == ("webhook.test", {"webhookId": hook["id"]})
    assert got.id == response.json()["id"]


@pytest.mark.slow
def test_a_test_delivery_has_one_attempt(api: APIClient, endpoint: Receiver) -> None:
    """A25: also if its worker is lost, or if an earlier release has created it with more attempts."""
    hook = subscribe(api, endpoint.url)
    path = f"/exports/webhooks/{hook['id']}/test"
    endpoint.then = answer(500)
    api.post(path)
    work()
    (failed,) = sent_to(api, hook)
    assert (failed["status"], failed["attempts"], failed["nextAttemptAt"]) == ("failed", 1, None)
    assert failed["finishedAt"]

    api.post(path)
    assert sender.claim()
    Delivery.objects.filter(status="pending").update(lease_until=Now() - timedelta(seconds=1))
    assert sender.claim() is None
    periodic.reap()
    lost = sent_to(api, hook)[0]
    assert (lost["status"], [line["error"] for line in lost["log"]]) == ("failed", ["worker lost"])

    api.post(path)
    Delivery.objects.filter(status="pending").update(attempts=3)
    periodic.reap()
    assert {each["status"] for each in sent_to(api, hook)} == {"failed"}
    assert len(endpoint.received) == 1


def test_a_webhook_has_at_most_one_pending_test_delivery(
    dataset: Dataset, alice: User, api: APIClient, endpoint: Receiver
) -> None:
    """A25."""
    hook, other = (subscribe(api, endpoint.url)["id"] for _ in range(2))
    actions.cancel(make_job(dataset, alice, 1))
    webhook_events.fan_out()  # other deliveries are not test deliveries
    posted = in_threads(4, lambda _: client_of(alice).post(f"/exports/webhooks/{hook}/test"))

    assert sorted(response.status_code for response in posted) == [202, 409, 409, 409]
    refused = next(response.json() for response in posted if response.status_code == 409)
    assert refused["code"] == "delivery_pending"
    assert refused["detail"].startswith("A test of this webhook is still pending")
    assert Delivery.objects.filter(type="webhook.test").count() == 1
    assert api.post(f"/exports/webhooks/{other}/test").status_code == 202
    work()
    assert api.post(f"/exports/webhooks/{hook}/test").status_code == 202


def test_a_refused_test_delivery_wakes_a_worker(api: APIClient, endpoint: Receiver) -> None:
    """The refused request has locked the row for a moment, so a worker may have skipped the first test."""
    hook = subscribe(api, endpoint.url)
    api.post(f"/exports/webhooks/{hook['id']}/test")
    lose_messages()
    assert api.post(f"/exports/webhooks/{hook['id']}/test").status_code == 409
    assert queued("webhooks") == 1


def test_an_ended_delivery_can_be_sent_again_with_the_same_id(
    dataset: Dataset, alice: User, api: APIClient, endpoint: Receiver
) -> None:
    """A25."""
    hook = subscribe(api, endpoint.url)
    add_deliveries(dataset, alice)
    path = f"/exports/webhooks/{hook['id']}/deliveries/{Delivery.objects.get().pk}/redeliver"
    assert (api.post(path).status_code, api.post(path).json()["code"]) == (409, "delivery_pending")
    claimed = sender.claim()
    assert api.post(path).status_code == 409
    assert claimed
    sender.attempt(claimed)

    response = api.post(path)
    assert (response.status_code, response.json()["status"], response.json()["attempts"]) == (202, "pending", 0)
    assert api.post(path).status_code == 409
    work()
    first, second = endpoint.received
    assert (first.id, first.body) == (second.id, second.body)
    assert len(sent_to(api, hook)[0]["log"]) == 2

    api.patch(f"/exports/webhooks/{hook['id']}", {"enabled": False})
    assert (api.post(path).status_code, api.post(path).json()["code"]) == (409, "webhook_disabled")


def test_a_delivery_in_backoff_can_be_sent_now(
    dataset: Dataset, alice: User, api: APIClient, endpoint: Receiver
) -> None:
    """A25."""
    hook = subscribe(api, endpoint.url)
    add_deliveries(dataset, alice)
    row = Delivery.objects.get()
    Delivery.objects.update(attempts=3, available_at=timezone.now() + timedelta(hours=1))
    path = f"/exports/webhooks/{hook['id']}/deliveries/{row.pk}/redeliver"

    response = api.post(path)

    assert (response.status_code, response.json()["status"], response.json()["attempts"]) == (202, "pending", 3)
    assert (api.post(path).status_code, api.post(path).json()["code"]) == (409, "delivery_pending")
    work()
    assert endpoint.ids == [str(row.pk)]
    assert Delivery.objects.get().attempts == 4


def test_one_of_several_parallel_redeliveries_is_accepted(api: APIClient, endpoint: Receiver) -> None:
    hook = subscribe(api, endpoint.url)
    api.post(f"/exports/webhooks/{hook['id']}/test")
    work()
    row = Delivery.objects.select_related("webhook").get()

    def again(_n: int) -> bool:
        try:
            subscriptions.redeliver(row)
        except subscriptions.DeliveryPending:
            return False
        return True

    assert in_threads(5, again).count(True) == 1


# ---- Refused addresses ----------------------------------------------------------------------------------------------

ADDRESSES = [
    "127.0.0.1", "10.1.2.3", "172.16.0.1", "192.168.1.1", "169.254.169.254", "100.64.0.1", "100.100.100.200", "0.0.0.0",  # noqa: S104
    "168.63.129.16", "192.0.0.192", "198.18.0.1", "224.0.0.1", "240.0.0.1", "255.255.255.255",
    "[::1]", "[::]", "[::ffff:127.0.0.1]", "[::7f00:1]", "[fe80::1]", "[fec0::1]", "[fc00::1]", "[fd00:ec2::254]",
    "[64:ff9b::7f00:1]", "[64:ff9b:1::1]", "[2002:7f00:1::]", "[2001::1]", "[ff02::1]", "[100::1]", "[2001:db8::1]",
    "2130706433", "0x7f.1", "localhost",
]  # fmt: skip


@pytest.mark.parametrize("host", ADDRESSES)
def test_webhooks_cannot_use_private_addresses(api: APIClient, endpoint: Receiver, settings: Any, host: str) -> None:
    """A25: on creation, on a change, and at a delivery to an existing webhook."""
    hook = subscribe(api, endpoint.url)
    allow(settings)
    url = f"https://{host}:8443/hook"
    response = api.post("/exports/webhooks", {"url": url, "events": ALL})
    assert response.status_code == 400
    assert pointers(response) == {("/url", "private_address")}
    assert api.patch(f"/exports/webhooks/{hook['id']}", {"url": url}).status_code == 400
    assert Webhook.objects.get().url == endpoint.url

    Webhook.objects.update(url=url)
    answer = request.post(url, body=b"{}", headers={})
    assert answer.status is None
    assert answer.error.startswith(("blocked:", "connection failed"))


def test_a_delivery_to_an_address_that_became_private_is_refused(
    api: APIClient, endpoint: Receiver, settings: Any
) -> None:
    """A25."""
    hook = subscribe(api, endpoint.url)
    api.post(f"/exports/webhooks/{hook['id']}/test")
    allow(settings)
    work()

    assert endpoint.received == []
    (line,) = sent_to(api, hook)[0]["log"]
    assert line["error"] == "blocked: webhooks may not reach this address"


class AttackerDns:
    """DNS in which an attacker controls one name. Each lookup returns the next address. The last one is repeated."""

    def __init__(self, name: str, *answers: str) -> None:
        self.name, self.answers, self.real = name, list(answers), socket.getaddrinfo
        self.asked: list[str] = []

    def __call__(self, host: Any, port: Any, *args: Any, **options: Any) -> Any:
        if host == PUBLIC:
            self.asked.append(host)
            raise OSError("no tests on the Internet")
        if host != self.name:
            return self.real(host, port, *args, **options)
        self.asked.append(host)
        ours = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        return self.real(ours, port, *args, **options)


def test_dns_rebinding_never_reaches_private_addresses(
    api: APIClient, settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A25: DNS rebinding, after the check and within an attempt."""
    with receiver() as inside:
        port = inside.url.split(":")[2].split("/")[0]
        names = AttackerDns("rebind.example", PUBLIC, "127.0.0.1")
        monkeypatch.setattr(socket, "getaddrinfo", names)
        hook = subscribe(api, f"https://rebind.example:{port}/hook")
        api.post(f"/exports/webhooks/{hook['id']}/test")
        work()
        assert sent_to(api, hook)[0]["log"][0]["error"].startswith("blocked:")

        names.asked, names.answers = [], [PUBLIC, "127.0.0.1"]
        api.post(f"/exports/webhooks/{hook['id']}/test")
        work()
        assert inside.received == []
    # The name is resolved once, and the connection goes to that address, where nothing listens.
    assert names.asked == ["rebind.example", PUBLIC]
    assert sent_to(api, hook)[0]["log"][0]["error"] == "connection failed, or the response was not HTTP"


def test_every_address_of_a_name_must_be_public(api: APIClient, monkeypatch: pytest.MonkeyPatch) -> None:
    real = socket.getaddrinfo

    def both(host: Any, port: Any, *args: Any, **options: Any) -> Any:
        if host != "both.example":
            return real(host, port, *args, **options)
        return [*real(PUBLIC, port, *args, **options), *real("10.0.0.1", port, *args, **options)]

    monkeypatch.setattr(socket, "getaddrinfo", both)
    response = api.post("/exports/webhooks", {"url": "https://both.example/", "events": ALL})
    assert pointers(response) == {("/url", "private_address")}


def test_slow_dns_does_not_delay_requests(api: APIClient, monkeypatch: pytest.MonkeyPatch) -> None:
    real, over = socket.getaddrinfo, threading.Event()

    def slow(host: Any, *args: Any, **options: Any) -> Any:
        if host == "slow.example":
            over.wait(20)
        # A request that waits for this address is refused.
        return real(host if host != "slow.example" else "10.0.0.1", *args, **options)

    monkeypatch.setattr(socket, "getaddrinfo", slow)
    monkeypatch.setattr(url_guard, "RESOLVE_SECONDS", 0.2)
    response = api.post("/exports/webhooks", {"url": "https://slow.example/", "events": ALL})
    over.set()
    assert response.status_code == 201


class FailingDns:
    """DNS that fails for one name until `answer` is set."""

    def __init__(self, name: str) -> None:
        self.name, self.answer, self.real = name, "", socket.getaddrinfo

    def __call__(self, host: Any, *args: Any, **options: Any) -> Any:
        if host == self.name and not self.answer:
            raise socket.gaierror(socket.EAI_AGAIN, "Temporary failure in name resolution")
        return self.real(self.answer if host == self.name else host, *args, **options)


def test_a_dns_outage_fails_an_attempt_and_keeps_the_webhook(
    dataset: Dataset, alice: User, api: APIClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A25: the webhook is created, changed, and retried as usual, until the name resolves to a private address."""
    dns = FailingDns("away.example")
    monkeypatch.setattr(socket, "getaddrinfo", dns)
    hook = subscribe(api, "https://away.example/hook")
    url = "https://away.example:8443/hook"
    assert api.patch(f"/exports/webhooks/{hook['id']}", {"url": url}).json()["url"] == url

    actions.cancel(make_job(dataset, alice, 1))
    work()
    (delivery,) = sent_to(api, hook)
    assert (delivery["status"], delivery["attempts"]) == ("pending", 1)
    assert delivery["nextAttemptAt"]
    assert delivery["log"][0]["error"] == "connection failed, or the response was not HTTP"

    dns.answer = "127.0.0.1"
    make_due()
    work()
    assert sent_to(api, hook)[0]["log"][1]["error"].startswith("blocked:")
    assert pointers(api.patch(f"/exports/webhooks/{hook['id']}", {"url": url})) == {("/url", "private_address")}


@pytest.mark.slow
def test_a_late_dns_response_causes_no_request(endpoint: Receiver, monkeypatch: pytest.MonkeyPatch) -> None:
    real, over, answered = socket.getaddrinfo, threading.Event(), threading.Event()

    def slow(host: Any, *args: Any, **options: Any) -> Any:
        if host != "slow.example":
            return real(host, *args, **options)
        over.wait(20)
        answered.set()
        return real("127.0.0.1", *args, **options)

    monkeypatch.setattr(socket, "getaddrinfo", slow)
    monkeypatch.setattr(request, "ATTEMPT_SECONDS", 2)  # the lookup starts within this time
    before = set(threading.enumerate())
    answer = request.post(endpoint.url.replace("127.0.0.1", "slow.example"), body=b"{}", headers={})
    assert answer.error == "no response in time"
    late = [thread for thread in set(threading.enumerate()) - before if thread.name == "dns-lookup"]
    over.set()
    assert answered.wait(30)
    for thread in late:
        thread.join(30)
    assert endpoint.received == []


def test_plain_http_is_allowed_only_for_allowed_networks(
    api: APIClient, settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    allow(settings, "127.0.0.0/8")
    monkeypatch.setattr(socket, "getaddrinfo", AttackerDns("public.example", "8.8.8.8"))
    response = api.post("/exports/webhooks", {"url": "http://public.example/", "events": ALL})
    assert pointers(response) == {("/url", "not_https")}
    answer = request.post("http://public.example/", body=b"{}", headers={})
    assert answer.error.startswith("blocked:")


# ---- Input ----------------------------------------------------------------------------------------------------------

GOOD = "http://127.0.0.1:9/hook"
BAD = [
    ({}, {("/url", "required"), ("/events", "required")}),
    ({"url": GOOD}, {("/events", "required")}),
    ({"url": GOOD, "events": []}, {("/events", "empty")}),
    ({"url": GOOD, "events": "export.failed"}, {("/events", "invalid")}),
    ({"url": GOOD, "events": None}, {("/events", "null")}),
    ({"url": GOOD, "events": ["export.failed", "export.started"]}, {("/events", "invalid")}),
    ({"url": GOOD, "events": [1]}, {("/events", "invalid")}),
    ({"url": GOOD, "events": [["export.failed"]]}, {("/events", "invalid")}),
    ({"url": GOOD, "events": ["export.failed", "export.failed"]}, {("/events", "duplicate")}),
    ({"url": GOOD, "events": ["webhook.test"]}, {("/events", "invalid")}),
    ({"url": GOOD, "events": ALL, "secret": "whsec_eHh4"}, {("/secret", "unknown_field")}),
    ({"url": 7, "events": ALL}, {("/url", "invalid")}),
    ({"url": None, "events": ALL}, {("/url", "null")}),
    ({"url": "", "events": ALL}, {("/url", "invalid")}),
    ({"url": "example.com/hook", "events": ALL}, {("/url", "invalid")}),
    ({"url": "ftp://127.0.0.1/", "events": ALL}, {("/url", "invalid")}),
    ({"url": "file:///etc/passwd", "events": ALL}, {("/url", "invalid")}),
    ({"url": "https://", "events": ALL}, {("/url", "invalid")}),
    ({"url": "https:///hook", "events": ALL}, {("/url", "invalid")}),
    ({"url": "https://127.0.0.1:0/", "events": ALL}, {("/url", "invalid")}),
    ({"url": "https://127.0.0.1:65536/", "events": ALL}, {("/url", "invalid")}),
    ({"url": "https://127.0.0.1:x/", "events": ALL}, {("/url", "invalid")}),
    ({"url": "https://[::1/", "events": ALL}, {("/url", "invalid")}),
    ({"url": "https://a b/", "events": ALL}, {("/url", "invalid")}),
    ({"url": "https://127.0.0.1/\r\nX: y", "events": ALL}, {("/url", "invalid")}),
    ({"url": "https://*.example.com/", "events": ALL}, {("/url", "invalid")}),
    ({"url": f"https://{'a' * 64}.example/", "events": ALL}, {("/url", "invalid")}),
    ({"url": "http://nothing.invalid/", "events": ALL}, {("/url", "not_https")}),
    ({"url": "http://u:p@127.0.0.1/", "events": ALL}, {("/url", "invalid")}),
    ({"url": "http://u@127.0.0.1/", "events": ALL}, {("/url", "invalid")}),
    ({"url": "http://@127.0.0.1/", "events": ALL}, {("/url", "invalid")}),
    ({"url": "http://127.0.0.1/#x", "events": ALL}, {("/url", "invalid")}),
    ({"url": "http://127.0.0.1/#", "events": ALL}, {("/url", "invalid")}),
    ({"url": f"http://127.0.0.1/{'x' * 2000}", "events": ALL}, {("/url", "invalid")}),
]  # fmt: skip


@pytest.mark.parametrize(("body", "wrong"), BAD)
def test_invalid_input_is_reported_and_writes_nothing(
    api: APIClient, settings: Any, body: dict[str, Any], wrong: set[tuple[str, str]]
) -> None:
    """A25."""
    allow(settings, "127.0.0.0/8")
    response = api.post("/exports/webhooks", body)
    assert (response.status_code, pointers(response)) == (400, wrong)
    assert not Webhook.objects.exists()


@pytest.mark.parametrize(
    ("body", "wrong"),
    [
        *[(body, wrong) for body, wrong in BAD if not any(code == "required" for _, code in wrong)],
        ({"enabled": "yes"}, {("/enabled", "invalid")}),
        ({"enabled": None}, {("/enabled", "null")}),
        ({"id": UNKNOWN_ID}, {("/id", "unknown_field")}),
    ],
)
def test_an_invalid_change_is_reported_and_changes_nothing(
    api: APIClient, settings: Any, body: dict[str, Any], wrong: set[tuple[str, str]]
) -> None:
    allow(settings, "127.0.0.0/8")
    hook = subscribe(api, GOOD)
    before = Webhook.objects.values().get()
    response = api.patch(f"/exports/webhooks/{hook['id']}", body)
    assert (response.status_code, pointers(response)) == (400, wrong)
    assert Webhook.objects.values().get() == before


def test_a_change_affects_only_the_given_fields(api: APIClient, endpoint: Receiver) -> None:
    hook = subscribe(api, endpoint.url)
    del hook["secret"]
    path = f"/exports/webhooks/{hook['id']}"
    assert api.get(path).json() == hook
    assert api.patch(path, {}).json() == hook
    hook |= {"url": f"{endpoint.url}/other", "events": ["export.failed"]}
    assert api.patch(path, {"url": hook["url"], "events": hook["events"]}).json() == hook
    hook |= {"enabled": False, "disabledReason": "Disabled by a user."}
    assert api.patch(path, {"enabled": False}).json() == hook
    assert api.get("/exports/webhooks").json() == {"results": [hook], "next": None, "previous": None}


def test_a_deleted_webhook_loses_its_waiting_deliveries(
    dataset: Dataset, alice: User, api: APIClient, endpoint: Receiver
) -> None:
    hook = subscribe(api, endpoint.url)
    endpoint.then = answer(500)
    actions.cancel(make_job(dataset, alice, 1))
    work()
    make_due()
    claimed = sender.claim()
    assert claimed
    assert api.delete(f"/exports/webhooks/{hook['id']}").status_code == 204

    assert (Webhook.objects.count(), Delivery.objects.count(), Attempt.objects.count()) == (0, 0, 0)
    sender.attempt(claimed)  # it was in progress
    assert Attempt.objects.count() == 0
    assert api.get(f"/exports/webhooks/{hook['id']}").status_code == 404


def test_a_webhook_deleted_during_dns_resolution_is_404(
    api: APIClient, endpoint: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = socket.getaddrinfo
    hook = subscribe(api, endpoint.url)

    def delete_and_resolve(host: Any, *args: Any, **options: Any) -> Any:
        if host != "slow.example":
            return real(host, *args, **options)
        Webhook.objects.all().delete()
        connection.close()  # of this thread
        return real(PUBLIC, *args, **options)

    monkeypatch.setattr(socket, "getaddrinfo", delete_and_resolve)
    response = api.patch(f"/exports/webhooks/{hook['id']}", {"url": "https://slow.example/"})
    assert (response.status_code, response.json()["detail"]) == (404, "Webhook not found.")


def test_actions_on_a_concurrently_deleted_webhook_return_404(api: APIClient, endpoint: Receiver) -> None:
    hook = subscribe(api, endpoint.url)
    api.post(f"/exports/webhooks/{hook['id']}/test")
    work()
    webhook, delivery = Webhook.objects.get(), Delivery.objects.select_related("webhook").get()
    api.delete(f"/exports/webhooks/{hook['id']}")

    for changes in ({"enabled": True}, {"enabled": False}, {"events": ALL[:1]}, {}):
        with pytest.raises(subscriptions.NoSuchWebhook):
            subscriptions.change(webhook, **changes)
    for write in (subscriptions.rotate_secret, subscriptions.send_test):
        with pytest.raises(subscriptions.NoSuchWebhook):
            write(webhook)
    with pytest.raises(subscriptions.NoSuchDelivery):
        subscriptions.redeliver(delivery)
    assert not Delivery.objects.exists()


def test_webhooks_can_be_deleted_during_a_delivery(alice: User, endpoint: Receiver) -> None:
    owners = [client_of(user) for user in (alice, *(User.objects.create_user(f"owner{n}") for n in range(5)))]
    hooks = [subscribe(owner, endpoint.url)["id"] for owner in owners]
    endpoint.then = answer(500)
    for hook in hooks:
        subscriptions.send_test(Webhook.objects.get(pk=hook))
    claims = [sender.claim() for _ in hooks]

    def both(n: int) -> Any:
        claimed = claims[n // 2]
        assert claimed
        if n % 2:
            return sender.attempt(claimed)
        return subscriptions.delete(Webhook.objects.get(pk=claimed.webhook_id))

    in_threads(12, both)
    assert (Webhook.objects.count(), Delivery.objects.count(), Attempt.objects.count()) == (0, 0, 0)


@pytest.mark.slow
def test_parallel_requests_create_at_most_100_webhooks_per_user(
    alice: User, api: APIClient, endpoint: Receiver
) -> None:
    for _ in range(98):
        subscriptions.create(user_id=alice.pk, url=endpoint.url, events=ALL)
    codes = in_threads(5, lambda _: client_of(alice).post("/exports/webhooks", {"url": endpoint.url, "events": ALL}))

    assert sorted(response.status_code for response in codes) == [201, 201, 409, 409, 409]
    assert Webhook.objects.count() == 100


def test_webhooks_of_other_users_return_404_even_for_staff(
    alice: User, bob: User, staff: User, api: APIClient, endpoint: Receiver
) -> None:
    """A7, A25."""
    hook = subscribe(api, endpoint.url)
    delivery = api.post(f"/exports/webhooks/{hook['id']}/test").json()["id"]
    before = (Webhook.objects.values().get(), Delivery.objects.values().get())
    for stranger in (client_of(staff), client_of(bob)):
        for id_ in (hook["id"], UNKNOWN_ID):
            path = f"/exports/webhooks/{id_}"
            answers = [stranger.get(path), stranger.patch(path, {"enabled": False}), stranger.delete(path),
                       stranger.post(f"{path}/test"), stranger.post(f"{path}/rotate-secret"),
                       stranger.get(f"{path}/deliveries"),
                       stranger.post(f"{path}/deliveries/{delivery}/redeliver")]  # fmt: skip
            assert {response.status_code for response in answers} == {404}
        assert stranger.get("/exports/webhooks").json()["results"] == []
    own = subscribe(client_of(staff), endpoint.url)
    path = f"/exports/webhooks/{own['id']}/deliveries/{delivery}/redeliver"
    assert client_of(staff).post(path).status_code == 404
    assert (Webhook.objects.values().get(user=alice), Delivery.objects.values().get()) == before


def test_deliveries_are_paginated_newest_first(api: APIClient, endpoint: Receiver) -> None:
    hook = subscribe(api, endpoint.url)
    made = []
    for _ in range(5):
        made.append(str(subscriptions.send_test(Webhook.objects.get()).pk))
        work()
    found, url = [], f"/exports/webhooks/{hook['id']}/deliveries?limit=2"
    while url:
        page = api.get(url).json()
        found += [each["id"] for each in page["results"]]
        url = page["next"]

    assert found == made[::-1]
    for path, rows in (("/exports/webhooks", [hook["id"]]), (f"/exports/webhooks/{hook['id']}/deliveries", found)):
        page = api.get(f"{path}?limit=200").json()
        assert ([each["id"] for each in page["results"]], page["next"]) == (rows, None)


def test_the_newest_20_attempts_take_two_queries(api: APIClient, endpoint: Receiver) -> None:
    """A user can send the same delivery any number of times."""
    hook = subscribe(api, endpoint.url)

    def queries() -> int:
        with CaptureQueriesContext(connection) as made:
            shown = sent_to(api, hook)
        for each in shown:
            row = Delivery.objects.get(pk=each["id"])
            assert [line["durationMs"] for line in each["log"]] == list(range(5, 25))
            log = row.log.order_by("at").values_list("duration_ms", flat=True)
            assert list(log) == list(range(25))
        return len(made)

    def sent() -> None:
        row = Delivery.objects.create(webhook_id=hook["id"], type="webhook.test", body="{}", status="failed")
        began = timezone.now()
        for n in range(25):
            Attempt.objects.create(delivery=row, at=began + timedelta(seconds=n), status_code=500, duration_ms=n)

    sent()
    few = queries()
    for _ in range(3):
        sent()
    assert queries() == few


# ---- Stored and logged data ----------------------------------------------------------------------------------


def test_deliveries_are_kept_for_30_days_even_without_their_job(
    dataset: Dataset, alice: User, api: APIClient, endpoint: Receiver
) -> None:
    hook = subscribe(api, endpoint.url)
    _, young = jobs = [make_job(dataset, alice, 1) for _ in range(2)]
    for job in jobs:
        actions.cancel(job)
    work()
    old = Delivery.objects.earliest("created_at").pk
    Delivery.objects.filter(pk=old).update(created_at=Now() - timedelta(days=30, seconds=1))
    Job.objects.update(finished_at=Now() - timedelta(days=8))
    periodic.purge()

    assert not Job.objects.exists()
    (kept,) = sent_to(api, hook)
    assert kept["id"] != str(old)
    assert (kept["jobId"], kept["status"], len(kept["log"])) == (None, "delivered", 1)
    assert kept["subject"] == f"export:{young.pk}"


@pytest.mark.usefixtures("_restore_logging")
def test_logs_contain_ids_and_status_and_never_the_url(api: APIClient, endpoint: Receiver, settings: Any) -> None:
    """A28."""
    stream = configure(level="INFO", style="json")
    hook = subscribe(api, f"{endpoint.url}/SECRETPATH?key=SECRETKEY")
    endpoint.then = answer(500, b"SECRETBODY", X_Bad="SECRETHEADER")
    test = api.post(f"/exports/webhooks/{hook['id']}/test").json()["id"]
    work()
    endpoint.then = OK
    api.post(f"/exports/webhooks/{hook['id']}/deliveries/{test}/redeliver")
    work()
    allow(settings)
    api.post(f"/exports/webhooks/{hook['id']}/test")
    work()

    output = stream.getvalue()
    lines = [line for line in map(json.loads, output.splitlines()) if "attempt" in line]
    logged = [(line["action"], line["status_code"]) for line in lines]
    assert logged == [("webhook_failed", 500), ("webhook_delivered", 204), ("webhook_failed", None)]
    assert {line["webhook_id"] for line in lines} == {hook["id"]}
    for secret in ("SECRET", "127.0.0.1", hook["secret"]):
        assert secret not in output
