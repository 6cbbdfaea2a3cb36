"""The OpenAPI document: valid, complete, and correct. C4."""

import re
from collections.abc import Callable, Iterator
from functools import cache
from itertools import chain
from pathlib import Path
from typing import Any

import jsonschema
import orjson
import pytest
import yaml
from drf_spectacular.validation import validate_schema

from config.settings import BASE_DIR
from exports.urls import WEBHOOK_PATHS
from tests.integration.test_schema import check, formats, resolved
from tests.security.routes import ROUTES

DOCUMENT: Path = BASE_DIR / "docs" / "openapi.yaml"
METHODS = {"get", "put", "post", "delete", "patch"}
# Routes that are not in the document, and the reasons.
EXCEPTIONS = {
    "api/schema": "it serves the document itself",
    "app": "it redirects to a page",
    "api/docs": "it is a page that shows the document",
}


@cache
def document() -> dict[str, Any]:
    loaded: dict[str, Any] = yaml.load(DOCUMENT.read_text(), yaml.CSafeLoader)
    return loaded


def operations() -> dict[str, dict[str, Any]]:
    paths = document()["paths"]
    return {f"{method} {path}": paths[path][method] for path in paths for method in paths[path]}


def hooks() -> dict[str, dict[str, Any]]:
    return {name: hook["post"] for name, hook in document()["webhooks"].items()}


Check = Callable[[dict[str, Any]], None]


def every_operation_and_hook(check: Check) -> Callable[[], None]:
    return for_each(check, lambda: operations() | hooks())


def every_operation(check: Check) -> Callable[[], None]:
    return for_each(check, operations)


def for_each(check: Check, cases: Callable[[], dict[str, Any]]) -> Callable[[], None]:
    """Return one test for all cases. With a separate test for each, collecting them would take longer than running."""

    def test() -> None:
        for name, operation in cases().items():
            try:
                check(operation)
            except AssertionError as error:
                error.add_note(f"of {name}")
                raise

    return test


def responses(operation: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {status: resolved(response, document()) for status, response in operation["responses"].items()}


def contents(operation: dict[str, Any]) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Yield the status, the media type, and the description of each body. The status of a request body is ""."""
    for media_type, content in operation.get("requestBody", {}).get("content", {}).items():
        yield "", media_type, content
    for status, response in responses(operation).items():
        for media_type, content in response.get("content", {}).items():
            yield status, media_type, content


# ---- Valid ----------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_it_is_openapi_3_1() -> None:
    assert document()["openapi"] == "3.1.0"
    validate_schema(document())  # type: ignore[no-untyped-call]


@pytest.mark.slow
def test_its_schemas_are_json_schemas() -> None:
    """The meta-schema of OpenAPI does not check schemas, so they are checked with the meta-schema of JSON Schema."""
    for shape in chain(document()["components"]["schemas"].values(), inline_shapes(document())):
        jsonschema.Draft202012Validator.check_schema(shape)


def inline_shapes(node: Any) -> Iterator[dict[str, Any]]:
    if isinstance(node, dict):
        if isinstance(shape := node.get("schema"), dict):
            yield shape
        for member in node.values():
            yield from inline_shapes(member)
    elif isinstance(node, list):
        for member in node:
            yield from inline_shapes(member)


def test_its_references_resolve() -> None:
    found = re.findall(r"\$ref: ['\"]?(#/[\w/.-]+)", DOCUMENT.read_text())
    assert len(found) > 300
    for reference in set(found):
        assert resolved({"$ref": reference}, document())


# ---- Complete -------------------------------------------------------------------------------------------------------


def test_it_has_a_title_a_version_and_a_server() -> None:
    info = document()["info"]
    assert (info["title"], document()["servers"][0]["url"]) == ("Sluice", "/")
    assert re.fullmatch(r"\d+\.\d+\.\d+", info["version"])
    assert {"contact", "license"} <= set(info)
    for word in ("Bearer", "Idempotency-Key", "Retry-After", "Last-Event-ID", "problem+json", "next", "X-CSRFToken"):
        assert word in info["description"], word


def test_its_tags_are_in_the_order_of_use() -> None:
    names = [tag["name"] for tag in document()["tags"]]
    tags = ["exports", "downloads", "schedules", "webhooks", "events", "documents", "rules", "tokens", "operations"]
    assert names == tags
    assert all(tag["description"] for tag in document()["tags"])
    used = [*operations().values(), *hooks().values()]
    assert {name for operation in used for name in operation["tags"]} == set(names)
    assert {len(operation["tags"]) for operation in used} == {1}


@every_operation_and_hook
def test_every_operation_has_a_summary_and_a_description(operation: dict[str, Any]) -> None:
    assert 5 < len(operation["summary"]) < 50
    assert len(operation["description"]) > 40
    assert not re.match(r"`(GET|POST|PUT|PATCH|DELETE)\b", operation["description"])  # the view's docstring
    for parameter in operation.get("parameters", []):
        assert parameter["in"] == "path" or parameter.get("description"), parameter["name"]
    assert all(response["description"] for response in responses(operation).values())


def test_every_operation_declares_its_authentication() -> None:
    for name, operation in operations().items():
        alternatives = operation["security"]
        # Alternatives with bearer tokens of different scopes are equal here.
        names = [set(schemes) for schemes in dict.fromkeys(map(frozenset, alternatives))]
        if operation["operationId"] in ("livez", "readyz", "download"):
            assert names == [], name
        elif operation["operationId"] == "metrics":
            assert names == [set(), {"bearer"}, {"session"}], name
        elif name.startswith("get "):
            assert names == [{"bearer"}, {"session"}], name
        else:
            assert names == [{"bearer"}, {"session", "csrf"}], name
        assert set().union(*names) <= set(document()["components"]["securitySchemes"]), name


@every_operation
def test_every_operation_lists_its_problem_codes(operation: dict[str, Any]) -> None:
    for status, media_type, content in contents(operation):
        if media_type == "application/problem+json":
            assert content["schema"] == {"$ref": "#/components/schemas/Problem"}
            codes = content["x-codes"]
            assert codes
            assert {example["value"]["code"] for example in content["examples"].values()} == set(codes)
            assert {example["value"]["status"] for example in content["examples"].values()} == {int(status)}
            description = responses(operation)[status]["description"]
            assert all(f"`{code}`: " in description for code in codes)
    problems = {status for status, response in responses(operation).items() if status >= "400"}
    assert {"400", "500"} <= problems
    assert "default" not in operation["responses"]


@every_operation
def test_retry_after_is_documented_where_it_is_sent(operation: dict[str, Any]) -> None:
    for status in {"429", "503"} & set(operation["responses"]):
        assert responses(operation)[status]["headers"]["Retry-After"]["required"]


@every_operation_and_hook
def test_every_operation_has_request_and_response_examples(operation: dict[str, Any]) -> None:
    for status, media_type, content in contents(operation):
        if media_type not in ("multipart/form-data", "application/octet-stream", "image/webp"):
            assert content.get("examples"), (status, media_type)


# ---- Correct --------------------------------------------------------------------------------------------------------


@every_operation_and_hook
def test_its_examples_match_their_schemas(operation: dict[str, Any]) -> None:
    for _, _, content in contents(operation):
        for example in content.get("examples", {}).values():
            check(example["value"], content["schema"], document())
    for parameter in operation.get("parameters", []):
        if "example" in parameter:
            check(parameter["example"], parameter["schema"], document())


@pytest.mark.parametrize(("name", "subject"), [("watchExport", "Job"), ("watchTask", "Task")])
def test_its_events_match_their_schemas(name: str, subject: str) -> None:
    (operation,) = (each for each in operations().values() if each["operationId"] == name)
    (example,) = responses(operation)["200"]["content"]["text/event-stream"]["examples"].values()
    events = re.findall(r"id: (\d+)\nevent: (\w+)\ndata: (.*)\n\n", example["value"])
    assert [int(number) for number, _, _ in events] == sorted({int(number) for number, _, _ in events})
    assert (events[0][1], events[-1][1]) == ("snapshot", "status")
    shapes = {"snapshot": subject, "chunk": "Chunk", **({"progress": "Progress"} if subject == "Job" else {})}
    for _, event, data in events:
        if event in shapes:
            check(orjson.loads(data), {"$ref": f"#/components/schemas/{shapes[event]}"}, document())
        assert f"`{event}`" in responses(operation)["200"]["description"]


def test_its_links_name_operations_and_response_fields() -> None:
    by_name = {operation["operationId"]: operation for operation in operations().values()}
    found = 0
    for operation in operations().values():
        for response in responses(operation).values():
            for link in response.get("links", {}).values():
                target = by_name[link["operationId"]]
                wanted = {each["name"] for each in target["parameters"] if each["in"] == "path"}
                assert set(link["parameters"]) == wanted
                assert all(resolves(expression, operation, response) for expression in link["parameters"].values())
                found += 1
    assert found > 20


def resolves(expression: str, operation: dict[str, Any], response: dict[str, Any]) -> bool:
    """Return whether a runtime expression has a value in the examples of the operation."""
    if name := re.fullmatch(r"\$request\.path\.(\w+)", expression):
        return name[1] in {each["name"] for each in operation["parameters"]}
    member = expression.removeprefix("$response.body#/")
    shown = response["content"]["application/json"]["examples"].values()
    return all(example["value"].get(member) for example in shown)


def test_every_api_route_is_documented_or_a_known_exception() -> None:
    """`tests/integration/test_schema.py` compares the methods of the routes."""
    documented = {re.sub(r"{[^}]*}", "{}", path.strip("/")) for path in document()["paths"]}
    served = {re.sub(r"<[^>]*>", "{}", route.path) for route in ROUTES if route.path and not route.is_page}
    served = {route for route in served if not route.startswith(WEBHOOK_PATHS[1:])}  # other paths of /exports/webhooks
    assert served - documented == set(EXCEPTIONS)
    assert documented <= served


def test_formats_are_checked() -> None:
    """If the checker knew no formats, the checks above would pass for any value."""
    assert {"date", "date-time", "uuid", "uri"} <= set(formats.checkers)
