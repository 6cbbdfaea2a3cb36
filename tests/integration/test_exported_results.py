"""A36: exports of the results of documents."""

import io
import json
import tempfile
import time
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from django.conf import LazySettings
from django.contrib.auth.models import User
from django.core.management import CommandError, call_command
from django.db import connection, connections
from django.db.models.functions import Now
from django.test import Client
from django.urls import reverse
from rest_framework.test import APIClient

from config.platform import exact_json, storage
from config.platform.exact_json import Number
from config.platform.http import tokens
from config.platform.models import TokenDetails
from etl.models import Task
from etl.pipeline import result_files
from etl.pipeline.result_files import ResultLayout
from exports.core.planning import Shape
from exports.core.states import JobStatus
from exports.jobs import actions
from exports.maintenance import lost_leases, storage_cleanup
from exports.models import Dataset, File, Job, Schedule, Slot
from exports.source.encoding import decompress
from exports.worker import completion, execution
from rules.models import Rule
from tests.conftest import browser_of, change_settings
from tests.integration.etl_factories import make_batch, make_rule
from tests.integration.factories import claim_one
from tests.integration.test_leases import in_threads

pytestmark = pytest.mark.django_db(transaction=True)
DAY = datetime(2026, 3, 1, 12, tzinfo=UTC)
EINVOICE = {
    "number": "R-1",
    "issue_date": "2026-03-01",
    "totals": {"gross": Number("119.00")},
    "lines": [{"name": "Lamp", "net_amount": Number("3.10")}],
}


@pytest.fixture(autouse=True)
def provided(transactional_db: None) -> None:
    Dataset.objects.provide_built_in()


@pytest.fixture
def rule(alice: User) -> Rule:
    return make_rule(alice, mode="llm")


def add(rule: Rule, data: Any = None, *, user: User | None = None, days: int = 0, **changes: Any) -> Task:
    """Insert an ended document, created `days` days after DAY. With `data`, it is completed."""
    if data is not None:
        result = {"data": data}
        changes = {"status": "completed", "result": result, "last_result": result, "last_result_run": 1, **changes}
    fields: dict[str, Any] = {
        "user": user or rule.owner, "rule": rule, "rule_version": rule.version, "filename": "a.pdf", "kind": "pdf",
        "size": 1, "document_key": "etl/documents/x", "created_at": DAY + timedelta(days=days), **changes,
    }  # fmt: skip
    return Task.objects.create(**fields)


def post(api: APIClient, **changes: Any) -> Any:
    return api.post("/exports", {"dataset": "documents", "filters": {}, **changes})


def run(response: Any) -> Job:
    """Run all chunks and the completion of a created job."""
    assert response.status_code == 202, response.content
    job = Job.objects.get(pk=response.json()["jobId"])
    execution.drain()
    completion.complete(job.pk)
    job.refresh_from_db()
    return job


def delivered(response: Any) -> bytes:
    job = run(response)
    assert job.status == JobStatus.SUCCESS, (job.error_code, job.error_detail)
    content = b"".join(storage.read(job.receipt.object_key))
    assert (job.receipt.size_bytes, job.receipt.files) == (len(content), 1)
    return content


def table_of(content: bytes) -> Any:
    from pyarrow import parquet

    return parquet.read_table(io.BytesIO(content))


# ---- Files ----------------------------------------------------------------------------------------------------------
def test_parquet_has_one_schema_and_every_digit(api: APIClient, rule: Rule) -> None:
    """A36, B43: a file can have results of models and e-invoices. All digits of decimals are kept."""
    first = add(rule, {"number": "A", "total": Number("1234567890123456.78"), "paid": True, "n": 2**40, "empty": ""})
    add(rule, EINVOICE, days=1)
    failed = add(rule, days=2, status="failed", error={"code": "file_encrypted", "stage": "ocr"})
    response = post(api, format="parquet")
    table = table_of(delivered(response))
    assert {field.name: str(field.type) for field in table.schema} == {
        "task_id": "int64", "filename": "string", "rule_id": "int64", "rule_version": "int32", "batch_id": "int64",
        "created_at": "timestamp[us, tz=UTC]", "status": "string", "error": "string", "number": "string",
        "total": "decimal128(18, 2)", "paid": "bool", "n": "int64", "empty": "string", "issue_date": "string",
        "totals": "string", "lines": "string",
    }  # fmt: skip
    rows = table.to_pylist()
    assert rows[0] | {"created_at": None} == {
        "task_id": first.pk, "filename": "a.pdf", "rule_id": rule.pk, "rule_version": 1, "batch_id": None,
        "created_at": None, "status": "completed", "error": None, "number": "A",
        "total": Decimal("1234567890123456.78"), "paid": True, "n": 2**40, "empty": "", "issue_date": None,
        "totals": None, "lines": None,
    }  # fmt: skip
    assert rows[0]["created_at"] == DAY
    assert rows[1]["totals"] == '{"gross":119.00}'
    assert rows[1]["lines"] == '[{"name":"Lamp","net_amount":3.10}]'
    assert (rows[2]["task_id"], rows[2]["error"], rows[2]["number"]) == (failed.pk, "file_encrypted", None)
    body = api.get(f"/exports/{response.json()['jobId']}").json()
    assert (body["receipt"]["rows"], body["progress"]["rows"], body["delivery"]) == (3, 3, "single")


def test_csv_has_the_requested_dialect(api: APIClient, rule: Rule) -> None:
    """A36."""
    task = add(rule, {"total": Number("1.50"), "note": "=1;2", "list": [1]})
    content = delivered(post(api, csv={"delimiter": ";", "bom": True, "formulaPolicy": "escape"}))
    assert content.decode("utf-8-sig") == (
        "task_id;filename;rule_id;rule_version;batch_id;created_at;status;error;total;note;list\n"
        f'{task.pk};a.pdf;{rule.pk};1;;2026-03-01T12:00:00Z;completed;;1.50;"\'=1;2";[1]\n'
    )
    assert content.startswith(b"\xef\xbb\xbf")


def test_escaped_headers_are_distinct(api: APIClient, rule: Rule) -> None:
    """A36: in any order of the fields, and without a change of other headers."""
    headers = {"=a": "'=a", "'=a": "''=a", "''=a": "'''=a", "'b": "'b", "b'=": "b'=", "-1": "-1", "'-1": "'-1"}
    for number, names in enumerate((list(headers), list(reversed(headers)))):
        add(rule, dict.fromkeys(names, "x"), days=number)
        filters = {"dateFrom": f"2026-03-0{number + 1}", "dateTo": f"2026-03-0{number + 1}"}
        content = delivered(post(api, csv={"formulaPolicy": "escape"}, filters=filters)).decode()
        assert content.splitlines()[0].split(",")[8:] == [headers[name] for name in names]


@pytest.mark.parametrize("compression", ["none", "gzip", "zstd"])
def test_lines_have_the_data_and_are_compressed_on_request(api: APIClient, rule: Rule, compression: str) -> None:
    """A36, A31."""
    task = add(rule, {"total": Number("1.50")})
    content = delivered(post(api, format="jsonl", compression=compression))
    assert decompress(content, Shape(format="jsonl", compression=compression)).decode() == (
        f'{{"task_id":{task.pk},"filename":"a.pdf","rule_id":{rule.pk},"rule_version":1,"batch_id":null,'
        '"created_at":"2026-03-01T12:00:00Z","status":"completed","error":null,"data":{"total":1.50}}\n'
    )


def test_a_column_has_the_same_field_in_each_row(api: APIClient, rule: Rule) -> None:
    """A36: this includes fields with the name of a column of the document, or of another field's column."""
    add(rule, {"status": "A"})
    add(rule, {"status": "B", "data.status": "C", "data.x": "D"}, days=1)
    first, second = table_of(delivered(post(api, format="parquet"))).to_pylist()
    assert (first["data.status"], first["data.data.status"]) == ("A", None)
    assert (second["data.status"], second["data.data.status"], second["data.x"]) == ("B", "C", "D")


@pytest.mark.parametrize("delivery", ["zip", "manifest"])
def test_every_kind_of_delivery_works(api: APIClient, rule: Rule, delivery: str) -> None:
    add(rule, {"a": 1})
    job = run(post(api, delivery=delivery, filters={"ruleId": rule.pk, "dateTo": "2026-03-31"}))
    assert job.status == JobStatus.SUCCESS
    files = api.get(f"/exports/{job.pk}/files/documents-rule-{rule.pk}/2026-03-31")
    assert files.status_code == 302


def test_an_export_of_no_documents_has_the_header(api: APIClient) -> None:
    assert delivered(post(api)).decode() == ("task_id,filename,rule_id,rule_version,batch_id,created_at,status,error\n")
    assert table_of(delivered(post(api, format="parquet"))).num_rows == 0


# ---- Selection ------------------------------------------------------------------------------------------------------
@pytest.mark.slow
def test_filters_select_rows_and_name_the_file(api: APIClient, alice: User, rule: Rule) -> None:
    """A36: days are in UTC and inclusive."""
    other = make_rule(alice, mode="llm", name="other")
    batch, _ = make_batch(alice, 0, rule=rule)
    tasks = [add(rule, {"a": n}, days=n) for n in range(4)]
    of_other = add(other, {"a": 9}, days=1)
    failed = add(rule, days=1, status="failed", error={"code": "x"})
    in_batch = add(rule, {"a": 7}, days=9, batch=batch)

    def ids(**filters: Any) -> tuple[list[int], str]:
        job = run(post(api, format="jsonl", filters=filters))
        content = b"".join(storage.read(job.receipt.object_key))
        return [json.loads(line)["task_id"] for line in content.splitlines()], job.receipt.file_name

    dates = {"dateFrom": "2026-03-02", "dateTo": "2026-03-03"}
    assert ids(**dates) == ([tasks[1].pk, of_other.pk, failed.pk, tasks[2].pk], "documents_20260303.jsonl")
    assert ids(**dates, ruleId=rule.pk, status="completed") == (
        [tasks[1].pk, tasks[2].pk], f"documents-rule-{rule.pk}-completed_20260303.jsonl",
    )  # fmt: skip
    assert ids(ruleId=other.pk)[0] == [of_other.pk]
    assert ids(batchId=batch.pk)[0] == [in_batch.pk]
    assert ids(status="failed")[0] == [failed.pk]
    assert len(ids()[0]) == 7


def test_only_own_documents_are_exported(api: APIClient, alice: User, bob: User, rule: Rule) -> None:
    """A36: this applies to staff too, who can see all documents."""
    own = add(rule, {"a": "own"})
    add(rule, {"a": "other"}, user=bob)
    alice.is_staff = alice.is_superuser = True
    alice.save()
    lines = delivered(post(api, format="jsonl")).splitlines()
    assert [json.loads(line)["task_id"] for line in lines] == [own.pk]


def test_tokens_also_need_the_scope_of_documents(api: APIClient, alice: User, rule: Rule) -> None:
    """C9: `exports:read` alone does not give access to the results of documents."""
    add(rule, {"total": 1})
    job = run(post(api))
    _, text = tokens.create(alice, name="limited", scopes=["exports:read", "exports:write"])
    limited = APIClient()
    limited.credentials(HTTP_AUTHORIZATION=f"Bearer {text}")
    body = {"dataset": "documents", "filters": {}}
    schedule = {"name": "a", "cron": "0 6 * * *", "timezone": "UTC", "request": {"dataset": "documents"}}
    jobs = Job.objects.count()
    for answer in (
        limited.post("/exports", body),
        limited.post("/exports/preview", body),
        limited.post("/exports/schedules", {**schedule, "window": {"unit": "day", "from": -1, "to": -1}}),
        limited.get(f"/exports/{job.pk}"),
        limited.get(f"/exports/{job.pk}/events"),
        limited.post(f"/exports/{job.pk}/link"),
        limited.post(f"/exports/{job.pk}/replay"),
    ):
        assert (answer.status_code, answer.json()["code"]) == (403, "insufficient_scope")
        assert answer.json()["detail"] == "The token needs the scope documents:read."
    assert limited.get("/exports").json()["results"] == []
    assert Job.objects.count() == jobs

    TokenDetails.objects.filter(name="limited").update(scopes=["exports:read", "documents:read"])
    assert limited.get(f"/exports/{job.pk}").status_code == 200
    assert [each["jobId"] for each in limited.get("/exports").json()["results"]] == [str(job.pk)]


def test_files_of_two_users_never_share_a_path(api: APIClient, bob: User, rule: Rule) -> None:
    """A36: both send the same request at the same time, and no file is reused."""
    add(rule, {"a": "own"})
    other = APIClient()
    other.force_authenticate(bob)
    mine, theirs = (post(each, format="jsonl", reuse="if-present") for each in (api, other))
    execution.drain()
    contents = [delivered(response) for response in (mine, theirs)]
    assert [content.count(b"\n") for content in contents] == [1, 0]
    assert not File.objects.exists()
    assert post(api, format="jsonl").status_code == 202
    assert api.post("/exports/preview", {"dataset": "documents", "filters": {}}).json() == {
        "totalChunks": 1, "duplicates": 0, "reusable": 0, "quotaCost": 1,
    }  # fmt: skip


def test_corrected_results_are_exported(api: APIClient, rule: Rule) -> None:
    """A36, B37."""
    add(rule, {"a": 1}, reviewed_run=1, corrections=1, corrected_result={"data": {"a": Number("1.0")}})
    assert delivered(post(api)).decode().splitlines()[1].endswith(",completed,,1.0")


def test_rows_have_the_data_of_the_current_result(rule: Rule) -> None:
    """Rows have the same data as `current_result`.

    The cases are, in order: a result of the last run, of an earlier release, with corrections, with corrections of an
    earlier run, of an earlier run, with a review without corrections, and without data.
    """
    corrected = {"corrections": 1, "corrected_result": {"data": {"a": Number("2.50")}}}
    for changes in (
        {}, {"last_result": None, "last_result_run": None}, {"reviewed_run": 1, **corrected},
        {"run": 2, "last_result_run": 2, "reviewed_run": 1, **corrected}, {"run": 2}, {"reviewed_run": 1},
    ):  # fmt: skip
        add(rule, {"a": Number("1.0")}, **changes)
    add(rule, status="completed", result={"markdown_s3_key": "x"})
    rows = list(Task.objects.with_data().order_by("pk"))
    assert [row.data for row in rows] == [(row.current_result or {}).get("data") for row in rows]  # type: ignore[attr-defined]
    assert exact_json.dumps(rows[2].data) == b'{"a":2.50}'  # type: ignore[attr-defined]
    failed = add(rule, status="failed", error={"code": "x"}, last_result={"data": 1}, last_result_run=1)
    assert Task.objects.with_data().get(pk=failed.pk).data is None  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("changes", "pointer", "code"),
    [
        ({"filters": {"keys": ["JFK"]}}, "/filters/keys", "unknown_field"),
        ({"filters": {"ruleId": 0}}, "/filters/ruleId", "min_value"),
        ({"filters": {"ruleId": "3"}}, "/filters/ruleId", "invalid"),
        ({"filters": {"ruleId": 999_999}}, "/filters/ruleId", "unknown_rule"),
        ({"filters": {"batchId": 999_999}}, "/filters/batchId", "unknown_batch"),
        ({"filters": {"status": "llm_processing"}}, "/filters/status", "invalid_choice"),
        ({"filters": {"dateFrom": "2026-3-1"}}, "/filters/dateFrom", "invalid"),
        ({"filters": {"dateFrom": "2026-03-02", "dateTo": "2026-03-01"}}, "/filters/dateTo", "invalid"),
        ({"filters": None}, "/filters", "null"),
        ({"filters": []}, "/filters", "invalid"),
        ({"items": [{"key": "a", "effectiveDate": "2026-03-01"}]}, "/items", "invalid"),
        ({"columns": ["task_id"]}, "/columns", "invalid"),
        ({"format": "json"}, "/format", "invalid_choice"),
        ({"format": "parquet", "compression": "gzip"}, "/compression", "invalid_choice"),
        ({"format": "jsonl", "csv": {"bom": True}}, "/csv", "invalid"),
    ],
)
def test_invalid_requests_are_refused_with_a_pointer(api: APIClient, changes: Any, pointer: str, code: str) -> None:
    """A36: nothing is created, either."""
    response = post(api, **changes)
    assert response.status_code == 400
    assert [(each["pointer"], each["code"]) for each in response.json()["errors"]] == [(pointer, code)]
    assert not Job.objects.exists()


def test_filters_are_required(api: APIClient) -> None:
    response = api.post("/exports", {"dataset": "documents"})
    assert [(each["pointer"], each["code"]) for each in response.json()["errors"]] == [("/filters", "required")]


def test_filters_of_documents_are_unknown_to_other_datasets(api: APIClient, dataset: Dataset) -> None:
    filters = {"keys": ["JFK"], "dateFrom": "2026-03-01", "dateTo": "2026-03-01", "ruleId": 1}
    response = api.post("/exports", {"dataset": dataset.name, "filters": filters})
    assert [each["pointer"] for each in response.json()["errors"]] == ["/filters/ruleId"]


def test_rules_and_batches_of_other_users_are_unknown(api: APIClient, bob: User) -> None:
    theirs = make_rule(bob, mode="llm")
    batch, _ = make_batch(bob, 0, rule=theirs)
    response = post(api, filters={"ruleId": theirs.pk, "batchId": batch.pk})
    assert {each["pointer"] for each in response.json()["errors"]} == {"/filters/ruleId", "/filters/batchId"}


def test_results_of_a_deleted_rule_can_be_exported(api: APIClient, rule: Rule) -> None:
    add(rule, {"a": 1})
    rule.deleted_at = datetime.now(UTC)
    rule.save()
    assert delivered(post(api, filters={"ruleId": rule.pk})).count(b"\n") == 2


# ---- Consistency ----------------------------------------------------------------------------------------------------
def test_a_file_is_a_snapshot_of_the_results(api: APIClient, rule: Rule, monkeypatch: pytest.MonkeyPatch) -> None:
    """A36: documents that are added, changed, or deleted while the file is written do not affect it."""
    monkeypatch.setattr(result_files, "READ_ROWS", 1)
    first, second, third = (add(rule, {"a": n}, days=n) for n in range(3))
    seen: list[int] = []

    def change() -> None:
        Task.objects.filter(pk=second.pk).delete()
        Task.objects.filter(pk=third.pk).update(last_result={"data": {"a": 99}})
        add(rule, {"a": 4}, days=5)

    class SlowTable(result_files.ResultTable):
        def rows_of(self, task: Task) -> Any:
            if not seen:
                in_threads(1, lambda _: change())
            seen.append(task.pk)
            return super().rows_of(task)

    monkeypatch.setattr(result_files, "ResultTable", SlowTable)
    lines = [json.loads(line) for line in delivered(post(api, format="jsonl")).splitlines()]
    assert [(line["task_id"], line["data"]["a"]) for line in lines] == [(first.pk, 0), (second.pk, 1), (third.pk, 2)]


def test_rows_are_read_a_few_at_a_time_in_one_query(
    api: APIClient, rule: Rule, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A36: this is independent of DISABLE_SERVER_SIDE_CURSORS, and there is no query for each row."""
    monkeypatch.setitem(connection.settings_dict, "DISABLE_SERVER_SIDE_CURSORS", True)
    for n in range(25):
        add(rule, {"a": n}, reviewed_run=1, corrections=1, corrected_result={"data": {"a": n}})
    statements: list[str] = []
    cursors: list[int] = []
    wrapper = type(connections["default"])
    original = wrapper.chunked_cursor

    def count(self: Any) -> Any:
        cursors.append(1)
        return original(self)

    def record(execute: Any, sql: str, *rest: Any) -> Any:
        statements.append(sql)
        return execute(sql, *rest)

    monkeypatch.setattr(wrapper, "chunked_cursor", count)
    with connection.execute_wrapper(record):
        built = result_files.build(Task.objects.order_by("pk"), ResultLayout(format="jsonl"))
    built.content.close()
    assert (built.rows, len(cursors)) == (25, 1)
    assert sum("etl_task" in statement for statement in statements) == 1


@pytest.mark.slow
def test_a_cancelled_export_stops_reading(
    api: APIClient, rule: Rule, monkeypatch: pytest.MonkeyPatch, settings: LazySettings
) -> None:
    """A36: it leaves no file and no open transaction."""
    change_settings(settings, export_lease_seconds=3)
    add(rule, {"a": 1})
    job = Job.objects.get(pk=post(api).json()["jobId"])

    class SlowTable(result_files.ResultTable):
        def rows_of(self, task: Task) -> Any:
            in_threads(1, lambda _: actions.cancel(job))
            until = time.monotonic() + 60
            while time.monotonic() < until:
                self.checkpoint()
                time.sleep(0.05)
            raise AssertionError("not stopped")

    monkeypatch.setattr(result_files, "ResultTable", SlowTable)
    execution.drain()
    job.refresh_from_db()
    assert (job.status, job.chunks.get().status) == ("cancelled", "cancelled")
    assert not connection.in_atomic_block
    assert storage.head(job.chunks.get().path) is None
    assert not Slot.objects.held().exists()


def test_another_worker_replaces_the_file_of_a_lost_worker(api: APIClient, rule: Rule) -> None:
    """A36: the first worker crashed after it uploaded the file, before it recorded the outcome."""
    add(rule, {"a": 1})
    response = post(api, format="jsonl")
    claim = claim_one(backend="lost")
    assert claim
    storage.put(claim.path, b"half", content_type="application/x-ndjson")
    Job.objects.get().chunks.update(lease_until=datetime(2020, 1, 1, tzinfo=UTC))
    lost_leases.reclaim_chunks()
    Job.objects.get().chunks.update(available_at=datetime(2020, 1, 1, tzinfo=UTC))
    assert delivered(response).count(b"\n") == 1


def test_too_many_fields_fail_the_export_permanently(
    api: APIClient, rule: Rule, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A36: the error has advice, and there is no second attempt."""
    monkeypatch.setattr(result_files, "MAX_COLUMNS", 1)
    add(rule, {"a": 1, "b": 2})
    job = run(post(api))
    body = api.get(f"/exports/{job.pk}").json()
    assert (body["status"], body["error"]["code"], body["error"]["retryable"]) == (
        "failed",
        "EXPORT_SOURCE_ERROR",
        False,
    )
    assert "Use the format jsonl." in body["error"]["detail"]
    assert job.chunks.get().attempts == 1


def test_an_export_that_takes_too_long_ends(api: APIClient, rule: Rule) -> None:
    """A36."""
    Dataset.objects.filter(name="documents").update(statement_timeout=0)
    add(rule, {"a": 1})
    run(post(api))
    chunk = Job.objects.get().chunks.get()
    assert (chunk.status, chunk.error_code) == ("retrying", "EXPORT_SOURCE_TIMEOUT")


def test_a_full_disk_is_a_transient_error(api: APIClient, rule: Rule, monkeypatch: pytest.MonkeyPatch) -> None:
    """A36: /dev/full refuses writes. The detail names the reason."""
    monkeypatch.setattr(tempfile, "TemporaryFile", lambda **_: Path("/dev/full").open("w+b"))  # noqa: SIM115
    add(rule, {"a": 1})
    run(post(api))
    chunk = Job.objects.get().chunks.get()
    assert (chunk.status, chunk.error_code) == ("retrying", "EXPORT_WORKER_LOST")
    assert chunk.error_detail == "the worker could not continue: OSError (ENOSPC)"


@pytest.mark.parametrize("delivery", ["single", "zip"])
def test_files_are_deleted_after_the_end_of_the_job(
    api: APIClient, rule: Rule, monkeypatch: pytest.MonkeyPatch, delivery: str
) -> None:
    """A36: the delivery is a copy, and no other job reuses the file."""
    add(rule, {"a": 1})
    response = post(api, delivery=delivery)
    assert delivered(response)
    chunk = Job.objects.get().chunks.get()
    storage_cleanup.delete_unreferenced()
    assert storage.head(chunk.path)
    monkeypatch.setattr(storage_cleanup, "GRACE", timedelta(seconds=-1))
    storage_cleanup.delete_unreferenced()
    assert storage.head(chunk.path) is None
    job = f"/exports/{response.json()['jobId']}"
    assert api.post(f"{job}/link").status_code == 200
    file = api.get(f"{job}/files/{chunk.key}/{chunk.effective_date}")
    if delivery == "single":
        assert file.status_code == 302
    else:
        assert (file.status_code, file.json()["detail"]) == (
            410,
            "This file was deleted after the export. Download the whole delivery instead.",
        )


@pytest.mark.parametrize("status", ["cancelled", "failed"])
def test_files_of_jobs_that_end_without_a_delivery_are_deleted(
    api: APIClient, rule: Rule, monkeypatch: pytest.MonkeyPatch, status: str
) -> None:
    """A36: a job can be cancelled or fail during its completion, when its chunk is done."""
    add(rule, {"a": 1})
    post(api)
    execution.drain()
    chunk = Job.objects.get().chunks.get()
    Job.objects.update(status=status, finished_at=Now())
    assert (chunk.status, storage.head(chunk.path) is None) == ("done", False)
    monkeypatch.setattr(storage_cleanup, "GRACE", timedelta(seconds=-1))
    storage_cleanup.delete_unreferenced()
    assert storage.head(chunk.path) is None


def test_a_replay_exports_the_current_results(api: APIClient, rule: Rule) -> None:
    """A36."""
    add(rule, {"a": 1})
    job = run(post(api, filters={"ruleId": rule.pk}, format="jsonl"))
    add(rule, {"a": 2})
    assert delivered(api.post(f"/exports/{job.pk}/replay")).count(b"\n") == 2


# ---- The dataset ----------------------------------------------------------------------------------------------------
def test_the_built_in_dataset_has_a_description(api: APIClient) -> None:
    """A36, A32: the description does not need the source database."""
    body = api.get("/exports/datasets/documents").json()
    assert (body["kind"], body["formats"]) == ("documents", ["csv", "jsonl", "parquet"])
    assert body["columns"][0] == {"name": "task_id", "type": "bigint"}
    assert "documents" in [each["name"] for each in api.get("/exports/datasets").json()["results"]]


def test_a_dataset_that_users_registered_as_documents_keeps_the_name(db: None, dataset: Dataset) -> None:
    """A36: such a dataset may exist before an upgrade."""
    Dataset.objects.filter(name="documents").delete()
    Dataset.objects.filter(pk=dataset.pk).update(name="documents")
    Dataset.objects.provide_built_in()
    assert Dataset.objects.get(name="documents").kind == "function"
    Dataset.objects.filter(pk=dataset.pk).update(name="others")
    for _ in range(2):
        Dataset.objects.provide_built_in()
    assert Dataset.objects.get(name="documents").kind == "documents"


def test_the_name_cannot_be_registered(db: None) -> None:
    with pytest.raises(CommandError, match="documents is a built-in dataset"):
        call_command("register_dataset", "documents", "--function", "data.rows_for", "--base-path", "x")


def test_staff_change_its_limits_and_formats_only(staff: User, pages: Client) -> None:
    """A36: the source database is not queried."""
    page = reverse("admin:exports_dataset_change", args=[Dataset.objects.get(name="documents").pk])
    content = pages.get(page).content.decode()
    assert "Results of your documents" in content
    for field in ("function", "base_path", "key_pattern", "allow_writes"):
        assert f'name="{field}"' not in content
    form = {
        "formats": ["csv", "parquet"],
        "statement_timeout": 60,
        "max_concurrency": 4,
        "name": "x",
        "function": "a.b",
        "grants-TOTAL_FORMS": 0,
        "grants-INITIAL_FORMS": 0,
    }
    assert pages.post(page, form).status_code == 302
    changed = Dataset.objects.get(kind="documents")
    assert (changed.name, changed.function, changed.formats, changed.max_concurrency) == (
        "documents", "", ["csv", "parquet"], 4,
    )  # fmt: skip
    assert Slot.objects.filter(dataset=changed).count() == 4
    refused = pages.post(page, {**form, "formats": ["csv", "json"]})
    assert "This dataset does not support: json." in refused.content.decode()
    assert pages.post(reverse("admin:exports_dataset_delete", args=[changed.pk]), {"post": "yes"}).status_code == 403


# ---- Pages ----------------------------------------------------------------------------------------------------------
def as_visitor(user: User) -> Client:
    return browser_of(user, headers={"User-Agent": "Mozilla/5.0"})


FORM = {
    "dataset": "documents", "mode": "items", "format": "parquet", "written_for": "standard", "compression": "none",
    "delivery": "auto",
}  # fmt: skip


def test_a_form_exports_results(alice: User, rule: Rule) -> None:
    """A36: the form can start with the filters of the page of documents."""
    visitor = as_visitor(alice)
    shown = visitor.get(f"/app/exports/new?dataset=documents&rule={rule.pk}&status=failed&date_from=2026-03-01")
    content = shown.content.decode()
    assert f'<option value="{rule.pk}" selected>' in content
    assert '<option value="failed" selected>' in content
    assert 'value="2026-03-01"' in content
    form = {**FORM, "rule": rule.pk, "status": "completed", "date_from": "2026-03-01", "once": str(uuid4())}
    assert visitor.post("/app/exports/new", form).status_code == 302
    job = Job.objects.get()
    assert (job.filters, job.format) == (
        {"ruleId": rule.pk, "status": "completed", "dateFrom": "2026-03-01"}, "parquet",
    )  # fmt: skip
    again = visitor.get(f"/app/exports/new?from={job.pk}").content.decode()
    assert f'<option value="{rule.pk}" selected>' in again
    assert visitor.get(f"/app/exports/{job.pk}").status_code == 200


def test_errors_of_a_form_are_at_their_fields(alice: User) -> None:
    form = {**FORM, "batch": "999999", "date_from": "2026-03-02", "date_to": "2026-03-01", "once": str(uuid4())}
    content = as_visitor(alice).post("/app/exports/new", {**form, "format": "json"}).content.decode()
    for field, words in (
        ("batch", "Batch not found."), ("date_to", "The end date is before the start date."),
        ("format", "This dataset supports: csv, jsonl, parquet."),
    ):  # fmt: skip
        place = content.index(f'id="id_{field}_error"')
        assert words in content[place : place + 300]
    assert not Job.objects.exists()


def test_documents_and_batches_link_to_the_form(alice: User, rule: Rule) -> None:
    visitor = as_visitor(alice)
    listed = visitor.get(f"/app/documents?rule_id={rule.pk}&status=llm_processing&from=2026-03-01").content.decode()
    assert f"?dataset=documents&amp;rule={rule.pk}&amp;status=pending&amp;date_from=2026-03-01" in listed
    batch, _ = make_batch(alice, 1, rule=rule)
    assert (
        f"?dataset=documents&amp;batch={batch.pk}" in visitor.get(f"/app/documents/batches/{batch.pk}").content.decode()
    )


@pytest.mark.slow
def test_a_schedule_exports_results_of_its_days(alice: User, rule: Rule, api: APIClient) -> None:
    """A36, A33: it can be created through the API and changed on its page."""
    body = {
        "name": "Results", "cron": "0 6 * * *", "timezone": "UTC", "window": {"unit": "day", "from": -1, "to": -1},
        "request": {"dataset": "documents", "ruleId": rule.pk, "format": "parquet"},
    }  # fmt: skip
    created = api.post("/exports/schedules", body)
    assert created.status_code == 201, created.content
    assert api.post(f"/exports/schedules/{created.json()['id']}/run").status_code == 202
    yesterday = str(datetime.now(UTC).date() - timedelta(days=1))
    assert Job.objects.get().filters == {"ruleId": rule.pk, "dateFrom": yesterday, "dateTo": yesterday}
    for request, pointer in (
        ({"dataset": "documents", "ruleId": 999_999}, "/request/ruleId"),
        ({"dataset": "documents", "status": "x"}, "/request/status"),
        ({"dataset": "documents", "keys": ["a"]}, "/request/keys"),
    ):
        refused = api.post("/exports/schedules", {**body, "request": request})
        assert [each["pointer"] for each in refused.json()["errors"]] == [pointer]
    visitor = as_visitor(alice)
    page = f"/app/exports/schedules/{created.json()['id']}"
    assert visitor.get(page).status_code == visitor.get(f"{page}/edit").status_code == 200
    form = {
        **FORM, "name": "Changed", "cron": "0 7 * * *", "zone": "UTC", "first": "-1", "last": "-1", "misfire": "skip",
        "status": "completed", "once": str(uuid4()),
    }  # fmt: skip
    assert visitor.post(f"{page}/edit", form).status_code == 302
    assert Schedule.objects.get().request == {
        "dataset": "documents", "status": "completed", "format": "parquet", "delivery": "auto",
    }  # fmt: skip
