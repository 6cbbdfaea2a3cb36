"""Selected columns, and the descriptions of datasets. A32."""

import json
import zipfile
from io import BytesIO
from typing import Any

import psycopg
import pytest
from django.conf import LazySettings
from django.contrib.auth.models import User
from django.core.management import call_command
from django.test import Client
from pydantic import SecretStr
from rest_framework.test import APIClient

from config.platform import storage
from exports.core.errors import explain
from exports.core.planning import Dialect, Shape
from exports.models import Chunk, Dataset, Job
from exports.worker import execution
from tests.conftest import change_settings
from tests.integration.factories import make_job
from tests.integration.test_completion import finish

pytestmark = pytest.mark.usefixtures("empty_bucket")

ITEM = {"key": "JFK", "effectiveDate": "2024-02-28"}
COLUMNS = [{"name": "k", "type": "text"}, {"name": "n", "type": "integer"}, {"name": "d", "type": "date"}]


def post(api: APIClient, **body: Any) -> Any:
    return api.post("/exports", {"dataset": "things", "items": [ITEM], **body}, format="json")


def content_of(job: Job) -> bytes:
    return b"".join(storage.read(finish(job).object_key))


@pytest.fixture
def unreachable(settings: LazySettings) -> None:
    change_settings(settings, source_database_url=SecretStr("postgresql://127.0.0.1:9/none?connect_timeout=1"))


@pytest.mark.parametrize(
    ("shape", "expected"),
    [
        (Shape(columns=("d", "k")), b"d,k\n" + b"2024-02-28,JFK\n" * 3),
        (Shape(columns=("n",), dialect=Dialect(formula_policy="escape")), b"n\n1\n2\n3\n"),
        (Shape(columns=("n", "k"), format="jsonl"), b"".join(b'{"n":%d,"k":"JFK"}\n' % n for n in (1, 2, 3))),
    ],
)
def test_a_file_has_the_selected_columns_in_their_order(
    dataset: Dataset, alice: User, shape: Shape, expected: bytes
) -> None:
    """A32."""
    job = make_job(dataset, alice, 1, shape=shape)
    execution.drain()
    assert content_of(job) == expected


def test_json_lists_only_the_selected_columns(dataset: Dataset, alice: User) -> None:
    """A32."""
    job = make_job(dataset, alice, 1, shape=Shape(format="json", columns=("d", "n")))
    execution.drain()
    document = json.loads(content_of(job))
    assert document["columns"] == [{"name": "d", "type": "date"}, {"name": "n", "type": "integer"}]
    assert document["rows"][0] == {"d": "2024-02-28", "n": 1}


@pytest.mark.parametrize(
    "shape",
    [
        Shape(),
        Shape(dialect=Dialect(formula_policy="escape")),
        Shape(format="jsonl"),
        Shape(format="json"),
        Shape(format="parquet"),
    ],
)
def test_a_function_without_columns_fails_its_chunks(
    dataset: Dataset, alice: User, source_db: psycopg.Connection, shape: Shape
) -> None:
    """A30: the function of a registered dataset was replaced. No attempt is repeated."""
    source_db.execute("""
        DROP FUNCTION data.rows_for; CREATE TABLE data.bare ();
        CREATE FUNCTION data.rows_for(key text, effective_date date) RETURNS SETOF data.bare
        LANGUAGE sql STABLE AS 'SELECT FROM generate_series(1, 3)'
    """)
    job = make_job(dataset, alice, 1, shape=shape)
    execution.drain()
    chunk = job.chunks.get()
    assert (chunk.status, chunk.error_code, chunk.error_detail, chunk.attempts) == (
        "failed", "EXPORT_SOURCE_ERROR", "the function returns no columns", 1,
    )  # fmt: skip
    assert explain(chunk.error_code, chunk.error_detail)["retryable"] is False


def test_different_selections_have_different_files(api: APIClient, dataset: Dataset) -> None:
    """A32: a file is only reused for the same columns in the same order."""
    for columns in (None, ["k", "n"], ["n", "k"], ["k", "n"]):
        assert post(api, **({"columns": columns} if columns else {})).status_code == 202
        execution.drain()

    paths = list(Chunk.objects.order_by("id").values_list("path", "source"))
    assert [source for _, source in paths] == ["live", "live", "live", "reused"]
    assert len({path for path, _ in paths}) == 3
    assert paths[0][0] == "things/2024/02/28/JFK_20240228.csv"
    assert all(path.startswith("things/_columns-") for path, _ in paths[1:])


@pytest.mark.parametrize(
    ("columns", "pointer", "code"),
    [
        (["k", "x"], "/columns/1", "unknown_column"),
        (["k", "k"], "/columns/1", "duplicate"),
        (["k", 5], "/columns/1", "invalid"),
        (["K"], "/columns/0", "unknown_column"),
        (["k\0"], "/columns/0", "nul"),
        ([], "/columns", "invalid"),
        ("k", "/columns", "invalid"),
        (None, "/columns", "null"),
    ],
)
def test_columns_are_checked_against_the_dataset(
    api: APIClient, dataset: Dataset, columns: Any, pointer: str, code: str
) -> None:
    """A32."""
    response = post(api, columns=columns)
    assert response.status_code == 400
    assert [(each["pointer"], each["code"]) for each in response.json()["errors"]] == [(pointer, code)]
    assert not Job.objects.exists()


def test_a_job_shows_its_columns(api: APIClient, dataset: Dataset) -> None:
    """A32: the manifest shows them too."""
    job = Job.objects.get(pk=post(api, columns=["n", "k"], delivery="zip").json()["jobId"])
    execution.drain()
    assert api.get(f"/exports/{job.pk}").json()["columns"] == ["n", "k"]
    manifest = json.loads(zipfile.ZipFile(BytesIO(content_of(job))).read("manifest.json"))
    assert manifest["columns"] == ["n", "k"]


def test_a_dataset_lists_its_columns(api: APIClient, dataset: Dataset) -> None:
    """A32."""
    assert api.get("/exports/datasets/things").json() == {
        "name": "things",
        "kind": "function",
        "schemaVersion": 1,
        "formats": dataset.formats,
        "keyPattern": dataset.key_pattern,
        "grantedKeyPatterns": None,
        "showErrors": False,
        "columns": COLUMNS,
    }
    assert api.get("/exports/datasets/nothing").status_code == 404


def test_no_request_queries_the_source_after_the_registration(
    api: APIClient, dataset: Dataset, request: pytest.FixtureRequest
) -> None:
    """A32."""
    call_command("register_dataset", "things", function="data.rows_for", base_path="things", verbosity=0)
    request.getfixturevalue("unreachable")
    assert api.get("/exports/datasets/things").json()["columns"] == COLUMNS
    assert post(api, columns=["n"]).status_code == 202


def test_the_columns_of_an_older_dataset_are_read_once(
    api: APIClient, dataset: Dataset, request: pytest.FixtureRequest
) -> None:
    """A32: after that, no request queries the source."""
    assert api.get("/exports/datasets/things").json()["columns"] == COLUMNS
    request.getfixturevalue("unreachable")
    assert api.get("/exports/datasets/things").json()["columns"] == COLUMNS


def test_a_missing_function_is_not_reported_as_an_outage(
    api: APIClient, dataset: Dataset, source_db: psycopg.Connection
) -> None:
    """A32: the dataset was registered before its function existed."""
    source_db.execute("DROP FUNCTION data.rows_for")
    response = api.get("/exports/datasets/things")
    assert (response.status_code, response.json()["code"]) == (503, "source_unavailable")
    assert "unavailable" not in response.json()["detail"]


def test_an_unavailable_source_is_reported_while_the_columns_are_unknown(
    api: APIClient, dataset: Dataset, unreachable: None
) -> None:
    """A32: the dataset was registered before columns were stored."""
    for response in (api.get("/exports/datasets/things"), post(api, columns=["n"])):
        assert (response.status_code, response.json()["code"]) == (503, "source_unavailable")
    assert post(api).status_code == 202


def test_a_registration_replaces_the_columns(api: APIClient, dataset: Dataset, source_db: psycopg.Connection) -> None:
    """A32, A38: an accepted job keeps its columns."""
    job = Job.objects.get(pk=post(api, columns=["n", "d"], reuse="never").json()["jobId"])
    source_db.execute("""
        CREATE FUNCTION data.fewer(key text, effective_date date) RETURNS TABLE (n int, m int)
        LANGUAGE sql STABLE AS $$ SELECT 1, 2 $$
    """)
    call_command("register_dataset", "things", function="data.fewer", base_path="things", verbosity=0)

    assert [each["name"] for each in api.get("/exports/datasets/things").json()["columns"]] == ["n", "m"]
    execution.drain()
    assert content_of(job).startswith(b"n,d\n")
    replayed = api.post(f"/exports/{job.pk}/replay")
    assert (replayed.status_code, replayed.json()["code"]) == (409, "not_replayable")


@pytest.mark.parametrize("format_", ["csv", "jsonl"])
def test_a_function_that_lost_a_column_fails_the_chunk(
    dataset: Dataset, alice: User, source_db: psycopg.Connection, format_: str
) -> None:
    """A32."""
    make_job(dataset, alice, 1, shape=Shape(columns=("k", "gone"), format=format_))
    execution.drain()
    chunk = Chunk.objects.get()
    assert (chunk.status, chunk.error_code, chunk.error_detail) == ("failed", "EXPORT_SOURCE_ERROR", "SQLSTATE 42703")


def test_columns_with_odd_names_are_quoted(dataset: Dataset, alice: User, source_db: psycopg.Connection) -> None:
    """A32."""
    source_db.execute("""
        CREATE FUNCTION data.odd(key text, effective_date date) RETURNS TABLE ("a,""b" int, "%s" int, "C" int)
        LANGUAGE sql STABLE AS $$ SELECT 1, 2, 3 $$
    """)
    dataset.function = "data.odd"
    dataset.save()
    job = make_job(dataset, alice, 1, shape=Shape(columns=("C", 'a,"b', "%s")))
    execution.drain()
    assert content_of(job) == b'C,"a,""b",%s\n3,1,2\n'


def test_the_form_offers_and_accepts_columns(pages: Client, dataset: Dataset) -> None:
    """A32."""
    call_command("register_dataset", "things", function="data.rows_for", base_path="things", verbosity=0)
    page = pages.get("/app/exports/new?dataset=things").content.decode()
    assert 'data-column="k"' in page
    form = {
        "dataset": "things", "mode": "items", "items": "JFK 2024-02-28", "format": "csv", "compression": "none",
        "delivery": "auto", "reuse": "on", "columns": 'n, "k"',
    }  # fmt: skip
    wrong = pages.post("/app/exports/new", {**form, "columns": "n, x"}).content.decode()
    assert "Column 2: The dataset has no such column." in wrong
    assert pages.post("/app/exports/new", form).status_code == 302
    job = Job.objects.get()
    assert job.columns == ["n", "k"]
    assert "<dt>Columns</dt>" in pages.get(f"/app/exports/{job.pk}").content.decode()
    assert 'value="n,k"' in pages.get(f"/app/exports/new?from={job.pk}").content.decode()
