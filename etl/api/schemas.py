"""Types of response bodies. `representation` builds them, and the OpenAPI document is derived from them."""

from datetime import date, datetime
from functools import partial
from typing import Annotated, Any, NotRequired, TypedDict

from drf_spectacular.utils import PolymorphicProxySerializer, extend_schema_field
from rest_framework import serializers

from config.platform.http.openapi.response_schemas import Path, Url, choices, serializer_of
from etl.core import errors
from etl.core.states import Stage, Status
from etl.postprocessors.citations.levels import LEVELS
from etl.providers.base import BLOCK_KINDS

ERROR_CODES = sorted(errors.codes())
OBJECT = {"type": "object", "additionalProperties": True}
TOKENS = {**OBJECT, "properties": {"prompt_tokens": {"type": "integer"}, "completion_tokens": {"type": "integer"}}}
CITATIONS = {
    "type": "array",
    "description": "Where in the document each value of `data` was found: one citation per value, except null, empty "
    "strings, and booleans and enum values without a valid quote. Absent with `skip`.",
    "items": {
        "type": "object",
        "required": ["pointer", "page", "bbox", "quote", "match"],
        "properties": {
            "pointer": {"type": "string", "description": "RFC 6901 JSON Pointer into `data`."},
            "page": {
                "type": ["integer", "null"],
                "minimum": 1,
                "description": "The page of the row that the value is in. Null if it is not known.",
            },
            "bbox": {
                "type": ["array", "null"],
                "items": {"type": "number"},
                "minItems": 4,
                "maxItems": 4,
                "description": "The place of this row on the page: x0, y0, x1, y1 in points from its top left, as in "
                "`GET …/layout`. Null if it is not known, as for documents that are not printed.",
            },
            "quote": {"type": ["string", "null"], "description": "Text of the page. Null if no place is known."},
            "match": {
                "type": "string",
                "enum": list(LEVELS),
                "description": "How certain the citation is. `exact`: the quote contains the value as it is written. "
                "`normalized`: in another notation that has one meaning. `ambiguous`: in a notation with several "
                "meanings, or at several places. `quote`: the quote is in the document, the value was not checked. "
                "`image`: the model read it in the image of the page, and the text does not have it. "
                "`computed`: not in the document, but the sum or number of cited values. `not_found`: not in the "
                "document.",
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
        "description": "`strategy`, `model`, the `usage` of all attempts of this run, and `earlier_usage`, of the runs "
        "before a retry. Empty until post-processing starts.",
        "properties": {
            "strategy": {"type": ["string", "null"]},
            "model": {"type": ["string", "null"]},
            "usage": TOKENS,
            "earlier_usage": TOKENS,
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
    reason: NotRequired[Annotated[str, "The class of the exception, such as `ValueError`."]]


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
    stage: Annotated[str, choices(Stage)]
    detail: str
    retryable: Annotated[bool, "Whether a retry may succeed."]


class TaskProgress(TypedDict):
    status: Annotated[str, choices(Status)]
    phase: Annotated[str, choices(Stage)]
    progress: Annotated[int, partial(serializers.IntegerField, min_value=0, max_value=100), "Percent."]
    waiting: Annotated[bool, "Whether no worker has the task: it waits for one, or for its next attempt."]


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
    previous_result: Annotated[
        dict[str, Any] | None,
        ResultField,
        "The result of an earlier run, after a retry, until the task is `completed` again.",
    ]


class LayoutBlock(TypedDict):
    id: Annotated[str, "Page and number, such as `1-3`. In reading order."]
    kind: Annotated[str, choices(BLOCK_KINDS)]
    bbox: Annotated[
        list[float],
        partial(serializers.ListField, child=serializers.FloatField(), min_length=4, max_length=4),
        "x0, y0, x1, y1 in points, from the top left of the page.",
    ]
    text: Annotated[str, "Markdown. Headers and footers are not in the Markdown of the document."]


class LayoutPage(TypedDict):
    page: Annotated[int, "Page number, from 1."]
    width: Annotated[float, "Points, as the page is displayed."]
    height: float
    rotation: Annotated[int, "Always 0: places are on the page as it is displayed."]
    blocks: list[LayoutBlock]


class Layout(TypedDict):
    pages: Annotated[list[LayoutPage], "Empty if the provider does not know the places of text."]


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


class OpenLimit(TypedDict):
    limit: int
    used: int
    remaining: int


class DocumentDayLimit(OpenLimit):
    resets_at: datetime


class TokenLimit(TypedDict):
    limit: Annotated[int | None, "Null: no limit."]
    used: int
    remaining: Annotated[int | None, "Null: no limit."]
    resets_at: datetime


class RuleTokenLimit(TokenLimit):
    rule_id: int


class DocumentLimits(TypedDict):
    documents_per_day: Annotated[
        DocumentDayLimit, "Submissions. An upload URL counts as one until its document is submitted or deleted."
    ]
    bytes_per_day: Annotated[DocumentDayLimit, "The sizes of these documents and upload URLs."]
    rule_versions_per_day: Annotated[DocumentDayLimit, "New rules, and changes of rules."]
    rule_tests_per_day: Annotated[DocumentDayLimit, "Tests of rules that call a language model."]
    tokens_per_day: Annotated[TokenLimit, "Tokens of language models, of documents and rule tests."]
    rule_tokens_per_day: Annotated[
        list[RuleTokenLimit], "Your rules, and system rules, that have a budget. The tokens are those of all users."
    ]
    open_tasks: Annotated[OpenLimit, "Tasks that have not ended, and upload URLs that can be used."]
    max_file_bytes: int
    max_pages: int
    rate: Annotated[str, "Rate limit for requests other than GET, such as `1200/min`."]


class UsageOfDay(TrialUsage):
    date: date


class UsageReport(TypedDict):
    total: TrialUsage
    days: list[UsageOfDay]


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
