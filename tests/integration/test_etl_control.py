"""Cancellation and retry of tasks. B6, B7, B8, B25, B33."""

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, suppress
from functools import partial
from typing import Any
from uuid import uuid4

import pytest
from django.conf import LazySettings
from django.contrib.auth.models import User
from django.db import connection, transaction
from pydantic import AnyHttpUrl, SecretStr

from config.platform import storage
from config.platform.http import problems
from etl import runstate
from etl.api import lookup
from etl.core.states import Stage
from etl.maintenance import recovery
from etl.models import Task
from etl.pipeline import actions, artifacts, execution, queue_limit
from etl.pipeline.response_cache import StoredResponseCache
from rules.library import catalog, editing
from tests import scripted_stages
from tests.broker import queued, valkey
from tests.integration.etl_factories import make_row, make_rule, make_task
from tests.integration.locks import waits_for_a_lock
from tests.integration.stage_runs import ConfigureStages, age, row_of, run, run_beside, run_when_due, seen
from tests.integration.test_leases import in_threads
from tests.waiting import wait_until

pytestmark = pytest.mark.usefixtures("configure_stages")


# ---- Cancel ---------------------------------------------------------------------------------------------------------
def test_a_pending_task_is_cancelled(alice: User) -> None:
    """B6: it is cancelled in Redis and in the database, and no worker runs it."""
    task = make_task(alice)
    actions.cancel(task=row_of(task))

    assert (row_of(task).status, seen(task).status) == ("cancelled", "cancelled")
    assert run(task) == [False, False]
    assert not scripted_stages.calls(f"ocr-{task.pk}")
    with pytest.raises(actions.NotCancellable, match="ended: cancelled"):
        actions.cancel(task=row_of(task))


@pytest.mark.parametrize("text", ["raise ProviderUnavailable", "exit"])
def test_a_running_task_is_not_cancelled(alice: User, text: str) -> None:
    """B6: nor is it cancelled while it waits for its next attempt at OCR."""
    task = make_task(alice, text)
    with suppress(SystemExit):
        run(task, Stage.OCR)
    with pytest.raises(actions.NotCancellable, match="already started"):
        actions.cancel(task=row_of(task))
    assert row_of(task).status == "pending"


def test_a_task_that_waits_for_post_processing_is_cancelled_at_once(alice: User) -> None:
    """B6: it is cancelled in Redis and in the database. Its Markdown is kept, no worker runs the second stage, and it
    can be retried."""
    task = make_task(alice)
    run(task, Stage.OCR)
    actions.cancel(task=row_of(task))

    row = row_of(task)
    assert (row.status, row.phase, seen(task).status) == ("cancelled", "postprocess", "cancelled")
    assert row.metadata["artifact_mineru_markdown_key"] == seen(task).markdown_key != ""
    assert run(task, Stage.POSTPROCESS) == [False]
    again = actions.retry(task=row, from_stage=Stage.POSTPROCESS)
    assert run(again, Stage.POSTPROCESS) == [True]


@pytest.mark.parametrize("text", ["post:raise LlmUnavailable", "post:exit"])
def test_a_task_is_cancelled_while_it_waits_for_its_next_attempt_at_post_processing(alice: User, text: str) -> None:
    task = make_task(alice, text, rule=make_rule(alice, mode="llm"))
    with suppress(SystemExit):
        run(task)
    actions.cancel(task=row_of(task))
    assert row_of(task).status == "cancelled"


def test_a_task_is_not_cancelled_during_post_processing(alice: User) -> None:
    """B6: a worker holds its lease."""
    task = make_task(alice, "post:until go", rule=make_rule(alice, mode="llm", name=f"held-{uuid4()}"))
    run(task, Stage.OCR)
    done: list[bool] = []
    thread = run_beside(task, Stage.POSTPROCESS, done)
    wait_until(lambda: seen(task).token)
    with pytest.raises(actions.NotCancellable, match="already started"):
        actions.cancel(task=row_of(task))
    scripted_stages.allow("go")
    thread.join()
    assert done == [True]


@pytest.mark.parametrize("stage", list(Stage))
def test_a_running_task_can_be_cancelled_by_force(alice: User, stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    """B33: its worker stops at its next renewal, and writes no result."""
    monkeypatch.setattr(execution, "RENEW_SECONDS", 0.1)
    text = "until go" if stage == Stage.OCR else "post:until go"
    task = make_task(alice, text, rule=make_rule(alice, mode="llm", name=f"held-{uuid4()}"))
    if stage == Stage.POSTPROCESS:
        run(task, Stage.OCR)
    done: list[bool] = []
    thread = run_beside(task, stage, done)
    wait_until(lambda: seen(task).token)
    actions.cancel(task=row_of(task), is_forced=True)
    assert (row_of(task).status, row_of(task).phase, seen(task).status) == ("cancelled", stage, "cancelled")
    thread.join(9)  # a renewal after a third of the lease, 10 s, would be too late
    assert done == [False]
    assert row_of(task).status == "cancelled"
    assert run(task) == [False, False]
    with pytest.raises(actions.NotCancellable, match="ended: cancelled"):
        actions.cancel(task=row_of(task), is_forced=True)


@pytest.mark.slow
def test_a_forced_cancellation_and_an_end_have_one_winner(alice: User) -> None:
    """B33: in any order, the task ends once, and the row and Redis have the same status."""
    rule = make_rule(alice)
    with ThreadPoolExecutor(2) as pool:
        for _ in range(20):
            task = make_task(alice, rule=rule)
            run(task, Stage.OCR)
            barrier = threading.Barrier(2)
            cancel = pool.submit(race, barrier, partial(actions.cancel, task=row_of(task), is_forced=True))
            end = pool.submit(race, barrier, partial(execution.run, Stage.POSTPROCESS, task_id=task.pk))
            outcome = cancel.result(), end.result()
            assert outcome in ((None, False), ("refused", True))
            assert row_of(task).status == seen(task).status == ("completed" if outcome[1] else "cancelled")


def test_an_ended_task_is_not_cancelled(alice: User) -> None:
    task = make_task(alice)
    run(task)
    with pytest.raises(actions.NotCancellable, match="ended: completed"):
        actions.cancel(task=row_of(task))
    assert row_of(task).status == "completed"


def test_a_task_without_a_run_state_is_not_cancelled(alice: User) -> None:
    """B6: a worker may already have read the document."""
    task = make_task(alice)
    valkey().flushall()
    with pytest.raises(actions.NotCancellable, match="being recovered"):
        actions.cancel(task=row_of(task))
    recreate_by_recovery(task)
    with pytest.raises(actions.NotCancellable):
        actions.cancel(task=row_of(task))
    assert run(task) == [True, True]


def recreate_by_recovery(task: Task) -> None:
    age(task)
    recovery.recover_all()


def test_without_redis_nothing_is_cancelled(
    alice: User, configure_stages: ConfigureStages, settings: LazySettings
) -> None:
    task = make_task(alice)
    url = settings.SLUICE.etl_redis_url
    configure_stages(etl_redis_url=SecretStr("redis://127.0.0.1:1/0"))
    with pytest.raises(actions.RunStateUnavailable):
        actions.cancel(task=row_of(task))
    configure_stages(etl_redis_url=url)
    assert run(task) == [True, True]


def race(barrier: threading.Barrier, action: Callable[[], Any]) -> Any:
    barrier.wait()
    try:
        return action()
    except actions.NotCancellable:
        return "refused"
    finally:
        connection.close()


@pytest.mark.slow
def test_a_concurrent_cancel_and_start_have_one_winner(alice: User) -> None:
    """B6: if the task is cancelled, no provider reads the document. If the cancellation is refused, the task runs."""
    rule = make_rule(alice)
    with ThreadPoolExecutor(2) as pool:
        for _ in range(40):
            go = f"go-{uuid4()}"  # keeps the first stage running: after it, the task could be cancelled again
            task = make_task(alice, f"until {go}", rule=rule)
            barrier = threading.Barrier(2)
            cancel = pool.submit(race, barrier, partial(actions.cancel, task=task))
            start = pool.submit(race, barrier, partial(execution.run, Stage.OCR, task_id=task.pk))
            cancelled = cancel.result()
            scripted_stages.allow(go)
            outcome = cancelled, start.result()
            assert outcome in ((None, False), ("refused", True))
            assert len(scripted_stages.calls(f"ocr-{task.pk}")) == (outcome[0] == "refused")
            assert row_of(task).status == ("cancelled" if outcome[0] is None else "pending")


# ---- Retry from post-processing -------------------------------------------------------------------------------------
def test_a_retry_can_repeat_only_post_processing(alice: User) -> None:
    """B7, B8: the provider is not called. The previous result is cleared before the response is sent."""
    task = make_task(alice, "post:once:raise LlmRefused", rule=make_rule(alice, mode="llm", name="again"))
    run(task)
    failed = row_of(task)
    assert failed.status == "failed"
    valkey().delete("etl-ocr", "etl-postprocess")
    again = actions.retry(task=failed, from_stage=Stage.POSTPROCESS)

    row = row_of(task)
    assert (row.status, row.phase, row.error, row.result) == ("pending", "postprocess", None, None)
    state = seen(task)
    assert (state.status, state.phase, state.error, state.result) == ("pending", "postprocess", None, None)
    # A run's number is its generation.
    assert (state.generation, again.generation, state.run, state.ocr_run) == (2, 2, 2, 1)
    assert state.metadata["attempts"] == {"ocr": 1, "postprocess": 0}
    assert (queued("etl-ocr"), queued("etl-postprocess")) == (0, 1)
    assert state.job_id
    run(task, Stage.POSTPROCESS)
    done = row_of(task)
    assert (done.status, done.metadata["attempts"]) == ("completed", {"ocr": 1, "postprocess": 1})
    assert done.result
    assert done.result["output_s3_key"] == f"{artifacts.folder(task)}result-2/output.json"
    assert len(scripted_stages.calls(f"ocr-{task.pk}")) == 1


def test_a_retry_works_after_the_run_state_has_expired(alice: User) -> None:
    """B8: it needs only the database and object storage. It can use another rule, in its current version."""
    task = make_task(alice, "Hello.")
    run(task)
    valkey().flushall()
    rule = make_rule(alice, mode="llm", name="other", version=3)
    content = catalog.content(rule_id=rule.pk, version=3)
    actions.retry(task=row_of(task), from_stage=Stage.POSTPROCESS, rule_content=content)

    assert (seen(task).rule_id, seen(task).rule_version, seen(task).progress) == (rule.pk, 3, 50)
    assert seen(task).metadata["artifact_mineru_markdown_key"]
    run(task, Stage.POSTPROCESS)
    row = row_of(task)
    assert row.result
    assert (row.status, row.result["data"], row.rule_version) == ("completed", {"characters": 23}, 3)


def test_a_retry_without_a_rule_keeps_the_rule_version(alice: User) -> None:
    """B25: it keeps the version even if the rule has a newer one."""
    rule = make_rule(alice, mode="llm", name="v1")
    task = make_task(alice, rule=rule)
    run(task)
    editing.apply(rule, name="v2")
    actions.retry(task=row_of(task), from_stage=Stage.POSTPROCESS)
    run(task, Stage.POSTPROCESS)
    assert row_of(task).rule_version == 1
    assert (len(scripted_stages.calls("post-v1")), len(scripted_stages.calls("post-v2"))) == (2, 0)


def test_a_retry_of_post_processing_requires_an_ocr_result(alice: User) -> None:
    """B7: without it, the retry is refused and nothing is changed."""
    failed = make_task(alice, "raise FileCorrupt")
    run(failed)
    half = make_task(alice)
    run(half)
    storage.delete(row_of(half).metadata["artifact_mineru_markdown_key"])
    for task in (failed, half):
        before = Task.objects.values().get(pk=task.pk)
        with pytest.raises(actions.OcrResultMissing):
            actions.retry(task=row_of(task), from_stage=Stage.POSTPROCESS)
        assert Task.objects.values().get(pk=task.pk) == before


# ---- Retry from OCR -------------------------------------------------------------------------------------------------
def test_a_retry_can_repeat_all_stages(alice: User) -> None:
    """B7: attempts are counted from 0, and the artifacts of the previous run do not change."""
    task = make_task(alice, "once:raise ProviderUnavailable")
    run(task, Stage.OCR)
    run_when_due(task, Stage.OCR)
    run(task, Stage.POSTPROCESS)
    before = artifacts.find_ocr(task)
    actions.retry(task=row_of(task), from_stage=Stage.OCR)

    state = seen(task)
    assert (state.status, state.phase, state.progress, state.run, state.ocr_run) == ("pending", "ocr", 0, 2, 2)
    assert state.metadata == runstate.whole_metadata({})
    run(task)
    assert len(scripted_stages.calls(f"ocr-{task.pk}")) == 3
    assert row_of(task).metadata["attempts"] == {"ocr": 1, "postprocess": 1}
    assert artifacts.find_ocr(task) == before


def test_a_cancelled_task_can_be_retried(alice: User) -> None:
    task = make_task(alice)
    actions.cancel(task=row_of(task))
    actions.retry(task=row_of(task), from_stage=Stage.OCR)
    assert run(task) == [True, True]
    assert row_of(task).status == "completed"


def test_a_retried_task_can_be_cancelled(alice: User) -> None:
    task = make_task(alice)
    run(task)
    actions.retry(task=row_of(task), from_stage=Stage.OCR)
    actions.cancel(task=row_of(task))
    assert row_of(task).status == "cancelled"


# ---- Ended tasks only -----------------------------------------------------------------------------------------------
def test_an_unfinished_task_is_not_retried(alice: User) -> None:
    """B7: a retry of a running task is refused."""
    task = make_task(alice)
    for stage in (None, Stage.OCR):
        if stage:
            run(task, stage)
        for retried in Stage:
            with pytest.raises(actions.NotEnded):
                actions.retry(task=row_of(task), from_stage=retried)
    assert (row_of(task).generation, row_of(task).run) == (1, 1)


def test_one_of_several_concurrent_retries_wins(alice: User) -> None:
    task = make_task(alice)
    run(task)
    row = row_of(task)

    def retry(_: int) -> bool:
        try:
            actions.retry(task=row_of(task), from_stage=Stage.OCR)
        except actions.NotEnded:
            return False
        return True

    assert sum(in_threads(4, retry)) == 1
    assert row_of(task).generation == row.generation + 1


def test_a_retry_during_another_retry_changes_nothing(alice: User) -> None:
    """B7: both retries read that the task has ended, and the second one waits for the lock of the row."""
    task = make_task(alice)
    run(task)

    def retry() -> None:
        try:
            actions.retry(task=row_of(task), from_stage=Stage.OCR)
        finally:
            connection.close()

    with ThreadPoolExecutor(1) as pool:
        with transaction.atomic():
            Task.objects.select_for_update().get(pk=task.pk)
            late = pool.submit(retry)
            wait_until(waits_for_a_lock)
            Task.objects.filter(pk=task.pk).update(status="pending", generation=2, result=None)
        with pytest.raises(actions.NotEnded):
            late.result(timeout=30)
    assert row_of(task).generation == 2


def test_an_outcome_that_is_only_in_redis_counts(alice: User) -> None:
    task = make_task(alice, "raise FileCorrupt")
    run(task)
    Task.objects.filter(pk=task.pk).update(status="pending", error=None)
    actions.retry(task=row_of(task), from_stage=Stage.OCR)
    assert row_of(task).generation == 2


def test_a_retry_requires_room_in_the_queue(alice: User, configure_stages: ConfigureStages) -> None:
    """B1: a retry counts like a submission. If it is refused, nothing is changed."""
    task = make_task(alice)
    run(task)
    make_row(alice)
    configure_stages(etl_queue_size=1)
    with pytest.raises(queue_limit.QueueFull):
        actions.retry(task=row_of(task), from_stage=Stage.OCR)
    assert row_of(task).status == "completed"


# ---- A late worker --------------------------------------------------------------------------------------------------
def test_a_worker_of_the_previous_run_is_fenced_off(alice: User) -> None:
    """B2, B3: its generation is too small for Redis and for the row."""
    task = make_task(alice, "once:until go")
    thread = run_beside(task, Stage.OCR)
    wait_until(lambda: scripted_stages.calls(f"ocr-{task.pk}"))
    run_when_due(task, Stage.OCR)
    run(task, Stage.POSTPROCESS)
    actions.retry(task=row_of(task), from_stage=Stage.OCR)
    before = seen(task)
    scripted_stages.allow("go")
    thread.join()

    assert seen(task) == before
    assert row_of(task).status == "pending"


# ---- Paid responses -------------------------------------------------------------------------------------------------
def test_a_retry_reuses_paid_model_responses(alice: User) -> None:
    """B2: if it uses the same rule and the task has failed. A retry with another rule calls the model again."""
    rule = make_rule(alice, mode="llm")
    task = make_task(alice, "post:raise LlmRefused", rule=rule)
    run(task)
    StoredResponseCache(row_of(task)).put("question", {"answer": 1}, run=False)
    StoredResponseCache(row_of(task)).put("question", {"answer": 2}, run=False)
    StoredResponseCache(row_of(task)).put("bad", {"answer": 3}, run=True)
    again = actions.retry(task=row_of(task), from_stage=Stage.POSTPROCESS)
    assert StoredResponseCache(again).get("question") == {"answer": 1, "is_earlier": True}  # paid by the previous run
    assert StoredResponseCache(again).get("bad") is None
    assert StoredResponseCache(again).get("never asked") is None
    run(task, Stage.POSTPROCESS)
    other = catalog.content(rule_id=make_rule(alice, mode="llm").pk, version=1)
    assert (
        StoredResponseCache(actions.retry(task=row_of(task), from_stage=Stage.POSTPROCESS, rule_content=other)).get(
            "question"
        )
        is None
    )


# ---- Unavailable servers --------------------------------------------------------------------------------------------
def test_without_redis_or_storage_nothing_is_changed(alice: User, configure_stages: ConfigureStages) -> None:
    task = make_task(alice)
    run(task)
    configure_stages(s3_endpoint_url=AnyHttpUrl("http://127.0.0.1:1"))
    with pytest.raises(problems.StorageUnavailable):
        actions.retry(task=row_of(task), from_stage=Stage.POSTPROCESS)
    configure_stages(etl_redis_url=SecretStr("redis://127.0.0.1:1/0"))
    with pytest.raises(actions.RunStateUnavailable):
        actions.retry(task=row_of(task), from_stage=Stage.OCR)
    assert (row_of(task).status, row_of(task).generation) == ("completed", 1)


def before_statement(text: str, act: Callable[[], None]) -> AbstractContextManager[None]:
    """Call a function right before this process executes a statement that contains a text."""

    def execute_after(execute: Any, sql: str, *args: Any) -> Any:
        if text in sql:
            act()
        return execute(sql, *args)

    return connection.execute_wrapper(execute_after)


def shown(task: Task) -> tuple[str, int, bool]:
    state = lookup.states_of([task.pk])[task.pk]
    return state.status, state.generation, state.result is not None


def test_a_redis_failure_at_the_commit_hides_the_previous_run(
    alice: User, configure_stages: ConfigureStages, settings: LazySettings
) -> None:
    """B3, B7: after the 202 response, all readers get a pending task. Recovery creates its run-state."""
    task, url = make_task(alice), settings.SLUICE.etl_redis_url
    run(task)
    with before_statement("pg_advisory", lambda: configure_stages(etl_redis_url=SecretStr("redis://127.0.0.1:1/0"))):
        actions.retry(task=row_of(task), from_stage=Stage.OCR)
    configure_stages(etl_redis_url=url)

    assert shown(task) == ("pending", 2, False)
    assert run(task) == [False, False]
    recreate_by_recovery(task)
    assert run(task) == [True, True]
    assert shown(task) == ("completed", 3, True)
    assert len(scripted_stages.calls(f"ocr-{task.pk}")) == 2


def test_a_redis_failure_before_the_commit_changes_nothing(
    alice: User, configure_stages: ConfigureStages, settings: LazySettings
) -> None:
    """B7: the retry is refused with 503 run_state_unavailable."""
    task, url = make_task(alice), settings.SLUICE.etl_redis_url
    run(task)
    fail_redis = partial(configure_stages, etl_redis_url=SecretStr("redis://127.0.0.1:1/0"))
    with before_statement("FOR UPDATE", fail_redis), pytest.raises(actions.RunStateUnavailable):
        actions.retry(task=row_of(task), from_stage=Stage.OCR)
    configure_stages(etl_redis_url=url)
    assert shown(task) == ("completed", 1, True)
    assert seen(task).status == "completed"


def test_a_crash_before_the_commit_of_a_retry_changes_nothing(alice: User) -> None:
    """B7: readers use the row, which has not changed."""
    task = make_task(alice)
    run(task)

    def die() -> None:
        raise SystemExit

    with before_statement("pg_advisory", die), pytest.raises(SystemExit):
        actions.retry(task=row_of(task), from_stage=Stage.OCR)
    assert runstate.read(task.pk) is None
    assert shown(task) == ("completed", 1, True)
