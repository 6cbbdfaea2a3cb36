"""Single sign-on with a real OpenID provider in a separate process. C10."""

import socket
from collections.abc import Iterator
from contextlib import suppress
from datetime import timedelta
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from authlib.oidc.core import UserInfo
from django.conf import LazySettings
from django.contrib.auth.models import Group, User
from django.test import Client
from django.utils import timezone
from rest_framework.test import APIClient

from config.dev.stack.openid_provider import USERS, OpenIDProvider
from config.dev.stack.ports import LOOPBACK
from config.ops.checks.deployment import check_single_sign_on
from config.ops.doctor import peers
from config.ops.doctor.findings import Level
from config.platform.http import roles, single_sign_on
from config.platform.models import AuditEntry, Identity
from tests.conftest import browser_of, change_settings, client_of
from tests.integration.test_leases import in_threads
from tests.integration.test_second_factors import is_in
from tests.openid import callback_of, change, configure, path_of, running_provider, set_groups, sign_in


class HangingProvider:
    """A provider that accepts connections and never responds."""

    def __init__(self, listener: socket.socket) -> None:
        self.listener = listener
        self.url = f"http://{LOOPBACK}:{listener.getsockname()[1]}"

    def connections(self) -> int:
        """Return the number of connections since the last call."""
        self.listener.settimeout(0)
        found = 0
        with suppress(BlockingIOError):
            while True:
                self.listener.accept()[0].close()
                found += 1
        return found


pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OpenIDProvider]:
    with running_provider(tmp_path_factory.mktemp("provider")) as provider:
        yield provider


@pytest.fixture
def provider(running: OpenIDProvider, settings: LazySettings) -> OpenIDProvider:
    """The provider, with its users in their original state."""
    configure(settings, running, sign_in_rate="1000/min")
    for name, groups in USERS.items():
        set_groups(running, name, *groups)
    change(running, "UPDATE auth_user SET is_active = 1")
    single_sign_on.pause.begin(0)
    return running


def backdate_check(name: str, *, minutes: float = 1) -> None:
    """Backdate the user's last check."""
    then = timezone.now() - timedelta(minutes=minutes)
    Identity.objects.filter(user__username=name).update(checked_at=then, attempted_at=then)


def text_of(client: Client, answer: Any) -> str:
    assert answer.status_code == 302
    return client.get(answer["Location"]).content.decode()


# ---- Sign-in --------------------------------------------------------------------------------------------------------
def test_a_user_of_the_provider_signs_in(client: Client, provider: OpenIDProvider) -> None:
    """C10."""
    assert "/app/sign-in/sso?next=/app/account" in client.get("/app/sign-in?next=/app/account").content.decode()
    start: Any = client.get("/app/sign-in/sso", {"next": "/app/account"})
    asked = {name: values[0] for name, values in parse_qs(urlsplit(start["Location"]).query).items()}
    assert asked["code_challenge_method"] == "S256"
    assert asked["nonce"]
    assert set(asked["scope"].split()) == {"openid", "profile", "email", "groups", "offline_access"}

    answer = path_of(client, callback_of(start["Location"], "ada"))

    assert answer["Location"] == "/app/account"
    assert is_in(client)
    user = User.objects.get()
    assert (user.username, user.email, user.is_staff, user.is_superuser) == ("ada", "ada@example.org", True, True)
    assert {group.name for group in user.groups.all()} == {"sluice-admins", "finance"}
    assert not user.has_usable_password()
    assert client.get("/admin/").status_code == 200


def test_groups_determine_permissions(client: Client, provider: OpenIDProvider) -> None:
    finance = Group.objects.create(name="finance")
    for name, rights in (("grace", (True, False)), ("joan", (False, False))):
        sign_in(Client(), name)
        user = User.objects.get(username=name)
        assert (user.is_staff, user.is_superuser) == rights
    assert list(finance.user_set.values_list("username", flat=True)) == ["joan"]


def test_a_second_sign_in_finds_the_same_user(provider: OpenIDProvider) -> None:
    for _ in range(2):
        sign_in(Client(), "joan")
    assert User.objects.count() == 1


def test_an_existing_account_is_never_taken_over(client: Client, provider: OpenIDProvider) -> None:
    local = User.objects.create_superuser("ada", password="only for tests, 1")
    assert "Another account has your username" in text_of(client, sign_in(client, "ada"))
    assert not is_in(client)
    assert list(User.objects.all()) == [local]


def test_only_the_given_groups_may_sign_in(client: Client, provider: OpenIDProvider, settings: LazySettings) -> None:
    configure(settings, provider, oidc_user_groups=["marketing"])
    assert "not in a group that may use Sluice" in text_of(client, sign_in(client, "joan"))
    assert not User.objects.exists()
    sign_in(client, "ada")  # as an administrator
    assert is_in(client)


def test_never_redirects_to_another_host(client: Client, provider: OpenIDProvider) -> None:
    assert sign_in(client, "joan", page="https://elsewhere.example/")["Location"] == "/app/exports"


@pytest.mark.parametrize(
    ("query", "message"),
    [
        ("code=1&state=forged", "response is invalid"),
        ("error=access_denied&state=x", "was cancelled"),
        ("", "response is invalid"),
    ],
)
def test_a_forged_redirect_is_refused(client: Client, provider: OpenIDProvider, query: str, message: str) -> None:
    assert message in text_of(client, client.get(f"/app/sign-in/sso/callback?{query}"))
    assert not is_in(client)


def test_a_redirect_for_another_browser_is_refused(client: Client, provider: OpenIDProvider) -> None:
    start: Any = client.get("/app/sign-in/sso")
    victim = Client()
    assert "response is invalid" in text_of(victim, path_of(victim, callback_of(start["Location"], "ada")))
    assert not User.objects.exists()


@pytest.mark.parametrize("change_claims", ["aud", "nonce", "key"])
def test_an_unexpected_id_token_is_refused(
    client: Client, provider: OpenIDProvider, monkeypatch: pytest.MonkeyPatch, change_claims: str
) -> None:
    """The provider's signed response is real, but Sluice expects another value."""
    start: Any = client.get("/app/sign-in/sso")
    callback = callback_of(start["Location"], "ada")
    app = single_sign_on.provider()
    if change_claims == "aud":
        expected = {"aud": {"essential": True, "value": "another client"}}
        monkeypatch.setattr(single_sign_on, "claims_options", lambda _: expected)
    elif change_claims == "nonce":
        session = client.session
        state = next(key for key in session.keys() if key.startswith("_state_"))  # noqa: SIM118 - no dict
        session[state]["data"]["nonce"] = "another"
        session.save()
    else:
        keys = app.fetch_jwk_set()
        other = {"keys": [{**keys["keys"][0], "n": keys["keys"][0]["n"][:-4] + "AAAA"}]}
        monkeypatch.setitem(app.server_metadata, "jwks", other)
    assert "response is invalid" in text_of(client, path_of(client, callback))
    assert not User.objects.exists()


def test_single_sign_on_is_off_without_its_settings(client: Client) -> None:
    assert "single sign-on" not in client.get("/app/sign-in").content.decode()
    for path in ("/app/sign-in/sso", "/app/sign-in/sso/callback?code=1&state=1"):
        assert client.get(path)["Location"] == "/app/sign-in"


def test_a_local_superuser_signs_in_while_the_provider_is_away(
    client: Client, provider: OpenIDProvider, settings: LazySettings
) -> None:
    configure(settings, provider, oidc_issuer="http://127.0.0.1:9")
    User.objects.create_superuser("operator", password="only for tests, 1")
    assert "does not respond" in text_of(client, client.get("/app/sign-in/sso"))
    client.post("/app/sign-in", {"username": "operator", "password": "only for tests, 1"})
    assert client.get("/admin/").status_code == 200


# ---- Checks of access -----------------------------------------------------------------------------------------------
def test_a_check_confirms_a_user_once_for_all_requests(client: Client, provider: OpenIDProvider) -> None:
    sign_in(client, "joan")
    before = Identity.objects.get()
    backdate_check("joan")
    assert is_in(client)
    after = Identity.objects.get()
    assert after.checked_at > before.checked_at
    assert after.tokens["refresh_token"] != before.tokens["refresh_token"]  # each refresh token is used once
    assert is_in(client)
    assert Identity.objects.get().checked_at == after.checked_at


def test_parallel_requests_check_once(provider: OpenIDProvider) -> None:
    """Otherwise, the second one would send a used refresh token, which ends the user's access."""
    browser = Client()
    sign_in(browser, "joan")
    backdate_check("joan", minutes=60)

    def ask(_: int) -> bool:
        other = Client()
        other.cookies = browser.cookies
        return is_in(other)

    assert all(in_threads(4, ask))
    assert User.objects.get().is_active


def test_a_removed_group_ends_sessions_and_rights(client: Client, provider: OpenIDProvider) -> None:
    """C10."""
    sign_in(client, "grace")
    user = User.objects.get()
    with_token = client_of(user)
    assert with_token.get("/exports/limits").status_code == 200
    set_groups(provider, "grace")
    assert is_in(client)  # for at most a minute
    backdate_check("grace")

    assert not is_in(client)
    user.refresh_from_db()
    assert not user.is_staff
    assert with_token.get("/exports/limits").status_code == 401  # it had the permissions of staff
    sign_in(client, "grace")
    assert is_in(client)
    assert client.get("/admin/").status_code == 302


def test_a_removed_group_without_staff_rights_keeps_tokens(client: Client, provider: OpenIDProvider) -> None:
    sign_in(client, "joan")
    with_token = client_of(User.objects.get())
    set_groups(provider, "joan")
    backdate_check("joan")
    assert with_token.get("/exports/limits").status_code == 200
    assert not User.objects.get().groups.exists()
    assert not is_in(client)


@pytest.mark.parametrize("how", ["session", "token"])
def test_the_access_of_a_user_deactivated_at_the_provider_ends(
    client: Client, provider: OpenIDProvider, how: str
) -> None:
    """C10."""
    sign_in(client, "joan")
    with_token = client_of(User.objects.get())
    change(provider, "UPDATE auth_user SET is_active = 0 WHERE username = 'joan'")
    backdate_check("joan")

    assert not (is_in(client) if how == "session" else with_token.get("/exports/limits").status_code == 200)
    assert not is_in(client)
    assert with_token.get("/exports/limits").status_code == 401
    assert not User.objects.get().is_active
    change(provider, "UPDATE auth_user SET is_active = 1 WHERE username = 'joan'")
    assert not is_in(client)
    again = Client()
    sign_in(again, "joan")
    assert is_in(again)
    assert not is_in(client)  # an ended session stays ended
    assert with_token.get("/exports/limits").status_code == 200


def test_a_user_without_an_admitted_group_loses_all_tokens(
    client: Client, provider: OpenIDProvider, settings: LazySettings
) -> None:
    configure(settings, provider, oidc_user_groups=["finance"])
    sign_in(client, "joan")
    with_token = client_of(User.objects.get())
    set_groups(provider, "joan", "marketing")
    backdate_check("joan")
    assert with_token.get("/exports/limits").status_code == 401
    set_groups(provider, "joan", "finance")
    sign_in(client, "joan")
    assert with_token.get("/exports/limits").status_code == 401


def test_an_account_that_staff_disabled_stays_disabled(client: Client, provider: OpenIDProvider) -> None:
    sign_in(client, "joan")
    User.objects.update(is_active=False)
    assert "This account is disabled" in text_of(client, sign_in(client, "joan"))
    assert not User.objects.get().is_active


def test_an_account_that_staff_save_after_its_deactivation_stays_disabled(
    client: Client, provider: OpenIDProvider, admin_client: Client
) -> None:
    """C10: a sign-in does not reactivate an account that staff saved after the provider deactivated it."""
    sign_in(client, "joan")
    user = User.objects.get(username="joan")
    change(provider, "UPDATE auth_user SET is_active = 0 WHERE username = 'joan'")
    backdate_check("joan")
    assert not is_in(client)
    saved = {"username": "joan", "date_joined_0": "2026-01-01", "date_joined_1": "00:00:00"}
    assert admin_client.post(f"/admin/auth/user/{user.pk}/change/", saved).status_code == 302
    change(provider, "UPDATE auth_user SET is_active = 1 WHERE username = 'joan'")
    assert "This account is disabled" in text_of(client, sign_in(client, "joan"))


def test_a_check_has_its_own_entry_in_the_audit_log(provider: OpenIDProvider, client: Client) -> None:
    """C10, C13: the request that triggers the check has a separate entry."""
    sign_in(client, "grace")
    user = User.objects.get()
    with_token = client_of(user)
    set_groups(provider, "grace", "finance")
    backdate_check("grace", minutes=2)
    before = AuditEntry.objects.count()
    assert with_token.post("/exports", {}).status_code == 400
    found = AuditEntry.objects.order_by("pk")[before:]
    assert [(each.user_id, each.via, each.action, each.outcome) for each in found] == [
        (user.pk, "sign_in", "single sign-on: groups changed", "success"),
        (user.pk, "api", "/exports", "refused"),
    ]
    assert with_token.post("/exports", {}).status_code == 401


def test_a_group_named_like_a_role_does_not_grant_it(
    client: Client, provider: OpenIDProvider, settings: LazySettings
) -> None:
    """C10, C14: unless the settings list the group."""
    set_groups(provider, "joan", roles.GROUPS[roles.ADMINISTRATOR])
    sign_in(client, "joan")
    assert not User.objects.get().groups.exists()
    configure(settings, provider, oidc_staff_groups=[roles.GROUPS[roles.OPERATOR]])
    set_groups(provider, "joan", roles.GROUPS[roles.OPERATOR])
    sign_in(client, "joan")
    assert User.objects.get().groups.get().name == roles.GROUPS[roles.OPERATOR]


def test_a_local_password_does_not_bypass_the_provider(client: Client, provider: OpenIDProvider) -> None:
    """C10."""
    sign_in(client, "joan")
    user = User.objects.get()
    user.set_password("only for tests, 1")
    user.save()
    browser = Client()
    browser.post("/app/sign-in", {"username": "joan", "password": "only for tests, 1"})
    assert not is_in(browser)


def test_unfinished_sign_ins_are_limited_and_store_one_state(
    client: Client, provider: OpenIDProvider, settings: LazySettings
) -> None:
    """C10: otherwise anyone could fill the session table."""
    for _ in range(3):
        client.get("/app/sign-in/sso", {"next": "/" + "x" * 10_000})
    assert len(client.session.encode(dict(client.session))) < 2_000
    change_settings(settings, sign_in_rate="1/min")
    for _ in range(2):
        answer = client.get("/app/sign-in/sso")
    assert answer["Location"] == "/app/sign-in"


def test_users_stay_confirmed_while_the_provider_is_away_for_a_while(
    client: Client, provider: OpenIDProvider, settings: LazySettings
) -> None:
    sign_in(client, "joan")
    with_token = client_of(User.objects.get())
    configure(settings, provider, oidc_issuer="http://127.0.0.1:9")
    backdate_check("joan", minutes=14)
    assert is_in(client)
    assert with_token.get("/exports/limits").status_code == 200
    backdate_check("joan", minutes=15)
    answer = with_token.get("/exports/limits")
    assert (answer.status_code, answer.json()["code"]) == (503, "identity_provider_unavailable")
    assert client.get("/app/account").status_code == 503

    configure(settings, provider)
    backdate_check("joan", minutes=16)
    assert is_in(client)
    assert with_token.get("/exports/limits").status_code == 200


@pytest.fixture
def hanging() -> Iterator[HangingProvider]:
    with socket.create_server((LOOPBACK, 0)) as listener:
        yield HangingProvider(listener)


@pytest.mark.slow
def test_a_provider_that_hangs_delays_the_checks_of_streams_once(
    provider: OpenIDProvider, settings: LazySettings, hanging: HangingProvider, monkeypatch: pytest.MonkeyPatch
) -> None:
    """C10: not once per user. The user whose last attempt is oldest is checked first."""
    for name in USERS:
        sign_in(Client(), name)
    monkeypatch.setattr(single_sign_on, "TIMEOUT", 0.5)
    configure(settings, provider, oidc_issuer=hanging.url)
    for minutes, name in enumerate(USERS, start=1):
        backdate_check(name, minutes=minutes)

    assert current() == {*USERS}
    assert hanging.connections() == 1
    assert current() == {*USERS}
    assert hanging.connections() == 0  # during the pause
    assert [*Identity.objects.filter(failed_at__isnull=False).values_list("user__username", flat=True)] == [
        [*USERS][-1]  # the user whose last attempt is oldest
    ]
    browser = browser_of(User.objects.get(username="ada"))
    assert is_in(browser)
    assert hanging.connections() == 1  # a request after the time limit is checked anyway

    configure(settings, provider)
    single_sign_on.pause.begin(0)
    change(provider, "UPDATE auth_user SET is_active = 0")
    for name in USERS:
        backdate_check(name)
    assert current() == set()


def current() -> set[str]:
    users = single_sign_on.users().filter(is_active=True)
    return {*User.objects.filter(pk__in=single_sign_on.current_user_ids(users)).values_list("username", flat=True)}


def test_without_a_refresh_token_the_access_token_is_the_limit(client: Client, provider: OpenIDProvider) -> None:
    sign_in(client, "joan")
    held = Identity.objects.get().tokens
    held.pop("refresh_token")
    Identity.objects.update(tokens=held)
    backdate_check("joan")
    assert is_in(client)
    Identity.objects.update(tokens={**held, "expires_at": 1})
    backdate_check("joan")
    assert not is_in(client)


def test_users_are_refused_when_single_sign_on_is_turned_off(
    client: Client, provider: OpenIDProvider, settings: LazySettings
) -> None:
    sign_in(client, "joan")
    with_token: APIClient = client_of(User.objects.get())
    change_settings(settings, oidc_issuer=None)
    assert not is_in(client)
    assert with_token.get("/exports/limits").status_code == 401


# ---- Operation ------------------------------------------------------------------------------------------------------
def test_the_doctor_reads_the_metadata(provider: OpenIDProvider, settings: LazySettings) -> None:
    assert peers.check_identity_provider(settings.SLUICE).level is Level.OK
    configure(settings, provider, oidc_issuer=f"{provider.url}/elsewhere")
    assert peers.check_identity_provider(settings.SLUICE).level is Level.FAILURE


@pytest.mark.parametrize(
    ("values", "ids"),
    [
        ({}, []),
        ({"oidc_staff_groups": ["ops"]}, ["ops.W008"]),
        ({"oidc_issuer": "http://sso.example.org"}, ["ops.W009"]),
        ({"oidc_issuer": "https://sso.example.org"}, []),
    ],
)
def test_checks_warn_of_unsafe_settings(settings: LazySettings, values: dict[str, Any], ids: list[str]) -> None:
    change_settings(settings, **values)
    assert [found.id for found in check_single_sign_on()] == ids


def test_user_information_that_is_not_an_object_is_a_failed_check(
    client: Client, provider: OpenIDProvider, monkeypatch: pytest.MonkeyPatch
) -> None:
    sign_in(client, "joan")
    monkeypatch.setattr(single_sign_on.provider(), "userinfo", lambda **_: UserInfo(None))
    backdate_check("joan")
    assert is_in(client)
    assert Identity.objects.get().failed_at is not None
