"""HTTP semantics: query parameters, caching, and compression (RFC 9110 and 9111). C4."""

import gzip
from typing import Any

import orjson
import pytest
from django.contrib.auth.models import User
from rest_framework.test import APIClient

from exports.jobs import actions
from exports.models import Dataset, Job
from tests.conftest import browser_of, client_of
from tests.contract.test_document import operations
from tests.integration.factories import finish, make_job
from tests.integration.test_schema import EXAMPLES

# Views without authentication. Other software may add parameters to the URLs of links, health checks, and metrics.
PUBLIC = {"livez", "readyz", "metrics", "download"}
GZIP = {"accept-encoding": "gzip"}


@pytest.mark.slow
def test_unknown_query_parameters_are_errors(api: APIClient) -> None:
    """C4: the error names only the unknown parameter, even if the query also has documented ones."""
    for name, operation in operations().items():
        method, _, path = name.partition(" ")
        known = "&".join(f"{each['name']}=1" for each in operation.get("parameters", []) if each["in"] == "query")
        url = f"{path.format(**EXAMPLES)}?state=failed&{known}"
        response = api.generic(method.upper(), url, content_type="application/json")
        if operation["operationId"] in PUBLIC:
            assert response.status_code != 400
        else:
            assert response.status_code == 400, name
            assert [(each["pointer"], each["code"]) for each in response.json()["errors"]] == [
                ("/state", "unknown_parameter")
            ]


def test_unknown_query_parameters_are_checked_after_authentication(client: Any) -> None:
    assert client.get("/exports?state=failed").status_code == 401


def test_the_error_for_many_long_query_parameters_has_a_limited_size(api: APIClient) -> None:
    query = "&".join(f"{number}{'x' * 200}=1" for number in range(500))
    errors = api.get(f"/exports?{query}").json()["errors"]
    assert len(errors) == 100
    assert max(len(each["pointer"]) for each in errors) <= 101


@pytest.fixture
def many(dataset: Dataset, alice: User) -> str:
    return f"/exports/{make_job(dataset, alice, 20).pk}/chunks"


def test_json_is_not_stored_by_caches(api: APIClient, dataset: Dataset, alice: User, many: str) -> None:
    assert api.get(many)["Cache-Control"] == "no-store"
    actions.cancel(Job.objects.get())
    job = finish(make_job(dataset, alice))
    for response in (api.get("/exports"), api.get(f"/exports/{job.pk}"), api.post(f"/exports/{job.pk}/link")):
        assert "signedUrl" in response.content.decode()
        assert response["Cache-Control"] == "no-store, no-transform"


def test_large_json_is_compressed_for_programs(alice: User, many: str) -> None:
    client = client_of(alice)
    plain, compressed = client.get(many), client.get(many, headers=GZIP)
    assert compressed["Content-Encoding"] == "gzip"
    assert gzip.decompress(compressed.content) == plain.content
    assert len(compressed.content) == int(compressed["Content-Length"]) < len(plain.content) / 2
    assert "Accept-Encoding" in plain["Vary"]
    assert "Accept-Encoding" in compressed["Vary"]
    assert "Content-Encoding" not in client.get(many, headers={"accept-encoding": "gzip;q=0, *"})
    assert "Content-Encoding" not in client.get(f"{many}?limit=1", headers=GZIP)


def test_responses_with_secrets_are_not_compressed(dataset: Dataset, alice: User) -> None:
    """The size of a compressed response would reveal a secret in it (BREACH)."""
    for _ in range(3):
        finish(make_job(dataset, alice))
    response = client_of(alice).get("/exports", headers=GZIP)
    assert len(response.content) > 1024
    assert orjson.loads(response.content)["results"][0]["receipt"]["signedUrl"]
    assert "Content-Encoding" not in response


def test_responses_to_browser_sessions_are_not_compressed(alice: User, many: str) -> None:
    """Another site can make a browser send requests with the session cookie, and measure the size (BREACH)."""
    assert len(browser_of(alice).get(many).content) > 1024
    assert "Content-Encoding" not in browser_of(alice).get(many, headers=GZIP)
