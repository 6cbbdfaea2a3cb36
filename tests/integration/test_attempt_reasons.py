"""The page of a document during its processing: time, failed attempts, and the previous text and result. B33."""

import re
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.test import Client

from etl.core.states import Stage
from etl.models import Task
from etl.pipeline import actions
from tests.conftest import browser_of
from tests.integration.etl_factories import make_task
from tests.integration.etl_progress import begin
from tests.integration.reviewed import make_invoice
from tests.integration.stage_runs import ConfigureStages, row_of, run, run_when_due

UPDATE = {"HX-Request": "true", "HX-Target": "document"}  # the request that the page sends after an event
pytestmark = pytest.mark.usefixtures("configure_stages")


@pytest.fixture
def client(alice: User) -> Client:
    return browser_of(alice)


def page(client: Client, task: Task, **headers: str) -> str:
    return str(client.get(f"/app/documents/{task.pk}", headers=headers).content.decode())


def test_failed_attempts_have_reasons_during_and_after_the_task(
    alice: User, client: Client, configure_stages: ConfigureStages, api: Any
) -> None:
    """B33: the API and the page show them."""
    task = make_task(alice, "raise ProviderUnavailable")
    run(task, Stage.OCR)

    (failed,) = api.get(f"/api/v1/etl/tasks/{task.pk}").json()["metadata"]["failed_attempts"]
    assert (failed["stage"], failed["attempt"], failed["code"]) == ("ocr", 1, "provider_unavailable")
    assert "Attempt 1 failed: The OCR provider is unavailable." in page(client, task)

    for _ in range(2):
        run_when_due(task, Stage.OCR)
    shown = api.get(f"/api/v1/etl/tasks/{task.pk}").json()
    assert (shown["status"], shown["error"]["code"]) == ("failed", "provider_unavailable")
    assert [each["attempt"] for each in shown["metadata"]["failed_attempts"]] == [1, 2]
    assert "Attempt 2 failed" in page(client, task)


def test_a_running_stage_shows_its_time_and_limit_and_can_be_stopped(alice: User, client: Client) -> None:
    """B33."""
    task = make_task(alice)
    begin(task)
    shown = page(client, task)
    assert re.search(r'Running for <span data-elapsed="\d+">\d+ s</span>, at most 10 min\.', shown), shown
    assert 'type="submit">Stop</button>' in shown
    client.post(f"/app/documents/{task.pk}/cancel", {"force": "1"})
    assert row_of(task).status == "cancelled"


@pytest.mark.parametrize("stage", [Stage.POSTPROCESS, Stage.OCR])
def test_the_previous_text_and_result_are_shown_during_a_retry(alice: User, client: Client, stage: Stage) -> None:
    """B33: the fragments that the page fetches after events do not contain them."""
    task = make_invoice(alice)
    actions.retry(task=row_of(task), from_stage=stage)
    begin(task, stage)

    shown, fragment = page(client, task), page(client, task, **UPDATE)
    assert "Attempt 1 failed" not in shown
    for content in ("Invoice &lt;script", "INV-17", "This result is from an earlier run"):
        assert content in shown, content
        assert content not in fragment, content
    source = client.get(
        f"/app/documents/{task.pk}?view=source", headers={"HX-Request": "true", "HX-Target": "markdown"}
    )
    assert "Invoice &lt;script" in source.content.decode()
