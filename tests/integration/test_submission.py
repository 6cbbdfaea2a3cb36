"""POST /exports: validation, writes, and response times. A1, A3, A6, A7, A14."""

import socket
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import psycopg
import pytest
from django.contrib.auth.models import User
from django.db import connection, connections, transaction
from django.test.utils import CaptureQueriesContext
from pydantic import SecretStr
from rest_framework.test import APIClient

from config.platform import storage
from exports.core.errors import SourceError
from exports.jobs import actions
from exports.models import Chunk, Dataset, Job, Usage
from exports.worker import completion, execution
from tests.broker import broker_at
from tests.conftest import change_settings, client_of
from tests.integration import outcomes
from tests.integration.factories import claim_one, fail_chunk, make_job
from tests.integration.locks import waits_for_a_lock
from tests.waiting import expect_within, wait_until

ITEM = {"key": "JFK", "effectiveDate": "2024-02-29"}
FILTERS = {"keys": ["JFK", "EWR"], "dateFrom": "2024-02-28", "dateTo": "2024-03-01"}


def post(api: APIClient, **body: Any) -> Any:
    return api.post("/exports", {"dataset": "things", **body})


def pointers(response: Any) -> set[tuple[str, str]]:
    return {(error["pointer"], error["code"]) for error in response.json()["errors"]}


def test_accepts_items(api: APIClient, dataset: Dataset) -> None:
    """A1, A3."""
    response = post(api, items=[ITEM, {"key": "EWR", "effectiveDate": "2024-02-29"}, ITEM])

    assert response.status_code == 202
    job = Job.objects.get()
    assert response.json() == {
        "jobId": str(job.pk),
        "status": "pending",
        "receiptUrl": f"/exports/{job.pk}",
        "totalChunks": 2,
        "duplicates": 1,
        "eventsUrl": f"/exports/{job.pk}/events",
        "chunksUrl": f"/exports/{job.pk}/chunks",
    }
    assert response["Location"] == f"/exports/{job.pk}"
    assert int(response["Retry-After"]) > 0
    assert list(Chunk.objects.order_by("seq").values_list("path", flat=True)) == [
        "things/2024/02/29/JFK_20240229.csv",
        "things/2024/02/29/EWR_20240229.csv",
    ]


def test_accepts_filters(api: APIClient, dataset: Dataset) -> None:
    """A1: keys x dates, in that order."""
    assert post(api, filters=FILTERS).status_code == 202

    chunks = Chunk.objects.order_by("seq").values_list("key", "effective_date")
    assert [(key, str(day)) for key, day in chunks] == [
        (key, day) for key in ("JFK", "EWR") for day in ("2024-02-28", "2024-02-29", "2024-03-01")
    ]


@pytest.mark.parametrize(
    ("changes", "path"),
    [
        ({}, "things/2024/02/29/JFK_20240229.csv"),
        ({"compression": "gzip"}, "things/2024/02/29/JFK_20240229.csv.gz"),
        ({"format": "parquet"}, "things/2024/02/29/JFK_20240229.parquet"),
        ({"format": "parquet", "compression": "none"}, "things/_compression-none/2024/02/29/JFK_20240229.parquet"),
        ({"compression": "zstd"}, "things/2024/02/29/JFK_20240229.csv.zst"),
        ({"format": "jsonl"}, "things/2024/02/29/JFK_20240229.jsonl"),
        ({"format": "json", "compression": "gzip"}, "things/2024/02/29/JFK_20240229.json.gz"),
        ({"csv": {"bom": False, "delimiter": ",", "formulaPolicy": "none"}}, "things/2024/02/29/JFK_20240229.csv"),
    ],
)
def test_the_path_is_built_from_dataset_key_date_and_format(
    api: APIClient, dataset: Dataset, changes: dict[str, Any], path: str
) -> None:
    """A9."""
    assert post(api, items=[ITEM], **changes).status_code == 202
    assert Chunk.objects.get().path == path


def test_other_dialects_have_separate_paths(api: APIClient, dataset: Dataset) -> None:
    """A9, A20."""
    for csv in ({"bom": True}, {"delimiter": ";"}, {"formulaPolicy": "escape"}, {}):
        assert post(api, items=[ITEM], csv=csv).status_code == 202

    paths = set(Chunk.objects.values_list("path", flat=True))
    assert len(paths) == 4
    assert sum(path.startswith("things/_dialect-") for path in paths) == 3


BAD = [
    ({}, ("/items", "invalid")),
    ({"items": [ITEM], "filters": FILTERS}, ("/items", "invalid")),
    ({"items": []}, ("/items", "empty")),
    ({"items": "JFK"}, ("/items", "invalid")),
    ({"items": [ITEM, "JFK"]}, ("/items/1", "invalid")),
    ({"items": [{"key": "JFK"}]}, ("/items/0/effectiveDate", "required")),
    ({"items": [{"effectiveDate": "2024-02-29"}]}, ("/items/0/key", "required")),
    ({"items": [{**ITEM, "extra": 1}]}, ("/items/0/extra", "unknown_field")),
    ({"items": [{**ITEM, "effectiveDate": "2024-02-30"}]}, ("/items/0/effectiveDate", "invalid")),
    ({"items": [{**ITEM, "effectiveDate": "20240229"}]}, ("/items/0/effectiveDate", "invalid")),
    ({"items": [{**ITEM, "effectiveDate": "2024-W09-4"}]}, ("/items/0/effectiveDate", "invalid")),
    ({"items": [{**ITEM, "effectiveDate": "2024-02-29\n"}]}, ("/items/0/effectiveDate", "invalid")),
    ({"items": [{**ITEM, "effectiveDate": 20240229}]}, ("/items/0/effectiveDate", "invalid")),
    ({"items": [{**ITEM, "key": "../etc"}]}, ("/items/0/key", "invalid")),
    ({"items": [{**ITEM, "key": "a..b"}]}, ("/items/0/key", "invalid")),
    ({"items": [{**ITEM, "key": "a/b"}]}, ("/items/0/key", "invalid")),
    ({"items": [{**ITEM, "key": "JFK\n"}]}, ("/items/0/key", "invalid")),
    ({"items": [{**ITEM, "key": ""}]}, ("/items/0/key", "invalid")),
    ({"items": [{**ITEM, "key": "x" * 65}]}, ("/items/0/key", "invalid")),
    ({"items": [{**ITEM, "key": None}]}, ("/items/0/key", "invalid")),
    ({"filters": {**FILTERS, "dateTo": "2024-02-27"}}, ("/filters/dateTo", "invalid")),
    ({"filters": {**FILTERS, "dateFrom": "x"}}, ("/filters/dateFrom", "invalid")),
    ({"filters": {**FILTERS, "keys": []}}, ("/filters/keys", "invalid")),
    ({"filters": {**FILTERS, "keys": ["JFK", "a b"]}}, ("/filters/keys/1", "invalid")),
    ({"filters": {"keys": ["JFK"], "dateFrom": "2024-01-01"}}, ("/filters/dateTo", "required")),
    ({"filters": {**FILTERS, "dateTo": "9999-12-31"}}, ("/filters", "too_many_chunks")),
    ({"items": [ITEM], "format": "xlsx"}, ("/format", "invalid_choice")),
    ({"items": [ITEM], "format": "parquet", "compression": "gzip"}, ("/compression", "invalid_choice")),
    ({"items": [ITEM], "compression": "brotli"}, ("/compression", "invalid_choice")),
    ({"items": [ITEM], "delivery": "pigeon"}, ("/delivery", "invalid_choice")),
    ({"items": [ITEM], "reuse": True}, ("/reuse", "invalid_choice")),
    ({"items": [ITEM], "allowDegraded": "yes"}, ("/allowDegraded", "invalid")),
    ({"items": [ITEM], "csv": {"delimiter": "x"}}, ("/csv/delimiter", "invalid_choice")),
    ({"items": [ITEM], "csv": {"quote": "'"}}, ("/csv/quote", "unknown_field")),
    ({"items": [ITEM], "csv": {"bom": True}, "format": "json"}, ("/csv", "invalid")),
    ({"items": [ITEM], "limit": 5}, ("/limit", "unknown_field")),
    ({"items": [ITEM], "dataset": "nothing"}, ("/dataset", "unknown_dataset")),
    ({"items": [ITEM], "dataset": 5}, ("/dataset", "unknown_dataset")),
    ({"items": [ITEM], "dataset": "a\0b"}, ("/dataset", "nul")),
]


@pytest.mark.parametrize(("body", "wanted"), BAD)
def test_invalid_input_is_reported_with_a_pointer_and_writes_nothing(
    api: APIClient, dataset: Dataset, body: dict[str, Any], wanted: tuple[str, str]
) -> None:
    """A1."""
    response = post(api, **body)

    assert response.status_code == 400
    assert response["Content-Type"] == "application/problem+json"
    assert wanted in pointers(response), response.json()
    assert not Job.objects.exists()


def test_all_invalid_fields_are_reported_together(api: APIClient, dataset: Dataset) -> None:
    """A1."""
    response = post(api, items=[ITEM, {"key": "a b", "effectiveDate": "x"}], format="xml", surprise=1)

    assert {"/items/1/key", "/items/1/effectiveDate", "/format", "/surprise"} == {
        pointer for pointer, _ in pointers(response)
    }


@pytest.mark.parametrize(
    ("body", "wrong"),
    [
        ({"format": "xml"}, {"/format", "/items"}),
        ({"dataset": "nothing", "surprise": 1}, {"/dataset", "/items", "/surprise"}),
        ({"items": [ITEM, "JFK"], "filters": {**FILTERS, "keys": ["a b"]}}, {"/items", "/items/1", "/filters/keys/0"}),
        ({"items": [], "filters": FILTERS}, {"/items"}),
        ({"items": None, "filters": FILTERS}, {"/items"}),
        ({"filters": None, "format": "xml"}, {"/filters", "/format"}),
        (
            {"filters": {**FILTERS, "keys": ["JFK", "a b"], "dateTo": "2024-02-27"}},
            {"/filters/keys/1", "/filters/dateTo"},
        ),
        (
            {"filters": {"dateFrom": "2024-02-28", "dateTo": "2024-02-27", "x": 1}, "reuse": 1},
            {"/filters/keys", "/filters/dateTo", "/filters/x", "/reuse"},
        ),
        ({"filters": {**FILTERS, "keys": [], "dateTo": "x"}}, {"/filters/keys", "/filters/dateTo"}),
        ({"format": "json", "csv": {"bom": True}, "delivery": 1}, {"/items", "/csv", "/delivery"}),
        ({"format": "json", "csv": {"bom": "yes"}}, {"/items", "/csv/bom"}),
        ({"format": "json", "csv": None}, {"/items", "/csv"}),
        ({"format": "json", "csv": {}, "reuse": 1}, {"/items", "/reuse"}),
    ],
)
def test_errors_between_fields_are_reported_beside_errors_of_fields(
    api: APIClient, dataset: Dataset, body: dict[str, Any], wrong: set[str]
) -> None:
    """A1."""
    response = post(api, **body)
    assert response.status_code == 400
    assert {pointer for pointer, _ in pointers(response)} == wrong
    assert not Job.objects.exists()


def test_a_format_that_the_dataset_does_not_offer_is_refused(api: APIClient, dataset: Dataset) -> None:
    dataset.formats = ["csv"]
    dataset.save()
    assert ("/format", "invalid_choice") in pointers(post(api, items=[ITEM], format="json"))


@pytest.mark.slow
def test_repeated_keys_are_counted_without_expansion(api: APIClient, dataset: Dataset) -> None:
    """A short request can name millions of equal pairs."""
    span = {"dateFrom": "1999-01-01", "dateTo": "2023-12-31"}
    response = post(api, filters={"keys": ["A"] * 50_000, **span})
    assert response.status_code == 202
    assert (response.json()["totalChunks"], response.json()["duplicates"]) == (9131, 49_999 * 9131)


@pytest.mark.slow
@pytest.mark.parametrize("body", [{"items": [{}] * 150_000}, {"filters": {**FILTERS, "keys": [1] * 150_000}}])
def test_endless_lists_are_refused_with_one_error(api: APIClient, dataset: Dataset, body: dict[str, Any]) -> None:
    response = post(api, **body)
    assert response.status_code == 400
    assert {code for _, code in pointers(response)} == {"too_many_chunks"}


def test_the_list_of_errors_is_bounded(api: APIClient, dataset: Dataset) -> None:
    assert len(pointers(post(api, items=[{}] * 5000))) == 100


@pytest.mark.slow
def test_too_many_items_are_refused(api: APIClient, dataset: Dataset) -> None:
    items = [{"key": f"K{n}", "effectiveDate": "2024-02-29"} for n in range(10_001)]
    assert ("/items", "too_many_chunks") in pointers(post(api, items=items))


@pytest.mark.parametrize("keys", [[f"K{n}" for n in range(60)], [f"K{n}" for n in range(600)], ["JFK"] * 600])
def test_too_many_keys_are_reported_at_the_filters(
    api: APIClient, dataset: Dataset, settings: Any, keys: list[str]
) -> None:
    """A1: for any number of keys."""
    change_settings(settings, export_max_chunks_per_job=50)
    assert pointers(post(api, filters={**FILTERS, "keys": keys})) == {("/filters", "too_many_chunks")}
    items = [{"key": key, "effectiveDate": "2024-02-29"} for key in keys]
    assert pointers(post(api, items=items)) == {("/items", "too_many_chunks")}


@pytest.mark.slow
def test_endless_keys_do_not_hide_other_errors(api: APIClient, dataset: Dataset) -> None:
    """A1."""
    backwards = {"keys": ["JFK"] * 150_000, "dateFrom": "2024-02-28", "dateTo": "2024-02-27"}
    assert pointers(post(api, filters=backwards)) == {("/filters", "too_many_chunks"), ("/filters/dateTo", "invalid")}


@pytest.mark.parametrize("body", ["[]", '"x"', "{", "", "null", '{"dataset": NaN}', "[" * 100_000])
def test_a_body_that_is_not_an_object_is_refused(api: APIClient, dataset: Dataset, body: str) -> None:
    response = api.generic("POST", "/exports", body, content_type="application/json")
    assert response.status_code == 400
    assert not Job.objects.exists()


KEY_ERRORS = [
    ("../etc", "Must not contain '..', slashes, backslashes, or control characters."),
    ("a\tb", "Must not contain '..', slashes, backslashes, or control characters."),
    ("é" * 101, "The key has 202 bytes. The limit is 200."),
    ("", "The key is empty."),
    ("a b", "Does not match the key pattern of the dataset."),
    (5, "Must be a string."),
]


@pytest.mark.parametrize("has_items", [True, False])
def test_the_error_of_a_key_gives_the_reason(api: APIClient, dataset: Dataset, *, has_items: bool) -> None:
    """A1: every invalid key of a request, with its position."""
    keys = ["JFK", *(key for key, _ in KEY_ERRORS)]
    if has_items:
        body: dict[str, Any] = {"items": [{**ITEM, "key": key} for key in keys]}
        pointer = "/items/{}/key"
    else:
        body, pointer = {"filters": {**FILTERS, "keys": keys}}, "/filters/keys/{}"
    errors = {error["pointer"]: error["detail"] for error in post(api, **body).json()["errors"]}
    assert errors == {pointer.format(n): reason for n, (_, reason) in enumerate(KEY_ERRORS, start=1)}


def test_a_key_may_be_empty_if_the_pattern_allows_it(api: APIClient, dataset: Dataset) -> None:
    Dataset.objects.update(key_pattern="[A-Z]*")
    assert post(api, items=[{**ITEM, "key": ""}]).status_code == 202


# ---- Deleted datasets -----------------------------------------------------------------------------------------------


def submit_during_deletion(dataset: Dataset, submit: Callable[[], Any]) -> Any:
    """Submit while a transaction that deletes the dataset is open, and return the result after its commit."""

    def submit_late() -> Any:
        try:
            return submit()
        finally:
            connections.close_all()

    with ThreadPoolExecutor(1) as pool:
        with transaction.atomic():
            Dataset.objects.filter(pk=dataset.pk).delete()
            late = pool.submit(submit_late)
            wait_until(lambda: late.done() or waits_for_a_lock())
        return late.result()


def test_a_dataset_that_is_deleted_meanwhile_is_unknown(api: APIClient, dataset: Dataset) -> None:
    """A1: as if it had not existed when the request arrived."""
    response = submit_during_deletion(dataset, lambda: post(api, items=[ITEM]))
    assert response.status_code == 400
    assert pointers(response) == {("/dataset", "unknown_dataset")}
    assert not Job.objects.exists()
    assert not Usage.objects.exists()


# ---- The largest job ------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_the_largest_job_is_accepted_in_time_and_in_few_statements(
    api: APIClient, dataset: Dataset, django_assert_max_num_queries: Any
) -> None:
    """A3: well within 5 s; the number of statements does not grow with the number of chunks."""
    items = [{"key": f"K{n}", "effectiveDate": "2024-02-29"} for n in range(10_000)]

    def submit() -> None:
        with django_assert_max_num_queries(11):  # one is the entry of the audit log
            assert post(api, items=items).status_code == 202

    expect_within(4, submit)
    assert Chunk.objects.count() == 10_000 * Job.objects.count()


@pytest.mark.slow
def test_a_job_of_a_hundred_thousand_chunks_is_written_in_parts(
    api: APIClient, dataset: Dataset, settings: Any
) -> None:
    """A3: a statement writes or looks up at most 10,000 chunks, and the commit checks no foreign keys."""
    change_settings(settings, export_max_chunks_per_job=100_000)
    items = [{"key": f"K{n}", "effectiveDate": "2024-02-29"} for n in range(100_000)]
    with CaptureQueriesContext(connection) as queries:
        assert post(api, items=items).json()["totalChunks"] == 100_000
    chunks = Chunk.objects.order_by("seq")
    assert [(chunk.seq, chunk.key) for chunk in chunks.iterator()] == [(n, f"K{n}") for n in range(100_000)]
    assert sum("FROM exports_file f" in query["sql"] for query in queries) == 10
    assert sum("SET CONSTRAINTS ALL IMMEDIATE" in query["sql"] for query in queries) == 1


@pytest.mark.slow
def test_a_silent_broker_barely_delays_the_response_and_loses_nothing(api: APIClient, dataset: Dataset) -> None:
    """A3: the job is stored; the reaper sends the wake-up messages when the broker is back."""

    def submit() -> None:
        assert post(api, items=[ITEM]).status_code == 202

    with socket.create_server(("127.0.0.1", 0)) as silent, broker_at(f"redis://127.0.0.1:{silent.getsockname()[1]}/0"):
        expect_within(4.5, submit)
    assert {job.status for job in Job.objects.all()} == {"pending"}


def test_an_interrupted_request_writes_nothing(dataset: Dataset, alice: User) -> None:
    """A2, A3: job, chunks, and debit are one transaction."""
    with connection.cursor() as cursor:
        cursor.execute("ALTER TABLE exports_chunk ADD CONSTRAINT no_ewr CHECK (key <> 'EWR')")
    try:
        client = client_of(alice)
        client.raise_request_exception = False
        response = post(client, items=[ITEM, {"key": "EWR", "effectiveDate": "2024-02-29"}])
    finally:
        with connection.cursor() as cursor:
            cursor.execute("ALTER TABLE exports_chunk DROP CONSTRAINT no_ewr")
    assert response.status_code == 500
    assert not Job.objects.exists()
    assert not Usage.objects.exists()


# ---- Visibility -----------------------------------------------------------------------------------------------------


def test_the_cost_of_a_list_does_not_grow_with_waiting_jobs(
    api: APIClient, dataset: Dataset, django_assert_max_num_queries: Any
) -> None:
    for _ in range(12):
        post(api, items=[ITEM])
    with django_assert_max_num_queries(3):  # the token, the jobs, their links
        results = api.get("/exports").json()["results"]
    assert [job["queuePosition"] for job in results] == list(reversed(range(12)))


def test_a_job_is_shown_as_in_the_list_with_two_statements(api: APIClient, dataset: Dataset, alice: User) -> None:
    """One statement reads the token, the other one the job with the values of its state."""
    done = make_job(dataset, alice, 1, delivery="manifest")
    execution.drain()
    completion.complete(done.pk)
    failed = make_job(dataset, alice, 1, reuse="never")
    fail_chunk()
    cancelled = make_job(dataset, alice, 1, reuse="never")
    actions.cancel(cancelled)
    retrying = make_job(dataset, alice, 1, reuse="never")
    claim = claim_one(backend="test")
    assert claim
    outcomes.fail(claim, SourceError(), delay=60)
    running = make_job(dataset, alice, 2, reuse="never")
    assert claim_one(backend="test")
    pending = [make_job(dataset, alice, 1, reuse="never") for _ in range(2)]
    states = {
        "success": done, "failed": failed, "cancelled": cancelled, "running": running, "retrying": retrying,
        "pending": pending[1],
    }  # fmt: skip

    listed = {job["jobId"]: job for job in api.get("/exports").json()["results"]}
    for status, job in states.items():
        with CaptureQueriesContext(connection) as queries:
            shown = api.get(f"/exports/{job.pk}").json()
        assert len(queries) == 2, status
        assert (shown["status"], shown) == (status, listed[str(job.pk)])
    assert listed[str(running.pk)]["progress"]["running"] == 1
    assert listed[str(pending[1].pk)]["queuePosition"] == 1


def test_requires_a_token(dataset: Dataset) -> None:
    assert post(APIClient(), items=[ITEM]).status_code == 401


def test_other_users_get_404_and_staff_get_the_job(api: APIClient, dataset: Dataset, bob: User) -> None:
    """A7."""
    path = post(api, items=[ITEM])["Location"]
    stranger = client_of(bob)
    for url, method in ((path, "get"), (f"{path}/chunks", "get"), (f"{path}/retry", "post"), (f"{path}/link", "post")):
        assert getattr(stranger, method)(url).status_code == 404, url
    assert stranger.get("/exports").json()["results"] == []

    bob.is_staff = bob.is_superuser = True
    bob.save()
    assert stranger.get(path).status_code == 200


# ---- Work outside the web process -----------------------------------------------------------------------------------


def test_no_request_calls_the_function_or_creates_a_file(
    api: APIClient, dataset: Dataset, source_db: psycopg.Connection
) -> None:
    """A6: only workers read the source and write objects, never a request."""
    dataset.allow_writes = True  # so that a call could insert a row
    dataset.save()
    source_db.execute("""
        CREATE TABLE data.calls (at timestamptz DEFAULT clock_timestamp());
        CREATE OR REPLACE FUNCTION data.rows_for(key text, effective_date date)
        RETURNS TABLE (k text, n int, d date) LANGUAGE sql AS
        $$ INSERT INTO data.calls DEFAULT VALUES; SELECT key, 1, effective_date $$
    """)
    before = [item.key for item in storage.list_objects("")]
    response = post(api, items=[ITEM])
    path = response["Location"]
    post(api, items=[ITEM], format="json")
    api.post("/exports/preview", {"dataset": "things", "items": [ITEM]})
    for each in ("", "/chunks", "/download?token=x", "/files/JFK/2024-02-29"):
        api.get(f"{path}{each}")
    for verb in ("link", "retry", "replay", "cancel"):
        api.post(f"{path}/{verb}")

    assert source_db.execute("SELECT count(*) FROM data.calls").fetchone() == (0,)
    assert [item.key for item in storage.list_objects("")] == before


def test_a_source_outage_delays_no_request(api: APIClient, dataset: Dataset, settings: Any) -> None:
    """A6, A14."""
    unreachable = SecretStr("postgresql://127.0.0.1:1/none")
    change_settings(settings, source_database_url=unreachable)

    response = post(api, items=[ITEM])
    assert response.status_code == 202
    assert api.get(response["Location"]).json()["status"] == "pending"


def test_a_job_stores_each_key_of_its_filters_once(api: APIClient, dataset: Dataset) -> None:
    """A1: the cost of reading a job is bounded by its chunks, not by its request."""
    keys = ["JFK", "EWR"] * 2000
    assert post(api, filters={**FILTERS, "keys": keys}).status_code == 202

    job = Job.objects.with_running().get()
    assert "filters" in job.get_deferred_fields()
    assert job.filters is not None
    assert job.filters["keys"] == ["JFK", "EWR"]
