"""The previous result during a retry, and the display of waiting tasks."""

from typing import Any

import pytest
from django.contrib.auth.models import User
from django.test import Client
from rest_framework.test import APIClient

from etl import runstate
from etl.core.states import Stage
from etl.models import Task
from etl.pipeline import actions, artifacts
from tests.broker import valkey
from tests.integration.etl_factories import make_rule, make_task
from tests.integration.stage_runs import row_of, run

pytestmark = pytest.mark.usefixtures("configure_stages")


@pytest.fixture
def task(alice: User) -> Task:
    """A completed task."""
    created = make_task(alice, "Hello.", rule=make_rule(alice, mode="llm", name="first"))
    run(created)
    return created


def shown(api: APIClient, task: Task) -> Any:
    return api.get(f"/api/v1/etl/tasks/{task.pk}").json()


def retry(task: Task, alice: User, name: str, *, fails: bool = False) -> None:
    """Retry with another rule. `fails`: the run fails, because the mode of the rule does not exist."""
    rule = make_rule(alice, mode="unknown" if fails else "llm", name=name)
    content = actions.rule_of(task, rule.pk, user=alice)
    actions.retry(task=row_of(task), from_stage=Stage.POSTPROCESS, rule_content=content)


def test_the_previous_result_stays_during_a_retry_and_after_its_failure(
    task: Task, api: APIClient, alice: User
) -> None:
    first = shown(api, task)["result"]
    assert shown(api, task)["previous_result"] is None
    retry(task, alice, "second", fails=True)

    waiting = shown(api, task)
    run(task, Stage.POSTPROCESS)
    failed = shown(api, task)
    valkey().flushall()
    later = shown(api, task)

    assert [each["status"] for each in (waiting, failed, later)] == ["pending", "failed", "failed"]
    assert [each["result"] for each in (waiting, failed, later)] == [None] * 3
    assert [each["previous_result"] for each in (waiting, failed, later)] == [first] * 3
    assert first["output_s3_key"] == f"{artifacts.folder(task)}result-1/output.json"


def test_a_new_result_replaces_the_previous_one(task: Task, api: APIClient, alice: User) -> None:
    retry(task, alice, "second", fails=True)
    run(task, Stage.POSTPROCESS)
    retry(task, alice, "third")
    run(task, Stage.POSTPROCESS)

    done = shown(api, task)

    assert (done["status"], done["previous_result"]) == ("completed", None)
    assert done["result"]["output_s3_key"] == f"{artifacts.folder(task)}result-3/output.json"


def test_the_previous_result_stays_when_an_earlier_release_runs_the_retry(
    task: Task, api: APIClient, alice: User
) -> None:
    """Earlier releases clear and write only older columns."""
    first = shown(api, task)["result"]
    Task.objects.filter(pk=task.pk).update(
        status="failed", run=2, generation=2, result=None, error={"code": "timeout", "stage": "postprocess"}
    )
    valkey().flushall()

    assert shown(api, task)["previous_result"] == first


def test_the_page_shows_the_previous_result_with_its_rule(task: Task, alice: User, client: Client) -> None:
    first_rule = row_of(task).rule_id
    retry(task, alice, "second", fails=True)
    run(task, Stage.POSTPROCESS)
    client.force_login(alice)

    page = client.get(f"/app/documents/{task.pk}").content.decode()
    download = client.get(f"/app/documents/{task.pk}/json")

    assert f"This result is from an earlier run, with rule {first_rule}, version 1." in page
    assert "characters" in page
    assert download.json() == row_of(task).last_result["data"]


# ---- Waiting --------------------------------------------------------------------------------------------------------
def test_a_task_that_waits_for_a_worker_is_shown_as_waiting(api: APIClient, alice: User, client: Client) -> None:
    task = make_task(alice, "Hello.", rule=make_rule(alice, mode="llm", name="later"))
    run(task, Stage.OCR)
    client.force_login(alice)

    waiting = shown(api, task)
    page = client.get(f"/app/documents/{task.pk}").content.decode()

    assert (waiting["status"], waiting["progress"], waiting["waiting"]) == ("llm_processing", 50, True)
    assert "Waiting for a worker." in page
    run(task, Stage.POSTPROCESS)
    assert shown(api, task)["waiting"] is False


def test_a_task_held_by_a_worker_is_not_shown_as_waiting(api: APIClient, alice: User) -> None:
    task = make_task(alice, "Hello.")
    assert runstate.start(task.pk, stage=Stage.OCR).moved
    assert shown(api, task)["waiting"] is False
