"""Single sign-on with a real provider, and second factors with a virtual security key. C10."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from django.contrib.auth.models import User
from playwright.sync_api import Browser, Page, expect

from config.dev.stack.openid_provider import OpenIDProvider
from tests.browser.conftest import HOST, PASSWORD, Accessible, PageMonitor, fits_width
from tests.browser.test_account import enter
from tests.openid import running_provider
from tests.serving import serving, variables


@pytest.fixture
def key(anonymous: Page) -> None:
    """A virtual security key in the browser."""
    session = anonymous.context.new_cdp_session(anonymous)
    session.send("WebAuthn.enable")
    options = {"protocol": "ctap2", "transport": "usb", "hasUserVerification": True, "isUserVerified": True}
    session.send("WebAuthn.addVirtualAuthenticator", {"options": {**options, "automaticPresenceSimulation": True}})


@pytest.mark.slow
def test_a_security_key_is_added_and_used(anonymous: Page, carol: User, key: None, accessible: Accessible) -> None:
    """C10: the user has just entered the password, so adding the key does not require it again."""
    page = anonymous
    page.goto("/app/account/second-factors")
    enter(page, "carol", PASSWORD)
    expect(page.get_by_role("heading", level=1)).to_have_text("Second factors")
    accessible(page)
    page.get_by_role("button", name="Add a security key").click()
    expect(page.get_by_role("heading", level=1)).to_have_text("Add a security key")
    accessible(page)
    page.get_by_label("Name").fill("Blue key")
    page.get_by_role("button", name="Add", exact=True).click()
    expect(page.get_by_role("heading", level=1)).to_have_text("Recovery codes")
    accessible(page)
    codes = page.locator("#codes").inner_text().split()
    assert len(codes) == 10
    page.get_by_role("button", name="I saved the codes").click()
    expect(page.get_by_role("table")).to_contain_text("Blue key")
    accessible(page)
    page.set_viewport_size({"width": 360, "height": 800})
    assert fits_width(page)

    page.get_by_role("button", name="Sign out").click()
    page.goto("/app/account")
    enter(page, "carol", PASSWORD)
    expect(page.get_by_role("heading", level=1)).to_have_text("Second factor")
    accessible(page)
    assert fits_width(page)
    page.get_by_role("button", name="Use a security key").click()
    expect(page.get_by_role("heading", level=1)).to_have_text("Account")


@pytest.fixture(scope="module")
def provider(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OpenIDProvider]:
    with running_provider(tmp_path_factory.mktemp("provider")) as running:
        yield running


@pytest.mark.slow
def test_a_user_signs_in_with_the_identity_provider(
    browser: Browser, provider: OpenIDProvider, transactional_db: None, tmp_path: Path, accessible: Accessible
) -> None:
    with serving(tmp_path, variables(tmp_path, **provider.variables())) as web:
        watch = PageMonitor((f"{HOST}:{web.port}", f"127.0.0.1:{provider.port}"))
        context = browser.new_context(base_url=f"http://{HOST}:{web.port}")
        page = watch.monitored(context.new_page())
        page.goto("/admin/")
        expect(page).to_have_url(re.compile(r"/app/sign-in\?next="))
        accessible(page)
        page.get_by_role("button", name="Sign in with single sign-on").click()
        enter(page, "ada", "ada")
        expect(page).to_have_url(re.compile("/admin/$"))
        context.close()
        assert watch.unexpected_errors() == []
    assert User.objects.get().is_superuser
