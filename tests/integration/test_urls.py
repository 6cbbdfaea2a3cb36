"""The schema, its page, and the admin."""

import pytest
from django.test import Client


def test_it_serves_a_schema_as_json_or_yaml(client: Client) -> None:
    schema = client.get("/api/schema").json()

    assert schema["openapi"] == "3.1.0"
    assert schema["components"]["securitySchemes"]["bearer"]["scheme"] == "bearer"
    assert client.get("/api/schema", headers={"Accept": "application/yaml"}).content.startswith(b"openapi: 3.1.0")


def test_every_operation_documents_problem_responses(client: Client) -> None:
    paths = client.get("/api/schema").json()["paths"]

    for path in paths.values():
        for operation in path.values():
            assert operation["responses"]["500"] == {"$ref": "#/components/responses/InternalError"}
            assert operation["responses"]["400"]


def test_documentation_uses_local_assets(client: Client) -> None:
    page = client.get("/api/docs").content.decode()

    assert "drf_spectacular_sidecar" in page
    assert "cdn" not in page


@pytest.mark.django_db
def test_the_admin_requires_sign_in(client: Client) -> None:
    assert client.get("/admin/").status_code == 302
    assert client.get("/admin/nowhere")["Content-Type"].startswith("text/html")
