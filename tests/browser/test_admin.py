"""The admin in a browser: scripts are not blocked, pages are accessible, and actions are confirmed and logged. C2."""

import re
from functools import partial

import pytest
from django.contrib.admin.models import LogEntry
from django.contrib.auth.models import User
from playwright.sync_api import Page, ViewportSize, expect

from exports.models import Chunk, Job
from tests.browser.conftest import Accessible, check_accessibility, fits_width
from tests.browser.scenes_admin import LISTS, SCENES, busy, list_of
from tests.waiting import wait_until

PAGES = {scene.name: scene for scene in SCENES}
PHONE: ViewportSize = {"width": 390, "height": 844}


@pytest.fixture
def alice_is_staff(alice: User) -> User:
    User.objects.filter(pk=alice.pk).update(is_staff=True, is_superuser=True)
    return alice


def open_dark(page: Page, path: str) -> None:
    page.emulate_media(color_scheme="dark", reduced_motion="reduce")
    page.goto(path)


@pytest.fixture
def accessible() -> Accessible:
    return partial(check_accessibility, is_admin=True)


@pytest.mark.slow
def test_the_empty_start_page_shows_first_steps(page: Page, alice_is_staff: User, accessible: Accessible) -> None:
    page.goto("/admin/")
    accessible(page)
    page.get_by_role("link", name="Add dataset").click()
    expect(page.get_by_label("Base path")).to_be_visible()
    accessible(page)


@pytest.mark.slow
def test_the_start_page_shows_charts_with_tables(page: Page, alice_is_staff: User, accessible: Accessible) -> None:
    busy(alice_is_staff)
    page.goto("/admin/")
    chart = page.get_by_role("img", name="Chart: Exports by status")
    expect(chart).to_be_visible()
    drawn = "canvas => new Set(canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height).data).size"
    wait_until(lambda: chart.locator("canvas").evaluate(drawn) > 3)
    accessible(page)
    open_dark(page, "/admin/")
    accessible(page)
    page.set_viewport_size(PHONE)
    wait_until(lambda: fits_width(page))  # the charts are redrawn first

    section = page.get_by_role("region", name="Exports by status")
    section.get_by_text("Show as table").click()
    accessible(page)
    link = section.get_by_role("row").nth(1).get_by_role("link").first
    count = link.inner_text()
    link.click()
    expect(page.locator("#result_list tbody")).to_have_count(int(count))


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_lists_and_detail_pages_are_accessible(page: Page, alice_is_staff: User, accessible: Accessible) -> None:
    busy(alice_is_staff)
    paths = [list_of(model)(alice_is_staff) for model in LISTS]
    names = (
        "job-running", "job-failed", "job-retry", "job-cancel", "chunk-failed", "task-failed", "delivery-failed",
        "dataset-granted",
    )  # fmt: skip
    for path in (*paths, *(PAGES[f"admin-{name}"].path(alice_is_staff) for name in names)):
        response = page.goto(path)
        assert response
        assert response.status == 200
        accessible(page)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["admin-file", "admin-receipt", "admin-link", "admin-chunk-failed"])
def test_long_values_wrap_on_a_phone(page: Page, alice_is_staff: User, name: str) -> None:
    """A checksum has 64 characters, with no place to break the line."""
    busy(alice_is_staff)
    page.set_viewport_size(PHONE)
    page.goto(PAGES[name].path(alice_is_staff))
    values = page.locator(".readonly")
    assert values.count() > 3
    wide = "all => all.map(each => each.getBoundingClientRect().left + each.scrollWidth)"
    assert max(values.evaluate_all(wide)) <= PHONE["width"]


@pytest.mark.slow
def test_a_bulk_action_is_confirmed_done_and_logged(page: Page, alice_is_staff: User) -> None:
    busy(alice_is_staff)
    page.goto("/admin/exports/job/?status__exact=failed")
    for place in (1, 2):
        page.get_by_label("Select record").nth(place).check()
    page.locator("select[name=action]").select_option("retry")
    page.get_by_role("button", name="Run").click()
    expect(page.get_by_role("heading", name="Retry failed chunks: 2 exports?")).to_be_visible()
    before = set(Job.objects.filter(status="running").values_list("pk", flat=True))

    page.get_by_role("button", name="Retry failed chunks: 2 exports").dblclick()

    # The two requests run concurrently, so each may change one of the exports and find the other one changed already.
    expect(page.get_by_text(re.compile(r"(Retried|Unchanged:) [12] export")).first).to_be_visible()
    running = Job.objects.filter(status="running")
    wait_until(lambda: running.count() >= len(before) + 2)
    retried = set(running.values_list("pk", flat=True)) - before
    assert len(retried) == 2
    assert Chunk.objects.filter(job__in=retried, status="pending").count() == 6
    done = LogEntry.objects.filter(object_id__in=[str(pk) for pk in retried], change_message__startswith="Retried")
    logged = done.filter(user=alice_is_staff, change_message__contains="3 failed chunks")
    wait_until(lambda: logged.count() >= 2)  # each change is logged after its commit


@pytest.mark.slow
def test_a_job_is_cancelled_after_confirmation(page: Page, alice_is_staff: User) -> None:
    busy(alice_is_staff)
    path = PAGES["admin-job-running"].path(alice_is_staff)
    page.goto(path)
    page.get_by_role("link", name="Cancel").click()
    page.get_by_role("link", name="Cancel and go back").click()
    assert Job.objects.filter(status="running").count() == 1
    page.get_by_role("link", name="Cancel").click()
    page.get_by_role("button", name="Cancel: 1 export").click()
    expect(page.get_by_text("Cancelled 1 export. 30 chunks cancelled.")).to_be_visible()
    expect(page.get_by_role("link", name="Cancel", exact=True)).to_have_count(0)
