"""OpenAPI texts, parameters, and examples of the operations on samples and evaluations of rules."""

from typing import Any

from drf_spectacular.utils import OpenApiParameter

from config.platform.http.openapi.responses import (
    LinkedResponse,
    idempotency_key,
    link_to,
    location,
    request_example,
    response_example,
    retry_after,
)
from etl.api import evaluation_schemas as schemas

EXPECTED = {"number": "2026-0042", "total": 118.5}
SAMPLE = {
    "sample_id": 4,
    "task_id": 17,
    "filename": "invoice.pdf",
    "expected": EXPECTED,
    "created_at": "2026-03-01T09:00:00.000000Z",
}
EVALUATION: dict[str, Any] = {
    "number": 2,
    "status": "completed",
    "version": 3,
    "samples": 20,
    "ended": 20,
    "failed": 0,
    "accuracy": 0.975,
    "fields": {"/number": 1, "/total": 0.95},
    "usage": {"prompt_tokens": 24120, "completion_tokens": 1310, "calls": 20},
    "duration_ms": 61200,
    "error": None,
    "created_at": "2026-03-01T09:00:00.000000Z",
    "ended_at": "2026-03-01T09:00:34.120000Z",
}
EARLIER = {**EVALUATION, "number": 1, "version": 2, "accuracy": 0.9, "fields": {"/number": 1, "/total": 0.8}}
COMPARED = {
    "a": EARLIER,
    "b": EVALUATION,
    "change": 0.075,
    "same_samples": True,
    "fields": [
        {"pointer": "/number", "a": 1, "b": 1, "change": 0},
        {"pointer": "/total", "a": 0.8, "b": 0.95, "change": 0.15},
    ],
    "samples": [{"sample_id": 4, "task_id": 17, "a": 0.5, "b": 1, "change": 0.5}],
}
STARTED = LinkedResponse(
    schemas.Evaluation,
    "The evaluation is stored, and survives process crashes.",
    evaluation=link_to(
        "getEvaluation",
        "The progress of the evaluation and, at the end, its accuracy.",
        rule_id="$request.path.rule_id",
        number="$response.body#/number",
    ),
)
LIST_SAMPLES: dict[str, Any] = {
    "summary": "List the samples of a rule",
    "description": "Returns the samples, newest first. Only the owner of a rule can see them.",
    "examples": [response_example("A sample", SAMPLE)],
}
ADD_SAMPLE: dict[str, Any] = {
    "summary": "Add a sample to a rule",
    "description": """Adds a `file` with the data that the rule should extract from it. The file is submitted with the
rule like any other document, and becomes a task of yours. `expected` is JSON as text, and must match the schema of the
rule's current version. Errors have pointers such as `/expected/total`.

If the task is already a sample of the rule, `expected` is replaced, and the response is 200. A sample is deleted with
its task. A rule can have up to 200 samples.""",
    "parameters": [
        idempotency_key(
            "valid for as long as the task of the `file` exists. A repeated request does not create another task."
        ),
        location(201, "The samples."),
    ],
    "examples": [
        response_example("Added", SAMPLE, status=201),
        response_example("Replaced", SAMPLE),
    ],
}
ADD_TASK_SAMPLE: dict[str, Any] = {
    **ADD_SAMPLE,
    "summary": "Add a task as a sample",
    "description": "Adds one of your tasks with the data that the rule should extract from its document. Everything "
    "else is as for `POST /api/v1/etl/rules/{rule_id}/samples`, which takes the same JSON too.",
    "parameters": [location(201, "The samples.")],
    "examples": [
        request_example("A task", {"task_id": 17, "expected": EXPECTED}),
        *ADD_SAMPLE["examples"],
    ],
}
DELETE_SAMPLE: dict[str, Any] = {
    "summary": "Delete a sample",
    "description": "Deletes the sample and its results in evaluations. The task and the accuracies of evaluations are "
    "kept.",
}
LIST: dict[str, Any] = {
    "summary": "List the evaluations of a rule",
    "description": "Returns the evaluations, newest first. Only the owner of a rule can see them.",
    "examples": [response_example("An evaluation", EVALUATION)],
}
START: dict[str, Any] = {
    "summary": "Evaluate a version of a rule",
    "description": """Runs a version of the rule, by default the current one, on all samples, and compares the results
with the expected data. OCR does not run again: the stored Markdown is used. Workers process at most two samples of a
user at a time. If the rule calls a model, each sample counts as a rule test (see `GET /api/v1/etl/limits`).

Poll the URL in `Location` until the `status` is not `running`. If the model was unavailable for a sample, the
evaluation ends as `failed`, without an accuracy.""",
    "parameters": [location(202, "The evaluation."), retry_after(202, "evaluation", required=True)],
    "examples": [
        request_example("A version", {"version": 3}),
        response_example(
            "Started",
            {
                **EVALUATION,
                "status": "running",
                "ended": 0,
                "accuracy": None,
                "fields": {},
                "usage": {"prompt_tokens": 0, "completion_tokens": 0, "calls": 0},
                "duration_ms": 0,
                "ended_at": None,
            },
            status=202,
        ),
    ],
}
GET: dict[str, Any] = {
    "summary": "Get an evaluation",
    "description": """Returns the progress and, at the end, the accuracy: the share of expected and extracted values
that agree. Numbers must be equal (1.0 equals 1.00). Text is compared without regard to case and white space. Similar
text counts in part, unless a digit differs. The order of lists does not matter. Missing and additional values are
wrong.""",
    "parameters": [retry_after(200, "evaluation")],
    "examples": [response_example("Completed", EVALUATION)],
}
CANCEL: dict[str, Any] = {
    "summary": "Cancel an evaluation",
    "description": "Cancels a running evaluation. Its workers stop within a few seconds. Rule tests stay charged.",
    "examples": [
        request_example("An empty body", {}),
        response_example("Cancelled", {**EARLIER, "status": "cancelled", "accuracy": None, "fields": {}}),
    ],
}
COMPARE: dict[str, Any] = {
    "summary": "Compare two evaluations",
    "description": "Returns the accuracies of two evaluations of a rule side by side, by field and by sample.",
    "parameters": [
        OpenApiParameter(name, {"type": "integer", "minimum": 1}, required=True, description="Number of an evaluation.")
        for name in ("a", "b")
    ],
    "examples": [response_example("Two versions", COMPARED)],
}
