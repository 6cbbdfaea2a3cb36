"""Responses to methods and media types that an operation does not support: 405, 415, and 406. C4."""

from collections.abc import Iterator
from typing import Any

import pytest
from django.contrib.auth.models import User
from rest_framework.test import APIClient

from config.platform.http.problems import CONTENT_TYPE
from config.platform.webhooks import subscriptions
from exports.models import Dataset
from tests.contract.test_document import METHODS, document, operations, responses
from tests.integration.etl_factories import make_batch, make_rule, make_task
from tests.integration.factories import make_job
from tests.integration.schedules import make_schedule
from tests.integration.test_schema import EXAMPLES

WRITES = ("POST", "PUT", "PATCH")
# Operations with one response format, regardless of Accept.
FIXED_FORMAT = {
    "livez",
    "readyz",
    "metrics",
    "download",
    "getFile",
    "watchExport",
    "watchTask",
    "getMarkdown",
    "getAnswer",
    "getLayout",
    "getPageImage",
    "getBatchResults",
}


def requests(**known: Any) -> Iterator[tuple[str, str, dict[str, Any]]]:
    for name, operation in operations().items():
        method, _, path = name.partition(" ")
        yield method.upper(), path.format(**{**EXAMPLES, **known}), operation


def code(response: Any, status: int) -> str:
    assert (response.status_code, response["Content-Type"]) == (status, CONTENT_TYPE), response
    return str(response.json()["code"])


@pytest.mark.slow
def test_unsupported_methods_are_405_with_an_allow_header(api: APIClient) -> None:
    for path, methods in document()["paths"].items():
        supported = {method.upper() for method in methods}
        for method in {each.upper() for each in METHODS} - supported | {"TRACE"}:
            response = api.generic(method, path.format(**EXAMPLES))
            assert code(response, 405) == "method_not_allowed", (method, path)
            allowed = set(response["Allow"].replace(" ", "").split(","))
            assert allowed - {"HEAD", "OPTIONS"} == supported, (method, path)


@pytest.mark.slow
def test_unsupported_media_types_are_415(api: APIClient, dataset: Dataset, alice: User) -> None:
    """This includes operations without a body."""
    hook = subscriptions.create(user_id=alice.pk, url="https://127.0.0.1/", events=["export.succeeded"])
    known = {
        "rule_id": make_rule(alice).pk,
        "jobId": make_job(dataset, alice).pk,
        "task_id": make_task(alice).pk,
        "batch_id": make_batch(alice)[0].pk,
        "scheduleId": make_schedule(alice, dataset).pk,
        "webhookId": hook.pk,
        "deliveryId": subscriptions.send_test(hook).pk,
    }
    for method, path, operation in requests(**known):
        if method in WRITES:
            assert "415" in operation["responses"]
            for media_type in ("text/plain", "application/xml", "application/x-www-form-urlencoded"):
                response = api.generic(method, path, "a=1", content_type=media_type)
                assert code(response, 415) == "unsupported_media_type", (method, path, media_type)
                assert set(operation.get("requestBody", {}).get("content", ())) <= set(response["Accept"].split(", "))


def test_an_unexpected_body_is_an_error(api: APIClient, alice: User) -> None:
    hook = subscriptions.create(user_id=alice.pk, url="https://127.0.0.1/", events=["export.succeeded"])
    for action in ("test", "rotate-secret", f"deliveries/{subscriptions.send_test(hook).pk}/redeliver"):
        response = api.post(f"/exports/webhooks/{hook.pk}/{action}", {"surprise": True})
        assert code(response, 400) == "invalid"
        assert response.json()["errors"][0]["pointer"] == "/surprise"


@pytest.mark.slow
def test_unavailable_response_formats_are_406(api: APIClient) -> None:
    for method, path, operation in requests():
        response = api.generic(method, path, content_type="application/json", headers={"accept": "text/csv"})
        is_documented = "406" in operation["responses"]
        assert is_documented is (operation["operationId"] not in FIXED_FORMAT and method != "DELETE")
        if is_documented:
            assert code(response, 406) == "not_acceptable", (method, path)
        else:
            assert response.status_code != 406


@pytest.mark.slow
def test_clients_that_accept_the_documented_media_types_are_not_refused(api: APIClient) -> None:
    """C4: this includes operations whose only media type is that of problems, because success has no body."""
    for method, path, operation in requests():
        listed = {each for response in responses(operation).values() for each in response.get("content", {})}
        for accept in (", ".join(sorted(listed)), CONTENT_TYPE):
            response = api.generic(method, path, content_type="application/json", headers={"accept": accept})
            assert response.status_code != 406, (method, path, accept)


def test_options_lists_the_methods(api: APIClient) -> None:
    """C4: RFC 9110, 9.3.7."""
    for path, methods in document()["paths"].items():
        response = api.options(path.format(**EXAMPLES), headers={"accept": "text/csv"})
        if "OPTIONS" not in (allowed := set(response["Allow"].replace(" ", "").split(","))):
            assert code(response, 405) == "method_not_allowed"  # an event stream
            continue
        assert (response.status_code, response.content) == (200, b""), path
        assert allowed - {"HEAD", "OPTIONS"} == {method.upper() for method in methods}, path


@pytest.mark.parametrize("path", ["/exports/nowhere", "/api/v1/etl/tasks/x", "/api/v1/nothing", "/exports/"])
def test_unknown_paths_are_404(api: APIClient, path: str) -> None:
    assert code(api.get(path), 404) == "not_found"
