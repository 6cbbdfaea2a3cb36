"""The interactive API documentation: it loads files of this host only, and "Try it out" works. C4."""

import json
from typing import Any

import pytest
from django.contrib.auth.models import User
from knox.models import AuthToken
from playwright.sync_api import Browser, Locator, Page, expect

from exports.models import Dataset, Job
from tests.browser.conftest import PageMonitor, fits_width
from tests.contract.test_document import document, operations
from tests.integration.test_schema import ITEM

DOCS = "/api/docs"


def draw(page: Page) -> Page:
    page.goto(DOCS)
    expect(page.locator(".opblock")).to_have_count(len(operations()) + len(document()["webhooks"]), timeout=60_000)
    return page


def policy(page: Page) -> str:
    return page.request.get(DOCS).headers["content-security-policy"]


def opened(page: Page, name: str) -> Locator:
    block = page.locator(f"[id$='-{name}']")
    if "is-open" not in (block.get_attribute("class") or ""):
        block.locator(".opblock-summary-control").click()
    expect(block.locator(".execute")).to_be_visible()
    return block


def run(block: Locator, body: Any) -> Any:
    """Send a body, and return the 202 response."""
    block.locator("textarea.body-param__text").fill(json.dumps(body))
    block.locator(".execute").click()
    live = block.locator(".live-responses-table")
    expect(live.locator("tbody .response-col_status").first).to_have_text("202")
    return json.loads(live.locator("code.language-json").first.inner_text())


@pytest.mark.slow
def test_it_shows_every_operation_without_errors(anonymous: Page) -> None:
    """To anonymous users, within the page's policy. `watch` fails the test for a console error or a foreign request."""
    page = draw(anonymous)
    assert page.locator("h1, .info .title").first.inner_text().startswith(("Sluice", "API"))
    tags = [each.get_attribute("data-tag") for each in page.locator(".opblock-tag").all()]
    expected = [tag["name"] for tag in document()["tags"]]
    assert tags[: len(expected)] == expected
    block = opened(page, "createExport")
    block.get_by_text("idempotency_key_reused").first.wait_for()
    for name in ("Schema", "Example Value"):
        block.locator(".response").first.get_by_role("tab", name=name).click()
    block.locator(".response .examples-select select").first.select_option(index=0)
    page.locator("section.models .models-control").click()
    page.locator("section.models .json-schema-2020-12-accordion, .model-container").first.click()
    page.locator(".btn.authorize").first.click()
    expect(page.locator(".auth-container")).to_be_visible()
    assert "unsafe" not in policy(page)


@pytest.mark.slow
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_it_follows_the_system_color_scheme(
    browser: Browser, browser_context_args: dict[str, Any], watch: PageMonitor, scheme: Any
) -> None:
    context = browser.new_context(**{**browser_context_args, "color_scheme": scheme, "viewport": PHONE})
    page = draw(watch.monitored(context.new_page()))
    ground = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert (sum(map(int, ground.removeprefix("rgb(").removesuffix(")").split(","))) < 300) is (scheme == "dark")
    assert fits_width(page)
    context.close()


PHONE = {"width": 390, "height": 844}


@pytest.mark.slow
def test_try_it_out_works_with_the_session(page: Page, dataset: Dataset, alice: User) -> None:
    """The CSRF token is sent automatically."""
    body = {"dataset": dataset.name, "items": [ITEM]}
    answer = run(opened(draw(page), "createExport"), body)
    assert str(Job.objects.get(user=alice).pk) == answer["jobId"]


@pytest.mark.slow
def test_try_it_out_works_with_a_token(anonymous: Page, dataset: Dataset, bob: User) -> None:
    page = draw(anonymous)
    page.locator(".btn.authorize").first.click()
    authorization = page.locator(".auth-container")
    expect(authorization).to_have_count(1)  # token authentication only: the session cannot be entered
    authorization.locator("input").fill(str(AuthToken.objects.create(bob)[1]))
    authorization.locator("button.authorize").click()
    page.locator(".auth-container .btn-done").click()
    answer = run(opened(page, "createExport"), {"dataset": dataset.name, "items": [ITEM]})
    assert str(Job.objects.get(user=bob).pk) == answer["jobId"]
