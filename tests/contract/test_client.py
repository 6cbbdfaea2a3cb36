"""A client generated from the OpenAPI document, against real processes. C4."""

import hashlib
import importlib
import io
import subprocess
import sys
from collections.abc import Iterator
from datetime import date
from http import HTTPStatus
from pathlib import Path
from types import ModuleType
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from django.contrib.auth.models import User

from config.dev.stack.processes import Web
from config.settings import BASE_DIR
from exports.models import Dataset
from tests.contract.test_document import operations as every
from tests.e2e.conftest import Workers
from tests.waiting import wait_until

pytestmark = pytest.mark.slow

PACKAGE = "generated_sluice"
TEXT = b"Invoice 2026-0042\n\nTotal: 118.50\n"


@pytest.fixture(scope="session")
def generated(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The generated package, in a folder on the import path."""
    folder = tmp_path_factory.mktemp("client")
    options = folder / "options.yaml"
    options.write_text("post_hooks: []\n")  # skip the formatting of the code
    ran = subprocess.run(
        [
            Path(sys.executable).with_name("openapi-python-client"), "generate", "--meta", "none",
            "--path", BASE_DIR / "docs" / "openapi.yaml", "--output-path", folder / PACKAGE, "--config", options,
            "--fail-on-warning",
        ],
        capture_output=True, text=True, check=False, timeout=150,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "warning" not in (ran.stdout + ran.stderr).lower()
    sys.path.insert(0, str(folder))
    yield folder / PACKAGE
    sys.path.remove(str(folder))
    for name in [name for name in sys.modules if name.partition(".")[0] == PACKAGE]:
        del sys.modules[name]


class Sluice:
    """The generated client, signed in; `call("exports.get_export", …)` returns the parsed response of an operation."""

    def __init__(self, web: Web, token: str) -> None:
        make: Any = part("client").AuthenticatedClient
        self.client = make(
            base_url=web.url, token=token, raise_on_unexpected_status=True, timeout=30, follow_redirects=True
        )

    def call(self, operation: str, *arguments: Any, **named: Any) -> Any:
        return self.detailed(operation, *arguments, **named).parsed

    def detailed(self, operation: str, *arguments: Any, **named: Any) -> Any:
        return part(f"api.{operation}").sync_detailed(*arguments, client=self.client, **named)


def part(name: str) -> ModuleType:
    return importlib.import_module(f"{PACKAGE}.{name}")


@pytest.fixture
def models(generated: Path) -> Any:
    return part("models")


@pytest.fixture
def sluice(generated: Path, web: Web, token: str) -> Iterator[Sluice]:
    signed_in = Sluice(web, token)
    with signed_in.client:
        yield signed_in


def test_the_whole_client_is_generated_and_importable(generated: Path) -> None:
    """The generator omits constructs that it does not support, so check that all operations and types exist."""
    names = [path.relative_to(generated).with_suffix("") for path in generated.rglob("*.py")]
    for name in names:
        importlib.import_module(".".join([PACKAGE, *name.parts]).removesuffix(".__init__"))
    operations = [name for name in names if name.parts[0] == "api" and name.name != "__init__"]
    assert len(operations) == len(every())
    assert {name.parts[1] for name in operations} == {
        "exports", "downloads", "schedules", "webhooks", "documents", "rules", "tokens", "operations",
    }  # fmt: skip
    sources = {path.stem: path.read_text() for path in (generated / "api").rglob("*.py")}
    assert not [name for name, source in sources.items() if "body: Any" in source]
    bodiless = {name for name, source in sources.items() if "cast(Any, None)" in source}
    assert bodiless == {
        "download", "delete_webhook", "delete_schedule", "delete_rule", "watch_export", "watch_task", "get_markdown",
        "get_layout", "delete_task", "get_result", "remove_approval", "delete_sample", "revoke_token",
        "get_file", "get_page_image",
    }  # fmt: skip


def test_it_runs_an_export(sluice: Sluice, models: Any, dataset: Dataset, workers: Workers) -> None:
    workers.start()
    item = models.ExportItem(key="JFK", effective_date=date(2024, 2, 29))
    body = models.ExportByItems(dataset="things", items=[item], delivery=models.RequestedDelivery.SINGLE)
    assert sluice.call("exports.preview_export", body=body).total_chunks == 1
    accepted = sluice.call("exports.create_export", body=body, idempotency_key="once")
    assert isinstance(accepted, models.Accepted)

    again = sluice.detailed("exports.create_export", body=body, idempotency_key="once")
    assert again.parsed == accepted
    assert again.headers["Idempotency-Replayed"] == "true"

    job: Any = None

    def has_ended() -> bool:
        nonlocal job
        job = sluice.call("exports.get_export", accepted.job_id)
        return job.status in (models.JobStatus.SUCCESS, models.JobStatus.FAILED)

    wait_until(has_ended, every=0.1)
    assert job.receipt.files == 1
    (secret,) = parse_qs(urlsplit(job.receipt.signed_url).query)["token"]
    file = sluice.call("downloads.download", accepted.job_id, token=secret)
    assert f"sha256:{hashlib.sha256(file.payload.read()).hexdigest()}" == job.receipt.checksum
    (chunk,) = sluice.call("exports.list_chunks", accepted.job_id).results
    assert (chunk.status, chunk.rows, chunk.effective_date) == (models.ChunkStatus.DONE, 3, date(2024, 2, 29))
    link = sluice.call("downloads.create_link", accepted.job_id)
    assert str(accepted.job_id) in link.signed_url
    page = sluice.call("exports.list_exports", status=part("models.list_exports_status").ListExportsStatus.SUCCESS)
    assert [each.job_id for each in page.results] == [accepted.job_id]


def test_it_processes_a_document(sluice: Sluice, models: Any, workers: Workers, alice: User) -> None:
    workers.start("etl-ocr,etl-postprocess", concurrency=1)
    file = part("types").File(payload=io.BytesIO(TEXT), file_name="invoice.txt", mime_type="text/plain")
    accepted = sluice.call("documents.submit_document", body=models.SubmitFileRequest(file=file))
    assert isinstance(accepted, models.AcceptedTask)
    task: Any = None

    def has_ended() -> bool:
        nonlocal task
        task = sluice.call("documents.get_task", accepted.task_id, wait=5)
        return task.status in (models.TaskStatus.COMPLETED, models.TaskStatus.FAILED)

    wait_until(has_ended)
    assert task.status == models.TaskStatus.COMPLETED
    assert task.result.markdown_s3_key == task.metadata.artifact_mineru_markdown_key
    assert "Total: 118.50" in sluice.call("documents.get_markdown", accepted.task_id)


def test_it_creates_and_deletes_a_webhook(sluice: Sluice, models: Any) -> None:
    event = models.WebhookEvent.EXPORT_SUCCEEDED
    hook = sluice.call(
        "webhooks.create_webhook", body=models.NewWebhookRequest(url="http://127.0.0.1:9/", events=[event])
    )
    assert hook.secret.startswith("whsec_")
    assert [each.id for each in sluice.call("webhooks.list_webhooks").results] == [hook.id]
    assert sluice.detailed("webhooks.delete_webhook", hook.id).status_code == HTTPStatus.NO_CONTENT


def test_errors_are_typed(sluice: Sluice, models: Any, dataset: Dataset) -> None:
    item = models.ExportItem(key="../etc", effective_date=date(2024, 2, 29))
    refused = sluice.call("exports.create_export", body=models.ExportByItems(dataset="things", items=[item]))
    assert isinstance(refused, models.Problem)
    assert (refused.status, refused.code) == (400, "invalid")
    assert [(error.pointer, error.code) for error in refused.errors] == [("/items/0/key", "invalid")]
    rule = models.RuleRequest(name="Mine", json_schema=None)
    assert [error.pointer for error in sluice.call("rules.create_rule", body=rule).errors] == ["/json_schema"]
    assert sluice.call("documents.get_task", 4711).code == "not_found"


def test_unauthenticated_calls_return_a_typed_error(generated: Path, web: Web) -> None:
    signed_out = Sluice(web, "slc_wrong")
    with signed_out.client:
        assert signed_out.call("exports.get_limits").code == "authentication_failed"
