"""The Python API of the client: `from sluice import Client`, and `AsyncClient` for asyncio. C3."""

import asyncio
import io
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from threading import Thread
from typing import TYPE_CHECKING, Any, assert_type

import pytest
from django.contrib.auth.models import User

from config.platform.webhooks.models import Webhook
from etl.models import Task
from exports.models import Dataset, Job
from tests.client.conftest import SOURCE
from tests.client.fault_proxy import FaultProxy, cut_after
from tests.client.test_downloads import fill
from tests.integration.etl_factories import make_rule, make_task
from tests.integration.etl_progress import MARKDOWN, complete, fail
from tests.integration.factories import end_chunk, fail_chunk, finish, make_job
from tests.integration.faulty_s3 import lose_reply
from tests.integration.reviewed import make_invoice
from tests.waiting import wait_until

if TYPE_CHECKING:
    from sluice import Client, models

BYTES = b"0123456789" * 100_000


@pytest.fixture
def client(api_proxy: FaultProxy, storage_proxy: FaultProxy, token: str) -> "Iterator[Client]":
    from sluice import Client

    with Client(api_proxy.url, token) as signed_in:
        yield signed_in


def test_an_export_is_created_once_and_downloaded(
    dataset: Dataset, client: "Client", api_proxy: FaultProxy, storage_proxy: FaultProxy, tmp_path: Path
) -> None:
    """C3: after a lost response, the request is repeated with its idempotency key. A broken download resumes."""
    api_proxy.inject("POST", "/exports", lose_reply)
    accepted = client.exports.create("things", items=[("JFK", "2024-02-29")], delivery="single")
    assert_type(accepted, "models.AcceptedExport")
    finish(Job.objects.get(pk=accepted.id))
    fill(Job.objects.get(), BYTES)
    export = client.exports.wait(accepted)
    assert_type(export, "models.Export")
    assert (export.status, export.progress.done, export.progress.rows) == ("success", 1, 3)

    storage_proxy.inject("GET", "", cut_after(400_000))
    progress: list[tuple[int, int]] = []
    path = client.exports.download(export, f"{tmp_path}/new/", progress=lambda *seen: progress.append(seen))
    assert (path, path.read_bytes()) == (tmp_path / "new" / "all.csv", BYTES)
    assert (progress[0], progress[-1]) == ((0, len(BYTES)), (len(BYTES), len(BYTES)))
    assert storage_proxy.requests_to("GET", "")[-1].headers["range"] == "bytes=400000-"
    stream = io.BytesIO()
    client.exports.download_to(client.exports.get(export), stream)
    assert stream.getvalue() == BYTES
    assert [each.id for each in client.exports.list(dataset="things")] == [accepted.id]
    assert "signedUrl" not in repr(export)
    assert str(export.receipt and export.receipt.signed_url) not in repr(export)


@pytest.mark.slow
def test_waiting_reports_progress_and_raises_an_error_for_a_failed_export(
    dataset: Dataset, alice: User, client: "Client", api_proxy: FaultProxy
) -> None:
    from sluice import ExportFailed, NoFile, TimedOut

    job = make_job(dataset, alice, 2)
    with pytest.raises(TimedOut):
        client.exports.wait(job.pk, timeout=0.5)
    seen: list[models.Export] = []
    chunks: list[models.Chunk] = []
    raised: list[ExportFailed] = []

    def wait() -> None:
        with pytest.raises(ExportFailed) as failed:
            client.exports.wait(job.pk, progress=seen.append, on_chunk=chunks.append)
        raised.append(failed.value)

    waiting = Thread(target=wait)
    waiting.start()
    wait_until(api_proxy.streams)
    end_chunk()
    fail_chunk()
    waiting.join()
    export = raised[0].export
    assert (seen[0].status, export.status, export.progress.failed) == ("pending", "failed", 1)
    assert [(str(chunk.effective_date), chunk.status) for chunk in chunks][-1] == ("2024-02-29", "failed")
    assert export.error
    assert export.error.code in str(raised[0])
    (chunk,) = client.exports.chunks(export, status="failed")
    assert chunk.error
    assert chunk.error.code == "EXPORT_SOURCE_ERROR"
    with pytest.raises(NoFile):
        client.exports.download(export)


@pytest.mark.slow
def test_asyncio_tasks_can_share_a_client(
    dataset: Dataset, alice: User, client: "Client", api_proxy: FaultProxy, tmp_path: Path
) -> None:
    """C3: two tasks of one event loop wait and download at the same time."""
    from sluice import AsyncClient

    jobs = [make_job(dataset, alice, 1, key=key) for key in ("JFK", "LGA")]
    paths: list[Path] = []

    async def one(client: AsyncClient, job: Job) -> Path:
        export = await client.exports.wait(job.pk)
        assert_type(export, "models.Export")
        return await client.exports.download(export, tmp_path)

    async def both() -> None:
        async with AsyncClient(client.account.url, client.account.token) as shared:
            paths.extend(await asyncio.gather(*(one(shared, job) for job in jobs)))
            assert len([each async for each in shared.exports.list()]) == 2

    waiting = Thread(target=asyncio.run, args=(both(),))
    waiting.start()
    wait_until(lambda: api_proxy.streams() == 2)
    for job in jobs:
        finish(job)
    waiting.join()
    assert [path.read_text().splitlines()[0] for path in paths] == ["k,n,d"] * 2


def test_a_document_is_submitted_and_its_result_read(alice: User, client: "Client", tmp_path: Path) -> None:
    """C3: the upload is sent to the service or directly to object storage, and the rule is selected by name."""
    from sluice import DocumentFailed, RuleNotFound

    rule = make_rule(alice, name="Totals")
    document = tmp_path / "note.txt"
    document.write_text("Hello.")
    for direct in (False, True):
        accepted = client.documents.submit(document, rule="totals", direct=direct)
        task = Task.objects.get(pk=accepted.id)
        assert (task.rule_id, task.filename, task.size) == (rule.pk, "note.txt", 6)
    complete(done := make_task(alice))
    found = client.documents.wait(done.pk)
    assert_type(found, "models.Task")
    assert (found.status, found.result == client.get(f"/api/v1/etl/tasks/{done.pk}")["result"]) == ("completed", True)
    assert client.documents.markdown(found) == MARKDOWN
    fail(failed := make_task(alice))
    with pytest.raises(DocumentFailed, match="file_encrypted"):
        client.documents.wait(failed.pk)
    assert {each.id for each in client.documents.list(status="failed")} == {failed.pk}
    with pytest.raises(RuleNotFound):
        client.documents.submit(document, rule="other")


def test_a_result_is_corrected_and_approved(alice: User, client: "Client") -> None:
    """C3, B37: numbers keep their digits."""
    from sluice.exact_json import Number

    task = make_invoice(alice)
    data = client.documents.correct(task.pk, {"total": Number("12.340"), "kind": None})["data"]
    assert (data["total"].literal, "kind" in data, data["number"]) == ("12.340", False, "INV-17")
    approved = client.documents.approve(task.pk)
    assert_type(approved, "models.Task")
    assert (approved.approved_by, approved.corrected) == ("alice", True)
    client.documents.remove_approval(approved)
    assert client.documents.get(task.pk).approved_by is None


def test_a_rule_has_samples_and_evaluations(alice: User, client: "Client", tmp_path: Path) -> None:
    """C3, B38."""
    task = make_invoice(alice)
    document = tmp_path / "note.txt"
    document.write_text("Hello.")
    expected = {"number": "INV-17", "total": 12.5}
    old, new = (client.samples.add("invoices", each, expected) for each in (task.pk, document))
    assert_type(old, "models.Sample")
    assert (old.task_id, old.expected, new.filename) == (task.pk, expected, "note.txt")
    client.samples.delete(task.rule_id, new)
    assert [each.id for each in client.samples.list("invoices")] == [old.id]
    evaluation = client.evaluations.create("invoices", version=1)
    assert_type(evaluation, "models.Evaluation")
    assert (evaluation.number, evaluation.version, evaluation.samples) == (1, 1, 1)
    client.evaluations.cancel("invoices", evaluation)
    ended = client.evaluations.wait("invoices", evaluation, timeout=60)
    assert ended.status == "cancelled"
    assert list(client.evaluations.list("invoices")) == [ended]


def test_tokens_are_created_and_revoked(alice: User, client: "Client", api_proxy: FaultProxy) -> None:
    """C3, C9."""
    from sluice import Client, Problem

    token = client.tokens.create("Reader", scopes=["exports:read"], expires_in_days=3)
    assert_type(token, "models.Token")
    assert (token.name, token.scopes, str(token.token) in repr(token)) == ("Reader", ["exports:read"], False)
    assert token.id in [each.id for each in client.tokens.list()]
    with Client(api_proxy.url, token.token) as reader:
        assert list(reader.exports.list()) == []
        client.tokens.delete(token)
        with pytest.raises(Problem, match="unknown, expired or revoked"):
            list(reader.exports.list())


def test_schedules_webhooks_and_rules_are_managed(dataset: Dataset, alice: User, client: "Client") -> None:
    schedule = client.schedules.create("Daily", "0 6 * * *", {"dataset": "things", "keys": ["JFK"]})
    assert client.schedules.update(schedule, enabled=False).enabled is False
    run = client.schedules.run(schedule)
    assert str(Job.objects.get(pk=run.id).schedule_id) == schedule.id
    client.schedules.delete(schedule)
    assert list(client.schedules.list()) == []
    hook = client.webhooks.create("http://127.0.0.1:9/hook", ["export.succeeded"])
    assert (hook.secret or "").startswith("whsec_")
    assert "whsec_" not in repr(hook)
    client.webhooks.delete(hook)
    assert not Webhook.objects.exists()
    rule = client.rules.create("Mine", postprocess_mode="skip")
    assert client.rules.update(rule, description="Text only.").version == 2
    client.rules.delete("mine")


def test_errors_have_codes_and_pointers(dataset: Dataset, client: "Client", token: str) -> None:
    from sluice import Client, InvalidUrl, NotSignedIn, Problem, SluiceError

    with pytest.raises(Problem) as problem:
        client.exports.create("things", items=[("JFK", "2024-02-29"), ("../etc", "2024-02-29")])
    (wrong,) = problem.value.errors
    assert (problem.value.status, problem.value.code, wrong.pointer) == (400, "invalid", "/items/1/key")
    assert "/items/1/key: " in str(problem.value)
    assert not Job.objects.exists()
    for url, given, error in (
        ("http://sluice.example", token, InvalidUrl),
        ("sluice.example", token, InvalidUrl),
        ("https://sluice.example", "two words", NotSignedIn),
    ):
        with pytest.raises(error) as refused:
            Client(url, given)
        assert isinstance(refused.value, SluiceError)
        assert given not in str(refused.value)


def test_unknown_fields_are_kept_and_missing_fields_raise_an_error() -> None:
    from sluice import InvalidResponse
    from sluice.models import Preview

    document: dict[str, Any] = {"totalChunks": 2, "duplicates": 0, "reusable": 1, "quotaCost": 1, "later": True}
    preview = Preview.of(document)
    assert (preview.quota_cost, preview.raw["later"]) == (1, True)
    with pytest.raises(InvalidResponse):
        Preview.of({"totalChunks": 2})


def test_the_python_api_does_not_load_the_command_line() -> None:
    code = "import sys, sluice; print({'rich', 'typer'} & set(sys.modules))"
    ran = subprocess.run([sys.executable, "-c", code], env={"PYTHONPATH": str(SOURCE)}, capture_output=True, check=True)
    assert ran.stdout == b"set()\n"
