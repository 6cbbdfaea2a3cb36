"""B1, B12: accepted, refused, and repeated submissions of documents."""

import json
import os
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from unittest.mock import ANY

import pytest
from django.conf import LazySettings
from django.contrib.auth.models import User
from django.core.files.uploadedfile import SimpleUploadedFile
from django.db import connections, transaction
from pydantic import SecretStr
from rest_framework.test import APIClient

from config.platform import storage
from config.platform.http.idempotency import Idempotency, fingerprint
from etl import runstate
from etl.core.states import Stage
from etl.ingest import multipart
from etl.models import Task
from etl.pipeline import actions, artifacts, queue_limit
from rules.models import Rule
from tests.broker import broker_at, valkey
from tests.conftest import browser_of, change_settings, client_of
from tests.integration.etl_factories import make_row, make_rule, make_task
from tests.integration.locks import waits_for_a_lock
from tests.integration.test_leases import in_threads
from tests.waiting import expect_within, wait_until

pytestmark = pytest.mark.usefixtures("default_rule")

FULL = Path("/dev/full")
SUBMIT = "/api/v1/etl/submit"
TEXT = b"An invoice.\n"
PDF = b"%PDF-1.7\n1 0 obj\n"
RTF = rb"{\rtf1\ansi A letter.}"


def send(api: APIClient, content: bytes = TEXT, name: str = "invoice.txt", key: str = "", **fields: Any) -> Any:
    headers = {"Idempotency-Key": key} if key else {}
    body = {"file": SimpleUploadedFile(name, content), **fields}
    return api.post(SUBMIT, body, format="multipart", headers=headers)


def documents() -> list[str]:
    return [item.key for item in storage.list_objects("etl/documents/")]


def assert_refused(response: Any, status: int, code: str) -> Any:
    """Assert that the submission was refused, and that no task and no object were created."""
    body = response.json()
    assert (response.status_code, body["code"]) == (status, code)
    assert response["Content-Type"] == "application/problem+json"
    assert not Task.objects.exists()
    assert not documents()
    assert not list(valkey().scan_iter("etl:task:*"))
    return body


# ---- Accepted -------------------------------------------------------------------------------------------------------


def test_a_submission_creates_a_row_then_a_run_state_then_a_message(
    api: APIClient, alice: User, default_rule: Rule
) -> None:
    """B1."""
    response = send(api)

    assert response.status_code == 202
    task = Task.objects.get()
    path = f"/api/v1/etl/tasks/{task.pk}"
    assert response.json() == {"task_id": task.pk, "status": "pending", "status_url": path, "duplicate_of": None}
    assert (response["Location"], response["Retry-After"]) == (path, "2")
    assert (task.status, task.user_id, task.rule_id, task.rule_version) == ("pending", alice.pk, default_rule.pk, 1)
    assert (task.filename, task.kind, task.size) == ("invoice.txt", "txt", len(TEXT))
    assert b"".join(storage.read(task.document_key)) == TEXT
    state = runstate.read(task.pk)
    assert state
    assert (state.status, state.progress, state.phase) == ("pending", 0, "ocr")
    assert state.job_id
    (message,) = valkey().lrange("etl-ocr", 0, -1)
    assert json.loads(message)["headers"]["id"] == state.job_id


def test_a_submission_uses_the_current_version_of_its_rule(api: APIClient, alice: User) -> None:
    """B1."""
    rule = make_rule(alice, version=4)
    assert send(api, rule_id=rule.pk).status_code == 202
    assert (Task.objects.get().rule_id, Task.objects.get().rule_version) == (rule.pk, 4)


def test_an_empty_form_field_means_no_rule(api: APIClient, default_rule: Rule) -> None:
    assert send(api, rule_id="").status_code == 202
    assert Task.objects.get().rule_id == default_rule.pk


def test_the_bytes_and_not_the_name_determine_the_kind(api: APIClient) -> None:
    """B12."""
    assert send(api, PDF, "picture.png").status_code == 202
    task = Task.objects.get()
    assert task.kind == "pdf"
    assert task.document_key.endswith(".pdf")


@pytest.mark.parametrize(
    ("sent", "shown"),
    [
        ('filename="../../etc/passwd"', "passwd"),
        ('filename="C:\\\\docs\\\\in.txt"', "in.txt"),
        ('filename="a\u202eb\tc.txt"', "abc.txt"),
        ("filename*=UTF-8''R%C3%A9sum%C3%A9.txt", "Résumé.txt"),
        (f'filename="{"x" * 300}.txt"', "x" * 251 + ".txt"),
        ('filename="<script>.txt"', "<script>.txt"),
        (f'filename="a.{"x" * 300}"', "." + "x" * 254),
    ],
)
def test_names_are_sanitized_and_only_displayed(api: APIClient, sent: str, shown: str) -> None:
    """B12."""
    body = f'--b\r\nContent-Disposition: form-data; name="file"; {sent}\r\n\r\nHello\r\n--b--\r\n'
    response = api.generic("POST", SUBMIT, body, content_type="multipart/form-data; boundary=b")

    assert response.status_code == 202
    task = Task.objects.get()
    assert task.filename == shown
    assert documents() == [task.document_key]
    assert shown not in task.document_key


def test_a_browser_submits_with_its_session_and_csrf_token(alice: User) -> None:
    browser = browser_of(alice, enforce_csrf_checks=True)
    file = {"file": SimpleUploadedFile("a.txt", TEXT)}
    assert browser.post(SUBMIT, file).json()["code"] == "csrf_failed"
    assert not Task.objects.exists()

    browser.cookies["csrftoken"] = token = "t" * 32
    file = {"file": SimpleUploadedFile("a.txt", TEXT)}
    assert browser.post(SUBMIT, file, headers={"X-CSRFToken": token}).status_code == 202
    assert b"".join(storage.read(Task.objects.get().document_key)) == TEXT


# ---- Refused --------------------------------------------------------------------------------------------------------


def test_an_empty_document_is_refused(api: APIClient) -> None:
    """B12."""
    body = assert_refused(send(api, b""), 400, "empty_document")
    assert body["errors"] == [{"pointer": "/file", "code": "empty_document", "detail": ANY}]


def test_the_size_limit_is_inclusive(api: APIClient, settings: LazySettings) -> None:
    """B12."""
    change_settings(settings, etl_max_file_bytes=1000)
    body = assert_refused(send(api, b"x" * 1001), 413, "file_too_large")
    assert "1,000 bytes" in body["detail"]
    assert send(api, b"x" * 1000).status_code == 202


def test_the_csrf_check_refuses_a_too_large_file(settings: LazySettings) -> None:
    """B12: the CSRF check of a browser session also reads the body."""
    change_settings(settings, etl_max_file_bytes=1000)
    browser = browser_of(User.objects.create_user("carol"), enforce_csrf_checks=True)
    browser.cookies["csrftoken"] = "t" * 32
    response = browser.post(SUBMIT, {"file": SimpleUploadedFile("a.txt", b"x" * 300_000)})
    assert_refused(response, 413, "file_too_large")


@pytest.fixture
def full_disk(settings: LazySettings, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A temporary folder for uploads in which files can be created, but not written."""
    settings.FILE_UPLOAD_TEMP_DIR = str(tmp_path)
    make = tempfile.TemporaryFile

    def full(**options: Any) -> Any:
        file = make(**options)
        with FULL.open("r+b", buffering=0) as nothing:
            os.dup2(nothing.fileno(), file.fileno())
        return file

    monkeypatch.setattr(tempfile, "TemporaryFile", full)
    return tmp_path


@pytest.mark.parametrize("size", [10, 300_000])
def test_a_full_disk_is_reported_and_left_unchanged(api: APIClient, full_disk: Path, size: int) -> None:
    """B12."""
    response = send(api, b"x" * size)
    assert_refused(response, 503, "storage_unavailable")
    assert response["Retry-After"] == "60"
    assert not list(full_disk.iterdir())
    assert not [link for link in Path("/proc/self/fd").iterdir() if link.exists() and link.readlink() == FULL]


def test_a_killed_process_leaves_no_upload_file(settings: LazySettings, tmp_path: Path) -> None:
    settings.FILE_UPLOAD_TEMP_DIR = str(tmp_path)
    handler = multipart.BoundedFile()
    handler.new_file("file", "invoice.txt", "text/plain", None)
    handler.receive_data_chunk(TEXT, 0)
    file = handler.file_complete(len(TEXT))

    assert not list(tmp_path.iterdir())
    assert (file.name, file.size, b"".join(file.chunks())) == ("invoice.txt", len(TEXT), TEXT)
    handler.upload_interrupted()
    assert file.closed


@pytest.mark.parametrize(
    ("content", "expected"),
    [(RTF, "MinerU supports such files; the operator can set ETL_OCR_PROVIDER=mineru."),
     (b"\x7fELF\x02\x01\x01" + bytes(9), "The file type is unknown."),
     (b"PK\x05\x06" + bytes(18), "The file type is unknown.")],
)  # fmt: skip
def test_an_unsupported_kind_is_refused_with_the_supported_kinds(api: APIClient, content: bytes, expected: str) -> None:
    """B12."""
    body = assert_refused(send(api, content, "a.pdf"), 415, "unsupported_format")
    assert expected in body["detail"]
    assert "PDF, PNG, JPEG, TIFF, WebP, plain text, Markdown, DOCX, PPTX, XLSX, ODT" in body["detail"]


def test_a_pdf_that_states_too_many_pages_is_refused_in_numbers(api: APIClient) -> None:
    """B12: linearized PDFs have their number of pages at the beginning. Workers check the number of other documents."""
    pdf = b"%%PDF-1.7\n1 0 obj\n<< /Linearized 1 /L 99999 /O 3 /E 999 /N %d /T 999 >>\nendobj\n"
    body = assert_refused(send(api, pdf % 600, "a.pdf"), 413, "too_many_pages")
    assert body["detail"] == "The document has 600 pages; the limit is 500."
    assert send(api, pdf % 500, "a.pdf").status_code == 202


def test_supported_kinds_follow_the_provider(api: APIClient, settings: LazySettings) -> None:
    """B12: this version of MinerU accepts neither RTF nor plain text. The local provider accepts plain text."""
    change_settings(settings, etl_mineru_protocol="v3")
    assert "such files" not in assert_refused(send(api, RTF), 415, "unsupported_format")["detail"]
    change_settings(settings, etl_ocr_provider="mineru")
    assert "ETL_OCR_PROVIDER=local." in assert_refused(send(api, b"Hello."), 415, "unsupported_format")["detail"]


def test_rules_of_other_users_are_unknown(api: APIClient, bob: User) -> None:
    """B1."""
    rule = make_rule(bob)
    for unknown in (rule.pk, rule.pk + 1000):
        body = assert_refused(send(api, rule_id=unknown), 400, "invalid")
        assert [error["pointer"] for error in body["errors"]] == ["/rule_id"]


@pytest.mark.parametrize("rule_id", ["0", "-1", "x", "1.5", str(2**63), "9" * 2000, "null"])
def test_an_invalid_rule_id_is_reported_at_its_pointer(api: APIClient, rule_id: str) -> None:
    body = assert_refused(send(api, rule_id=rule_id), 400, "invalid")
    assert [error["pointer"] for error in body["errors"]] == ["/rule_id"]


@pytest.mark.parametrize("rule_id", ["3", 3.0, True, [], {}, 0, 2**63])
def test_a_json_rule_id_is_a_number(api: APIClient, rule_id: Any) -> None:
    body = assert_refused(api.post(SUBMIT, {"file_key": "x", "rule_id": rule_id}), 400, "invalid")
    assert [error["pointer"] for error in body["errors"]] == ["/rule_id"]


def test_unknown_and_missing_fields_are_refused(api: APIClient) -> None:
    body = assert_refused(send(api, surprise="x"), 400, "invalid")
    assert [(error["pointer"], error["code"]) for error in body["errors"]] == [("/surprise", "unknown_field")]
    body = assert_refused(api.post(SUBMIT, {"rule_id": 1}, format="multipart"), 400, "invalid")
    assert [(error["pointer"], error["code"]) for error in body["errors"]] == [("/file", "required")]
    body = assert_refused(api.post(SUBMIT, {"file": "text"}, format="multipart"), 400, "invalid")
    assert [error["pointer"] for error in body["errors"]] == ["/file"]
    body = assert_refused(api.post(SUBMIT, {}), 400, "invalid")
    assert [(error["pointer"], error["code"]) for error in body["errors"]] == [("/file_key", "required")]
    body = assert_refused(api.post(SUBMIT, {"file": "x", "file_key": "y"}), 400, "invalid")
    assert [error["pointer"] for error in body["errors"]] == ["/file"]


def test_a_form_has_exactly_one_file(api: APIClient) -> None:
    two = [SimpleUploadedFile("a.txt", TEXT), SimpleUploadedFile("b.txt", TEXT)]
    body = assert_refused(api.post(SUBMIT, {"file": two}, format="multipart"), 400, "invalid")
    assert [(error["pointer"], error["code"]) for error in body["errors"]] == [("/file", "repeated")]
    body = assert_refused(send(api, other=SimpleUploadedFile("b.txt", TEXT)), 400, "invalid")
    assert [error["pointer"] for error in body["errors"]] == ["/other"]


@pytest.mark.parametrize(
    ("content_type", "status", "code"),
    [
        ("text/plain", 415, "unsupported_media_type"),
        ("application/x-www-form-urlencoded", 415, "unsupported_media_type"),
        ("multipart/form-data", 400, "invalid"),
        ("multipart/form-data; boundary=\u00fc", 400, "invalid"),
        ("application/json", 400, "invalid"),
    ],
)
def test_a_body_that_contradicts_its_content_type_is_refused(
    api: APIClient, content_type: str, status: int, code: str
) -> None:
    assert_refused(api.generic("POST", SUBMIT, "--b\r\nnothing", content_type=content_type), status, code)


def test_unauthenticated_submissions_are_refused() -> None:
    assert_refused(send(APIClient()), 401, "not_authenticated")


# ---- A full queue ---------------------------------------------------------------------------------------------------


def test_a_full_queue_refuses_tasks_until_one_ends(
    api: APIClient, alice: User, bob: User, settings: LazySettings
) -> None:
    """B1."""
    change_settings(settings, etl_queue_size=2)
    first, _ = make_task(alice), make_task(bob)
    before = documents()
    response = send(api)

    assert (response.status_code, response.json()["code"]) == (503, "queue_full")
    assert int(response["Retry-After"]) > 0
    assert Task.objects.count() == 2
    assert documents() == before
    actions.cancel(task=first)
    assert send(api).status_code == 202


def test_the_last_place_in_the_queue_is_given_once(alice: User, settings: LazySettings) -> None:
    """B1: the stored documents of the refused submissions are deleted."""
    change_settings(settings, etl_queue_size=3)
    clients = [client_of(alice) for _ in range(8)]
    responses = in_threads(8, lambda n: send(clients[n]))

    assert sorted(response.status_code for response in responses) == [202] * 3 + [503] * 5
    assert sorted(documents()) == sorted(Task.objects.values_list("document_key", flat=True))


def test_the_last_place_is_given_once_to_concurrent_submissions(alice: User, bob: User, settings: LazySettings) -> None:
    """The submissions are from two users: those of one user are serialized by the quota's lock."""
    change_settings(settings, etl_queue_size=1)

    def submit_late() -> Any:
        try:
            return send(client_of(bob))
        finally:
            connections.close_all()

    with ThreadPoolExecutor(1) as pool:
        with transaction.atomic():
            queue_limit.enter(user_id=alice.pk)
            first = make_row(alice)
            late = pool.submit(submit_late)
            wait_until(lambda: late.done() or waits_for_a_lock())
        assert late.result().status_code == 503
    assert [task.pk for task in Task.objects.all()] == [first.pk]


# ---- Repeats --------------------------------------------------------------------------------------------------------


def test_a_repeat_gets_the_first_response_byte_for_byte(api: APIClient) -> None:
    """B1."""
    first, again = send(api, key="k1"), send(api, name="other.txt", key="k1")

    assert (first.status_code, again.status_code) == (202, 202)
    assert first.content == again.content
    assert (first["Location"], first["Retry-After"]) == (again["Location"], again["Retry-After"])
    assert "Idempotency-Replayed" not in first
    assert again["Idempotency-Replayed"] == "true"
    assert Task.objects.count() == len(documents()) == 1


def test_a_repeat_gets_the_first_response_after_the_end_and_while_the_queue_is_full(
    api: APIClient, settings: LazySettings
) -> None:
    first = send(api, key="k1")
    actions.cancel(task=Task.objects.get(pk=first.json()["task_id"]))
    change_settings(settings, etl_queue_size=1)
    assert send(api).status_code == 202
    assert send(api, key="k1").content == first.content


def test_other_bytes_or_another_rule_under_the_same_key_are_422(api: APIClient, alice: User) -> None:
    """B1."""
    send(api, key="k1")
    for response in (send(api, b"Other bytes.", key="k1"), send(api, rule_id=make_rule(alice).pk, key="k1")):
        assert (response.status_code, response.json()["code"]) == (422, "idempotency_key_reused")
    assert Task.objects.count() == len(documents()) == 1


def test_a_key_of_a_refused_request_can_be_reused(api: APIClient) -> None:
    assert send(api, b"", key="k1").status_code == 400
    assert send(api, key="k1").status_code == 202


def test_while_the_first_is_in_flight_the_second_is_409(api: APIClient, alice: User) -> None:
    """B1."""
    with ThreadPoolExecutor(1) as pool, transaction.atomic():
        Idempotency(key="k1", fingerprint=fingerprint({})).lock(scope=f"etl/{alice.pk}")

        def second() -> Any:
            try:
                return send(api, key="k1")
            finally:
                connections.close_all()

        response = pool.submit(second).result()
    assert_refused(response, 409, "idempotency_in_flight")
    assert int(response["Retry-After"]) >= 1
    assert send(api, key="k1").status_code == 202


def test_concurrent_repeats_create_one_task(alice: User) -> None:
    """B1."""
    clients = [client_of(alice) for _ in range(6)]
    responses = in_threads(6, lambda n: send(clients[n], key="k1"))

    assert {response.status_code for response in responses} <= {202, 409}
    assert len({response.content for response in responses if response.status_code == 202}) == 1
    assert Task.objects.count() == len(documents()) == 1


# ---- Unavailable servers --------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_without_redis_the_task_is_accepted_and_left_to_recovery(
    api: APIClient, settings: LazySettings, silent_redis: str
) -> None:
    """B1, B10."""
    change_settings(settings, etl_redis_url=SecretStr(silent_redis))

    def submit() -> None:
        assert send(api).status_code == 202

    expect_within(3, submit)
    assert {task.status for task in Task.objects.all()} == {"pending"}
    assert valkey().llen("etl-ocr") == 0


@pytest.mark.slow
def test_without_the_broker_the_task_is_accepted_and_has_its_run_state(api: APIClient, silent_redis: str) -> None:
    """B1."""

    def submit() -> None:
        response = send(api)
        assert response.status_code == 202
        state = runstate.read(response.json()["task_id"])
        assert state
        assert (state.status, state.job_id) == ("pending", "")

    with broker_at(silent_redis):
        expect_within(3, submit)


def test_without_object_storage_nothing_is_created(api: APIClient, settings: LazySettings, closed_port: int) -> None:
    change_settings(settings, s3_endpoint_url=f"http://127.0.0.1:{closed_port}")
    response = send(api)

    assert (response.status_code, response.json()["code"]) == (503, "storage_unavailable")
    assert not Task.objects.exists()


def test_the_row_contains_everything_that_a_task_needs(api: APIClient) -> None:
    """B10: recovery uses only the row."""
    send(api)
    task = Task.objects.get()
    valkey().flushdb()
    assert runstate.create(task, stage=Stage.OCR).moved
    assert runstate.read(task.pk)
    assert task.document_key.startswith(artifacts.DOCUMENTS)
