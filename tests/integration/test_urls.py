"""The schema, its page, and the admin."""

import gzip
import html
import json
import re
import time

import pytest
from django.test import Client


def test_serves_a_schema_as_json_or_yaml(client: Client) -> None:
    schema = client.get("/api/schema").json()

    assert schema["openapi"] == "3.1.0"
    assert schema["components"]["securitySchemes"]["bearer"]["scheme"] == "bearer"
    assert client.get("/api/schema", headers={"Accept": "application/yaml"}).content.startswith(b"openapi: 3.1.0")


def test_a_malformed_accept_header_is_not_acceptable(client: Client) -> None:
    assert client.get("/api/schema", headers={"Accept": "application/json;q*=a;q*0=b"}).status_code == 406


@pytest.mark.parametrize(
    ("accepted", "is_gzip"),
    [
        ("gzip", True), ("br, GZIP;q=0.5", True), ("*", True), ("gzip;q=0", False), ("gzip; q=0.000", False),
        ("gzip;q=0, *", False), ("identity", False), ("x-gzipped", False), ("gzip;q=x", False),
        ("gzip;q*=foo''1", False), ("gzip;q*=a;q*0=b", False),
    ],
)  # fmt: skip
def test_the_schema_is_compressed_only_for_clients_that_accept_it(
    client: Client,
    accepted: str,
    is_gzip: bool,  # noqa: FBT001
) -> None:
    """C4, according to RFC 9110, 12.5.3."""
    response = client.get("/api/schema", headers={"Accept-Encoding": accepted})
    assert response.headers.get("Content-Encoding") == ("gzip" if is_gzip else None)


@pytest.mark.parametrize("encoding", ["identity", "gzip"])
def test_the_schema_is_generated_once_and_has_an_etag(client: Client, encoding: str) -> None:
    """C4."""
    first = client.get("/api/schema", headers={"Accept-Encoding": encoding})
    costs = []  # CPU seconds
    for _ in range(10):
        began = time.thread_time()
        assert client.get("/api/schema", headers={"Accept-Encoding": encoding}).content == first.content
        costs.append(time.thread_time() - began)
    # Generating the document takes 0.1 s or more. One request of the ten may be interrupted by garbage collection.
    assert sorted(costs)[-2] < 0.05

    unchanged = client.get("/api/schema", headers={"Accept-Encoding": encoding, "If-None-Match": first["ETag"]})
    assert (unchanged.status_code, unchanged.content, unchanged["ETag"]) == (304, b"", first["ETag"])
    assert client.get("/api/schema", headers={"If-None-Match": '"other"'}).status_code == 200
    plain = gzip.decompress(first.content) if encoding == "gzip" else first.content
    assert json.loads(plain)["openapi"] == "3.1.0"
    assert client.get("/api/schema", headers={"Accept": "application/yaml"})["ETag"] != first["ETag"]


def test_every_operation_documents_problem_responses(client: Client) -> None:
    paths = client.get("/api/schema").json()["paths"]

    for path in paths.values():
        for operation in path.values():
            assert operation["responses"]["500"] == {"$ref": "#/components/responses/InternalError"}
            assert operation["responses"]["400"]


@pytest.mark.slow
@pytest.mark.django_db
def test_the_reference_has_every_operation_parameter_and_status(client: Client) -> None:
    """Including the targets of `$ref`, without sign-in, and without JavaScript."""
    page = client.get("/api/docs").content.decode()
    document = client.get("/api/schema").json()
    operations = [each for item in document["paths"].values() for each in item.values()]
    for operation in operations:
        _, _, rest = page.partition(f'<details class="operation card" id="{operation["operationId"]}">')
        shown = rest.partition('<details class="operation card"')[0]
        assert operation["summary"] in html.unescape(shown), operation["operationId"]
        for status in operation["responses"]:
            assert f"<dt><code>{status}</code></dt>" in shown, operation["operationId"]
        for parameter in operation.get("parameters", []):
            assert f"<code>{parameter['name']}</code>" in shown, operation["operationId"]
    assert {"effectiveDate", "deliveryTtlSeconds"} <= set(re.findall(r"<code>(\w+)</code>", page))
    assert "#/components" not in page


@pytest.mark.django_db
def test_the_admin_requires_sign_in(client: Client) -> None:
    for path in ("/admin/", "/admin/nowhere"):
        assert client.get(path).status_code == 302
