"""The pages of webhooks, tested without a browser: ownership, secrets, and buttons. C1, A25."""

from datetime import timedelta
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.db.models.functions import Now
from django.test import Client
from django.urls import reverse

from config.platform.webhooks import sender, subscriptions
from config.platform.webhooks.models import TEST, EventType
from exports.models import Attempt, Delivery, Webhook
from tests.conftest import browser_of, change_settings
from tests.integration.receiver import Receiver, allow, answer
from tests.integration.test_leases import in_threads
from tests.integration.test_rules_pages import queries

pytestmark = pytest.mark.usefixtures("empty_redis")

SUCCEEDED = EventType.SUCCEEDED.value
LIST = "/app/webhooks"
HTMX = {"HX-Request": "true"}
BUTTONS = ("test-webhook", "enable-webhook", "disable-webhook", "rotate-webhook", "redeliver-failed", "delete-webhook")


@pytest.fixture
def me(alice: User) -> Client:
    return browser_of(alice)


@pytest.fixture
def hook(alice: User, endpoint: Receiver) -> Webhook:
    return subscriptions.create(user_id=alice.pk, url=endpoint.url, events=[SUCCEEDED])


def sent(hook: Webhook, count: int = 1, *, status: str = "failed", **fields: Any) -> list[Delivery]:
    """Create deliveries with two attempts each."""
    first = Delivery.objects.count()
    ended = {"finished_at": Now()} if status != "pending" else {}
    made = Delivery.objects.bulk_create(
        Delivery(
            webhook=hook, type=SUCCEEDED, body='{"a":1}', seq=first + n, status=status, attempts=2, **ended, **fields
        )
        for n in range(count)
    )
    Attempt.objects.bulk_create(
        Attempt(delivery=each, status_code=500, duration_ms=7) for each in made for _ in range(2)
    )
    return made


def page_of(hook: Webhook, query: str = "") -> str:
    return reverse("webhook", args=[hook.pk]) + query


def all_buttons(hook: Webhook, delivery: Delivery) -> list[str]:
    return [
        page_of(hook), *(reverse(name, args=[hook.pk]) for name in BUTTONS),
        reverse("redeliver", args=[hook.pk, delivery.pk]),
    ]  # fmt: skip


# ---- Ownership ------------------------------------------------------------------------------------------------------


def test_pages_of_webhooks_of_other_users_return_404_even_for_staff(bob: User, hook: Webhook) -> None:
    (delivery,) = sent(hook)
    for is_staff in (False, True):
        User.objects.filter(pk=bob.pk).update(is_staff=is_staff)
        stranger = browser_of(User.objects.get(pk=bob.pk))
        for path in (page_of(hook), reverse("delivery", args=[hook.pk, delivery.pk])):
            assert stranger.get(path).status_code == 404, path
        for path in all_buttons(hook, delivery):
            assert stranger.post(path, {"url": "https://example.com", "events": SUCCEEDED}).status_code == 404, path
        assert hook.url not in stranger.get(LIST).content.decode()
    assert Webhook.objects.filter(pk=hook.pk, enabled=True, secret=hook.secret, url=hook.url).exists()
    assert Delivery.objects.get().status == "failed"


def test_a_delivery_belongs_to_its_webhook(me: Client, alice: User, hook: Webhook) -> None:
    other = subscriptions.create(user_id=alice.pk, url=hook.url, events=[SUCCEEDED])
    (delivery,) = sent(other)
    assert me.get(reverse("delivery", args=[hook.pk, delivery.pk])).status_code == 404
    assert me.post(reverse("redeliver", args=[hook.pk, delivery.pk])).status_code == 404


def test_buttons_are_posts_with_the_csrf_token_of_the_session(
    client: Client, alice: User, me: Client, hook: Webhook
) -> None:
    (delivery,) = sent(hook)
    checking = browser_of(alice, enforce_csrf_checks=True)
    for path in (LIST, *all_buttons(hook, delivery)):
        assert checking.post(path).status_code == 403, path
        assert "/app/sign-in" in client.post(path)["Location"], path
    for path in all_buttons(hook, delivery)[1:]:
        assert me.get(path).status_code == 405, path
    assert Webhook.objects.count() == 1


# ---- Creating and changing ------------------------------------------------------------------------------------------


def make(me: Client, url: str, *events: str) -> Any:
    return me.post(LIST, {"url": url, "events": events or [SUCCEEDED]})


def test_a_secret_is_shown_once_after_creation(me: Client, endpoint: Receiver) -> None:
    response = make(me, f"  {endpoint.url} ")
    hook = Webhook.objects.get()
    assert response["Location"] == page_of(hook)
    assert hook.secret not in me.get(page_of(hook), headers=HTMX).content.decode()
    first = me.get(page_of(hook))
    assert (hook.secret in first.content.decode(), first["Cache-Control"]) == (True, "no-store")
    assert hook.secret not in me.get(page_of(hook)).content.decode()

    me.post(reverse("rotate-webhook", args=[hook.pk]))
    old = hook.secret
    hook.refresh_from_db()
    page = me.get(page_of(hook)).content.decode()
    assert (hook.secret in page, old in page, "is valid until" in page) == (True, False, True)
    assert hook.secret not in me.get(page_of(hook)).content.decode()


@pytest.mark.parametrize(
    ("url", "field", "words"),
    [
        ("", "url", "Must be a URL"),
        ("ftp://example.com", "url", "Must be a URL"),
        ("http://10.0.0.1/", "url", "private"),
        ("https://u:p@example.com/", "url", "credentials"),
    ],
)
def test_errors_are_shown_at_their_field(me: Client, endpoint: Receiver, url: str, field: str, words: str) -> None:
    response = make(me, url)
    assert words in " ".join(response.context["form"].errors[field])
    assert response.context["form"]["events"].value() == [SUCCEEDED]
    assert not Webhook.objects.exists()


def test_a_webhook_requires_at_least_one_event(me: Client, endpoint: Receiver) -> None:
    response = me.post(LIST, {"url": endpoint.url})
    assert "Must not be empty." in response.context["form"].errors["events"]
    assert response.context["form"]["url"].value() == endpoint.url


def test_the_number_of_webhooks_of_a_user_is_limited(
    monkeypatch: pytest.MonkeyPatch, me: Client, hook: Webhook
) -> None:
    monkeypatch.setattr(subscriptions, "MAX_PER_USER", 1)
    page = make(me, hook.url).content.decode()
    assert "You have reached the limit" in page
    assert Webhook.objects.count() == 1


def test_valid_changes_are_saved_and_invalid_ones_change_nothing(me: Client, hook: Webhook) -> None:
    me.post(page_of(hook), {"url": f"{hook.url}/2", "events": [EventType.FAILED.value]})
    changed = Webhook.objects.get()
    assert (changed.url, changed.events) == (f"{hook.url}/2", [EventType.FAILED.value])
    response = me.post(page_of(hook), {"url": "nowhere", "events": []})
    assert set(response.context["form"].errors) == {"url", "events"}
    assert Webhook.objects.get().url == f"{hook.url}/2"


def test_an_unchanged_url_is_not_resolved_again(me: Client, hook: Webhook, settings: Any) -> None:
    """The operator no longer allows private networks, but the webhook's owner can still change its events."""
    allow(settings)
    me.post(page_of(hook), {"url": hook.url, "events": [SUCCEEDED, EventType.FAILED.value]})
    assert Webhook.objects.get().events == [SUCCEEDED, EventType.FAILED.value]


def test_disabling_and_enabling_show_the_reason(me: Client, hook: Webhook) -> None:
    me.post(reverse("disable-webhook", args=[hook.pk]))
    assert "Disabled by a user." in me.get(page_of(hook)).content.decode()
    me.post(reverse("enable-webhook", args=[hook.pk]))
    assert Webhook.objects.get().enabled
    Webhook.objects.update(enabled=False, disabled_reason="The endpoint returned 410 Gone.")
    for path in (LIST, page_of(hook)):
        assert "The endpoint returned 410 Gone." in me.get(path).content.decode()


def test_deletion_includes_the_log(me: Client, hook: Webhook) -> None:
    sent(hook, 3)
    assert me.post(reverse("delete-webhook", args=[hook.pk]))["Location"] == LIST
    assert not Delivery.objects.exists()


# ---- The log --------------------------------------------------------------------------------------------------------


def test_pages_of_2_and_200_rows_take_the_same_number_of_queries(me: Client, alice: User, hook: Webhook) -> None:
    def add_rows(count: int) -> None:
        for status in ("delivered", "failed", "pending"):
            sent(hook, count, status=status)
        Webhook.objects.bulk_create(
            Webhook(user=alice, url=hook.url, events=[SUCCEEDED], secret="x") for _ in range(count)
        )

    paths = (LIST, page_of(hook, "?limit=200"), page_of(hook, "?status=failed"))
    add_rows(2)
    before = [queries(me, path) for path in paths]
    add_rows(70)
    assert [queries(me, path) for path in paths] == before
    assert max(before) <= 11


def test_a_row_shows_the_last_response_and_the_next_attempt(me: Client, hook: Webhook) -> None:
    sent(hook, status="pending", available_at=Now() + timedelta(hours=2, minutes=9))
    context = me.get(page_of(hook)).context
    (row,) = context["rows"]
    assert (row.last["statusCode"], row.is_sending, row.is_due, context["seconds"]) == (500, False, False, 15)
    assert "in 2 h" in me.get(page_of(hook)).content.decode()

    Webhook.objects.update(enabled=False)
    context = me.get(page_of(hook)).context
    assert (context["rows"][0].next_at, context["seconds"]) == (None, 0)


def test_a_delivery_of_a_purged_export_has_no_link_to_it(me: Client, hook: Webhook) -> None:
    sent(hook, subject=f"export:{hook.pk}")
    sent(hook, subject="document:17")
    assert [row.subject for row in me.get(page_of(hook)).context["rows"]] == [
        ("document 17", reverse("document", args=[17])), None,
    ]  # fmt: skip


def test_the_log_is_filtered(me: Client, hook: Webhook) -> None:
    for number, status in enumerate(("delivered", "failed", "pending"), 1):
        sent(hook, number, status=status)
    shown = {status: len(me.get(page_of(hook, f"?status={status}")).context["rows"]) for status in ("", "failed", "?")}
    assert shown == {"": 6, "failed": 2, "?": 6}
    assert me.get(page_of(hook, "?cursor=x")).status_code == 400


def test_a_page_polls_while_a_delivery_is_unfinished(me: Client, hook: Webhook) -> None:
    def poll() -> str:
        return me.get(page_of(hook), headers=HTMX).content.decode()

    assert "data-ended" in poll()
    me.post(reverse("test-webhook", args=[hook.pk]))
    assert 'hx-trigger="every 2s"' in poll()
    assert "Test pending" in poll()
    sender.drain()
    assert "Response: 204" in poll()
    assert "data-ended" in poll()
    assert "<html" not in poll()


def test_a_failed_test_delivery_shows_the_response(me: Client, hook: Webhook, endpoint: Receiver) -> None:
    endpoint.then = answer(503)
    me.post(reverse("test-webhook", args=[hook.pk]))
    again = me.post(reverse("test-webhook", args=[hook.pk]), follow=True)
    assert "A test of this webhook is still pending" in again.content.decode()
    sender.drain()
    assert "the response was 503, expected 2xx" in me.get(page_of(hook)).content.decode()


def test_a_delivery_shows_its_payload_and_no_secret(me: Client, hook: Webhook) -> None:
    (delivery,) = sent(hook)
    Delivery.objects.update(body='{"type":"<script>alert(1)</script>","n":[1,2]}')
    page = me.get(reverse("delivery", args=[hook.pk, delivery.pk])).content.decode()
    assert "&lt;script&gt;alert(1)" in page
    assert "<script>alert" not in page
    assert str(delivery.pk) in page
    assert hook.secret not in page


def test_a_delivery_is_sent_again_once(me: Client, hook: Webhook, endpoint: Receiver) -> None:
    (delivery,) = sent(hook)
    again = reverse("redeliver", args=[hook.pk, delivery.pk])
    assert me.post(again)["Location"] == reverse("delivery", args=[hook.pk, delivery.pk])
    assert "This delivery has not ended" in me.post(again, follow=True).content.decode()
    sender.drain()
    assert endpoint.ids == [str(delivery.pk)]
    assert Delivery.objects.get().status == "delivered"


def test_a_delivery_in_backoff_is_sent_now(me: Client, hook: Webhook, endpoint: Receiver) -> None:
    (delivery,) = sent(hook, status="pending", available_at=Now() + timedelta(hours=2))
    again = reverse("redeliver", args=[hook.pk, delivery.pk])
    page = reverse("delivery", args=[hook.pk, delivery.pk])
    assert f'id="n-{delivery.pk}"' in me.get(page_of(hook)).content.decode()
    assert 'id="send-now"' in me.get(page).content.decode()

    assert "Delivery queued now." in me.post(again, follow=True).content.decode()

    assert 'id="send-now"' not in me.get(page).content.decode()
    sender.drain()
    assert endpoint.ids == [str(delivery.pk)]
    assert Delivery.objects.values_list("status", "attempts").get() == ("delivered", 3)


def test_a_delivery_of_a_disabled_webhook_is_not_sent_now(me: Client, hook: Webhook) -> None:
    (delivery,) = sent(hook, status="pending", available_at=Now() + timedelta(hours=2))
    Webhook.objects.update(enabled=False)
    page = me.get(reverse("delivery", args=[hook.pk, delivery.pk])).content.decode()
    assert 'id="send-now"' not in page
    again = reverse("redeliver", args=[hook.pk, delivery.pk])
    assert "is disabled" in me.post(again, follow=True).content.decode()


def test_all_failed_deliveries_are_sent_again(me: Client, alice: User, hook: Webhook, endpoint: Receiver) -> None:
    other = subscriptions.create(user_id=alice.pk, url=hook.url, events=[SUCCEEDED])
    failed = {str(each.pk) for each in sent(hook, 3)}
    sent(hook, 1, status="delivered")
    sent(other, 1)
    Delivery.objects.create(webhook=hook, type=TEST, body="{}", status="failed", finished_at=Now())
    page = me.get(page_of(hook)).content.decode()
    assert "Resend 3 failed" in page

    response = me.post(reverse("redeliver-failed", args=[hook.pk]), follow=True)
    assert "3 failed deliveries queued" in response.content.decode()
    sender.drain()
    assert set(endpoint.ids) == failed
    assert (
        "no failed deliveries to resend"
        in me.post(reverse("redeliver-failed", args=[hook.pk]), follow=True).content.decode()
    )


def test_a_disabled_webhook_gets_no_redeliveries(me: Client, hook: Webhook) -> None:
    sent(hook, 2)
    Webhook.objects.update(enabled=False)
    assert "Enable the webhook to resend" in me.get(page_of(hook)).content.decode()
    assert "is disabled" in me.post(reverse("redeliver-failed", args=[hook.pk]), follow=True).content.decode()
    assert set(Delivery.objects.values_list("status", flat=True)) == {"failed"}


def test_concurrent_redelivery_and_deletion_do_not_deadlock(hook: Webhook) -> None:
    sent(hook, 200)

    def redeliver() -> str:
        try:
            return str(subscriptions.redeliver_failed(Webhook(pk=hook.pk)))
        except subscriptions.NoSuchWebhook:
            return "gone"

    def delete() -> str:
        subscriptions.delete(Webhook.objects.get(pk=hook.pk))
        return "deleted"

    outcomes = in_threads(2, lambda n: (redeliver, delete)[n]())
    assert "deleted" in outcomes
    assert not Delivery.objects.exists()


def test_posts_count_toward_the_api_rate_limits(settings: Any, me: Client, hook: Webhook) -> None:
    change_settings(settings, export_rate="1/min")
    me.post(reverse("test-webhook", args=[hook.pk]))
    for path in all_buttons(hook, sent(hook)[0]):
        response = me.post(path, {"url": hook.url, "events": [EventType.FAILED.value]}, follow=True)
        assert "Too many requests" in response.content.decode(), path
    assert "Too many requests" in make(me, hook.url).content.decode()
    assert Webhook.objects.get().events == [SUCCEEDED]
