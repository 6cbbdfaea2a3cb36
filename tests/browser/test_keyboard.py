"""Whole workflows with only the keyboard, in light and dark: the focus is never lost, and always visible. C1."""

import re
from collections.abc import Iterator
from typing import Any

import pytest
from django.contrib.auth.models import User
from playwright.sync_api import Page, expect

from etl.models import Task
from exports.models import Dataset, Job
from rules.models import Rule
from tests.browser.test_focus import ACTIVE, shot, visible_pixels
from tests.e2e.conftest import Workers
from tests.integration.etl_factories import make_rule
from tests.integration.etl_progress import read
from tests.integration.reviewed import SCHEMA, extract

pytestmark = [pytest.mark.slow, pytest.mark.parametrize("scheme", ["light", "dark"])]

MAX_STOPS = 80  # of the Tab key
# Reports a focused element that was removed, or that lost the focus while no other element received it.
REPORT_LOST_FOCUS = """
let last;
document.addEventListener("focusin", (event) => { last = event.target; });
(function look() {
  if (last && document.activeElement === document.body && document.hasFocus() && !window.measuring) {
    window.lost(last.outerHTML.slice(0, 120));
    last = null;
  }
  requestAnimationFrame(look);
})();
"""
NAME = """() => {
  const element = document.activeElement;
  return element.getAttribute("aria-label") || (element.labels && element.labels[0] || element).textContent.trim();
}"""


@pytest.fixture
def keyboard(page: Page, scheme: Any) -> Iterator[Page]:
    """A page in light or dark. The test fails if the focus is lost."""
    lost: list[str] = []
    page.emulate_media(reduced_motion="reduce", color_scheme=scheme)
    page.expose_function("lost", lambda element: lost.append(element))  # noqa: PLW0108 - it must be a function
    page.add_init_script(REPORT_LOST_FOCUS)
    yield page
    assert lost == []


def tab_to(page: Page, name: str) -> None:
    """Press Tab until the named control has the focus, and check by pixels that the focus is visible."""
    names = []
    for _ in range(MAX_STOPS):
        page.keyboard.press("Tab")
        names.append(page.evaluate(NAME))
        if re.match(name, names[-1]):
            break
    else:
        raise AssertionError(f"{name!r} is none of {names}")
    box = page.evaluate(ACTIVE)
    after = shot(page, box)
    page.evaluate("window.measuring = document.activeElement; measuring.blur()")
    before = shot(page, box)
    page.evaluate("measuring.focus({focusVisible: true, preventScroll: true}); window.measuring = null")
    assert visible_pixels(before, after) >= min(box["width"], box["height"]), box["name"]


def press(page: Page, name: str) -> None:
    tab_to(page, name)
    page.keyboard.press("Enter")


def test_an_export_is_submitted_watched_and_downloaded(keyboard: Page, dataset: Dataset, workers: Workers) -> None:
    page = keyboard
    page.goto("/app/exports")
    press(page, "Create your first export")
    expect(page.get_by_role("heading", level=1)).to_have_text("New export")
    tab_to(page, "Keys and dates, one pair per line")
    page.keyboard.type("JFK 2024-02-29")
    press(page, "Create export$")
    expect(page.get_by_role("heading", level=1)).to_contain_text("Pending")
    tab_to(page, "Cancel")
    workers.start()
    expect(page.get_by_role("heading", level=1)).to_contain_text("Success", timeout=60_000)
    tab_to(page, "Download")
    button = page.get_by_role("button", name=re.compile("^Download"))
    for _ in range(2):  # the second time, the button has been replaced
        expect(button).to_be_enabled()
        with page.expect_download() as download:
            page.keyboard.press("Enter")
        assert download.value.path().read_bytes()
        expect(page.locator("#receipt")).to_contain_text("The last link was used")
        expect(button).to_be_focused()
    assert Job.objects.get().status == "success"


def test_a_document_is_uploaded_and_corrected(keyboard: Page, alice: User, tmp_path: Any) -> None:
    page = keyboard
    make_rule(alice, mode="llm", name="Invoices", json_schema=SCHEMA)
    (tmp_path / "invoice.txt").write_text("Invoice INV-17")
    page.goto("/app/documents")
    with page.expect_file_chooser() as chooser:
        press(page, "Documents: choose")
    chooser.value.set_files(tmp_path / "invoice.txt")
    tab_to(page, "Rule")
    page.keyboard.type("Invoices")
    press(page, "Upload$")
    expect(page.locator(".uploads li")).to_contain_text("Uploaded")
    task = Task.objects.get()
    read(task)
    extract(task)
    expect(page.locator("#rows .state").first).to_have_text("Completed")
    press(page, "invoice.txt$")
    expect(page.locator("#review")).to_contain_text("Not approved")
    press(page, "Correct the data")
    expect(page.get_by_role("heading", name="Correct the result")).to_be_visible()
    tab_to(page, "number")
    page.keyboard.press("ControlOrMeta+a")
    page.keyboard.type("INV-71")
    press(page, "Save")
    expect(page.locator("#messages")).to_contain_text("Correction saved.")
    press(page, "Approve")
    expect(page.locator("#review")).to_contain_text("Approved by alice")


def test_a_rule_is_written(keyboard: Page, alice: User) -> None:
    page = keyboard
    page.goto("/app/rules/new")
    tab_to(page, "Name$")
    page.keyboard.type("Tickets")
    press(page, "Add field$")
    expect(page.get_by_label("Name of field 2")).to_be_focused()
    page.keyboard.press("ControlOrMeta+a")
    page.keyboard.type("seat")
    tab_to(page, "Description of")
    page.keyboard.type("As printed")
    tab_to(page, "JSON Schema$")
    page.keyboard.press("Tab")  # indents
    page.keyboard.press("ControlOrMeta+z")
    page.keyboard.press("Escape")
    press(page, "Save|Create")
    expect(page.get_by_role("status").first).to_contain_text("Rule “Tickets” created.")
    rule = Rule.objects.get(owner=alice)
    assert (rule.json_schema or {})["properties"]["seat"]["description"] == "As printed"
