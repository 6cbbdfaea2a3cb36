"""Access of bob to objects of alice: 404 on every route, with every method, with a token and with a session."""

from collections.abc import Callable
from contextlib import closing
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.test import Client
from rest_framework.test import APIClient

from exports.models import Dataset, Download
from exports.urls import WEBHOOK_PATHS
from tests.conftest import client_of
from tests.contract.test_document import document
from tests.security.conftest import State, browser_of
from tests.security.routes import OWNED, SAFE, STAFFS, UNSAFE, Route

# Any client with a link can use it. Without its token, it is 404.
BY_LINK = "exports/<uuid:job_id>/download"
# Datasets belong to no user.
SHARED = {"exports/datasets/<slug:name>"}
# Without authentication: signing in and out, and the resources of that page.
OPEN_TO_ALL = {
    "admin/login/",
    "admin/logout/",
    "admin/password_change/",
}  # the last one redirects to the page of all users


def test_every_path_parameter_has_an_object_of_alice(belongings: dict[str, Any]) -> None:
    """A new route with an ID fails here until there is an object for it."""
    assert len(OWNED) > 40
    for route in OWNED:
        assert route.names <= belongings.keys(), f"{route}: give belongings() its object"


def test_the_walk_covers_every_documented_operation_with_an_id() -> None:
    documented = [(path, set(methods) - {"head"}) for path, methods in document()["paths"].items() if "{" in path]
    others = WEBHOOK_PATHS[1:]  # of the same resource
    walked = [route.methods - {"head"} for route in OWNED if not route.is_page and not route.path.startswith(others)]
    assert sorted(map(sorted, walked)) == sorted(sorted(methods) for _, methods in documented)


def test_owners_reach_their_own_objects(belongings: dict[str, Any], alice: User) -> None:
    """Without this, the other tests could pass for objects that do not exist at all."""
    for route in OWNED:
        if "get" in route.methods and route.path != BY_LINK:
            asking = browser_of(alice) if route.is_page else client_of(alice)
            required = {"a": 1, "b": 1} if route.path.endswith("/compare") else {}
            with closing(asking.get(route.filled(belongings), required)) as answer:
                assert answer.status_code in (200, 302), route


@pytest.mark.parametrize("how", ["token", "session"])
def test_objects_of_other_users_return_404_on_every_route(
    belongings: dict[str, Any], bob: User, state: Callable[[], State], how: str
) -> None:
    asking = client_of(bob) if how == "token" else browser_of(bob)
    before = state()
    for route in OWNED:
        if route.path not in {BY_LINK, *SHARED} and not (how == "token" and route.is_page):
            for method in (*SAFE, *UNSAFE):
                answer = ask(asking, method, route, belongings)
                expected = {404} if method in route.methods else {404, 405}
                assert answer.status_code in expected, f"{method} {route}: {answer.status_code}"
    assert state() == before


def ask(asking: Client | APIClient, method: str, route: Route, belongings: dict[str, Any]) -> Any:
    path = route.filled(belongings)
    if method in SAFE:
        return getattr(asking, method)(path)
    return asking.generic(method.upper(), path, "{}", content_type="application/json")


def test_pages_require_a_session_and_refuse_tokens(
    belongings: dict[str, Any], alice: User, state: Callable[[], State]
) -> None:
    """So that no program with a token can use the pages."""
    asking, before = client_of(alice), state()
    for route in (route for route in OWNED if route.is_page):
        for method in route.methods - {"head"}:
            answer = ask(asking, method, route, belongings)
            assert answer.status_code == 302, f"{method} {route}"
            assert answer["Location"].startswith("/app/sign-in"), route
    assert state() == before


def test_unauthenticated_requests_get_401_for_existing_and_unknown_objects(
    belongings: dict[str, Any], state: Callable[[], State]
) -> None:
    before = state()
    for route in OWNED:
        if route.path != BY_LINK and not route.is_page:
            for method in route.methods:
                assert ask(APIClient(), method, route, belongings).status_code == 401, f"{method} {route}"
    assert state() == before


def test_a_link_without_its_token_is_404_for_everyone(belongings: dict[str, Any], alice: User, bob: User) -> None:
    path = f"/exports/{belongings['job_id']}/download"
    for asking in (client_of(alice), client_of(bob), APIClient()):
        answer = asking.get(path)
        assert (answer.status_code, answer.json()["code"]) == (403, "link_invalid")
    assert Download.objects.filter(outcome="link_invalid").count() == 3


# ---- Staff ----------------------------------------------------------------------------------------------------------
@pytest.mark.slow
def test_admin_pages_are_closed_to_other_users(
    belongings: dict[str, Any], bob: User, state: Callable[[], State], dataset: Dataset
) -> None:
    """Also with a token of staff: the admin requires a session."""
    sam = User.objects.create_user("sam", is_staff=True, is_superuser=True)
    anything = dict.fromkeys({name for route in STAFFS for name in route.names}, dataset.pk)
    strangers = (browser_of(bob), Client(), client_of(sam))
    before = state()
    assert len(STAFFS) > 80
    for route in STAFFS:
        for asking in strangers if route.path not in OPEN_TO_ALL else ():
            for method in ("get", "post"):
                answer = ask(asking, method, route, anything)
                assert answer.status_code == 302, f"{method} {route}: {answer.status_code}"
                assert answer["Location"].startswith("/admin/login/"), f"{method} {route}: {answer['Location']}"
    assert state() == before
