"""`except Exception` handlers of exports and documents. Each logs and counts the exception, and other work
continues."""

import time
from dataclasses import replace
from typing import Any

import pytest
from django.conf import LazySettings
from django.contrib.auth.models import User
from structlog.testing import capture_logs

from config.platform.webhooks import request
from etl import runstate
from etl.core.states import Stage
from etl.maintenance import recovery
from etl.pipeline.stages.definition import STAGES
from etl.runstate import TransitionResult, Verdict
from exports.delivery import bundles
from exports.models import Chunk, Dataset, Slot
from exports.source.database import SourceSession
from exports.worker import batches, completion, leases
from exports.worker import execution as chunks
from exports.worker.slot import WorkerSlot
from tests.broker import valkey
from tests.conftest import change_settings
from tests.integration.etl_factories import make_task
from tests.integration.factories import make_job
from tests.integration.stage_runs import row_of, run, seen
from tests.unit.test_caught_errors import caught_errors, fail

pytestmark = pytest.mark.usefixtures("empty_bucket")


def errors(lines: list[Any], event: str) -> list[str]:
    """Return the exception classes in an event's log lines, or `active` if a line logs the current exception."""
    found = [line for line in lines if line["event"] == event]
    return [type(line["exc_info"]).__name__ if line["exc_info"] is not True else "active" for line in found]


def test_an_unexpected_error_ends_an_attempt_of_a_chunk(
    dataset: Dataset, alice: User, monkeypatch: pytest.MonkeyPatch, settings: LazySettings
) -> None:
    change_settings(settings, export_backoff_base_seconds=60.0)  # no retry in this drain, even if the machine stalls
    make_job(dataset, alice, 1)
    before = caught_errors("chunk")
    monkeypatch.setattr("exports.source.encoding.copy_statement", fail)
    with capture_logs() as lines:
        chunks.drain()

    assert (Chunk.objects.get().status, Chunk.objects.get().error_detail) == ("retrying", "unexpected error")
    assert errors(lines, "unexpected_error") == ["Unforeseen"]
    assert caught_errors("chunk") == before + 1


def test_an_unexpected_error_of_a_parallel_upload_ends_an_attempt(
    dataset: Dataset, alice: User, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is raised in another thread."""
    monkeypatch.setattr(batches, "BATCH_SECONDS", 60)
    make_job(dataset, alice, 24)
    claims = leases.claim_batch(backend="test", sizes={"things": 3})
    assert len(claims) == 3
    before = caught_errors("chunk")
    monkeypatch.setattr(chunks, "commit_or_adopt", fail)
    with capture_logs() as lines, SourceSession() as session, WorkerSlot(session, token=claims[0].token) as slot:
        chunks.run_batch(claims, slot, time.monotonic())

    found = Chunk.objects.filter(pk__in=[claim.chunk_id for claim in claims])
    assert set(found.values_list("status", "error_detail")) == {("retrying", "unexpected error")}
    assert errors(lines, "unexpected_error") == ["Unforeseen"] * 3
    assert caught_errors("chunk") == before + 3
    assert not Slot.objects.held().exists()


def test_an_unexpected_error_ends_an_attempt_of_a_completion(
    dataset: Dataset, alice: User, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = make_job(dataset, alice, 1)
    chunks.drain()
    before = caught_errors("completion")
    monkeypatch.setattr(bundles, "make", fail)
    with capture_logs() as lines:
        completion.complete(job.pk)

    job.refresh_from_db()
    assert (job.status, job.error_detail, job.completion_token) == ("running", "unexpected error", None)
    assert errors(lines, "unexpected_error") == ["Unforeseen"]
    assert caught_errors("completion") == before + 1


def test_an_unexpected_error_is_the_outcome_of_a_webhook_request(monkeypatch: pytest.MonkeyPatch) -> None:
    before = caught_errors("webhook")
    monkeypatch.setattr("config.platform.webhooks.url_guard.configured", fail)
    with capture_logs() as lines:
        response = request.post("https://shop.example", body=b"{}", headers={})

    assert (response.status, response.error) == (None, request.UNEXPECTED)
    assert errors(lines, "unexpected_error") == ["active"]
    assert caught_errors("webhook") == before + 1


@pytest.mark.usefixtures("configure_stages")
@pytest.mark.parametrize("step", ["run", "find"], ids=["during an attempt", "after the last attempt"])
def test_an_unexpected_error_ends_a_stage(alice: User, monkeypatch: pytest.MonkeyPatch, step: str) -> None:
    task = make_task(alice)
    for _ in range(3 if step == "find" else 0):
        runstate.start(task.pk, stage=Stage.OCR)
        valkey().hset(runstate.key_of(task.pk), "lease_until", 0)
    monkeypatch.setitem(STAGES, Stage.OCR, replace(STAGES[Stage.OCR], run=fail, find=fail))
    before = caught_errors("stage")
    with capture_logs() as lines:
        assert run(task, Stage.OCR) == [False]

    assert (row_of(task).status, seen(task).attempts["ocr"]) == (("pending", 1) if step == "run" else ("failed", 3))
    assert errors(lines, "unexpected_error") == ["Unforeseen"]
    assert caught_errors("stage") == before + 1


@pytest.mark.usefixtures("configure_stages")
def test_an_unexpected_error_does_not_stop_the_recovery_of_other_tasks(
    alice: User, monkeypatch: pytest.MonkeyPatch
) -> None:
    task = make_task(alice)
    before = caught_errors("recovery")
    monkeypatch.setattr(recovery, "is_old_enough", fail)
    recovery_pass = recovery.RecoveryPass()
    with capture_logs() as lines:
        recovery_pass.repair(task, TransitionResult(Verdict.GONE))
    recovery_pass.close()

    assert errors(lines, "task_not_recovered") == ["active"]
    assert caught_errors("recovery") == before + 1
