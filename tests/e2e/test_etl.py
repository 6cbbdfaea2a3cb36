"""Documents with real workers and a real beat: crashes, shutdowns, FLUSHALL, lost and repeated messages. B2, B3, B6,
B9, B10, B12.

The provider and the processor are fakes that follow instructions in the document (`tests/scripted_stages.py`).
"""

import json
import os
import threading
from pathlib import Path
from typing import Any

import pytest
from django.conf import LazySettings
from django.contrib.auth.models import User

from config.dev.stack.kept_settings import KeptSettings
from config.dev.stack.valkey import Valkey
from config.platform import storage
from etl import runstate
from etl.core import workspace
from etl.core.states import Stage
from etl.maintenance import recovery
from etl.models import Task
from etl.pipeline import actions, artifacts, dispatch
from rules.models import Rule
from tests import scripted_stages
from tests.broker import broker_at, valkey
from tests.chaos.documents import BOTH_QUEUES, attempts, ocr_calls, post_calls, status
from tests.e2e.conftest import LEASE_SECONDS, REAPER_SECONDS, Workers, suspended
from tests.integration.etl_factories import make_row, make_rule, make_task
from tests.waiting import wait_until

ALL = f"{BOTH_QUEUES},maintenance"


@pytest.fixture(autouse=True)
def use_fakes(monkeypatch: pytest.MonkeyPatch, settings: LazySettings) -> None:
    """Use the fake provider and processor in workers, and the same intervals in this process."""
    monkeypatch.setenv("DJANGO_SETTINGS_MODULE", "tests.scripted_settings")
    monkeypatch.setenv("ETL_OCR_PROVIDER", "tests.scripted_stages.Provider")
    monkeypatch.setenv("ETL_RETRY_BACKOFF_BASE_SECONDS", "0.5")
    intervals = {"etl_lease_seconds": LEASE_SECONDS, "etl_recovery_seconds": REAPER_SECONDS}
    settings.SLUICE = settings.SLUICE.model_copy(update=intervals)


@pytest.fixture
def rule(alice: User) -> Rule:
    """A rule under whose name the fake processor records its calls."""
    return make_rule(alice, mode="llm", name=f"rule-{os.urandom(4).hex()}")


def completed(*tasks: Task) -> bool:
    return all(status(task) == "completed" for task in tasks)


def documents() -> list[Path]:
    """Return the documents' temporary files."""
    return list(workspace.root().glob(f"{workspace.PREFIX}*"))


def log_lines(workers: Workers) -> list[dict[str, Any]]:
    return [json.loads(line) for line in workers.logs().splitlines() if line.startswith("{")]


def has_expected_result(task: Task) -> bool:
    """Return whether the row and object storage hold the expected result of the document."""
    row = Task.objects.get(pk=task.pk)
    assert row.result is not None
    markdown = b"".join(storage.read(row.result["markdown_s3_key"])).decode()
    output = artifacts.find(row.result["output_s3_key"])
    return bool(row.result["data"] == {"characters": len(markdown)} and output and output["data"] == row.result["data"])


# ---- The chain ------------------------------------------------------------------------------------------------------
@pytest.mark.slow
def test_each_stage_enqueues_the_next(alice: User, rule: Rule, workers: Workers) -> None:
    """B2: each stage runs on its own queue. Recovery does not run here. The chain continues after a failed attempt."""
    workers.start("etl-ocr", concurrency=2)
    workers.start("etl-postprocess", concurrency=1)
    text = "once:raise ProviderUnavailable\npost:once:raise LlmInvalidResponse"
    first = make_task(alice, text, rule=rule)
    wait_until(lambda: completed(first))
    assert attempts(first) == (2, 2)
    others = [make_task(alice, f"Hello {number}.", rule=rule) for number in range(10)]
    wait_until(lambda: completed(*others))
    assert all(attempts(task) == (1, 1) and has_expected_result(task) for task in others)


@pytest.mark.slow
def test_tripled_messages_have_one_effect(alice: User, rule: Rule, workers: Workers) -> None:
    """B2: no stage runs or is paid for twice."""
    tasks = [make_row(alice, "wait 0.05\npost:spend 1", rule=rule) for _ in range(15)]
    for task in tasks:
        runstate.create(task, stage=Stage.OCR)
    for _ in range(3):
        for task in tasks:
            dispatch.wake(task_id=task.pk, stage=Stage.OCR)
    workers.start(BOTH_QUEUES, concurrency=4)
    wait_until(lambda: completed(*tasks))
    wait_until(lambda: not valkey().llen("etl-ocr") and not valkey().llen("etl-postprocess"))
    wait_until(lambda: not valkey().hlen("unacked"))

    assert [ocr_calls(task) for task in tasks] == [1] * 15
    assert post_calls(rule) == 15
    assert all(attempts(task) == (1, 1) for task in tasks)


@pytest.mark.slow
def test_users_take_turns_although_one_users_messages_came_first(alice: User, bob: User, workers: Workers) -> None:
    """B44: bob's two documents are among the first four, and each document is read once."""
    one = make_rule(alice)
    backlog = [make_task(alice, rule=one) for _ in range(12)]
    mine = [make_task(bob, rule=one) for _ in range(2)]
    workers.start("etl-ocr", concurrency=1)
    wait_until(lambda: all(ocr_calls(task) for task in (*backlog, *mine)))

    first = sorted((*backlog, *mine), key=read_at)
    assert {task.pk for task in mine} <= {task.pk for task in first[:4]}
    workers.start("etl-postprocess", concurrency=1)
    wait_until(lambda: completed(*backlog, *mine))
    assert [ocr_calls(task) for task in (*backlog, *mine)] == [1] * 14


def read_at(task: Task) -> float:
    """Return when the provider read the document."""
    return (scripted_stages.folder() / f"ocr-{task.pk}").stat().st_mtime


# ---- Worker crashes ------------------------------------------------------------------------------------------------
@pytest.mark.slow
def test_another_worker_takes_over_the_stage_of_a_killed_worker(alice: User, rule: Rule, workers: Workers) -> None:
    """B2, B10: SIGKILL during OCR, and again during post-processing. Only the interrupted stage is repeated."""
    workers.start("maintenance", concurrency=1)
    workers.start_beat()
    task = make_task(alice, "once:until never\npost:once:until never", rule=rule)
    for calls in (lambda: ocr_calls(task), lambda: post_calls(rule)):
        victim = workers.start(BOTH_QUEUES, concurrency=1)
        wait_until(calls)
        victim.kill()
    workers.start(BOTH_QUEUES, concurrency=1)
    wait_until(lambda: completed(task))

    assert (ocr_calls(task), post_calls(rule), attempts(task)) == (2, 2, (2, 2))
    assert has_expected_result(task)
    assert documents() == []


@pytest.mark.slow
def test_a_document_that_kills_its_workers_fails_and_other_tasks_continue(
    alice: User, rule: Rule, workers: Workers
) -> None:
    """B9, B12: the child is killed each time, and its worker continues with other tasks."""
    workers.start(ALL, concurrency=2)
    workers.start_beat()
    poison = make_task(alice, "die", rule=rule)
    good = make_task(alice, "once:die", rule=rule)
    wait_until(lambda: completed(good) and status(poison) == "failed", limit=120)  # three leases

    error = Task.objects.get(pk=poison.pk).error
    assert error
    assert (error["code"], error["stage"], attempts(poison)) == ("ocr_failed", "ocr", (3, 0))
    assert ocr_calls(poison) == 3
    lost = [line["etl_task_id"] for line in log_lines(workers) if line["action"] == "worker_lost"]
    assert sorted(lost) == sorted([poison.pk] * 3 + [good.pk])


@pytest.mark.slow
def test_a_suspended_worker_is_fenced_off_from_its_document(alice: User, rule: Rule, workers: Workers) -> None:
    """B2, B3: SIGSTOP past the lease, then SIGCONT, in the middle of post-processing."""
    workers.start("etl-ocr,maintenance", concurrency=2)
    workers.start_beat()
    sleeper = workers.start("etl-postprocess", concurrency=1)
    task = make_task(alice, "post:once:until go\npost:spend 5", rule=rule)
    wait_until(lambda: post_calls(rule))
    with suspended(sleeper):
        workers.start("etl-postprocess", concurrency=1)
        wait_until(lambda: completed(task))
        before = Task.objects.values().get(pk=task.pk), runstate.read(task.pk)
        output = storage.head(artifacts.output_key(task))
        scripted_stages.allow("go")
    wait_until(lambda: "lease_lost" in sleeper.log.read_text())

    assert (Task.objects.values().get(pk=task.pk), runstate.read(task.pk)) == before
    assert storage.head(artifacts.output_key(task)) == output
    assert (ocr_calls(task), post_calls(rule)) == (1, 2)


@pytest.mark.slow
def test_graceful_shutdown_hands_the_stage_to_another_worker(alice: User, rule: Rule, workers: Workers) -> None:
    """B2: SIGTERM in the middle of a long OCR. It costs no attempt, and the next worker begins at once."""
    stopping = workers.start(BOTH_QUEUES, concurrency=1)
    task = make_task(alice, "once:until never", rule=rule)
    wait_until(lambda: ocr_calls(task))
    stopping.send_stop_signal()
    wait_until(lambda: not stopping.alive)
    state = runstate.read(task.pk)
    assert state
    assert (state.token, state.attempts["ocr"]) == ("", 0)
    assert documents() == []
    workers.start(BOTH_QUEUES, concurrency=1)
    wait_until(lambda: completed(task))
    assert attempts(task) == (1, 1)


@pytest.mark.slow
def test_code_that_ignores_the_timeout_is_stopped(
    alice: User, rule: Rule, workers: Workers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """B9, B12: Celery's own limit backs up ETL_TASK_TIMEOUT."""
    # Celery's limit is a second longer. It must be reached while the processor stalls, even if the machine pauses.
    monkeypatch.setenv("ETL_TASK_TIMEOUT", "8")
    monkeypatch.setenv("ETL_OCR_MAX_ATTEMPTS", "1")
    workers.start(BOTH_QUEUES, concurrency=1)
    task = make_task(alice, "stall 60", rule=rule)
    wait_until(lambda: status(task) == "failed", limit=60)
    error = Task.objects.get(pk=task.pk).error
    assert error
    assert error["code"] == "ocr_timeout"


# ---- Redis and the broker -------------------------------------------------------------------------------------------
@pytest.mark.slow
def test_losing_all_redis_data_loses_no_task(alice: User, rule: Rule, workers: Workers) -> None:
    """B10: FLUSHALL right after submission, during OCR, and during post-processing. Finished OCR is not repeated."""
    waiting = make_task(alice, "Hello.", rule=rule)
    valkey().flushall()
    in_ocr = make_task(alice, "once:until never", rule=rule)
    in_post = make_task(alice, "post:once:until never", rule=rule)
    workers.start(ALL, concurrency=3)
    wait_until(lambda: ocr_calls(in_ocr) and post_calls(rule))
    valkey().flushall()
    workers.start_beat()
    wait_until(lambda: completed(waiting, in_ocr, in_post), limit=60)

    assert all(has_expected_result(task) for task in (waiting, in_ocr, in_post))
    assert (ocr_calls(in_ocr), ocr_calls(in_post)) == (2, 1)
    assert min(Task.objects.values_list("generation", flat=True)) > 1


@pytest.mark.slow
def test_losing_all_messages_loses_no_task(alice: User, rule: Rule, workers: Workers) -> None:
    """B2, B10: before the first stage, and between the two."""
    workers.start("etl-ocr", concurrency=1)
    between = make_task(alice, "Hello.", rule=rule)
    wait_until(lambda: valkey().llen("etl-postprocess"))
    waiting = [make_row(alice, "Hello.", rule=rule) for _ in range(3)]
    for task in waiting:
        runstate.create(task, stage=Stage.OCR)
    valkey().delete("etl-ocr", "etl-postprocess")
    workers.start("etl-postprocess,maintenance", concurrency=1)
    workers.start_beat()
    wait_until(lambda: completed(between, *waiting))
    assert ocr_calls(between) == 1


@pytest.mark.slow
def test_a_broker_outage_at_the_end_of_ocr_loses_no_task(
    alice: User,
    rule: Rule,
    workers: Workers,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    """B2, B10: the next stage cannot be enqueued. The broker restarts empty."""
    (tmp_path / "broker").mkdir()
    broker = Valkey(tmp_path / "broker", KeptSettings(tmp_path / "broker"), durable=False)
    broker.start()
    try:
        with broker_at(broker.url()):
            monkeypatch.setenv("CELERY_BROKER_URL", broker.url())  # only within broker_at, because Celery reads it too
            worker = workers.start(ALL, concurrency=1)
            task = make_task(alice, "until broker-gone", rule=rule)
            wait_until(lambda: ocr_calls(task))
            broker.kill()
            scripted_stages.allow("broker-gone")
            wait_until(lambda: "stage_done" in worker.log.read_text())
            (broker.data / "appendonlydir").rename(tmp_path / "lost")
            broker.start()
            workers.start_beat()
            wait_until(lambda: completed(task), limit=60)
        assert ocr_calls(task) == 1
    finally:
        broker.kill()


# ---- Cancel ---------------------------------------------------------------------------------------------------------
@pytest.mark.slow
def test_a_cancel_racing_a_start_has_exactly_one_winner(alice: User, rule: Rule, workers: Workers) -> None:
    """B6: 200 times, with real workers. A cancelled document is processed no further than its stage at that moment,
    and every other document has a result.
    """
    workers.start(BOTH_QUEUES, concurrency=3)
    make_task(alice, "Hello.", rule=rule)
    wait_until(lambda: post_calls(rule))
    cancelled, refused = [], []
    for number in range(200):
        task = make_task(alice, "Hello.", rule=rule)
        # With different delays, so that both sides win sometimes, on slow and fast machines.
        threading.Event().wait(number % 5 * 0.02)
        try:
            actions.cancel(task=task)
        except actions.NotCancellable:
            refused.append(task)
        else:
            cancelled.append(task)
    wait_until(lambda: not Task.objects.open().exists(), limit=60)

    assert [status(task) for task in cancelled] == ["cancelled"] * len(cancelled)
    assert [status(task) for task in refused] == ["completed"] * len(refused)
    # A document that was cancelled while it waited for post-processing had already been read.
    assert all(ocr_calls(task) <= 1 for task in cancelled)
    assert all(ocr_calls(task) == 1 for task in refused)
    assert post_calls(rule) == 1 + len(refused)
    assert cancelled
    assert refused


@pytest.mark.slow
def test_beat_schedules_recovery(workers: Workers) -> None:
    """B10: `etl.recover` is sent to the queue of the maintenance worker."""
    workers.start("maintenance", concurrency=1)
    workers.start_beat()
    wait_until(lambda: valkey().exists(f"etl:{recovery.NAME}"))
