"""Accessibility (WCAG 2.2 AA), layout, and focus of every page in every state. C1.

axe checks each page in light on a wide window, and in dark on a phone. The layout is also checked at 200 % zoom. The
pages of the admin are in `test_admin.py`: their theme belongs to another project.
"""

import pytest
from django.contrib.auth.models import User
from django.utils import timezone
from playwright.sync_api import BrowserContext, Page, expect

from exports.models import Receipt
from tests.browser import scenes_exports, scenes_webhooks
from tests.browser.conftest import PageMonitor, check_accessibility, fits_width
from tests.browser.scenes import Scene
from tests.browser.screenshots import SCENES

pytestmark = pytest.mark.slow

WIDE, ZOOMED, PHONE = 1280, 640, 360  # pixels; at 200 % zoom, a wide window has half as many
HEIGHT = 900
# Controls whose center is covered by an element that neither contains them nor is part of them.
COVERED = """() => [...document.querySelectorAll("main :is(a[href], button, input, select, textarea, summary)")]
  .filter((each) => each.checkVisibility({ visibilityProperty: true }) && !each.closest(".unseen"))
  .slice(0, 150)
  .filter((each) => {
    each.scrollIntoView({ block: "center", inline: "center", behavior: "instant" });
    const { x, y, width, height } = each.getClientRects()[0];
    const found = document.elementFromPoint(x + width / 2, y + height / 2);
    return found && !each.contains(found) && !found.contains(each);
  })
  .map((each) => each.outerHTML.slice(0, 120))"""
# Text that is cut off, without an ellipsis or a scroll bar.
CUT = """() => [...document.querySelectorAll("main *:not(.unseen, svg *, option)")]
  .filter((each) => each.checkVisibility() && getComputedStyle(each).overflowX === "hidden"
    && getComputedStyle(each).textOverflow !== "ellipsis" && each.scrollWidth > each.clientWidth + 1
    && each.textContent.trim() && !each.closest("[aria-hidden], .unseen"))
  .map((each) => each.outerHTML.slice(0, 120))"""
# Form submissions are counted but not sent, as if the response were slow.
COUNT_SUBMITS = """() => {
  window.sent = 0;
  window.addEventListener("submit", (event) => { window.sent += 1; event.preventDefault(); });
}"""
MOVING = """() => document.getAnimations().filter((each) => each.playState === "running").length"""


# The API reference has a separate test, because axe needs a minute for all operations.
CHECKED = [each for each in SCENES if not each.name.startswith("admin-") and each.name != "api-docs"]


@pytest.mark.parametrize("scene", CHECKED, ids=lambda each: each.name)
def test_it_is_accessible_in_every_theme_and_width(
    scene: Scene, alice: User, page: Page, context: BrowserContext, watch: PageMonitor
) -> None:
    watch.expect("409")  # images that are not drawn yet
    if scene.status == 404:
        watch.expect("404")
    if scene.anonymous:
        context.clear_cookies()
    scene.prepare(alice)
    limit = "?limit=10" if scene.name.endswith("-busy") else ""  # axe checks each row
    page.emulate_media(reduced_motion="reduce", color_scheme="light")
    response = page.goto(scene.path(alice) + limit)
    assert response
    assert response.status == scene.status
    check_layout(page, "light", WIDE)
    check_accessibility(page)
    check_layout(page, "dark", ZOOMED)
    page.evaluate("for (const each of document.querySelectorAll('details')) each.open = true")
    check_layout(page, "dark", PHONE)
    check_accessibility(page)
    assert page.evaluate(COVERED) == []
    assert page.evaluate(MOVING) == 0


def check_layout(page: Page, scheme: str, width: int) -> None:
    page.emulate_media(color_scheme=scheme)  # type: ignore[arg-type]
    page.set_viewport_size({"width": width, "height": HEIGHT})
    assert fits_width(page), width
    assert page.evaluate(CUT) == [], width


# ---- Focus ----------------------------------------------------------------------------------------------------------
def focused(page: Page) -> str:
    return str(page.evaluate("document.activeElement.id || document.activeElement.outerHTML.slice(0, 120)"))


def replace_receipt(page: Page) -> None:
    """Replace the receipt on the page, as polling does when it has changed."""
    page.evaluate("window.before = document.activeElement")
    page.evaluate("""() => htmx.ajax("GET", document.querySelector("#receipt").getAttribute("hx-get").split("?")[0],
        { target: "#receipt", swap: "outerHTML" })""")
    page.wait_for_function("() => !document.contains(window.before)")


@pytest.mark.parametrize("control", ["check-summary", "copy-checksum", "program-summary", "create-link"])
def test_focus_stays_when_the_receipt_is_replaced(page: Page, alice: User, control: str) -> None:
    scenes_exports.ready(alice)
    page.goto(scenes_exports.path_of_newest_job(alice))
    page.locator("#program-summary").click()
    page.locator(f"#{control}").focus()
    replace_receipt(page)
    assert focused(page) == control


def test_focus_moves_to_the_replaced_part_if_its_button_is_gone(page: Page, alice: User) -> None:
    """When the delivery has expired, the new receipt has no button that creates a link."""
    scenes_exports.ready(alice)
    page.goto(scenes_exports.path_of_newest_job(alice))
    page.locator("#program-summary").click()
    page.locator("#create-link").focus()
    Receipt.objects.update(expires_at=timezone.now())
    replace_receipt(page)
    expect(page.locator("#receipt")).to_be_focused()
    page.keyboard.press("Tab")
    assert focused(page) == "copy-checksum"


def test_focus_stays_when_a_list_without_ids_is_replaced(page: Page, alice: User) -> None:
    scenes_webhooks.with_deliveries(alice, count=6)
    page.goto(scenes_webhooks.path_of(alice))
    page.get_by_role("link", name="Failed", exact=True).focus()
    page.evaluate("window.before = document.activeElement")
    page.evaluate("htmx.ajax('GET', location.href, { target: '#log', swap: 'outerHTML' })")
    page.wait_for_function("() => !document.contains(window.before)")
    page.wait_for_function("() => document.activeElement.textContent === 'Failed'")


def test_a_second_click_on_a_sent_button_is_ignored(page: Page, alice: User) -> None:
    """The button keeps the focus. The attribute `disabled` would move the focus to the page."""
    scenes_webhooks.one(alice)
    page.goto(scenes_webhooks.path_of(alice))
    page.evaluate(COUNT_SUBMITS)
    page.locator("#send-test").focus()
    for _ in range(2):
        page.keyboard.press("Enter")
        expect(page.locator("#send-test")).to_have_attribute("aria-disabled", "true")
    assert focused(page) == "send-test"
    assert page.evaluate("window.sent") == 1
