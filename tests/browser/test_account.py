"""Signing in and out, tokens, the password, and error pages. C1."""

import re

import pytest
from django.contrib.auth.models import User
from playwright.sync_api import Page, expect

from config.dev.stack.processes import Web
from tests.browser.conftest import PASSWORD, Accessible, PageMonitor, fits_width
from tests.e2e.test_streams import Client


def enter(page: Page, name: str, password: str) -> None:
    page.get_by_label("Name").fill(name)
    page.get_by_label("Password").fill(password)
    page.get_by_role("button", name="Sign in").click()


def test_a_user_can_sign_in_and_out(anonymous: Page, carol: User, accessible: Accessible) -> None:
    anonymous.goto("/")
    accessible(anonymous)
    anonymous.get_by_role("button", name="Sign in").click()
    accessible(anonymous)
    enter(anonymous, "carol", PASSWORD)
    expect(anonymous.get_by_role("navigation", name="Main")).to_contain_text("Exports")
    assert anonymous.url.endswith("/app/exports")

    anonymous.get_by_role("button", name="Sign out").click()
    expect(anonymous.get_by_role("navigation", name="Main")).to_contain_text("Sign in")
    anonymous.goto("/app/account")
    assert "/app/sign-in?next=/app/account" in anonymous.url


@pytest.mark.slow
def test_signing_in_redirects_to_the_requested_page(anonymous: Page, carol: User) -> None:
    anonymous.goto("/app/account")
    enter(anonymous, "carol", PASSWORD)
    expect(anonymous.get_by_role("heading", level=1)).to_have_text("Account")


@pytest.mark.slow
def test_signing_in_never_redirects_to_another_host(anonymous: Page, carol: User) -> None:
    anonymous.goto("/app/sign-in?next=https://elsewhere.example/")
    enter(anonymous, "carol", PASSWORD)
    expect(anonymous).to_have_url(re.compile("/app/exports$"))


@pytest.mark.slow
def test_wrong_name_and_wrong_password_give_the_same_error(anonymous: Page, carol: User) -> None:
    messages = set()
    for name in ("carol", "nobody"):
        anonymous.goto("/app/sign-in")
        enter(anonymous, name, "wrong")
        expect(anonymous.get_by_role("alert")).to_contain_text("Incorrect username or password")
        messages.add(anonymous.get_by_role("alert").inner_text())
    assert len(messages) == 1


@pytest.mark.slow
def test_a_token_is_shown_once_and_can_be_revoked(page: Page, web: Web, accessible: Accessible) -> None:
    page.goto("/app/account")
    accessible(page)
    page.get_by_label("Name").fill("Nightly import")
    page.get_by_label("Expires after").select_option("7")
    page.get_by_label("Exports: read and download").check()
    page.get_by_role("button", name="Create token").click()
    token = page.locator("#new-token").inner_text()
    accessible(page)
    assert status_for(web, token) == 200

    page.goto("/app/account")
    expect(page.locator("#new-token")).to_have_count(0)
    row = page.get_by_role("row").nth(1)
    for text in ("Nightly import", "exports:read", "in 6 d"):
        expect(row).to_contain_text(text)
    page.once("dialog", lambda dialog: dialog.dismiss())
    page.get_by_role("button", name="Revoke").click()
    assert status_for(web, token) == 200
    page.once("dialog", lambda dialog: dialog.accept())
    page.get_by_role("button", name="Revoke").click()
    expect(page.get_by_role("status")).to_contain_text(re.compile(r"Token Nightly import \(\w{8}…\) revoked\."))
    assert status_for(web, token) == 401


def status_for(web: Web, token: str) -> int:
    client = Client(web, token)
    try:
        return client.request("/exports/limits").status
    finally:
        client.disconnect()


@pytest.mark.slow
def test_the_password_can_be_changed(anonymous: Page, carol: User, accessible: Accessible) -> None:
    anonymous.goto("/app/account/password")
    enter(anonymous, "carol", PASSWORD)
    accessible(anonymous)
    anonymous.get_by_label("Old password").fill(PASSWORD)
    for label in ("New password", "New password confirmation"):
        anonymous.get_by_label(label, exact=True).fill("12345678")
    anonymous.get_by_role("button", name="Change password").click()
    expect(anonymous.get_by_role("alert").first).to_contain_text("too common")

    anonymous.get_by_label("Old password").fill(PASSWORD)
    for label in ("New password", "New password confirmation"):
        anonymous.get_by_label(label, exact=True).fill("another one, 2")
    anonymous.get_by_role("button", name="Change password").click()
    expect(anonymous.get_by_role("status")).to_contain_text("Password changed")
    carol.refresh_from_db()
    assert carol.check_password("another one, 2")


@pytest.mark.slow
def test_a_missing_page_shows_a_404_page(page: Page, watch: PageMonitor, accessible: Accessible) -> None:
    watch.expect("404")
    response = page.goto("/app/exports/00000000-0000-0000-0000-000000000000")
    assert response
    assert response.status == 404
    expect(page.get_by_role("heading", level=1)).to_be_visible()
    accessible(page)
    page.get_by_role("link", name="Go to the home page").click()
    expect(page.get_by_role("navigation", name="Main")).to_be_visible()


@pytest.mark.slow
def test_it_fits_a_phone(page: Page, anonymous: Page) -> None:
    for each, paths in ((anonymous, ("/", "/app/sign-in")), (page, ("/app/account",))):
        each.set_viewport_size({"width": 390, "height": 800})
        for path in paths:
            each.goto(path)
            assert fits_width(each), path


@pytest.mark.slow
def test_a_token_is_selected_if_there_is_no_clipboard(page: Page) -> None:
    """Without HTTPS, browsers offer no clipboard."""
    page.add_init_script("Object.defineProperty(navigator, 'clipboard', { value: undefined })")
    page.goto("/app/account")
    page.get_by_label("Name").fill("Nightly import")
    page.get_by_role("button", name="Create token").click()
    token = page.locator("#new-token").inner_text()
    page.wait_for_load_state()  # before that, nothing can be copied
    page.get_by_role("button", name="Copy").click()
    expect(page.get_by_role("button", name="Selected: copy with the keyboard")).to_be_visible()
    assert page.evaluate("getSelection().toString()") == token
