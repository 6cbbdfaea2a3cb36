"""B36: batches: documents that are submitted together, and the end of their batch."""

import io
import json
import os
import struct
import threading
import time
import zipfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from django.conf import LazySettings
from django.contrib.auth.models import User
from django.core.files.uploadedfile import SimpleUploadedFile
from django.db import connection, transaction
from pydantic import SecretStr
from rest_framework.test import APIClient

from config.platform import storage
from config.platform.exact_json import Number
from config.platform.webhooks import subscriptions
from config.platform.webhooks.models import Delivery
from etl import runstate
from etl.core.errors import LlmRefused, explain
from etl.core.stage_context import Usage
from etl.core.states import Stage
from etl.maintenance import recovery
from etl.models import DocumentBatch, Task, Upload
from etl.models import Usage as DailyUsage
from etl.pipeline import actions, batch_actions, batch_ends, completion, deletion, execution
from etl.runstate import RunState
from rules.models import Rule
from tests.broker import queued, valkey
from tests.conftest import change_settings, client_of
from tests.integration.etl_factories import make_rule
from tests.integration.etl_progress import begin, complete, end_completed, fail, read
from tests.integration.locks import waits_for_a_lock
from tests.integration.stage_runs import ConfigureStages, row_of
from tests.integration.test_etl_submission import documents
from tests.integration.test_leases import in_threads
from tests.waiting import wait_until

pytestmark = pytest.mark.usefixtures("default_rule")

BATCHES = "/api/v1/etl/batches"


def texts(*names: str) -> list[SimpleUploadedFile]:
    return [SimpleUploadedFile(name, f"The text of {name}.".encode()) for name in names]


def send(api: APIClient, *files: SimpleUploadedFile, key: str = "", **fields: Any) -> Any:
    headers = {"Idempotency-Key": key} if key else {}
    return api.post(BATCHES, {"file": list(files), **fields}, format="multipart", headers=headers)


def zipped(entries: dict[str, bytes], **options: Any) -> SimpleUploadedFile:
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w", **{"compression": zipfile.ZIP_DEFLATED, **options}) as archived:
        for name, data in entries.items():
            archived.writestr(name, data)
    return SimpleUploadedFile("all.zip", content.getvalue())


def batch_of(api: APIClient, batch: DocumentBatch | int) -> Any:
    response = api.get(f"{BATCHES}/{getattr(batch, 'pk', batch)}")
    assert response.status_code == 200, response.content
    return response.json()


def counts(api: APIClient, batch: DocumentBatch) -> tuple[str, int, int, int, int]:
    found = batch_of(api, batch)
    return found["status"], found["completed"], found["failed"], found["cancelled"], found["deleted"]


def assert_nothing_created() -> None:
    assert not DocumentBatch.objects.exists()
    assert not Task.objects.exists()
    assert not documents()
    assert not list(valkey().scan_iter("etl:task:*"))


def make_batch(api: APIClient, number: int = 2, **fields: Any) -> tuple[DocumentBatch, list[Task]]:
    response = send(api, *texts(*(f"{n}.txt" for n in range(number))), **fields)
    assert response.status_code == 202, response.content
    batch = DocumentBatch.objects.get(pk=response.json()["batch_id"])
    return batch, list(Task.objects.filter(batch=batch).order_by("pk"))


def fail_after_ocr(task: Task) -> None:
    read(task)
    state = begin(task, Stage.POSTPROCESS)
    error = explain(LlmRefused(), stage=state.phase)
    completion.record_end(runstate.fail(state, error=error, usage=Usage().as_dict()))


# ---- Submission -----------------------------------------------------------------------------------------------------
def test_files_become_tasks_of_a_batch(api: APIClient, alice: User, default_rule: Rule) -> None:
    """B36."""
    response = send(api, *texts("a.txt", "b.txt"), name="March")

    batch = DocumentBatch.objects.get()
    path = f"{BATCHES}/{batch.pk}"
    assert response.status_code == 202
    assert response.json() == {"batch_id": batch.pk, "status_url": path, "total": 2, "refused": []}
    assert (response["Location"], response["Retry-After"]) == (path, "2")
    assert (batch.user, batch.name, batch.rule, batch.status) == (alice, "March", default_rule, "running")
    tasks = list(Task.objects.order_by("pk"))
    assert [(task.batch, task.filename, task.status) for task in tasks] == [
        (batch, "a.txt", "pending"), (batch, "b.txt", "pending"),
    ]  # fmt: skip
    assert [b"".join(storage.read(task.document_key)) for task in tasks] == [
        b"The text of a.txt.", b"The text of b.txt.",
    ]  # fmt: skip
    assert tasks[1].rank == tasks[0].rank + 1
    assert all(task.run == task.first_run > 1 for task in tasks)
    assert [runstate.read(task.pk).status for task in tasks] == ["pending", "pending"]  # type: ignore[union-attr]
    assert queued("etl-ocr") == 2
    assert batch_of(api, batch) | {"created_at": "", "updated_at": ""} == {
        "batch_id": batch.pk, "name": "March", "status": "running", "total": 2, "completed": 0, "failed": 0,
        "cancelled": 0, "deleted": 0, "refused": [], "rule_id": default_rule.pk, "rule_version": 1, "created_at": "",
        "updated_at": "",
    }  # fmt: skip


def test_refused_files_are_listed_and_the_others_are_processed(api: APIClient, settings: LazySettings) -> None:
    """B36."""
    change_settings(settings, etl_max_file_bytes=1_000)
    refused = [
        SimpleUploadedFile("empty.txt", b""),
        SimpleUploadedFile("large.txt", b"x" * 1_001),
        SimpleUploadedFile("letter.rtf", rb"{\rtf1\ansi A letter.}"),
    ]
    body = send(api, *texts("a.txt"), *refused).json()
    assert body["total"] == 1
    assert body["refused"] == [
        {"filename": "empty.txt", "code": "empty_document"},
        {"filename": "large.txt", "code": "file_too_large"},
        {"filename": "letter.rtf", "code": "unsupported_format"},
    ]
    assert batch_of(api, body["batch_id"])["refused"] == body["refused"]
    assert Task.objects.get().filename == "a.txt"


def test_a_batch_without_an_accepted_file_is_refused(api: APIClient) -> None:
    """B36."""
    response = send(api, SimpleUploadedFile("empty.txt", b""), SimpleUploadedFile("a.rtf", rb"{\rtf1\ansi A.}"))
    body = response.json()
    assert response.status_code == 400
    assert [(error["pointer"], error["code"]) for error in body["errors"]] == [
        ("/file/0", "empty_document"), ("/file/1", "unsupported_format"),
    ]  # fmt: skip
    assert body["errors"][0]["detail"].startswith("empty.txt: ")
    assert_nothing_created()


def test_uploads_are_submitted_by_their_keys(api: APIClient, alice: User, bob: User) -> None:
    """B36: a missing upload and another user's upload are refused. The key is shown as the file name."""
    keys = []
    for user in (alice, alice, bob):
        offer = {"filename": "a.txt", "content_type": "text/plain", "size": 6}
        key = client_of(user).post("/api/v1/etl/uploads", offer).json()["file_key"]
        storage.put(key, b"Hello.", content_type="text/plain")
        keys.append(key)
    storage.delete(keys[1])
    response = api.post(BATCHES, {"file_keys": keys})

    assert response.status_code == 202
    assert response.json()["refused"] == [{"filename": key, "code": "unknown_file"} for key in keys[1:]]
    assert Task.objects.get().user == alice
    assert sorted(Upload.objects.values_list("file_key", flat=True)) == sorted(keys[1:])
    assert DailyUsage.objects.get(user=alice).documents == 1


def test_files_that_other_systems_stored_are_submitted_by_their_prefix(
    api: APIClient, alice: User, bob: User, default_rule: Rule, settings: LazySettings
) -> None:
    """B36: only files in the user's inbox. They are not deleted, and each one can be refused, like other files."""
    inbox = api.get("/api/v1/etl/limits").json()["inbox"]
    assert inbox == f"etl/inbox/{alice.pk}/"
    stored = {
        "march/": b"", "march/1.txt": b"One.", "march/sub/2.txt": b"Two.", "march/no.rtf": b"{\\rtf1 A.}",
        "x.txt": b"X",
    }  # fmt: skip
    keys = [inbox + path for path in stored] + [f"etl/inbox/{bob.pk}/march/3.txt"]
    for key, content in zip(keys, [*stored.values(), b"Three."], strict=True):
        storage.put(key, content, content_type="application/octet-stream")
    body, headers = {"prefix": "march/", "rule_id": default_rule.pk, "name": "March"}, {"Idempotency-Key": "1"}
    response = api.post(BATCHES, body, headers=headers)

    assert response.status_code == 202, response.content
    assert response.json()["refused"] == [{"filename": "march/no.rtf", "code": "unsupported_format"}]
    tasks = Task.objects.order_by("pk")
    assert [(task.filename, task.user_id) for task in tasks] == [("1.txt", alice.pk), ("2.txt", alice.pk)]
    assert [b"".join(storage.read(task.document_key)) for task in tasks] == [b"One.", b"Two."]
    assert all(storage.head(key) for key in keys)
    for key in keys[1:4]:
        storage.delete(key)
    assert api.post(BATCHES, body, headers=headers)["Idempotency-Replayed"] == "true"
    assert api.post(BATCHES, {**body, "prefix": "x"}, headers=headers).json()["code"] == "idempotency_key_reused"
    change_settings(settings, etl_max_batch=2)
    storage.put(f"{inbox}y.txt", b"Y", content_type="text/plain")
    storage.put(f"{inbox}z.txt", b"Z", content_type="text/plain")
    (error,) = api.post(BATCHES, {"prefix": ""}).json()["errors"]
    assert (error["pointer"], error["code"]) == ("/prefix", "too_many_documents")


def test_files_of_an_inbox_are_not_read_without_any_quota(api: APIClient, alice: User, settings: LazySettings) -> None:
    """B36: if some quota is left, their first bytes are read, and their type is refused."""
    storage.put(f"etl/inbox/{alice.pk}/no.rtf", b"{\\rtf1 A.}", content_type="application/rtf")
    assert api.post(BATCHES, {"prefix": ""}).json()["errors"][0]["code"] == "unsupported_format"
    change_settings(settings, etl_daily_documents=0)
    assert api.post(BATCHES, {"prefix": ""}).json()["code"] == "quota_exceeded"


@pytest.mark.parametrize(
    ("body", "pointer", "code"),
    [
        ({}, "/file_keys", "required"),
        ({"prefix": "", "file_keys": ["x"]}, "/prefix", "invalid"),
        ({"prefix": "none/"}, "/prefix", "unknown_file"),
        ({"prefix": "../2/"}, "/prefix", "invalid"),
        ({"prefix": "/a"}, "/prefix", "invalid"),
        ({"prefix": "a//b"}, "/prefix", "invalid"),
        ({"prefix": 3}, "/prefix", "invalid"),
        ({"file_keys": []}, "/file_keys", "min_length"),
        ({"file_keys": "x"}, "/file_keys", "not_a_list"),
        ({"file_keys": ["x", 3]}, "/file_keys/1", "invalid"),
        ({"file_keys": ["x", "y", "x"]}, "/file_keys/2", "repeated"),
        ({"file_keys": ["x"], "rule_id": "3"}, "/rule_id", "invalid"),
        ({"file_keys": ["x"], "name": "n" * 201}, "/name", "max_length"),
        ({"file_keys": ["x"], "surprise": 1}, "/surprise", "unknown_field"),
        ({"file_keys": ["x"]}, "/file_keys/0", "unknown_file"),
        ({"file_keys": ["a", "b", "c", "d"]}, "/file_keys", "too_many_documents"),
    ],
)
def test_bad_input_is_reported_at_its_pointer(
    api: APIClient, settings: LazySettings, body: Any, pointer: str, code: str
) -> None:
    """B36."""
    change_settings(settings, etl_max_batch=3)
    response = api.post(BATCHES, body)
    assert response.status_code == 400
    assert (pointer, code) in [(error["pointer"], error["code"]) for error in response.json()["errors"]]
    assert_nothing_created()


def test_a_form_requires_files_and_refuses_repeated_fields(api: APIClient) -> None:
    errors = api.post(BATCHES, {"name": "x"}, format="multipart").json()["errors"]
    assert [(error["pointer"], error["code"]) for error in errors] == [("/file", "required")]
    errors = send(api, *texts("a.txt"), name=["x", "y"]).json()["errors"]
    assert [(error["pointer"], error["code"]) for error in errors] == [("/name", "repeated")]
    assert_nothing_created()


def test_too_many_files_are_refused_with_their_number_and_the_limit(api: APIClient, settings: LazySettings) -> None:
    """B36."""
    change_settings(settings, etl_max_batch=2)
    (error,) = send(api, *texts("a.txt", "b.txt", "c.txt")).json()["errors"]
    assert (error["pointer"], error["code"]) == ("/file", "too_many_documents")
    assert error["detail"] == "A batch can have 2 documents; this one has 3."
    assert_nothing_created()


@pytest.mark.slow
def test_the_files_of_a_form_take_one_file_descriptor(api: APIClient, settings: LazySettings, tmp_path: Path) -> None:
    """B36: a process can only open a thousand files."""
    settings.FILE_UPLOAD_TEMP_DIR = str(tmp_path)
    before = set(Path("/proc/self/fd").iterdir())
    open_files: list[int] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("etl.api.batches.candidates_of", counting_descriptors(open_files, before))
        response = send(api, *texts(*(f"{number}.txt" for number in range(300))))
    assert (response.status_code, response.json()["total"]) == (202, 300)
    assert open_files[0] < 20
    assert not list(tmp_path.iterdir())


def counting_descriptors(open_files: list[int], before: set[Path]) -> Callable[..., Any]:
    from etl.api.batches import candidates_of

    def count(*args: Any, **options: Any) -> Any:
        open_files.append(len(set(Path("/proc/self/fd").iterdir()) - before))
        return candidates_of(*args, **options)

    return count


def test_the_body_limit_of_a_batch_has_its_own_error(api: APIClient, settings: LazySettings) -> None:
    from etl.ingest.multipart import FILES

    limit = FILES[BATCHES].limit
    assert limit > settings.SLUICE.etl_max_batch_bytes
    assert FILES[BATCHES].problem().body()["code"] == "batch_too_large"


# ---- Archives -------------------------------------------------------------------------------------------------------
def test_an_archive_becomes_a_batch(api: APIClient) -> None:
    """B36: it can have folders. The files that macOS and Windows add are ignored."""
    body = send(
        api,
        zipped({
            "2026/a.txt": b"One.", "2026/": b"", "b.md": b"# Two", "__MACOSX/2026/._a.txt": b"x", ".DS_Store": b"x",
            "2026/Thumbs.db": b"x", "._b.md": b"x",
        }),
    ).json()  # fmt: skip
    assert (body["total"], body["refused"]) == (2, [])
    tasks = Task.objects.order_by("pk")
    assert [(task.filename, task.kind, task.size) for task in tasks] == [("a.txt", "txt", 4), ("b.md", "md", 5)]
    assert [b"".join(storage.read(task.document_key)) for task in tasks] == [b"One.", b"# Two"]


def test_unsafe_entries_of_an_archive_are_refused(api: APIClient, settings: LazySettings) -> None:
    """B36."""
    change_settings(settings, etl_max_file_bytes=4 * 1024**2)
    names = ["../a.txt", "/etc/passwd", "C:\\a.txt", "x/../../a.txt", "in\\a.txt"]
    inner = zipped({"a.txt": b"x"}).read()
    body = send(
        api,
        zipped({
            "fine.txt": b"Fine.", **dict.fromkeys(names, b"Text."), "bomb.txt": b"x" * 3 * 1024**2,
            "large.txt": os.urandom(4 * 1024**2 + 1), "nested.zip": inner, "empty.txt": b"",
        }),
    ).json()  # fmt: skip
    assert body["total"] == 1
    assert [each["code"] for each in body["refused"]] == [
        *["unsafe_path"] * 5, "compression_ratio", "file_too_large", "unsupported_format", "empty_document",
    ]  # fmt: skip
    assert body["refused"][0]["filename"] == "../a.txt"


def patched(file: SimpleUploadedFile, change_entry: Callable[[bytearray, int], None]) -> SimpleUploadedFile:
    """Return the archive with a changed central directory. The function gets the offset of its first entry."""
    content = bytearray(file.read())
    change_entry(content, content.index(b"PK\x01\x02"))
    return SimpleUploadedFile("all.zip", bytes(content))


def test_encrypted_entries_unknown_methods_and_links_are_refused(api: APIClient) -> None:
    """B36."""
    for offset, value, code in (
        (8, struct.pack("<H", 1), "file_encrypted"),
        (10, struct.pack("<H", 12), "unsupported_compression"),
        (38, struct.pack("<I", 0o120777 << 16), "unsafe_path"),
    ):

        def write(content: bytearray, at: int, offset: int = offset, value: bytes = value) -> None:
            content[at + offset : at + offset + len(value)] = value

        (error,) = send(api, patched(zipped({"a.txt": b"x" * 50}), write)).json()["errors"]
        assert (error["pointer"], error["code"]) == ("/file", code)
    assert_nothing_created()


def test_a_damaged_entry_is_refused_and_not_stored(api: APIClient) -> None:
    """B36: its checksum can only be verified when it has been read completely."""
    content = bytearray(zipped({"a.txt": b"Good.", "b.txt": b"damaged"}, compression=zipfile.ZIP_STORED).read())
    at = content.index(b"damaged")
    content[at] += 1
    body = send(api, SimpleUploadedFile("all.zip", bytes(content))).json()
    assert (body["total"], body["refused"]) == (1, [{"filename": "b.txt", "code": "file_corrupt"}])
    assert documents() == [Task.objects.get().document_key]


def test_an_entry_with_an_offset_larger_than_any_file_is_refused(api: APIClient) -> None:
    """B36: ZIP64 offsets have 64 bits, but those of files have 63."""
    content = zipped({"a.txt": b"Good."}).read()
    at, end = content.index(b"PK\x01\x02"), content.index(b"PK\x05\x06")
    extra = struct.pack("<HHQ", 1, 8, 2**64 - 1)
    directory, tail = bytearray(content[at:end] + extra), bytearray(content[end:])
    directory[30:32] = struct.pack("<H", len(extra))
    directory[42:46] = b"\xff" * 4
    tail[12:16] = struct.pack("<I", len(directory))
    (error,) = send(api, SimpleUploadedFile("all.zip", bytes(content[:at] + directory + tail))).json()["errors"]
    assert (error["pointer"], error["code"]) == ("/file", "file_corrupt")
    assert_nothing_created()


def test_a_damaged_or_large_archive_is_refused(api: APIClient, settings: LazySettings) -> None:
    """B36."""
    for content, code in (
        (b"PK\x03\x04" + b"x" * 100, "archive_corrupt"),
        (zipped({}).read(), "no_documents"),
        (zipped({"folder/": b"", "__MACOSX/x": b""}).read(), "no_documents"),
        (zipped({"a.txt": b"x" * 5_000, "b.txt": b"y" * 5_001}).read(), "archive_too_large"),
        (zipped({f"{n}.txt": b"x" for n in range(4)}).read(), "too_many_documents"),
        (zipped({f"__MACOSX/{n:0500}": b"" for n in range(200)}).read(), "too_many_entries"),
    ):
        change_settings(settings, etl_max_batch=3, etl_max_batch_bytes=1_000)
        response = send(api, SimpleUploadedFile("all.zip", content))
        assert response.status_code == 400
        assert [(error["pointer"], error["code"]) for error in response.json()["errors"]] == [("/file", code)]
    assert_nothing_created()


def test_a_single_office_document_is_not_treated_as_an_archive(api: APIClient) -> None:
    content = Path("tests/samples/office/contract.docx").read_bytes()
    assert send(api, SimpleUploadedFile("contract.docx", content)).json()["total"] == 1
    assert Task.objects.get().kind == "docx"


# ---- Quotas and repeats ---------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("limit", "refusal", "detail"),
    [
        ({"etl_daily_documents": 2}, (429, "quota_exceeded"), "needs 3 documents, and 2 of today's 2 are left"),
        ({"etl_daily_bytes": 50}, (429, "quota_exceeded"), "needs 54 bytes, and 50 of today's 50 are left"),
        ({"etl_max_open_per_user": 2}, (429, "quota_exceeded"), "the limit is 2, and this needs 3 more"),
        ({"etl_queue_size": 2}, (503, "queue_full"), "room for 2 more documents, and this needs 3"),
    ],
)
def test_a_batch_over_a_limit_is_refused_as_a_whole(
    api: APIClient, settings: LazySettings, limit: Any, refusal: tuple[int, str], detail: str
) -> None:
    """B36: the error has the numbers, and nothing is charged."""
    change_settings(settings, **limit)
    response = send(api, *texts("a.txt", "b.txt", "c.txt"))
    assert (response.status_code, response.json()["code"]) == refusal
    assert detail in response.json()["detail"]
    assert int(response["Retry-After"]) > 0
    assert_nothing_created()
    assert not DailyUsage.objects.filter(documents__gt=0).exists()
    assert send(api, *texts("a.txt", "b.txt")).status_code == 202


def test_concurrent_batches_cannot_overspend(alice: User, settings: LazySettings) -> None:
    """B36: the stored files of refused batches are deleted."""
    change_settings(settings, etl_daily_documents=7)
    clients = [client_of(alice) for _ in range(4)]
    answers = in_threads(4, lambda n: send(clients[n], *texts("a.txt", "b.txt", "c.txt")).status_code)
    assert sorted(answers) == [202, 202, 429, 429]
    assert DailyUsage.objects.get(user=alice).documents == Task.objects.count() == len(documents()) == 6


def test_a_repeat_gets_the_first_response(api: APIClient) -> None:
    """B36: even if a document was deleted in the meantime. A request with another body is refused."""
    first = send(api, *texts("a.txt", "b.txt"), SimpleUploadedFile("c", b""), key="k")
    actions.cancel(task=(task := Task.objects.order_by("pk")[0]))
    deletion.delete(row_of(task), user=task.user, message="")
    again = send(api, *texts("a.txt", "b.txt"), SimpleUploadedFile("c", b""), key="k")
    assert (again.status_code, again.content, again["Idempotency-Replayed"]) == (202, first.content, "true")
    assert send(api, *texts("a.txt"), key="k").status_code == 422
    assert DocumentBatch.objects.count() == 1
    assert Task.objects.count() == len(documents()) == 1


def test_concurrent_repeats_create_one_batch(alice: User) -> None:
    """B36."""
    clients = [client_of(alice) for _ in range(4)]
    answers = in_threads(4, lambda n: send(clients[n], *texts("a.txt", "b.txt"), key="k").status_code)
    assert set(answers) <= {202, 409}
    assert 202 in answers
    assert DocumentBatch.objects.count() == 1
    assert Task.objects.count() == len(documents()) == 2


def test_without_a_broker_recovery_starts_the_documents(
    api: APIClient, alice: User, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("etl.pipeline.dispatch.publish", lambda *_: "")
    _, tasks = make_batch(api)
    monkeypatch.undo()
    assert queued("etl-ocr") == 0
    for task in tasks:  # simulates that time has passed
        valkey().hset(runstate.key_of(task.pk), "hinted_at", 0)
    recovery.recover_all()
    assert queued("etl-ocr") == len(tasks)


# ---- End ------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("ends", "status"),
    [([complete, complete], "completed"), ([complete, fail], "completed_with_errors"),
     ([fail, fail], "completed_with_errors")],
)  # fmt: skip
def test_a_batch_ends_with_its_last_document(api: APIClient, ends: Any, status: str) -> None:
    """B36."""
    batch, tasks = make_batch(api)
    ends[0](tasks[0])
    assert batch_of(api, batch)["status"] == "running"
    ends[1](tasks[1])
    numbers = (ends.count(complete), ends.count(fail), 0, 0)
    assert counts(api, batch) == (status, *numbers)
    batch.refresh_from_db()
    assert batch.completions == 1
    assert "Retry-After" not in api.get(f"{BATCHES}/{batch.pk}")


def end_in_redis(task: Task) -> RunState:
    """End a task in Redis, but not in its row."""
    read(task)
    state = begin(task, Stage.POSTPROCESS)
    outcome = runstate.complete(state, result={"metadata": {}}, usage=Usage().as_dict())
    assert outcome.state
    return outcome.state


def test_two_documents_that_end_simultaneously_end_the_batch_once(api: APIClient) -> None:
    """B36: neither transaction sees the end of the other document before the commit."""
    batch, tasks = make_batch(api)
    states = [end_in_redis(task) for task in tasks]

    def write(state: RunState) -> bool:
        try:
            return completion.write(state, {"metadata": {}})
        finally:
            connection.close()

    with ThreadPoolExecutor(1) as pool:
        with transaction.atomic():
            assert completion.write(states[0], {"metadata": {}})
            other = pool.submit(write, states[1])
            wait_until(lambda: other.done() or waits_for_a_lock())
            batch.refresh_from_db()
            assert (batch.status, other.done()) == ("running", False)
        assert other.result()
    batch.refresh_from_db()
    assert (batch.status, batch.completions) == ("completed", 1)


def test_many_documents_that_end_together_end_the_batch_once(api: APIClient) -> None:
    batch, tasks = make_batch(api, 8)
    states = [end_in_redis(task) for task in tasks]
    in_threads(8, lambda n: completion.write(states[n], {"metadata": {}}))
    batch.refresh_from_db()
    assert (batch.status, batch.completions) == ("completed", 1)
    for state in states:  # recovery records the same ends again
        assert not completion.write(state, {"metadata": {}})
    batch.refresh_from_db()
    assert batch.completions == 1


def test_recovery_ends_a_batch_if_the_worker_was_killed_before_the_commit(api: APIClient) -> None:
    """B36."""
    batch, tasks = make_batch(api)
    for task in tasks:
        end_completed(begin_after_ocr(task)) if task is tasks[0] else end_in_redis(task)
    assert batch_of(api, batch)["status"] == "running"
    recovery.recover_all()
    assert counts(api, batch)[:2] == ("completed", 2)


def begin_after_ocr(task: Task) -> RunState:
    read(task)
    return begin(task, Stage.POSTPROCESS)


def test_recovery_ends_a_batch_whose_documents_an_earlier_release_ended(
    api: APIClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """B36: a worker of an earlier release does not support batches."""
    batch, tasks = make_batch(api)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(batch_ends, "end_if_complete", lambda _batch_id: None)
        for task in tasks:
            complete(task)
    assert batch_of(api, batch)["status"] == "running"
    recovery.recover_all()
    recovery.recover_all()
    batch.refresh_from_db()
    assert (batch.status, batch.completions) == ("completed", 1)


def test_the_event_of_a_batch_is_written_once_for_each_end(api: APIClient, alice: User) -> None:
    """B36: it follows the events of the documents, and has the numbers at the end of the batch."""
    events = ["batch.completed", "document.failed"]
    subscriptions.create(user_id=alice.pk, url="https://127.0.0.1/", events=events)
    batch, tasks = make_batch(api)
    complete(tasks[0])
    assert not Delivery.objects.exists()
    fail(tasks[1])
    first, second = Delivery.objects.order_by("created_at", "type")
    assert {first.subject, second.subject} == {f"batch:{batch.pk}", f"document:{tasks[1].pk}"}
    event = Delivery.objects.get(subject=f"batch:{batch.pk}")
    sent, now = json.loads(event.body), batch_of(api, batch)
    assert now.pop("refused") == []
    assert (event.seq, sent["type"], sent["data"]) == (1, "batch.completed", now)
    assert sent["timestamp"] == now["updated_at"]
    batch_actions.retry(batch)
    complete(row_of(tasks[1]))
    recovery.recover_all()
    ends = Delivery.objects.filter(subject=f"batch:{batch.pk}").order_by("seq")
    assert [(end.seq, json.loads(end.body)["data"]["status"]) for end in ends] == [
        (1, "completed_with_errors"), (2, "completed"),
    ]  # fmt: skip


# ---- Retry ----------------------------------------------------------------------------------------------------------
def test_failed_documents_are_retried_from_the_stage_at_which_they_failed(api: APIClient, alice: User) -> None:
    """B36: one transaction retries all of them, so that the first document cannot end the batch before the last."""
    batch, tasks = make_batch(api, 4)
    complete(tasks[0])
    fail(tasks[1])
    fail_after_ocr(tasks[2])
    fail(tasks[3])
    assert batch_of(api, batch)["status"] == "completed_with_errors"
    spent = DailyUsage.objects.get(user=alice)
    response = api.post(f"{BATCHES}/{batch.pk}/retry", {})

    assert (response.status_code, response["Location"]) == (202, f"{BATCHES}/{batch.pk}")
    assert {name: response.json()[name] for name in ("status", "completed", "failed")} == {
        "status": "running", "completed": 1, "failed": 0,
    }  # fmt: skip
    rows = [row_of(task) for task in tasks]
    assert [row.status for row in rows] == ["completed", "pending", "pending", "pending"]
    assert [row.phase for row in rows[1:]] == ["ocr", "postprocess", "ocr"]
    assert [row.rank - rows[1].rank for row in rows[1:]] == [0, 1, 2]
    assert all(runstate.read(row.pk).generation == row.generation for row in rows[1:])  # type: ignore[union-attr]
    now = DailyUsage.objects.get(user=alice)
    assert (now.documents - spent.documents, now.bytes - spent.bytes) == (3, 0)
    complete(rows[1])
    batch.refresh_from_db()
    assert (batch.status, batch.completions) == ("running", 1)
    end_completed(begin(rows[2], Stage.POSTPROCESS))
    complete(rows[3])
    assert counts(api, batch) == ("completed", 4, 0, 0, 0)
    batch.refresh_from_db()
    assert batch.completions == 2


def test_retrying_one_document_reopens_the_batch(api: APIClient) -> None:
    """B36."""
    batch, tasks = make_batch(api)
    for task in tasks:
        fail(task)
    task = actions.retry(task=row_of(tasks[0]), from_stage=Stage.OCR)
    assert counts(api, batch)[:3] == ("running", 0, 1)
    complete(task)
    assert counts(api, batch)[:3] == ("completed_with_errors", 1, 1)


def test_concurrent_retries_of_a_batch_run_each_document_once(api: APIClient, alice: User) -> None:
    """B36."""
    batch, tasks = make_batch(api, 3)
    for task in tasks:
        fail(task)
    clients = [client_of(alice) for _ in range(3)]
    answers = in_threads(3, lambda n: clients[n].post(f"{BATCHES}/{batch.pk}/retry", {}).status_code)
    assert sorted(answers) == [202, 409, 409]
    assert {row_of(task).generation - task.generation for task in tasks} == {1}


def test_a_retry_over_the_quota_changes_nothing(api: APIClient, settings: LazySettings) -> None:
    """B36."""
    batch, tasks = make_batch(api, 3)
    for task in tasks:
        fail(task)
    change_settings(settings, etl_daily_documents=5)
    response = api.post(f"{BATCHES}/{batch.pk}/retry", {})
    assert (response.status_code, response.json()["code"]) == (429, "quota_exceeded")
    assert "needs 3 documents, and 2 of today's 5" in response.json()["detail"]
    assert counts(api, batch)[:3] == ("completed_with_errors", 0, 3)


def test_a_retry_requires_a_failed_document(api: APIClient) -> None:
    batch, tasks = make_batch(api)
    complete(tasks[0])
    response = api.post(f"{BATCHES}/{batch.pk}/retry", {})
    assert (response.status_code, response.json()["code"]) == (409, "nothing_to_retry")
    assert batch_of(api, batch)["status"] == "running"


# ---- Cancellation ----------------------------------------------------------------------------------------------------
def test_a_batch_is_cancelled(api: APIClient) -> None:
    """B36: completed documents do not change, and workers do not process the others."""
    batch, tasks = make_batch(api, 3)
    complete(tasks[0])
    response = api.post(f"{BATCHES}/{batch.pk}/cancel", {})
    assert response.status_code == 200
    assert {name: response.json()[name] for name in ("status", "completed", "cancelled")} == {
        "status": "cancelled", "completed": 1, "cancelled": 2,
    }  # fmt: skip
    assert [execution.run(Stage.OCR, task_id=task.pk) for task in tasks[1:]] == [False, False]
    batch.refresh_from_db()
    assert batch.completions == 1
    again = api.post(f"{BATCHES}/{batch.pk}/cancel", {})
    assert (again.status_code, again.json()["code"]) == (409, "not_cancellable")


def test_running_documents_of_a_cancelled_batch_continue_without_force(api: APIClient) -> None:
    """B36."""
    batch, tasks = make_batch(api, 3)
    state = begin(tasks[0])
    assert api.post(f"{BATCHES}/{batch.pk}/cancel", {}).json()["status"] == "running"
    response = api.post(f"{BATCHES}/{batch.pk}/cancel", {})
    assert (response.status_code, response.json()["code"]) == (409, "not_cancellable")
    assert "Being processed: 1 document." in response.json()["detail"]
    response = api.post(f"{BATCHES}/{batch.pk}/cancel", {"force": True})
    assert (response.json()["status"], response.json()["cancelled"]) == ("cancelled", 3)
    assert runstate.renew(state) != runstate.Verdict.MOVED


def test_a_second_cancellation_does_not_undo_the_first(
    api: APIClient, configure_stages: ConfigureStages, settings: LazySettings
) -> None:
    """B36: the second one finds nothing to cancel, or Redis is unavailable."""
    batch, tasks = make_batch(api, 2)
    begin(tasks[0])
    assert batch_actions.cancel(batch) == 1
    with pytest.raises(batch_actions.NothingToCancel):
        batch_actions.cancel(batch)
    own = settings.SLUICE.etl_redis_url
    configure_stages(etl_redis_url=SecretStr("redis://127.0.0.1:1/0"))
    with pytest.raises(actions.RunStateUnavailable):
        batch_actions.cancel(batch)
    configure_stages(etl_redis_url=own)
    actions.cancel(task=row_of(tasks[0]), is_forced=True)
    assert counts(api, batch) == ("cancelled", 0, 0, 2, 0)


def test_a_cancellation_without_effect_is_not_recorded(api: APIClient) -> None:
    """B36: if a document is cancelled later, the batch is not shown as cancelled."""
    batch, tasks = make_batch(api, 1)
    begin(tasks[0])
    with pytest.raises(batch_actions.NothingToCancel):
        batch_actions.cancel(batch)
    actions.cancel(task=row_of(tasks[0]), is_forced=True)
    assert counts(api, batch) == ("completed_with_errors", 0, 0, 1, 0)


def test_a_full_queue_is_described_in_the_singular_too(api: APIClient, settings: LazySettings) -> None:
    change_settings(settings, etl_queue_size=1)
    refused = send(api, *texts("a.txt", "b.txt"))
    assert refused.json()["detail"] == "The document queue has room for 1 more document, and this needs 2."
    assert send(api, *texts("a.txt")).status_code == 202
    full = send(api, *texts("b.txt"))
    assert full.json()["detail"] == "The document queue is full, with 1 document of at most 1. Try again later."


@pytest.mark.slow
def test_many_file_keys_are_refused_in_linear_time(api: APIClient) -> None:
    """B36"""
    keys = [f"{number:x}" for number in range(40_000)]
    began = time.process_time()
    (error,) = api.post(BATCHES, {"file_keys": keys}).json()["errors"]
    assert (error["pointer"], error["code"]) == ("/file_keys", "too_many_documents")
    assert time.process_time() - began < 10


def test_a_forced_cancellation_without_effect_does_not_suggest_force(api: APIClient) -> None:
    """B36: the documents have ended in Redis, but their ends are not recorded yet."""
    batch, tasks = make_batch(api, 1)
    runstate.cancel_many([row_of(task) for task in tasks], is_forced=True, transition_id=runstate.new_id())
    response = api.post(f"{BATCHES}/{batch.pk}/cancel", {"force": True})
    assert (response.status_code, response.json()["detail"]) == (409, "No document of this batch can be cancelled.")


@pytest.mark.slow
def test_concurrent_cancellations_without_effect_are_not_recorded(api: APIClient) -> None:
    """B36: a double click, while all documents are being processed."""
    for _ in range(10):
        batch, tasks = make_batch(api, 1)
        begin(tasks[0])

        def cancel(_number: int, batch: DocumentBatch = batch) -> None:
            with pytest.raises(batch_actions.NothingToCancel):
                batch_actions.cancel(batch)

        in_threads(2, cancel)
        batch.refresh_from_db()
        assert batch.cancelled_at is None


def test_a_cancellation_is_recorded_beside_one_without_effect(api: APIClient, monkeypatch: pytest.MonkeyPatch) -> None:
    """B36: the call without effect begins first. When it ends, it must not reset the time of the other call."""
    batch, tasks = make_batch(api, 2)
    begin(tasks[0])
    cancel_some = batch_actions.cancel_some

    def after_an_effective_one(*args: Any, **options: Any) -> Any:
        monkeypatch.undo()
        assert batch_actions.cancel(batch) == 1
        return cancel_some(*args, **options)

    monkeypatch.setattr(batch_actions, "cancel_some", after_an_effective_one)
    with pytest.raises(batch_actions.NothingToCancel):
        batch_actions.cancel(batch)
    actions.cancel(task=row_of(tasks[0]), is_forced=True)
    assert counts(api, batch) == ("cancelled", 0, 0, 2, 0)


def test_duplicates_in_a_batch_refer_to_the_earlier_document(api: APIClient) -> None:
    """B39: the earlier document can be in an earlier batch."""
    files = [SimpleUploadedFile(f"{number}.txt", b"The same.") for number in range(3)]
    assert send(api, *files[:1], *texts("other.txt")).status_code == 202
    [before] = Task.objects.filter(filename="0.txt")
    for file in files:
        file.seek(0)
    assert send(api, *files, *texts("more.txt")).status_code == 202
    *repeated, other = Task.objects.filter(pk__gt=before.pk).exclude(filename="other.txt").order_by("pk")
    assert [task.duplicate_of for task in repeated] == [before.pk, *(task.pk for task in repeated[:2])]
    assert other.duplicate_of is None


def test_cancelling_a_document_does_not_cancel_the_batch(api: APIClient) -> None:
    batch, tasks = make_batch(api)
    actions.cancel(task=row_of(tasks[0]))
    complete(tasks[1])
    assert counts(api, batch) == ("completed_with_errors", 1, 0, 1, 0)


def test_recovery_records_a_cancellation(api: APIClient, monkeypatch: pytest.MonkeyPatch) -> None:
    """B36: the process was killed after the change in Redis."""
    batch, _ = make_batch(api)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(completion, "record_many", lambda _states: None)
        batch_actions.cancel(batch)
    assert batch_of(api, batch)["status"] == "running"
    recovery.recover_all()
    assert counts(api, batch) == ("cancelled", 0, 0, 2, 0)


def test_a_batch_is_cancelled_while_its_documents_end(api: APIClient) -> None:
    """B36: there is no deadlock."""
    batch, tasks = make_batch(api, 12)
    states = [end_in_redis(task) for task in tasks[:4]]
    barrier = threading.Barrier(2)

    def end_some() -> None:
        try:
            barrier.wait()
            for state in states:
                completion.write(state, {"metadata": {}})
        finally:
            connection.close()

    with ThreadPoolExecutor(1) as pool:
        ended = pool.submit(end_some)
        barrier.wait()
        assert batch_actions.cancel(batch) == 8
        ended.result()
    assert counts(api, batch) == ("cancelled", 4, 0, 8, 0)
    batch.refresh_from_db()
    assert batch.completions == 1


# ---- Deletion -------------------------------------------------------------------------------------------------------
def test_a_batch_counts_its_deleted_documents_and_is_deleted_with_the_last(api: APIClient, alice: User) -> None:
    """B36."""
    batch, tasks = make_batch(api)
    complete(tasks[0])
    fail(tasks[1])
    assert api.delete(f"/api/v1/etl/tasks/{tasks[1].pk}").status_code == 204
    assert counts(api, batch) == ("completed_with_errors", 1, 0, 0, 1)
    assert api.delete(f"/api/v1/etl/tasks/{tasks[0].pk}").status_code == 204
    assert api.get(f"{BATCHES}/{batch.pk}").status_code == 404
    assert not DocumentBatch.objects.exists()


def test_concurrent_deletions_of_all_documents_delete_the_batch(api: APIClient, alice: User) -> None:
    """B36: no empty batch remains."""
    _, tasks = make_batch(api, 4)
    for task in tasks:
        complete(task)
    clients = [client_of(alice) for _ in tasks]
    answers = in_threads(4, lambda n: clients[n].delete(f"/api/v1/etl/tasks/{tasks[n].pk}").status_code)
    assert answers == [204] * 4
    assert not DocumentBatch.objects.exists()


def test_deleting_the_last_open_document_ends_the_batch(api: APIClient) -> None:
    """B36: the document is cancelled first, which ends the batch."""
    batch, tasks = make_batch(api)
    complete(tasks[0])
    assert api.delete(f"/api/v1/etl/tasks/{tasks[1].pk}").status_code == 204
    assert counts(api, batch) == ("completed_with_errors", 1, 0, 0, 1)


# ---- Lists and other users ------------------------------------------------------------------------------------------
def test_batches_are_listed_in_pages_and_tasks_by_their_batch(api: APIClient) -> None:
    """B36."""
    made = [make_batch(api, number)[0].pk for number in (1, 2, 3)]
    page = api.get(f"{BATCHES}?limit=2").json()
    assert [row["batch_id"] for row in page["results"]] == made[:0:-1]
    assert "refused" not in page["results"][0]
    assert [row["batch_id"] for row in api.get(page["next"]).json()["results"]] == made[:1]
    tasks = api.get(f"/api/v1/etl/tasks?batch_id={made[1]}").json()["results"]
    assert [task["batch_id"] for task in tasks] == [made[1]] * 2
    assert api.get(f"/api/v1/etl/tasks/{tasks[0]['task_id']}").json()["batch_id"] == made[1]
    assert api.get(f"/api/v1/etl/tasks?batch_id={made[1]}&status=failed").json()["results"] == []
    for bad in ("0", "x", "", "-1"):
        response = api.get(f"/api/v1/etl/tasks?batch_id={bad}")
        assert response.json()["errors"][0]["pointer"] == "/batch_id"


def test_the_counts_are_read_in_one_statement(api: APIClient, django_assert_num_queries: Any) -> None:
    """B36: so all counts are of the same snapshot."""
    make_batch(api)
    with django_assert_num_queries(1):
        list(DocumentBatch.objects.with_counts())


def test_batches_of_other_users_are_not_found(api: APIClient, bob: User) -> None:
    """B36."""
    batch, _ = make_batch(api)
    other, path = client_of(bob), f"{BATCHES}/{batch.pk}"
    assert other.get(BATCHES).json()["results"] == []
    for response in (
        other.get(path), other.post(f"{path}/retry", {}), other.post(f"{path}/cancel", {}),
        other.get(f"{path}/results?format=csv"),
    ):  # fmt: skip
        assert (response.status_code, response.json()["detail"]) == (404, "Batch not found.")


# ---- Results --------------------------------------------------------------------------------------------------------
DATA: list[Any] = [
    {
        "number": "=1+1", "total": Number("118.50"), "paid": True, "lines": [{"item": "Lamp", "price": Number("3.10")}],
        "task_id": "own", "note": "", "mixed": "a",
    },
    {
        "number": 'A "quoted", one', "total": 7, "paid": None, "mixed": 5,
        "lines": [
            {"item": "Desk\nlamp", "price": Number("1e2")}, {"item": None, "price": Number("0.125"), "new": True},
        ],
    },
]  # fmt: skip


@pytest.fixture
def results(api: APIClient, alice: User) -> Callable[[str], Any]:
    """Return a function that requests the results of a batch with two completed, a failed, and an open document."""
    rule = make_rule(alice, mode="llm")
    batch, tasks = make_batch(api, 4, rule_id=rule.pk)
    for task, data in zip(tasks, DATA, strict=False):
        end_completed(begin_after_ocr(task), {"metadata": {}, "data": data})
    fail(tasks[2])

    def get(query: str) -> Any:
        return api.get(f"{BATCHES}/{batch.pk}/results?{query}")

    get.ids = [task.pk for task in tasks]  # type: ignore[attr-defined]
    return get


def body(response: Any) -> bytes:
    assert response.status_code == 200, response.content
    content = b"".join(response.streaming_content)
    response.close()
    assert response["Content-Length"] == str(len(content))
    return content


def test_json_lines_keep_every_digit_of_the_model(results: Any) -> None:
    """B36."""
    response = results("format=jsonl")
    lines = body(response).decode().splitlines()
    first, second, third, fourth = results.ids
    assert response["Content-Type"] == "application/x-ndjson"
    assert "attachment" in response["Content-Disposition"]
    assert lines[0] == (
        f'{{"task_id":{first},"filename":"0.txt","status":"completed","error":null,"data":{{"number":"=1+1",'
        '"total":118.50,"paid":true,"lines":[{"item":"Lamp","price":3.10}],"task_id":"own","note":"","mixed":"a"}}'
    )
    assert f'"task_id":{second}' in lines[1]
    assert lines[2:] == [
        f'{{"task_id":{third},"filename":"2.txt","status":"failed","error":"file_encrypted","data":null}}',
        f'{{"task_id":{fourth},"filename":"3.txt","status":"pending","error":null,"data":null}}',
    ]


def test_csv_results_have_a_column_for_each_field(results: Any) -> None:
    """B36."""
    first, second, third, fourth = results.ids
    assert body(results("format=csv")).decode() == (
        "task_id,filename,status,error,number,total,paid,lines,data.task_id,note,mixed\n"
        f'{first},0.txt,completed,,=1+1,118.50,true,"[{{""item"":""Lamp"",""price"":3.10}}]",own,"",a\n'
        f'{second},1.txt,completed,,"A ""quoted"", one",7,,'
        '"[{""item"":""Desk\\nlamp"",""price"":1e2},{""item"":null,""price"":0.125,""new"":true}]",,,5\n'
        f"{third},2.txt,failed,file_encrypted,,,,,,,\n{fourth},3.txt,pending,,,,,,,,\n"
    )


def test_rows_can_be_the_items_of_an_array(results: Any) -> None:
    """B36."""
    first, second, *_ = results.ids
    assert body(results("format=csv&rows=/lines")).decode() == (
        "task_id,filename,row,item,price,new\n"
        f'{first},0.txt,1,Lamp,3.10,\n{second},1.txt,1,"Desk\nlamp",1e2,\n{second},1.txt,2,,0.125,true\n'
    )
    lines = body(results("format=jsonl&rows=/lines/0/price")).decode()
    assert lines == ""
    assert body(results("format=jsonl&rows=/lines")).decode().splitlines()[2] == (
        f'{{"task_id":{second},"filename":"1.txt","row":2,"data":{{"item":null,"price":0.125,"new":true}}}}'
    )


def test_formulas_are_escaped_on_request(results: Any) -> None:
    """B36: only texts are escaped, not numbers."""
    text = body(results("format=csv&formula_policy=escape&bom=true"))
    assert text.startswith(b"\xef\xbb\xbftask_id,")
    assert b",'=1+1,118.50," in text


def test_parquet_results_have_exact_decimals(results: Any) -> None:
    """B36."""
    parquet = pytest.importorskip("pyarrow.parquet")
    table = parquet.read_table(io.BytesIO(body(results("format=parquet"))))
    types = {field.name: str(field.type) for field in table.schema}
    assert types == {
        "task_id": "int64", "filename": "string", "status": "string", "error": "string", "number": "string",
        "total": "decimal128(5, 2)", "paid": "bool", "lines": "string", "data.task_id": "string", "note": "string",
        "mixed": "string",
    }  # fmt: skip
    rows = table.to_pylist()
    assert [row["total"] for row in rows] == [Decimal("118.50"), Decimal("7.00"), None, None]
    assert [row["mixed"] for row in rows] == ["a", "5", None, None]
    assert rows[0]["lines"] == '[{"item":"Lamp","price":3.10}]'
    items = parquet.read_table(io.BytesIO(body(results("format=parquet&rows=/lines"))))
    assert str(items.schema.field("price").type) == "decimal128(6, 3)"
    assert items.column("price").to_pylist() == [Decimal("3.100"), Decimal("100.000"), Decimal("0.125")]


def test_numbers_too_large_for_parquet_are_text(api: APIClient, alice: User) -> None:
    """B36: the text has all digits."""
    parquet = pytest.importorskip("pyarrow.parquet")
    batch, tasks = make_batch(api, 2, rule_id=make_rule(alice, mode="llm").pk)
    rows = [{"a": Number("1e40"), "b": Number("9223372036854775808"), "c": 1}, {"a": 1, "b": 2, "c": 2**40}]
    for task, data in zip(tasks, rows, strict=True):
        end_completed(begin_after_ocr(task), {"metadata": {}, "data": data})
    content = body(api.get(f"{BATCHES}/{batch.pk}/results?format=parquet"))
    table = parquet.read_table(io.BytesIO(content))
    assert [str(table.schema.field(name).type) for name in "abc"] == ["string", "decimal128(19, 0)", "int64"]
    assert table.column("a").to_pylist() == ["1e40", "1"]
    assert table.column("b").to_pylist() == [Decimal(9223372036854775808), Decimal(2)]


@pytest.mark.parametrize(
    ("query", "pointer"),
    [("format=xlsx", "/format"), ("format=csv&rows=items", "/rows"),
     ("format=csv&formula_policy=x", "/formula_policy"), ("format=csv&bom=1", "/bom")],
)  # fmt: skip
def test_bad_parameters_of_results_are_reported(results: Any, query: str, pointer: str) -> None:
    response = results(query)
    assert response.status_code == 400
    assert [error["pointer"] for error in response.json()["errors"]] == [pointer]


def test_an_empty_table_has_its_header(api: APIClient) -> None:
    """The rule only returns the text, so its results have no data."""
    batch, tasks = make_batch(api, 1)
    complete(tasks[0])
    assert body(api.get(f"{BATCHES}/{batch.pk}/results?format=csv")).decode() == (
        f"task_id,filename,status,error\n{tasks[0].pk},0.txt,completed,\n"
    )


def test_a_process_builds_at_most_two_files_at_a_time(results: Any) -> None:
    from etl.api.batch_results import building

    with building, building:
        response = results("format=csv")
    assert (response.status_code, response.json()["code"]) == (503, "too_many_downloads")
    assert body(results("format=csv"))


def test_an_asynchronous_server_sends_a_file_in_blocks(tmp_path: Path) -> None:
    """Django would read all blocks of a synchronous iterator before it sends the first one."""
    from wsgiref.util import FileWrapper

    from django.http import StreamingHttpResponse

    from etl.api.markdown import ThreadedBlocks

    file = (tmp_path / "x").open("wb+")
    response = StreamingHttpResponse(ThreadedBlocks(FileWrapper(file)))
    assert response.is_async
    response.close()
    assert file.closed


def test_a_table_of_too_many_fields_is_refused(api: APIClient, alice: User, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("etl.pipeline.result_files.MAX_COLUMNS", 2)
    batch, tasks = make_batch(api, 1, rule_id=make_rule(alice, mode="llm").pk)
    end_completed(begin_after_ocr(tasks[0]), {"metadata": {}, "data": {"a": 1, "b": 2, "c": 3}})
    response = api.get(f"{BATCHES}/{batch.pk}/results?format=csv")
    assert (response.status_code, response.json()["code"]) == (409, "too_many_columns")
    assert body(api.get(f"{BATCHES}/{batch.pk}/results?format=jsonl"))


def test_a_cancellation_with_a_late_reply_is_recorded(api: APIClient, monkeypatch: pytest.MonkeyPatch) -> None:
    """B36: Redis has cancelled the documents, but replies too late."""
    batch, _ = make_batch(api, 2)
    cancel_many, calls = runstate.cancel_many, []

    def late(*args: Any, **options: Any) -> Any:
        calls.append(args)
        found = cancel_many(*args, **options)
        if len(calls) == 1:
            raise runstate.Unavailable("TimeoutError")
        return found

    monkeypatch.setattr(runstate, "cancel_many", late)
    assert batch_actions.cancel(batch) == 2
    assert counts(api, batch) == ("cancelled", 0, 0, 2, 0)
