"""Tests that another user gets 404 for objects of alice, on every route, with every method, by token and by session."""

from collections.abc import Callable
from contextlib import closing
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.test import Client
from rest_framework.test import APIClient

from exports.models import Dataset, Download
from exports.urls import WEBHOOK_PATHS
from tests.conftest import browser_of, client_of
from tests.contract.test_document import document
from tests.security.conftest import State
from tests.security.routes import ADMIN_ROUTES, LINK_ROUTE, OWNED_ROUTES, SAFE, UNSAFE, Route, required_query

# Datasets belong to no user.
SHARED_ROUTES = {"exports/datasets/<slug:name>"}
# Admin routes without authentication. They only redirect.
OPEN_TO_ALL = {"admin/login/", "admin/logout/", "admin/password_change/"}


def test_every_path_parameter_has_an_object_of_alice(objects_of_alice: dict[str, Any]) -> None:
    """This fails for a new route with an ID until the fixture has an object for it."""
    assert len(OWNED_ROUTES) > 40
    for route in OWNED_ROUTES:
        assert route.names <= objects_of_alice.keys(), f"{route}: add an object to objects_of_alice()"


def test_the_walk_covers_every_documented_operation_with_an_id() -> None:
    documented = [(path, set(methods) - {"head"}) for path, methods in document()["paths"].items() if "{" in path]
    others = WEBHOOK_PATHS[1:]  # other paths of the same resource
    walked = [
        route.methods - {"head"} for route in OWNED_ROUTES if not route.is_page and not route.path.startswith(others)
    ]
    assert sorted(map(sorted, walked)) == sorted(sorted(methods) for _, methods in documented)


@pytest.mark.slow
def test_owners_reach_their_own_objects(objects_of_alice: dict[str, Any], alice: User) -> None:
    """Without this test, the other tests would pass if the objects did not exist."""
    for route in OWNED_ROUTES:
        if "get" in route.methods and route.path != LINK_ROUTE:
            client = browser_of(alice) if route.is_page else client_of(alice)
            with closing(client.get(route.filled(objects_of_alice), required_query(route.path))) as response:
                assert response.status_code in (200, 302), route


@pytest.mark.slow
@pytest.mark.parametrize("how", ["token", "session"])
def test_objects_of_other_users_return_404_on_every_route(
    objects_of_alice: dict[str, Any], bob: User, state: Callable[[], State], how: str
) -> None:
    client = client_of(bob) if how == "token" else browser_of(bob)
    before = state()
    for route in OWNED_ROUTES:
        if route.path not in {LINK_ROUTE, *SHARED_ROUTES} and not (how == "token" and route.is_page):
            for method in (*SAFE, *UNSAFE):
                response = ask(client, method, route, objects_of_alice)
                expected = {404} if method in route.methods else {404, 405}
                assert response.status_code in expected, f"{method} {route}: {response.status_code}"
    assert state() == before


def ask(client: Client | APIClient, method: str, route: Route, objects_of_alice: dict[str, Any]) -> Any:
    path = route.filled(objects_of_alice)
    if method in SAFE:
        return getattr(client, method)(path)
    return client.generic(method.upper(), path, "{}", content_type="application/json")


def test_pages_require_a_session_and_refuse_tokens(
    objects_of_alice: dict[str, Any], alice: User, state: Callable[[], State]
) -> None:
    """A stolen token must not give access to pages."""
    client, before = client_of(alice), state()
    for route in (route for route in OWNED_ROUTES if route.is_page):
        for method in route.methods - {"head"}:
            response = ask(client, method, route, objects_of_alice)
            assert response.status_code == 302, f"{method} {route}"
            assert response["Location"].startswith("/app/sign-in"), route
    assert state() == before


def test_unauthenticated_requests_get_401_for_existing_and_unknown_objects(
    objects_of_alice: dict[str, Any], state: Callable[[], State]
) -> None:
    before = state()
    for route in OWNED_ROUTES:
        if route.path != LINK_ROUTE and not route.is_page:
            for method in route.methods:
                assert ask(APIClient(), method, route, objects_of_alice).status_code == 401, f"{method} {route}"
    assert state() == before


def test_a_link_without_its_token_is_refused_for_everyone(
    objects_of_alice: dict[str, Any], alice: User, bob: User
) -> None:
    path = f"/exports/{objects_of_alice['job_id']}/download"
    for client in (client_of(alice), client_of(bob), APIClient()):
        response = client.get(path)
        assert (response.status_code, response.json()["code"]) == (403, "link_invalid")
    assert Download.objects.filter(outcome="link_invalid").count() == 3


# ---- Staff ----------------------------------------------------------------------------------------------------------
@pytest.mark.slow
def test_admin_pages_are_closed_to_other_users(
    objects_of_alice: dict[str, Any], bob: User, staff: User, state: Callable[[], State], dataset: Dataset
) -> None:
    """A token of staff is refused too, because the admin requires a session."""
    anything = dict.fromkeys({name for route in ADMIN_ROUTES for name in route.names}, dataset.pk)
    strangers = (browser_of(bob), Client(), client_of(staff))
    before = state()
    assert len(ADMIN_ROUTES) > 80
    for route in ADMIN_ROUTES:
        for client in strangers if route.path not in OPEN_TO_ALL else ():
            for method in ("get", "post"):
                response = ask(client, method, route, anything)
                assert response.status_code == 302, f"{method} {route}: {response.status_code}"
                assert response["Location"].startswith("/admin/login/"), f"{method} {route}: {response['Location']}"
    assert state() == before
