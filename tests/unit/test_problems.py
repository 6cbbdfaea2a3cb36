"""Error responses of the API: problems as in RFC 9457."""

import json
import time
from io import BytesIO
from typing import Any

import pytest
from asgiref.sync import async_to_sync
from django.conf import LazySettings
from django.contrib.auth.models import User
from django.db import OperationalError
from django.test import AsyncClient, Client

from config.platform.http.parsers import load, read
from config.platform.http.problems import MAX_ERRORS, BadInput, BodyTooLarge, input_errors
from tests.unit import failing_views

pytestmark = pytest.mark.urls("tests.unit.failing_views")

FIELDS = {"type", "title", "status", "detail", "code", "requestId"}


@pytest.fixture
def client() -> Client:
    return Client(raise_request_exception=False)


def problem(response: Any) -> dict[str, Any]:
    assert response["Content-Type"] == "application/problem+json", response.content
    body: dict[str, Any] = response.json()
    assert body.keys() >= FIELDS
    assert body["status"] == response.status_code
    assert body["requestId"] == response["X-Request-ID"]
    assert b"hunter2" not in response.content
    assert b"Traceback" not in response.content
    return body


def pointers(response: Any) -> list[tuple[str, str]]:
    assert response.status_code == 400
    body = problem(response)
    assert body["code"] == "invalid"
    return [(error["pointer"], error["code"]) for error in body["errors"]]


def post(client: Client, body: bytes | str, **headers: Any) -> Any:
    return client.post("/orders", body, content_type="application/json", **headers)


ITEM = {"key": "JFK", "effectiveDate": "2013-02-15"}


@pytest.mark.parametrize("debug", [False, True])
@pytest.mark.parametrize(
    ("path", "status", "code"),
    [
        ("/bug", 500, "internal_error"),
        ("/not-ready", 409, "not_ready"),
        ("/busy", 503, "queue_full"),
        ("/gone", 404, "not_found"),
        ("/missing", 404, "not_found"),
        ("/forbidden", 403, "permission_denied"),
        ("/throttled", 429, "throttled"),
        ("/down", 503, "database_unavailable"),
        ("/raw-down", 503, "database_unavailable"),
        ("/plain/bug", 500, "internal_error"),
        ("/plain/not-ready", 409, "not_ready"),
        ("/plain/missing", 404, "not_found"),
        ("/plain/suspicious", 400, "invalid"),
        ("/plain/down", 503, "database_unavailable"),
        ("/plain/method", 405, "method_not_allowed"),
        ("/orders", 405, "method_not_allowed"),
        ("/nowhere", 404, "not_found"),
    ],
)
def test_every_failure_is_a_problem_without_internals(
    client: Client, settings: LazySettings, *, path: str, status: int, code: str, debug: bool
) -> None:
    settings.DEBUG = debug

    response = client.get(path)

    assert (response.status_code, problem(response)["code"]) == (status, code)


@pytest.mark.django_db
def test_it_hides_failed_sql(client: Client) -> None:
    response = client.get("/plain/sql")

    assert problem(response)["code"] == "internal_error"
    assert b"passwords" not in response.content


def test_it_has_the_texts_of_a_problem(client: Client) -> None:
    assert problem(client.get("/not-ready")) | {"requestId": ""} == {
        "type": "urn:problem:sluice:not_ready",
        "title": "Conflict",
        "status": 409,
        "detail": "The export has not ended yet.",
        "code": "not_ready",
        "requestId": "",
    }


def test_it_keeps_the_detail_of_a_view(client: Client) -> None:
    assert problem(client.get("/gone"))["detail"] == "Task not found"


@pytest.mark.parametrize(("path", "seconds"), [("/busy", "7"), ("/down", "5"), ("/throttled", "3")])
def test_it_sends_retry_after(client: Client, path: str, seconds: str) -> None:
    assert client.get(path)["Retry-After"] == seconds


def test_it_keeps_the_headers_of_replaced_responses(client: Client) -> None:
    assert client.get("/plain/method")["Allow"] == "PUT"
    assert client.get("/orders")["Allow"] == "POST, OPTIONS"


def test_html_pages_are_left_to_django(client: Client) -> None:
    assert client.get("/admin/missing")["Content-Type"].startswith("text/html")


@pytest.mark.parametrize(
    ("path", "code"),
    [("/async/not-ready", "not_ready"), ("/async/bug", "internal_error"), ("/nowhere", "not_found")],
)
def test_errors_of_async_views_are_problems(path: str, code: str) -> None:
    client = AsyncClient(raise_request_exception=False)

    assert problem(async_to_sync(client.get)(path))["code"] == code


@pytest.mark.parametrize("is_async", [False, True])
def test_a_lost_database_in_a_middleware_is_a_503(client: Client, settings: LazySettings, *, is_async: bool) -> None:
    settings.MIDDLEWARE = [*settings.MIDDLEWARE, "tests.unit.test_problems.dead_database"]
    get = async_to_sync(AsyncClient(raise_request_exception=False).get) if is_async else client.get

    assert problem(get("/orders"))["code"] == "database_unavailable"


def test_a_lost_database_in_a_middleware_is_a_503_page(client: Client, settings: LazySettings) -> None:
    settings.MIDDLEWARE = [*settings.MIDDLEWARE, "tests.unit.test_problems.dead_database"]
    response = client.get("/app/exports")
    assert (response.status_code, response["Retry-After"]) == (503, "5")
    assert response["Content-Type"].startswith("text/html")


def dead_database(get_response: Any) -> Any:
    return failing_views.plainly_raising(OperationalError(failing_views.SECRET))


def test_it_refuses_unknown_hosts(client: Client, settings: LazySettings) -> None:
    settings.ALLOWED_HOSTS = ["sluice.example"]

    assert problem(client.get("/orders", HTTP_HOST="evil.example"))["code"] == "invalid"


def test_it_refuses_nul_in_paths_and_queries(client: Client) -> None:
    assert pointers(client.get("/orders?dataset=a%00b")) == [("", "nul")]
    assert problem(client.get("/or%00ders"))["code"] == "not_found"


# ---- Request IDs ------------------------------------------------------------------------------------------------
def test_it_accepts_valid_request_ids(client: Client) -> None:
    assert problem(client.get("/nowhere", HTTP_X_REQUEST_ID="trace-1.a_B"))["requestId"] == "trace-1.a_B"


@pytest.mark.parametrize("given", ["", "a" * 65, "a b", 'a"\n{"action": "forged"}', "ä", "<script>"])
def test_it_replaces_other_request_ids(client: Client, given: str) -> None:
    request_id = problem(client.get("/nowhere", HTTP_X_REQUEST_ID=given))["requestId"]

    assert request_id != given
    assert len(request_id) == 36


# ---- Input ------------------------------------------------------------------------------------------------------
def test_it_points_at_each_wrong_value(client: Client) -> None:
    wrong = {"items": [ITEM, {"key": "TOO LONG", "effectiveDate": "15.2.2013", "a/b~c": 1}, {}], "extra": None}

    assert set(pointers(post(client, json.dumps(wrong)))) == {
        ("/items/1/key", "max_length"),
        ("/items/1/effectiveDate", "invalid"),
        ("/items/1/a~1b~0c", "unknown_field"),
        ("/items/2/key", "required"),
        ("/items/2/effectiveDate", "required"),
        ("/extra", "unknown_field"),
    }


def test_it_refuses_read_only_fields(client: Client) -> None:
    assert pointers(post(client, json.dumps({"items": [{**ITEM, "size": 3}]}))) == [("/items/0/size", "read_only")]


def test_errors_without_a_field_have_a_pointer(client: Client) -> None:
    assert pointers(post(client, json.dumps({"items": [ITEM], "note": "wrong"}))) == [("", "conflict")]
    assert pointers(post(client, json.dumps({"items": {"0": ITEM}}))) == [("/items", "not_a_list")]
    assert pointers(client.get("/pointed")) == [("/a/b", "odd")]


@pytest.mark.slow
def test_it_limits_the_number_of_errors(client: Client) -> None:
    assert len(pointers(post(client, json.dumps({"items": [{}] * 10_000})))) == MAX_ERRORS


def test_it_accepts_nested_error_details() -> None:
    nested = {"a": {"non_field_errors": ["x"]}, "b": [{}, {"c": ["y"]}], "d": {3: ["z"]}, "e": "w"}

    assert [(error.pointer, error.detail) for error in input_errors(nested)] == [
        ("/a", "x"),
        ("/b/1/c", "y"),
        ("/d/3", "z"),
        ("/e", "w"),
    ]


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (b"", ("/items", "required")),
        (b"{", ("", "malformed")),
        (b"\xff\xfe{}", ("", "malformed")),
        (b'{"note": "\xe4"}', ("", "malformed")),
        (b'{"options": NaN}', ("", "malformed")),
        (b'{"options": 1e400}', ("", "malformed")),
        (b'{"options": ' + b"9" * 5000 + b"}", ("", "malformed")),
        (b'{"note": "\\ud800"}', ("", "malformed")),
        (b"[" * 100_000, ("", "too_deep")),
        (b'{"options": ' + b"[" * 100_000 + b"]" * 100_000 + b"}", ("", "too_deep")),
        (b'{"options": ' + b"[" * 200 + b"]" * 200 + b"}", ("/options", "too_deep")),
        (b'{"options": {"a": ["\\u0000"]}}', ("/options/a/0", "nul")),
        (b'{"options": {"a\\u0000": 1}}', ("/options", "nul")),
        (b"[]", ("", "not_an_object")),
        (b'"text"', ("", "not_an_object")),
        (b"null", ("", "not_an_object")),
    ],
)
def test_it_refuses_malformed_and_hostile_json(client: Client, body: bytes, expected: tuple[str, str]) -> None:
    assert pointers(post(client, body)) == [expected]


def test_it_accepts_text_that_resembles_nul(client: Client) -> None:
    assert post(client, json.dumps({"items": [ITEM], "note": "\\u0000"})).status_code == 200


def test_the_last_of_duplicate_names_wins(client: Client) -> None:
    body = b'{"note": "first", "items": [{"key": "JFK", "effectiveDate": "2013-02-15"}], "note": "last"}'

    assert post(client, body).json()["note"] == "last"


def test_it_refuses_bodies_whose_declared_length_is_too_large(client: Client, settings: LazySettings) -> None:
    settings.DATA_UPLOAD_MAX_MEMORY_SIZE = 100

    response = post(client, json.dumps({"note": "x" * 100}))

    assert (response.status_code, problem(response)["code"]) == (413, "body_too_large")


def test_it_stops_reading_a_body_above_the_limit(settings: LazySettings) -> None:
    settings.DATA_UPLOAD_MAX_MEMORY_SIZE = 100
    stream = BytesIO(b"x" * 1000)

    with pytest.raises(BodyTooLarge):
        read(stream)
    assert stream.tell() == 101


def test_it_reports_at_most_a_hundred_nul_characters(client: Client) -> None:
    """B24: the pointers of all of them would take a hundred gigabytes."""
    body = b'{"' + b"n" * 1_000_000 + b'": [' + b'"\\u0000",' * 100_000 + b"1]}"
    with pytest.raises(BadInput) as refused:
        load(body)
    assert len(refused.value.errors) == 100
    assert {error.pointer for error in refused.value.errors} == {"/" + "n" * 299}


@pytest.mark.parametrize("value", [b"[],", b"{},", b"1,", b'"a",'])
def test_it_refuses_megabytes_of_small_values_before_it_reads_them(value: bytes) -> None:
    """B24: a body of 4.8 MB must not block the process for seconds."""
    body = b'{"a": [' + value * (4_800_000 // len(value)) + b"1]}"
    costs = []  # CPU seconds
    for _ in range(3):
        began = time.thread_time()
        with pytest.raises(BadInput) as refused:
            load(body)
        costs.append(time.thread_time() - began)
        assert [error.code for error in refused.value.errors] == ["too_many_values"]
    assert sorted(costs)[-2] < 0.2  # one call may be interrupted by garbage collection


def test_it_refuses_other_media_types(client: Client) -> None:
    response = client.post("/orders", b"<a/>", content_type="application/xml")

    assert (response.status_code, problem(response)["code"]) == (415, "unsupported_media_type")


def test_it_refuses_other_accepted_media_types(client: Client) -> None:
    response = client.post("/orders", b"{}", content_type="application/json", HTTP_ACCEPT="text/csv")

    assert (response.status_code, problem(response)["code"]) == (406, "not_acceptable")


# ---- CSRF -------------------------------------------------------------------------------------------------------
def test_a_failed_csrf_check_of_a_plain_view_is_a_problem() -> None:
    response = Client(enforce_csrf_checks=True).post("/plain/form")

    assert (response.status_code, problem(response)["code"]) == (403, "csrf_failed")


@pytest.mark.django_db
def test_a_failed_csrf_check_of_a_session_is_a_problem() -> None:
    client = Client(enforce_csrf_checks=True)
    client.force_login(User.objects.create_user("ada"))

    assert client.get("/guarded").json() == {"user": "ada"}
    response = client.post("/guarded")
    assert (response.status_code, problem(response)["code"]) == (403, "csrf_failed")
