"""The API reference: it loads only files of this host, and "Try it out" works. C4."""

import json
from typing import Any

import pytest
from django.contrib.auth.models import User
from knox.models import AuthToken
from playwright.sync_api import Locator, Page, expect

from exports.models import Dataset, Job
from tests.browser.conftest import check_accessibility, fits_width
from tests.contract.test_document import document, operations
from tests.integration.test_schema import ITEM

DOCS = "/api/docs"


TOO_WIDE = """() => [...document.querySelectorAll("main *")]
  .filter((each) => each.checkVisibility() && each.getBoundingClientRect().right > window.innerWidth)
  .filter((each) => !each.parentElement.closest(".scroll, pre"))
  .map((each) => each.outerHTML.slice(0, 150))"""


def open_operation(page: Page, name: str) -> Locator:
    """Open an operation by its link, and return its element."""
    page.goto(f"{DOCS}#{name}")
    block = page.locator(f"#{name}")
    expect(block.locator("form.try button")).to_be_visible()
    return block


def run(block: Locator, body: Any) -> Any:
    """Send a body, and return the 202 response."""
    block.locator("textarea").fill(json.dumps(body))
    block.get_by_role("button", name="Send").click()
    expect(block.locator(".answer p")).to_have_text("Status 202")
    return json.loads(block.locator(".answer pre").inner_text())


@pytest.mark.slow
def test_it_is_accessible_under_the_content_security_policy(anonymous: Page) -> None:
    """For anonymous users. `watch` fails the test if there is a console error or a request to another host."""
    page = anonymous
    page.goto(DOCS)
    expect(page.locator("details.operation")).to_have_count(len(operations()) + len(document()["webhooks"]))
    check_accessibility(page)
    page.get_by_role("link", name="Create an export", exact=True).first.click()
    expect(page.locator("#createExport")).to_have_attribute("open", "")
    expect(page.locator("#createExport .responses")).to_contain_text("idempotency_key_reused")
    page.emulate_media(color_scheme="dark")
    page.set_viewport_size({"width": 360, "height": 800})
    assert fits_width(page), page.evaluate(TOO_WIDE)
    check_accessibility(page)
    assert "unsafe" not in page.request.get(DOCS).headers["content-security-policy"]


@pytest.mark.slow
def test_try_it_out_works_with_the_session(page: Page, dataset: Dataset, alice: User) -> None:
    """The CSRF token is sent automatically."""
    body = {"dataset": dataset.name, "items": [ITEM]}
    accepted = run(open_operation(page, "createExport"), body)
    assert str(Job.objects.get(user=alice).pk) == accepted["jobId"]
    block = open_operation(page, "getExport")
    block.get_by_label("jobId").fill(accepted["jobId"])
    block.get_by_role("button", name="Send").click()
    expect(block.locator(".answer pre")).to_contain_text('"total": 1')


@pytest.mark.slow
def test_try_it_out_works_with_a_token(page: Page, dataset: Dataset, bob: User) -> None:
    """The token is used instead of the session of the signed-in user."""
    block = open_operation(page, "createExport")
    page.get_by_label("Token for “Try it out”").fill(str(AuthToken.objects.create(bob)[1]))
    accepted = run(block, {"dataset": dataset.name, "items": [ITEM]})
    assert str(Job.objects.get(user=bob).pk) == accepted["jobId"]


@pytest.mark.slow
def test_users_can_sign_out_on_this_page(page: Page) -> None:
    page.goto(DOCS)
    page.get_by_role("button", name="Sign out").click()
    expect(page.get_by_role("navigation", name="Main")).to_contain_text("Sign in")


@pytest.mark.slow
def test_a_parameter_may_have_the_name_of_a_property_of_forms(page: Page, dataset: Dataset) -> None:
    """The parameter `dataset` of `GET /exports`: HTML forms have a property of this name."""
    block = open_operation(page, "listExports")
    block.locator("input[name=dataset]").fill(dataset.name)
    with page.expect_request(lambda request: f"dataset={dataset.name}" in request.url):
        block.get_by_role("button", name="Send").click()
    expect(block.locator(".answer p")).to_have_text("Status 200")
