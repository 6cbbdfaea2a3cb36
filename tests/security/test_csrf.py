"""Tests of CSRF protection on all routes."""

from collections.abc import Callable
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.test import Client

from exports.models import Dataset
from tests.conftest import browser_of
from tests.security.conftest import State
from tests.security.routes import LINK_ROUTE, OWNED_ROUTES, ROUTES, UNSAFE, Route

# Routes without authentication. They accept no unsafe methods.
PUBLIC = {LINK_ROUTE, "livez", "api/schema", "api/docs"}


def send(client: Client, method: str, route: Route, values: dict[str, Any], **headers: str) -> Any:
    return client.generic(method.upper(), route.filled(values), "{}", content_type="application/json", headers=headers)


def targets() -> list[tuple[Route, str]]:
    return [(route, method) for route in ROUTES for method in sorted(route.methods & set(UNSAFE))]


def test_public_routes_accept_no_unsafe_methods() -> None:
    assert len(targets()) > 120
    assert not [route for route, _ in targets() if route.path in PUBLIC]


@pytest.mark.slow
@pytest.mark.parametrize("has_cookie", [False, True])
def test_session_requests_without_a_csrf_token_change_nothing(
    objects_of_alice: dict[str, Any],
    alice: User,
    staff: User,
    dataset: Dataset,
    state: Callable[[], State],
    *,
    has_cookie: bool,
) -> None:
    """A form on another origin of the same site sends the user's cookies, but no CSRF token.

    The API and the pages are requested as the owner of the objects, and the admin as staff.
    """
    owner, admin = (browser_of(user, enforce_csrf_checks=True) for user in (alice, staff))
    if has_cookie:
        owner.get("/app/account")
        admin.get("/app/account")
        assert owner.cookies["csrftoken"].value
    values = dict.fromkeys({name for route in ROUTES for name in route.names}, dataset.pk) | objects_of_alice
    before = state()
    for route, method in targets():
        response = send(admin if route.is_admin else owner, method, route, values)
        assert response.status_code == 403, f"{method} {route}: {response.status_code}"
        if not route.is_page:
            assert response.json()["code"] == "csrf_failed", route
    assert state() == before


@pytest.mark.slow
def test_csrf_tokens_of_other_sessions_and_sites_are_refused(
    objects_of_alice: dict[str, Any], alice: User, bob: User, state: Callable[[], State]
) -> None:
    client, other = (browser_of(user, enforce_csrf_checks=True) for user in (alice, bob))
    for each in (client, other):
        each.get("/app/account")
    ours, theirs = client.cookies["csrftoken"].value, other.cookies["csrftoken"].value
    tries = [{"X-CSRFToken": theirs}, {"X-CSRFToken": ours, "Origin": "https://evil.example"}, {"X-CSRFToken": ""}]
    before = state()
    for route in (route for route in OWNED_ROUTES if "post" in route.methods):
        for headers in tries:
            assert send(client, "post", route, objects_of_alice, **headers).status_code == 403, f"{route} {headers}"
    assert state() == before


def test_the_right_csrf_token_is_accepted(objects_of_alice: dict[str, Any], alice: User) -> None:
    client = browser_of(alice, enforce_csrf_checks=True)
    client.get("/app/account")
    token = client.cookies["csrftoken"].value
    path = f"/exports/webhooks/{objects_of_alice['webhook_id']}"
    assert client.delete(path, headers={"X-CSRFToken": token}).status_code == 204


@pytest.mark.slow
def test_get_requests_change_nothing(objects_of_alice: dict[str, Any], alice: User, state: Callable[[], State]) -> None:
    """A link on another site causes a GET request with the user's cookies."""
    client, before = browser_of(alice), state()
    for route in ROUTES:
        if not route.is_admin and route.path != LINK_ROUTE and "get" in route.methods:
            response = client.get(route.filled(objects_of_alice))
            if response.streaming:
                assert list(response)  # read to the end, which releases the connection to the object storage
    assert state() == before
