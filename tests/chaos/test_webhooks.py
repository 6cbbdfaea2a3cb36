"""Endpoints of webhooks that are slow, broken, gone, or lead inside. Row 23 of docs/reliability.md.

What is allowed here is 127.0.0.1 alone; 127.0.0.2 is the private address that nothing may reach.
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

from exports.models import Attempt, Delivery, Webhook
from exports.webhooks import request, sender
from tests.chaos.names import FOLDER, Names
from tests.chaos.site import Site
from tests.integration.receiver import OK, Reply, answer, receiver, trickle
from tests.waiting import wait_until

INSIDE, METADATA, PUBLIC = "127.0.0.2", "169.254.169.254", "93.184.215.14"
# Private addresses, also in other clothes, and beside a good one.
FORBIDDEN = (
    INSIDE, f"127.0.0.1 {INSIDE}", f"{INSIDE} 127.0.0.1", f"::ffff:{INSIDE}", "0.0.0.0",  # noqa: S104 - connected to
    METADATA, "::1", "fd00::1", "100.64.0.1", "64:ff9b::7f00:2",
)  # fmt: skip
ALLOWED: dict[str, Any] = {"EXPORT_WEBHOOK_ALLOW_CIDRS": "127.0.0.1/32"}
REFUSED = "blocked: webhooks may not reach this address"


@pytest.fixture
def over() -> Iterator[threading.Event]:
    """Set at the end, so that no endpoint goes on being slow."""
    event = threading.Event()
    yield event
    event.set()


def silence(over: threading.Event) -> Reply:
    def reply(_to: BaseHTTPRequestHandler) -> None:
        over.wait(60)

    return reply


class Trap:
    """Listens at a private address, and counts who comes."""

    def __init__(self, port: int = 0) -> None:
        self.listener = socket.create_server((INSIDE, port))
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
def trap(port: int = 0) -> Iterator[Trap]:
    made = Trap(port)
    try:
        yield made
    finally:
        made.close()


def subscribe(site: Site, url: str) -> Webhook:
    answered = site.client.post("/exports/webhooks", json={"url": url, "events": ["export.succeeded"]})
    assert answered.status_code == 201, answered.text
    return Webhook.objects.get(pk=answered.json()["id"])


def delivery_to(webhook: Webhook) -> Delivery:
    return Delivery.objects.get(webhook=webhook)


def told(webhook: Webhook) -> list[tuple[int | None, str]]:
    """Return the attempts so far: the status, or why there was none."""
    attempts = Attempt.objects.filter(delivery__webhook=webhook).order_by("pk")
    return list(attempts.values_list("status_code", "error"))


def make_due(*webhooks: Webhook) -> int:
    """Have the time of the next attempt come. Returns how many deliveries have not ended."""
    pending = Delivery.objects.filter(webhook__in=webhooks, status="pending")
    pending.filter(token=None).update(available_at=Now())
    return pending.count()


# ---- Slow, broken, gone ---------------------------------------------------------------------------------------------
@pytest.mark.timeout(120)
def test_each_endpoint_is_treated_as_it_deserves_and_none_holds_up_the_others(
    site: Site, over: threading.Event
) -> None:
    """23: one never answers, one drips, one fails, one is gone, two lead elsewhere; the good one is told at once."""
    with ExitStack() as open_ones:
        never, drips, failing, leads_in, leads_round, good = (open_ones.enter_context(receiver()) for _ in range(6))
        gone, inside = open_ones.enter_context(receiver(answer(410))), open_ones.enter_context(trap())
        never.replies = [silence(over)]
        drips.replies = [trickle(over, head=b"HTTP/1.1 200 OK\r\nX-Long: ")]
        failing.replies = [answer(500)]
        leads_in.replies = [answer(302, Location=f"http://{INSIDE}:{inside.port}/")]
        leads_round.replies = [answer(307, Location=leads_round.url)]
        site.receivers += [never, drips, failing, gone, leads_in, leads_round, good]
        site.start_web(**ALLOWED)
        hooks = {each.url: subscribe(site, each.url) for each in site.receivers}
        site.start_worker(children=3, **ALLOWED)
        site.start_beat(**ALLOWED)
        job = site.submit("JFK")
        site.settle(job)
        ended = time.monotonic()
        wait_until(lambda: good.received)
        site.measured("23: told, beside two endpoints that never answer", time.monotonic() - ended)
        wait_until(lambda: all(told(hook) for hook in hooks.values()), limit=60)

        for slow in (never, drips):
            assert told(hooks[slow.url]) == [(None, "no response in time")]
            attempt = Attempt.objects.get(delivery__webhook=hooks[slow.url])
            assert attempt.duration_ms < (request.ATTEMPT_SECONDS + 5) * 1000
        assert told(hooks[failing.url])[0] == (500, "")
        assert told(hooks[gone.url]) == [(410, "")]
        assert told(hooks[leads_in.url])[0] == (302, "")
        assert told(hooks[leads_round.url])[0] == (307, "")
        wait_until(lambda: make_due(*hooks.values()) == 0)
        assert inside.visits == 0
        assert {hook.url for hook in Webhook.objects.filter(enabled=False)} == {gone.url}
        assert {delivery.webhook.url for delivery in Delivery.objects.filter(status="failed")} == {gone.url}
        assert [len(each.received) for each in site.receivers] == [2, 2, 2, 1, 2, 2, 1]
        assert all(len(set(each.ids)) == 1 for each in site.receivers)

        again = site.submit("EWR")
        site.settle(again)
        wait_until(lambda: len(good.received) == 2 and not Delivery.objects.filter(status="pending").exists())
        assert len(gone.received) == 1


def test_a_delivery_is_tried_again_on_schedule_until_its_attempts_are_used_up(site: Site) -> None:
    """23: the first wait is waited for; the others, of up to a day, are read off the row and skipped."""
    with receiver(answer(500)) as there:
        site.receivers.append(there)
        site.start_web(**ALLOWED)
        hook = subscribe(site, there.url)
        site.start_worker(**ALLOWED)
        site.start_beat(**ALLOWED)
        site.settle(site.submit("JFK"))
        wait_until(lambda: len(there.received) == 2)
        first, second = (int(each.headers["webhook-timestamp"]) for each in there.received)
        waited = second - first
        site.measured("23: between the first attempt and the second", waited)
        assert sender.SCHEDULE[0] <= waited + 1
        assert waited <= sender.SCHEDULE[0] * 1.2 + 4

        for number, planned in enumerate(sender.SCHEDULE[1:], start=2):
            wait_until(lambda number=number: len(told(hook)) == number)  # type: ignore[misc]
            row = delivery_to(hook)
            wait = (row.available_at - row.log.latest("pk").at).total_seconds()
            assert planned <= wait + 1
            assert wait <= planned * 1.2 + 15, f"after attempt {number}"
            assert row.status == "pending"
            make_due(hook)
        wait_until(lambda: delivery_to(hook).status == "failed")

        assert len(there.received) == sender.ATTEMPTS
        assert len(set(there.ids)) == 1
        assert len({each.body for each in there.received}) == 1
        hook.refresh_from_db()
        assert hook.enabled  # it failed for a moment only, whatever the rows were told


# ---- Names that change ----------------------------------------------------------------------------------------------
@pytest.fixture
def names(site: Site) -> Names:
    return Names(site.folder / "names")


def ping(site: Site, hook: Webhook) -> str:
    """Send a test, and return what came of it."""
    before = len(told(hook))
    assert site.client.post(f"/exports/webhooks/{hook.pk}/test").status_code == 202
    wait_until(lambda: len(told(hook)) == before + 1)
    status, error = told(hook)[-1]
    return error or str(status)


def test_a_name_that_changes_its_address_never_leads_inside(site: Site, names: Names) -> None:
    """23: DNS rebinding, after the check, between attempts and within one; addresses in other clothes."""
    named: dict[str, Any] = {
        **ALLOWED,
        "DJANGO_SETTINGS_MODULE": "tests.chaos.named_settings",
        FOLDER: names.folder,
    }
    name, url_of = "rebind.example", "http://{}:{}/hook".format
    with receiver(OK) as there:
        port = int(there.url.rpartition(":")[2].split("/")[0])
        with trap(port) as inside:
            site.start_web(**named)
            names.answer(name, "127.0.0.1")
            hook = subscribe(site, url_of(name, port))
            names.answer("public.example", PUBLIC)
            public = subscribe(site, url_of("public.example", port).replace("http:", "https:"))
            site.start_worker(**named)
            site.start_beat(**named)
            assert ping(site, hook) == "204"

            for answers in FORBIDDEN:
                names.answer(name, answers)
                outcome = ping(site, hook)
                assert outcome == REFUSED or (answers.startswith("127.0.0.1 ") and outcome == "204"), answers
            # Within an attempt: what is good at the first look is not looked at again.
            names.answer(name, "127.0.0.1", INSIDE)
            asked = len(names.asked(name))
            assert ping(site, hook) == "204"
            assert names.asked(name)[asked:] == ["127.0.0.1"]
            names.answer("public.example", INSIDE)
            assert ping(site, public) == REFUSED

            for answers in (INSIDE, f"127.0.0.1 {INSIDE}", METADATA):
                names.answer("other.example", answers)
                body = {"url": url_of("other.example", port), "events": ["export.succeeded"]}
                refused = site.client.post("/exports/webhooks", json=body)
                assert (refused.status_code, refused.json()["errors"][0]["code"]) == (400, "private_address")
            assert inside.visits == 0
    site.receivers.append(there)
