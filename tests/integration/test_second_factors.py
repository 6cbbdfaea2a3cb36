"""Second factors of local accounts, and the setting that requires them. C10."""

import base64
import json
import re
import time
from concurrent.futures import ThreadPoolExecutor
from io import StringIO
from typing import Any
from urllib.parse import unquote

import limits
import pytest
from django.conf import LazySettings
from django.contrib.auth.models import User
from django.core.management import CommandError, call_command
from django.db import connection, transaction
from django.test import Client

from config.platform.http import second_factor
from config.platform.models import Identity, RecoveryCode, SecondFactor
from config.platform.ui import second_factors
from tests.conftest import browser_of, change_settings, client_of
from tests.integration.locks import waits_for_a_lock
from tests.waiting import wait_until

pytestmark = pytest.mark.usefixtures("empty_redis")

PASSWORD = "only for tests, 1"
STEP = "/app/sign-in/second-factor"
PAGE = "/app/account/second-factors"
SECONDS_OF_A_REQUEST = 3


@pytest.fixture
def carol(transactional_db: None) -> User:
    return User.objects.create_user("carol", password=PASSWORD)


def require(settings: LazySettings, who: str) -> None:
    change_settings(settings, require_mfa=who)


def enter_password(client: Client, *, page: str = "") -> Any:
    return client.post("/app/sign-in", {"username": "carol", "password": PASSWORD, "next": page})


def enter_code(client: Client, code: str) -> Any:
    return client.post(STEP, {"code": code})


def is_in(client: Client) -> bool:
    return bool(client.get("/app/account").status_code == 200)


def code_of(factor: SecondFactor, *, drift: int = 0) -> str:
    """Return the code of the time step that is `drift` steps after the current one.

    Wait until the current step has enough seconds left for a request.
    """
    wait_until(lambda: time.time() % second_factor.PERIOD < second_factor.PERIOD - SECONDS_OF_A_REQUEST)
    now = time.time() + drift * second_factor.PERIOD
    return second_factor.totp(bytes(factor.secret)).generate(int(now)).decode()


def add_app(client: Client) -> list[str]:
    """Add an authenticator app on the page, and return the displayed recovery codes."""
    page = client.get(f"{PAGE}/app").content.decode()
    secret = re.search(r'<code id="key">(\w{32})</code>', page)
    assert secret
    assert 'src="data:image/svg+xml' in page
    factor = SecondFactor(secret=base64.b32decode(secret[1]))
    answer = client.post(f"{PAGE}/app", {"name": "Phone", "code": code_of(factor, drift=-1)})
    return re.findall(r"\b(?:[A-Z2-7]{4}-){3}[A-Z2-7]{4}\b", answer.content.decode())


@pytest.fixture
def enrolled(carol: User) -> list[str]:
    """Add an authenticator app for carol, and return her recovery codes."""
    client = Client()
    enter_password(client)
    return add_app(client)


# ---- Sign-in --------------------------------------------------------------------------------------------------------
def test_sign_in_asks_for_a_code_after_the_password(enrolled: list[str], client: Client) -> None:
    """C10."""
    answer = enter_password(client, page="/app/documents")
    assert answer["Location"] == STEP
    assert not is_in(client)
    code = code_of(SecondFactor.objects.get())
    wrong = f"{(int(code) + 1) % 10**6:06}"
    assert enter_code(client, wrong)["Location"] == STEP
    assert "Incorrect code" in client.get(STEP).content.decode()
    assert not is_in(client)
    assert enter_code(client, f" {code[:3]} {code[3:]}")["Location"] == "/app/documents"
    assert is_in(client)


def test_a_code_is_accepted_once(enrolled: list[str]) -> None:
    code = code_of(SecondFactor.objects.get())
    for expected in (True, False):
        client = Client()
        enter_password(client)
        enter_code(client, code)
        assert is_in(client) is expected


def test_an_old_or_future_code_is_refused(enrolled: list[str], client: Client) -> None:
    SecondFactor.objects.update(counter=0)  # otherwise, the old code would be refused as used
    enter_password(client)
    for drift in (-2, 2):
        enter_code(client, code_of(SecondFactor.objects.get(), drift=drift))
        assert not is_in(client)


def test_a_recovery_code_works_once(enrolled: list[str]) -> None:
    assert len(enrolled) == 10
    for expected in (True, False):
        client = Client()
        enter_password(client)
        enter_code(client, enrolled[0].lower())
        assert is_in(client) is expected
    assert RecoveryCode.objects.count() == 9
    assert not RecoveryCode.objects.filter(digest__contains=enrolled[1].replace("-", "")).exists()


def test_after_five_wrong_codes_the_password_is_required_again(enrolled: list[str], client: Client) -> None:
    enter_password(client)
    for _ in range(5):
        enter_code(client, "000000")
    assert enter_code(client, code_of(SecondFactor.objects.get()))["Location"] == "/app/sign-in"
    assert not is_in(client)


def test_codes_are_rate_limited_per_user(enrolled: list[str], settings: LazySettings) -> None:
    change_settings(settings, sign_in_rate="2/min")
    browsers = [Client() for _ in range(2)]
    for client in browsers:
        enter_password(client)
        enter_code(client, "000000")
    enter_code(browsers[0], code_of(SecondFactor.objects.get()))
    assert re.search(r"Too many attempts\. Try again in (\d+ s|1 min)\.", browsers[0].get(STEP).content.decode())
    assert not is_in(browsers[0])


@pytest.mark.parametrize("lost", ["password", "active", "late"])
def test_a_correct_password_expires(enrolled: list[str], client: Client, carol: User, lost: str) -> None:
    enter_password(client)
    if lost == "password":
        carol.set_password("another one, 2")
        carol.save()
    elif lost == "active":
        User.objects.update(is_active=False)
    else:
        session = client.session
        session["sign_in_pending"]["until"] = time.time() - 1
        session.save()
    assert enter_code(client, code_of(SecondFactor.objects.get()))["Location"] == "/app/sign-in"
    assert not is_in(client)


@pytest.mark.parametrize(
    "credential",
    ["{}", "[]", "null", '"x"', '{"id": "x", "rawId": "eA", "response": {}}', "{", "1" * 5_000, "[" * 50_000],
)
def test_an_invalid_security_key_is_refused(enrolled: list[str], client: Client, carol: User, credential: str) -> None:
    enter_password(client)
    client.get(STEP)
    assert client.post(STEP, {"credential": credential})["Location"] == STEP
    assert not is_in(client)


def test_the_admin_has_no_separate_sign_in(enrolled: list[str], client: Client) -> None:
    User.objects.update(is_staff=True, is_superuser=True)
    assert client.get("/admin/login/?next=/admin/")["Location"] == "/app/sign-in?next=/admin/"
    client.post("/admin/login/?next=/admin/", {"username": "carol", "password": PASSWORD})
    assert client.get("/admin/").status_code == 302
    enter_password(client, page="/admin/")
    assert client.get("/admin/").status_code == 302
    assert enter_code(client, code_of(SecondFactor.objects.get()))["Location"] == "/admin/"
    assert client.get("/admin/").status_code == 200


# ---- Changes --------------------------------------------------------------------------------------------------------
def test_changes_require_the_password_again(carol: User, client: Client) -> None:
    client.force_login(carol)
    confirm = f"{PAGE}/confirm?next={PAGE}/app"
    assert unquote(client.get(f"{PAGE}/app")["Location"]) == confirm
    assert "Incorrect password" in client.post(f"{PAGE}/confirm", {"password": "wrong"}).content.decode()
    assert client.post(f"{PAGE}/confirm", {"password": PASSWORD, "next": f"{PAGE}/app"})["Location"] == f"{PAGE}/app"
    assert len(add_app(client)) == 10


def test_confirmation_never_redirects_to_another_host(carol: User, client: Client) -> None:
    client.force_login(carol)
    answer = client.post(f"{PAGE}/confirm", {"password": PASSWORD, "next": "https://elsewhere.example/"})
    assert answer["Location"] == PAGE


def test_an_app_is_not_added_with_a_wrong_code(carol: User, client: Client) -> None:
    enter_password(client)
    client.get(f"{PAGE}/app")
    assert "Incorrect code" in client.post(f"{PAGE}/app", {"name": "Phone", "code": "1"}).content.decode()
    assert not SecondFactor.objects.exists()


def test_a_user_has_a_limited_number_of_factors(enrolled: list[str], carol: User, client: Client) -> None:
    SecondFactor.objects.bulk_create(
        [SecondFactor(user=carol, kind="totp", name="App", secret=b"0") for _ in range(second_factor.MAX_FACTORS - 1)]
    )
    enter_password(client)
    enter_code(client, enrolled[0])
    assert add_app(client) == []
    assert SecondFactor.objects.count() == second_factor.MAX_FACTORS


def test_removing_the_last_factor_removes_recovery_codes(
    enrolled: list[str], client: Client, settings: LazySettings
) -> None:
    enter_password(client)
    enter_code(client, enrolled[0])
    path = f"{PAGE}/{SecondFactor.objects.get().pk}/remove"
    require(settings, "all")
    client.post(path)
    assert "Add another one before you remove this one" in client.get(PAGE).content.decode()
    require(settings, "off")
    client.post(path)
    assert "Phone removed." in client.get(PAGE).content.decode()
    assert not SecondFactor.objects.exists()
    assert not RecoveryCode.objects.exists()


def test_new_codes_after_the_password_is_confirmed_again(enrolled: list[str], client: Client) -> None:
    """The confirmation does not redirect to the page of the codes, which does not support GET."""
    enter_password(client)
    enter_code(client, enrolled[0])
    session = client.session
    session["password_confirmed_at"] = 0
    session.save()
    assert unquote(client.post(f"{PAGE}/codes")["Location"]) == f"{PAGE}/confirm?next={PAGE}"


@pytest.mark.parametrize("page", ["nowhere", "?x"])
def test_any_relative_next_page_is_accepted(enrolled: list[str], client: Client, page: str) -> None:
    """The value is a URL, not the name of a view."""
    enter_password(client, page=page)
    assert enter_code(client, enrolled[0])["Location"] == page
    assert is_in(client)
    assert client.post(f"{PAGE}/confirm", {"password": PASSWORD, "next": page}).status_code == 302


@pytest.mark.parametrize("kind", ["app", "key"])
def test_an_expired_form_is_explained(carol: User, client: Client, kind: str) -> None:
    enter_password(client)
    answer = client.post(f"{PAGE}/{kind}", {"name": "x", "code": "123456", "credential": "{}"})
    assert "This page has expired" in answer.content.decode()


@pytest.mark.parametrize("attestation", ["", "ow"])
def test_a_truncated_attestation_is_refused(carol: User, client: Client, attestation: str) -> None:
    enter_password(client)
    client.get(f"{PAGE}/key")
    data = json.dumps({"type": "webauthn.create", "challenge": "eA", "origin": "http://testserver"}).encode()
    parts = {"clientDataJSON": base64.urlsafe_b64encode(data).decode().rstrip("="), "attestationObject": attestation}
    credential = json.dumps({"id": "eA", "rawId": "eA", "response": parts})
    answer = client.post(f"{PAGE}/key", {"name": "Key", "credential": credential})
    assert "response of the security key is invalid" in answer.content.decode()


def test_parallel_replacements_leave_one_set_of_codes(enrolled: list[str], carol: User) -> None:
    def replace() -> None:
        try:
            second_factor.replace_recovery_codes(carol)
        finally:
            connection.close()

    with ThreadPoolExecutor(1) as pool:
        with transaction.atomic():
            second_factor.replace_recovery_codes(carol)
            other = pool.submit(replace)
            wait_until(waits_for_a_lock)
        other.result(10)
    assert RecoveryCode.objects.count() == 10


def test_new_recovery_codes_replace_the_old_ones(enrolled: list[str], client: Client, carol: User) -> None:
    enter_password(client)
    enter_code(client, enrolled[0])
    client.post(f"{PAGE}/codes")
    assert RecoveryCode.objects.count() == 10
    assert not second_factor.use_code(carol, enrolled[1])


def test_users_of_single_sign_on_have_no_local_factors(carol: User, client: Client, settings: LazySettings) -> None:
    now = carol.date_joined
    Identity.objects.create(user=carol, issuer="i", subject="s", checked_at=now, attempted_at=now)
    change_settings(settings, oidc_issuer="http://127.0.0.1:9")
    client.force_login(carol)
    assert "Your identity provider manages" in client.get(PAGE).content.decode()
    assert client.get(f"{PAGE}/app")["Location"] == PAGE


def test_an_operator_removes_the_factors_of_a_user(enrolled: list[str], client: Client) -> None:
    client.force_login(User.objects.get(username="carol"))
    other = browser_of(User.objects.create_user("other"))
    assert is_in(client)
    call_command("reset_second_factors", "carol", stdout=(out := StringIO()))
    assert out.getvalue() == "Removed 1 second factor, ended 2 sessions.\n"
    assert not is_in(client)
    assert is_in(other)
    enter_password(client)
    assert is_in(client)
    with pytest.raises(CommandError, match="User not found"):
        call_command("reset_second_factors", "unknown")


# ---- REQUIRE_MFA ----------------------------------------------------------------------------------------------------
def test_pages_redirect_to_the_setup_until_there_is_a_factor(
    carol: User, client: Client, settings: LazySettings
) -> None:
    """C10."""
    require(settings, "all")
    enter_password(client)
    for path in ("/app/account", "/app/exports", "/app/documents", "/admin/"):
        assert client.get(path)["Location"] == PAGE, path
    assert client.post("/app/account/password")["Location"] == PAGE
    assert "needs a second factor" in client.get(PAGE).content.decode()
    assert len(add_app(client)) == 10
    assert is_in(client)


def test_the_api_refuses_a_session_without_a_factor(carol: User, client: Client, settings: LazySettings) -> None:
    require(settings, "all")
    enter_password(client)
    answer = client.get("/exports/limits")
    assert (answer.status_code, answer.json()["code"]) == (403, "second_factor_required")
    assert client_of(carol).get("/exports/limits").status_code == 200  # tokens need none
    add_app(client)
    assert client.get("/exports/limits").status_code == 200


@pytest.mark.parametrize(
    ("who", "right", "expected"),
    [
        ("off", "is_superuser", 200),
        ("staff", "email", 200),
        ("staff", "is_staff", 302),
        ("staff", "is_superuser", 302),
        ("all", "email", 302),
    ],
)
def test_the_setting_determines_the_users_that_need_a_factor(
    *, carol: User, client: Client, settings: LazySettings, who: str, right: str, expected: int
) -> None:
    require(settings, who)
    User.objects.update(**{right: "1"})
    enter_password(client)
    assert client.get("/app/account").status_code == expected


def test_a_password_change_in_the_admin_revokes_tokens(carol: User, pages: Client) -> None:
    """C10: also in the admin."""
    with_token = client_of(carol)
    new = {"password1": "another one, 2", "password2": "another one, 2", "usable_password": "true"}
    assert pages.post(f"/admin/auth/user/{carol.pk}/password/", new).status_code == 302
    assert with_token.get("/exports/limits").status_code == 401


@pytest.mark.parametrize("wrong", ["000000", "000-000", "000.0 00", "OOOOOO"])
def test_codes_of_an_app_are_limited_per_day_and_recovery_codes_are_not(
    enrolled: list[str], settings: LazySettings, monkeypatch: pytest.MonkeyPatch, wrong: str
) -> None:
    """C10: otherwise a code could be guessed within weeks."""
    monkeypatch.setattr(second_factors, "CODES_PER_DAY", limits.RateLimitItemPerDay(2, namespace=f"few {wrong}"))
    browser = Client()
    enter_password(browser)
    for _ in range(2):
        enter_code(browser, wrong)
    enter_code(browser, code_of(SecondFactor.objects.get()))
    assert not is_in(browser)
    enter_code(browser, enrolled[0])
    assert is_in(browser)


def test_a_session_from_before_the_first_factor_cannot_change_factors(carol: User, client: Client) -> None:
    """C10: it was signed in with only the password."""
    enter_password(client)
    assert is_in(client)
    factor = SecondFactor.objects.create(user=carol, kind="totp", name="App", secret=b"0" * 20)
    response = client.post(f"/app/account/second-factors/{factor.pk}/remove")
    assert (response.status_code, response["Location"]) == (302, "/app/sign-in")
    assert not is_in(client)
    assert SecondFactor.objects.filter(pk=factor.pk).exists()


def test_the_admin_has_no_separate_password_page(client: Client, admin_user: User) -> None:
    """C10: that page would not count attempts."""
    client.force_login(admin_user)
    assert client.get("/admin/password_change/")["Location"] == "/app/account/password"
