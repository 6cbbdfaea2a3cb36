"""Execution of stages in this process, with real servers: success, retries, fencing, and failures.

B2, B4, B8, B9, B13, B15, B18, B19.
"""

import json
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from django.conf import LazySettings
from django.contrib.auth.models import User
from django.db import connection
from pydantic import AnyHttpUrl, SecretStr

from config.platform import storage
from config.platform.heartbeat import LeaseLostEvent
from etl import runstate
from etl.core import metrics
from etl.core.errors import Fenced, UnexpectedError
from etl.core.stage_context import StageContext
from etl.core.states import Stage, Status
from etl.models import Task
from etl.pipeline import actions, artifacts, engines, execution
from etl.pipeline.run_context import build_context
from etl.pipeline.stages.definition import STAGES
from etl.runstate import RunState, script
from rules.models import Rule, RuleVersion
from tests import scripted_stages
from tests.broker import lose_messages, queued, valkey
from tests.integration.etl_factories import make_rule, make_task
from tests.integration.faulty_redis import Relay, relaying
from tests.integration.faulty_s3 import Proxy, answer_500
from tests.integration.stage_runs import ConfigureStages, row_of, run, run_beside, run_when_due, seen
from tests.samples import hostile
from tests.waiting import wait_until

pytestmark = pytest.mark.usefixtures("configure_stages")


def writer_of(task: Task) -> str:
    """Return the ID of the last transaction that wrote the row."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT xmin FROM etl_task WHERE task_id = %s", [task.pk])
        return str(cursor.fetchone()[0])


@contextmanager
def statements() -> Iterator[list[str]]:
    """Collect the first word of each statement that this thread executes."""
    words: list[str] = []

    def record(execute: Any, sql: str, *args: Any) -> Any:
        words.append(sql.split(maxsplit=1)[0])
        return execute(sql, *args)

    with connection.execute_wrapper(record):
        yield words


# ---- Both stages ----------------------------------------------------------------------------------------------------
def test_a_document_becomes_a_result(alice: User) -> None:
    """B2, B19: both stages store their artifacts, and the row has the outcome."""
    task = make_task(alice, "Hello, Grüße.\nwarn odd")
    assert run(task) == [True, True]

    row, state = row_of(task), seen(task)
    key = f"etl/tasks/{task.pk}/ocr-1/"
    assert (row.status, row.phase, row.progress, row.error) == ("completed", "postprocess", 100, None)
    assert row.result is not None
    assert row.result["markdown_s3_key"].startswith(key)
    assert b"".join(storage.read(row.result["markdown_s3_key"])).decode() == (
        "<!-- page: 1 -->\nHello, Grüße.\nwarn odd"
    )
    assert row.result["provider_task_id"] == "scripted-1"
    assert row.result["metadata"] == {
        "pages": 1,
        "duration_ms": 1,
        "version": "1",
        "provenance": {
            "rule_id": task.rule_id,
            "rule_version": 1,
            "mode": "skip",
            "provider": "scripted",
            "strategy": None,
            "model": None,
            "attempts": {"ocr": 1, "postprocess": 1},
            "usage": {"prompt_tokens": 0, "completion_tokens": 0, "calls": 0},
            "warnings": [{"code": "odd", "detail": "As scripted."}],
        },
    }
    assert row.metadata["artifact_mineru_markdown_key"] == row.result["markdown_s3_key"]
    assert row.metadata["attempts"] == {"ocr": 1, "postprocess": 1}
    assert row.metadata["ocr"] == {"pages": 1, "duration_ms": 1, "version": "1"}
    assert row.metadata["warnings"] == [{"code": "odd", "detail": "As scripted."}]
    assert set(row.result) == {"markdown_s3_key", "provider_task_id", "metadata"}
    shown = ("status", "phase", "progress", "result", "error", "metadata", "attempts", "created_at", "updated_at")
    of_row = RunState.of_row(row)
    assert {name: getattr(state, name) for name in shown} == {name: getattr(of_row, name) for name in shown}


@pytest.mark.slow
def test_the_boxes_of_the_pages_are_stored_beside_the_markdown(alice: User, configure_stages: ConfigureStages) -> None:
    """B30: the task runs both stages with the `local` provider."""
    configure_stages(etl_ocr_provider="local")
    content = hostile.page(hostile.stream(b"BT /F 12 Tf 72 700 Td (Net total 12.50) Tj ET"))
    try:
        task = make_task(alice, content.decode("ascii"), kind="pdf")
        assert run(task) == [True, True]
    finally:
        engines.provider().close()
    stored = artifacts.find_ocr(seen(task))
    assert stored is not None
    (page,) = json.loads(b"".join(storage.read(stored.facts["layout_key"])))["pages"]
    assert [block["text"] for block in page["blocks"]] == ["Net total 12.50"]
    assert row_of(task).status == "completed"


def test_a_model_response_is_stored_and_in_the_row(alice: User) -> None:
    """B15, B19."""
    task = make_task(alice, "Hello.\npost:spend 7", rule=make_rule(alice, mode="llm", name=str(alice.pk)))
    run(task)

    row = row_of(task)
    assert row.result
    assert row.result["data"] == {"characters": len("<!-- page: 1 -->\nHello.\npost:spend 7")}
    assert row.result["citations"] == []
    assert row.result["output_s3_key"] == f"{artifacts.folder(task)}result-1/output.json"
    stored = json.loads(b"".join(storage.read(row.result["output_s3_key"])))
    assert stored | {"output_s3_key": row.result["output_s3_key"]} == row.result
    usage = {"prompt_tokens": 7, "completion_tokens": 1, "calls": 1}
    assert stored["metadata"]["provenance"]["usage"] == usage
    assert row.metadata["postprocess"] == {
        "strategy": "scripted",
        "model": "none",
        "usage": usage,
        "earlier_usage": dict.fromkeys(usage, 0),
    }


def test_the_row_is_not_written_before_the_end(alice: User) -> None:
    """B4: the row is inserted once and updated once, at the end, with its event for webhooks."""
    task = make_task(
        alice, "page 1 2\nonce:raise ProviderUnavailable\npost:page 1 2", rule=make_rule(alice, mode="llm")
    )
    before = writer_of(task)
    run(task, Stage.OCR)
    run_when_due(task, Stage.OCR)
    assert seen(task).status == "llm_processing"
    assert writer_of(task) == before
    with statements() as words:
        run(task, Stage.POSTPROCESS)
    assert seen(task).status == "completed"
    assert writer_of(task) != before
    assert [word for word in words if word != "SELECT"] == ["UPDATE", "INSERT"]


def test_ocr_reads_one_row_and_writes_none(alice: User) -> None:
    """B4: this is the case if the document's digest was already known when it was submitted."""
    task = make_task(alice, sha256="0" * 64)
    with statements() as words:
        assert run(task, Stage.OCR) == [True]
    assert words == ["SELECT"]


def test_progress_is_shown_while_it_runs(alice: User) -> None:
    """B3, B4."""
    task = make_task(alice, "page 1 2\nuntil go")
    thread = run_beside(task, Stage.OCR)
    wait_until(lambda: seen(task).progress == 25)
    assert seen(task).status == "mineru_parsing"
    scripted_stages.allow("go")
    thread.join()
    assert (seen(task).status, seen(task).phase, seen(task).progress) == ("llm_processing", "postprocess", 50)


def test_transitions_are_counted_once(alice: User) -> None:
    """C6: several attempts of a stage count once."""

    def counted() -> dict[str, float]:
        return {status: metrics.TASKS.labels(status)._value.get() for status in Status.values}

    before = counted()
    task = make_task(alice, "once:raise ProviderUnavailable")
    run(task, Stage.OCR)
    run_when_due(task, Stage.OCR)
    run(task, Stage.POSTPROCESS)
    assert {status for status, count in counted().items() if count == before[status] + 1} == {
        "mineru_parsing",
        "llm_processing",
        "completed",
    }


@pytest.mark.parametrize(
    ("outcome", "text"),
    [("done", "Hello."), ("retried", "raise ProviderUnavailable"), ("failed", "raise FileCorrupt"),
     ("lost", "raise Fenced"), ("released", "exit")],
)  # fmt: skip
def test_every_outcome_of_a_run_is_counted(alice: User, outcome: str, text: str) -> None:
    """C6."""
    before = {each: metrics.STAGES.labels("ocr", each)._value.get() for each in metrics.OUTCOMES}
    with suppress(SystemExit):
        run(make_task(alice, text), Stage.OCR)
    after = {each: metrics.STAGES.labels("ocr", each)._value.get() for each in metrics.OUTCOMES}
    assert {each: after[each] - before[each] for each in metrics.OUTCOMES} == dict.fromkeys(metrics.OUTCOMES, 0) | {
        outcome: 1
    }


# ---- Repeats --------------------------------------------------------------------------------------------------------
def test_duplicate_messages_do_nothing(alice: User) -> None:
    """B2."""
    task = make_task(alice)
    assert run(task, Stage.POSTPROCESS, Stage.OCR, Stage.OCR, Stage.POSTPROCESS) == [False, True, True, True]
    before = row_of(task).updated_at
    assert run(task, Stage.OCR, Stage.POSTPROCESS, Stage.OCR) == [False, False, False]
    assert len(scripted_stages.calls(f"ocr-{task.pk}")) == 1
    assert row_of(task).updated_at == before
    assert seen(task).attempts == {"ocr": 1, "postprocess": 1}


def test_a_second_worker_does_not_take_a_held_stage(alice: User) -> None:
    task = make_task(alice, "until go")
    thread = run_beside(task, Stage.OCR)
    wait_until(lambda: seen(task).token)
    assert run(task, Stage.OCR, Stage.POSTPROCESS) == [False, False]
    scripted_stages.allow("go")
    thread.join()
    assert len(scripted_stages.calls(f"ocr-{task.pk}")) == 1


def test_artifacts_of_a_dead_worker_are_reused(alice: User) -> None:
    """B2: neither the provider nor the model is called again."""
    task = make_task(alice, rule=make_rule(alice, mode="llm", name="taken"))
    state = runstate.start(task.pk, stage=Stage.OCR).state
    assert state
    STAGES[Stage.OCR].run(state, build_context(state, LeaseLostEvent(9, since=time.monotonic()), (0, 50)))
    assert run_when_due(task, Stage.OCR)
    state = runstate.start(task.pk, stage=Stage.POSTPROCESS).state
    assert state
    context = build_context(state, LeaseLostEvent(9, since=time.monotonic()), (50, 100))
    STAGES[Stage.POSTPROCESS].run(state, context)
    assert run_when_due(task, Stage.POSTPROCESS)

    assert row_of(task).status == "completed"
    assert seen(task).attempts == {"ocr": 2, "postprocess": 2}
    assert (len(scripted_stages.calls(f"ocr-{task.pk}")), len(scripted_stages.calls("post-taken"))) == (1, 1)


def test_the_first_of_two_finishes_counts(alice: User) -> None:
    """B2: the artifact is written once, and the second worker uses it."""
    task = make_task(alice)
    ours = {"markdown_key": "a", "facts": {"metadata": {}}, "warnings": [], "attempts": 1}
    theirs = {**ours, "markdown_key": "b"}
    key = artifacts.ocr_key(task)
    assert artifacts.commit(key, theirs, check=lambda: None) == theirs
    assert artifacts.commit(key, ours, check=lambda: None) == theirs
    assert artifacts.find(key) == theirs


def test_a_fenced_worker_writes_nothing(alice: User) -> None:
    """B2, B3: another worker took over while this worker was still running."""
    task = make_task(alice, "once:until go")
    thread = run_beside(task, Stage.OCR)
    wait_until(lambda: scripted_stages.calls(f"ocr-{task.pk}"))
    assert run_when_due(task, Stage.OCR)
    before = seen(task), artifacts.find(artifacts.ocr_key(task))
    scripted_stages.allow("go")
    thread.join()

    assert (seen(task), artifacts.find(artifacts.ocr_key(task))) == before
    assert seen(task).attempts["ocr"] == 2


# ---- Failures -------------------------------------------------------------------------------------------------------
def test_a_transient_failure_is_retried(alice: User) -> None:
    """B2, B9: the attempt is counted, the status does not change, and a delayed message is sent for the next one."""
    lose_messages()
    task = make_task(alice, "once:raise ProviderUnavailable")
    valkey().delete("etl-ocr")
    assert run(task, Stage.OCR) == [False]
    state = seen(task)
    assert (state.status, state.error, state.attempts["ocr"]) == ("mineru_parsing", None, 1)
    assert state.available_at > state.created_at.timestamp()
    assert queued("etl-ocr") == 1
    assert run_when_due(task, Stage.OCR)
    assert seen(task).attempts["ocr"] == 2


def test_the_last_attempt_ends_the_task(alice: User) -> None:
    """B9: the row has the stage and the error."""
    task = make_task(alice, "page 1 2\nraise ProviderUnavailable")
    for _ in range(4):
        run_when_due(task, Stage.OCR)

    row = row_of(task)
    assert (row.status, row.phase, row.progress, row.result) == ("failed", "ocr", 25, None)
    assert row.error == {
        "code": "provider_unavailable",
        "stage": "ocr",
        "detail": "The OCR provider is unreachable or overloaded.",
        "retryable": True,
    }
    assert row.metadata["attempts"] == {"ocr": 3, "postprocess": 0}
    assert row.metadata["artifact_mineru_markdown_key"] is None
    assert len(scripted_stages.calls(f"ocr-{task.pk}")) == 3


def test_a_bad_document_fails_at_once(alice: User) -> None:
    task = make_task(alice, "raise FileEncrypted")
    run(task)
    row = row_of(task)
    assert row.error is not None
    assert (row.status, row.error["code"], row.error["retryable"]) == ("failed", "file_encrypted", False)
    assert row.metadata["attempts"]["ocr"] == 1


def test_a_failed_post_processing_keeps_the_ocr_result(alice: User) -> None:
    """B8: the row has the key of the Markdown, the usage, and the attempts."""
    text = "post:spend 5\npost:warn odd\npost:raise LlmInvalidResponse"
    task = make_task(alice, text, rule=make_rule(alice, mode="llm"))
    run(task, Stage.OCR)
    for _ in range(3):
        run_when_due(task, Stage.POSTPROCESS)

    row = row_of(task)
    assert row.error is not None
    assert (row.status, row.error["code"], row.error["stage"]) == ("failed", "llm_invalid_response", "postprocess")
    assert storage.head(row.metadata["artifact_mineru_markdown_key"])
    assert row.metadata["attempts"] == {"ocr": 1, "postprocess": 3}
    assert row.metadata["postprocess"]["usage"] == {"prompt_tokens": 15, "completion_tokens": 3, "calls": 3}
    assert row.metadata["warnings"] == [{"code": "odd", "detail": "As scripted."}]


def test_an_incomplete_document_fails_if_the_rule_requires_complete_ones(alice: User) -> None:
    """B32: it fails before a model is called. Its Markdown is kept, and can be used with another rule."""
    rule = make_rule(alice, mode="llm", name="strict")
    for model in (Rule, RuleVersion):
        model.objects.filter(name="strict").update(require_complete=True)
    task = make_task(alice, "warn low_confidence\npost:spend 5", rule=rule)
    run(task)
    row = row_of(task)
    assert (row.status, row.phase) == ("failed", "postprocess")
    assert row.error is not None
    assert (row.error["code"], row.error["retryable"]) == ("incomplete_document", False)
    assert "Not read reliably: " in row.error["detail"]
    assert scripted_stages.calls("post-strict") == []
    assert seen(task).markdown_key

    other = make_task(alice, "warn odd\npost:spend 5", rule=rule)
    run(other)
    assert row_of(other).status == "completed"


def test_empty_text_is_a_failure(alice: User) -> None:
    """B18."""
    task = make_task(alice, "nothing")
    run(task)
    error = row_of(task).error
    assert error is not None
    assert error["code"] == "empty_document"


@pytest.mark.parametrize(
    ("text", "stage", "code"),
    [("wait 9", Stage.OCR, "ocr_timeout"), ("post:wait 9", Stage.POSTPROCESS, "timeout")],
)
def test_a_stage_that_takes_too_long_is_stopped(
    alice: User, configure_stages: ConfigureStages, text: str, stage: Stage, code: str
) -> None:
    """B9: exceeding ETL_TASK_TIMEOUT counts as a transient failure."""
    configure_stages(etl_ocr_max_attempts=2, etl_postprocess_max_attempts=2)
    task = make_task(alice, text, rule=make_rule(alice, mode="llm"))
    if stage == Stage.POSTPROCESS:
        run(task, Stage.OCR)
    configure_stages(etl_task_timeout=0.3)
    run_when_due(task, stage)
    assert seen(task).status in {"mineru_parsing", "llm_processing"}
    run_when_due(task, stage)
    error = row_of(task).error
    assert error is not None
    assert (error["code"], error["stage"], error["retryable"]) == (code, stage, True)


def test_unexpected_errors_have_a_generic_text(alice: User) -> None:
    """B9: the error's text may contain content of the document, so it is not shown."""
    task = make_task(alice, "raise Unexpected")
    for _ in range(3):
        run_when_due(task, Stage.OCR)
    error = row_of(task).error
    assert error is not None
    assert error["code"] == "ocr_failed"
    assert "secret" not in json.dumps(error)


def test_a_task_that_kills_its_workers_fails(alice: User) -> None:
    """B9, B12: such a document is not retried forever."""
    task = make_task(alice)
    for _ in range(3):
        runstate.start(task.pk, stage=Stage.OCR)
        valkey().hset(runstate.key_of(task.pk), "lease_until", 0)
    assert run(task, Stage.OCR) == [False]
    error = row_of(task).error
    assert error is not None
    assert (error["code"], error["detail"]) == (
        "ocr_failed",
        "Workers crashed or stalled at every attempt on this stage.",
    )
    assert not scripted_stages.calls(f"ocr-{task.pk}")


def crash_after_storing(task: Task, stage: Stage) -> None:
    """Simulate that a worker crashes in the last attempt, after it stores the artifact and before it records the
    outcome."""
    valkey().hset(runstate.key_of(task.pk), f"attempts_{stage}", 2)
    state = runstate.start(task.pk, stage=stage).state
    assert state
    definition = STAGES[stage]
    definition.run(state, build_context(state, LeaseLostEvent(9, since=time.monotonic()), definition.span))


def test_artifacts_of_a_killed_last_attempt_count(alice: User) -> None:
    """B2, B9: finished work is not discarded, and no paid call is repeated."""
    task = make_task(alice, "warn odd\npost:spend 5", rule=make_rule(alice, mode="llm", name="last"))
    for stage in Stage:
        crash_after_storing(task, stage)
        assert run_when_due(task, stage)
    row = row_of(task)
    assert row.status == "completed"
    assert row.result
    assert row.result["metadata"]["provenance"]["usage"]["prompt_tokens"] == 5
    assert row.metadata["attempts"] == {"ocr": 3, "postprocess": 3}
    assert (len(scripted_stages.calls(f"ocr-{task.pk}")), len(scripted_stages.calls("post-last"))) == (1, 1)


@pytest.mark.parametrize("stage", Stage)
def test_a_storage_outage_postpones_the_end_of_a_killed_last_attempt(
    alice: User, configure_stages: ConfigureStages, settings: LazySettings, stage: Stage
) -> None:
    """B9, B10: the task does not fail while it is unknown whether an artifact exists."""
    endpoint = settings.SLUICE.s3_endpoint_url
    task = make_task(alice, rule=make_rule(alice, mode="llm"))
    if stage == Stage.POSTPROCESS:
        run(task, Stage.OCR)
    crash_after_storing(task, stage)
    configure_stages(s3_endpoint_url=AnyHttpUrl("http://127.0.0.1:1"))
    assert not run_when_due(task, stage)
    state = seen(task)
    assert (state.status in {"completed", "failed"}, state.token, state.available_at > 0) == (False, "", True)
    configure_stages(s3_endpoint_url=endpoint)
    assert run_when_due(task, stage)


def test_a_task_with_a_lost_run_state_warns_of_incomplete_usage(alice: User) -> None:
    """B17: tasks that call a model have the warning, with either outcome. A retry starts without it."""
    good, bad, broken = (
        make_task(alice, text, rule=make_rule(alice, mode="llm", name=name))
        for name, text in (("good", "Hello."), ("bad", "post:once:raise LlmRefused"), ("broken", "Hello."))
    )
    plain = make_task(alice)
    for task in (good, bad, broken, plain):
        run(task, Stage.OCR)
        Task.objects.filter(pk=task.pk).update(generation=2)
        valkey().hset(runstate.key_of(task.pk), "fence", 2)
    for task in (good, bad, plain):
        run(task, Stage.POSTPROCESS)
    valkey().hset(runstate.key_of(broken.pk), "attempts_postprocess", 3)
    run(broken, Stage.POSTPROCESS)

    def warned(task: Task) -> list[str]:
        return [warning["code"] for warning in row_of(task).metadata["warnings"]]

    assert [row_of(task).status for task in (good, bad, broken, plain)] == [
        "completed",
        "failed",
        "failed",
        "completed",
    ]
    assert [warned(task) for task in (good, bad, broken, plain)] == [["usage_incomplete"]] * 3 + [[]]
    result = row_of(good).result
    assert result
    assert result["metadata"]["provenance"]["warnings"] == row_of(good).metadata["warnings"]
    actions.retry(task=row_of(bad), from_stage=Stage.POSTPROCESS)
    run(bad, Stage.POSTPROCESS)
    assert (row_of(bad).status, row_of(bad).run, warned(bad)) == ("completed", 3, [])


def test_graceful_shutdown_hands_the_stage_to_another_worker(alice: User) -> None:
    """B2: this happens immediately, and no attempt is counted."""
    task = make_task(alice, "once:exit")
    valkey().delete("etl-ocr")
    before = metrics.STAGES.labels("ocr", "released")._value.get()
    with pytest.raises(SystemExit):
        run(task, Stage.OCR)
    assert metrics.STAGES.labels("ocr", "released")._value.get() == before + 1
    assert (seen(task).token, seen(task).attempts["ocr"]) == ("", 0)
    assert queued("etl-ocr") == 1
    assert run(task) == [True, True]
    assert row_of(task).metadata["attempts"]["ocr"] == 1


def test_a_stage_taken_by_another_worker_is_not_logged_as_released(
    alice: User, caplog: pytest.LogCaptureFixture
) -> None:
    task = make_task(alice)
    states = []
    for _ in range(2):
        states.append(runstate.start(task.pk, stage=Stage.OCR).state)
        valkey().hset(runstate.key_of(task.pk), "lease_until", 0)
    for state, lines in zip(states, (0, 1), strict=True):
        assert state
        execution.StageRun(state, since=time.monotonic()).release()
        assert len([line for line in caplog.messages if "stage_released" in line]) == lines


@pytest.mark.parametrize(
    ("retry_after", "delays"),
    [(None, [(0.1, 0.2), (0.1, 0.2)]), ("0.15", [(0.15, 0.15)] * 2), ("9999", [(0.2, 0.2)] * 2)],
)
def test_backoff_has_jitter_and_respects_retry_after(
    alice: User, retry_after: str | None, delays: list[tuple[float, float]]
) -> None:
    """B2: the delay has jitter. `Retry-After` is followed up to the maximum delay."""
    task = make_task(alice, f"raise ProviderUnavailable {retry_after or ''}")
    for least, most in delays:
        valkey().hset(runstate.key_of(task.pk), "available_at", 0)
        run(task, Stage.OCR)
        pause = seen(task).available_at - seen(task).updated_at.timestamp()
        assert least - 0.01 <= pause <= most + 0.01


def test_backoff_doubles_up_to_its_maximum(configure_stages: ConfigureStages) -> None:
    configure_stages(etl_retry_backoff_base_seconds=2.0, etl_retry_backoff_max_seconds=10.0)
    error = UnexpectedError()
    for attempt, longest in ((1, 2), (2, 4), (3, 8), (4, 10), (5000, 10)):
        pauses = [execution.delay_after(attempt, error) for _ in range(50)]
        assert longest / 2 <= min(pauses) < max(pauses) <= longest


# ---- Provider jobs --------------------------------------------------------------------------------------------------
def test_the_provider_s_job_is_resumed(alice: User) -> None:
    """B2, B14: the document is not submitted to the provider twice."""
    task = make_task(alice, "once:remember job-7\nonce:raise ProviderUnavailable")
    run(task, Stage.OCR)
    assert seen(task).provider_task_id == "job-7"
    run_when_due(task, Stage.OCR)
    assert len(scripted_stages.calls(f"resumed-{task.pk}-job-7")) == 1
    assert seen(task).metadata["provider_task_id"] == "job-7"


def test_no_copy_of_the_document_remains(alice: User, tmp_path: Path) -> None:
    """B12: old folders of killed workers are also deleted."""
    lost, young = tmp_path / "sluice-document-lost", tmp_path / "sluice-document-young"
    for folder in (lost, young):
        folder.mkdir()
        (folder / "1.txt").write_text("left")
    os.utime(lost, (0, 0))
    run(make_task(alice), Stage.OCR)
    run(make_task(alice, "raise FileCorrupt"), Stage.OCR)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["scripted_stages", "sluice-document-young"]


def test_a_missing_or_larger_document_fails(alice: User) -> None:
    gone = make_task(alice)
    storage.delete(gone.document_key)
    run(gone, Stage.OCR)
    grown = make_task(alice, "Hello.", size=3)
    run(grown, Stage.OCR)
    codes = [(row_of(task).error or {})["code"] for task in (gone, grown)]
    assert codes == ["artifact_missing", "file_too_large"]


def test_a_missing_ocr_result_is_reported(alice: User) -> None:
    for key_of in (artifacts.ocr_key, markdown_key):
        task = make_task(alice)
        run(task, Stage.OCR)
        storage.delete(key_of(task))
        run(task, Stage.POSTPROCESS)
        error = row_of(task).error
        assert error is not None
        assert (error["code"], error["stage"]) == ("artifact_missing", "postprocess")


def markdown_key(task: Task) -> str:
    return seen(task).markdown_key


# ---- Unavailable servers --------------------------------------------------------------------------------------------
def test_a_storage_failure_is_transient(alice: User, proxy: Proxy) -> None:
    task = make_task(alice)
    proxy.inject("GET", "documents", answer_500, times=2)
    assert run(task, Stage.OCR) == [False]
    assert (seen(task).status, seen(task).attempts["ocr"]) == ("mineru_parsing", 0)
    assert run_when_due(task, Stage.OCR)


@pytest.mark.slow
@pytest.mark.parametrize("stage", Stage)
def test_a_storage_that_refuses_writes_pauses_a_stage(alice: User, proxy: Proxy, stage: Stage) -> None:
    """A40: only writes are refused. Meanwhile, the provider is not called again, and the attempts do not count."""
    task = make_task(alice)
    if stage == Stage.POSTPROCESS:
        run(task, Stage.OCR)
    proxy.inject("PUT", "", answer_500, times=1000)
    assert run(task, stage) == [False]
    for _ in range(5):
        assert not run_when_due(task, stage)
    state = seen(task)
    assert (state.has_ended, state.attempts[stage]) == (False, 0)
    assert state.refused_at > 0
    assert len(scripted_stages.calls(f"ocr-{task.pk}")) == 1

    proxy.faults.clear()
    assert run_when_due(task, stage)
    assert (seen(task).attempts[stage], seen(task).refused_at) == (1, 0 if stage == Stage.OCR else state.refused_at)


def test_a_refused_stage_fails_after_the_storage_patience(
    alice: User, proxy: Proxy, configure_stages: ConfigureStages
) -> None:
    """A40."""
    configure_stages(export_storage_patience_seconds=0)
    task = make_task(alice)
    proxy.inject("PUT", "", answer_500, times=1000)
    run(task, Stage.OCR)
    for _ in range(2):
        run_when_due(task, Stage.OCR)
    assert (seen(task).status, seen(task).attempts["ocr"]) == ("failed", 3)


def refused_for(task: Task, seconds: float) -> None:
    """Set the time of the storage's first refusal to this many seconds ago, by the clock of Redis."""
    now, micros = valkey().time()
    valkey().hset(runstate.key_of(task.pk), "refused_at", now + micros / 1e6 - seconds)


@pytest.mark.parametrize("ahead", [7200, -7200])
def test_patience_with_the_storage_follows_the_clock_of_redis(
    alice: User, proxy: Proxy, monkeypatch: pytest.MonkeyPatch, ahead: int
) -> None:
    """A40: the clocks of workers may be wrong."""
    task = make_task(alice)
    proxy.inject("PUT", "", answer_500, times=1000)
    run(task, Stage.OCR)
    clock = time.time
    monkeypatch.setattr(time, "time", lambda: clock() + ahead)
    run_when_due(task, Stage.OCR)
    assert (seen(task).has_ended, seen(task).attempts["ocr"]) == (False, 0)

    refused_for(task, 3601)
    for _ in range(3):
        run_when_due(task, Stage.OCR)
    assert (seen(task).status, seen(task).attempts["ocr"]) == ("failed", 3)


def test_the_pause_of_a_refused_stage_grows(alice: User, proxy: Proxy, configure_stages: ConfigureStages) -> None:
    """A40: otherwise, a storage that refuses only the output of OCR would cause an OCR run every two seconds for an
    hour."""
    configure_stages(etl_retry_backoff_base_seconds=2, etl_retry_backoff_max_seconds=60)
    task = make_task(alice)
    proxy.inject("PUT", "etl/tasks", answer_500, times=1000)
    run(task, Stage.OCR)
    for seconds, at_least, at_most in ((0, 1, 4), (100, 25, 28), (1000, 60, 60)):
        refused_for(task, seconds)
        run_when_due(task, Stage.OCR)
        pause = seen(task).available_at - seen(task).updated_at.timestamp()
        assert at_least - 0.01 <= pause <= at_most + 0.01


def test_another_error_resets_the_time_of_the_first_refusal(alice: User, proxy: Proxy) -> None:
    """A40: otherwise, attempts would count too early after the next refusal."""
    task = make_task(alice, "once:raise ProviderUnavailable")
    proxy.inject("PUT", "", answer_500, times=2)
    storage.suspect()
    run(task, Stage.OCR)
    assert seen(task).refused_at > 0
    proxy.faults.clear()
    run_when_due(task, Stage.OCR)
    assert (seen(task).attempts["ocr"], seen(task).refused_at) == (1, 0)


def test_a_storage_outage_gives_no_attempt_to_a_stage_without_attempts_left(alice: User, proxy: Proxy) -> None:
    """B9: otherwise, a document that kills its workers would be read again after each outage."""
    task = make_task(alice)
    for _ in range(3):
        runstate.start(task.pk, stage=Stage.OCR, generation=task.generation)
        valkey().hset(runstate.key_of(task.pk), "lease_until", 0)
    proxy.inject("GET", "", answer_500, times=1000)
    run_when_due(task, Stage.OCR)
    assert (seen(task).has_ended, seen(task).attempts["ocr"]) == (False, 3)

    proxy.faults.clear()
    run_when_due(task, Stage.OCR)
    assert seen(task).status == "failed"
    assert not scripted_stages.calls(f"ocr-{task.pk}")


def test_an_outcome_that_was_not_recorded_in_the_row_is_final(alice: User, monkeypatch: pytest.MonkeyPatch) -> None:
    """B4: the database is unavailable when the task ends. Recovery records the end (see test_etl_recovery)."""
    task = make_task(alice)
    run(task, Stage.OCR)

    def unavailable(execute: Any, sql: str, *args: Any) -> Any:
        if sql.startswith("UPDATE"):
            from django.db import OperationalError

            raise OperationalError
        return execute(sql, *args)

    with connection.execute_wrapper(unavailable):
        run(task, Stage.POSTPROCESS)
    assert seen(task).status == "completed"
    assert row_of(task).status == "pending"


@pytest.mark.slow
def test_without_redis_no_stage_starts(alice: User, configure_stages: ConfigureStages, silent_redis: str) -> None:
    task = make_task(alice)
    configure_stages(etl_redis_url=SecretStr(silent_redis))
    assert run(task, Stage.OCR) == [False]
    assert not scripted_stages.calls(f"ocr-{task.pk}")


@pytest.mark.slow
def test_work_stops_after_a_redis_outage_longer_than_the_lease(
    alice: User, configure_stages: ConfigureStages, settings: LazySettings, silent_redis: str
) -> None:
    """B2: after its lease has expired, another worker may hold the stage."""
    url = settings.SLUICE.etl_redis_url
    configure_stages(etl_lease_seconds=3)
    task = make_task(alice, "until never")
    done: list[bool] = []
    thread = run_beside(task, Stage.OCR, done)
    wait_until(lambda: scripted_stages.calls(f"ocr-{task.pk}"))
    configure_stages(etl_redis_url=SecretStr(silent_redis))
    thread.join(timeout=60)
    configure_stages(etl_redis_url=url)

    assert done == [False]
    assert seen(task).token  # the worker did not release it: recovery finds the expired lease


def test_an_expired_lease_is_lost_before_any_check() -> None:
    """B2: a suspended process may continue after its lease has expired, and before its heartbeat runs."""
    since = time.monotonic()
    context = StageContext(seconds=60, lease_lost=LeaseLostEvent(3, since=since))
    context.check()
    with pytest.raises(Fenced):
        StageContext(seconds=60, lease_lost=LeaseLostEvent(3, since=since - 3)).check()
    context.lease_lost.set()
    with pytest.raises(Fenced):
        context.check()


@pytest.mark.slow
def test_an_outcome_is_written_after_a_short_redis_outage(
    alice: User, configure_stages: ConfigureStages, settings: LazySettings, silent_redis: str
) -> None:
    url = settings.SLUICE.etl_redis_url
    task = make_task(alice, "until go")
    thread = run_beside(task, Stage.OCR)
    wait_until(lambda: scripted_stages.calls(f"ocr-{task.pk}"))
    configure_stages(etl_redis_url=SecretStr(silent_redis))
    scripted_stages.allow("go")
    wait_until(lambda: artifacts.find(artifacts.ocr_key(task)))
    configure_stages(etl_redis_url=url)
    thread.join()
    assert seen(task).phase == "postprocess"


@pytest.fixture
def relay(
    settings: LazySettings, configure_stages: ConfigureStages, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Relay]:
    """A proxy in front of Redis. Its clients wait for a reply for longer than the machine may stall."""
    monkeypatch.setattr(script, "READ_SECONDS", 4.0)
    monkeypatch.setattr(execution, "BEGIN_SECONDS", 10.0)  # so that a start is repeated after a late reply
    with relaying(settings.SLUICE.run_state_url) as relay:
        configure_stages(etl_redis_url=SecretStr(relay.url))
        yield relay


def lost_runs() -> float:
    return sum(float(metrics.STAGES.labels(stage, "lost")._value.get()) for stage in Stage.values)


@pytest.mark.slow
def test_a_start_with_a_late_reply_does_not_count_as_an_attempt(alice: User, relay: Relay) -> None:
    """B2, B9: Redis has applied the transition, and the worker sends the same transition again."""
    task = make_task(alice)
    for stage in Stage:
        relay.drop_replies('"take"')
        assert run(task, stage) == [True]
    assert relay.dropped == 2
    assert row_of(task).metadata["attempts"] == {"ocr": 1, "postprocess": 1}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("text", "stage", "status"),
    [
        ("Hello.", Stage.OCR, "llm_processing"),
        ("raise FileCorrupt", Stage.OCR, "failed"),
        ("raise ProviderUnavailable", Stage.OCR, "mineru_parsing"),
        ("Hello.", Stage.POSTPROCESS, "completed"),
    ],
)
def test_an_outcome_with_a_late_reply_counts(alice: User, relay: Relay, text: str, stage: Stage, status: str) -> None:
    """B2: even if a heartbeat fails in the meantime, because the outcome has ended the lease. The run is not counted as
    lost.
    """
    assert execution.RENEW_SECONDS < script.READ_SECONDS  # the heartbeat runs while the reply is pending
    task = make_task(alice, text)
    if stage == Stage.POSTPROCESS:
        run(task, Stage.OCR)
    before = lost_runs()
    relay.drop_replies('"drop": true')
    run(task, stage)
    assert (relay.dropped, lost_runs()) == (1, before)
    assert (seen(task).status, seen(task).attempts[stage]) == (status, 1)
    assert row_of(task).status == (status if status in {"completed", "failed"} else "pending")


# ---- Unstorable text ------------------------------------------------------------------------------------------------
def test_text_that_postgres_cannot_store_does_not_prevent_completion(db: None) -> None:
    """B19: documents and models can produce NUL, unpaired surrogates, and NaN."""
    odd = {"a\x00": ["\ud800x", float("nan"), 1.5, None, True, {"b": ("\udfff",)}], "n": 10**30}
    clean = artifacts.clean(odd)
    assert clean == {"a�": ["�x", None, 1.5, None, True, {"b": ["�"]}], "n": 10**30}
    with connection.cursor() as cursor:
        cursor.execute("SELECT %s::jsonb", [artifacts.dumped(odd).decode()])


def test_an_early_message_is_delivered_again(alice: User, monkeypatch: pytest.MonkeyPatch) -> None:
    """The clocks of hosts differ, and recovery would take a whole interval."""
    monkeypatch.setattr(execution, "CLOCK_SKEW_SECONDS", 300)  # large, because this test may take seconds
    task = make_task(alice)
    valkey().delete("etl-ocr")
    for early, again in ((200, 1), (600, 0)):
        valkey().hset(runstate.key_of(task.pk), "available_at", time.time() + early)
        run(task, Stage.OCR)
        assert queued("etl-ocr") == again
        valkey().delete("etl-ocr")


def test_a_late_reply_to_the_digest_does_not_end_the_attempt(alice: User, monkeypatch: pytest.MonkeyPatch) -> None:
    """B9: the digest is also in the commit of OCR."""
    task = make_task(alice)

    def late(*_args: Any, **_options: Any) -> None:
        raise runstate.Unavailable("TimeoutError")

    monkeypatch.setattr(runstate, "record_digest", late)
    assert run(task, Stage.OCR) == [True]
    assert (seen(task).attempts["ocr"], len(seen(task).sha256)) == (1, 64)
