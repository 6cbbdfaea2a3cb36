"""Invalid responses of models, which make a task fail: the error, and access to the stored response (B17)."""

import json
from typing import Any

import pytest
import structlog
from django.contrib.admin.models import LogEntry
from django.contrib.auth.models import User
from django.test import Client

from config.platform import storage
from etl.models import Task
from etl.pipeline import artifacts
from tests.conftest import client_of
from tests.integration.etl_factories import make_rule, make_task
from tests.integration.llm_factories import INVOICE
from tests.integration.openai_server import ModelServer, data_reply, text_reply
from tests.integration.stage_runs import ConfigureStages, row_of, run

SECRET = "Confidential sum of Alice"
MANY = {"type": "object", "properties": {f"f{n:02}": {"type": "integer"} for n in range(32)}}
pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def models(model_server: ModelServer, configure_stages: ConfigureStages) -> ModelServer:
    configure_stages(etl_ocr_provider="local")
    return model_server


def run_invoice(user: User, schema: Any = INVOICE) -> Task:
    task = make_task(user, "Invoice 1", rule=make_rule(user, mode="llm", json_schema=schema))
    run(task)
    return row_of(task)


def path(task: Task) -> str:
    return f"/api/v1/etl/tasks/{task.pk}/answer"


def text_of(response: Any) -> str:
    assert response.status_code == 200, response.content
    return b"".join(response.streaming_content).decode()


def test_the_error_lists_invalid_values_up_to_a_limit(models: ModelServer, alice: User) -> None:
    """B17: its detail has twenty pointers, and the number of the remaining ones."""
    models.set_default(data_reply({f"f{n:02}": "no number" for n in range(32)}))

    error = run_invoice(alice, MANY).error

    assert error is not None
    assert error["code"] == "schema_validation"
    assert error["detail"].count("/f") == 20
    assert error["detail"].endswith("And 12 more.")


@pytest.mark.parametrize("text", [json.dumps({"number": SECRET}), f"Sorry: {SECRET}"], ids=["invalid", "prose"])
def test_the_last_response_is_kept_for_the_owner(models: ModelServer, alice: User, bob: User, text: str) -> None:
    """B17: it is unchanged. Other users get 404, and it is not logged."""
    models.enqueue(text_reply("First."), text_reply("Second."), text_reply(text))
    with structlog.testing.capture_logs() as lines:
        task = run_invoice(alice)

    assert task.error is not None
    assert SECRET not in json.dumps([task.error, lines], default=str)
    response = client_of(alice).get(path(task))
    assert response["Content-Type"] == "text/plain; charset=utf-8"
    assert text_of(response) == text
    assert client_of(bob).get(path(task)).status_code == 404


def test_a_truncated_response_is_kept(models: ModelServer, alice: User) -> None:
    models.enqueue(text_reply('{"number": "1', finish="length"))
    task = run_invoice(alice)
    assert task.error is not None
    assert task.error["code"] == "llm_truncated"
    assert text_of(client_of(alice).get(path(task))) == '{"number": "1'


def test_the_page_of_a_document_links_to_the_invalid_response(models: ModelServer, alice: User, client: Client) -> None:
    models.set_default(text_reply(SECRET))
    task = run_invoice(alice)
    client.force_login(alice)
    page = client.get(f"/app/documents/{task.pk}").content.decode()
    assert f'href="/app/documents/{task.pk}/answer"' in page
    assert SECRET not in page
    download = client.get(f"/app/documents/{task.pk}/answer")
    assert text_of(download) == SECRET
    assert download["Content-Disposition"].startswith("attachment")


def test_staff_can_open_an_invalid_response_and_this_is_recorded(
    models: ModelServer, alice: User, staff: User, pages: Client
) -> None:
    """B17, C4."""
    models.set_default(text_reply(SECRET))
    task = run_invoice(alice)
    admin = pages.get(f"/admin/etl/task/{task.pk}/change/").content.decode()
    assert f'href="/app/documents/{task.pk}/answer"' in admin
    assert SECRET not in admin

    assert text_of(client_of(staff).get(path(task))) == SECRET

    [entry] = LogEntry.objects.filter(user=staff, object_id=str(task.pk), change_message__contains="response")
    assert SECRET not in entry.change_message


def test_a_completed_task_has_no_invalid_response(models: ModelServer, alice: User, client: Client) -> None:
    models.set_default(data_reply({"number": "1", "total": 1}))
    task = run_invoice(alice)
    assert task.status == "completed"
    response = client_of(alice).get(path(task))
    assert (response.status_code, response.json()["code"]) == (404, "no_answer")
    client.force_login(alice)
    assert "/answer" not in client.get(f"/app/documents/{task.pk}").content.decode()


def test_an_invalid_response_is_deleted_with_its_task(models: ModelServer, alice: User) -> None:
    """B34."""
    models.set_default(text_reply(SECRET))
    task = run_invoice(alice)
    assert storage.head(artifacts.answer_key(task))
    assert client_of(alice).delete(f"/api/v1/etl/tasks/{task.pk}").status_code == 204
    assert storage.head(artifacts.answer_key(task)) is None
