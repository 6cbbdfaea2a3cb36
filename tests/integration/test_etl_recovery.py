"""Recovery of lost run-states, messages, workers, and outcomes. B8, B9, B10."""

import socket
from datetime import timedelta
from typing import Any
from uuid import uuid4

import pytest
import structlog
from django.conf import LazySettings
from django.contrib.auth.models import User
from django.db import OperationalError, connection
from pydantic import AnyHttpUrl, SecretStr

from config.platform import storage
from config.platform.db import identity
from etl import runstate
from etl.api import lookup
from etl.core import metrics
from etl.core.states import Stage
from etl.maintenance import after_restore, cleanup, recovery
from etl.models import Task
from etl.pipeline import actions, artifacts, completion
from etl.runstate import transitions
from tests import scripted_stages
from tests.broker import broker_at, lose_messages, queued, valkey
from tests.integration.etl_factories import make_row, make_rule, make_task
from tests.integration.stage_runs import ConfigureStages, age, row_of, run, run_when_due, seen
from tests.integration.test_leases import in_threads
from tests.waiting import expect_within

pytestmark = pytest.mark.usefixtures("configure_stages")


def flush() -> None:
    valkey().flushall()


def copy_of(task: Task) -> bytes:
    copy = valkey().dump(runstate.key_of(task.pk))
    assert copy
    return copy


def connection_count() -> int:
    """Return the number of connections to the broker so far, including the one for this call."""
    return int(valkey().info("stats")["total_connections_received"])


def expect_in_queues(ocr: int, postprocess: int) -> None:
    assert (queued("etl-ocr"), queued("etl-postprocess")) == (ocr, postprocess)


def test_a_stage_of_a_dead_worker_is_distinguished_from_a_lost_message(alice: User) -> None:
    """B10, C6: messages for both are sent again. The log and the metrics distinguish them."""

    def counted() -> dict[str, float]:
        return {what: metrics.RECOVERED.labels(what)._value.get() for what in ("hint", "lease")}

    running, waiting = make_task(alice), make_task(alice)
    valkey().delete("etl-ocr")
    runstate.start(running.pk, stage=Stage.OCR)
    valkey().hset(runstate.key_of(running.pk), "lease_until", 1)
    for task in (running, waiting):
        valkey().hset(runstate.key_of(task.pk), "hinted_at", 0)
    before = counted()
    with structlog.testing.capture_logs() as lines:
        recovery.recover_all()
    assert counted() == {what: count + 1 for what, count in before.items()}
    lost = {line["etl_task_id"]: line["lost"] for line in lines if line["event"] == "wakeup_sent_again"}
    assert lost == {running.pk: "lease", waiting.pk: "hint"}


# ---- Lost run-states ------------------------------------------------------------------------------------------------
def test_a_lost_run_state_of_a_pending_task_is_recreated(alice: User) -> None:
    """B10: it gets a greater generation, so that its revision grows, and a wake-up message is sent."""
    task = make_task(alice)
    before = seen(task)
    flush()
    age(task)
    recovery.recover()

    state = seen(task)
    assert (state.status, state.phase, state.generation) == ("pending", "ocr", 2)
    assert state.revision > before.revision
    assert row_of(task).generation == 2
    expect_in_queues(1, 0)
    assert run(task) == [True, True]
    assert row_of(task).status == "completed"


def test_recovery_continues_from_the_latest_artifact(alice: User) -> None:
    """B8, B10: OCR is not repeated."""
    task = make_task(alice, "warn odd\nonce:raise ProviderUnavailable", rule=make_rule(alice, mode="llm"))
    run(task, Stage.OCR)
    run_when_due(task, Stage.OCR)
    before = seen(task)
    flush()
    age(task)
    recovery.recover()

    state = seen(task)
    assert (state.status, state.phase, state.progress) == ("llm_processing", "postprocess", 50)
    # The reasons of failed attempts were only in the run-state.
    assert state.metadata == before.metadata | {"failed_attempts": []}
    assert len(before.metadata["failed_attempts"]) == 1
    expect_in_queues(0, 1)
    assert run(task, Stage.OCR, Stage.POSTPROCESS) == [True, True]
    assert len(scripted_stages.calls(f"ocr-{task.pk}")) == 2


def test_a_task_with_a_stored_result_ends_immediately(alice: User) -> None:
    """B10: the model is not called again."""
    task = make_task(alice, rule=make_rule(alice, mode="llm", name="almost"))
    run(task)
    result = row_of(task).result
    Task.objects.filter(pk=task.pk).update(status="pending", result=None)
    flush()
    age(task)
    recovery.recover()
    run(task, Stage.POSTPROCESS)
    assert row_of(task).result == result
    assert len(scripted_stages.calls("post-almost")) == 1


def test_recovery_fences_off_the_previous_worker(alice: User) -> None:
    """B10: it has lost its lease, even after the run-state was recreated."""
    task = make_task(alice)
    state = runstate.start(task.pk, stage=Stage.OCR).state
    assert state
    flush()
    age(task)
    recovery.recover()
    assert runstate.advance(state, markdown_key="late").verdict == "newer"
    assert run(task) == [True, True]


def test_a_retry_from_post_processing_does_not_fall_back_to_ocr(alice: User) -> None:
    """B7, B10: if the OCR result was deleted, the task fails, so that the user does not pay for OCR again."""
    task = make_task(alice)
    run(task)
    actions.retry(task=row_of(task), from_stage=Stage.POSTPROCESS)
    storage.delete(artifacts.ocr_key(task))
    flush()
    age(task)
    recovery.recover()
    expect_in_queues(0, 1)
    run(task, Stage.OCR, Stage.POSTPROCESS)
    error = row_of(task).error
    assert error is not None
    assert error["code"] == "artifact_missing"
    assert len(scripted_stages.calls(f"ocr-{task.pk}")) == 1


def test_recovery_waits_for_a_submission_that_creates_the_run_state(alice: User) -> None:
    """B1, B10: a submission creates the run-state after the row. Recovery waits 30 seconds before it creates one."""
    task = make_row(alice)
    recovery.recover_all()
    assert runstate.read(task.pk) is None
    age(task, seconds=31)
    recovery.recover_all()
    assert seen(task).generation == 2
    assert runstate.create(task, stage=Stage.OCR).verdict == "newer"  # the late submission


def test_a_missing_run_state_of_a_retry_is_created(alice: User) -> None:
    """B7, B10: the process crashed right after its commit, and Redis still has the end of the previous run."""
    task = make_task(alice)
    run(task)
    Task.objects.filter(pk=task.pk).update(
        status="pending", phase="ocr", generation=2, run=2, ocr_run=2, result=None, metadata={}
    )
    recovery.recover_all()
    assert seen(task).status == "completed"
    age(task)
    recovery.recover_all()
    assert (seen(task).status, seen(task).generation, row_of(task).generation) == ("pending", 2, 2)
    run(task)
    assert row_of(task).status == "completed"
    assert len(scripted_stages.calls(f"ocr-{task.pk}")) == 2


def test_a_run_state_of_another_generation_is_repaired(alice: User) -> None:
    """Redis was restored from an old copy, with a smaller generation than the row."""
    task = make_task(alice)
    old = copy_of(task)
    flush()
    age(task)
    recovery.recover_all()
    valkey().restore(runstate.key_of(task.pk), 0, old, replace=True)
    age(task)
    recovery.recover_all()
    assert seen(task).generation == row_of(task).generation == 2


def test_ended_tasks_are_left_alone(alice: User) -> None:
    """B10: they are not processed again if the run-state has expired, or if Redis has an older status, which is
    corrected."""
    ended = make_task(alice)
    run(ended)
    old = make_task(alice)
    copy = copy_of(old)
    run(old)
    before = list(Task.objects.order_by("pk").values())
    flush()
    valkey().restore(runstate.key_of(old.pk), 0, copy)
    for task in (ended, old):
        Task.objects.filter(pk=task.pk).update(updated_at=row_of(task).created_at)
    recovery.recover_all()
    assert runstate.read(ended.pk) is None
    expect_in_queues(0, 0)
    assert run(old) == [False, False]
    assert seen(old).status == "completed"
    assert len(scripted_stages.calls(f"ocr-{old.pk}")) == 1
    assert [row["result"] for row in Task.objects.order_by("pk").values()] == [row["result"] for row in before]


def test_an_unreadable_run_state_is_recreated_without_affecting_others(alice: User) -> None:
    """B10: until it is recreated, readers treat it as lost."""
    rule = make_rule(alice)
    tasks = [make_task(alice, rule=rule) for _ in range(3)]
    valkey().delete("etl-ocr")
    for task in tasks:
        make_wake_up_due(task)
        age(task)
    valkey().delete(runstate.key_of(tasks[1].pk))
    valkey().set(runstate.key_of(tasks[1].pk), "odd")
    valkey().hset(runstate.key_of(tasks[2].pk), "ocr", "{")
    assert [lookup.states_of([task.pk])[task.pk].status for task in tasks] == ["pending"] * 3
    recovery.recover_all()
    expect_in_queues(3, 0)
    assert [seen(task).generation for task in tasks] == [row_of(task).generation for task in tasks] == [1, 2, 2]
    assert all(run(task) == [True, True] for task in tasks)


def test_wake_ups_of_an_interrupted_recovery_do_not_count_as_sent(alice: User) -> None:
    """B10: the database becomes unavailable at the first update."""
    rule = make_rule(alice)
    lost, waiting = make_row(alice, rule=rule), make_task(alice, rule=rule)
    valkey().delete("etl-ocr")
    age(lost)
    make_wake_up_due(waiting)

    def unavailable(execute: Any, sql: str, *args: Any) -> Any:
        if sql.startswith("UPDATE"):
            raise OperationalError
        return execute(sql, *args)

    with connection.execute_wrapper(unavailable):
        recovery.recover()
    expect_in_queues(0, 0)
    recovery.recover_all()
    expect_in_queues(2, 0)


# ---- Redis restored from an older copy ------------------------------------------------------------------------------
def test_a_worker_does_not_start_a_stale_generation(alice: User) -> None:
    """B2, B10: the row's generation is greater. Recovery creates a run-state with that generation."""
    task = make_task(alice)
    Task.objects.filter(pk=task.pk).update(generation=2)
    assert run(task) == [False, False]
    assert seen(task).attempts["ocr"] == 0
    age(task)
    recovery.recover_all()
    assert run(task) == [True, True]


def unavailable(*_args: Any) -> Any:
    raise OperationalError


def test_without_the_database_no_stage_starts(alice: User) -> None:
    """B9: no attempt is counted, and recovery sends the message again."""
    task = make_task(alice)

    with connection.execute_wrapper(unavailable):
        assert run(task) == [False, False]
    assert (seen(task).status, seen(task).attempts["ocr"]) == ("pending", 0)
    assert run(task) == [True, True]


def test_a_run_state_that_continues_after_its_row_ended_is_repaired(alice: User) -> None:
    """B3, B10: otherwise, users would see a running task for a day, although no worker processes it."""
    rule = make_rule(alice)
    ended, cancelled, running = (make_task(alice, rule=rule) for _ in range(3))
    copies = {task.pk: copy_of(task) for task in (ended, cancelled)}
    run(ended)
    actions.cancel(task=row_of(cancelled))
    runstate.start(running.pk, stage=Stage.OCR)
    before = seen(running)
    for task_id, copy in copies.items():
        valkey().restore(runstate.key_of(task_id), 0, copy, replace=True)
    for _ in range(2):
        recovery.recover()
    assert [seen(task).status for task in (ended, cancelled)] == ["completed", "cancelled"]
    assert seen(ended).result == row_of(ended).result
    assert seen(running) == before
    assert 200_000 < valkey().pttl("etl:review") <= 300_000, "reviews are at least 5 minutes apart"


def test_a_run_state_whose_row_was_lost_is_reported(alice: User) -> None:
    """A failover lost the last commits, but too few to change the watermark."""
    lose_messages()  # this also deletes run-states of other tests
    rule = make_rule(alice)
    lost, _kept, ended = (make_task(alice, rule=rule) for _ in range(3))
    run(ended)
    before = metrics.ROWS_LOST._value.get()
    recovery.review()
    assert metrics.ROWS_LOST._value.get() == before

    Task.objects.filter(pk__in=[lost.pk, ended.pk]).delete()
    recovery.review()

    assert metrics.ROWS_LOST._value.get() == before + 1
    assert after_restore.forget_unknown_tasks() == 2
    recovery.review()
    assert metrics.ROWS_LOST._value.get() == before + 1


# ---- Lost messages and workers --------------------------------------------------------------------------------------
def make_wake_up_due(task: Task) -> None:
    valkey().hset(runstate.key_of(task.pk), "hinted_at", 1)


def test_a_lost_message_is_sent_again_at_most_once_per_interval(alice: User) -> None:
    """B2, B10."""
    task = make_task(alice)
    valkey().delete("etl-ocr")
    recovery.recover_all()
    expect_in_queues(0, 0)
    make_wake_up_due(task)
    for _ in range(3):
        recovery.recover_all()
    expect_in_queues(1, 0)
    assert seen(task).job_id


def test_waiting_tasks_get_no_copies_of_messages_that_are_in_the_queue(alice: User) -> None:
    """B2: each message wakes a worker for any of them. Copies would fill Redis while workers are down for hours."""
    rule = make_rule(alice)
    tasks = [make_task(alice, rule=rule) for _ in range(3)]
    expect_in_queues(3, 0)
    for _ in range(3):
        for task in tasks:
            make_wake_up_due(task)
        recovery.recover_all()
    expect_in_queues(3, 0)  # 12 without the limit
    valkey().lpop("etl-ocr")
    for task in tasks:
        make_wake_up_due(task)
    recovery.recover_all()
    expect_in_queues(3, 0)


def test_a_missing_message_of_the_next_stage_is_sent(alice: User) -> None:
    """B2: the worker crashed, or the broker was unavailable, before the message was sent."""
    task = make_task(alice)
    run(task, Stage.OCR)
    make_wake_up_due(task)
    recovery.recover_all()
    expect_in_queues(1, 1)


def test_the_stage_of_a_lost_worker_is_sent_again(alice: User) -> None:
    """B2, B9: the message is sent again when the lease has expired."""
    task = make_task(alice)
    runstate.start(task.pk, stage=Stage.OCR)
    make_wake_up_due(task)
    valkey().delete("etl-ocr")
    recovery.recover_all()
    expect_in_queues(0, 0)
    valkey().hset(runstate.key_of(task.pk), "lease_until", 1)
    recovery.recover_all()
    expect_in_queues(1, 0)
    assert run(task) == [True, True]
    assert row_of(task).metadata["attempts"]["ocr"] == 2


def test_a_task_in_backoff_gets_no_wake_up(alice: User, configure_stages: ConfigureStages) -> None:
    configure_stages(etl_retry_backoff_base_seconds=300.0, etl_retry_backoff_max_seconds=300.0)
    task = make_task(alice, "raise ProviderUnavailable")
    run(task, Stage.OCR)
    valkey().delete("etl-ocr")
    recovery.recover_all()
    expect_in_queues(0, 0)
    valkey().hset(runstate.key_of(task.pk), "available_at", 1)
    recovery.recover_all()
    expect_in_queues(1, 0)  # no delayed message is sent for such a long backoff, so recovery sends one immediately


def test_recovery_sends_all_messages_over_one_connection(alice: User) -> None:
    rule = make_rule(alice)
    tasks = [make_task(alice, rule=rule) for _ in range(20)]
    valkey().delete("etl-ocr")
    for task in tasks:
        make_wake_up_due(task)
    before = connection_count()
    recovery.recover_all()
    expect_in_queues(len(tasks), 0)
    assert connection_count() - before < len(tasks) / 2  # this test opens some of them


@pytest.mark.slow
def test_an_unavailable_broker_is_tried_once(alice: User) -> None:
    rule = make_rule(alice)
    tasks = [make_task(alice, rule=rule) for _ in range(5)]
    valkey().delete("etl-ocr")
    for task in tasks:
        make_wake_up_due(task)
    with socket.create_server(("127.0.0.1", 0)) as silent, broker_at(f"redis://127.0.0.1:{silent.getsockname()[1]}/0"):
        expect_within(5, recovery.recover_all)
    recovery.recover_all()
    expect_in_queues(5, 0)


# ---- Outcomes missing from the row ----------------------------------------------------------------------------------
@pytest.mark.parametrize("status", ["completed", "failed", "cancelled"])
def test_a_missing_outcome_is_recorded_in_the_row(alice: User, status: str) -> None:
    """B4: the worker crashed, or the database was unavailable, right after the change in Redis."""
    task = make_task(alice, "raise FileCorrupt" if status == "failed" else "Hello.")
    if status == "cancelled":
        actions.cancel(task=row_of(task))
    else:
        run(task)
    before = Task.objects.values().get(pk=task.pk)
    Task.objects.filter(pk=task.pk).update(
        status="pending", phase="ocr", progress=0, result=None, error=None, metadata={}
    )
    recovery.recover_all()
    assert Task.objects.values().get(pk=task.pk) == before
    assert before["status"] == status


def test_a_large_result_is_recorded_from_object_storage(alice: User, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transitions, "RESULT_BYTES", 10)
    task = make_task(alice, rule=make_rule(alice, mode="llm"))
    run(task)
    before = row_of(task).result
    assert before
    assert runstate.read(task.pk) is None
    Task.objects.filter(pk=task.pk).update(status="pending", result=None)
    recovery.recover_all()
    assert row_of(task).result == before


# ---- Concurrency ----------------------------------------------------------------------------------------------------
@pytest.mark.slow
def test_concurrent_recoveries_have_the_effect_of_one(alice: User) -> None:
    """B10: several schedulers may run, and messages may be delivered more than once."""
    rule = make_rule(alice)
    tasks = [make_task(alice, rule=rule) for _ in range(10)]
    flush()
    for task in tasks:
        age(task)

    in_threads(4, lambda _: recovery.recover_all())
    for task in tasks:
        assert row_of(task).generation == seen(task).generation
        assert run(task) == [True, True]


def test_one_of_several_ticks_in_an_interval_runs() -> None:
    runs: list[int] = []
    for _ in range(3):
        runstate.once("recovery", every=30, run=lambda: runs.append(1))
    assert runs == [1]
    assert 0 < valkey().pttl("etl:recovery") <= 15_000


def test_recovery_covers_every_unfinished_task(alice: User, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recovery, "BATCH", 3)
    rule = make_rule(alice)
    for _ in range(8):
        age(make_row(alice, rule=rule))
    recovery.recover_all()
    expect_in_queues(8, 0)


# ---- Unavailable servers --------------------------------------------------------------------------------------------
def test_without_redis_or_storage_recovery_does_nothing_and_logs_it(
    alice: User,
    configure_stages: ConfigureStages,
    settings: LazySettings,
) -> None:
    task = make_row(alice)
    age(task)
    endpoint = settings.SLUICE.s3_endpoint_url
    configure_stages(s3_endpoint_url=AnyHttpUrl("http://127.0.0.1:1"))
    recovery.recover_all()
    assert (row_of(task).generation, runstate.read(task.pk)) == (1, None)
    configure_stages(s3_endpoint_url=endpoint, etl_redis_url=SecretStr("redis://127.0.0.1:1/0"))
    recovery.recover()
    assert row_of(task).generation == 1


# ---- Cleanup --------------------------------------------------------------------------------------------------------
def test_unreferenced_documents_are_deleted(alice: User, monkeypatch: pytest.MonkeyPatch) -> None:
    task = make_row(alice)
    orphan, upload = f"{artifacts.DOCUMENTS}{uuid4()}.txt", f"{artifacts.UPLOADS}1/{uuid4()}"
    theirs = f"{artifacts.DOCUMENTS}{uuid4()}.txt"  # of another service in the bucket
    for key in (orphan, upload, theirs):
        storage.delete(key)
        mark = identity.marker() if key == orphan else {"database": str(uuid4())}
        storage.put(key, b"x", content_type="text/plain", metadata=mark)
    cleanup.sweep()
    assert storage.head(orphan)
    monkeypatch.setattr(cleanup, "GRACE", -timedelta(hours=1))
    monkeypatch.setattr(cleanup, "UPLOADS_KEPT", -timedelta(hours=1))
    cleanup.sweep()
    assert (storage.head(orphan), storage.head(upload)) == (None, None)
    assert storage.head(task.document_key)
    assert storage.head(theirs)
    storage.delete(theirs)


def test_artifacts_that_a_completed_retry_supersedes_are_deleted(alice: User) -> None:
    """B19: each retry from OCR creates new Markdown, and the old file must not be kept forever."""
    task = make_task(alice)
    run(task)
    kept = [stored(task)]
    for stage in (Stage.OCR, Stage.POSTPROCESS):
        actions.retry(task=row_of(task), from_stage=stage)
        age(task, seconds=7_200)
        cleanup.sweep()
        assert stored(task) == kept[-1]  # the previous result is shown until the new one is available
        run(task)
        cleanup.sweep()
        assert stored(task) > kept[-1]  # clients that have just read the row may still request the old files
        age(task, seconds=7_200)
        cleanup.sweep()
        kept.append(stored(task))
        now = row_of(task)
        assert {key.removeprefix(artifacts.folder(task)).split("/")[0] for key in kept[-1]} == {
            f"ocr-{now.ocr_run}", f"result-{now.run}"
        }  # fmt: skip
        assert storage.head(now.metadata["artifact_mineru_markdown_key"])


def stored(task: Task) -> set[str]:
    return {item.key for item in storage.list_objects(artifacts.folder(task))}


@pytest.mark.parametrize("folder", ["etl", "etl/uploads", "etl/uploads/1", "etl/documents"])
def test_files_of_a_dataset_below_the_folder_of_documents_are_kept(
    monkeypatch: pytest.MonkeyPatch, settings: LazySettings, folder: str
) -> None:
    """The datasets were registered before the folder was reserved."""
    key = f"{folder}/schema-2/uploads/2024/02/28/JFK_20240228.csv"
    storage.put(key, b"x", content_type="text/csv")
    uploading = f"{folder}/2024/02/28/LAX_20240228.csv"
    storage.client().create_multipart_upload(Bucket=settings.SLUICE.s3_bucket, Key=uploading)
    monkeypatch.setattr(cleanup, "GRACE", -timedelta(hours=1))
    monkeypatch.setattr(cleanup, "UPLOADS_KEPT", -timedelta(hours=1))
    cleanup.sweep()
    assert storage.head(key)
    (upload,) = storage.list_uploads(f"{folder}/2024/")
    storage.abort_upload(upload.key, upload.upload_id)


def test_a_failing_cleanup_step_does_not_stop_the_others(
    alice: User, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    upload, orphan = f"{artifacts.UPLOADS}1/{uuid4()}", f"{artifacts.DOCUMENTS}{uuid4()}.txt"
    storage.put(upload, b"x", content_type="text/plain")
    monkeypatch.setattr(cleanup, "GRACE", -timedelta(hours=1))
    monkeypatch.setattr(cleanup, "UPLOADS_KEPT", -timedelta(hours=1))

    storage.put(orphan, b"x", content_type="text/plain")
    with connection.execute_wrapper(unavailable):
        cleanup.sweep()
    assert storage.head(upload) is None
    assert storage.head(orphan)


def test_a_run_state_that_contradicts_an_ended_row_is_repaired(alice: User) -> None:
    """B6: in a Redis that was restored from an old copy, a cancelled task is pending. It is not processed."""
    task = make_task(alice)
    copy = copy_of(task)
    actions.cancel(task=row_of(task))
    valkey().restore(runstate.key_of(task.pk), 0, copy, replace=True)
    assert run(task) == [False, False]
    assert row_of(task).status == "cancelled"
    assert (seen(task).status, seen(task).result) == ("cancelled", None)
    assert not scripted_stages.calls(f"ocr-{task.pk}")


def test_an_outcome_of_an_earlier_generation_is_not_recorded(alice: User) -> None:
    """B2, B7: the task was retried, and its row has a greater generation."""
    task = make_task(alice)
    run(task)
    state = seen(task)
    actions.retry(task=row_of(task), from_stage=Stage.OCR)
    before, now = Task.objects.values().get(pk=task.pk), seen(task)
    assert not completion.record(state)
    assert (Task.objects.values().get(pk=task.pk), seen(task)) == (before, now)


def test_a_recorded_outcome_is_not_overwritten(alice: User) -> None:
    """B3: in a Redis that was restored from an older copy, the task ended differently, with the same generation."""
    task = make_task(alice)
    copy = copy_of(task)
    actions.cancel(task=row_of(task))
    valkey().restore(runstate.key_of(task.pk), 0, copy, replace=True)
    late = runstate.start(task.pk, stage=Stage.OCR).state
    assert late
    end = runstate.fail(late, error={"code": "x"}, usage={}).state
    assert end
    before = Task.objects.values().get(pk=task.pk)

    assert not completion.record(end)
    assert Task.objects.values().get(pk=task.pk) == before
    assert seen(task).status == "cancelled"


def test_a_task_with_a_lost_run_state_cannot_be_cancelled(alice: User) -> None:
    """B6, B10: a worker may already have read the document."""
    task = make_task(alice)
    flush()
    age(task)
    recovery.recover_all()
    assert seen(task).status == "pending"
    with pytest.raises(actions.NotCancellable):
        actions.cancel(task=row_of(task))


def test_a_retry_with_a_lost_run_state_cannot_be_cancelled(alice: User) -> None:
    """B6, B10."""
    task = make_task(alice)
    run(task)
    actions.retry(task=row_of(task), from_stage=Stage.POSTPROCESS)
    flush()
    age(task)
    recovery.recover_all()
    assert (seen(task).status, seen(task).phase) == ("pending", "postprocess")
    with pytest.raises(actions.NotCancellable):
        actions.cancel(task=row_of(task))


def test_recovery_does_not_read_results_of_earlier_runs(alice: User) -> None:
    """They may be large, and there are up to ETL_QUEUE_SIZE open tasks."""
    make_row(alice)
    ((row,),) = recovery.batches()
    assert row.get_deferred_fields() == {"last_result", "corrected_result"}
    runstate.create(row, stage=Stage.OCR)
    assert row.get_deferred_fields() == {"last_result", "corrected_result"}


def test_unreferenced_documents_are_found_in_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    """The keys of all documents would not fit into memory."""
    sizes: list[int] = []

    def count(keys: list[str]) -> list[str]:
        sizes.append(len(keys))
        return []

    monkeypatch.setattr(cleanup, "BATCH", 2)
    monkeypatch.setattr(cleanup, "old_objects", lambda *_: iter("abcde"))
    monkeypatch.setattr(cleanup, "unreferenced", count)
    assert (cleanup.delete_orphans(), sizes) == (0, [2, 2, 1])
