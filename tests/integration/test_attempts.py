"""Attempts of post-processing: an attempt that makes more progress than the previous one is not counted (B42).

The tests run real strategies against a scripted model server, and the stages in this process.
"""

import importlib
import re
from typing import Any

import pytest
from django.conf import LazySettings
from django.contrib.auth.models import User

from etl.core.states import Stage
from etl.models import Task
from tests.conftest import change_settings
from tests.integration.etl_factories import make_rule, make_task
from tests.integration.openai_server import ModelServer, Reply, Request, data_reply, problem
from tests.integration.stage_runs import ConfigureStages, row_of, run, run_when_due, seen

SCHEMA = {
    "type": "object",
    "properties": {"parts": {"type": "array", "items": {"type": "integer"}}},
    "required": ["parts"],
}
PIECES = 6
TEXT = "\n\n".join(f"# Part {number}\n\n{'word ' * 50}" for number in range(1, PIECES + 1))


@pytest.fixture
def models(model_server: ModelServer, settings: LazySettings) -> ModelServer:
    change_settings(
        settings,
        etl_postprocess_chunk_threshold_chars=500,
        etl_postprocess_chunk_size_chars=300,
        etl_postprocess_parallel=1,
        etl_postprocess_max_attempts=2,
    )
    return model_server


def part_of(request: Request) -> int:
    found = re.search(r"^# Part (\d+)$", request.message("user"), re.MULTILINE)
    return int(found[1]) if found else 0


def task_of(user: User) -> Task:
    task = make_task(user, TEXT, rule=make_rule(user, mode="llm", json_schema=SCHEMA))
    run(task, Stage.OCR)
    return task


def run_to_the_end(task: Task) -> int:
    """Run the stage whenever it is due. Return the number of runs."""
    for number in range(1, 21):
        run_when_due(task, Stage.POSTPROCESS)
        if row_of(task).status in ("completed", "failed"):
            return number
    raise AssertionError("the stage does not end")


@pytest.mark.slow
def test_attempts_that_make_progress_are_not_counted(models: ModelServer, alice: User) -> None:
    """Otherwise, a few transient errors would make a document fail, although each attempt makes progress."""
    refused: set[int] = set()

    def answer(request: Request) -> Reply:
        part = part_of(request)
        if part not in refused:
            refused.add(part)
            return problem(503)
        return data_reply({"parts": [part]})

    models.set_default(answer)
    task = task_of(alice)
    run_to_the_end(task)

    row = row_of(task)
    assert row.status == "completed", row.error
    assert row.metadata["attempts"] == {"ocr": 1, "postprocess": 2}  # the first one made no progress
    requested = [part_of(request) for request in models.requests]
    assert requested == [part for part in range(1, PIECES + 1) for _ in range(2)]


def test_attempts_without_progress_are_counted(models: ModelServer, alice: User) -> None:
    models.set_default(lambda request: problem(503) if part_of(request) == 3 else data_reply({"parts": [1]}))
    task = task_of(alice)

    assert run_to_the_end(task) == 3  # the first one reached the third part

    row = row_of(task)
    assert row.error is not None
    assert (row.status, row.error["code"]) == ("failed", "llm_unavailable")
    assert row.metadata["attempts"]["postprocess"] == 2


@pytest.mark.slow
def test_a_slow_model_that_makes_progress_does_not_fail(
    models: ModelServer, alice: User, configure_stages: ConfigureStages
) -> None:
    """If each run counted, the task would fail with `timeout` after the second one."""

    def answer(request: Request) -> Reply:
        models.stopped.wait(1)
        return data_reply({"parts": [part_of(request)]})

    models.set_default(answer)
    task = task_of(alice)
    importlib.import_module("openai")  # the first call imports it, which takes a second
    configure_stages(etl_task_timeout=2.5)
    runs = run_to_the_end(task)

    row = row_of(task)
    assert row.status == "completed", row.error
    assert runs > 2  # the maximum number of attempts
    assert seen(task).attempts["postprocess"] < runs


@pytest.mark.slow
def test_a_model_that_is_too_slow_for_one_call_fails(
    models: ModelServer, alice: User, configure_stages: ConfigureStages
) -> None:
    def answer(request: Request) -> Reply:
        models.stopped.wait(30)
        return data_reply({})

    models.set_default(answer)
    task = task_of(alice)
    configure_stages(etl_task_timeout=0.5)

    assert run_to_the_end(task) == 2

    row = row_of(task)
    assert row.error is not None
    assert row.error["code"] == "timeout"


def test_calls_in_threads_are_counted_and_stored(models: ModelServer, alice: User, configure_stages: Any) -> None:
    configure_stages(etl_postprocess_parallel=4)
    models.set_default(lambda request: data_reply({"parts": [part_of(request)]}))
    task = task_of(alice)
    run_to_the_end(task)

    row = row_of(task)
    assert row.status == "completed", row.error
    assert row.result is not None
    assert row.result["data"]["parts"] == list(range(1, PIECES + 1))
    assert row.metadata["postprocess"]["usage"]["calls"] == len(models.requests) == PIECES
    assert seen(task).usage["calls"] == PIECES
