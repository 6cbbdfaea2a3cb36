"""Bearer tokens, and the command that issues them."""

from datetime import datetime, timedelta
from io import StringIO
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.core.management import CommandError, call_command
from django.db import connection, transaction
from django.test import Client
from django.utils import timezone
from knox.models import AuthToken
from pytest_django import DjangoAssertNumQueries

from config.dev.stack import prepare
from config.platform.models import TokenDetails

pytestmark = [pytest.mark.django_db, pytest.mark.urls("tests.unit.failing_views")]


def issue(*arguments: str) -> str:
    out, err = StringIO(), StringIO()
    call_command("issue_token", *arguments, stdout=out, stderr=err)
    assert err.getvalue() == ""
    assert out.getvalue().endswith("\n")
    return out.getvalue()[:-1]


def get_guarded(client: Client, header: str | None) -> Any:
    return client.get("/guarded", headers={} if header is None else {"Authorization": header})


@pytest.fixture
def token() -> str:
    return issue("ada", "--create")


def test_a_token_is_authenticated_with_one_query(
    client: Client, token: str, django_assert_num_queries: DjangoAssertNumQueries
) -> None:
    for _ in range(3):
        issue("ada")
    get_guarded(client, f"Bearer {token}")  # records the last use, which happens once a minute

    with django_assert_num_queries(1):
        response = get_guarded(client, f"Bearer {token}")

    assert response.json() == {"user": "ada"}


def test_the_scheme_is_case_insensitive(client: Client, token: str) -> None:
    assert get_guarded(client, f"bearer {token}").status_code == 200


def test_tokens_are_not_stored(token: str) -> None:
    (row,) = AuthToken.objects.all()

    assert token not in str(vars(row))


@pytest.mark.parametrize(
    ("header", "code"),
    [
        (None, "not_authenticated"),
        ("Basic YTpi", "not_authenticated"),
        ("Bearer", "authentication_failed"),
        ("Bearer a b", "authentication_failed"),
        ("Bearer slc_0000", "authentication_failed"),
        ("Bearer {token}0", "authentication_failed"),
        ("Bearer {cut}", "authentication_failed"),
        ("Bearer \xff\xfe", "authentication_failed"),
        ("Bearer slc_\x00", "authentication_failed"),
        ("Bearer " + "x" * 100_000, "authentication_failed"),
    ],
)
def test_other_credentials_get_401(client: Client, token: str, header: str | None, code: str) -> None:
    response = get_guarded(client, header and header.format(token=token, cut=token[:-1]))

    assert (response.status_code, response.json()["code"]) == (401, code)
    challenges = {"not_authenticated": "Bearer", "authentication_failed": 'Bearer error="invalid_token"'}
    assert response["WWW-Authenticate"] == challenges[code]


def test_it_refuses_expired_tokens(client: Client, token: str) -> None:
    AuthToken.objects.update(expiry=timezone.now() - timedelta(seconds=1))

    assert get_guarded(client, f"Bearer {token}").status_code == 401


def test_it_refuses_revoked_tokens(client: Client, token: str) -> None:
    AuthToken.objects.all().delete()

    assert get_guarded(client, f"Bearer {token}").status_code == 401


def test_it_refuses_inactive_users(client: Client, token: str) -> None:
    User.objects.update(is_active=False)

    assert get_guarded(client, f"Bearer {token}").status_code == 401


def last_use() -> datetime:
    at = TokenDetails.objects.get().last_used_at
    assert at
    return at


def test_the_last_use_is_recorded_once_a_minute(client: Client, token: str) -> None:
    """C9."""
    assert TokenDetails.objects.get().last_used_at is None
    get_guarded(client, f"Bearer {token}")
    assert last_use() > timezone.now() - timedelta(seconds=30)
    for minutes, is_recorded in ((0.5, False), (1.5, True)):
        earlier = timezone.now() - timedelta(minutes=minutes)
        TokenDetails.objects.update(last_used_at=earlier)
        get_guarded(client, f"Bearer {token}")
        assert (last_use() > earlier) == is_recorded


def test_tokens_of_earlier_releases_have_all_scopes(client: Client, token: str) -> None:
    TokenDetails.objects.all().delete()
    assert get_guarded(client, f"Bearer {token}").status_code == 200
    assert TokenDetails.objects.get().scopes == []


def test_tokens_are_accepted_by_a_read_only_database(client: Client, token: str, caplog: Any) -> None:
    with transaction.atomic():
        with connection.cursor() as cursor:
            cursor.execute("SET TRANSACTION READ ONLY")
        assert get_guarded(client, f"Bearer {token}").status_code == 200
        transaction.set_rollback(True)
    assert "token_use_not_recorded" in caplog.text


# ---- issue_token ------------------------------------------------------------------------------------------------
def test_it_creates_users_without_permissions_and_password() -> None:
    issue("ada", "--create")

    user = User.objects.get()
    assert (user.username, user.is_staff, user.is_superuser, user.has_usable_password()) == ("ada", False, False, False)


def test_it_creates_staff_idempotently() -> None:
    issue("ada", "--create", "--staff")
    issue("ada", "--create", "--staff")

    user = User.objects.get()
    assert (user.is_staff, user.is_superuser) == (True, True)


def test_a_token_has_a_name_and_scopes() -> None:
    """C9."""
    issue("ada", "--create", "--name", "Nightly", "--scopes", "exports:write, exports:read")
    details = TokenDetails.objects.get()
    assert (details.name, details.scopes) == ("Nightly", ["exports:write", "exports:read"])


def test_tokens_expire_after_the_given_days() -> None:
    issue("ada", "--create", "--days", "2")

    expiry = AuthToken.objects.get().expiry
    assert expiry is not None
    assert timedelta(days=1, hours=23) < expiry - timezone.now() <= timedelta(days=2)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["bob"], "User not found"),
        (["ada", "--staff"], "not staff"),
        (["ada", "--days", "0"], "--days"),
        (["ada", "--scopes", "exports:read,all"], "Unknown scopes: all"),
        (["ada", "--name", "x" * 101], "--name has 101 characters"),
        (["a b", "--create"], "valid username"),
        (["x" * 200, "--create"], "150"),
        (["off"], "inactive"),
    ],
)
def test_invalid_arguments_change_nothing(arguments: list[str], message: str) -> None:
    User.objects.create_user("ada")
    User.objects.create_user("off", is_active=False)

    with pytest.raises(CommandError, match=message) as caught:
        issue(*arguments)

    assert caught.value.returncode == 1
    assert (User.objects.count(), AuthToken.objects.count()) == (2, 0)


# ---- The local stack ------------------------------------------------------------------------------------------------
def test_a_restart_of_the_local_stack_keeps_sessions_and_the_token() -> None:
    prepare.create_superuser("admin", "secret")
    before = User.objects.get().get_session_auth_hash()
    token = prepare.issue_token("admin")
    prepare.create_superuser("admin", "secret")
    assert User.objects.get().get_session_auth_hash() == before
    assert prepare.is_valid(token)
    prepare.create_superuser("admin", "another")
    assert User.objects.get().check_password("another")

    AuthToken.objects.update(expiry=timezone.now() + timedelta(hours=23))
    assert not prepare.is_valid(token)
    assert not prepare.is_valid("")
