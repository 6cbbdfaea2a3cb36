"""A custom post-processor: a class (`tests.integration.words`) and its entry in ETL_POSTPROCESSORS. B22."""

from io import BytesIO
from typing import Any

import pytest
from rest_framework.test import APIClient

from etl.models import Task
from etl.pipeline import artifacts, checks
from tests.integration import words
from tests.integration.stage_runs import row_of, run

RULES = "/api/v1/etl/rules"
NO_USAGE = {"prompt_tokens": 0, "completion_tokens": 0, "calls": 0}


@pytest.fixture(autouse=True)
def _custom_processor(settings: Any, configure_stages: object) -> None:
    settings.ETL_POSTPROCESSORS = {**settings.ETL_POSTPROCESSORS, words.MODE: words.PATH}


def make_rule(api: APIClient, **fields: Any) -> dict[str, Any]:
    response = api.post(RULES, {"name": "Words", "postprocess_mode": words.MODE, **fields})
    assert response.status_code == 201, response.content
    made: dict[str, Any] = response.json()
    return made


def submit(api: APIClient, text: str, *, rule: dict[str, Any]) -> Task:
    document = BytesIO(text.encode())
    document.name = "paper.txt"
    response = api.post("/api/v1/etl/submit", {"file": document, "rule_id": rule["rule_id"]}, format="multipart")
    assert response.status_code == 202, response.content
    return Task.objects.get(pk=response.json()["task_id"])


def test_a_rule_can_use_a_custom_processor_without_a_schema(api: APIClient) -> None:
    """B22, B23."""
    rule = make_rule(api)
    path = f"{RULES}/{rule['rule_id']}"

    assert (rule["postprocess_mode"], rule["json_schema"]) == (words.MODE, None)
    assert api.patch(path, {"postprocess_mode": "skip"}).json()["version"] == 2
    assert api.patch(path, {"postprocess_mode": words.MODE}).json()["version"] == 3
    refused = api.patch(path, {"postprocess_mode": "llm"}).json()
    assert [(error["pointer"], error["code"]) for error in refused["errors"]] == [("/json_schema", "required")]


@pytest.mark.parametrize(
    ("prompt", "data"), [("", {"words": [2, 3]}), ("three", {"words": [0, 1]}), ("seven", None)], ids=str
)
def test_a_rule_with_a_custom_processor_can_be_tested(api: APIClient, prompt: str, data: object) -> None:
    """B22, B27: null is valid data too."""
    rule = make_rule(api, system_prompt=prompt)
    markdown = "<!-- page: 1 -->\none two\n<!-- page: 2 -->\nthree four five"

    answer = api.post(f"{RULES}/{rule['rule_id']}/test", {"markdown": markdown}).json()

    assert (answer["ok"], answer["usage"], answer["warnings"]) == (True, NO_USAGE, [])
    result = answer["result"]
    assert (result["data"], result["citations"], result["output_s3_key"]) == (data, [], None)
    assert result["metadata"]["provenance"]["mode"] == words.MODE


@pytest.mark.parametrize(("prompt", "data"), [("Hello.", {"words": [1]}), ("Goodbye.", None)])
def test_a_task_with_a_custom_processor_is_processed(api: APIClient, prompt: str, data: object) -> None:
    """B22, B15."""
    task = submit(api, "Hello. World.", rule=make_rule(api, system_prompt=prompt))
    assert run(task) == [True, True]

    row = row_of(task)
    assert row.status == "completed"
    assert row.result
    assert (row.result["data"], row.result["citations"]) == (data, [])
    assert row.result["output_s3_key"] == f"{artifacts.result_folder(row)}output.json"
    assert api.get(f"/api/v1/etl/tasks/{task.pk}").json()["result"] == row.result


def test_a_task_with_a_removed_processor_fails_with_a_reason(api: APIClient, settings: Any) -> None:
    """B22: the entry may have been removed from the setting, or be missing in a worker's settings."""
    task = submit(api, "Hello.", rule=make_rule(api))
    settings.ETL_POSTPROCESSORS = {"skip": settings.ETL_POSTPROCESSORS["skip"]}
    run(task)

    row = row_of(task)
    assert row.status == "failed"
    assert row.error
    assert (row.error["code"], row.error["retryable"]) == ("llm_unavailable", False)
    assert words.MODE in row.error["detail"]


@pytest.mark.parametrize(
    ("mode", "path", "fault"),
    [
        (words.MODE, words.PATH, None),
        (words.MODE, "missing.Words", "etl.E004"),
        (words.MODE, "pathlib.Path", "etl.E005"),
        ("count", words.PATH, "etl.E006"),
    ],
)
def test_an_invalid_entry_is_reported(settings: Any, mode: str, path: str, fault: str | None) -> None:
    """B22."""
    settings.ETL_POSTPROCESSORS = {mode: path}
    assert [message.id for message in checks.processors()] == ([fault] if fault else [])
