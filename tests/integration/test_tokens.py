"""The API of tokens, and their scopes. C9."""

from datetime import datetime, timedelta
from types import SimpleNamespace
from typing import Any
from uuid import uuid4

import pytest
from django.contrib.admin.models import LogEntry
from django.contrib.auth.models import User
from knox.models import AuthToken
from rest_framework.test import APIClient

from config.platform.http import scopes, tokens

pytestmark = pytest.mark.django_db

ALL = ["exports:read", "exports:write", "documents:read", "documents:write", "rules:write", "webhooks:write"]


def client_with(user: User, *limits: str) -> APIClient:
    _, text = tokens.create(user, name="limited", scopes=limits)
    client = APIClient()
    client.credentials(HTTP_AUTHORIZATION=f"Bearer {text}")
    return client


def test_a_token_is_created_listed_used_and_revoked(api: APIClient, alice: User) -> None:
    """C9."""
    wanted = {"name": "Nightly import", "scopes": ["exports:write", "exports:read"], "expiresInDays": 30}
    response = api.post("/tokens", wanted)
    made = response.json()
    assert (response.status_code, response["Location"]) == (201, f"/tokens/{made['id']}")
    assert response["Cache-Control"] == "no-store"
    assert (made["name"], made["scopes"], made["lastUsedAt"]) == (
        "Nightly import",
        ["exports:read", "exports:write"],
        None,
    )
    lifetime = datetime.fromisoformat(made["expiresAt"]) - datetime.fromisoformat(made["createdAt"])
    assert timedelta(days=29, hours=23) < lifetime <= timedelta(days=30)

    program = APIClient()
    program.credentials(HTTP_AUTHORIZATION=f"Bearer {made['token']}")
    assert program.get("/exports").status_code == 200

    first, second = api.get("/tokens").json()["results"]
    assert first == {key: value for key, value in made.items() if key != "token"} | {"lastUsedAt": first["lastUsedAt"]}
    assert first["lastUsedAt"]
    assert (second["name"], second["scopes"]) == ("", ALL)

    assert api.delete(f"/tokens/{made['id']}").status_code == 204
    assert program.get("/exports").status_code == 401
    assert api.delete(f"/tokens/{made['id']}").status_code == 404
    messages = [entry.change_message for entry in LogEntry.objects.filter(user=alice).order_by("pk")]
    assert messages == [f"{verb} token Nightly import ({made['prefix']}…)." for verb in ("Created", "Revoked")]


def test_a_token_without_scopes_has_all_and_lives_for_90_days(api: APIClient) -> None:
    made = api.post("/tokens", {"name": "all"}).json()
    assert made["scopes"] == ALL
    assert made["expiresAt"][:10] == (datetime.fromisoformat(made["createdAt"]) + timedelta(days=90)).date().isoformat()


@pytest.mark.parametrize(
    ("body", "pointer", "code"),
    [
        ({}, "/name", "required"),
        ({"name": " "}, "/name", "blank"),
        ({"name": "x" * 101}, "/name", "max_length"),
        ({"name": "a", "scopes": []}, "/scopes", "min_length"),
        ({"name": "a", "scopes": ["exports:read", "all"]}, "/scopes/1", "invalid_choice"),
        ({"name": "a", "scopes": "exports:read"}, "/scopes", "not_a_list"),
        ({"name": "a", "expiresInDays": 0}, "/expiresInDays", "min_value"),
        ({"name": "a", "expiresInDays": 3651}, "/expiresInDays", "max_value"),
        ({"name": "a", "expiresInDays": "9"}, "/expiresInDays", "invalid"),
        ({"name": "a", "id": str(uuid4())}, "/id", "unknown_field"),
    ],
)
def test_invalid_requests_are_refused(api: APIClient, body: dict[str, Any], pointer: str, code: str) -> None:
    before = AuthToken.objects.count()
    response = api.post("/tokens", body)
    assert response.status_code == 400
    assert [(each["pointer"], each["code"]) for each in response.json()["errors"]] == [(pointer, code)]
    assert AuthToken.objects.count() == before


def test_the_number_of_tokens_is_limited(api: APIClient, alice: User) -> None:
    for _ in range(tokens.MAX_PER_USER - AuthToken.objects.filter(user=alice).count()):
        tokens.create(alice)
    response = api.post("/tokens", {"name": "one more"})
    assert (response.status_code, response.json()["code"]) == (409, "too_many_tokens")
    assert AuthToken.objects.filter(user=alice).count() == tokens.MAX_PER_USER


def test_a_missing_scope_is_403_and_is_named(alice: User) -> None:
    response = client_with(alice, "exports:read").post("/exports", {"dataset": "flights"})
    assert (response.status_code, response.json()["code"]) == (403, "insufficient_scope")
    assert response.json()["detail"] == "The token needs the scope exports:write."
    assert response["WWW-Authenticate"] == 'Bearer error="insufficient_scope", scope="exports:write"'


@pytest.mark.parametrize("limits", [["exports:read"], ALL])
def test_tokens_with_scopes_cannot_manage_tokens(alice: User, limits: list[str]) -> None:
    """Otherwise, a token could create one with more permissions."""
    client = client_with(alice, *limits)
    ((own, *_), count) = tokens.of_user(alice.pk), AuthToken.objects.count()
    for response in (
        client.get("/tokens"),
        client.post("/tokens", {"name": "more"}),
        client.delete(f"/tokens/{tokens.id_of(own)}"),
    ):
        assert (response.status_code, response.json()["code"]) == (403, "insufficient_scope")
        assert response.json()["detail"] == "This request needs a token that was created without scopes."
    assert AuthToken.objects.count() == count


def test_staff_need_a_token_without_scopes_for_metrics(staff: User) -> None:
    assert client_with(staff, *ALL).get("/metrics", REMOTE_ADDR="192.0.2.1").status_code == 403
    assert client_with(staff).get("/metrics", REMOTE_ADDR="192.0.2.1").status_code == 200


def test_a_view_without_declared_scopes_refuses_tokens_with_scopes(alice: User) -> None:
    token, _ = tokens.create(alice, scopes=ALL)
    request: Any = SimpleNamespace(auth=token, method="GET")
    with pytest.raises(scopes.InsufficientScope):
        scopes.HasScope().has_permission(request, SimpleNamespace(get=None))
