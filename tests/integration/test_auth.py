"""Bearer tokens, and the command that issues them."""

from datetime import timedelta
from io import StringIO
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.core.management import CommandError, call_command
from django.test import Client
from django.utils import timezone
from knox.models import AuthToken
from pytest_django import DjangoAssertNumQueries

pytestmark = [pytest.mark.django_db, pytest.mark.urls("tests.unit.failing_views")]


def issue(*arguments: str) -> str:
    out, err = StringIO(), StringIO()
    call_command("issue_token", *arguments, stdout=out, stderr=err)
    assert err.getvalue() == ""
    assert out.getvalue().endswith("\n")
    return out.getvalue()[:-1]


def ask(client: Client, header: str | None) -> Any:
    return client.get("/guarded", headers={} if header is None else {"Authorization": header})


@pytest.fixture
def token() -> str:
    return issue("ada", "--create")


def test_a_token_is_authenticated_with_one_query(
    client: Client, token: str, django_assert_num_queries: DjangoAssertNumQueries
) -> None:
    for _ in range(3):
        issue("ada")

    with django_assert_num_queries(1):
        response = ask(client, f"Bearer {token}")

    assert response.json() == {"user": "ada"}


def test_the_scheme_is_case_insensitive(client: Client, token: str) -> None:
    assert ask(client, f"bearer {token}").status_code == 200


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
    response = ask(client, header and header.format(token=token, cut=token[:-1]))

    assert (response.status_code, response.json()["code"]) == (401, code)
    assert response["WWW-Authenticate"] == "Bearer"


def test_it_refuses_expired_tokens(client: Client, token: str) -> None:
    AuthToken.objects.update(expiry=timezone.now() - timedelta(seconds=1))

    assert ask(client, f"Bearer {token}").status_code == 401


def test_it_refuses_revoked_tokens(client: Client, token: str) -> None:
    AuthToken.objects.all().delete()

    assert ask(client, f"Bearer {token}").status_code == 401


def test_it_refuses_inactive_users(client: Client, token: str) -> None:
    User.objects.update(is_active=False)

    assert ask(client, f"Bearer {token}").status_code == 401


# ---- issue_token ------------------------------------------------------------------------------------------------
def test_it_creates_users_without_rights_or_password() -> None:
    issue("ada", "--create")

    user = User.objects.get()
    assert (user.username, user.is_staff, user.is_superuser, user.has_usable_password()) == ("ada", False, False, False)


def test_it_creates_staff_idempotently() -> None:
    issue("ada", "--create", "--staff")
    issue("ada", "--create", "--staff")

    user = User.objects.get()
    assert (user.is_staff, user.is_superuser) == (True, True)


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
