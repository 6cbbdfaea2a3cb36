"""Types of response bodies. `representation` builds them, and the OpenAPI document is derived from them."""

from datetime import datetime
from functools import partial
from typing import Annotated, Any, NotRequired, TypedDict

from drf_spectacular.utils import PolymorphicProxySerializer, extend_schema_field
from rest_framework import serializers

from config.platform.http.openapi.response_schemas import Path, Url, choices, serializer_of
from etl.core import errors
from etl.core.states import Phase, Status

ERROR_CODES = sorted(errors.codes())
OBJECT = {"type": "object", "additionalProperties": True}
CITATIONS = {
    "type": "array",
    "description": "Where in the document each value of `data` was found. Absent with `skip`.",
    "items": {
        "type": "object",
        "required": ["pointer", "page", "quote", "match"],
        "properties": {
            "pointer": {"type": "string", "description": "RFC 6901 JSON Pointer into `data`."},
            "page": {"type": "integer", "minimum": 1},
            "quote": {"type": "string"},
            "match": {
                "type": "string",
                "enum": ["exact", "normalized", "numeric", "value"],
                "description": "How the quote was found, most reliable first. `value`: found by the value itself, "
                "without a quote from the model.",
            },
        },
    },
}


def result_shape(kind: str) -> dict[str, Any]:
    """Return the schema of a result. `kind` is the type of object keys and provider ids: null for a rule test."""
    return {
        **OBJECT,
        "required": ["markdown_s3_key", "provider_task_id", "metadata"],
        "properties": {
            "markdown_s3_key": {"type": kind},
            "provider_task_id": {"type": kind},
            "metadata": OBJECT,
            "data": {"description": "Extracted data, which conforms to the rule's schema. Absent with `skip`."},
            "output_s3_key": {"type": kind},
            "citations": CITATIONS,
        },
    }


@extend_schema_field(result_shape("string"))
class ResultField(serializers.JSONField):
    """The result of post-processing."""


@extend_schema_field(
    {
        **OBJECT,
        "description": "`pages`, `duration_ms`, `version`, and provider-specific fields. Empty until OCR is done.",
        "properties": {
            "pages": {"type": "integer"},
            "duration_ms": {"type": "integer"},
            "version": {"type": "string"},
        },
    }
)
class OcrField(serializers.JSONField):
    pass


@extend_schema_field(
    {
        **OBJECT,
        "description": "`strategy`, `model`, and the `usage` of all attempts. Empty until post-processing starts.",
        "properties": {
            "strategy": {"type": ["string", "null"]},
            "model": {"type": ["string", "null"]},
            "usage": {
                **OBJECT,
                "properties": {"prompt_tokens": {"type": "integer"}, "completion_tokens": {"type": "integer"}},
            },
        },
    }
)
class PostprocessField(serializers.JSONField):
    pass


class AcceptedTask(TypedDict):
    task_id: int
    status: Annotated[str, choices([Status.PENDING.value])]
    status_url: Annotated[Path, "Path of the task."]


class UploadPlace(TypedDict):
    file_key: Annotated[str, "Key to submit after the upload."]
    upload_url: Annotated[Url, "Presigned URL, valid for 15 minutes."]
    method: Annotated[str, choices(["PUT"])]
    headers: Annotated[dict[str, str], "Headers to send with the upload."]
    expires_at: Annotated[datetime, "Expiry of the URL. The uploaded file itself is kept for a day."]


class StageRuns(TypedDict):
    """Number of runs of each stage, including the first."""

    ocr: int
    postprocess: int


class Warning(TypedDict):  # noqa: A001 - the API's name
    code: str
    detail: str
    page: NotRequired[Annotated[int, "Page number, from 1."]]


class TaskMetadata(TypedDict):
    attempts: StageRuns
    artifact_mineru_markdown_key: Annotated[str | None, "Object key of the Markdown in the bucket, from any provider."]
    provider: str | None
    provider_task_id: str | None
    ocr: Annotated[dict[str, Any], OcrField]
    postprocess: Annotated[dict[str, Any], PostprocessField]
    warnings: list[Warning]


class TaskFailure(TypedDict):
    code: Annotated[str, choices(ERROR_CODES)]
    stage: Annotated[str, choices(Phase)]
    detail: str
    retryable: Annotated[bool, "Whether a retry may succeed."]


class TaskProgress(TypedDict):
    status: Annotated[str, choices(Status)]
    phase: Annotated[str, choices(Phase)]
    progress: Annotated[int, partial(serializers.IntegerField, min_value=0, max_value=100), "Percent."]


class TaskStatus(TaskProgress):
    error: TaskFailure | None
    at: datetime


class TaskId(TypedDict):
    task_id: int


class TaskDetails(TypedDict):
    filename: str
    rule_id: int
    rule_version: Annotated[int, "Version of the rule that the task is pinned to."]
    error: Annotated[TaskFailure | None, "Set if `status` is `failed`."]
    metadata: TaskMetadata
    created_at: datetime
    updated_at: datetime


class TaskSummary(TaskId, TaskProgress, TaskDetails):
    pass


class Task(TaskSummary):
    result: Annotated[dict[str, Any] | None, ResultField, "Set if `status` is `completed`."]


class CancelledTask(TypedDict):
    task_id: int
    status: Annotated[str, choices([Status.CANCELLED.value])]


# ---- Rule tests -----------------------------------------------------------------------------------------------------


@extend_schema_field(result_shape("null"))
class TrialResultField(serializers.JSONField):
    """The `result` that a task would have. File keys and provider ids are null."""


class TrialUsage(TypedDict):
    prompt_tokens: int
    completion_tokens: int
    calls: int


class TrialPassed(TypedDict):
    ok: Annotated[bool, "true"]
    result: Annotated[dict[str, Any], TrialResultField]
    usage: TrialUsage
    warnings: list[Warning]


class TrialFailed(TypedDict):
    ok: Annotated[bool, "false"]
    error: Annotated[TaskFailure, "The error that a task would end with."]
    usage: TrialUsage
    warnings: list[Warning]


RULE_TRIAL = PolymorphicProxySerializer(
    component_name="RuleTrial",
    serializers=[serializer_of(TrialPassed), serializer_of(TrialFailed)],
    resource_type_field_name=None,
)
