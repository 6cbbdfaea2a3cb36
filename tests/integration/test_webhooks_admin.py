"""The admin pages of webhooks. A25, C2."""

from datetime import timedelta

import pytest
from django.contrib.admin.models import LogEntry
from django.contrib.auth.models import User
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.utils import timezone
from rest_framework.test import APIClient

from config.platform.webhooks import sender, subscriptions
from config.platform.webhooks.models import TEST
from exports.jobs import actions
from exports.models import Dataset, Delivery, Webhook
from tests.broker import lose_messages, queued
from tests.integration.factories import make_job
from tests.integration.receiver import Receiver, answer
from tests.integration.staff import confirm, form_in, list_of, messages_of, page_of, press, select, text_of
from tests.integration.test_webhooks import subscribe, work


@pytest.fixture
def hook(dataset: Dataset, alice: User, api: APIClient, endpoint: Receiver) -> Webhook:
    """A webhook with two deliveries that failed, one of them a test."""
    webhook = Webhook.objects.get(pk=subscribe(api, f"{endpoint.url}/SECRETPATH")["id"])
    endpoint.then = answer(410)
    subscriptions.send_test(webhook)
    work()
    subscriptions.change(webhook, enabled=True)
    actions.cancel(make_job(dataset, alice, 1))
    work()
    webhook.refresh_from_db()
    return webhook


@pytest.mark.slow
def test_shows_webhooks_and_deliveries_without_secrets(pages: Client, hook: Webhook) -> None:
    """C2."""
    subscriptions.rotate_secret(hook)
    hook.refresh_from_db()
    paths = [list_of("webhook"), page_of(hook), list_of("delivery", webhook__id__exact=hook.pk)]
    paths += [page_of(row) for row in Delivery.objects.all()]
    for path in paths:
        text = text_of(pages.get(path))
        for secret in ("SECRETPATH", hook.secret, hook.old_secret, "whsec_"):
            assert secret not in text
    assert "127.0.0.1" in text_of(pages.get(page_of(hook)))
    assert "The endpoint returned 410 Gone." in text_of(pages.get(page_of(hook)))
    for row in Delivery.objects.all():
        assert f'href="{page_of(row)}' in text_of(pages.get(list_of("delivery", q=row.pk)))
        assert "410" in text_of(pages.get(page_of(row)))


def test_webhooks_and_deliveries_are_read_only(pages: Client, hook: Webhook) -> None:
    before = Webhook.objects.values().get()
    for row in (hook, Delivery.objects.first()):
        assert pages.post(page_of(row), {"url": "http://127.0.0.1/"}).status_code == 403
        assert pages.post(page_of(row, "delete"), {"post": "yes"}).status_code == 403
    assert Webhook.objects.values().get() == before


def test_enables_and_disables_a_webhook(pages: Client, staff: User, hook: Webhook) -> None:
    """C2: with an entry in the audit log, and only the applicable button."""
    for name, other, enabled in (("enable", "disable", True), ("disable", "enable", False)):
        text = text_of(pages.get(page_of(hook)))
        assert f"{page_of(hook, name)}" in text
        assert f"{page_of(hook, other)}" not in text
        assert press(pages, hook, name).status_code == 302
        hook.refresh_from_db()
        assert hook.enabled is enabled
    assert "Unchanged: 1 webhook" in text_of(pages.get(page_of(hook, "disable")))
    assert (
        messages_of(confirm(pages, select(pages, "enable", hook)))[-1]
        == "Enabled 1 webhook. Pending deliveries are sent."
    )

    assert Webhook.objects.get().enabled
    entries = LogEntry.objects.order_by("pk").values_list("object_id", "user_id", "change_message")
    assert [(pk, user, message.partition(":")[0]) for pk, user, message in entries] == [
        (str(hook.pk), staff.pk, word) for word in ("Enabled", "Disabled", "Enabled")
    ]


def test_sends_deliveries_again(pages: Client, staff: User, hook: Webhook) -> None:
    """C2: with an entry in the audit log. For a disabled webhook, only test deliveries."""
    test, end = Delivery.objects.order_by("created_at")
    asked = select(pages, "redeliver", test, end)
    assert "This webhook is disabled. Enable it first" in text_of(asked)
    assert messages_of(confirm(pages, asked)) == ["Sent again 1 webhook delivery. Queued with a full set of attempts."]
    assert page_of(test, "redeliver") not in text_of(pages.get(page_of(test)))

    press(pages, hook, "enable")
    lose_messages()
    assert page_of(end, "redeliver") in text_of(pages.get(page_of(end)))
    assert press(pages, end, "redeliver").status_code == 302
    assert queued("webhooks") == 1
    assert set(Delivery.objects.values_list("status", "attempts")) == {("pending", 0)}
    again = LogEntry.objects.filter(change_message__startswith="Sent again: ")
    assert set(again.values_list("object_id", "user_id")) == {(str(test.pk), staff.pk), (str(end.pk), staff.pk)}
    assert sender.claim()


def test_a_repeated_action_sends_nothing_twice(pages: Client, hook: Webhook) -> None:
    """Even if the first delivery has ended."""
    delivery = Delivery.objects.get(type=TEST)
    action, fields = form_in(pages.get(page_of(delivery, "redeliver")))
    pages.post(action, fields)
    work()
    delivery.refresh_from_db()
    assert delivery.status == "failed"

    assert (
        messages_of(pages.post(action, fields))[-1] == "Unchanged: 1 webhook delivery. Changed since you selected it."
    )


def test_lists_of_2_and_60_deliveries_take_the_same_number_of_queries(pages: Client, hook: Webhook) -> None:
    def queries() -> int:
        with CaptureQueriesContext(connection) as made:
            pages.get(list_of("delivery"))
        return len(made)

    few = queries()
    Delivery.objects.bulk_create(Delivery(webhook=hook, type="webhook.test", body="{}") for _ in range(58))
    assert queries() == few


def test_sends_deliveries_in_backoff_now(pages: Client, hook: Webhook) -> None:
    """The receiver is repaired, but the next attempt would be in hours. Attempts continue to count."""
    delivery = Delivery.objects.exclude(type=TEST).get()
    press(pages, hook, "enable")
    later = timezone.now() + timedelta(hours=5)
    Delivery.objects.filter(pk=delivery.pk).update(status="pending", attempts=4, available_at=later, finished_at=None)
    lose_messages()
    assert page_of(delivery, "redeliver") not in text_of(pages.get(page_of(delivery)))

    assert messages_of(press(pages, delivery, "send-now"))[-1].startswith("Sent 1 webhook delivery. Queued now.")

    delivery.refresh_from_db()
    assert (delivery.status, delivery.attempts) == ("pending", 4)
    assert delivery.available_at <= timezone.now()
    assert queued("webhooks") == 1
    assert page_of(delivery, "send-now") not in text_of(pages.get(page_of(delivery)))
    claimed = sender.claim()
    assert claimed
    assert claimed.attempts == 5


def test_a_delivery_that_waits_names_the_action_that_sends_it(pages: Client, hook: Webhook) -> None:
    """The webhook is disabled, so even an overdue delivery is not sent unless it is a test delivery."""
    delivery = Delivery.objects.exclude(type=TEST).get()
    later = timezone.now() + timedelta(hours=5)
    Delivery.objects.filter(pk=delivery.pk).update(status="pending", available_at=later)
    assert "Use “Send now”." in text_of(pages.get(page_of(delivery, "redeliver")))
    Delivery.objects.filter(pk=delivery.pk).update(available_at=timezone.now() - timedelta(hours=5))
    assert subscriptions.WebhookDisabled.detail in text_of(pages.get(page_of(delivery, "send-now")))


def test_does_not_send_running_or_ended_deliveries_now(pages: Client, hook: Webhook) -> None:
    press(pages, hook, "enable")
    delivery = Delivery.objects.exclude(type=TEST).get()
    assert "Already ended. Use “Send again”." in text_of(pages.get(page_of(delivery, "send-now")))
    subscriptions.redeliver(delivery)
    assert sender.claim()
    later = timezone.now() + timedelta(hours=5)
    Delivery.objects.filter(pk=delivery.pk).update(available_at=later)
    assert subscriptions.DeliveryPending.detail in text_of(pages.get(page_of(delivery, "send-now")))
    with pytest.raises(subscriptions.DeliveryPending):
        subscriptions.redeliver(delivery)
    assert Delivery.objects.get(pk=delivery.pk).available_at == later
