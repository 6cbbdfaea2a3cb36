"""Webhook endpoints that are slow, broken, unavailable, or at private addresses. Row 23 of docs/reliability.md.

Only 127.0.0.1 is allowed here. 127.0.0.2 is the private address that must not be reached.
"""

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from http.server import BaseHTTPRequestHandler
from typing import Any

import pytest
from django.db.models.functions import Now

from config.platform.webhooks import request, sender
from exports.models import Attempt, Delivery, Webhook
from tests.chaos.names import FOLDER, Names
from tests.chaos.site import Site
from tests.integration.receiver import OK, Reply, answer, receiver, trickle
from tests.waiting import wait_until

PRIVATE, METADATA, PUBLIC = "127.0.0.2", "169.254.169.254", "93.184.215.14"
# Private addresses, also in other notations, and together with an allowed one.
FORBIDDEN = (
    PRIVATE, f"127.0.0.1 {PRIVATE}", f"{PRIVATE} 127.0.0.1", f"::ffff:{PRIVATE}", "0.0.0.0",  # noqa: S104 - connected to
    METADATA, "::1", "fd00::1", "100.64.0.1", "64:ff9b::7f00:2",
)  # fmt: skip
ALLOWED: dict[str, Any] = {"EXPORT_WEBHOOK_ALLOW_CIDRS": "127.0.0.1/32"}
BLOCKED = "blocked: webhooks may not reach this address"


@pytest.fixture
def stopped() -> Iterator[threading.Event]:
    """An event that stops slow endpoints after the test."""
    event = threading.Event()
    yield event
    event.set()


def never_responding(stopped: threading.Event) -> Reply:
    def reply(_to: BaseHTTPRequestHandler) -> None:
        stopped.wait(60)

    return reply


class PrivateListener:
    """A listener on a private address that counts its connections."""

    def __init__(self, port: int = 0) -> None:
        self.listener = socket.create_server((PRIVATE, port))
        self.port: int = self.listener.getsockname()[1]
        self.visits = 0
        self.thread = threading.Thread(target=self.run, daemon=True)
        self.thread.start()

    def run(self) -> None:
        while True:
            try:
                line, _ = self.listener.accept()
            except OSError:
                return
            self.visits += 1
            line.close()

    def close(self) -> None:
        self.listener.shutdown(socket.SHUT_RDWR)
        self.listener.close()
        self.thread.join(10)


@contextmanager
def private_listener(port: int = 0) -> Iterator[PrivateListener]:
    listener = PrivateListener(port)
    try:
        yield listener
    finally:
        listener.close()


def delivery_to(webhook: Webhook) -> Delivery:
    return Delivery.objects.get(webhook=webhook)


def attempts_of(webhook: Webhook) -> list[tuple[int | None, str]]:
    """Return the status code, or None, and the error, or "", of each attempt so far."""
    attempts = Attempt.objects.filter(delivery__webhook=webhook).order_by("pk")
    return list(attempts.values_list("status_code", "error"))


def make_deliveries_due(*webhooks: Webhook) -> int:
    """Make the next attempts due. Return the number of unfinished deliveries."""
    pending = Delivery.objects.filter(webhook__in=webhooks, status="pending")
    pending.filter(token=None).update(available_at=Now())
    return pending.count()


# ---- Faulty endpoints -----------------------------------------------------------------------------------------------
@pytest.mark.timeout(120)
def test_no_slow_or_broken_endpoint_delays_the_others(site: Site, stopped: threading.Event) -> None:
    """23: one never responds, one responds slowly, one fails, one is gone, and two redirect.

    The healthy endpoint gets its delivery immediately.
    """
    with ExitStack() as stack:
        silent, trickling, failing, redirect_to_private, redirect_loop, healthy = (
            stack.enter_context(receiver()) for _ in range(6)
        )
        gone, inside = stack.enter_context(receiver(answer(410))), stack.enter_context(private_listener())
        silent.replies = [never_responding(stopped)]
        trickling.replies = [trickle(stopped, head=b"HTTP/1.1 200 OK\r\nX-Long: ")]
        failing.replies = [answer(500)]
        redirect_to_private.replies = [answer(302, Location=f"http://{PRIVATE}:{inside.port}/")]
        redirect_loop.replies = [answer(307, Location=redirect_loop.url)]
        site.receivers += [silent, trickling, failing, gone, redirect_to_private, redirect_loop, healthy]
        site.start_web(**ALLOWED)
        hooks = {each.url: site.subscribe(each.url) for each in site.receivers}
        site.start_worker(children=3, **ALLOWED)
        site.start_beat(**ALLOWED)
        job = site.submit("JFK")
        site.settle(job)
        ended = time.monotonic()
        wait_until(lambda: healthy.received)
        site.record_duration("23: delivered beside two endpoints that never respond", time.monotonic() - ended)
        wait_until(lambda: all(attempts_of(hook) for hook in hooks.values()), limit=60)

        for slow in (silent, trickling):
            assert attempts_of(hooks[slow.url]) == [(None, "no response in time")]
            attempt = Attempt.objects.get(delivery__webhook=hooks[slow.url])
            assert attempt.duration_ms < (request.ATTEMPT_SECONDS + 5) * 1000
        assert attempts_of(hooks[failing.url])[0] == (500, "")
        assert attempts_of(hooks[gone.url]) == [(410, "")]
        assert attempts_of(hooks[redirect_to_private.url])[0] == (302, "")
        assert attempts_of(hooks[redirect_loop.url])[0] == (307, "")
        wait_until(lambda: make_deliveries_due(*hooks.values()) == 0)
        assert inside.visits == 0
        assert {hook.url for hook in Webhook.objects.filter(enabled=False)} == {gone.url}
        assert {delivery.webhook.url for delivery in Delivery.objects.filter(status="failed")} == {gone.url}
        assert [len(each.received) for each in site.receivers] == [2, 2, 2, 1, 2, 2, 1]
        assert all(len(set(each.ids)) == 1 for each in site.receivers)

        again = site.submit("EWR")
        site.settle(again)
        wait_until(lambda: len(healthy.received) == 2 and not Delivery.objects.filter(status="pending").exists())
        assert len(gone.received) == 1


def test_a_delivery_is_retried_on_schedule_until_its_attempts_are_exhausted(site: Site) -> None:
    """23: the test waits for the first delay. It reads the others, of up to a day, from the row and skips them."""
    with receiver(answer(500)) as endpoint:
        site.receivers.append(endpoint)
        site.start_web(**ALLOWED)
        hook = site.subscribe(endpoint.url)
        site.start_worker(**ALLOWED)
        site.start_beat(**ALLOWED)
        site.settle(site.submit("JFK"))
        wait_until(lambda: len(endpoint.received) == 2)
        first, second = (int(each.headers["webhook-timestamp"]) for each in endpoint.received)
        waited = second - first
        site.record_duration("23: between the first attempt and the second", waited)
        assert sender.SCHEDULE[0] <= waited + 1
        assert waited <= sender.SCHEDULE[0] * 1.2 + 4

        for number, planned in enumerate(sender.SCHEDULE[1:], start=2):
            wait_until(lambda number=number: len(attempts_of(hook)) == number)  # type: ignore[misc]
            row = delivery_to(hook)
            wait = (row.available_at - row.log.latest("pk").at).total_seconds()
            assert planned <= wait + 1
            assert wait <= planned * 1.2 + 15, f"after attempt {number}"
            assert row.status == "pending"
            make_deliveries_due(hook)
        wait_until(lambda: delivery_to(hook).status == "failed")

        assert len(endpoint.received) == sender.ATTEMPTS
        assert len(set(endpoint.ids)) == 1
        assert len({each.body for each in endpoint.received}) == 1
        hook.refresh_from_db()
        assert hook.enabled  # its failures span only a short time


# ---- DNS rebinding --------------------------------------------------------------------------------------------------
@pytest.fixture
def names(site: Site) -> Names:
    return Names(site.folder / "names")


def ping(site: Site, hook: Webhook) -> str:
    """Send a test delivery, and return its outcome."""
    before = len(attempts_of(hook))
    assert site.client.post(f"/exports/webhooks/{hook.pk}/test").status_code == 202
    wait_until(lambda: len(attempts_of(hook)) == before + 1)
    status, error = attempts_of(hook)[-1]
    return error or str(status)


def test_dns_rebinding_never_reaches_private_addresses(site: Site, names: Names) -> None:
    """23: after the check, between attempts, and within an attempt, with addresses in several notations."""
    named: dict[str, Any] = {
        **ALLOWED,
        "DJANGO_SETTINGS_MODULE": "tests.chaos.named_settings",
        FOLDER: names.folder,
    }
    name, url_of = "rebind.example", "http://{}:{}/hook".format
    with receiver(OK) as endpoint:
        port = int(endpoint.url.rpartition(":")[2].split("/")[0])
        with private_listener(port) as inside:
            site.start_web(**named)
            names.set_responses(name, "127.0.0.1")
            hook = site.subscribe(url_of(name, port))
            names.set_responses("public.example", PUBLIC)
            public = site.subscribe(url_of("public.example", port).replace("http:", "https:"))
            site.start_worker(**named)
            site.start_beat(**named)
            assert ping(site, hook) == "204"

            for answers in FORBIDDEN:
                names.set_responses(name, answers)
                outcome = ping(site, hook)
                assert outcome == BLOCKED or (answers.startswith("127.0.0.1 ") and outcome == "204"), answers
            # Within an attempt, an address that passed the check is not resolved again.
            names.set_responses(name, "127.0.0.1", PRIVATE)
            lookups = len(names.lookups(name))
            assert ping(site, hook) == "204"
            assert names.lookups(name)[lookups:] == ["127.0.0.1"]
            names.set_responses("public.example", PRIVATE)
            assert ping(site, public) == BLOCKED

            for answers in (PRIVATE, f"127.0.0.1 {PRIVATE}", METADATA):
                names.set_responses("other.example", answers)
                body = {"url": url_of("other.example", port), "events": ["export.succeeded"]}
                refused = site.client.post("/exports/webhooks", json=body)
                assert (refused.status_code, refused.json()["errors"][0]["code"]) == (400, "private_address")
            assert inside.visits == 0
    site.receivers.append(endpoint)
