"""Properties of all pages: sign-in, content security policy, tokens, formats, and error pages. C1."""

from typing import Any, cast
from uuid import uuid4

import pytest
from django.conf import LazySettings
from django.contrib.admin.models import LogEntry
from django.contrib.auth.models import User
from django.http import HttpResponse
from django.test import Client
from django.urls import URLPattern, URLResolver, get_resolver

from config.platform.durations import duration
from config.platform.http.tokens import id_of, of_user
from config.platform.ui.sign_in import NAME_RATE_FACTOR
from config.platform.ui.templatetags import pages
from tests.conftest import browser_of, change_settings

pytestmark = pytest.mark.usefixtures("empty_redis")

PASSWORD = "only for tests, 1"


@pytest.fixture
def carol(transactional_db: None) -> User:
    return User.objects.create_user("carol", password=PASSWORD)


def sign_in(client: Client, name: str, password: str, **more: Any) -> str:
    return client.post("/app/sign-in", {"username": name, "password": password}, **more).content.decode()


# ---- Signing in -----------------------------------------------------------------------------------------------------
def test_sign_in_attempts_are_limited_per_minute(carol: User, settings: LazySettings) -> None:
    change_settings(settings, sign_in_rate="3/min")
    for _ in range(3):
        assert "Incorrect username or password" in sign_in(Client(), "carol", "wrong")
    assert "Too many attempts" in sign_in(Client(), "carol", PASSWORD)
    assert "Too many attempts" in sign_in(Client(), "somebody else", "wrong")  # from the same address


@pytest.mark.slow
def test_sign_in_attempts_count_by_name_across_addresses(carol: User, settings: LazySettings) -> None:
    change_settings(settings, sign_in_rate="1/hour")
    for number in range(NAME_RATE_FACTOR):
        assert "Incorrect username or password" in sign_in(
            Client(), "carol", "wrong", REMOTE_ADDR=f"192.0.2.{number + 10}"
        )
    assert "Too many attempts" in sign_in(Client(), "CAROL", PASSWORD, REMOTE_ADDR="192.0.2.9")


@pytest.mark.slow
def test_one_address_cannot_lock_out_other_users(carol: User, settings: LazySettings) -> None:
    change_settings(settings, sign_in_rate="2/min")
    for _ in range(2 * NAME_RATE_FACTOR + 5):
        sign_in(Client(), "carol", "wrong", REMOTE_ADDR="192.0.2.1")
    assert "Incorrect username or password" in sign_in(Client(), "carol", "wrong", REMOTE_ADDR="192.0.2.2")


def test_any_password_text_gets_a_response(carol: User) -> None:
    assert "Null characters are not allowed" in sign_in(Client(), "x" * 100, "\0 ")
    assert "Incorrect username or password" in sign_in(Client(), "x" * 100, "漢字" * 1000)


def test_pages_require_a_session(transactional_db: None) -> None:
    # `app/` redirects to a page.
    paths = [path for path in page_paths() if path != "app/" and not path.startswith("app/sign-")]
    assert len(paths) > 3
    for path in paths:
        for answer in (Client().get(f"/{path}"), Client().post(f"/{path}")):
            if answer.status_code not in (401, 405):  # 401 for requests from scripts, 405 for the wrong method
                assert answer.status_code == 302, path
                assert answer["Location"].startswith("/app/sign-in?next="), path


def page_paths() -> list[str]:
    """Return the paths of pages without parameters."""

    def walk(patterns: list[URLPattern | URLResolver], before: str = "") -> list[str]:
        found = []
        for pattern in patterns:
            path = before + str(pattern.pattern)
            found += walk(pattern.url_patterns, path) if isinstance(pattern, URLResolver) else [path]
        return found

    return [path for path in walk(get_resolver().url_patterns) if path.startswith("app/") and "<" not in path]


# ---- Content security policy ----------------------------------------------------------------------------------------
def test_pages_load_only_own_resources(client: Client, carol: User) -> None:
    policy = client.get("/app/sign-in")["Content-Security-Policy"]
    directives = dict(directive.split(" ", 1) for directive in policy.split("; "))
    assert directives["default-src"] == directives["frame-ancestors"] == directives["base-uri"] == "'none'"
    assert directives["script-src"] == directives["style-src"] == directives["connect-src"] == "'self'"


@pytest.mark.parametrize("path", ["/exports", "/livez", "/api/v1/etl/tasks", "/nothing", "/admin/login/", "/api/docs"])
def test_every_response_has_a_content_security_policy(client: Client, transactional_db: None, path: str) -> None:
    assert "default-src 'none'" in client.get(path)["Content-Security-Policy"]


def test_pages_are_not_cached(carol: User) -> None:
    answer = browser_of(carol).get("/app/account")
    assert answer["Cache-Control"] == "no-store"
    assert "HX-Request" in answer["Vary"]


def test_new_tokens_are_rate_limited_like_those_of_the_api(alice: User, settings: LazySettings) -> None:
    change_settings(settings, export_rate="1/min")
    browser = browser_of(alice)
    for _ in range(2):
        page = browser.post("/app/account", {"once": uuid4(), "name": "x", "days": "7"}).content.decode()
    assert "Too many attempts" in page
    assert of_user(alice.pk).count() == 1


def test_tokens_of_other_users_cannot_be_revoked(carol: User, alice: User) -> None:
    mine = browser_of(carol)
    mine.post("/app/account", {"name": "mine", "days": "7", "once": uuid4()})
    handle = id_of(of_user(carol.pk).get())
    assert browser_of(alice).post(f"/app/account/tokens/{handle}/revoke").status_code == 404
    assert mine.get(f"/app/account/tokens/{handle}/revoke").status_code == 405
    assert of_user(carol.pk).count() == 1
    mine.post(f"/app/account/tokens/{handle}/revoke")
    assert of_user(carol.pk).count() == 0


def test_a_repeated_form_creates_no_second_token(carol: User) -> None:
    client, form = browser_of(carol), {"name": "mine", "days": "7", "once": str(uuid4())}
    assert b"Token created" in client.post("/app/account", form).content
    again = client.post("/app/account", form).content
    assert b"Token created" not in again
    assert b"was already created" in again
    assert of_user(carol.pk).count() == 1


def change_password(client: Client, old: str, **more: str) -> HttpResponse:
    new = "another one, 2"
    body = {"old_password": old, "new_password1": new, "new_password2": new, **more}
    return cast("HttpResponse", client.post("/app/account/password", body))


def test_a_token_has_a_name_and_the_chosen_scopes(carol: User) -> None:
    """C9."""
    client, form = browser_of(carol), {"name": "Nightly", "days": "7", "scopes": ["exports:read"], "once": uuid4()}
    page = client.post("/app/account", form).content.decode()
    assert "Nightly" in page
    assert "<code>exports:read</code>" in page
    assert of_user(carol.pk).get().details.scopes == ["exports:read"]
    assert b"This field is required" in client.post("/app/account", {"days": "7", "once": uuid4()}).content
    assert of_user(carol.pk).count() == 1


def test_a_password_change_revokes_all_tokens(carol: User) -> None:
    client = browser_of(carol)
    client.post("/app/account", {"name": "mine", "days": "7", "once": uuid4()})
    assert change_password(client, PASSWORD).status_code == 302
    assert of_user(carol.pk).count() == 0
    assert LogEntry.objects.filter(object_id=str(carol.pk)).count() == 3


def test_guesses_of_the_old_password_are_limited(carol: User, settings: LazySettings) -> None:
    change_settings(settings, sign_in_rate="2/min")
    client = browser_of(carol)
    for _ in range(2):
        assert change_password(client, "wrong").status_code == 200
    change_password(client, PASSWORD)
    carol.refresh_from_db()
    assert carol.check_password(PASSWORD)


def test_a_form_without_a_csrf_token_is_refused_with_a_page(carol: User) -> None:
    client = browser_of(carol, enforce_csrf_checks=True)
    answer = client.post("/app/account", {"name": "mine", "days": "7", "once": uuid4()})
    assert answer.status_code == 403
    assert b"has expired" in answer.content
    assert of_user(carol.pk).count() == 0


def test_error_pages_of_buttons_do_not_link_to_their_own_url(carol: User) -> None:
    """A GET of such a URL is 405."""
    button = f"/app/exports/{uuid4()}/cancel"
    for client, status in ((browser_of(carol, enforce_csrf_checks=True), 403), (browser_of(carol), 404)):
        refused = client.post(button)
        assert (refused.status_code, 'href=""' in refused.content.decode()) == (status, False)


def test_error_pages_keep_the_navigation_of_signed_in_users(carol: User) -> None:
    for path in ("/app/nowhere", f"/app/exports/{uuid4()}", "/app/exports?cursor=x"):
        page = browser_of(carol).get(path).content.decode()
        assert 'aria-label="Main"' in page, path
        assert "Sign out" in page, path
        assert 'aria-label="Main"' not in Client().get(path, follow=False).content.decode(), path


# ---- Formats --------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("value", "words"),
    [(0, "0 s"), (59.9, "59 s"), (60, "1 min"), (3661, "1 h 1 min"), (90_000, "1 d 1 h"), (None, "–")],
)
def test_it_formats_durations(value: float | None, words: str) -> None:
    assert duration(value) == words


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (0, "0 bytes"),
        (999, "999 bytes"),
        (1000, "1.0 kB"),
        (999_949, "999.9 kB"),
        (999_960, "1.0 MB"),
        (1_500_000, "1.5 MB"),
        (10**15, "1000.0 TB"),
    ],
)
def test_it_formats_sizes(value: int, words: str) -> None:
    assert pages.size(value) == words


def test_formatted_values_are_escaped() -> None:
    assert "<b>" not in pages.state("<b>")


# ---- Unknown paths --------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("path", ["/app", "/app/"])
def test_the_root_redirects_to_the_exports(carol: User, path: str) -> None:
    assert browser_of(carol).get(path)["Location"] == "/app/exports"


@pytest.mark.parametrize("debug", [False, True])
@pytest.mark.parametrize("path", ["/app/nowhere", "/app/exports/nowhere/at/all"])
def test_an_unknown_path_shows_the_404_page(carol: User, settings: LazySettings, path: str, *, debug: bool) -> None:
    """Django's DEBUG page would show every path."""
    settings.DEBUG = debug
    response = browser_of(carol).get(path)
    assert response.status_code == 404
    assert "Page not found" in response.content.decode()
    assert "URLconf" not in response.content.decode()
