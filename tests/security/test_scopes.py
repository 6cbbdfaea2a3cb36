"""C9: tests that each operation requires its scope. They fail for a new route until it has one."""

from collections.abc import Callable
from contextlib import closing
from typing import Any

import pytest
from django.contrib.auth.models import User
from rest_framework.test import APIClient

from config.platform.http import tokens
from config.platform.http.scopes import ALL
from tests.contract.test_document import document
from tests.security.conftest import State
from tests.security.routes import LINK_ROUTE, ROUTES, UNSAFE, Route, required_query

# Routes without a token, or with another credential.
OPEN = {"livez", "readyz", "metrics", "api/schema", "api/docs", LINK_ROUTE}
READS = {"exports/<uuid:job_id>/link"}  # POST requests that only need a scope for reading


def expected(route: Route, method: str) -> set[str]:
    """Return the scopes that permit an operation, by its path. One of them is enough."""
    writes = method in UNSAFE and route.path not in READS
    parts = route.path.split("/")
    if parts[0] == "tokens":
        return set()
    if "webhooks" in parts:
        return {"webhooks:write"}
    if "rules" in parts:
        return {"rules:write"} if writes else {"rules:write", "documents:read"}
    return {f"{'exports' if parts[0] == 'exports' else 'documents'}:{'write' if writes else 'read'}"}


API = [
    (route, method)
    for route in ROUTES
    if getattr(route.view, "cls", None) and not route.is_page and route.path not in OPEN
    for method in sorted(route.methods - {"head"})
]


def test_every_view_of_the_api_declares_its_scopes() -> None:
    """C9."""
    assert len(API) > 70
    for route, method in API:
        assert set(route.view.cls.scopes.of(method.upper())) == expected(route, method), f"{method} {route}"


def test_the_schema_names_the_scopes() -> None:
    found = [
        {scope for way in operation["security"] for scope in way.get("bearer", ())}
        for path, operations in document()["paths"].items()
        for operation in operations.values()
        if path.startswith(("/exports", "/api/v1/etl")) and not path.endswith("/download")
    ]
    assert len(found) > 60
    assert all(found)


@pytest.mark.parametrize("scope", ALL)
@pytest.mark.slow
def test_a_token_reaches_only_operations_permitted_by_its_scope(
    objects_of_alice: dict[str, Any], alice: User, state: Callable[[], State], scope: str
) -> None:
    _, text = tokens.create(alice, scopes=[scope])
    client = APIClient()
    client.credentials(HTTP_AUTHORIZATION=f"Bearer {text}")
    before = state()
    for route, method in API:
        is_permitted = scope in expected(route, method)
        if is_permitted and method in UNSAFE:
            continue  # it would change something
        query = required_query(route.path) or None
        with closing(getattr(client, method)(route.filled(objects_of_alice), query)) as response:
            assert (response.status_code == 403) == (not is_permitted), f"{method} {route}: {response.status_code}"
            if not is_permitted:
                assert response.json()["code"] == "insufficient_scope"
    assert state() == before
