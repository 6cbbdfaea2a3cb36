"""Tests of response headers and cookie attributes."""

from typing import Any

import pytest
from django.contrib.auth.models import User
from django.test import Client

from tests.conftest import browser_of

UNKNOWN_ID = "00000000-0000-0000-0000-000000000000"
PASSWORD = "only for tests, 1"
EXPECTED_HEADERS = {
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
}
ANSWERS = [
    ("/", 302), ("/app/sign-in", 200), ("/app/exports", 200), ("/app/account", 200), ("/app/nowhere", 404),
    ("/api/schema", 200), ("/livez", 200), ("/exports", 200), ("/api/v1/etl/tasks", 200),
    (f"/exports/{UNKNOWN_ID}", 404), (f"/exports/{UNKNOWN_ID}/download?token=x", 403), ("/nowhere", 404),
    ("/exports?limit=x", 400), ("/exports?cursor=%00", 400), ("/exports/preview", 405), ("/admin/", 302),
    ("/admin/nowhere", 302),
]  # fmt: skip


@pytest.mark.parametrize(("path", "status"), ANSWERS)
def test_every_response_has_the_security_headers(alice: User, path: str, status: int) -> None:
    response = browser_of(alice).get(path)
    assert response.status_code == status
    strict = EXPECTED_HEADERS | ({"Referrer-Policy": "no-referrer"} if "token=" in path else {})
    assert {name: response.headers.get(name) for name in strict} == strict
    assert "default-src 'none'" in response["Content-Security-Policy"]
    assert "frame-ancestors 'none'" in response["Content-Security-Policy"]
    assert "Access-Control-Allow-Origin" not in response.headers
    assert "Server" not in response.headers


def test_admin_pages_have_the_security_headers(pages: Client) -> None:
    for path in ("/admin/", "/admin/exports/job/", "/admin/nowhere/"):
        response = pages.get(path)
        assert {name: response.headers.get(name) for name in EXPECTED_HEADERS} == EXPECTED_HEADERS, path


def test_refused_cookies_and_hosts_have_the_security_headers(client: Client, transactional_db: None) -> None:
    for headers in ({"Host": "evil.example"}, {"Cookie": 'sessionid="\\000aaaaaaaaaaaa"'}):
        response = client.get("/exports", headers=headers)
        assert response.status_code in (400, 401), headers
        assert {name: response.headers.get(name) for name in EXPECTED_HEADERS} == EXPECTED_HEADERS, headers


@pytest.mark.parametrize("path", ["/exports", "/app/exports", "/admin/", "/", "/app/sign-in"])
@pytest.mark.parametrize("name", ["sessionid", "csrftoken", "messages", "other"])
def test_malformed_cookies_do_not_break_requests(client: Client, transactional_db: None, path: str, name: str) -> None:
    for value in ('"\\000\\000aaaaaaaaa"', "\u00ff" * 20, "x" * 5000, "../../../etc/passwd", "'; DROP TABLE x; --"):
        response = client.get(path, headers={"Cookie": f"{name}={value}"})
        assert response.status_code < 500, value


def test_cookies_are_same_site_and_secure_and_the_session_is_http_only(transactional_db: None) -> None:
    User.objects.create_user("carol", password=PASSWORD)
    client = Client()
    client.get("/app/sign-in")
    client.post("/app/sign-in", {"username": "carol", "password": PASSWORD})
    session, csrf = client.cookies["sessionid"], client.cookies["csrftoken"]
    for cookie in (session, csrf):
        assert cookie["secure"]
        assert cookie["samesite"] in ("Lax", "Strict")
        assert not cookie["domain"]
    assert session["httponly"]


def test_sessions_change_on_sign_in_and_end_on_sign_out(transactional_db: None) -> None:
    """A session ID from before sign-in is replaced, and a copied session ID is invalid after sign-out."""
    User.objects.create_user("carol", password=PASSWORD)
    client = Client()
    client.cookies["sessionid"] = "a" * 32
    client.post("/app/sign-in", {"username": "carol", "password": PASSWORD})
    key = client.cookies["sessionid"].value
    assert key != "a" * 32
    assert Client(headers={"Cookie": f"sessionid={key}"}).get("/exports").status_code == 200
    client.post("/app/sign-out")
    assert Client(headers={"Cookie": f"sessionid={key}"}).get("/exports").status_code == 401


@pytest.mark.parametrize("method", ["OPTIONS", "TRACE", "CONNECT", "PROPFIND"])
def test_cors_grants_nothing(alice: User, method: str) -> None:
    headers: dict[str, Any] = {"Origin": "https://evil.example", "Access-Control-Request-Method": "POST"}
    response = browser_of(alice).generic(method, "/exports", headers=headers)
    assert response.status_code == (200 if method == "OPTIONS" else 405)
    assert not [name for name in response.headers if name.startswith("Access-Control")]
