"""Tests of the protection against SQL injection."""

import json
from typing import Any

import psycopg
import pytest
from django.core.management import CommandError, call_command
from django.test import Client
from django.urls import reverse
from rest_framework.test import APIClient

from config.platform import storage
from exports.models import Dataset, Job
from exports.worker import execution
from tests.integration.test_admin import form_of

pytestmark = pytest.mark.usefixtures("empty_bucket")

KEYS = [
    "'; DROP TABLE data.canary; --",
    "x'); DROP TABLE data.canary; --",
    "$$; DROP TABLE data.canary; $$",
    "E'\\''; DROP TABLE data.canary",
    "%s %(key)s {} {0}",
    '" || pg_sleep(60) || "',
    "JFK' OR '1'='1",
]
FUNCTIONS = [
    "data.rows_for(NULL, NULL); DROP TABLE data.canary; --",
    'data.rows_for"(NULL, NULL); DROP TABLE data.canary; --',
    'data".rows_for',
    "data.rows_for}{",
    "data.%s",
    "pg_catalog.pg_sleep",
    "pg_catalog.query_to_xml('DROP TABLE data.canary', true, true, '')",
]
NAMES = ["x'; DROP TABLE exports_dataset; --", "a b", "things\n", "..", "a/b", '"', "%s"]


@pytest.fixture
def canary(source_db: psycopg.Connection) -> psycopg.Connection:
    source_db.execute("CREATE TABLE data.canary AS SELECT 1 AS n")
    return source_db


def canary_exists(source_db: psycopg.Connection) -> bool:
    return source_db.execute("SELECT n FROM data.canary").fetchall() == [(1,)]


def test_keys_reach_the_function_unchanged(dataset: Dataset, canary: psycopg.Connection, api: APIClient) -> None:
    """The dataset accepts all keys. Keys with backslashes, slashes, or control characters are always refused."""
    Dataset.objects.update(key_pattern=".+")
    items = [{"key": key, "effectiveDate": "2024-02-29"} for key in KEYS if "\\" not in key]
    body = {"dataset": "things", "items": items, "format": "jsonl", "delivery": "manifest"}
    job = Job.objects.get(pk=api.post("/exports", body).json()["jobId"])
    execution.drain()
    assert set(job.chunks.values_list("status", flat=True)) == {"done"}
    for chunk in job.chunks.all():
        rows = b"".join(storage.read(chunk.path)).decode().splitlines()
        assert len(rows) == 3
        assert all(json.loads(row)["k"] == chunk.key for row in rows)
    refused = api.post("/exports", body | {"items": [{"key": KEYS[3], "effectiveDate": "2024-02-29"}]})
    assert refused.status_code == 400
    assert canary_exists(canary)


def test_query_values_are_compared_as_text(dataset: Dataset, api: APIClient) -> None:
    for query in ("dataset=x' OR 1=1 --", "dataset=things';DELETE FROM exports_jobs;--"):
        assert api.get(f"/exports?{query}").json()["results"] == []
    for query in ("status=x' OR 1=1 --", "cursor=' OR 1=1 --", "limit=1;DROP TABLE exports_jobs"):
        assert api.get(f"/exports?{query}").status_code == 400


@pytest.mark.parametrize("function", FUNCTIONS)
def test_a_dataset_function_is_a_name_and_never_a_statement(
    dataset: Dataset, canary: psycopg.Connection, function: str
) -> None:
    """The command refuses functions that do not exist or have other arguments."""
    with pytest.raises(CommandError, match=r"does not exist|takes|schema\.name"):
        call_command("register_dataset", "new", "--function", function, "--base-path", "new")
    assert not Dataset.objects.filter(name="new").exists()
    assert canary_exists(canary)


@pytest.mark.parametrize("function", FUNCTIONS)
def test_staff_register_functions_without_running_them(
    dataset: Dataset, canary: psycopg.Connection, pages: Client, api: APIClient, function: str
) -> None:
    """The form saves the function with a warning, because the source may be unavailable. Exports fail safely."""
    response = pages.post(reverse("admin:exports_dataset_add"), form_of(function=function, key_pattern=".+"))
    assert response.status_code == 302, response.context["adminform"].form.errors
    wanted = {"dataset": "new", "items": [{"key": "JFK", "effectiveDate": "2024-02-29"}], "format": "csv"}
    job = Job.objects.get(pk=api.post("/exports", wanted).json()["jobId"])
    execution.drain()
    assert set(job.chunks.values_list("status", "error_code")) == {("failed", "EXPORT_SOURCE_ERROR")}
    assert canary_exists(canary)


@pytest.mark.parametrize("name", NAMES)
def test_dataset_names_are_identifiers(dataset: Dataset, pages: Client, api: APIClient, name: str) -> None:
    with pytest.raises(CommandError, match="name"):
        call_command("register_dataset", name, "--function", "data.rows_for", "--base-path", "new")
    pages.post(reverse("admin:exports_dataset_add"), form_of(name=name))
    assert set(Dataset.objects.of_functions().values_list("name", flat=True)) == {"things"}
    body: dict[str, Any] = {"dataset": name, "items": [{"key": "JFK", "effectiveDate": "2024-02-29"}]}
    assert api.post("/exports", body).status_code == 400
