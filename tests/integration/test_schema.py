"""The OpenAPI schema: real responses match it, and it describes exactly what exists."""

import re
from collections.abc import Iterator
from datetime import datetime
from typing import Any
from urllib.parse import urlsplit

import jsonschema
import psycopg
import pytest
from django.contrib.auth.models import User
from django.test import Client
from django.urls import Resolver404, URLPattern, resolve
from drf_spectacular.generators import SchemaGenerator
from rest_framework.test import APIClient

from config.platform.webhooks import sender
from etl import urls as etl_urls
from exports import urls as exports_urls
from exports.jobs import webhook_events
from exports.models import Dataset, Job, Receipt
from exports.worker import execution
from rules import urls as rules_urls
from tests.conftest import client_of
from tests.integration.factories import finish, make_job
from tests.integration.faulty_s3 import Proxy, answer_500
from tests.integration.receiver import allow, receiver
from tests.waiting import wait_until

ITEM = {"key": "JFK", "effectiveDate": "2024-02-29"}
UNKNOWN_ID = "00000000-0000-0000-0000-000000000000"
EXAMPLES = {
    "jobId": UNKNOWN_ID,
    "scheduleId": UNKNOWN_ID,
    "webhookId": UNKNOWN_ID,
    "tokenId": UNKNOWN_ID,
    "deliveryId": UNKNOWN_ID,
    "key": "JFK",
    "effectiveDate": "2024-02-29",
    "task_id": 17,
    "batch_id": 5,
    "rule_id": 3,
    "page": 1,
    "name": "flights",
    "sample_id": 4,
    "number": 1,
}


def is_utc_with_z(value: Any) -> bool:
    return not isinstance(value, str) or (value.endswith("Z") and bool(datetime.fromisoformat(value)))


def is_absolute_url(value: Any) -> bool:
    return not isinstance(value, str) or bool(urlsplit(value).netloc)


# By default, FormatChecker checks dates and UUIDs, but times and URLs only with packages that are not installed.
formats = jsonschema.FormatChecker()
formats.checks("date-time", raises=ValueError)(is_utc_with_z)
formats.checks("uri", raises=ValueError)(is_absolute_url)


@pytest.fixture(scope="module")
def schema() -> dict[str, Any]:
    generated: dict[str, Any] = SchemaGenerator().get_schema(public=True)  # type: ignore[no-untyped-call]
    return generated


def check(instance: Any, shape: dict[str, Any], schema: dict[str, Any]) -> None:
    whole = {**shape, "components": schema["components"]}
    jsonschema.Draft202012Validator(whole, format_checker=formats).validate(instance)


def closed(shape: Any) -> Any:
    """Return the schema with `additionalProperties: false`, so that undocumented fields of responses are errors."""
    if isinstance(shape, list):
        return [closed(member) for member in shape]
    if not isinstance(shape, dict):
        return shape
    inside = {name: closed(member) for name, member in shape.items()}
    is_open = inside.get("type") == "object" and "additionalProperties" not in inside
    return {**inside, "additionalProperties": False} if is_open else inside


class Api:
    """A client that compares each response with the schema: status, media type, body, and required headers."""

    def __init__(self, client: APIClient, schema: dict[str, Any]) -> None:
        self.client = client
        self.schema = {
            **schema,
            "components": {**schema["components"], "schemas": closed(schema["components"]["schemas"])},
        }

    def get(self, url: str) -> Any:
        return self.checked("get", url)

    def post(self, url: str, body: Any = None, **how: Any) -> Any:
        return self.checked("post", url, body, **how)

    def checked(self, method: str, url: str, body: Any = None, **how: Any) -> Any:
        response = getattr(self.client, method)(url, body, **how)
        path = template_of(urlsplit(url).path, self.schema)
        documented = resolved(self.schema["paths"][path][method]["responses"][str(response.status_code)], self.schema)
        for name, header in documented.get("headers", {}).items():
            assert name in response or not header.get("required"), name
        if "content" not in documented:
            assert response.content == b""
            return response
        media_type = response["Content-Type"].partition(";")[0]
        shape = documented["content"][media_type]["schema"]
        if "json" in media_type:
            check(response.json(), closed(shape), self.schema)
        else:
            assert shape == {"type": "string"}
        return response


def resolved(part: dict[str, Any], schema: dict[str, Any]) -> dict[str, Any]:
    """Resolve a reference; return other values unchanged."""
    _, *names = part.get("$ref", "").split("/")
    for name in names:
        schema = schema[name]
    return schema if names else part


def template_of(path: str, schema: dict[str, Any]) -> str:
    """Return the template of a path, such as `/exports/{jobId}`.

    If several templates match, return the one with the fewest parameters.
    """
    fitting = [each for each in schema["paths"] if re.fullmatch(re.sub(r"\\\{\w+\\\}", "[^/]+", re.escape(each)), path)]
    return str(min(fitting, key=lambda each: each.count("{")))


@pytest.fixture
def checked(api: APIClient, schema: dict[str, Any]) -> Api:
    return Api(api, schema)


@pytest.fixture
def anyone(schema: dict[str, Any]) -> Api:
    return Api(APIClient(), schema)


def submit(checked: Api, **changes: Any) -> str:
    return str(checked.post("/exports", {"dataset": "things", "items": [ITEM], **changes}).json()["jobId"])


# ---- Responses ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"format": "jsonl", "compression": "gzip", "delivery": "manifest", "reuse": "never"},
        {"csv": {"bom": True, "delimiter": ";", "formulaPolicy": "escape"}, "allowDegraded": False},
    ],
)
def test_a_job_matches_from_submission_to_receipt(checked: Api, dataset: Dataset, changes: dict[str, Any]) -> None:
    job_id = submit(checked, **changes)
    assert checked.get(f"/exports/{job_id}").json()["status"] == "pending"
    assert checked.get(f"/exports/{job_id}/chunks").json()["results"][0]["source"] is None

    finish(Job.objects.get(pk=job_id))
    assert checked.get(f"/exports/{job_id}").json()["receipt"]["signedUrl"]
    assert checked.get(f"/exports/{job_id}/chunks").json()["results"][0]["checksum"]
    assert len(checked.get("/exports?limit=1").json()["results"]) == 1
    for path in ("/exports", f"/exports/{job_id}/chunks"):
        page = checked.get(f"{path}?limit=200").json()
        assert (page["results"], page["next"]) == (checked.get(path).json()["results"], None)


def test_a_failed_job_and_its_retry_match(checked: Api, dataset: Dataset, source_db: psycopg.Connection) -> None:
    source_db.execute("DROP FUNCTION data.rows_for")
    job_id = submit(checked)
    execution.drain()

    assert checked.get(f"/exports/{job_id}").json()["error"]["code"] == "EXPORT_SOURCE_ERROR"
    assert checked.get(f"/exports/{job_id}/chunks?status=failed").json()["results"][0]["error"]
    assert checked.post(f"/exports/{job_id}/retry").status_code == 202
    assert checked.post(f"/exports/{job_id}/retry").status_code == 409


def test_links_match_until_they_are_used(checked: Api, anyone: Api, dataset: Dataset) -> None:
    job_id = submit(checked)
    assert checked.post(f"/exports/{job_id}/link").json()["code"] == "not_ready"
    finish(Job.objects.get(pk=job_id))
    url = checked.post(f"/exports/{job_id}/link").json()["signedUrl"]

    assert anyone.get(url).status_code == 302
    assert anyone.get(url).json()["code"] == "link_used"
    assert anyone.get(f"/exports/{job_id}/download?token=x").json()["code"] == "link_invalid"
    assert checked.get(f"/exports/{job_id}").json()["receipt"]["state"] == "redeemed"


def test_single_files_match(checked: Api, dataset: Dataset, alice: User) -> None:
    job = make_job(dataset, alice, 2, delivery="manifest")
    finish(job)
    path = f"/exports/{job.pk}/files/JFK/2024-02-28"

    assert checked.get(path).status_code == 302
    Receipt.objects.update(expires_at="2000-01-01T00:00Z")
    assert checked.get(path).json()["code"] == "receipt_expired"
    assert checked.get(f"/exports/{job.pk}/files/JFK/1999-01-01").status_code == 404


def test_a_file_is_503_during_an_object_storage_outage(
    checked: Api, dataset: Dataset, alice: User, proxy: Proxy
) -> None:
    job = make_job(dataset, alice, 2, delivery="manifest")
    finish(job)
    proxy.inject("HEAD", "JFK", answer_500, times=50)
    response = checked.get(f"/exports/{job.pk}/files/JFK/2024-02-28")
    assert (response.status_code, response.json()["code"]) == (503, "storage_unavailable")


def test_webhooks_match(checked: Api, schema: dict[str, Any], settings: Any, dataset: Dataset, alice: User) -> None:
    """A25: responses, and requests to receivers."""
    allow(settings, "127.0.0.0/8")
    with receiver() as endpoint:
        body = {"url": endpoint.url, "events": ["export.succeeded"]}
        path = f"/exports/webhooks/{checked.post('/exports/webhooks', body).json()['id']}"
        finish(make_job(dataset, alice, 1))
        webhook_events.fan_out()
        sender.drain()
        delivery = checked.get(f"{path}/deliveries").json()["results"][0]
        assert checked.post(f"{path}/deliveries/{delivery['id']}/redeliver").status_code == 202
        assert checked.post(f"{path}/deliveries/{delivery['id']}/redeliver").status_code == 409
        assert checked.post(f"{path}/test").status_code == 202
        assert checked.post(f"{path}/test").status_code == 409
        assert checked.post(f"{path}/rotate-secret").status_code == 200
        assert len(checked.get("/exports/webhooks").json()["results"]) == 1
        assert checked.checked("patch", path, {"enabled": False}).json()["disabledReason"]
        assert checked.checked("patch", path, {"url": "https://127.1.1.1/x y"}).status_code == 400
        assert checked.get(path).status_code == 200
        assert checked.checked("delete", path).status_code == 204
        assert checked.get(path).status_code == 404
        event = endpoint.received[0].json
    assert checked.post("/exports/webhooks", {**body, "events": []}).status_code == 400
    hook = schema["webhooks"]["export.succeeded"]
    check(event, closed(hook["post"]["requestBody"]["content"]["application/json"]["schema"]), checked.schema)


@pytest.mark.parametrize("path", ["/exports/datasets", "/livez", "/readyz"])
def test_responses_without_a_job_match(checked: Api, dataset: Dataset, path: str) -> None:
    wait_until(lambda: checked.get(path).status_code == 200)  # a busy machine is not ready for a moment


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"dataset": "nothing", "items": [ITEM]},
        {"dataset": "things"},
        {"dataset": "things", "items": []},
        {"dataset": "things", "items": [ITEM | {"effectiveDate": "20240229"}]},
        {"dataset": "things", "items": [ITEM | {"more": 1}]},
        {"dataset": "things", "items": [ITEM], "surprise": True},
    ],
)
def test_refused_input_matches(checked: Api, dataset: Dataset, body: dict[str, Any]) -> None:
    response = checked.post("/exports", body)
    assert response.status_code == 400
    assert response.json()["errors"]


@pytest.mark.parametrize("query", ["status=odd", "limit=201", "cursor=odd"])
def test_refused_queries_match(checked: Api, dataset: Dataset, query: str) -> None:
    job_id = submit(checked)
    assert checked.get(f"/exports?{query}").status_code == 400
    assert checked.get(f"/exports/{job_id}/chunks?{query}").status_code == 400


def test_unauthorized_and_unknown_requests_match(
    checked: Api, anyone: Api, schema: dict[str, Any], dataset: Dataset, bob: User
) -> None:
    job_id = submit(checked)
    for path in (f"/exports/{job_id}", f"/exports/{job_id}/chunks"):
        assert anyone.get(path).status_code == 401
        assert Api(client_of(bob), schema).get(path).status_code == 404
    for action in ("retry", "link"):
        assert checked.post(f"/exports/{UNKNOWN_ID}/{action}").status_code == 404


# ---- Requests -------------------------------------------------------------------------------------------------------

FILTERS = {"keys": ["JFK"], "dateFrom": "2024-02-28", "dateTo": "2024-02-29"}


@pytest.mark.parametrize(
    ("changes", "good"),
    [
        ({"items": [ITEM]}, True),
        ({"filters": FILTERS}, True),
        ({"items": [ITEM], "format": "json", "compression": "gzip", "delivery": "auto", "reuse": "never"}, True),
        ({"items": [ITEM], "csv": {"delimiter": "\t"}}, True),
        ({}, False),
        ({"items": [ITEM], "filters": FILTERS}, False),
        ({"items": []}, False),
        ({"items": [{"key": "JFK"}]}, False),
        ({"items": [ITEM | {"effectiveDate": "2024-02-30"}]}, False),
        ({"items": [ITEM | {"key": 7}]}, False),
        ({"items": [ITEM | {"more": 1}]}, False),
        ({"items": [ITEM], "format": "xml"}, False),
        ({"items": [ITEM], "csv": {"bom": "yes"}}, False),
        ({"items": [ITEM], "csv": {"quote": "'"}}, False),
        ({"items": [ITEM], "allowDegraded": None}, False),
        ({"items": [ITEM], "surprise": True}, False),
        ({"filters": {"keys": ["JFK"], "dateFrom": "2024-02-28"}}, False),
        ({"filters": FILTERS | {"keys": []}}, False),
    ],
)
def test_the_schema_accepts_what_the_service_accepts(
    api: APIClient, schema: dict[str, Any], dataset: Dataset, changes: dict[str, Any], *, good: bool
) -> None:
    body = {"dataset": "things", **changes}
    assert api.post("/exports", body).status_code == (202 if good else 400)

    operation = schema["paths"]["/exports"]["post"]
    shape = operation["requestBody"]["content"]["application/json"]["schema"]
    validator = jsonschema.Draft202012Validator({**shape, "components": schema["components"]}, format_checker=formats)
    assert validator.is_valid(body) is good


# ---- The document ---------------------------------------------------------------------------------------------------


def contents(node: Any) -> Iterator[dict[str, Any]]:
    """Yield the media types of bodies, each with its `schema` and perhaps `examples`."""
    if isinstance(node, dict):
        yield from node.get("content", {}).values()
        for member in node.values():
            yield from contents(member)


def test_the_examples_match_their_schemas(schema: dict[str, Any]) -> None:
    shown = [(each, content["schema"]) for content in contents(schema["paths"]) for each in examples(content)]
    assert len(shown) >= 6
    for example, shape in shown:
        check(example, shape, schema)


def examples(content: dict[str, Any]) -> list[Any]:
    return [example["value"] for example in content.get("examples", {}).values()]


def test_every_documented_path_exists(schema: dict[str, Any]) -> None:
    for path in schema["paths"]:
        try:
            resolve(path.format(**EXAMPLES))
        except Resolver404:
            pytest.fail(f"There is no {path}.")


@pytest.mark.parametrize("urls", [exports_urls, etl_urls, rules_urls])
def test_every_path_and_method_is_documented(schema: dict[str, Any], urls: Any) -> None:
    documented = {resolve(path.format(**EXAMPLES)).route: set(methods) for path, methods in schema["paths"].items()}
    for pattern in urls.urlpatterns:
        assert isinstance(pattern, URLPattern)
        if str(pattern.pattern).startswith(exports_urls.WEBHOOK_PATHS[1:]):
            continue  # the same views as those below the first path
        methods = {name for name in ("get", "post", "put", "patch", "delete") if hasattr(view_of(pattern), name)}
        assert documented.get(str(pattern.pattern)) == methods


def view_of(pattern: URLPattern) -> Any:
    return pattern.callback.view_class  # type: ignore[attr-defined]


def test_every_operation_has_a_unique_name(schema: dict[str, Any]) -> None:
    operations = [operation for path in schema["paths"].values() for operation in path.values()]
    names = [operation["operationId"] for operation in operations]
    assert len(set(names)) == len(names)
    known = {tag["name"] for tag in schema["tags"]}
    assert all(set(operation["tags"]) <= known for operation in operations)


@pytest.mark.slow
def test_the_documentation_loads_resources_only_from_this_host(client: Client) -> None:
    page = client.get("/api/docs").content.decode()

    loaded = re.findall(r"""<(?:script|img|link|iframe)\b[^>]*?(?:src|href)="([^"]*)""", page)
    assert len(loaded) >= 4
    assert all(urlsplit(url).netloc == "" for url in loaded)
