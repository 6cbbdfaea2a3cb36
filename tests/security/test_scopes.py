"""C9: tests that each operation requires its scope. They fail for a new route until it has one."""

from collections.abc import Callable
from contextlib import closing
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.core.files.uploadedfile import SimpleUploadedFile
from rest_framework.test import APIClient

from config.platform.http import tokens
from config.platform.http.scopes import ALL
from etl.models import Task
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


def limited_client(user: User, *scopes: str) -> APIClient:
    _, text = tokens.create(user, scopes=scopes)
    client = APIClient()
    client.credentials(HTTP_AUTHORIZATION=f"Bearer {text}")
    return client


def test_a_sample_with_a_file_needs_the_scope_to_submit_documents(
    alice: User, objects_of_alice: dict[str, Any]
) -> None:
    """C9."""
    path, form = f"/api/v1/etl/rules/{objects_of_alice['rule_id']}/samples", {"expected": "{}"}
    before = Task.objects.count()
    response = limited_client(alice, "rules:write").post(
        path, {**form, "file": SimpleUploadedFile("a.md", b"Total 5")}, format="multipart"
    )
    assert (response.status_code, response.json()["code"]) == (403, "insufficient_scope")
    assert response.json()["detail"] == "The token needs the scope documents:write."
    assert Task.objects.count() == before
    permitted = limited_client(alice, "rules:write", "documents:write").post(path, form, format="multipart")
    assert permitted.status_code == 400  # the file is missing


def test_a_test_with_a_document_needs_the_scope_to_read_documents(
    alice: User, objects_of_alice: dict[str, Any]
) -> None:
    """C9."""
    path = f"/api/v1/etl/rules/{objects_of_alice['rule_id']}/test"
    body = {"markdown": "Total 5", "task_id": objects_of_alice["task_id"]}
    response = limited_client(alice, "rules:write").post(path, body, format="json")
    assert (response.status_code, response.json()["code"]) == (403, "insufficient_scope")
    assert limited_client(alice, "rules:write", "documents:read").post(path, body, format="json").status_code == 200


@pytest.mark.parametrize("scope", ALL)
@pytest.mark.slow
def test_a_token_reaches_only_operations_permitted_by_its_scope(
    objects_of_alice: dict[str, Any], alice: User, state: Callable[[], State], scope: str
) -> None:
    client = limited_client(alice, scope)
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
