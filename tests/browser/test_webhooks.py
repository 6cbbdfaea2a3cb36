"""Webhooks in a browser, with a real receiver and real workers: creation, tests, the log, and resending. C1, A25."""

from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.db.models.functions import Now
from playwright.sync_api import Page, Route, expect
from standardwebhooks import Webhook as Verifier

from config.platform.webhooks import subscriptions
from config.platform.webhooks.models import EventType
from exports.models import Delivery, Webhook
from tests.browser import scenes_webhooks
from tests.browser.conftest import Accessible, PageMonitor, fits_width
from tests.e2e.conftest import Workers
from tests.integration.receiver import OK, Receiver, allow, answer, receiver

SUCCEEDED = EventType.SUCCEEDED.value
SOON = 60_000  # milliseconds: workers start in the meantime


@pytest.fixture
def endpoint(settings: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[Receiver]:
    """A receiver that this process, the web process, and the workers can reach."""
    allow(settings, "127.0.0.0/8")
    monkeypatch.setenv("EXPORT_WEBHOOK_ALLOW_CIDRS", "127.0.0.0/8")
    with receiver() as running:
        yield running


@pytest.fixture
def hook(alice: User, endpoint: Receiver) -> Webhook:
    return subscriptions.create(user_id=alice.pk, url=endpoint.url, events=[SUCCEEDED])


def failed(hook: Webhook, count: int) -> list[Delivery]:
    return Delivery.objects.bulk_create(
        Delivery(
            webhook=hook, type=SUCCEEDED, body='{"n":1}', seq=n, status="failed", attempts=10, finished_at=Now(),
            created_at=Now() - timedelta(minutes=n),
        )
        for n in range(count)
    )  # fmt: skip


def open_page(page: Page, hook: Webhook) -> Page:
    page.goto(f"/app/webhooks/{hook.pk}")
    return page


@pytest.mark.slow
def test_a_new_webhook_shows_its_secret_once_and_delivers(
    page: Page, workers: Workers, endpoint: Receiver, accessible: Accessible
) -> None:
    workers.start("webhooks")
    page.goto("/app/webhooks")
    expect(page.locator(".empty")).to_contain_text("No webhooks yet")
    accessible(page)
    page.get_by_label("URL").fill("ftp://nowhere")
    page.get_by_role("button", name="Create webhook").click()
    expect(page.get_by_role("alert")).to_contain_text("Must be a URL")
    expect(page.get_by_label("URL")).to_have_value("ftp://nowhere")
    accessible(page)
    page.get_by_label("URL").fill(endpoint.url)
    page.get_by_role("button", name="Create webhook").click()
    secret = page.locator("#secret").inner_text()
    accessible(page)

    page.get_by_role("button", name="Send test").click()
    expect(page.get_by_text("Test queued.")).to_be_visible()
    expect(page.locator(".last-test")).to_contain_text("Response: 204", timeout=SOON)
    expect(page.locator("#log")).to_have_attribute("data-ended", "")
    expect(page.get_by_role("row").nth(1)).to_contain_text("Delivered")
    accessible(page)
    (request,) = endpoint.received
    assert Verifier(secret).verify(request.body, request.headers)
    page.reload()
    expect(page.locator("#secret")).to_have_count(0)


@pytest.mark.slow
def test_a_failed_test_delivery_shows_the_reason(
    page: Page, workers: Workers, hook: Webhook, endpoint: Receiver
) -> None:
    workers.start("webhooks")
    endpoint.then = answer(503)
    open_page(page, hook).get_by_role("button", name="Send test").click()
    expect(page.locator(".last-test")).to_contain_text("the response was 503, expected 2xx.", timeout=SOON)
    page.get_by_role("link", name="View details").click()
    expect(page.get_by_role("row").nth(1)).to_contain_text("503")
    endpoint.then = OK
    page.get_by_role("button", name="Send again").click()
    expect(page.locator("#attempts dd").first).to_contain_text("Delivered", timeout=SOON)
    expect(page.get_by_role("row")).to_have_count(3)


@pytest.mark.slow
def test_resending_failed_deliveries_shows_their_number_first(
    page: Page, workers: Workers, hook: Webhook, endpoint: Receiver, accessible: Accessible
) -> None:
    failed(hook, 3)
    workers.start("webhooks")
    open_page(page, hook)
    accessible(page)
    dialogs: list[str] = []

    def decide(dialog: Any) -> None:
        dialogs.append(dialog.message)
        (dialog.accept if len(dialogs) > 1 else dialog.dismiss)()

    page.on("dialog", decide)
    button = page.get_by_role("button", name="Resend 3 failed")
    button.click()
    assert Delivery.objects.filter(status="failed").count() == 3
    button.click()
    expect(page.get_by_text("3 failed deliveries queued")).to_be_visible()
    assert dialogs == ["Resend 3 failed deliveries?"] * 2
    expect(page.locator(".state", has_text="delivered")).to_have_count(3, timeout=SOON)
    expect(page.get_by_role("button", name="failed")).to_have_count(0)
    assert len(set(endpoint.ids)) == 3


@pytest.mark.slow
def test_a_single_delivery_can_be_sent_again(
    page: Page, workers: Workers, hook: Webhook, endpoint: Receiver, accessible: Accessible
) -> None:
    (delivery,) = failed(hook, 1)
    open_page(page, hook).get_by_role("link", name="Export ready").click()
    expect(page.locator("#payload")).to_contain_text('"n": 1')
    expect(page.get_by_text(f"webhook-id: {delivery.pk}")).to_be_visible()
    assert hook.secret not in page.content()
    accessible(page)
    page.get_by_role("button", name="Send again").click()
    expect(page.locator("#attempts dd").first).to_contain_text("Pending")
    workers.start("webhooks")
    expect(page.locator("#attempts dd").first).to_contain_text("Delivered", timeout=SOON)
    expect(page.get_by_role("row").nth(1)).to_contain_text("204")
    assert endpoint.ids == [str(delivery.pk)]


@pytest.mark.slow
def test_a_disabled_webhook_shows_the_reason_and_can_be_enabled_and_disabled(
    page: Page, hook: Webhook, accessible: Accessible
) -> None:
    failed(hook, 1)
    Webhook.objects.update(enabled=False, disabled_reason="No delivery has succeeded for three days.")
    open_page(page, hook)
    expect(page.locator(".message.warning")).to_contain_text("No delivery has succeeded for three days.")
    expect(page.get_by_role("button", name="Resend 1 failed")).to_be_disabled()
    accessible(page)
    page.get_by_role("button", name="Enable").click()
    expect(page.get_by_text("Pending deliveries are sent now")).to_be_visible()
    page.get_by_role("button", name="Disable").click()
    expect(page.locator(".message.warning")).to_contain_text("Disabled by a user.")


@pytest.mark.slow
def test_it_can_be_changed_rotated_and_deleted(page: Page, hook: Webhook, accessible: Accessible) -> None:
    open_page(page, hook)
    page.get_by_label("Export failed").check()
    page.get_by_role("button", name="Save").click()
    expect(page.get_by_text("Webhook saved.")).to_be_visible()
    page.wait_for_load_state()  # before that, the page does not ask for confirmation
    page.once("dialog", lambda dialog: dialog.accept())
    page.get_by_role("button", name="Rotate secret").click()
    expect(page.locator("#secret")).to_contain_text("whsec_")
    hook.refresh_from_db()
    assert hook.events == [SUCCEEDED, EventType.FAILED.value]
    assert page.locator("#secret").inner_text() == hook.secret
    accessible(page)
    page.get_by_text("Delete this webhook").click()
    page.once("dialog", lambda dialog: dialog.accept())
    page.get_by_role("button", name="Delete webhook").click()
    expect(page.locator(".empty")).to_contain_text("No webhooks yet")
    assert not Webhook.objects.exists()


@pytest.mark.slow
def test_the_delivery_log_is_filtered_and_paginated(page: Page, alice: User, accessible: Accessible) -> None:
    scenes_webhooks.with_deliveries(alice)
    page.goto(scenes_webhooks.path_of(alice))
    expect(page.get_by_role("row")).to_have_count(51)
    page.get_by_role("link", name="Failed", exact=True).click()
    expect(page.locator(".state", has_text="failed")).to_have_count(50)
    page.get_by_role("link", name="Older").click()
    expect(page.locator(".state", has_text="failed")).to_have_count(50)
    expect(page.get_by_role("link", name="Newer")).to_be_visible()
    accessible(page)


@pytest.mark.slow
def test_it_reports_and_survives_a_brief_server_error(
    page: Page, watch: PageMonitor, workers: Workers, hook: Webhook
) -> None:
    watch.expect("503")
    open_page(page, hook)

    def fail(route: Route) -> None:
        if "hx-request" in route.request.headers:
            route.fulfill(
                status=503, content_type="text/html", body="<main><p>The database does not answer.</p></main>"
            )
        else:
            route.continue_()

    page.route("**/app/webhooks/**", fail)
    page.get_by_role("button", name="Send test").click()
    expect(page.locator("#trouble")).to_contain_text("The database does not answer.")
    page.unroute("**/app/webhooks/**")
    workers.start("webhooks")
    expect(page.locator(".last-test")).to_contain_text("Response: 204", timeout=SOON)
    expect(page.locator("#trouble")).to_have_count(0)


@pytest.mark.slow
def test_it_fits_a_phone(page: Page, alice: User) -> None:
    scenes_webhooks.broken(alice)
    page.set_viewport_size({"width": 390, "height": 800})
    Webhook.objects.update(url="https://hooks.example.com/" + "x" * 300)
    for path in ("/app/webhooks", scenes_webhooks.path_of(alice), scenes_webhooks.of_delivery(alice)):
        page.goto(path)
        assert fits_width(page), path
