"""C4, B1, B5: responses of document ETL match the OpenAPI schema."""

from contextlib import closing
from typing import Any

import jsonschema
import pytest
from django.conf import LazySettings
from django.contrib.auth.models import User
from django.core.files.uploadedfile import SimpleUploadedFile
from rest_framework.test import APIClient

from etl.models import Task
from tests.conftest import change_settings
from tests.integration.etl_factories import make_task
from tests.integration.etl_progress import complete, fail, read
from tests.integration.test_etl_api import forget, path
from tests.integration.test_etl_submission import RTF, SUBMIT, TEXT
from tests.integration.test_schema import Api, anyone, checked, formats, schema  # noqa: F401

UPLOADED = f"{SUBMIT}/uploaded"

pytestmark = pytest.mark.usefixtures("transactional_db", "empty_redis")
TASKS = "/api/v1/etl/tasks"
BATCHES = "/api/v1/etl/batches"
UPLOADS = "/api/v1/etl/uploads"


def send(api: Api, content: bytes = TEXT, **how: Any) -> Any:
    return api.post(SUBMIT, {"file": SimpleUploadedFile("a.txt", content)}, format="multipart", **how)


def test_a_task_matches_from_submission_to_end(checked: Api) -> None:  # noqa: F811
    assert send(checked).status_code == 202
    task = Task.objects.get()
    assert checked.get(path(task)).json()["status"] == "pending"
    assert checked.get(path(task, "markdown")).status_code == 409
    complete(task)
    assert checked.get(path(task)).json()["result"]
    assert checked.get(f"{path(task)}?wait=5").status_code == 200
    with closing(checked.get(path(task, "markdown"))) as answer:
        assert answer.status_code == 200
    assert checked.get(path(task, "events")).status_code == 200
    forget(task)
    assert checked.get(path(task)).json()["result"]
    assert len(checked.get(TASKS).json()["results"]) == 1
    assert checked.post(path(task, "cancel")).status_code == 409
    assert checked.post(path(task, "retry"), {"from_stage": "postprocess"}).status_code == 202
    assert checked.post(path(task, "retry"), {"from_stage": "ocr"}).status_code == 409


def test_a_batch_matches_from_submission_to_end(checked: Api) -> None:  # noqa: F811
    """B36."""
    files = [SimpleUploadedFile("a.txt", TEXT), SimpleUploadedFile("b.rtf", RTF)]
    answer = checked.post(BATCHES, {"file": files}, format="multipart")
    assert answer.status_code == 202
    at = answer.json()["status_url"]
    assert checked.get(at).json()["status"] == "running"
    assert checked.post(f"{at}/retry", {}).status_code == 409
    fail(Task.objects.get())
    assert checked.get(BATCHES).json()["results"][0]["status"] == "completed_with_errors"
    assert checked.post(f"{at}/cancel", {}).status_code == 409
    assert checked.post(f"{at}/retry", {}).status_code == 202
    assert checked.post(f"{at}/cancel", {}).json()["status"] == "cancelled"
    assert checked.get(f"{at}/results?format=xlsx").status_code == 400
    assert checked.get(f"{BATCHES}/999999").status_code == 404
    assert checked.post(BATCHES, {"file_keys": []}).status_code == 400


def test_failed_and_cancelled_tasks_match(checked: Api, alice: User) -> None:  # noqa: F811
    failed, cancelled, running = (make_task(alice) for _ in range(3))
    fail(failed)
    read(running)
    assert checked.post(path(cancelled, "cancel")).status_code == 200
    assert {item["status"] for item in checked.get(TASKS).json()["results"]} == {
        "failed", "cancelled", "llm_processing",
    }  # fmt: skip
    for task in (failed, cancelled, running):
        assert checked.get(path(task)).status_code == 200
    assert checked.post(path(failed, "retry"), {"from_stage": "postprocess"}).json()["code"] == "artifact_missing"


def test_upload_urls_match(checked: Api) -> None:  # noqa: F811
    body = {"filename": "a.pdf", "content_type": "application/pdf", "size": 5}
    assert checked.post(UPLOADS, body).status_code == 201
    assert checked.post(UPLOADS, body | {"size": 0}).json()["code"] == "empty_document"
    assert checked.post(UPLOADS, body | {"size": 2**40}).status_code == 413
    assert checked.post(UPLOADS, body | {"content_type": "video/mp4"}).status_code == 415


def test_refusals_match(checked: Api, settings: LazySettings) -> None:  # noqa: F811
    assert send(checked, b"").json()["code"] == "empty_document"
    assert send(checked, RTF).status_code == 415
    assert checked.post(SUBMIT, "x", content_type="text/plain").status_code == 415
    assert checked.post(SUBMIT, {"file_key": "x"}).status_code == 400
    assert send(checked, headers={"Idempotency-Key": "k"}).status_code == 202
    assert send(checked, b"Other.", headers={"Idempotency-Key": "k"}).status_code == 422
    change_settings(settings, etl_queue_size=1)
    assert send(checked).status_code == 503
    change_settings(settings, etl_max_file_bytes=1)
    assert send(checked).status_code == 413


def test_unauthorized_and_unknown_requests_match(checked: Api, anyone: Api, alice: User) -> None:  # noqa: F811
    task = make_task(alice)
    for rest in ("", "/markdown", "/events"):
        assert anyone.get(path(task) + rest).status_code == 401
        assert checked.get(f"{TASKS}/{task.pk + 1}{rest}").status_code == 404
    for query in ("status=odd", "limit=201", "cursor=odd"):
        assert checked.get(f"{TASKS}?{query}").status_code == 400


@pytest.mark.parametrize(
    ("url", "body", "good"),
    [
        (UPLOADED, {"file_key": "x"}, True),
        (UPLOADED, {"file_key": "x", "rule_id": None}, True),
        (UPLOADED, {"file_key": "x", "rule_id": 3}, True),
        (UPLOADED, {"file_key": "x", "rule_id": "3"}, False),
        (UPLOADED, {"file_key": "x", "rule_id": 0}, False),
        (UPLOADED, {"file_key": ""}, False),
        (UPLOADED, {"rule_id": 3}, False),
        (UPLOADED, {"file_key": "x", "more": 1}, False),
        (UPLOADS, {"filename": "", "content_type": "text/plain", "size": 5}, True),
        (UPLOADS, {"filename": "a", "content_type": "text/plain; charset=utf-8", "size": 5}, True),
        (UPLOADS, {"filename": "a", "content_type": "plain", "size": 5}, False),
        (UPLOADS, {"filename": "a", "content_type": "text/plain", "size": "5"}, False),
        (UPLOADS, {"filename": "a", "content_type": "text/plain", "size": -5}, False),
        (f"{TASKS}/17/retry", {"from_stage": "ocr"}, True),
        (f"{TASKS}/17/retry", {"from_stage": "postprocess", "rule_id": 1}, True),
        (f"{TASKS}/17/retry", {"from_stage": "x"}, False),
        (f"{TASKS}/17/retry", {"rule_id": 1}, False),
    ],
)
def test_the_schema_accepts_what_the_service_accepts(
    api: APIClient,
    alice: User,
    schema: dict[str, Any],  # noqa: F811
    url: str,
    body: dict[str, Any],
    *,
    good: bool,
) -> None:
    """The schema describes the format of a request, not whether its `file_key` or `rule_id` exists."""
    if "17" in url:
        task = make_task(alice)
        fail(task)
        response = api.post(path(task, "retry"), body)
    else:
        response = api.post(url, body)
    unknown = {"unknown_file", "unknown_rule"}
    errors = {error["code"] for error in response.json().get("errors", [])}
    assert (response.status_code != 400 or errors <= unknown) is good, response.content

    template = url.replace("17", "{task_id}")
    shape = schema["paths"][template]["post"]["requestBody"]["content"]["application/json"]["schema"]
    whole = {**shape, "components": schema["components"]}
    assert jsonschema.Draft202012Validator(whole, format_checker=formats).is_valid(body) is good
